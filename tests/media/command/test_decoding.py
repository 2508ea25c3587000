"""How sources are opened, and the decoder of irregular sources."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import IrregularSource, Refusal, WrongLength
from audioproxy.media.command.decoding import (
    KEPT_LINES,
    Pipeline,
    decoded_stream,
    decoder_arguments,
    measure_arguments,
    piece_arguments,
    source_filters,
)
from audioproxy.media.command.encoding import encoder_arguments
from audioproxy.media.inputs import local_input
from tests.support.audio import options_of
from tests.support.probes import Probe, replace

STEREO = Probe("mp3", "mp3", Decimal(60), True, sample_rate=44100, decoded_bits=64, layout="stereo")
FLOATS = replace(STEREO, container="wav", codec="pcm_f32le")
SOURCE = local_input()

QUIET = "ffmpeg -nostdin -hide_banner -max_error_rate 1 -v error"
STREAMS = "-map 0:a:0 -vn -sn -dn"
SWRESAMPLE = "filter_size=160:phase_shift=10:kaiser_beta=12:internal_sample_fmt=dblp"
SWRESAMPLE += ":rematrix_maxval=1"


class DecoderTests(SynchronousTestCase):
    """`measure_arguments`, `decoder_arguments` and `piece_arguments`"""

    def test_measuring(self) -> None:
        """The first audio stream is decoded to one byte a sample, at the probed rate (D12, D63)."""
        words = (
            f"{QUIET} {' '.join(SOURCE.encoder_arguments())} {STREAMS}"
            f" -progress pipe:1 -stats_period 3600 -af pan=mono|c0=c0,aresample=44100:{SWRESAMPLE}"
            " -ar 44100 -ac 1 -c:a pcm_u8 -f u8 -y /dev/null"
        )
        self.assertEqual(measure_arguments("ffmpeg", SOURCE, STEREO), words.split())

    def test_piece(self) -> None:
        """A piece of a source is decoded to samples of 32 bits, and nothing is converted else."""
        words = (
            f"{QUIET} {' '.join(SOURCE.encoder_arguments())} {STREAMS}"
            " -af atrim=start_sample=99:end_sample=20579 -c:a pcm_s32le -f s32le pipe:1"
        )
        self.assertEqual(piece_arguments("ffmpeg", SOURCE, STEREO, 99), words.split())

    def test_noise(self) -> None:
        """The noise of AC-3 does not depend on the frames ahead, in all passes of a source."""
        for codec, words in (
            ("ac3", "-cons_noisegen 1 "),
            ("eac3", "-cons_noisegen 1 "),
            ("mp3", ""),
        ):
            source = replace(STEREO, container=codec, codec=codec)
            self.assertTrue(self.words(source).startswith(f"{QUIET} {words}-protocol"), codec)
            measuring = " ".join(measure_arguments("ffmpeg", SOURCE, source))
            self.assertTrue(measuring.startswith(f"{QUIET} {words}-protocol"), codec)
        # An encoder decodes nothing.
        command = encoder_arguments("ffmpeg", decoded_stream(source), options_of("f:mp3"), source)
        self.assertNotIn("-cons_noisegen", command)

    def words(self, probe: Probe) -> str:
        """Return the command line."""
        return " ".join(decoder_arguments("ffmpeg", SOURCE, probe))

    def test_exact(self) -> None:
        """The decoder outputs the probed form (D63), and opens nothing but the source (D43)."""
        filters = (
            "volume=volume=if(eq(nb_channels\\,1)\\,sqrt(2)\\,1):precision=double"
            f",aresample=44100:ochl=stereo:{SWRESAMPLE}"
        )
        self.assertEqual(
            self.words(STEREO),
            f"{QUIET} {' '.join(SOURCE.encoder_arguments())} {STREAMS} -af {filters}"
            " -ar 44100 -abort_on empty_output -c:a pcm_f32le -f f32le pipe:1",
        )

    def test_channels(self) -> None:
        """Channels keep their layout between the processes, and none is mixed by its label.

        ffmpeg would take their number for the usual layout of so many. Labels that libswresample
        cannot mix are taken away; the encoder mixes by numbers.
        """
        relabel = "channelmap=map=0|1|2|3:channel_layout=4.0,"
        for channels, layout, filters, stated in (
            (3, "3.0", "", "-ch_layout 3.0"),
            (6, "5.1(side)", "", "-ch_layout 5.1(side)"),
            (3, "3 channels (FL+FR+TFL)", "", "-ch_layout FL+FR+TFL"),
            (4, "ambisonic 1", relabel, "-ch_layout 4.0"),
            (4, None, "", "-ch_layout FL+FR+FC+BC"),
            (3, None, "", "-ac 3"),
            (9, None, "", "-ac 9"),
        ):
            probe = replace(STEREO, channels=channels, layout=layout)
            words, name = self.words(probe), stated.removeprefix("-ch_layout ")
            mixed = "" if stated.startswith("-ac") else f"ochl={name}:"
            end = f" {stated}" if stated.startswith("-ac") else ""
            expected = (
                f" -af {filters}aresample=44100:{mixed}{SWRESAMPLE} -ar 44100{end} -abort_on "
            )
            self.assertIn(expected, words)
            self.assertIn(
                f" -ar 44100 {stated} ", " ".join(decoded_stream(probe).probe_arguments())
            )

    def test_samples(self) -> None:
        """Samples that are no audio become silence, in sources that can store them."""
        finite = "-af aeval=if(lte(abs(val(ch))\\,65536)\\,val(ch)\\,0):c=same,volume="
        self.assertIn(finite, self.words(FLOATS))
        self.assertNotIn("aeval", self.words(STEREO))

    def test_formats(self) -> None:
        """The stream has the samples of the decoder as they are, in no more bits than they need."""
        for codec, bits, form in (
            ("pcm_u8", 8, "u8"),
            ("flac", 16, "s16le"),
            ("alac", 20, "s24le"),
            ("pcm_s24be", 24, "s24le"),
            ("wavpack", 32, "s32le"),
            ("mp3", 64, "f32le"),
            ("pcm_f32be", 64, "f32le"),
            ("pcm_f64le", 64, "f64le"),
            ("pcm_s64le", 64, "f64le"),
        ):
            probe = replace(STEREO, codec=codec, decoded_bits=bits)
            self.assertIn(f"-c:a pcm_{form} -f {form} pipe:1", self.words(probe))
            opened = " ".join(decoded_stream(probe).probe_arguments())
            self.assertIn(f"-format_whitelist {form} ", opened)

    def test_integers(self) -> None:
        """Integers stay integers, which ffmpeg converts to 16 bits in another way than floats."""
        probe = replace(STEREO, codec="flac", decoded_bits=24)
        (check,) = source_filters(SOURCE, probe, 44100, samples=True)
        self.assertTrue(check.endswith(":precision=fixed"))
        (check, _) = source_filters(SOURCE, replace(FLOATS, codec="pcm_f64le"), 44100, samples=True)
        self.assertTrue(check.endswith(":precision=double"))


class PartTests(SynchronousTestCase):
    """Renders of parts of a source, which run side by side."""

    def test_one_thread(self) -> None:
        """The decoder of a part has one thread, and is that of a whole in all else."""
        probe, options = replace(STEREO, container="flac", codec="flac"), options_of("f:peaks")
        whole = " ".join(encoder_arguments("ffmpeg", SOURCE, options, probe))
        part = " ".join(encoder_arguments("ffmpeg", SOURCE, options, replace(probe, in_parts=True)))
        self.assertEqual(part.replace("-threads 1 ", ""), whole)
        self.assertLess(part.index("-threads 1"), part.index("-i "))


class DecodedTests(SynchronousTestCase):
    """Renders that read the output of a decoder."""

    def test_same_command(self) -> None:
        """Only the beginning of the command line differs from a render in one process.

        It never seeks in an irregular source.
        """
        options, probe = options_of("f:ogg/t:20:5/fade:1:1"), replace(FLOATS, irregular=True)
        alone = " ".join(encoder_arguments("ffmpeg", SOURCE, options, probe))
        words = " ".join(encoder_arguments("ffmpeg", decoded_stream(probe), options, probe))
        checks = ",".join(source_filters(SOURCE, FLOATS, 0, samples=True))
        whole = " ".join(SOURCE.encoder_arguments())
        opened = (
            "-protocol_whitelist file -format_whitelist f32le -f f32le -ar 44100 -ch_layout stereo"
        )
        expected = alone.replace(f"-reinit_filter 0 {whole}", f"{opened} -i file:/dev/fd/0")
        self.assertEqual(words, expected.replace(f"{checks},", ""))


class CheckTests(SynchronousTestCase):
    """`source_filters` and `Pipeline.check`"""

    def test_start(self) -> None:
        """The first frame is checked after a seek only: without one, the probe has seen it."""
        self.assertEqual(source_filters(SOURCE, STEREO, 0, samples=True), [])
        (check,) = source_filters(SOURCE, STEREO, 44100, samples=True)
        self.assertTrue(check.endswith(":eval=once:precision=float"))
        self.assertIn("if(eq(sample_rate\\,44100)*eq(nb_channels\\,2)\\,1\\,nan)", check)

    def test_samples(self) -> None:
        """Stored floating-point samples are checked, unless the output is a copy of them."""
        (check,) = source_filters(SOURCE, FLOATS, 0, samples=True)
        self.assertIn("silencedetect=noise=65536:", check)
        self.assertEqual(source_filters(SOURCE, FLOATS, 0, samples=False), [])
        for text, checked in (
            ("f:wav", False),
            ("f:wav/t:1:2", False),
            ("f:wav/ch:1", True),
            ("f:wav/gain:1", True),
            ("f:wav/sr:8000", True),
            ("f:wav/bd:24", True),
            ("f:flac", True),
            ("f:mp3", True),
            ("f:peaks", True),
        ):
            probe = replace(FLOATS, bit_depth=32)
            words = encoder_arguments("ffmpeg", SOURCE, options_of(text), probe)
            self.assertEqual("silencedetect" in " ".join(words), checked, text)

    def test_codecs(self) -> None:
        """Floating-point samples are those of PCM, and those of lossless codecs that store them."""
        for codec, bits, stored in (
            ("pcm_f64be", 64, True),
            ("pcm_s32le", 32, False),
            ("wavpack", 64, True),
            ("wavpack", 32, False),
            ("aac", 64, False),
        ):
            probe = replace(STEREO, codec=codec, decoded_bits=bits)
            self.assertEqual(probe.audio.stores_floats, stored, codec)

    def test_reports(self) -> None:
        """A change, a start after a change, and a sample that is no audio are irregular (D63)."""
        pipeline = Pipeline(["ffmpeg"], checked_rate=44100)
        audio = b"frame:0    pts:0       pts_time:0\nlavfi.silence_start=2.26757e-05\n"
        for stderr, expected in (
            (b"", False),
            (audio, False),
            (audio.replace(b"=2.26757e", b"=0.0000226757#e").split(b"#")[0] + b"\n", False),
            (audio.replace(b"2.26757e-05", b"4.53515e-05"), True),
            (b"[aac @ 0x55] Input contains (near) NaN/+-Inf\n", True),
            (b"ffmpeg: psymodel.c:576: calc_energy: Assertion `el >= 0' failed.\n", True),
            (audio + b"frame:7 pts:7168 pts_time:7168\nlavfi.silence_end=7999\n", True),
            (b"[a @ 0x5] Changing audio frame properties on the fly is not supported.\n", True),
            (b"[Parsed_volume_2 @ 0x55] Invalid value NaN for volume\n", True),
            (b"a\n45056.000000\n", True),
            (b"[Eval @ 0x7f12] 45056.000000\n", True),
            (b"[Eval @ 0x7f12] Undefined constant or missing '(' in 'a'\n", False),
            (b"[mp3float @ 0x55] Header missing\n", False),
        ):
            refused = self.assertRaises if expected else self.accepts
            refused(IrregularSource, pipeline.check, stderr)
            self.assertEqual(pipeline.has_checked(stderr), b"silence_start" in stderr, stderr)
            behind = Pipeline(["ffmpeg"], ["decoder"])
            behind.check(stderr)
            self.assertTrue(behind.has_checked(stderr))

    def test_excess(self) -> None:
        """More audio than the source states is found by each kind of pipeline."""
        for decoder in (None, ["decoder"]):
            pipeline = Pipeline(["ffmpeg"], decoder)
            self.assertRaises(WrongLength, pipeline.check, b"audioproxy.excess=1\n")

    def accepts(self, refusal: type[Refusal], check: Callable[[bytes], None], said: bytes) -> None:
        """Assert that a check does not refuse what an encoder has printed."""
        with self.subTest(refusal):
            check(said)

    def test_kept_lines(self) -> None:
        """The report of a sample is kept, however many messages follow it."""
        self.assertTrue(KEPT_LINES.search(b"a\nlavfi.silence_end=7999\n"))
        self.assertTrue(KEPT_LINES.search(b"lavfi.silence_start=1\nHeader missing\n"))
        self.assertTrue(KEPT_LINES.search(b"[Eval @ 0x7f12] 45056.000000\nHeader missing\n"))
        self.assertFalse(KEPT_LINES.search(b"frame:0 pts:0\nHeader missing\n"))
