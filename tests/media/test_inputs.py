"""The inputs of ffmpeg and ffprobe."""

from __future__ import annotations

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.inputs import RAW_DEMUXERS, RawSamples, local_input

CONTAINERS = (
    "mp3,flac,wav,w64,ogg,mov,matroska,aac,aiff,caf,amr,wv,ape,tta,dsf,mpc,mpc8,asf,ac3,eac3,au"
    ",dts,loas,tak,iff,avi,mpegts,mpeg,mxf,flv"
)


SOURCE = local_input()


class InputTests(SynchronousTestCase):
    """`Input` and `local_input`"""

    def test_same_demuxers(self) -> None:
        """Probe and encoder open the same containers (Format and encoding options, 5; D43).

        They open every source through the checked descriptor, and nothing but files (D74).
        """
        for words in (SOURCE.encoder_arguments(), SOURCE.probe_arguments()):
            whitelists = "-protocol_whitelist", "file", "-format_whitelist", CONTAINERS
            self.assertEqual(words, [*whitelists, "-i", "file:/dev/fd/3"])
        # None of these containers names other files.
        referring = {"hls", "dash", "concat", "image2", "imf", "lavfi", "sdp", "tedcaptions"}
        self.assertEqual(set(CONTAINERS.split(",")) & referring, set())

    def test_demuxer(self) -> None:
        """A demuxer that is proved is opened by both, and only if it is listed (D43)."""
        proved = replace(SOURCE, demuxer="wav")
        for words in (proved.probe_arguments(), proved.encoder_arguments("1")):
            self.assertIn("-format_whitelist", words)
            self.assertEqual(words[words.index("-f") + 1], "wav")
            self.assertLess(words.index("-f"), words.index("-i"))

    def test_skipped(self) -> None:
        """Tags ahead of a container are skipped by both, and not passed where there are none."""
        skipping = replace(SOURCE, demuxer="wav", skipped=1234)
        for words in (skipping.probe_arguments(), skipping.encoder_arguments("1")):
            at = words.index("-skip_initial_bytes")
            self.assertEqual(words[at - 2 : at + 2], ["-f", "wav", words[at], "1234"])
        self.assertNotIn("-skip_initial_bytes", SOURCE.encoder_arguments("1"))

    def test_input_options(self) -> None:
        """Decoder, ignored length and seek come after the other options of ffmpeg's input."""
        changed = replace(SOURCE, decoder="pcm_s32le", ignore_length=True)
        words = SOURCE.encoder_arguments("41")
        more = ["-ignore_length", "1", "-c:a", "pcm_s32le"]
        self.assertEqual(words[-4:], ["-ss", "41", "-i", SOURCE.url])
        self.assertEqual(changed.encoder_arguments("41"), [*words[:-4], *more, *words[-4:]])
        self.assertEqual(changed.probe_arguments(), SOURCE.probe_arguments())

    def test_raw_samples(self) -> None:
        """Samples without their container are opened by their demuxer alone (D43)."""
        raw = RawSamples("s16be", 44, 8000, 2)
        self.assertIn(raw.form, RAW_DEMUXERS)
        words = replace(SOURCE, raw=raw).encoder_arguments("41")
        plain = SOURCE.encoder_arguments("41")
        at = words.index("-format_whitelist") + 1
        form = "s16be -f s16be -skip_initial_bytes 44 -ar 8000 -ac 2".split()
        self.assertEqual(words, [*plain[:at], *form, *plain[at + 1 :]])

    def test_few_samples(self) -> None:
        """Both examine few samples of a source that is certainly uncompressed."""
        changed = replace(SOURCE, is_pcm=True)
        for words in (changed.probe_arguments(), changed.encoder_arguments("1")):
            self.assertEqual(words[words.index("-probesize") + 1], "65536")
            self.assertLess(words.index("-probesize"), words.index("-i"))
        self.assertNotIn("-probesize", SOURCE.encoder_arguments() + SOURCE.probe_arguments())

    def test_start(self) -> None:
        """A probe may be kept from seeking, and from the chunks behind the samples of a wav file.

        An encoder always reads the whole source.
        """
        plain = SOURCE.probe_arguments()
        for changed, more in (
            (replace(SOURCE, forward=True), ["-seekable", "0", "-ignore_length", "1"]),
            (replace(SOURCE, seekable=False), ["-seekable", "0"]),
            (SOURCE, []),
        ):
            self.assertEqual(changed.probe_arguments(), [*plain[:-2], *more, *plain[-2:]])
            self.assertEqual(changed.encoder_arguments(), SOURCE.encoder_arguments())

    def test_place(self) -> None:
        """ffmpeg does not seek in what begins where decoding starts."""
        placed = replace(SOURCE, demuxer="mp3", skipped=1234, starts_at_place=True)
        words = placed.encoder_arguments("41")
        self.assertNotIn("-ss", words)
        self.assertEqual(words, placed.encoder_arguments())
        self.assertIn("1234", words)
