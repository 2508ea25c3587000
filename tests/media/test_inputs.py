"""How a source is opened."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.inputs import Input, local_input

AUDIO = "mp3,flac,wav,w64,ogg,mov,matroska,aac,aiff,caf,amr,wv,ape,tta,dsf,mpc,mpc8,asf,ac3,eac3,au"
VIDEO = "avi,mpegts,mpeg,flv"


class InputTests(SynchronousTestCase):
    """`Input` and `local_input`"""

    def test_local(self) -> None:
        """A local source is the descriptor that was checked, and no path of it (D43)."""
        self.assertEqual(local_input(), Input("file:/dev/fd/3", ("file",)))

    def test_encoder(self) -> None:
        """The encoder opens containers of audio alone, by one protocol (rule 5; D43)."""
        self.assertEqual(
            local_input().encoder_arguments(),
            [
                *("-protocol_whitelist", "file", "-format_whitelist", AUDIO),
                *("-i", "file:/dev/fd/3"),
            ],
        )

    def test_probe(self) -> None:
        """The probe knows containers of film besides, so as to call a film a film (rule 4)."""
        self.assertEqual(
            local_input().probe_arguments(),
            [
                *("-protocol_whitelist", "file", "-format_whitelist", f"{AUDIO},{VIDEO}"),
                *("-i", "file:/dev/fd/3"),
            ],
        )

    def test_protocols(self) -> None:
        """A remote source has the three protocols of the contract (rule 5)."""
        source = Input("https://a.test/b.mp3", ("https", "tls", "tcp"))
        for arguments in (source.probe_arguments(), source.encoder_arguments()):
            self.assertEqual(arguments[:2], ["-protocol_whitelist", "https,tls,tcp"])
            self.assertEqual(arguments[-2:], ["-i", "https://a.test/b.mp3"])

    def test_no_list_of_files(self) -> None:
        """Nothing that names other files is ever opened, for the probe neither (D43)."""
        for words in (local_input().probe_arguments(), local_input().encoder_arguments()):
            known = set(words[words.index("-format_whitelist") + 1].split(","))
            listed = {"hls", "dash", "concat", "image2", "imf", "lavfi", "sdp", "tedcaptions"}
            self.assertEqual(known & listed, set())

    def test_seek(self) -> None:
        """A position to start at is one of the input, ahead of it."""
        words = local_input().encoder_arguments("41")
        self.assertEqual(words[-4:], ["-ss", "41", "-i", "file:/dev/fd/3"])
