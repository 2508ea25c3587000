"""The inputs of ffmpeg and ffprobe."""

from __future__ import annotations

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.command.inputs import (
    RAW_DEMUXERS,
    Input,
    RawSamples,
    local_input,
    remote_input,
)

CONTAINERS = (
    "mp3,flac,wav,w64,ogg,mov,matroska,aac,aiff,caf,amr,wv,ape,tta,dsf,mpc,mpc8,asf,ac3,eac3,au"
    ",dts,loas,tak,iff,avi,mpegts,mpeg,mxf,flv"
)


# Twenty seconds, in ffmpeg's unit of microseconds.
STALL = "20000000"
RECONNECT = "-seekable 1 -reconnect 1 -reconnect_on_network_error 1 -reconnect_delay_max 2".split()
# A source without seeking cannot be resumed either.
NO_RANGES = ["-seekable", "0"]
URL = "https://a.test/b.mp3"


class InputTests(SynchronousTestCase):
    """`Input` and `local_input`"""

    def test_local(self) -> None:
        """A local source is opened through the checked descriptor, never by its path (D43)."""
        self.assertEqual(local_input(), Input("file:/dev/fd/3", ("file",)))

    def test_same_demuxers(self) -> None:
        """Probe and encoder open the same containers (Format and encoding options, 5; D43)."""
        for words in (local_input().encoder_arguments(), local_input().probe_arguments()):
            whitelists = "-protocol_whitelist", "file", "-format_whitelist", CONTAINERS
            self.assertEqual(words, [*whitelists, "-i", "file:/dev/fd/3"])
        # None of these containers names other files.
        referring = {"hls", "dash", "concat", "image2", "imf", "lavfi", "sdp", "tedcaptions"}
        self.assertEqual(set(CONTAINERS.split(",")) & referring, set())

    def test_demuxer(self) -> None:
        """A demuxer that is proved is opened by both, and only if it is listed (D43)."""
        for source in (local_input(), remote_input(URL, "a")):
            proved = replace(source, demuxer="wav")
            for words in (proved.probe_arguments(), proved.encoder_arguments("1")):
                self.assertIn("-format_whitelist", words)
                self.assertEqual(words[words.index("-f") + 1], "wav")
                self.assertLess(words.index("-f"), words.index("-i"))

    def test_skipped(self) -> None:
        """Tags ahead of a container are skipped by both, and not passed where there are none."""
        for source in (local_input(), remote_input(URL, "a")):
            skipping = replace(source, demuxer="wav", skipped=1234)
            for words in (skipping.probe_arguments(), skipping.encoder_arguments("1")):
                at = words.index("-skip_initial_bytes")
                self.assertEqual(words[at - 2 : at + 2], ["-f", "wav", words[at], "1234"])
            self.assertNotIn("-skip_initial_bytes", source.encoder_arguments("1"))

    def test_input_options(self) -> None:
        """Decoder, ignored length and seek come after the other options of ffmpeg's input."""
        for source in (local_input(), remote_input(URL, "a")):
            changed = replace(source, decoder="pcm_s32le", ignore_length=True)
            words = source.encoder_arguments("41")
            more = ["-ignore_length", "1", "-c:a", "pcm_s32le"]
            self.assertEqual(words[-4:], ["-ss", "41", "-i", source.url])
            self.assertEqual(changed.encoder_arguments("41"), [*words[:-4], *more, *words[-4:]])
            self.assertEqual(changed.probe_arguments(), source.probe_arguments())

    def test_raw_samples(self) -> None:
        """Samples without their container are opened by their demuxer alone (D43)."""
        raw = RawSamples("s16be", 44, 8000, 2)
        self.assertIn(raw.form, RAW_DEMUXERS)
        for source in (local_input(), remote_input(URL, "a")):
            words = replace(source, raw=raw).encoder_arguments("41")
            plain = source.encoder_arguments("41")
            at = words.index("-format_whitelist") + 1
            form = "s16be -f s16be -skip_initial_bytes 44 -ar 8000 -ac 2".split()
            self.assertEqual(words, [*plain[:at], *form, *plain[at + 1 :]])

    def test_forward(self) -> None:
        """A probe may be kept from seeking, whatever the options of the source are."""
        for source in (local_input(), remote_input(URL, "a")):
            words = replace(source, forward=True).probe_arguments()
            more = ["-seekable", "0", "-ignore_length", "1"]
            self.assertEqual(words, [*source.probe_arguments()[:-2], *more, "-i", source.url])


class RemoteTests(SynchronousTestCase):
    """`remote_input`"""

    def arguments(self, source: Input) -> list[str]:
        """Return the arguments that ffmpeg and ffprobe share, without the containers."""
        words = source.encoder_arguments()
        self.assertEqual(words, source.probe_arguments())
        at = words.index("-format_whitelist")
        self.assertEqual(words[at + 1], CONTAINERS)
        return [*words[:at], *words[at + 2 :]]

    def test_options(self) -> None:
        """All options are before the input (Format and encoding options, 5; D43).

        https never uses cleartext or files, and its certificate is verified; http has no TLS
        options, which ffmpeg would reject. Ranges are requested only from a server that supports
        them. Requests have the source's entity tag in If-Match.
        """
        tag = ["-headers", 'If-Match: "x"\r\n']
        tls, http = ["-tls_verify", "1"], "http://127.0.0.1:9000/b/k"
        for source, protocols, seeking, rest in (
            (remote_input(URL, "us/1"), "https,tls,tcp", RECONNECT, tls),
            (
                remote_input(URL, "us/1", "/ca.pem", if_match='"x"'),
                "https,tls,tcp",
                RECONNECT,
                [*tag, *tls, "-ca_file", "/ca.pem"],
            ),
            (remote_input(URL, "us/1", ranges=False), "https,tls,tcp", NO_RANGES, tls),
            (remote_input(http, "us/1", "/ca.pem"), "https,tls,tcp,http", RECONNECT, []),
            (remote_input(http, "us/1", if_match='"x"'), "https,tls,tcp,http", RECONNECT, tag),
            (remote_input(http, "us/1", ranges=False), "https,tls,tcp,http", NO_RANGES, []),
        ):
            common = f"-tcp_nodelay 1 -max_redirects 0 -icy 0 -rw_timeout {STALL} -user_agent us/1"
            expected = [*common.split(), *seeking, *rest, "-i", source.url]
            words = ["-protocol_whitelist", protocols, *expected]
            self.assertEqual(self.arguments(source), words)
            self.assertEqual(source.seekable, seeking is RECONNECT)
        self.assertTrue(local_input().seekable)

    def test_verbosity(self) -> None:
        """Remote sources use verbosity warning, at which ffmpeg reports lost connections."""
        self.assertEqual(remote_input(URL, "a").verbosity, "warning")
        self.assertEqual(remote_input("http://127.0.0.1/b", "a").verbosity, "warning")
        self.assertEqual(local_input().verbosity, "error")
