"""Real renders of whole, odd and damaged sources: one deterministic result, or a refusal."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from itertools import cycle, product
from pathlib import Path
from subprocess import PIPE

import numpy as np
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions, NothingDecoded, Refusal, UndecodableSource
from audioproxy.grammar.formats import FORMATS
from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.command.encoding import encoder_arguments
from audioproxy.media.diagnostics import classify, unsupported_container
from audioproxy.media.ffprobe import probe_arguments
from audioproxy.media.info_document import CARRIED_TAGS, SourceInfo
from audioproxy.media.inputs import local_input
from tests.matrix.regions import WHOLE, Region, find_differences
from tests.support.audio import (
    Sound,
    constant,
    convert,
    convert_all,
    describe,
    join,
    noise,
    options_of,
    probe,
    read_wav,
    render,
    render_all,
    render_and_decode,
    render_and_decode_all,
    riff,
    run,
    silence,
    tone,
    write_wav,
)
from tests.support.probes import Probe
from tests.support.programs import FFMPEG

FORMS = tuple(form for form in ENCODERS if form != "peaks")
PICTURE = "-f lavfi -i color=s=16x16:d=0.04 -map 0:a -map 1:v"

#: Arguments that convert a wav file to each kind of container.
KINDS = {
    "flac": "-c:a flac -frame_size 1152 -f flac",
    "mp3": "-c:a libmp3lame -f mp3",
    "ogg": "-c:a libvorbis -f ogg",
    "opus": "-c:a libopus -f ogg",
    "m4a": "-c:a aac -f mp4",
    "fragmented": "-c:a aac -movflags empty_moov -f mp4",
    "alac": "-c:a alac -f mov",
    "adts": "-c:a aac -f adts",
    "aiff": "-f aiff",
    "caf": "-c:a pcm_s16le -f caf",
    "matroska": "-c:a flac -f matroska",
    "wavpack": "-f wv",
    "tta": "-f tta",
    "w64": "-f w64",
    "ac3": "-f ac3",
    "asf": "-c:a wmav2 -f asf",
    "dts": "-c:a dca -strict -2 -f dts",
    "loas": "-c:a aac -f latm",
}


@cache
def samples() -> dict[str, bytes]:
    """Return a fifth of a second of noise in each container."""
    wav = write_wav(noise(44100, 8820, 2))
    return {"wav": wav, **convert_all(wav, KINDS)}


def sample(kind: str = "wav") -> bytes:
    """Return the noise in one container."""
    return samples()[kind]


class IdentityTests(SynchronousTestCase):
    """Deterministic output."""

    def test_same_bytes(self) -> None:
        """Every format has the same bytes on every run and in any process (D44)."""
        texts = [f"f:{form}/fade:0.05:0.05/gain:1" for form in FORMS]
        texts += ["f:mp3/norm:ebu/enhance:voice", "f:peaks/ch:2/norm:ebu/enhance:voice"]
        for text, output in render_all(sample("flac"), texts).items():
            self.assertTrue(output == render(sample("flac"), text), text)

    def test_no_metadata(self) -> None:
        """Outputs contain no unknown tags, pictures, chapters or encoder versions (D44, D61).

        Cover art is dropped (Format and encoding options, 4).
        """
        tagged = "-metadata own=Secret -metadata TDTG=2001-02-03 -metadata comment=private"
        words = f"{PICTURE} -disposition:v attached_pic {tagged}"
        source = convert(sample(), words, name="a.mp3")
        self.assertIn(b"Secret", source)
        self.assertIn(b"PNG", source)
        allowed_tags = {"major_brand", "minor_version", "compatible_brands"}
        allowed_tags |= {"language", "handler_name", "vendor_id"}
        for form, output in render_all(source, [f"f:{form}" for form in FORMS]).items():
            for word in (b"Secret", b"private", b"2001", b"Lavf5", b"Lavc5", b"PNG", b"JFIF"):
                self.assertNotIn(word, output, form)
            found = describe(output)
            (stream,) = found["streams"]
            self.assertEqual(stream["codec_type"], "audio")
            tags = {**found["format"].get("tags", {}), **stream.get("tags", {})}
            # The encoder tag in Ogg holds the codec's name, without a version. The one in mp3 is
            # constant.
            self.assertRegex(tags.pop("encoder", "Lavc lib"), r"^(Lavc lib[a-z]*|LAME3\.100)$")
            self.assertLessEqual({name.lower() for name in tags}, allowed_tags, form)


class PaddedSamplesTests(SynchronousTestCase):
    """Samples that fill only a part of their containers, and ambisonics."""

    # All samples are positive. LAME 3.100 aborts at some others, if ffmpeg alone decodes them.
    NOISE = noise(48000, 48000 * 5 // 2, 2, 0.125).channels
    SOUND = read_wav(write_wav(Sound(48000, NOISE + np.float32(0.25))))

    def assert_whole(self, sources: Mapping[str, bytes]) -> None:
        """Require that each sample of `SOUND` is rendered, from any position, with its length."""
        regions = [Region(1900, None), Region(1500, 500)]
        for kind, source in sources.items():
            self.assertEqual(read_wav(render(source, WHOLE)), self.SOUND, kind)
            self.assertEqual([*find_differences(source, regions, self.SOUND)], [], kind)
            # Samples of up to 24 bits are not dithered.
            if probe(source).audio.decoded_bits <= 24:
                heard = render_and_decode(source, "f:flac/t:1.9")
                self.assertEqual(heard, self.SOUND.part(91200), kind)
            error = self.assertRaises(InvalidOptions, render, source, "f:wav/t:2.5")
            self.assertIn("which is 2.5 seconds.", error.message)
            self.assertEqual(probe(source).description.duration, Decimal("2.5"))

    def test_valid_bits(self) -> None:
        """24 or 20 valid bits in 32 are rendered as they are, from any position (D11, D57)."""
        integers = "-c:a pcm_s32le -f"
        made = convert_all(
            write_wav(self.SOUND),
            {
                "wav": f"{integers} wav",
                "rf64": f"{integers} wav -rf64 always",
                "w64": f"{integers} w64",
                "caf": "-c:a pcm_s32be -f caf",
            },
        )
        sources = {}
        for kind, valid in (("wav", 24), ("wav", 20), ("rf64", 24), ("w64", 24), ("caf", 24)):
            # The bits of the container, the size of the extension and the valid bits; in caf, the
            # channels and the valid bits.
            form, *values = (">II", 2) if kind == "caf" else ("<HHH", 32, 22)
            full, padded = (struct.pack(form, *values, bits) for bits in (32, valid))
            self.assertEqual(made[kind].count(full), 1, kind)
            sources[f"{kind}, {valid} bits"] = made[kind].replace(full, padded)
        self.assert_whole(sources)

    def test_integers_as_floats(self) -> None:
        """Floats in the range of 24-bit or of 16-bit integers have 4 bytes a sample."""
        sources = {}
        for bits, more in ((24, b""), (32, b"\2\0\1\0")):
            peak = 1 << (23 if bits == 24 else 15)
            data = (self.SOUND.channels.T * peak).astype("<f4").tobytes()
            form = struct.pack("<HHIIHH", 1, 2, 48000, 8 * 48000, 8, bits) + more
            sources[f"{bits} bits"] = riff(form, data)
        self.assert_whole(sources)

    def test_sides(self) -> None:
        """A sound from the left is left in stereo, and has its level in mono (RFC 8486)."""
        texts = ["f:wav/bd:32f", "f:wav/bd:32f/ch:1", "f:opus/ch:1/enhance:voice"]
        texts += ["f:peaks/ch:2", "f:wav/ch:2/gain:6/fade:0.1:0.1/norm:ebu/enhance:voice"]
        for channels in (4, 6):
            # The front left of the scene: W is 1, and Y and X are the sine and the cosine.
            scene = tone(48000, 24000, *[440] * channels)
            directions = np.array([1, 0.8, 0, 0.6, *[0] * (channels - 4)], np.float32)
            wav = write_wav(Sound(48000, scene.channels * directions[:, None]))
            opus = "-c:a libopus -b:a 512k -mapping_family 2 -f ogg"
            source = convert(wav, opus)
            self.assertTrue((probe(source).audio.layout or "").startswith("ambisonic"), channels)
            outputs = render_all(source, texts)
            left, right = read_wav(outputs[texts[0]]).part(4800, 19200).channels
            (mono,) = read_wav(outputs[texts[1]]).part(4800, 19200).channels
            # Further channels lower those of the scene.
            scale = (0.5, 1) if channels != 6 else (0.25, 1 / 3)
            levels = [float(np.abs(side).max()) / 0.5 for side in (left, right, mono)]
            for level, gain in zip(levels, (1.8 * scale[0], 0.2 * scale[0], scale[1]), strict=True):
                self.assertApproximates(level, gain, 0.02, (channels, levels))


class CombinationTests(SynchronousTestCase):
    """Combinations of options and sources, and outputs with no samples or very few."""

    def test_combinations(self) -> None:
        """Options and sources of several kinds give audio (D13)."""
        extras = ("/ch:1/gain:60", "/ch:2/norm:ebu/fade:0.01:0.01", "/enhance:voice/t:0:0.05", "")
        texts = [f"f:{form}{extra}" for form, extra in zip(FORMATS, cycle(extras))]
        for source in (
            write_wav(noise(22050, 3000, 2), "24"),
            write_wav(silence(48000, 4800, 2)),
            write_wav(noise(48000, 2400, 6), mask=0x3F),
            write_wav(noise(192000, 9600)),
        ):
            self.assertTrue(all(render_all(source, texts).values()))

    def test_bounds(self) -> None:
        """The encoder accepts the extremes of bit rate, quality and rate (D6, D13).

        Silence encodes to very few bytes, but is rendered.
        """
        stereo = write_wav(noise(48000, 4800, 2))
        texts = [
            f"f:{form}/sr:{rate}/ch:{channels}/br:{kbps}"
            for form, rate, channels, rates in (
                ("ogg", 8000, 1, (32, 42)),
                ("ogg", 8000, 2, (32, 84)),
                ("ogg", 44100, 1, (32, 240)),
                ("ogg", 44100, 2, (45, 500)),
                ("opus", 48000, 1, (6, 256)),
                ("opus", 48000, 2, (6, 510)),
                ("aac", 7350, 1, (8, 512)),
                ("mp3", 8000, 2, (8, 320)),
            )
            for kbps in rates
        ]
        bounds = [(form, FORMATS[form].q or ()) for form in FORMS]
        qualities = [f"f:{form}/q:{value}" for form, values in bounds for value in values]
        self.assertGreater(len(qualities), 6)
        for source, tried in (
            (stereo, texts),
            (write_wav(noise(1000, 200)), qualities),
            (write_wav(noise(200_000, 9000)), ["f:ogg/q:10"]),
            (
                write_wav(silence(44100, 22050)),
                ["f:ogg/q:-1", "f:opus/br:6", "f:flac", "f:m4a/q:0.1"],
            ),
        ):
            self.assertTrue(all(render_all(source, tried).values()))

    def test_nothing(self) -> None:
        """A render without audio gives a header at most, and is detected as empty (D11)."""
        source = write_wav(constant(96000, 1, 0.5, 0.5))
        small = SourceInfo(tags={"track": "1", "disc": "2/3", "album_artist": "x"})
        large = SourceInfo(tags=dict.fromkeys(CARRIED_TAGS, "x" * 512))
        for (form, encoder), info in product(ENCODERS.items(), (SourceInfo(), small, large)):
            found = Probe("wav", "", None, False, 96000, channels=2, description=info)
            options = options_of(f"f:{form}/t:5{'/bd:24' if FORMATS[form].depths else ''}")
            completed = run(encoder_arguments("ffmpeg", local_input(), options, found), source)
            size = len(completed.stdout)
            if completed.returncode == 0:
                self.assertTrue(encoder.encoded_nothing(size, found.carried_tags), form)
            else:
                self.assertIs(NothingDecoded, classify(completed.stderr), form)
            # These options give the largest headers. What is stated as the most is close to them:
            # clients get nothing until the output exceeds it, and short flac would seem empty.
            spare = encoder.tagged_header_bytes(found.carried_tags) - size
            most = 4 if encoder.exits_zero_when_empty else size / 4 + (99 if info is small else 0)
            self.assertTrue(0 <= spare <= most, (form, size, spare))

    def test_shortest(self) -> None:
        """One sample of source or of output is enough for any format, at any rate (D13)."""
        texts = [f"f:{form}" for form in FORMS]
        self.assertTrue(all(render_all(write_wav(constant(48000, 1, 0.5)), texts).values()))
        lossless = (("wav", 8000, 0.002), ("wav", 1000, 0.001), ("flac", 8000, 0.001))
        exact = {
            f"f:{form}/sr:{rate}/t:{start}:{seconds}": (rate, round(rate * seconds))
            for form, rate, seconds in lossless
            for start in ("0", "0.1", "0.198")
        }
        forms = ("mp3/sr:22050", "ogg/sr:1000", "aac/sr:7350", "m4a/sr:7350", "opus")
        lossy = [f"f:{form}/t:0.1:0.001" for form in forms]
        for text, heard in render_and_decode_all(sample(), exact).items():
            self.assertEqual(exact[text], (heard.rate, len(heard)), text)
        for text, heard in render_and_decode_all(sample("mp3"), lossy).items():
            self.assertGreaterEqual(len(heard), 1, text)
        # Five samples at 44.1 kHz give one sample at 8 kHz, even without a trim.
        brief = write_wav(constant(44100, 5, 0.5))
        self.assertEqual(1, len(render_and_decode(brief, "f:wav/sr:8000")))


class PeriodicTests(SynchronousTestCase):
    """Loud periodic samples, which FFmpeg 9 takes for MPEG-TS"""

    def test_loud(self) -> None:
        """A tone renders whole in each container of samples, at any depth (D13)."""
        phase = np.arange(48000) / 94 % 1
        shapes = {
            "sine": np.sin(2 * np.pi / 17 * np.arange(48000)),
            "saw": 2 * phase - 1,
            "triangle": (4 * np.abs(phase - 0.5) - 1) / 0.7,
        }
        for (name, shape), depth in product(shapes.items(), ("8", "16", "24", "32f")):
            wave = Sound(48000, (0.7 * shape[None]).astype(np.float32))
            mono, stereo = write_wav(wave, depth), write_wav(join(wave, wave), depth)
            for source in (mono, stereo):
                self.assertEqual(len(render_and_decode(source, "f:flac")), 48000, (name, depth))

    def test_packets(self) -> None:
        """Samples that are packets of MPEG-TS are samples, and render from any position (D13)."""
        packets = b"".join(b"G\1\0" + bytes((16 | n & 15,)) + bytes(184) for n in range(2000))
        little = dict.fromkeys("caf mov matroska aiff".split(), "-c:a pcm_s16le")
        words = {"wav": "", "w64": "", **little, "au": "-c:a pcm_s16be"}
        for kind, codec in words.items():
            swapped = np.frombuffer(packets, "<i2").byteswap().tobytes()
            data = swapped if kind == "au" else packets
            given = "-f s16le -ar 48000 -ac 2"
            source = convert_all(data, {kind: f"{codec} -f {kind}"}, given=given)[kind]
            found = probe(source)
            self.assertEqual(found.container, kind)
            self.assertEqual(found.codec, "pcm_s16be" if kind == "au" else "pcm_s16le")
            for options, frames in (("f:flac", 94_000), ("f:flac/t:1.5:0.25", 12_000)):
                self.assertEqual(len(render_and_decode(source, options)), frames, (kind, options))


class SpeexTests(SynchronousTestCase):
    """Speech at several rates"""

    def test_rates(self) -> None:
        """Speex has its length and its pitch at each rate, and in each version of ffmpeg."""
        for rate in (8000, 16000, 32000):
            sound = write_wav(tone(rate, 2 * rate, 440))
            source = convert(sound, *f"-c:a libspeex -ar {rate} -f ogg".split())
            heard = render_and_decode(source, "f:wav")
            self.assertApproximates(2 * rate, len(heard), rate // 10)
            spectrum = np.abs(np.fft.rfft(heard.channels[0]))
            pitch = int(spectrum.argmax()) * rate / len(heard)
            self.assertApproximates(440, pitch, 5, rate)


class BrokenTests(SynchronousTestCase):
    """Sources that are not audio, or are damaged."""

    def test_refused(self) -> None:
        """A source that is no audio that ffmpeg can decode returns 415 (Errors, 415; D13).

        No file is read that another one names (D43). The probe refuses headers that ffprobe
        rejects, and chunks without their pad byte, behind which ffmpeg does not find the audio.
        """
        junk = random.Random(1).randbytes
        wav, path = sample(), Path(self.mktemp()).resolve()
        path.write_bytes(wav)
        whole, flac, aiff = sample("m4a"), sample("flac"), sample("aiff")
        at = aiff.index(b"SSND")
        for what, source in {
            "probe: blocks of one sample": flac[:8] + b"\0\1\0\1" + flac[12:],
            "probe: aiff without a pad byte": aiff[:at] + b"JUNK\0\0\0\3odd" + aiff[at:],
            "probe: wav without a pad byte": wav.replace(b"data", b"junk\3\0\0\0odddata", 1),
            "probe: tracker module": bytes(1080) + b"M.K." + bytes(3000),
            "nothing": b"",
            "text": b"These are words and not sounds.\n" * 60,
            "noise": junk(60_000),
            "zip": b"PK\x03\x04\x14\0\0\0\x08\0" + junk(5000),
            "zeros": bytes(20_000),
            "ID3 alone": b"ID3\x03\0\0\0\0\0\x0a" + bytes(10),
            "HLS": b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n%b\n#EXT-X-ENDLIST\n",
            "concatenation": b"ffconcat version 1.0\nfile %b\n",
            "SDP": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nt=0 0\na=control:%b\n",
            **{
                f"{size} bytes of {kind}": sample(kind)[:size]
                for kind, size in (("wav", 44), ("wav", 20), ("flac", 42), ("m4a", 40), ("mp3", 20))
            },
            "no samples": write_wav(silence(44100, 0)),
            # The index is at the end.
            "truncated m4a": whole[: len(whole) * 6 // 10],
            "unknown codec": sample("alac").replace(b"alac", b"xyzq"),
            "unknown tag": wav[:20] + b"\x77\x77" + wav[22:],
            "probe: ape without frames": b"MAC \x96\x0f" + bytes(3000),
            "probe: 8SVX without chunks": b"FORM\0\0\1\x008SVX" + bytes(3000),
            "cut matroska": sample("matroska")[:100],
            "cut asf": sample("asf")[:300],
            **{
                f"{claim!r} at {at}": wav[:at] + claim + wav[at + len(claim) :]
                for at, claim in ((22, b"\x41\0"), (22, b"\xff\0"), (24, b"\xc0\xcf\x6a\0"))
            },
        }.items():
            source = source.replace(b"%b", str(path).encode())
            attempt = [probe, source] if "probe: " in what else [render, source, "f:wav"]
            error = self.assertRaises(Refusal, *attempt)
            self.assertIsInstance(error, UndecodableSource, what)
            self.assertEqual(error.status, 415, what)

    def test_named(self) -> None:
        """The message names the container of a playlist or script, on each ffmpeg (D43)."""
        named = {
            "hls": b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\na.wav\n#EXT-X-ENDLIST\n",
            "dash": b'<?xml?><MPD profiles="urn:mpeg:dash:profile:isoff-main:2011"/>',
            "concat": b"ffconcat version 1.0\nfile a.wav\n",
            "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\n",
            "webvtt": b"WEBVTT\n\n00:01.000 --> 00:02.000\nx\n",
            "gif": convert(sample(), PICTURE.replace("-map 0:a", ""), name="a.gif"),
        }
        # The master playlist of HLS has other tags.
        playlists = [*named.items(), ("hls", b"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\na.m3u8\n")]
        # An ffmpeg without a demuxer cannot name its container.
        listed = run([FFMPEG, "-hide_banner", "-demuxers"]).stdout
        for name, source in playlists:
            if f" {name} ".encode() not in listed:
                continue
            ended = run(probe_arguments("ffprobe", local_input()), source)
            self.assertIs(classify(ended.stderr), UndecodableSource, name)
            self.assertEqual(unsupported_container(ended.stderr), name)

    def test_picture(self) -> None:
        """A picture returns 415, as video_source or undecodable_source depending on ffprobe."""
        picture = convert(sample(), PICTURE.replace("-map 0:a", ""), name="a.jpg")
        error = self.assertRaises(Refusal, render, picture, "f:mp3")
        self.assertEqual(error.status, 415)

    def test_damaged(self) -> None:
        """A damaged file in any container is rendered or refused, and never gives a 500 (D13)."""
        rng = random.Random(7)
        damaged = {}
        for n, kind in enumerate(("wav", *KINDS)):
            broken = bytearray(sample(kind))
            for _ in range(3):
                broken[rng.randrange(min(300, len(broken)))] = rng.randrange(256)
            for _ in range(20):
                broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
            damaged[kind] = bytes(broken), "f:flac/t:0.05" if n % 2 else "f:wav"
        for kind in ("flac", "ogg", "m4a", "wavpack", "alac"):
            damaged[f"header of {kind}"] = sample(kind)[:600] + rng.randbytes(9000), "f:wav"
        for what, (source, text) in damaged.items():
            try:
                render(source, text)
            except Refusal as refusal:
                self.assertIn(refusal.status, (415, 422), (what, refusal.message))

    def test_not_the_source(self) -> None:
        """A full disk, a closed descriptor or a missing encoder is a 500 (Errors; D34)."""
        options, found = options_of("f:mp3"), probe(sample())
        whole = encoder_arguments("ffmpeg", local_input(), options, found)
        lacking = ["libnothing" if word == "libmp3lame" else word for word in whole]
        probing = probe_arguments("ffprobe", local_input())
        gone = [[word.replace("/fd/3", "/fd/77") for word in words] for words in (probing, whole)]
        with open("/dev/full", "wb") as full:
            for words, stdout in (
                (whole, full.fileno()),
                (gone[0], PIPE),
                (gone[1], PIPE),
                (lacking, PIPE),
            ):
                completed = run(words, sample(), stdout)
                self.assertNotEqual(completed.returncode, 0)
                self.assertIs(classify(completed.stderr), None, completed.stderr)
