"""The project's own ffmpeg: its components, and the equality of its output with Debian's."""

from __future__ import annotations

import os
import re
import shutil
import socket
import wave
from collections.abc import Iterator, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from audioproxy.errors import Refusal
from audioproxy.media.command.decoding import decoded_stream, decoder_arguments, measure_arguments
from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.diagnostics import classify
from audioproxy.media.ffprobe import parse_probe, probe_arguments
from audioproxy.media.inputs import RAW_DEMUXERS, Input, local_input
from audioproxy.process.executables import find_obstacle
from audioproxy.process.programs import LISTS
from tests.support.audio import Sound, convert, convert_all, noise, render_all, run, tone, write_wav
from tests.support.probes import Probe
from tests.support.programs import FFMPEG, FFPROBE, OWN
from tests.support.runs import output_of, run_program
from tests.support.service import PROJECT
from tests.web import test_info_live as test_info

BUILD, COMPONENTS = PROJECT / "tools/ffmpeg/build", PROJECT / "tools/ffmpeg/components"

#: Names of formats in `configure`, by ffmpeg's own name, where the two differ.
RENAMED = {"mpeg": "mpegps", **{form: f"pcm_{form}" for form in RAW_DEMUXERS}}

#: Sources that are decoded to integers and to floating-point numbers.
STREAMS = tuple(Probe("mp3", "mp3", None, False, decoded_bits=bits) for bits in (8, 16, 24, 32, 64))
STREAMS += (Probe("wav", "pcm_f64le", None, False, decoded_bits=64),)

#: Demuxers that only detect the codec of a stream; no container is opened with them.
DETECTION_DEMUXERS = set("h264 hevc m4v mpegvideo spdif truehd".split())

#: Filters, and a muxer below, that every build has although the list does not name them. They serve
#: filter graphs and fragmented MP4.
IMPLICIT_FILTERS = set(
    "abuffer abuffersink anull buffer buffersink format hflip null transpose trim vflip".split()
)
#: With ffmpeg 7, these too.
RECENT_FILTERS = {"crop", "rotate"}
IMPLICIT_MUXERS = {"mov"}

#: Filters and options that are compared, in addition to the plain formats.
COMPARED_OPTIONS = [
    "f:mp3/br:96",
    "f:mp3/q:2",
    "f:opus/br:48/sr:16000",
    "f:ogg/q:-1",
    "f:ogg/br:96/ch:1",
    "f:aac/q:1.2",
    "f:m4a/br:64/sr:22050",
    "f:flac/q:12/bd:24",
    "f:wav/bd:32f/sr:96000",
    "f:wav/bd:24/sr:11025/ch:1",
    "f:wav/sr:48000",
    "f:wav/norm:ebu",
    "f:mp3/norm:ebu:-23:-2:7/enhance:voice",
    "f:opus/enhance:voice/gain:-3",
    "f:flac/fade:0.1:0.1/gain:2.5/ch:1",
    "f:wav/t:0.1:0.2/fade:0.05:0.05",
    "f:peaks/ch:2/norm:ebu",
]

#: Codecs that Debian's ffmpeg can encode and that sources may have, by the file name suffix of
#: their container. `tests.web.test_info_live` has more files.
CODECS = {
    "wav": "adpcm_ima_wav adpcm_ms adpcm_swf adpcm_yamaha pcm_alaw pcm_mulaw pcm_f64le wmav1 mp2"
    " ac3 eac3 libmp3lame flac",
    "mov": "adpcm_ima_qt pcm_f32be pcm_f64be pcm_s16be pcm_s24be pcm_s32be pcm_s8 pcm_alaw ac3",
    "mka": "wavpack tta dca libvorbis libopus opus eac3 truehd mlp pcm_s32be libtwolame alac",
    "caf": "pcm_f32be pcm_s24le alac",
    "aiff": "pcm_f64be pcm_mulaw",
    "au": "pcm_alaw pcm_f32be",
    "asf": "wmav1 ac3",
    "eac3": "eac3",
    "dts": "dca",
    "latm": "aac",
    # Containers of broadcasters, here with audio alone (D43).
    "avi": "libmp3lame pcm_s16le",
    "flv": "libmp3lame",
    "ts": "aac ac3",
    "mpg": "mp2 ac3",
}
#: Speech codecs, with one channel.
SPEECH = {
    "wav": "g722 g723_1 g726 libgsm_ms",
    "mov": "libgsm nellymoser",
    "mka": "real_144",
    "ogg": "libspeex",
}


#: Half a second in two channels, in which no two parts are alike.
STEREO = write_wav(noise(44100, 22050, 2))


@cache
def listed() -> dict[str, set[str]]:
    """Return the components by kind, with their names in `configure`."""
    found: dict[str, set[str]] = {}
    for line in COMPONENTS.read_text().splitlines():
        kind, *names = line.partition("#")[0].split() or ["", ""]
        found.setdefault(kind, set()).update(names)
    found.pop("", None)
    return found


def own_program(program: str) -> str:
    """Return the path of a program of the project's own build.

    :raises SkipTest: if PATH finds another program, unless the own build is required.
    """
    if shutil.which(program) == str(OWN / program):
        return str(OWN / program)
    reason = "This needs the project's own ffmpeg on the PATH; use `make test-ffmpeg`."
    if os.environ.get("AUDIOPROXY_OWN_FFMPEG") == "required":
        raise AssertionError(reason)
    raise SkipTest(reason)


def listed_names(program: str, flag: str) -> set[str]:
    """Return the names in one of ffmpeg's lists."""
    text = output_of(program, "-hide_banner", "-v", "error", flag)
    rows = re.findall(r"^ [ A-Z.|]{1,6} +([\w,]+)", text.partition("--\n")[2] or text, re.MULTILINE)
    firsts = {row.partition(",")[0] for row in rows}
    return {RENAMED.get(name, name) for name in firsts}


def list_after(source: Input, option: str) -> set[str]:
    """Return the names in the list that follows an option of the probe of a source."""
    words = source.probe_arguments()
    return {RENAMED.get(name, name) for name in words[words.index(option) + 1].split(",")}


class ComponentsTests(SynchronousTestCase):
    """The list of components, compared with what the service uses"""

    def test_containers(self) -> None:
        """The demuxers are exactly those of the containers that may be opened (D43)."""
        inputs = (local_input(), *map(decoded_stream, STREAMS))
        opened = set().union(*(list_after(each, "-format_whitelist") for each in inputs))
        opened |= {RENAMED[form] for form in RAW_DEMUXERS}
        self.assertEqual(opened | DETECTION_DEMUXERS, listed()["demuxer"])

    def test_protocols(self) -> None:
        """The protocols are that of sources, and `pipe` for output (D74)."""
        used = list_after(local_input(), "-protocol_whitelist")
        self.assertEqual(used | {"pipe"}, listed()["protocol"])

    def test_outputs(self) -> None:
        """The components include the encoders, filters and containers of all outputs (D34)."""
        for flag, kind, needed in LISTS:
            # No render needs `ebur128`: `audioproxy measure` does.
            self.assertEqual(set(needed), listed()[kind] - {"ebur128"}, flag)
        made = [["", *encoder.muxer] for encoder in ENCODERS.values()]
        made.append(measure_arguments("ffmpeg", local_input(), STREAMS[0]))
        made += (decoder_arguments("ffmpeg", local_input(), probe) for probe in STREAMS)
        forms = {words[-words[::-1].index("-f")] for words in made}
        used = {RENAMED.get(form, form) for form in forms}
        self.assertEqual(used | {"null"}, listed()["muxer"])


class BuildTests(SynchronousTestCase):
    """The programs that were built"""

    def test_nothing_else(self) -> None:
        """The programs contain exactly the components of the list."""
        program = own_program("ffmpeg")
        for flag, kind, more in (
            ("-demuxers", "demuxer", set()),
            ("-muxers", "muxer", IMPLICIT_MUXERS),
            ("-encoders", "encoder", set()),
            ("-filters", "filter", IMPLICIT_FILTERS),
        ):
            names = listed_names(program, flag) - RECENT_FILTERS
            self.assertEqual(listed()[kind] | more, names, kind)
        protocols = output_of(program, "-hide_banner", "-protocols").partition("Input:")[2].split()
        self.assertEqual(listed()["protocol"], set(protocols) - {"Output:"})
        self.assertEqual(set(), listed_names(program, "-devices"))
        # ffmpeg names some decoders differently from `configure`, so they are counted. None decodes
        # images.
        text = output_of(program, "-hide_banner", "-decoders").partition("------")[2]
        rows = re.findall(r"^ ([A-Z.]{6}) ", text, re.MULTILINE)
        self.assertEqual({"A"}, {row[0] for row in rows})
        self.assertEqual(len(listed()["decoder"]), len(rows))

    def test_shared_libraries(self) -> None:
        """Both programs need the C library, so they can be forked, and no other library."""
        for program in ("ffmpeg", "ffprobe"):
            lines = output_of("ldd", own_program(program)).splitlines()
            names = {Path(line.split()[0]).name for line in lines}
            loaded = {name for name in names if not name.startswith(("linux-vdso", "ld-linux"))}
            # A newer libvorbis needs libmvec, a part of the C library too.
            self.assertEqual({"libc.so.6", "libm.so.6"}, loaded - {"libmvec.so.1"})
            self.assertIsNone(find_obstacle(own_program(program)))

    def test_archive_unreachable(self) -> None:
        """If the package archive is unreachable, `build --check` exits with 2 and says so."""
        own_program("ffmpeg")
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            proxy = f"http://127.0.0.1:{closed.getsockname()[1]}"
            environment = {**os.environ, "http_proxy": proxy, "https_proxy": proxy}
            ended = run_program(BUILD, "--check", OWN.parent, environment=environment)
        self.assertEqual((2, ""), (ended.status, ended.out))
        self.assertIn("cannot be downloaded", ended.err)

    def test_required_version(self) -> None:
        """If the archive has another version than the required one, the build fails and names it.

        So an image has the version that its container file states (D44).
        """
        version = (
            output_of(own_program("ffmpeg"), "-version").split()[2].partition("+audioproxy")[0]
        )
        ended = run_program(BUILD, OWN.parent, "7:7.0-1")
        self.assertEqual((2, ""), (ended.status, ended.out))
        self.assertRegex(ended.err, rf"has ffmpeg \d:{re.escape(version)}, and 7:7.0-1 is req")

    def test_version(self) -> None:
        """The version is Debian's with a suffix for the build, so nodes can be compared (D44)."""
        ours, complete = (
            output_of(program, "-version").split()[2] for program in (own_program("ffmpeg"), FFMPEG)
        )
        self.assertRegex(ours, rf"^{re.escape(complete)}\+audioproxy\.[0-9a-f]{{8}}$")
        self.assertEqual(ours, output_of(own_program("ffprobe"), "-version").split()[2])


class DebianComparisonTests(SynchronousTestCase):
    """Comparison with Debian's ffmpeg of the same version"""

    def setUp(self) -> None:
        """Find the programs of the project's own build."""
        self.ffmpeg, self.ffprobe = own_program("ffmpeg"), own_program("ffprobe")

    def assert_same_output(self, name: str, source: bytes, texts: list[str]) -> None:
        """Assert that both builds describe a source alike, and render it to the same bytes."""
        ours, complete = (probe_result(program, source) for program in (self.ffprobe, FFPROBE))
        self.assertEqual(ours, complete, name)
        outputs = [render_all(source, texts, program) for program in (self.ffmpeg, FFMPEG) if texts]
        for text in texts:
            self.assertTrue(outputs[0][text] == outputs[1][text], f"{text} of {name}")

    def test_options(self) -> None:
        """Every format with every option for audio gives the same bytes (D44)."""
        sounds = tone(44100, 22050, 440, 660), noise(44100, 22050, 2)
        loud = Sound(44100, sounds[0].channels + sounds[1].channels)
        plain = [f"f:{form}" for form in ENCODERS]
        for depth in ("16", "24", "32f"):
            self.assert_same_output(depth, write_wav(loud, depth), plain + COMPARED_OPTIONS)
        self.assert_same_output(
            "6", write_wav(noise(48000, 24000, 6), "16", 0x3F), plain + COMPARED_OPTIONS[-7:]
        )

    def test_sources(self) -> None:
        """Every kind of source is recognized, and decoded to the same samples."""
        for name, source in audio_sources():
            self.assert_same_output(name, source, ["f:wav/bd:32f", "f:mp3"])

    def test_refusals(self) -> None:
        """Both builds of ffprobe give the same result for video in every container.

        (Format and encoding options, 4)
        """
        for name in test_info.FILMS:
            self.assert_same_output(name, (test_info.generate_files() / name).read_bytes(), [])


def probe_result(ffprobe: str, source: bytes) -> Probe | type[Refusal] | None:
    """Return a program's description of a source, or the refusal that follows from it."""
    ended = run(probe_arguments(ffprobe, local_input()), source)
    if ended.returncode:
        return classify(ended.stderr)
    try:
        return parse_probe(ended.stdout, ended.stderr)
    except Refusal as refusal:
        return type(refusal)


def audio_sources() -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of sources of all supported kinds."""
    for row in test_info.KINDS:
        yield row.name, (test_info.generate_files() / row.name).read_bytes()
    yield from convert_all(STEREO, codec_arguments(CODECS)).items()
    # The wav file declares PCM samples, but contains AC-3.
    wrapped = convert(STEREO, "-c:a", "ac3", "-f", "spdif")
    disguise = BytesIO()
    with wave.open(disguise, "wb") as file:
        file.setparams((2, 2, 44100, 0, "NONE", ""))
        file.writeframes(wrapped)
    yield "spdif.wav", disguise.getvalue()
    mono = write_wav(noise(48000, 24000, 1))
    yield from convert_all(mono, {"a.mxf": "-c:a pcm_s16le -f mxf_opatom"}).items()
    yield from convert_all(write_wav(tone(8000, 4000, 300)), codec_arguments(SPEECH)).items()


def codec_arguments(codecs: Mapping[str, str]) -> dict[str, str]:
    """Return ffmpeg's arguments for each codec and container, by file name."""
    return {
        f"{codec}.{ending}": f"-strict experimental -bitexact -c:a {codec}"
        for ending, names in codecs.items()
        for codec in names.split()
    }
