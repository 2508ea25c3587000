"""The command lines of the encoder."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions
from audioproxy.grammar.option_parser import parse_options
from audioproxy.media.command.decoding import decoded_stream, single_process
from audioproxy.media.command.encoding import build_pipeline, check_bitrate, encoder_arguments
from audioproxy.media.conversion import SWRESAMPLE
from audioproxy.media.info_document import SourceInfo
from audioproxy.media.inputs import local_input
from tests.support.audio import options_of
from tests.support.probes import Probe, replace
from tests.support.strategies import DETERMINISTIC, option_segments

CD = Probe("flac", "flac", Decimal(10), True, sample_rate=44100, channels=2, bit_depth=16)
HIGH_RESOLUTION = replace(CD, sample_rate=96000, bit_depth=24)
SOURCE = local_input()

QUIET = "ffmpeg -nostdin -hide_banner -max_error_rate 1 -v error -reinit_filter 0".split()
OPEN_SOURCE = [*QUIET, *SOURCE.encoder_arguments()]
STREAMS = "-map 0:a:0 -vn -sn -dn -map_metadata -1 -map_chapters -1"
BIT_EXACT = "-fflags +bitexact -flags:a +bitexact"
RESAMPLER = "resampler=soxr:precision=28:internal_sample_fmt=dblp"
# The settings of the encoders (D77).
LAME = "-compression_level 3 -reservoir 1 -joint_stereo 1 -abr 0"
OPUS = (
    "-application audio -vbr on -frame_duration 20 -packet_loss 0 -mapping_family -1"
    " -apply_phase_inv 1"
)
VORBIS = "-iblock 0"
AAC = (
    "-aac_coder twoloop -profile:a aac_low -aac_ms auto -aac_is 1 -aac_pns 1 -aac_tns 1 -aac_pce 0"
)
FLAC = "-frame_size 4608 -lpc_coeff_precision 15 -ch_mode auto -exact_rice_parameters 0"
ABORT_IF_EMPTY = "-abort_on empty_output"
FRAGMENTED = "-movflags empty_moov+default_base_moof -frag_duration 1000000"


def command(text: str, probe: Probe = CD) -> list[str]:
    """Return the command line for options as in a URL."""
    return encoder_arguments("ffmpeg", SOURCE, options_of(text), probe)


@st.composite
def probes(draw: st.DrawFn) -> Probe:
    """Generate probe results."""
    container, codec = draw(
        st.sampled_from((("wav", "pcm_s16le"), ("mp3", "mp3"), ("matroska", "flac"), ("", "aac")))
    )
    return Probe(
        container,
        codec,
        draw(st.none() | st.decimals(Decimal("0.001"), 10**9, places=6)),
        draw(st.booleans()),
        sample_rate=draw(st.integers(1, 6_144_000) | st.sampled_from((8000, 44100, 48000))),
        channels=draw(st.integers(1, 64)),
        bit_depth=draw(st.integers(1, 64)),
        decoded_bits=draw(st.sampled_from((8, 16, 20, 24, 32, 64))),
        layout=draw(st.sampled_from((None, "mono", "stereo", "2.1", "5.1", "7.1"))),
        measured=draw(st.booleans()),
    )


class CommandTests(SynchronousTestCase):
    """`encoder_arguments`"""

    def test_each_format(self) -> None:
        """Each audio format has exactly this command line: all settings are explicit (D9, D77).

        All metadata is removed but the tags that outputs carry (D61), and nothing random is added
        (D44). libsoxr resamples (D60). The default format is mp3.
        """
        opus = f"-c:a libopus -b:a 128k -compression_level 10 {OPUS}"
        vorbis = f"-c:a libvorbis -flags:a +qscale -global_quality:a 590 {VORBIS}"
        flac, aac = f"-c:a flac -compression_level 5 {FLAC}", f"-c:a aac -b:a 160k {AAC}"
        for text, encoder, samples, rate, muxer in (
            ("f:mp3", f"-c:a libmp3lame -b:a 192k {LAME}", "fltp", 44100, "-f mp3"),
            ("f:opus", opus, "flt", 48000, "-page_duration 500000 -f opus"),
            ("f:ogg", vorbis, "fltp", 44100, "-page_duration 500000 -f ogg"),
            ("f:aac", aac, "fltp", 44100, "-f adts"),
            ("f:m4a", aac, "fltp", 44100, f"{FRAGMENTED} -f mp4"),
            ("f:flac", flac, "s16", 44100, "-metadata_header_padding 0 -f flac"),
            ("f:flac/bd:24", flac, "s32", 44100, "-metadata_header_padding 0 -f flac"),
            ("f:wav", "-c:a pcm_s16le", "s16", 44100, "-f wav"),
            ("f:wav/bd:24", "-c:a pcm_s24le", "s32", 44100, "-f wav"),
            ("f:wav/bd:32f", "-c:a pcm_f32le", "flt", 44100, "-f wav"),
        ):
            encoder += f" -sample_fmt {samples} -ar {rate} -ac 2 {ABORT_IF_EMPTY} {muxer} pipe:1"
            tags = "-id3v2_version 0 " * (text == "f:mp3")
            filters = f"aresample=48000:{RESAMPLER}," * (rate == 48000) + "asetpts=N"
            words = f"{STREAMS} {BIT_EXACT} {tags}-af {filters} {encoder}".split()
            self.assertEqual(command(text), [*OPEN_SOURCE, *words], text)
        self.assertEqual(command("br:192"), command("f:mp3"))

    def test_tags(self) -> None:
        """Tags are those of the probe, also for what a decoder outputs of a source (D61)."""
        tags = {"title": "silencedetect", "comment": "no", "artist": "-af"}
        probe = replace(CD, description=SourceInfo(tags=tags))
        for source in (SOURCE, decoded_stream(probe)):
            words = encoder_arguments("ffmpeg", source, options_of("f:flac/t:1"), probe)
            at = words.index("-metadata")
            found = words[at : at + 4]
            self.assertEqual(found, ["-metadata", "TITLE=silencedetect", "-metadata", "ARTIST=-af"])
            self.assertIsNone(single_process(words, probe).checked_rate)
        checked = ["-af", "asetpts=N,silencedetect=n=0"]
        self.assertEqual(44100, single_process(checked, CD).checked_rate)

    def test_pipeline(self) -> None:
        """An irregular source has a decoder of its own, and an encoder that reads its output."""
        options, decoded = options_of("f:opus/t:1:2"), decoded_stream(CD)
        for probe, source in ((CD, SOURCE), (replace(CD, irregular=True), decoded)):
            built = build_pipeline(encoder_arguments, "ffmpeg", SOURCE, options, probe, SWRESAMPLE)
            encoder = encoder_arguments("ffmpeg", source, options, probe, SWRESAMPLE)
            self.assertEqual((built.encoder, built.seconds), (encoder, 2))
            self.assertEqual(built.decoder is not None, probe.irregular)

    def test_filters_and_seek(self) -> None:
        """The filter chain and the seek position are at the right place in the command line."""
        working = "aformat=sample_fmts=dblp:sample_rates=44100"
        words = (
            f"{STREAMS} {BIT_EXACT} -af"
            " volume=volume=if(eq(sample_rate\\,44100)*eq(nb_channels\\,2)\\,1\\,nan):eval=once"
            ":precision=fixed,aformat=sample_rates=44100"
            ",asettb=1/44100,asetpts=if(eq(N\\,0)"
            "\\,st(0\\,if(gt(PTS\\,44100)\\,print(PTS\\,16)\\,PTS))\\,ld(0)+N)"
            ",atrim=start_pts=44100:end_pts=88200,asetpts=PTS-STARTPTS"
            f",aformat=sample_rates=44100,{working},pan=mono|c0=0.500000000*c0+0.500000000*c1"
            ",volume=volume=-3dB:precision=double:eval=once"
            f",asetpts=N,afade=t=in:ss=0:ns=22050:curve=tri,{working}:channel_layouts=mono"
            f",aresample=8000:{RESAMPLER},asetpts=N"
            f" -c:a pcm_f32le -sample_fmt flt -ar 8000 -ac 1 {ABORT_IF_EMPTY} -f wav pipe:1"
        )
        options = "f:wav/t:5:1/fade:0.5/gain:-3/sr:8000/ch:1/bd:32f"
        # ffmpeg counts the time of a seek from the first sample of any stream.
        for offset, seek in ((Decimal(0), "4"), (Decimal("0.676009"), "4.676009")):
            opened = [*QUIET, *SOURCE.encoder_arguments(seek)]
            found = command(options, replace(CD, seekable=True, seek_offset=offset))
            self.assertEqual(found, [*opened, *words.split()])

    def test_resampler(self) -> None:
        """The resampler can be replaced, for an ffmpeg without libsoxr (D60)."""
        words = encoder_arguments("ffmpeg", SOURCE, options_of("f:opus"), CD, SWRESAMPLE)
        expected = " ".join(command("f:opus")).replace(RESAMPLER, SWRESAMPLE)
        self.assertEqual(" ".join(words), expected)
        self.assertIn(f" -af aresample=48000:{SWRESAMPLE},asetpts=N -c:a ", expected)

    def test_delivery(self) -> None:
        """The encoder never receives a file name or a cache-buster (Delivery options)."""
        self.assertEqual(command("f:mp3/dl:a.mp3/cb:1"), command("f:mp3"))

    @DETERMINISTIC
    @given(segments=option_segments(), probe=probes())
    def test_any(self, segments: list[bytes], probe: Probe) -> None:
        """Any options and source give a command line or a refusal that quotes an option (D13)."""
        options, _ = parse_options(segments)
        try:
            words = encoder_arguments("ffmpeg", SOURCE, options, probe)
        except InvalidOptions as refusal:
            named = refusal.message.split('"')[1]
            self.assertIn(named.partition(":")[0], {"br", "t", "enhance", "norm"})
            self.assertIn(named, options.canonical().split("/"))
            return
        self.assertTrue(all(type(word) is str and word for word in words))
        before, after = words[: words.index("-i")], words[words.index("-i") + 2 :]
        self.assertIn("-nostdin", before)
        self.assertIn(" ".join(SOURCE.encoder_arguments()[:4]), " ".join(before))
        for flags in (STREAMS, BIT_EXACT, ABORT_IF_EMPTY):
            self.assertIn(flags, " ".join(after))
        for flag in ("-map", "-c:a", "-sample_fmt", "-ar", "-ac", "-f"):
            self.assertEqual(after.count(flag), 1, flag)
        self.assertEqual(after[-1], "pipe:1")
        rate, channels = (int(after[after.index(flag) + 1]) for flag in ("-ar", "-ac"))
        self.assertTrue(options.format.rates.accepts(rate), rate)
        self.assertIn(channels, (1, 2))


class QualityTests(SynchronousTestCase):
    """``br``, ``q`` and the sample rate of the output"""

    def test_quality(self) -> None:
        """``br`` is in kbps, ``q`` the codec's quality (Format and encoding options)."""
        qscale = "-flags:a +qscale -global_quality:a"
        for text, words in (
            *((f"{token}/br:96", "-b:a 96k") for token in ("mp3", "ogg", "aac", "m4a")),
            ("opus/br:96", "-b:a 96k -compression_level 10"),
            *((quality, f"-q:a {quality[-1]}") for quality in ("mp3/q:0", "mp3/q:9")),
            ("aac/q:0.1", "-q:a 0.1"),
            ("m4a/q:2.0", "-q:a 2"),
            *((f"ogg/q:{q}", f"{qscale} {n}") for q, n in (("-1", -118), ("-0.5", -59))),
            *((f"ogg/q:{q}", f"{qscale} {n}") for q, n in (("0", 0), ("7.5", 885))),
            ("flac/q:12", "-compression_level 12"),
            ("opus/q:0", "-b:a 128k -compression_level 0"),
        ):
            line = command(f"f:{text}")
            found = " ".join(line[line.index("-c:a") + 2 : line.index("-sample_fmt")])
            self.assertTrue(found.startswith(f"{words} -"), text)

    def test_block_sizes(self) -> None:
        """The block size of flac depends on the rate alone: at most 105 ms (D77)."""
        for rate, size in (
            *((1000, 192), (2440, 256), (8000, 576), (16000, 1152), (22050, 2304), (44100, 4608)),
            *((48000, 4608), (96000, 8192), (192000, 16384), (384000, 16384)),
        ):
            for text in (f"f:flac/sr:{rate}", f"f:flac/sr:{rate}/q:0/t:1:0.001"):
                line = command(text)
                self.assertEqual(line[line.index("-frame_size") + 1], str(size), text)

    def test_bounds(self) -> None:
        """A bit rate that the encoder rejects is refused, with its bounds (D13)."""
        for text, probe, message in (
            ("f:ogg/br:32", CD, "44100 Hz with 2 channels takes 45 to 500 kbps."),
            ("f:ogg/br:128/ch:1/sr:8000", CD, "8000 Hz with 1 channel takes 32 to 42 kbps."),
            ("f:ogg/br:128", HIGH_RESOLUTION, "96000 Hz with 2 channels has no bitrate to set."),
            ("f:opus/br:257/ch:1", CD, "48000 Hz with 1 channel takes 6 to 256 kbps."),
        ):
            error = self.assertRaises(InvalidOptions, command, text, probe)
            form, segment = text.split("/")[:2]
            self.assertEqual(error.message, f'"{segment}" is not accepted: {form} at {message}')
        for text in ("f:ogg/br:45", "f:opus/br:510", "f:ogg/br:240/ch:1", "f:mp3"):
            check_bitrate(options_of(text), CD)
