"""The inputs of ffmpeg and ffprobe."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.inputs import Input, local_input, remote_input

CONTAINERS = (
    "mp3,flac,wav,w64,ogg,mov,matroska,aac,aiff,caf,amr,wv,ape,tta,dsf,mpc,mpc8,asf,ac3,eac3,au"
    ",avi,mpegts,mpeg,mxf,flv"
)


# Twenty seconds, in ffmpeg's unit of microseconds.
STALL = "20000000"
RECONNECT = "-seekable 1 -reconnect 1 -reconnect_on_network_error 1 -reconnect_delay_max 2".split()
URL = "https://a.test/b.mp3"


class InputTests(SynchronousTestCase):
    """`Input` and `local_input`"""

    def test_local(self) -> None:
        """A local source is opened through the checked descriptor, never by its path (D43)."""
        self.assertEqual(local_input(), Input("file:/dev/fd/3", ("file",)))

    def test_same_demuxers(self) -> None:
        """Probe and encoder open the same containers (Format and encoding options, 5; D43)."""
        for words in (local_input().encoder_arguments(), local_input().probe_arguments()):
            self.assertEqual(
                words,
                [
                    *("-protocol_whitelist", "file", "-format_whitelist", CONTAINERS),
                    *("-i", "file:/dev/fd/3"),
                ],
            )

    def test_protocols(self) -> None:
        """A remote source has the protocols of the contract (Format and encoding options, 5)."""
        source = Input("https://a.test/b.mp3", ("https", "tls", "tcp"))
        for arguments in (source.probe_arguments(), source.encoder_arguments()):
            self.assertEqual(arguments[:2], ["-protocol_whitelist", "https,tls,tcp"])
            self.assertEqual(arguments[-2:], ["-i", "https://a.test/b.mp3"])

    def test_no_references_to_files(self) -> None:
        """Containers that name other files are never opened, even by the probe (D43)."""
        for words in (local_input().probe_arguments(), local_input().encoder_arguments()):
            whitelisted = set(words[words.index("-format_whitelist") + 1].split(","))
            referring = {"hls", "dash", "concat", "image2", "imf", "lavfi", "sdp", "tedcaptions"}
            self.assertEqual(whitelisted & referring, set())

    def test_seek(self) -> None:
        """A seek position is an input option, before the input."""
        words = local_input().encoder_arguments("41")
        self.assertEqual(words[-4:], ["-ss", "41", "-i", "file:/dev/fd/3"])


class RemoteTests(SynchronousTestCase):
    """`remote_input`"""

    def arguments(self, source: Input) -> list[str]:
        """Return the arguments that ffmpeg and ffprobe share, without the containers."""
        words = source.encoder_arguments()
        self.assertEqual(words, source.probe_arguments())
        at = words.index("-format_whitelist")
        return [*words[:at], *words[at + 2 :]]

    def value(self, source: Input, option: str) -> str | None:
        """Return the option's value for both ffmpeg and ffprobe, or None; fail if they differ."""
        words = self.arguments(source)
        self.assertLessEqual(words.count(option), 1)
        return words[words.index(option) + 1] if option in words else None

    def test_https(self) -> None:
        """All options of an https source are before the input (Format and encoding options, 5)."""
        expected = [
            *("-protocol_whitelist", "https,tls,tcp"),
            *("-max_redirects", "0", "-icy", "0", "-rw_timeout", STALL, "-user_agent", "us/1"),
            *RECONNECT,
            *("-headers", 'If-Match: "x"\r\n', "-tls_verify", "1", "-ca_file", "/ca.pem"),
            *("-i", URL),
        ]
        source = remote_input(URL, "us/1", "/ca.pem", if_match='"x"')
        self.assertEqual(self.arguments(source), expected)

    def test_cleartext(self) -> None:
        """A development endpoint may use cleartext, and has no TLS options.

        For http, ffmpeg would reject a TLS option as unknown, and exit.
        """
        source = remote_input("http://127.0.0.1:9000/b/k", "us/1", "/ca.pem")
        expected = [
            *("-protocol_whitelist", "https,tls,tcp,http"),
            *("-max_redirects", "0", "-icy", "0", "-rw_timeout", STALL, "-user_agent", "us/1"),
            *RECONNECT,
            *("-i", "http://127.0.0.1:9000/b/k"),
        ]
        self.assertEqual(self.arguments(source), expected)

    def test_no_cleartext_for_https(self) -> None:
        """An https source never uses cleartext or files (Format and encoding options, 5; D43)."""
        for source in (remote_input(URL, "a"), remote_input(URL, "a", ranges=False)):
            self.assertEqual(self.value(source, "-protocol_whitelist"), "https,tls,tcp")

    def test_verified(self) -> None:
        """Certificates are verified, by default with the system's CA certificates."""
        for ca_file in (None, "/ca.pem"):
            source = remote_input(URL, "a", ca_file)
            self.assertEqual(self.value(source, "-tls_verify"), "1")
            self.assertEqual(self.value(source, "-ca_file"), ca_file)

    def test_ranges(self) -> None:
        """Ranges are requested, and the input is seekable, only if the server supports ranges."""
        for url in (URL, "http://127.0.0.1/b"):
            for ranges, seekable in ((True, "1"), (False, "0")):
                source = remote_input(url, "a", ranges=ranges)
                self.assertEqual(self.value(source, "-seekable"), seekable)
                # A source without seeking cannot be resumed either.
                self.assertEqual(self.value(source, "-reconnect"), "1" if ranges else None)
                self.assertEqual(source.seekable, ranges)
        self.assertTrue(local_input().seekable)

    def test_verbosity(self) -> None:
        """Remote sources use verbosity warning, at which ffmpeg reports lost connections."""
        self.assertEqual(remote_input(URL, "a").verbosity, "warning")
        self.assertEqual(remote_input("http://127.0.0.1/b", "a").verbosity, "warning")
        self.assertEqual(local_input().verbosity, "error")

    def test_if_match(self) -> None:
        """If the source has an entity tag, requests have it in If-Match."""
        self.assertIsNone(self.value(remote_input(URL, "a"), "-headers"))
        for url in (URL, "http://127.0.0.1/b"):
            source = remote_input(url, "a", if_match='"x"')
            self.assertEqual(self.value(source, "-headers"), 'If-Match: "x"\r\n')

    def test_containers(self) -> None:
        """A remote source has the same containers as a local source."""
        for remote, local in (
            (remote_input(URL, "a").encoder_arguments(), local_input().encoder_arguments()),
            (remote_input(URL, "a").probe_arguments(), local_input().probe_arguments()),
        ):
            self.assertEqual(
                _after("-format_whitelist", remote), _after("-format_whitelist", local)
            )

    def test_seek(self) -> None:
        """A seek position of a remote source is an input option, after its other options."""
        words = remote_input(URL, "a").encoder_arguments("41")
        self.assertEqual(words[-4:], ["-ss", "41", "-i", URL])


def _after(option: str, words: list[str]) -> str:
    return words[words.index(option) + 1]
