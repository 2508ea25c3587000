"""Sources with several streams, and audio that the decoder refuses, in the whole service."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
from twisted.logger import formatEvent
from twisted.trial.unittest import SkipTest

from tests.support.audio import Sound, convert, decode, join, noise, run, tone, write_wav
from tests.support.flac import crc
from tests.support.http import Log, Response
from tests.support.programs import FFMPEG
from tests.support.service import ServiceCase, fetch, signed

RATE = 44100
SHORT, LONG = int(4.2 * RATE), 20 * RATE

# Five tones of 5.1 channels as the parts of one IAMF element (D71).
_IAMF = """
-filter_complex [0:a]channelmap=0|1:stereo[F];[0:a]channelmap=4|5:stereo[B];\
[0:a]channelmap=2:mono[C];[0:a]channelmap=3:mono[L] -map [F] -map [B] -map [C] -map [L]
-stream_group type=iamf_audio_element:id=1:st=0:st=1:st=2:st=3:audio_element_type=channel,\
layer=ch_layout={0}
-stream_group type=iamf_mix_presentation:id=2:stg=0:annotations=en-us=x,\
submix=parameter_id=100:parameter_rate=48000:default_mix_gain=0.0|\
element=stg=0:headphones_rendering_mode=binaural:annotations=en-us=y:parameter_id=100:\
parameter_rate=48000:default_mix_gain=0.0|\
layout=layout_type=loudspeakers:sound_system={0}
-streamid 0:0 -streamid 1:1 -streamid 2:2 -streamid 3:3 -c:a libopus
"""


def sound(length: int) -> Sound:
    """Return noise that does not repeat."""
    return noise(RATE, length)


def make(words: str, name: str, length: int = SHORT) -> bytes:
    """Return a file of a short noise, and of what options add."""
    return convert(write_wav(sound(length)), *words.split(), name=name)


def with_tone(codec: str, name: str, *, late: int = 0, first: bool = True) -> bytes:
    """Return a file of 4.2 seconds of noise and of 20 seconds of a tone.

    :param late: seconds at which the noise starts.
    :param first: the noise is the first stream.
    """
    maps = "-map 1 -map 0" if first else "-map 0 -map 1"
    with open("noise.wav", "wb") as file:
        file.write(write_wav(sound(SHORT)))
    # The added input is the noise.
    words = f"-itsoffset {late} -i noise.wav {maps} -c:a {codec}"
    return convert(write_wav(tone(RATE, LONG, 300)), *words.split(), name=name)


def with_subtitle(codec: str, name: str) -> bytes:
    """Return a file of 4.2 seconds of noise, and of words until second 20."""
    with open("words.srt", "w") as file:
        file.write("1\n00:00:00,000 --> 00:00:02,000\nHello\n\n")
        file.write("2\n00:00:18,000 --> 00:00:20,000\nBye\n")
    return make(f"-i words.srt -map 0 -map 1 {codec}", name)


def with_pictures(
    rate: str, seconds: float, codec: str, name: str, more: str = "", length: int = LONG
) -> bytes:
    """Return a file of noise and of pictures at a rate."""
    pictures = f"-f lavfi -i testsrc=size=32x32:rate={rate}:duration={seconds}"
    return make(f"{pictures} -map 0 -map 1 -c:v {codec} {more}", name, length)


def verbatim_flac(samples: list[int], bits: int) -> bytes:
    """Return a mono flac file of one frame whose samples are stored as they are (RFC 9639)."""
    count = len(samples)
    codes = {16: 4, 24: 6, 32: 7}
    info = struct.pack(">HH", count, count) + bytes(6)
    info += (RATE << 44 | (bits - 1) << 36 | count).to_bytes(8, "big") + bytes(16)
    header = bytes((0xFF, 0xF8, 0x79, codes[bits] << 1, 0)) + struct.pack(">H", count - 1)
    frame = header + crc(header, 7, 8) + b"\x02"
    frame += b"".join(value.to_bytes(bits // 8, "big", signed=True) for value in samples)
    return b"fLaC\x80\0\0\x22" + info + frame + crc(frame, 0x8005, 16)


def rename_codec(m4a: bytes, name: bytes) -> bytes:
    """Return an MP4 file whose sample entry has another name, and no description of AAC."""
    start, _, rest = m4a.partition(b"stsd")
    return start + b"stsd" + rest.replace(b"mp4a", name, 1).replace(b"esds", b"free", 1)


class StreamCase(ServiceCase):
    """A service whose requests are each the first of their kind."""

    async def get(self, port: int, options: str, name: str) -> Response:
        """Return the response to the first request for a variant, or for the info document."""
        return await fetch(port, signed(f"/{options}/plain/local://{name}"))

    async def get_sound(self, port: int, options: str, name: str) -> Sound:
        """Return the samples of a variant; the response has to be whole."""
        response = await self.get(port, options, name)
        self.assertEqual((200, True), (response.status, response.complete), (options, name))
        return decode(response.body)

    async def assert_exact(self, port: int, name: str, *trims: str) -> Sound:
        """Assert that each trim is the cut of the whole, and return the whole."""
        whole = await self.get_sound(port, "f:wav/bd:32f", name)
        for trim in trims:
            heard = await self.get_sound(port, f"f:wav/bd:32f/t:{trim}", name)
            start, length = (round(float(part) * whole.rate) for part in trim.split(":"))
            self.assertEqual(heard, whole.part(start, start + length), (name, trim))
        return whole


class TrackTests(StreamCase):
    """Several tracks"""

    async def test_longer_track(self) -> None:
        """The length of a source is that of its audio, not of another track (D71).

        So the first request for a part, a fade or peaks is whole, and nothing is irregular.
        """
        port, log = self.start().port, Log(self)
        files = {
            "two.mka": with_tone("flac", "a.mka"),
            "two.webm": with_tone("libopus -ar 48000", "a.webm"),
            "vorbis.mka": with_tone("libvorbis", "a.mka"),
            "two.mov": with_tone("alac", "a.mov"),
            "two.opus": with_tone("libopus", "a.opus"),
            "two.ogg": with_tone("libvorbis", "a.ogg"),
            "two.avi": with_tone("pcm_s16le", "a.avi"),
            "two.ts": with_tone("ac3", "a.ts"),
            "subtitle.mka": with_subtitle("-c:a flac -c:s srt", "a.mka"),
            "lyrics.m4a": with_subtitle("-c:a alac -c:s mov_text", "a.m4a"),
            "late.mka": make("-c:a flac -output_ts_offset 5", "a.mka"),
            "late.webm": with_tone("libopus", "a.webm", late=5),
        }
        for name, source in files.items():
            self.add(name, source)
            whole = await self.assert_exact(port, name, "0:8", "3:30")
            seconds = len(whole) / whole.rate
            self.assertApproximates(4.2, seconds, 0.05, name)
            faded = await self.get_sound(port, "f:wav/bd:32f/t:0:9/fade:0:1", name)
            self.assertEqual(len(faded), len(whole), name)
            self.assertEqual(faded.part(0, 3 * RATE), whole.part(0, 3 * RATE))
            self.assertLess(np.abs(faded.channels[:, -99:]).max(), 0.01, name)
            peaks = await self.get(port, "f:peaks/t:0:8/pts:20", name)
            self.assertEqual(200, peaks.status)
            past = await self.get(port, "f:wav/t:15:2", name)
            self.assertEqual(422, past.status, name)
        self.assertNotIn("irregular", "".join(str(formatEvent(each)) for each in log.events))

    async def test_iamf(self) -> None:
        """IAMF in MP4 is a 415 that names it, for `/info` and each render alike (D71)."""
        listed = run([FFMPEG, "-hide_banner", "-muxers"]).stdout
        if b" iamf " not in listed:
            raise SkipTest("this ffmpeg writes no IAMF")
        tones = [tone(48000, 48000, hertz) for hertz in (300, 400, 500, 60, 700, 800)]
        port = self.start().port
        source = write_wav(join(*tones), mask=0x60F)
        # FFmpeg 7.1 has another name for the layout than 9.0.
        for layout in ("5.1", "5.1(side)"):
            with contextlib.suppress(AssertionError):
                words = _IAMF.format(layout).split()
                self.add("a.mp4", convert(source, *words, name="a.mp4"))
        for options in ("info", "f:wav", "f:opus/t:0:0.5", "f:peaks"):
            response = await self.get(port, options, "a.mp4")
            self.assertEqual((415, "undecodable_source"), (response.status, response.error))
            self.assertIn("IAMF", response.document["message"], options)


class PictureTests(StreamCase):
    """Audio with pictures (D72)"""

    async def test_pictures(self) -> None:
        """Still and slow pictures of any container are no film, and change no sample."""
        port = self.start().port
        plain = await self._render_plain(port)
        frag = "-c:a alac -movflags +frag_keyframe+empty_moov"
        for name, source in {
            "slow.mp4": with_pictures("1/5", 20, "mjpeg", "a.mp4", "-c:a alac"),
            "png.mp4": with_pictures("1/5", 20, "png", "a.mp4", "-c:a alac"),
            "one.m4b": with_pictures("25", 0.04, "mjpeg", "a.mp4", "-c:a alac"),
            "tiff.mov": with_pictures("1/5", 20, "tiff", "a.mov", "-c:a alac"),
            "frag.mp4": with_pictures("1/5", 20, "mjpeg", "a.mp4", frag),
            "slow.mkv": with_pictures("1/5", 20, "mjpeg", "a.mkv", "-c:a flac"),
            "one.mkv": with_pictures("25", 0.04, "png", "a.mkv", "-c:a flac"),
            "slow.avi": with_pictures("1/5", 20, "mjpeg", "a.avi", "-c:a pcm_s16le"),
        }.items():
            self.add(name, source)
            self.assertEqual(200, (await self.get(port, "info", name)).status, name)
            whole = await self.assert_exact(port, name, "7:2.5", "12:30")
            self.assertEqual(whole, plain, name)
            self.assertEqual(200, (await self.get(port, "f:peaks", name)).status, name)

    async def test_films(self) -> None:
        """More than one picture a second, and other codecs, are 415 `video_source`."""
        port = self.start().port
        for name, source in {
            "a.mp4": with_pictures("25", 20, "mjpeg", "a.mp4"),
            "two.mkv": with_pictures("2", 20, "png", "a.mkv"),
            "tiny.mkv": with_pictures("25", 0.5, "mjpeg", "a.mkv", length=RATE // 2),
            "a.asf": with_pictures("25", 20, "mjpeg", "a.asf", "-c:a wmav2"),
            # A film's codec is none of pictures, however slow it is.
            "still.mp4": with_pictures("1/5", 5, "mpeg4", "a.mp4", "-bf 0"),
            "still.webm": with_pictures("25", 0.04, "libvpx", "a.webm", "-c:a libopus"),
        }.items():
            self.add(name, source)
            for options in ("info", "f:wav"):
                response = await self.get(port, options, name)
                self.assertEqual((415, "video_source"), (response.status, response.error), name)

    async def _render_plain(self, port: int) -> Sound:
        self.add("plain.flac", make("-c:a flac", "a.flac", LONG))
        return await self.get_sound(port, "f:wav/bd:32f", "plain.flac")


class UndecodableTests(StreamCase):
    """Audio that ffprobe describes, and that the installed ffmpeg may not decode"""

    async def test_same_answer(self) -> None:
        """`/info` is a 415 where each render is one, and a 200 where the source renders.

        Whether a codec is decoded depends on the version of ffmpeg: 5.1 has no 32-bit flac.
        """
        values = [(n * 7919 % 65536 - 32768) << 12 for n in range(4096)]
        samples = {bits: [value >> (28 - bits) for value in values] for bits in (16, 24)}
        samples[32] = values
        port, always = self.start().port, {"32.wv": True, "16.flac": True, "24.flac": True}
        sources = {f"{bits}.flac": verbatim_flac(samples[bits], bits) for bits in samples}
        m4a = make("-c:a aac", "a.m4a")
        sources |= {
            "mpegh.m4a": rename_codec(m4a, b"mhm1"),
            "ac4.m4a": rename_codec(m4a, b"ac-4"),
            "32.wv": make("-c:a wavpack -sample_fmt s32p", "a.wv"),
        }
        always |= {"mpegh.m4a": False, "ac4.m4a": False}
        for name, source in sources.items():
            self.add(name, source)
            statuses = {
                options: (await self.get(port, options, name)).status
                for options in ("info", "f:wav", "f:peaks", "f:mp3/t:0:0.05")
            }
            self.assertIn(set(statuses.values()), ({200}, {415}), (name, statuses))
            if name in always:
                self.assertEqual(statuses["info"], 200 if always[name] else 415, name)

    async def test_damaged_start(self) -> None:
        """If only its first frames are damaged, a source has an info document, and renders."""
        port = self.start().port
        for name, words, first in (
            ("a.flac", "-c:a flac", b"\xff\xf8"),
            ("a.mka", "-c:a flac", b"\xff\xf8"),
            ("a.m4a", "-c:a aac", b"mdat"),
        ):
            source = make(words, name)
            at = source.index(first) + 4
            self.add(name, source[:at] + bytes(4000) + source[at + 4000 :])
            for options in ("info", "f:wav"):
                self.assertEqual(200, (await self.get(port, options, name)).status, name)
