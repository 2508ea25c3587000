"""Gaps in the time stamps of a source are silence of their length, in every output (D70).

What is rendered is compared with the audio that was there before packets were removed.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from functools import cache

import numpy as np
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.waveform import SAMPLE
from tests.matrix.regions import WHOLE, Region, find_differences
from tests.media.lengths.test_headers_live import stated_samples
from tests.support.audio import (
    Sound,
    convert,
    convert_all,
    decode,
    decode_all,
    measure,
    noise,
    probe_length,
    read_wav,
    render,
    render_all,
    render_and_decode,
    render_and_decode_all,
    render_once,
    run,
    tone,
    write_wav,
)

RATE = 48000
SECONDS = 7
#: The first and the last second of the packets that are removed.
FIRST, LAST = 2, 4
# A decoder settles within these samples after a gap. The time stamps of Ogg are those of pages, so
# the first packet after a gap may precede it.
SETTLED = 5000
# Packets of HE-AAC, of five seconds.
PACKETS = 110

#: ffmpeg's arguments for sources, by the name of the file.
KINDS = {
    "aac.m4a": "-c:a aac -aac_pns 0",
    "alac.m4a": "-c:a alac",
    "fragmented.m4a": "-c:a aac -aac_pns 0 -movflags empty_moov",
    "opus.mp4": "-c:a libopus",
    "ac3.mov": "-c:a ac3",
    "opus.webm": "-c:a libopus -b:a 128k",
    "aac.mka": "-c:a aac -aac_pns 0",
    "24.mka": "-c:a pcm_s24le",
    "floats.mka": "-c:a pcm_f32le",
    "flac.mka": "-c:a flac",
    "mp2.mka": "-c:a mp2",
    "opus.ogg": "-c:a libopus -b:a 128k",
    "flac.ogg": "-c:a flac",
    "aac.flv": "-c:a aac -aac_pns 0",
    "mp3.flv": "-c:a libmp3lame",
    "mp2.ts": "-c:a mp2",
    "ac3.ts": "-c:a ac3",
    "wma.asf": "-c:a wmav2",
}
#: Those whose decoder outputs exactly what was encoded, wherever it begins.
LOSSLESS = ("alac.m4a", "24.mka", "floats.mka", "flac.mka")
#: One of each container, and of each way to know its length.
TRIMMED = ("aac.m4a", "fragmented.m4a", "opus.webm", "opus.ogg", "aac.flv", "mp2.ts", "wma.asf")


@cache
def whole() -> dict[str, bytes]:
    """Return noise as files of several kinds, without gaps."""
    return convert_all(write_wav(noise(RATE, SECONDS * RATE)), KINDS)


@cache
def with_gaps() -> dict[str, bytes]:
    """Return the same files without the packets of some seconds."""
    return {name: drop(name, source) for name, source in whole().items()}


def drop(name: str, source: bytes) -> bytes:
    """Return a file without some packets, which keeps the time stamps of the others."""
    removed = f"noise=drop=between(pts*tb\\,{FIRST}\\,{LAST})"
    more = "-movflags empty_moov" if name.startswith("fragmented") else ""
    return convert(source, *f"-c copy -bsf:a {removed} {more}".split(), name=name)


def find_gap(sound: Sound) -> tuple[int, int]:
    """Return the first sample of the longest run of zeros, and the one after the last."""
    heard = np.flatnonzero(np.abs(sound.channels).max(axis=0) > 1e-4)
    at = int(np.diff(heard).argmax())
    return int(heard[at]) + 1, int(heard[at + 1])


def frames(mode: int, size: int, count: int) -> bytes:
    """Return frames of AMR: a header with the mode, then bits of which any are speech."""
    bits = random.Random(mode)
    return b"".join(bytes((mode << 3 | 4,)) + bits.randbytes(size) for _ in range(count))


def amr() -> bytes:
    """Return AMR of two seconds, a pause of three, 1.5 seconds, a pause of three, one second."""
    speech = {count: frames(7, 31, count) for count in (100, 75, 50)}
    # A description of silence every eighth frame, and nothing in between.
    pause = (frames(15, 0, 3) + frames(8, 5, 1) + frames(15, 0, 4)) * 18 + frames(15, 0, 6)
    return b"#!AMR\n" + speech[100] + pause + speech[75] + pause + speech[50]


class LengthTests(SynchronousTestCase):
    """The place of audio behind a gap"""

    def test_kinds(self) -> None:
        """In each container and codec, the audio behind a gap keeps its place, to the sample."""
        expected = decode_all(whole())
        for name, original in expected.items():
            outputs = render_all(with_gaps()[name], [WHOLE, "f:flac"])
            heard = read_wav(outputs[WHOLE])
            self.assertLessEqual(abs(len(heard) - len(original)), 1024, name)
            self.assertEqual(len(decode(outputs["f:flac"])), len(heard), name)
            before, behind = find_gap(heard)
            self.assertGreater(behind - before, 1.9 * RATE, name)
            self.assert_alike(heard, original, 0, before - SETTLED, name)
            end = min(len(heard), len(original)) - SETTLED
            self.assert_alike(heard, original, behind + SETTLED, end, name)
            if name in LOSSLESS:
                self.assert_exact(heard, original, before, behind, name)

    def assert_alike(self, heard: Sound, original: Sound, start: int, end: int, name: str) -> None:
        """Require the same audio, apart from what a lossy decoder carries over a gap."""
        parts = [sound.part(start, end).channels[0] for sound in (heard, original)]
        self.assertGreater(np.corrcoef(parts)[0, 1], 0.9, name)

    def assert_exact(
        self, heard: Sound, original: Sound, before: int, behind: int, name: str
    ) -> None:
        self.assertEqual(heard.part(0, before), original.part(0, before), name)
        self.assertEqual(heard.part(behind), original.part(behind, len(heard)), name)

    def test_formats(self) -> None:
        """All formats have the gap, also where a filter computes the samples, and waveforms."""
        source = with_gaps()["24.mka"]
        expected = len(read_wav(render(source, WHOLE)))
        texts = [f"f:{form}" for form in ENCODERS if form != "peaks"]
        texts += ["f:wav/norm:ebu", "f:wav/enhance:voice", "f:flac/sr:44100/ch:2/gain:-3"]
        for text, heard in render_and_decode_all(source, texts).items():
            seconds = len(heard) / heard.rate
            self.assertLess(abs(seconds - expected / RATE), 0.1, text)
            gap = heard.part(round(2.3 * heard.rate), round(3.7 * heard.rate)).channels
            self.assertLess(np.abs(gap).max(), 0.001, text)
        for name in ("24.mka", "opus.webm", "aac.m4a"):
            output = render(with_gaps()[name], "f:peaks")
            samples = np.frombuffer(output, SAMPLE)
            self.assertLess(abs(len(samples) - SECONDS * RATE), 2048, name)
            self.assertFalse(samples[round(2.3 * RATE) : round(3.7 * RATE)].any(), name)

    def test_trims(self) -> None:
        """``t`` is the exact cut of the whole: ahead of a gap, inside it, behind it (D12).

        A stated length counts the gaps, as does a pass that measures, and a fade-out is at the end.
        """
        places = ((500, 1000), (1500, 2000), (2500, 1000), (3500, 2250), (5250, 1000))
        regions = [Region(*each) for each in (*places, (1000, 5500), (6500, None))]
        fade = f"{WHOLE}/fade:0:1"
        for name in TRIMMED:
            source = with_gaps()[name]
            outputs = render_all(source, [WHOLE, fade])
            heard = {text: read_wav(output) for text, output in outputs.items()}
            plain, faded = heard[WHOLE].channels[0], heard[fade].channels[0]
            for text in (WHOLE, fade):
                self.assertEqual(stated_samples(outputs[text]), len(heard[text]), (name, text))
            ends = [float(np.abs(sound[-600:]).max()) for sound in (plain, faded)]
            self.assertLess(ends[1], max(0.01, ends[0] / 2), name)
            self.assertLess(abs(len(faded) - len(plain)), 1024, name)
            found = measure(source).length
            assert found is not None
            self.assertLessEqual(abs(found.samples - len(plain)), 1024, name)
            self.assertEqual([*find_differences(source, regions, heard[WHOLE])], [], name)

    def test_two_processes(self) -> None:
        """A node that decodes a source in a process of its own renders the same bytes (D63)."""
        texts = [WHOLE, f"{WHOLE}/t:3.5:2", f"{WHOLE}/fade:0:1"]
        for name in ("floats.mka", "opus.webm", "mp2.ts", "aac.m4a"):
            source = with_gaps()[name]
            alone, behind = (
                {text: decode(output) for text, output in outputs.items()}
                for outputs in (
                    render_once(source, texts, irregular=irregular) for irregular in (False, True)
                )
            )
            for text in texts:
                self.assertEqual(alone[text], behind[text], (name, text))


class SpeechTests(SynchronousTestCase):
    """AMR with discontinuous transmission"""

    def test_pauses(self) -> None:
        """Frames that describe silence are silence, in every container (D70)."""
        source = amr()
        files = {
            "a.amr": source,
            **convert_all(source, dict.fromkeys(("a.3gp", "a.mka"), "-c copy")),
        }
        for name, file in files.items():
            heard = render_and_decode(file, f"{WHOLE}/sr:8000")
            self.assertEqual(len(heard), round(10.5 * 8000), name)
            for first, last in ((2, 5), (6.5, 9.5)):
                start, end = round(first * 8000), round(last * 8000)
                self.assertFalse(heard.part(start, end).channels.any(), name)
                for at in (start - 160, end):
                    self.assertTrue(heard.part(at, at + 160).channels.any(), name)
            later = render_and_decode(file, f"{WHOLE}/sr:8000/t:5:1")
            self.assertEqual(later, heard.part(5 * 8000, 6 * 8000), name)

    def test_ends(self) -> None:
        """Silence at the end is kept, in every format; audio begins with the first speech."""
        speech = b"#!AMR\n" + frames(7, 31, 100)
        heard = render_and_decode(speech, WHOLE)
        self.assertEqual(len(heard), 2 * 8000)
        silence = frames(8, 5, 1) + frames(15, 0, 149)
        begun = speech[:6] + silence + speech[6:]
        self.assertEqual(render_and_decode(begun, WHOLE), heard)
        ended = speech + silence
        kept = convert_all(ended, dict.fromkeys(("a.3gp", "a.mka"), "-c copy"))
        for name, source in {"a.amr": ended, **kept}.items():
            texts = (WHOLE, f"{WHOLE}/t:3:1", "f:ogg", "f:flac", "f:wav/fade:0:1")
            outputs = render_and_decode_all(source, texts).values()
            whole, later, *others = outputs
            self.assertEqual(len(whole), 5 * 8000, name)
            self.assertEqual(whole.part(0, 2 * 8000), heard, name)
            self.assertFalse(whole.part(2 * 8000).channels.any(), name)
            self.assertEqual(later, whole.part(3 * 8000, 4 * 8000), name)
            for other in others:
                self.assertLess(abs(len(other) - 5 * other.rate), 2, name)


class ClosedTests(SynchronousTestCase):
    """Differences of time stamps that are no gaps: the samples count"""

    def spaced(self, expression: str) -> bytes:
        """Return Matroska of 500 packets of 20 ms with other time stamps, in milliseconds."""
        sound = write_wav(noise(8000, 10 * 8000))
        words = "-af asetnsamples=n=160 -c:a pcm_s16le"
        made = convert(sound, *words.split(), name="a.mka")
        return convert(made, *f"-c copy -bsf:a setts=ts={expression}".split(), name="a.mka")

    def test_time_stamps(self) -> None:
        """Drift, jitter, overlaps, steps back and jumps of more than ten minutes are closed."""
        for what, expression, seconds in (
            ("a slow clock", "N*20.6", 0),
            ("a fast clock", "N*19", 0),
            ("a small step", "N*20+gte(N\\,99)*9", 0),
            ("a late packet", "N*20+eq(N\\,99)*9", 0),
            ("an overlap", "N*20-gte(N\\,99)*15", 0),
            ("a jump of 601 seconds", "N*20+gte(N\\,99)*601000", 0),
            ("half a packet", "N*20+gte(N\\,99)*10", 0.01),
            ("a packet", "N*20+gte(N\\,99)*20", 0.02),
            ("a gap in a slow clock", "N*20.6+gte(N\\,99)*2000", 2),
            ("a gap in a fast clock", "N*19+gte(N\\,99)*2000", 2),
            ("two gaps", "N*20+gte(N\\,99)*2000+gte(N\\,300)*1000", 3),
            ("599 seconds", "N*20+gte(N\\,99)*599000", 599),
            # Packets that arrive at irregular times do not add up to silence.
            ("five at a time", "floor(N/5)*100+mod(N\\,5)", 0),
            ("each up to 15 ms late", "N*20+mod(N*7\\,16)", 0),
        ):
            heard = render_and_decode(self.spaced(expression), "f:wav")
            difference = abs(len(heard) - round((10 + seconds) * 8000))
            # Beside a drift, a gap is as exact as the milliseconds of its time stamps.
            most = 16 if "gap in a" in what else 800 if "mod(" in expression else 0
            self.assertLessEqual(difference, most, what)

    def test_wrong_time_stamps(self) -> None:
        """Frames to which ffmpeg gives a wrong time stamp, or none, do not follow a gap."""
        stereo = write_wav(tone(RATE, 60 * RATE, 440, 660))
        sources = convert_all(stereo, {"a.mpg": "-c:a ac3", "a.vob": "-c:a pcm_dvd"})
        speech = write_wav(noise(16000, 3 * 16000))
        words = "-c:a libspeex -frames_per_packet 4"
        sources |= convert_all(speech, dict.fromkeys(("a.ogg", "a.mka"), words))
        for name, source in sources.items():
            # The service decodes Speex with this decoder.
            decoder = "-c:a libspeex" if name in ("a.ogg", "a.mka") else ""
            words = f"ffmpeg -v error {decoder} -i file:/dev/fd/3 -f s16le pipe:1"
            ended = run(words.split(), source)
            rendered = read_wav(render(source, "f:wav/bd:16"))
            samples = len(ended.stdout) // 2 // len(rendered.channels)
            self.assertEqual(len(rendered), samples, name)

    def test_pause_of_the_length_of_headers(self) -> None:
        """A pause is silence whatever its length, also that of Opus headers at a join."""
        sound = convert(write_wav(noise(RATE, 6 * RATE)), *"-c:a libopus -f ogg".split())
        for packets in (47, 48, 49):
            removed = f"noise=drop=between(n\\,100\\,{99 + packets})"
            source = convert(sound, *f"-c copy -f ogg -bsf:a {removed}".split())
            first, last = find_gap(render_and_decode(source, WHOLE))
            self.assertLess(abs(last - first - packets * 960), 200, packets)

    def test_delay_of_aac(self) -> None:
        """A gap after the first packet that is heard is silence there."""
        made = convert(write_wav(noise(RATE, 3 * RATE)), *"-c:a aac -f mp4".split())
        source = convert(made, *"-c copy -f mp4 -bsf:a noise=drop=between(n\\,2\\,50)".split())
        first, last = find_gap(render_and_decode(source, WHOLE))
        self.assertLess(abs(first - 1024), SETTLED)
        self.assertLess(abs(last - first - 49 * 1024), SETTLED)

    def test_transport_stream(self) -> None:
        """Jumps of more than ten seconds in MPEG-TS are closed."""
        sound = convert(write_wav(noise(RATE, 4 * RATE)), *"-c:a mp2 -f mpegts".split())
        length = len(decode(sound))
        for seconds, silence in ((9, 9 * RATE), (11, 0)):
            steps = f"setts=ts=TS+gte(TS\\,200000)*{seconds * 90000}"
            source = convert(sound, *f"-c copy -f mpegts -bsf:a {steps}".split())
            heard = render_and_decode(source, "f:wav")
            self.assertLessEqual(abs(len(heard) - length - silence), 200, seconds)


class SpacingTests(SynchronousTestCase):
    """AAC in MP4 whose packets are not spaced by their samples"""

    @staticmethod
    def sources() -> Iterator[tuple[str, bytes]]:
        """Yield sources of the same audio."""
        form = "-c:a aac -aac_pns 0"
        sound = convert(write_wav(noise(44100, 9 * 44100)), *form.split(), name="a.m4a")
        for name, stamps in {
            "even": "ts=N*1010:duration=1010",
            "drift": "ts=N*1010+mod(N*7\\,11):duration=1010",
            "long": "ts=N*1036+mod(N*7\\,11):duration=1036",
            **{
                f"{scale} times": f"ts=TS*{scale}:duration=DURATION*{scale}"
                for scale in (0.5, 0.96, 0.999, 1.001, 2)
            },
        }.items():
            words = f"-c copy -bsf:a setts={stamps}"
            yield name, convert(sound, *words.split(), name="a.m4a")

    def test_all_audio(self) -> None:
        """All packets count; no length is stated that the output lacks, and ``t`` is exact."""
        for name, source in self.sources():
            whole, faded = (render(source, text) for text in (WHOLE, f"{WHOLE}/fade:0:1"))
            heard = read_wav(whole)
            self.assertLessEqual(abs(len(heard) - len(decode(source))), 1024, name)
            self.assertGreater(len(heard), 9 * 44100 - 2048, name)
            self.assertIn(stated_samples(whole), (0, len(heard)), name)
            self.assertEqual([*find_differences(source, [Region(7000, 1000)], heard)], [], name)
            self.assertLess(abs(read_wav(faded).channels[0, -1]), 0.001, name)


class HalfRateTests(SynchronousTestCase):
    """HE-AAC in MP4, whose time base is that of its core"""

    @staticmethod
    @cache
    def made(more: str = "") -> bytes:
        """Return an m4a file of AAC at 22.05 kHz, which says that it extends to 44.1 kHz."""
        sound = write_wav(noise(22050, PACKETS * 1024))
        source = convert(sound, *f"-c:a aac -aac_pns 0 {more}".split(), name="a.m4a")
        # The extension of the AudioSpecificConfig (ISO/IEC 14496-3, 1.6.2.1): absent, then present
        # with the index of the rate.
        assert source.count(b"\x56\xe5\x00") == 1
        return source.replace(b"\x56\xe5\x00", b"\x56\xe5\xa0")

    def source(self, start: int) -> bytes:
        """Return the file with an edit that starts at a time."""
        made = self.made()
        at = made.index(b"elst") + 16
        return made[:at] + struct.pack(">i", start) + made[at + 4 :]

    def test_length(self) -> None:
        """The length is exact, the encoder's delay is cut, and ``t`` is a cut of the whole."""
        whole = decode(self.source(0))
        for start in (0, 1024, 1500, 2112):
            source = self.source(start)
            found = probe_length(source).length
            assert found is not None
            # The edit has the length of the audio, in milliseconds.
            samples = 2 * min(PACKETS * 1024, (PACKETS + 1) * 1024 - start)
            self.assertLess(abs(found.samples - samples), 64, start)
            outputs = render_and_decode_all(source, [WHOLE, f"{WHOLE}/t:3:1", f"{WHOLE}/fade:0:1"])
            heard, later, faded = outputs.values()
            self.assertEqual(len(heard), found.samples, start)
            self.assertEqual(
                heard.part(4096, 20000), whole.part(2 * start + 4096, 2 * start + 20000)
            )
            self.assertEqual(later, heard.part(3 * 44100, 4 * 44100), start)
            self.assertLess(abs(faded.channels[0, -1]), 0.001, start)
