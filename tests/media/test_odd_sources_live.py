"""Real renders of whole, odd and damaged sources: one deterministic result, or a refusal."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions, Refusal, UndecodableSource, VideoSource
from audioproxy.grammar.formats import FORMATS
from audioproxy.media.diagnostics import classify
from audioproxy.media.encoding import ENCODERS, encoder_arguments
from audioproxy.media.inputs import Input, local_input
from audioproxy.media.probe import Probe, probe_arguments
from tests.support.audio import (
    constant,
    convert,
    convert_all,
    decode,
    describe,
    noise,
    parse_options,
    probe,
    render,
    render_all,
    render_and_decode,
    render_and_decode_all,
    run,
    silence,
    tone,
    write_wav,
)
from tests.support.measures import strength

FORMS = tuple(form for form in ENCODERS if form != "peaks")
PICTURE = "-f lavfi -i color=s=16x16:d=0.04 -map 0:a -map 1:v -frames:v 1"

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
        """Every format gives the same bytes on every run, with every filter (D44).

        `tests.test_service_processes_live` compares renders of every format between nodes.
        Rendering several outputs in one ffmpeg run gives the same bytes, which other tests rely on.
        """
        filters = "norm:ebu/enhance:voice/fade:0.05:0.05/gain:1"
        texts = [f"f:{form}/{filters}" for form in FORMS]
        for text, output in render_all(sample("flac"), texts).items():
            self.assertTrue(output == render(sample("flac"), text), text)

    def test_no_metadata(self) -> None:
        """Outputs contain no tags, dates, pictures, chapters or encoder versions (D44)."""
        tagged = "-metadata title=Secret -metadata date=2001-02-03 -metadata comment=private"
        source = convert(
            sample(), *f"{PICTURE} -disposition:v attached_pic {tagged}".split(), name="a.mp3"
        )
        self.assertIn(b"Secret", source)
        self.assertEqual(len(describe(source)["streams"]), 2)
        allowed_tags = {"major_brand", "minor_version", "compatible_brands"}
        allowed_tags |= {"language", "handler_name", "vendor_id"}
        for form, output in render_all(source, [f"f:{form}" for form in FORMS]).items():
            for word in (b"Secret", b"private", b"2001", b"Lavf5", b"Lavc5", b"PNG", b"JFIF"):
                self.assertNotIn(word, output, form)
            found = describe(output)
            self.assertEqual([stream["codec_type"] for stream in found["streams"]], ["audio"])
            (stream,) = found["streams"]
            stream.setdefault("tags", {})
            # The encoder tag in Ogg holds the codec's name, without a version.
            self.assertRegex(stream["tags"].pop("encoder", "Lavc lib"), r"^Lavc lib[a-z]*$")
            for part in (found["format"], stream):
                self.assertLessEqual(
                    {name.lower() for name in part.get("tags", {})}, allowed_tags, form
                )


class StreamSelectionTests(SynchronousTestCase):
    """Selection of one stream of a source with several streams."""

    def test_cover(self) -> None:
        """Cover art is dropped, from every container that can hold it.

        (Format and encoding options, 4)
        """
        picture, _, words = PICTURE.partition(" -map ")
        cover = f"-map {words} -c:v mjpeg -pix_fmt yuvj420p -disposition:v attached_pic"
        names = ("a.mp3", "a.flac", "a.m4a")
        for name, source in convert_all(sample(), dict.fromkeys(names, cover), picture).items():
            streams = describe(source)["streams"]
            self.assertEqual({s["codec_type"] for s in streams}, {"audio", "video"}, name)
            self.assertEqual(render_and_decode(source, "f:wav/bd:32f"), decode(source), name)

    def test_first_of_two(self) -> None:
        """The first of two audio streams is rendered (Info document, 3)."""
        low, high = (write_wav(tone(44100, 8820, hertz)) for hertz in (440, 3000))
        path = Path(self.mktemp())
        path.write_bytes(high)
        both = convert(low, *f"-i {path.resolve()} -map 0:a -map 1:a".split(), name="a.mka")
        self.assertEqual(len(describe(both)["streams"]), 2)
        (heard,) = render_and_decode(both, "f:wav").channels
        self.assertGreater(strength(heard, 440, 44100), -10)
        self.assertLess(strength(heard, 3000, 44100), -60)

    def test_video(self) -> None:
        """Video is refused as video_source, with or without audio, in any container.

        (Errors, 415)
        """
        film = "-map 1:v -c:v mpeg4 -r 25"
        films = {}
        for container in ("mp4", "mkv", "avi", "ts"):
            films[f"film.{container}"] = f"{film} -map 0:a -ar 44100 -c:a mp2"
            films[f"silent.{container}"] = f"{film} -an"
        made = convert_all(sample(), films, "-f lavfi -i testsrc=s=160x120:d=0.5")
        for name, source in made.items():
            error = self.assertRaises(Refusal, render, source, "f:mp3")
            self.assertIsInstance(error, VideoSource, name)


class CombinationTests(SynchronousTestCase):
    """Combinations of options and sources."""

    def test_combinations(self) -> None:
        """Combinations of options and sources give audio, or are refused with 415 or 422 (D13)."""
        sources = [
            write_wav(noise(8000, 1600)),
            write_wav(noise(22050, 3000, 2), "24"),
            write_wav(noise(44100, 4410, 2), "32f"),
            write_wav(silence(48000, 4800, 2)),
            write_wav(noise(48000, 2400, 6), mask=0x3F),
            write_wav(noise(96000, 9600, 2), "24"),
            write_wav(noise(192000, 9600)),
            write_wav(noise(44100, 100, 2)),
            write_wav(constant(44100, 1, 0.5)),
            sample("mp3"),
            sample("opus"),
        ]
        extras = [
            "",
            "/ch:1/gain:60",
            "/ch:2/norm:ebu/fade:0.01:0.01",
            "/enhance:voice/t:0:0.05",
            "/t:0.01/fade:1:5/enhance:voice/norm:ebu:-70:-9:1",
        ]
        refused = []
        for n, source in enumerate(sources):
            for m, form in enumerate(FORMS):
                if (n + m) % 4:
                    continue
                text = f"f:{form}{extras[(n + m) // 4 % len(extras)]}"
                try:
                    # `render` raises NothingDecoded if the output is only a header.
                    render(source, text)
                except (InvalidOptions, UndecodableSource):
                    refused.append((n, text))
                    # Source 8 is a single sample, which is too few for some filters. A trim from
                    # 0.01 s starts past the end of the shortest sources.
                    self.assertTrue(n == 8 or "/t:0.01" in text, text)
        self.assertLess(len(refused), 5, refused)

    def test_bounds_of_bitrates(self) -> None:
        """The encoder accepts the lowest and highest bit rate that validation accepts (D6, D13)."""
        for form, rate, channels, rates in (
            ("ogg", 8000, 1, (32, 42)),
            ("ogg", 8000, 2, (32, 84)),
            ("ogg", 44100, 1, (32, 240)),
            ("ogg", 44100, 2, (45, 500)),
            ("opus", 48000, 1, (6, 256)),
            ("opus", 48000, 2, (6, 510)),
            ("aac", 7350, 1, (8, 512)),
            ("mp3", 8000, 2, (8, 320)),
        ):
            source = write_wav(noise(rate, rate // 10, channels))
            texts = [f"f:{form}/br:{kbps}" for kbps in rates]
            for text, output in render_all(source, texts).items():
                self.assertTrue(output, (text, rate))

    def test_qualities(self) -> None:
        """Every format with ``q`` renders with its lowest and highest value at a low rate.

        Ogg also renders with its highest value at a high rate (D13).
        """
        source = write_wav(noise(1000, 200))
        bounds = [(form, FORMATS[form].q or ()) for form in FORMS]
        texts = [f"f:{form}/q:{value}" for form, values in bounds for value in values]
        self.assertGreater(len(texts), 6)
        for text, output in render_all(source, texts).items():
            self.assertTrue(output, text)
        self.assertTrue(render(write_wav(noise(200_000, 9000)), "f:ogg/q:10"))


class EmptyTests(SynchronousTestCase):
    """Outputs with no samples or very few."""

    def test_nothing(self) -> None:
        """A render without audio gives a header at most, and is detected as empty (D11)."""
        for form, encoder in ENCODERS.items():
            most = 0
            for rate, channels, extra in (
                (44100, 2, "/q:10" if form == "ogg" else ""),
                (96000, 2, "/bd:24" if FORMATS[form].depths else ""),
            ):
                found = Probe("wav", "", None, False, sample_rate=rate, channels=channels)
                options = parse_options(f"f:{form}/t:5{extra}")
                source = write_wav(constant(rate, 1, *[0.5] * channels))
                completed = run(encoder_arguments("ffmpeg", local_input(), options, found), source)
                most = max(most, len(completed.stdout))
                if completed.code == 0:
                    self.assertTrue(encoder.encoded_nothing(len(completed.stdout)), form)
                else:
                    self.assertIn(b"Empty output", completed.stderr, form)
            self.assertLessEqual(most, encoder.header_bytes, form)
            # `header_bytes` is close to the size of the largest header, because clients get nothing
            # until the output exceeds `header_bytes`.
            self.assertLessEqual(encoder.header_bytes, most * 1.25, form)

    def test_one_sample(self) -> None:
        """A source of one sample is rendered in every format, and not refused as empty (D13)."""
        source = write_wav(constant(48000, 1, 0.5))
        for form in FORMS:
            self.assertTrue(render(source, f"f:{form}"), form)

    def test_shortest(self) -> None:
        """The shortest trim at the lowest rate gives at least one sample in any format (D13)."""
        lossless = (("wav", 8000, 0.002), ("wav", 1000, 0.001), ("flac", 8000, 0.001))
        for form, rate, seconds in lossless:
            for start in ("0", "0.1", "0.198"):
                heard = render_and_decode(sample(), f"f:{form}/sr:{rate}/t:{start}:{seconds}")
                self.assertEqual((rate, round(rate * seconds)), (heard.rate, len(heard)), form)
        for text in ("f:mp3/sr:22050", "f:ogg/sr:1000", "f:aac/sr:7350", "f:m4a/sr:7350", "f:opus"):
            for kind in ("wav", "mp3"):
                self.assertGreaterEqual(
                    len(render_and_decode(sample(kind), f"{text}/t:0.1:0.001")), 1, text
                )
        # Five samples at 44.1 kHz give one sample at 8 kHz, even without a trim.
        brief = write_wav(constant(44100, 5, 0.5))
        self.assertEqual(1, len(render_and_decode(brief, "f:wav/sr:8000")))

    def test_quiet(self) -> None:
        """Silence encodes to very few bytes, but is rendered in ogg, opus, flac and m4a (D13)."""
        source = write_wav(silence(44100, 22050))
        texts = ("f:ogg/q:-1", "f:opus/br:6", "f:flac", "f:m4a/q:0.1")
        for text, heard in render_and_decode_all(source, texts).items():
            self.assertGreater(len(heard), 20_000, text)

    def test_past_the_end(self) -> None:
        """A trim past the end of any source is refused with the source's duration (D11)."""
        for kind in ("wav", "mp3", "adts", "matroska"):
            for start in ("0.3", "5"):
                error = self.assertRaises(InvalidOptions, render, sample(kind), f"f:flac/t:{start}")
                self.assertIn(f'"t:{start}"', error.message)
                self.assertIn(" seconds", error.message)


class BrokenTests(SynchronousTestCase):
    """Sources that are not audio, or are damaged."""

    def assert_refused(self, source: bytes, what: object) -> None:
        """Require a 415 for a source."""
        error = self.assertRaises(UndecodableSource, render, source, "f:wav")
        self.assertEqual(error.status, 415, what)

    def test_not_audio(self) -> None:
        """A source without audio returns 415 (Errors, 415)."""
        junk = random.Random(1).randbytes
        for what, source in {
            "nothing": b"",
            "text": b"These are words and not sounds.\n" * 60,
            "noise": junk(60_000),
            "zip": b"PK\x03\x04\x14\0\0\0\x08\0" + junk(5000),
            "zeros": bytes(20_000),
            "ID3 alone": b"ID3\x03\0\0\0\0\0\x0a" + bytes(10),
        }.items():
            self.assert_refused(source, what)

    def test_other_files(self) -> None:
        """A playlist returns 415, and none of its files is read (D43)."""
        path = Path(self.mktemp()).resolve()
        path.write_bytes(sample())
        for source in (
            f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{path}\n#EXT-X-ENDLIST\n",
            f"ffconcat version 1.0\nfile {path}\n",
            f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nt=0 0\na=control:{path}\n",
        ):
            self.assert_refused(source.encode(), source)

    def test_picture(self) -> None:
        """A picture returns 415, as video_source or undecodable_source depending on ffprobe."""
        picture = convert(sample(), *PICTURE.replace("-map 0:a", "").split(), name="a.jpg")
        error = self.assertRaises(Refusal, render, picture, "f:mp3")
        self.assertEqual(error.status, 415)

    def test_no_samples(self) -> None:
        """A file that ends in or right after its header returns 415 (Errors, 415)."""
        for kind, size in (("wav", 44), ("wav", 20), ("flac", 42), ("m4a", 40), ("mp3", 20)):
            self.assert_refused(sample(kind)[:size], (kind, size))
        self.assert_refused(write_wav(silence(44100, 0)), "no samples")

    def test_unknown_codec(self) -> None:
        """Audio in an unknown codec returns 415 (Errors, 415)."""
        self.assert_refused(sample("alac").replace(b"alac", b"xyzq"), "alac")
        strange = sample()
        self.assert_refused(strange[:20] + b"\x77\x77" + strange[22:], "wav tag")

    def test_truncated(self) -> None:
        """A truncated file is rendered as far as it decodes, or returns 415 (Errors, 415)."""
        for kind, rendered in (
            ("wav", True),
            ("flac", True),
            ("mp3", True),
            ("adts", True),
            ("aiff", True),
            ("matroska", True),
            # The index is at the end.
            ("m4a", False),
        ):
            whole = sample(kind)
            part = whole[: len(whole) * 6 // 10]
            if rendered:
                self.assertTrue(0 < len(render_and_decode(part, "f:wav")) < 8820, kind)
            else:
                self.assert_refused(part, kind)

    def test_garbage(self) -> None:
        """Garbage after an intact header is decoded or returns 415, never 500."""
        junk = random.Random(2).randbytes(9000)
        for kind in ("flac", "ogg", "m4a", "wavpack", "alac"):
            try:
                render(sample(kind)[:600] + junk, "f:wav")
            except UndecodableSource:
                continue

    def test_absurd_headers(self) -> None:
        """A header with an impossible channel count or sample rate returns 415 (D13)."""
        wav = sample()
        for at, claim in ((22, b"\x41\0"), (22, b"\xff\0"), (24, b"\xff\xff\xff\x7f")):
            broken = wav[:at] + claim + wav[at + len(claim) :]
            self.assert_refused(broken, claim)

    def test_flipped_bytes(self) -> None:
        """A damaged file in any container is rendered or refused, and never gives a 500 (D13)."""
        rng = random.Random(7)
        for n, kind in enumerate(("wav", *KINDS)):
            broken = bytearray(sample(kind))
            for _ in range(3):
                broken[rng.randrange(min(300, len(broken)))] = rng.randrange(256)
            for _ in range(20):
                broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
            try:
                render(bytes(broken), "f:flac/t:0.05" if n % 2 else "f:wav")
            except Refusal as refusal:
                self.assertIn(refusal.status, (415, 422), (kind, refusal.message))


class ServerErrorTests(SynchronousTestCase):
    """Failures that are not the source's fault."""

    def test_full_disk(self) -> None:
        """A full disk is a server error, even with a damaged source (Errors, 500)."""
        damaged = bytearray(sample("mp3"))
        damaged[1000:1400] = bytes(400)
        for source in (sample(), bytes(damaged)):
            words = encoder_arguments(
                "ffmpeg", local_input(), parse_options("f:wav"), probe(source)
            )
            with open("/dev/full", "wb") as full:
                completed = run(words, source, full.fileno())
            self.assertNotEqual(completed.code, 0)
            self.assertIn(b"No space left on device", completed.stderr)
            self.assertIs(classify(completed.stderr), None)

    def test_closed_descriptor(self) -> None:
        """A source descriptor that is not open is a server error (Errors, 500)."""
        gone = Input("file:/dev/fd/77", ("file",))
        for words in (
            probe_arguments("ffprobe", gone),
            encoder_arguments("ffmpeg", gone, parse_options("f:wav"), probe(sample())),
        ):
            completed = run(words, sample())
            self.assertNotEqual(completed.code, 0)
            self.assertIs(classify(completed.stderr), None, completed.stderr)

    def test_missing_encoder(self) -> None:
        """An ffmpeg that lacks an encoder is a server error (D34)."""
        words = encoder_arguments("ffmpeg", local_input(), parse_options("f:mp3"), probe(sample()))
        words[words.index("libmp3lame")] = "libnothing"
        completed = run(words, sample())
        self.assertNotEqual(completed.code, 0)
        self.assertIs(classify(completed.stderr), None, completed.stderr)
