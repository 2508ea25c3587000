"""Lengths that outputs state, as other programs read them from real renders."""

from __future__ import annotations

from functools import cache
from itertools import chain

import numpy as np
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.command.exact_length import resampled_count
from tests.support.audio import (
    convert,
    convert_all,
    decode,
    decode_all,
    noise,
    probe_length,
    render,
    render_all,
    render_and_decode_all,
    write_wav,
)
from tests.support.measures import level, peak

RATE, SAMPLES = 44100, 50_001

#: ffmpeg's arguments for each kind of source whose length can be known, by the name of the file.
EXACT = {
    **{f"{codec}.wav": f"-c:a {codec}" for codec in ("pcm_s16le", "pcm_f32le", "pcm_mulaw")},
    "rf64.wav": "-rf64 always",
    "a.w64": "-c:a pcm_s24le",
    "a.aiff": "-c:a pcm_s24be",
    "little.aiff": "-c:a pcm_s16le",
    "a.caf": "-c:a pcm_s16be",
    "a.flac": "-sample_fmt s16",
    "a.wv": "",
    "a.tta": "",
    "alac.m4a": "-c:a alac",
    "aac.m4a": "-c:a aac -aac_pns 0",
    "front.m4a": "-c:a aac -aac_pns 0 -movflags faststart",
    "vorbis.ogg": "-c:a libvorbis",
    "a.opus": "-c:a libopus",
    "constant.mp3": "-c:a libmp3lame -b:a 128k",
    "variable.mp3": "-c:a libmp3lame -q:a 4",
    "low.mp3": "-c:a libmp3lame -ar 22050 -ac 1 -b:a 48k",
}
#: Kinds of which only a least length is known.
BOUNDED = {
    "bare.mp3": "-c:a libmp3lame -b:a 128k -write_xing 0",
    "a.aac": "-c:a aac -aac_pns 0",
    "a.mka": "-c:a libvorbis",
}
#: Kinds of which nothing is known before they are decoded.
UNKNOWN = {
    **BOUNDED,
    "a.ac3": "-c:a ac3",
    "a.webm": "-c:a libopus -b:a 32k",
    "a.ts": "-c:a aac -aac_pns 0",
    "a.asf": "-c:a wmav2",
    "fragmented.mp4": "-c:a aac -aac_pns 0 -movflags empty_moov+frag_keyframe",
}
#: Kinds that differ in how they are decoded; the lengths of all kinds are compared before.
DECODED = (
    *("pcm_s16le.wav", "a.flac", "aac.m4a", "vorbis.ogg", "a.opus", "variable.mp3", "low.mp3"),
)
#: Kinds that can be chained; the first two can be cut, too.
CHAINED = ("vorbis.ogg", "a.opus", "a.flac", "constant.mp3")
FORMATS = ("f:wav/bd:24/ch:1", "f:flac", "f:mp3/q:4", "f:m4a", "f:opus", "f:ogg", "f:peaks")


@cache
def sources() -> dict[str, bytes]:
    """Return the same noise in each container."""
    return convert_all(write_wav(noise(RATE, SAMPLES, 2)), EXACT)


@cache
def truncated() -> dict[str, bytes]:
    """Return files that end at about 1.8 of 3 seconds."""
    names = "pcm_s16le.wav a.w64 a.aiff a.caf a.flac front.m4a vorbis.ogg a.opus variable.mp3"
    names += " a.mka a.aac"
    kinds = {**EXACT, **BOUNDED}
    whole = convert_all(
        write_wav(noise(RATE, 3 * RATE)), {name: kinds[name] for name in names.split()}
    )
    return {name: source[: len(source) * 6 // 10] for name, source in whole.items()}


def samples_at(rate: int) -> int:
    """Return the number of samples of the noise at a rate."""
    return resampled_count(0, SAMPLES, RATE, rate)


def stated_samples(output: bytes) -> float:
    """Return the number of samples that a header or an end states; 0 where it states none."""
    if output[:4] == b"RIFF":
        channels, bits = (int.from_bytes(output[at : at + 2], "little") for at in (22, 34))
        at = output.index(b"data") + 4
        size = int.from_bytes(output[at : at + 4], "little")
        return size / (channels * bits // 8) if size < 2**32 - 1 else 0
    if output[:4] == b"fLaC":
        return int.from_bytes(output[18:26], "big") & 2**36 - 1
    if output[:4] == b"OggS":
        last, head = output.rindex(b"OggS\0"), output.find(b"OpusHead")
        skipped = int.from_bytes(output[head + 10 : head + 12], "little") if head > 0 else 0
        return int.from_bytes(output[last + 6 : last + 14], "little") - skipped
    if output[4:8] == b"ftyp":
        at = output.index(b"mdhd") + 20
        return int.from_bytes(output[at : at + 4], "big") - 1024
    at = max(output.find(b"Xing"), output.find(b"Info"))
    delays = int.from_bytes(output[at + 33 : at + 36], "big")
    frame = 1152 if output[1] & 0x18 == 0x18 else 576
    frames = int.from_bytes(output[at + 8 : at + 12], "big")
    return frames * frame - (delays >> 12) - (delays & 0xFFF)


class SourceTests(SynchronousTestCase):
    """The lengths of sources in each container"""

    def test_exact(self) -> None:
        """The length that is found is that of the decoded audio."""
        decoded = decode_all({name: sources()[name] for name in EXACT})
        for name in EXACT:
            found = probe_length(sources()[name])
            length = found.length
            assert length is not None
            self.assertTrue(length.exact, name)
            self.assertEqual(length.samples, samples_at(found.sample_rate), name)
            more = len(decoded[name]) - length.samples
            self.assertTrue(0 <= more < (1024 if length.ends_in_padding else 1), (name, more))

    def test_lower_bound(self) -> None:
        """A least length is none too high, and a trim that surely lies within it is exact."""
        bounded = convert_all(write_wav(noise(8000, 32000)), BOUNDED)
        decoded = decode_all(bounded)
        for name, source in bounded.items():
            length = probe_length(source).length
            assert length is not None
            self.assertFalse(length.exact, name)
            self.assertTrue(0 < length.samples <= len(decoded[name]), name)
            inside, outside = render_all(source, ("f:wav/t:0:0.2", "f:m4a/t:0.1")).values()
            self.assertEqual((stated_samples(inside), stated_samples(outside)), (1600, -1024), name)
            self.assertEqual(len(decode(inside)), 1600, name)


class OutputTests(SynchronousTestCase):
    """The lengths of outputs"""

    def test_each_container(self) -> None:
        """Each format has and states exactly the length of the source, in any container (D57)."""
        short = {"one page.ogg": "-c:a libvorbis", "short.m4a": "-c:a aac", "a.mp3": "-b:a 64k"}
        kinds = convert_all(write_wav(noise(RATE, 4321, 2)), short)
        files = {**kinds, **{name: sources()[name] for name in DECODED}}
        outputs, expected = {}, {}
        for name, source in files.items():
            found = probe_length(source)
            samples = 4321 if name in kinds else samples_at(found.sample_rate)
            for text, output in render_all(source, FORMATS).items():
                rate = 48000 if text == "f:opus" else found.sample_rate
                count = resampled_count(0, samples, found.sample_rate, rate)
                if text == "f:peaks":
                    self.assertEqual(len(output), count * 2 * found.channels, name)
                    continue
                self.assertEqual(stated_samples(output), count, (name, text))
                # AAC adds its delay, and fills the last frame.
                decoded = -(-(count + 1024) // 1024) * 1024 if text == "f:m4a" else count
                outputs[f"{text} of {name}"], expected[f"{text} of {name}"] = output, decoded
        for what, heard in decode_all(outputs).items():
            # The decoder of ffmpeg 5.1 does not cut the last block of a file of one page.
            most = 1024 if "f:ogg" in what else 1
            self.assertTrue(0 <= len(heard) - expected[what] < most, (what, len(heard)))

    def test_options(self) -> None:
        """Trims, resampling, channels, fades, loudness and presets keep the length exact (D57)."""
        lengths = {
            "t:0:0.5": 22050,
            "t:0.333": 35316,
            "t:1:9": 5901,
            "sr:8000": 9070,
            "sr:48000/t:0.25:0.777": 37296,
            "ch:1/fade:0.1:0.1": SAMPLES,
            "norm:ebu/sr:22050/t:0.1:0.9": 19845,
            "enhance:voice": SAMPLES,
        }
        texts = {f"f:mp3/q:5/{text}": samples for text, samples in lengths.items()}
        for name in ("pcm_s16le.wav", "aac.m4a", "variable.mp3"):
            outputs = render_all(sources()[name], texts)
            for text, heard in decode_all(outputs).items():
                found = stated_samples(outputs[text]), len(heard)
                self.assertEqual(found, (texts[text],) * 2, (name, text))


class UnknownLengthTests(SynchronousTestCase):
    """Sources whose length is known only once they are decoded"""

    def test_measured(self) -> None:
        """flac, wav and mp3 of a varying bit rate state the exact length of a small source."""
        small = convert_all(write_wav(noise(RATE, SAMPLES, 2)), UNKNOWN)
        forms = ("f:m4a", "f:flac", "f:wav", "f:mp3/q:4")
        texts = {t: [f"{form}{t}" for form in forms] for t in ("", "/t:0.5", "/t:0.5:9")}
        for name, source in small.items():
            outputs = render_all(source, chain(*texts.values()))
            for t, kinds in texts.items():
                m4a, *others = (outputs[text] for text in kinds)
                self.assertEqual(stated_samples(m4a), -1024, (name, t))
                samples = len(decode(others[0]))
                for output in others:
                    found = stated_samples(output), len(decode(output))
                    self.assertEqual(found, (samples, samples), (name, t))


class LieTests(SynchronousTestCase):
    """Sources whose headers are wrong"""

    def test_truncated(self) -> None:
        """A truncated source is rendered as far as it decodes, and never padded (Errors, 415; D57).

        Its true end is stated, or nothing where the source is not measured.
        """
        decoded = decode_all(truncated())
        for name, source in truncated().items():
            wav, m4a = render_all(source, ["f:wav", "f:m4a"]).values()
            samples = len(decoded[name])
            is_pcm = probe_length(source).codec.startswith("pcm")
            self.assertEqual(stated_samples(m4a), samples if is_pcm else -1024, name)
            self.assertEqual((stated_samples(wav), len(decode(wav))), (samples, samples), name)

    def test_parts(self) -> None:
        """All audio of a cut or chained stream is kept, and at most its length stated (D57)."""
        sound = write_wav(noise(RATE, 3 * RATE))
        files = {name: source * 2 for name, source in sources().items() if name in CHAINED}
        for name, whole in convert_all(sound, {name: EXACT[name] for name in CHAINED[:2]}).items():
            cuts = {f"{start}.{name}": f"-ss {start} -c copy" for start in ("0.1", "0.7", "1.5")}
            files |= convert_all(whole, cuts)
        decoded = decode_all(files)
        for name, source in files.items():
            output, samples = render(source, "f:wav"), len(decoded[name])
            self.assertIn(stated_samples(output), (0, samples), name)
            self.assertEqual(len(decode(output)), samples, name)

    def test_believed(self) -> None:
        """A number of frames that is too high is stated, one that is too low is not.

        That is if the header has no checksum. With one, neither is stated, and the source is
        measured for wav.
        """
        source = sources()["variable.mp3"]
        whole = len(decode(self.with_frames(source, 2)))
        for factor in (2, 0.5):
            output = render(self.with_frames(source, factor), "f:wav")
            samples = len(decode(output))
            self.assertGreaterEqual(samples, whole - 2000)
            stated = stated_samples(output)
            self.assertTrue(stated > samples if factor > 1 else stated == samples, factor)
            contradicted = self.with_frames(source, factor, has_checksum=True)
            wav, m4a = render_all(contradicted, ["f:wav", "f:m4a"]).values()
            self.assertEqual(stated_samples(wav), len(decode(wav)))
            self.assertEqual(stated_samples(m4a), -1024)

    def test_damage(self) -> None:
        """Samples that damage costs are silent at the end, up to a second."""
        source = bytearray(sources()["a.flac"])
        middle = len(source) // 2
        source[middle : middle + 2000] = bytes(2000)
        lost = SAMPLES - len(decode(bytes(source)))
        self.assertTrue(0 < lost < RATE)
        output = render(bytes(source), "f:wav")
        heard = decode(output)
        self.assertEqual((len(heard), stated_samples(output)), (SAMPLES, SAMPLES))
        trailing = len(heard) - 1 - max(abs(heard.channels).max(axis=0).nonzero()[0])
        self.assertEqual(trailing, lost)

    def test_equal_parts(self) -> None:
        """A flac file that was joined of equally long ones is one stream (D11, D12, D57)."""
        loud, quiet = (write_wav(noise(RATE, 2 * RATE, 2, amplitude)) for amplitude in (0.4, 0.2))
        first = convert(loud, name="a.flac")
        places = (0.5, 1.8, 3)
        changes = ("", *(f"/t:{at}:0.5" for at in places), "/fade:0:1")
        texts = [f"f:wav/bd:24{change}" for change in changes]
        for name, second in convert_all(quiet, {"2.flac": "", "1.flac": "-ac 1"}).items():
            whole, *trimmed, faded = render_and_decode_all(first + second, texts).values()
            # The decoder drops frames where the second header is.
            self.assertTrue(0 <= 4 * RATE - len(whole) < 3 * 4608, name)
            for at, heard in zip(places, trimmed, strict=True):
                part = whole.part(round(at * RATE), round(at * RATE) + RATE // 2)
                self.assertLess(peak(heard.channels - part.channels), -60, (name, at))
            self.assertEqual(len(faded), len(whole))
            self.assertLess(level(faded.channels[0][-1000:]), level(whole.channels[0]) - 20)

    def test_fades(self) -> None:
        """A fade-out ends where the audio ends, whatever the header states (D12)."""
        names = ("a.flac", "a.aiff", "vorbis.ogg", "a.mka", "variable.mp3")
        wrong = {name: truncated()[name] for name in names}
        wrong["chained"] = sources()["vorbis.ogg"] * 2
        wrong["lying"] = self.with_frames(sources()["variable.mp3"], 2)
        plain = decode_all(wrong)
        for name, source in wrong.items():
            faded = decode(render(source, "f:wav/bd:32f/fade:0:0.5"))
            fall = np.minimum(1, (len(faded) - np.arange(len(faded))) / (faded.rate // 2))
            expected = plain[name].channels[:, : len(faded)] * fall
            np.testing.assert_allclose(faded.channels, expected, atol=1e-4, err_msg=name)

    def with_frames(self, source: bytes, factor: float, *, has_checksum: bool = False) -> bytes:
        """Return an mp3 file whose header states another number of frames.

        :param has_checksum: the header keeps its checksum, which is wrong then.
        """
        at = max(source.find(b"Xing"), source.find(b"Info")) + 8
        frames = int(int.from_bytes(source[at : at + 4], "big") * factor)
        changed = source[:at] + frames.to_bytes(4, "big") + source[at + 4 :]
        # It is behind the number of bytes, a table, the quality, and the delays of the encoder.
        at += 4 + 4 + 100 + 4 + 34
        return changed if has_checksum else changed[:at] + bytes(2) + changed[at + 2 :]
