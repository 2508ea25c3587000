"""Info documents of real files, from the whole service with a real ffprobe."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.audio import convert_all
from tests.support.service import ServiceCase, fetch, generate_all, signed

#: Duration of every sound below, in seconds.
LENGTH = 0.5

PICTURE = "-map 0 -map 2 -c:v mjpeg -pix_fmt yuvj420p -disposition:v attached_pic"
FILM = "-map 0 -map 2 -pix_fmt yuv420p -c:v"
SURROUND = "-af pan=5.1|FL=c0|FR=c0|FC=c0|LFE=c0|BL=c0|BR=c0"


@dataclass(frozen=True)
class Kind:
    """File, its ffmpeg options for a mono tone at 44.1 kHz, and values of its info document.

    :ivar tolerance: seconds by which the duration may differ from that of the tone.
    :ivar bitrate: expected bits per second, where it follows from the format.
    :ivar stated: the container states its duration, or it follows from a constant bit rate.
    """

    name: str
    ffmpeg_options: str
    form: str
    depth: int | None = None
    tolerance: float = 0.000001
    bitrate: int | None = None
    rate: int = 44100
    channels: int = 1
    stated: bool = True


KINDS = (
    Kind("8.wav", "-c:a pcm_u8", "wav", 8, bitrate=8 * 44100),
    Kind("16.wav", "-c:a pcm_s16le", "wav", 16, bitrate=16 * 44100),
    Kind("24.wav", "-c:a pcm_s24le", "wav", 24, bitrate=24 * 44100),
    Kind("32.wav", "-c:a pcm_s32le", "wav", 32, bitrate=32 * 44100),
    Kind("32f.wav", "-c:a pcm_f32le", "wav", 32, bitrate=32 * 44100),
    Kind("rf64.wav", "-rf64 always", "wav", 16, bitrate=16 * 44100),
    # ffprobe derives the duration of these two from their size, as if the header were audio.
    Kind("a.w64", "", "w64", 16, 0.001, 16 * 44100),
    Kind("a.caf", "-c:a pcm_s16be", "caf", 16, 0.001, 16 * 44100),
    Kind("16.flac", "", "flac", 16),
    Kind("96.flac", "-ar 96000 -sample_fmt s32", "flac", 24, rate=96000),
    # Without an encoder's header, an MP3 counts whole frames and the delay. The bit rate is that of
    # the whole file, including the headers.
    Kind("cbr.mp3", "-b:a 128k", "mp3"),
    Kind("cbr-bare.mp3", "-b:a 128k -write_xing 0 -id3v2_version 0", "mp3", None, 0.06, 128_000),
    Kind("vbr.mp3", "-q:a 4", "mp3"),
    # Without a Xing header, the duration of a VBR file would be a guess.
    Kind("vbr-bare.mp3", "-q:a 4 -write_xing 0 -id3v2_version 0", "mp3", stated=False),
    Kind("vorbis.ogg", "-c:a libvorbis", "ogg"),
    Kind("flac.ogg", "-c:a flac", "ogg", 16),
    Kind("a.opus", "-c:a libopus", "opus", None, 0.01, rate=48000),
    Kind("opus.ogg", "-c:a libopus", "opus", None, 0.01, rate=48000),
    Kind("aac.m4a", "-c:a aac", "m4a"),
    Kind("aac.mp4", "-c:a aac", "m4a"),
    Kind("alac.m4a", "-c:a alac -sample_fmt s16p", "m4a", 16),
    Kind("alac24.m4a", "-c:a alac -sample_fmt s32p", "m4a", 24),
    # ADTS and LOAS have no duration field.
    Kind("a.aac", "-c:a aac", "aac", stated=False),
    Kind("a.loas", "-c:a aac -f latm", "loas", stated=False),
    Kind("16.aiff", "", "aiff", 16, bitrate=16 * 44100),
    Kind("24.aiff", "-c:a pcm_s24be", "aiff", 24, bitrate=24 * 44100),
    Kind("flac.mka", "-c:a flac", "matroska", 16),
    Kind("24.mka", "-c:a pcm_s24le", "matroska", 24),
    Kind("a.webm", "-c:a libopus", "matroska", None, 0.02, rate=48000),
    Kind("a.wv", "", "wv", 16),
    Kind("a.wma", "-c:a wmav2", "asf", None, 0.05),
    Kind("a.tta", "", "tta", 16),
    Kind("a.au", "", "au", 16),
    Kind("51.wav", SURROUND, "wav", 16, channels=6, bitrate=6 * 16 * 44100),
    Kind("a.dts", "-c:a dca -strict -2 -ar 48000", "dts", None, 0.05, rate=48000),
    Kind("51.ac3", f"{SURROUND} -c:a ac3", "ac3", None, 0.05, channels=6),
    # Containers of films, without video.
    Kind("a.ts", "-c:a mp2 -f mpegts", "mpegts", None, 0.05),
    Kind("a.mpg", "-c:a mp2 -f mpeg", "mpeg", None, 0.05),
    Kind("a.avi", "-c:a mp3", "avi", None, 0.05),
    Kind("a.flv", "-c:a mp3", "flv", None, 0.05),
    Kind("a.mxf", "-c:a pcm_s16le -ar 48000 -f mxf_opatom", "mxf", 16, 0.05, rate=48000),
    # Cover art is not video, and adds no fields.
    Kind("cover.mp3", PICTURE, "mp3"),
    Kind("cover.flac", PICTURE, "flac", 16),
    Kind("cover.m4a", PICTURE, "m4a"),
    # The document describes the first stream; the other one is shorter and has half the sample
    # rate.
    Kind("two.mka", "-map 0 -map 1 -c:a flac", "matroska", 16),
    Kind("two.m4a", "-map 0 -map 1 -c:a aac", "m4a"),
    Kind("two-swapped.mka", "-map 1 -map 0 -c:a flac", "matroska", 16, rate=22050),
)

#: Files with a genuine video stream; the last one has no audio.
FILMS = {
    "film.mp4": f"{FILM} mpeg4 -c:a aac",
    "film.webm": f"{FILM} libvpx -c:a libopus",
    "film.avi": f"{FILM} mpeg4 -c:a mp3",
    "film.mpg": f"{FILM} mpeg2video -r 25 -c:a mp2",
    "film.ts": f"{FILM} mpeg2video -r 25 -c:a mp2",
    "film.flv": f"{FILM} flv -c:a mp3",
    # MXF needs the video stream first.
    "film.mxf": "-map 2 -map 0 -r 25 -c:v mpeg2video -c:a pcm_s16le -ar 48000",
    "silent.mp4": "-map 2 -c:v mpeg4",
}


@cache
def generate_files() -> Path:
    """Make all files above in one run of ffmpeg, and return their folder."""
    sine = "-f lavfi -i sine=frequency={}:sample_rate={}:duration={}"
    words = [*sine.format(440, 44100, LENGTH).split(), *sine.format(880, 22050, LENGTH / 2).split()]
    words += "-f lavfi -i color=s=32x32:r=25:d=0.2".split()
    rows = {row.name: row.ffmpeg_options for row in KINDS} | FILMS
    outputs = {
        name: [*([] if "-map" in options else ["-map", "0"]), *options.split()]
        for name, options in rows.items()
    }
    place = Path("sounds/info").resolve()
    generate_all(place, outputs, *words)
    return place


def info(name: str) -> bytes:
    """Return the signed path of a file's info document."""
    return signed(f"/info/plain/local://{name}")


class FileTests(ServiceCase):
    """Info documents and refusals by kind of file."""

    async def test_kinds(self) -> None:
        """Each kind of audio file has a correct info document (Info document)."""
        port = self.start(max_src_bytes=10).port
        for row in KINDS:
            size = self.add(row.name, generate_files() / row.name).stat().st_size
            response = await fetch(port, info(row.name))
            self.assertEqual(200, response.status, row.name)
            document = response.document
            stated = [document.pop(name) for name in ("duration", "bitrate") if name in document]
            document.pop("tags", None)
            expected = {"format": row.form, "sample_rate": row.rate, "channels": row.channels}
            expected |= {"size": size} | ({"bit_depth": row.depth} if row.depth else {})
            self.assertEqual(expected, document, row.name)
            self.assertEqual(2 if row.stated else 0, len(stated), row.name)
            if not row.stated:
                continue
            duration, bitrate = stated
            self.assertIs(float, type(duration))
            self.assertApproximates(LENGTH, duration, row.tolerance, row.name)
            self.assertIs(int, type(bitrate))
            self.assertApproximates(8 * size / duration, bitrate, 0.01 * bitrate, row.name)
            if row.bitrate is not None:
                self.assertApproximates(row.bitrate, bitrate, 0.01 * bitrate, row.name)

    async def test_refused(self) -> None:
        """Video files give 415 video_source; files without audio give 415 undecodable_source.

        `tests.media.test_odd_sources_live` has more of the latter.
        """
        rows = {name: ("video_source", generate_files() / name) for name in FILMS}
        text: Any = ("undecodable_source", b"No sound, but words.\n" * 500)
        port = self.start().port
        for name, (code, data) in (rows | {"text.mp3": text}).items():
            self.add(name, data)
            response = await fetch(port, info(name))
            self.assertEqual((415, code), (response.status, response.error), name)
            self.assertEqual(b"max-age=10", response["cache-control"])
            self.assertIsNone(response["etag"])


# Tags

REPLACEMENT = "\ufffd"
#: What takes the place of words of the same length: control characters, and what is not UTF-8.
DAMAGE = {b"NOT.UTF8": b"ab\xff\xfe\xed\xa0\x80c", b"CONTROLS": b'a\n\x01\x1b[0m"'}
CONTROLS = DAMAGE[b"CONTROLS"].decode()
DAMAGED = f"ab{REPLACEMENT * 3}c"
#: For each file the options of its tags, and those of its info document.
TAGGED: dict[str, tuple[str, dict[str, str]]] = {
    "tags.wav": ("", {}),
    "tags.flac": ("-metadata kNOT.UTF8=x", {f"k{DAMAGED}": "x"}),
    "tags.mp3": ("-id3v2_version 4", {}),
    # ASCII is written as Latin-1, in which all bytes are characters.
    "latin.mp3": ("-id3v2_version 3", {"title": b"ab\xff\xfe\xed\xa0\x80c".decode("latin-1")}),
    "1.mp3": ("-id3v2_version 0", {}),
    # The service reads at most one megabyte of ffprobe's output, and then asks for some tags.
    "book.flac": ("-map_metadata 1", {"title": "T"}),
    "book.mp3": ("-map_metadata 1", {"title": "T"}),
    "book.oga": ("-map_metadata 1 -c:a libvorbis", {"title": "T", "encoder": "Lavc libvorbis"}),
}


@cache
def tagged_files() -> dict[str, bytes]:
    """Return files with unusual, broken or huge tags."""
    huge = generate_files() / "metadata"
    # The title comes first, since the rest exceeds what is read of ffprobe's output.
    huge.write_text(";FFMETADATA1\ntitle=T\nlyrics=" + "x" * 2_000_000 + "\n")
    given = "-bitexact -map 0 -metadata title=NOT.UTF8 -metadata artist=CONTROLS"
    forms = {
        name: f"-bitexact -map 0 {words}" if name.startswith("book") else f"{given} {words}"
        for name, (words, _) in TAGGED.items()
    }
    files = convert_all((generate_files() / "16.wav").read_bytes(), forms, f"-i {huge}")
    # ID3v1, without album, year, comment, track and genre.
    files["1.mp3"] += b"TAG" + b"NOT.UTF8".ljust(30, b"\0") + b"CONTROLS".ljust(94, b"\0") + b"\xff"
    for name in files:
        for word, damage in DAMAGE.items():
            files[name] = files[name].replace(word, damage)
    return files


class TagTests(ServiceCase):
    """Tags (Info document; D24)"""

    async def test_tags(self) -> None:
        """An info document is valid and has all other fields, whatever the file's tags are."""
        port = self.start().port
        for name, data in tagged_files().items():
            self.add(name, data)
            response = await fetch(port, info(name))
            self.assertEqual(200, response.status, name)
            self.assertTrue(response.body.isascii())
            document = response.document
            damaged = {} if name.startswith("book") else {"title": DAMAGED, "artist": CONTROLS}
            self.assertEqual(damaged | TAGGED[name][1], document.pop("tags", {}), name)
            self.assertEqual(44100, document["sample_rate"])
            self.assertEqual(len(data), document["size"])

    async def test_file_with_huge_tags_is_rendered(self) -> None:
        """A file renders even if its tags are too large to be read."""
        self.add("plain.wav", generate_files() / "16.wav")
        self.add("book.flac", tagged_files()["book.flac"])
        port = self.start(variant_store=None).port
        bodies = set()
        for name in ("plain.wav", "book.flac"):
            response = await fetch(port, signed(f"/f:wav/plain/local://{name}"))
            self.assertEqual((200, True), (response.status, response.complete))
            bodies.add(response.body)
        self.assertEqual(1, len(bodies))
