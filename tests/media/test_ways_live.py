"""One ETag, one body (D78): the bytes of a variant do not depend on the way they were made."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.command.filters import EVEN_FRAMES, filter_chain
from audioproxy.media.conversion import SOXR, SWRESAMPLE
from audioproxy.service import AudioProxy
from tests.media.test_places_live import halve_frames
from tests.support.audio import convert_all, noise, options_of, render_once, run, write_wav
from tests.support.probes import Probe
from tests.support.service import ServiceCase, fetch, signed

RATE = 44100
#: Seconds after which the noise of dither has begun anew several times.
SECONDS = 6

#: Thirty sources: a file name, and how ffmpeg stores the sound there.
SOURCES = {
    "u8.wav": "-c:a pcm_u8",
    "16.wav": "-c:a pcm_s16le",
    "24.wav": "-c:a pcm_s24le -ar 48000",
    "32.wav": "-c:a pcm_s32le",
    "float.wav": "-c:a pcm_f32le -ar 96000",
    "double.wav": "-c:a pcm_f64le",
    "alaw.wav": "-c:a pcm_alaw -ar 8000 -ac 1",
    "adpcm.wav": "-c:a adpcm_ms -ar 22050",
    "ima.wav": "-c:a adpcm_ima_wav -ac 1",
    "24.aiff": "-c:a pcm_s24be",
    "8.aiff": "-c:a pcm_s8 -ar 11025",
    "32.caf": "-c:a pcm_s32be",
    "16.w64": "-c:a pcm_s16le -ac 6",
    "mulaw.au": "-c:a pcm_mulaw -ar 16000",
    "16.flac": "-c:a flac",
    "24.flac": "-c:a flac -sample_fmt s32 -bits_per_raw_sample 24 -ar 96000",
    "odd.flac": "-c:a flac -frame_size 1001",
    "16.m4a": "-c:a alac",
    "24.m4a": "-c:a alac -sample_fmt s32p",
    "aac.m4a": "-c:a aac -ar 48000",
    "16.tta": "-c:a tta",
    "16.wv": "-c:a wavpack",
    "float.wv": "-c:a wavpack -sample_fmt fltp",
    "low.mp3": "-c:a libmp3lame -ar 22050 -ac 1",
    "a.mp3": "-c:a libmp3lame -q:a 3",
    "a.mp2": "-c:a mp2 -f mp2",
    "surround.ac3": "-c:a ac3 -ac 6 -f ac3",
    "a.opus": "-c:a libopus",
    "a.ogg": "-c:a libvorbis",
    "a.ts": "-c:a aac -ar 32000 -f mpegts",
}

#: Variants that dither, which each source has.
DITHERED = ("f:wav/bd:16/gain:-1", "f:flac/bd:16/sr:32000")
#: A variant in each other format, of which each source has one.
FORMATS = tuple(f"f:{form}" for form in ENCODERS if form not in ("wav", "flac"))
#: More variants, of which each source has one.
STAGES = (
    "f:wav/bd:24/sr:48000",
    "f:wav/bd:32f/fade:2:3",
    "f:wav/bd:16/enhance:voice",
    "f:flac/bd:16/norm:ebu",
    "f:flac/bd:24/t:1.5:4/ch:1/gain:-2",
    "f:wav/bd:16/t:2:3/sr:22050",
)
#: Layouts that ffmpeg does not give to so many channels without labels.
LAYOUTS = {"3.0": 3, "quad": 4, "5.1(side)": 6, "6.0": 6, "7.0": 7, "FL+FR+TFL": 3, "BL+BR": 2}


class WaysTests(SynchronousTestCase):
    """A source that is rendered in one process, and in two, as a node that remembers it does."""

    def test_thirty_sources(self) -> None:
        """Thirty sources have the same bytes both ways, each format of five of them at least."""
        sources = convert_all(write_wav(noise(RATE, SECONDS * RATE, 2), "32f"), SOURCES)
        self.assertEqual(30, len(sources))
        forms, stages = cycle(FORMATS), cycle(STAGES)
        for name, source in sources.items():
            self.assert_same(name, source, *DITHERED, next(forms))
            self.assert_same(name, source, next(stages))

    def assert_same(self, name: str, source: bytes, *texts: str) -> None:
        """Require that a source has the same bytes both ways."""
        alone, behind = (
            render_once(source, texts, irregular=irregular) for irregular in (False, True)
        )
        self.assertEqual([], [text for text in texts if alone[text] != behind[text]], name)

    def test_layouts(self) -> None:
        """Channels of any layout are mixed alike both ways, also those with unusual labels."""
        kinds = {}
        for layout, channels in LAYOUTS.items():
            numbers = "|".join(str(number % 2) for number in range(channels))
            mapped = f"-af channelmap=map={numbers}:channel_layout={layout}"
            kinds[f"{layout}.wav"] = f"{mapped} -c:a pcm_f32le"
        sources = convert_all(write_wav(noise(RATE, SECONDS * RATE, 2), "32f"), kinds)
        for name, source in sources.items():
            self.assert_same(name, source, "f:wav/bd:16/ch:1", "f:flac/enhance:voice")


class FramesTests(SynchronousTestCase):
    """The stages of the chain, with frames of several sizes ahead of them."""

    def outputs(self, stages: Iterable[str]) -> set[bytes]:
        """Return the samples that a chain outputs for frames of several sizes."""
        command = "ffmpeg -v error -f lavfi -i aevalsrc=0.3*random(0)|0.3*random(1):s=44100:d=6"
        words = [*command.split(), "-f", "f64le", "-c:a", "pcm_f64le", "-ac", "2"]
        found = set()
        for size in (1024, 1152, 4096, 1001):
            chain = ",".join([f"asetnsamples=n={size}:p=0", *stages])
            ended = run([*words, "-af", chain, "pipe:1"], b"")
            self.assertEqual(0, ended.returncode, ended.stderr)
            found.add(ended.stdout)
        return found

    def test_chain(self) -> None:
        """No stage of a render depends on the sizes of the frames that a decoder outputs.

        Without frames of one size ahead of it, dither does. The preset does from ffmpeg 7 on.
        """
        probe = Probe("wav", "pcm_f32le", None, False, RATE, decoded_bits=64, layout="stereo")
        for text in (
            "f:wav/bd:16",
            "f:flac/gain:-3/bd:24/sr:48000",
            "f:wav/bd:32f/enhance:voice",
            "f:mp3/sr:8000/ch:1",
            "f:wav/bd:32f/t:0:5/fade:1:3",
            "f:wav/bd:32f/norm:ebu",
        ):
            stages = filter_chain(options_of(text), probe, SWRESAMPLE if "sr:8" in text else SOXR)
            self.assertEqual(1, len(self.outputs(stages)), text)
            if "dither" in str(stages):
                bare = [stage for stage in stages if stage != EVEN_FRAMES]
                self.assertGreater(len(self.outputs(bare)), 1, text)


class NodesTests(ServiceCase):
    """A node that knows a source as irregular, and one that does not"""

    def sources(self) -> dict[str, bytes]:
        """Return sources whose whole renders find out something about them."""
        sound = write_wav(noise(RATE, 6 * RATE, 2), "32f")
        adts = "-c:a aac -aac_pns 0 -f adts"
        forms = {"stereo": adts, "mono": f"{adts} -ac 1", "counted.mp3": "-q:a 4"}
        made = convert_all(sound, forms)
        # A sample that is no audio, near the start.
        spoiled = noise(RATE, 6 * RATE, 2)
        spoiled.channels[0, RATE // 2] = 1e30
        forms = {"a.wv": "-c:a wavpack", "a.mka": "-c:a pcm_f32le -cluster_time_limit 500"}
        floats = convert_all(write_wav(spoiled, "32f"), forms)
        return {
            "joined.aac": made["stereo"] + made["mono"],
            # More audio than the header states.
            "halved.mp3": halve_frames(made["counted.mp3"]),
            **floats,
        }

    async def test_nodes(self) -> None:
        """The bytes of a region are the same, although one node uses a decoder process for it."""
        knowing, other = (self.start(variant_store=None) for _ in range(2))

        async def body(node: AudioProxy, text: str, name: str) -> bytes:
            response = await fetch(node.port, signed(f"/{text}/plain/local://{name}"))
            self.assertEqual((response.status, response.complete), (200, True), (text, name))
            return response.body

        for name, source in self.sources().items():
            self.add(name, source)
            forms = ["f:wav/bd:32f", "f:mp3", "f:opus", "f:peaks"]
            # What a node remembers about a wrong header states no length (D78).
            forms = forms[2:] if name == "halved.mp3" else forms
            regions = [f"{form}/t:{at}" for form in forms for at in ("2.3:0.5", "4:0.25")]
            # This breaks off if the audio goes on behind the stated end.
            await fetch(knowing.port, signed(f"/f:mp3/plain/local://{name}"))
            self.assertEqual(1, len(knowing.engine.preparer.irregular), name)
            for text in regions:
                one, two = await body(knowing, text, name), await body(other, text, name)
                self.assertTrue(one == two, (name, text))
                # Behind filters for gaps, no waveform of floats reports its check of samples.
                if "peaks" not in text:
                    self.assertEqual({}, dict(other.engine.preparer.irregular), (name, text))
            knowing.engine.preparer.irregular.clear()
