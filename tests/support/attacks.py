"""What leads an unguarded ffmpeg astray, and witnesses of where it went.

The crafted files all name another file or host and are small enough to read. `Watch` sees each
opening of a file in a folder, `plain` is ffmpeg without the service's guards, and `Recorder`
puts a program ahead of ffmpeg and ffprobe that writes down how each of them is called.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.inotify import IN_OPEN, INotify
from twisted.python.filepath import FilePath

from tests.support.programs import FFMPEG
from tests.support.service import Process, until

reactor: Any = _reactor


# Crafted files


def playlist(*urls: str, more: str = "") -> bytes:
    """Return an HLS playlist of segments."""
    lines = ["#EXTM3U", "#EXT-X-TARGETDURATION:9", *filter(None, [more])]
    lines += [line for url in urls for line in ("#EXTINF:9,", url)]
    return "\n".join([*lines, "#EXT-X-ENDLIST", ""]).encode()


def master_playlist(url: str) -> bytes:
    """Return an HLS playlist of playlists."""
    return f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{url}\n".encode()


def manifest(url: str) -> bytes:
    """Return a DASH manifest with one representation, a whole MP4 file."""
    return f"""<?xml version="1.0"?>
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S"
 minBufferTime="PT1S" profiles="urn:mpeg:dash:profile:isoff-on-demand:2011"><Period>
<AdaptationSet mimeType="audio/mp4" contentType="audio">
<Representation id="1" bandwidth="64000" codecs="mp4a.40.2" audioSamplingRate="44100">
<BaseURL>{url}</BaseURL></Representation></AdaptationSet></Period></MPD>""".encode()


def concat_script(*names: str) -> bytes:
    """Return a script of the concat demuxer."""
    return "\n".join(["ffconcat version 1.0", *(f"file '{name}'" for name in names), ""]).encode()


def behind_tag(content: bytes) -> bytes:
    """Return a file that begins as an mp3 does, with an ID3 tag, and goes on as something else."""
    return b"ID3\x03\0\0\0\0\0\x0a" + bytes(10) + content


def _atom(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", len(body) + 8, kind) + body


def _full_atom(kind: bytes, *parts: bytes) -> bytes:
    return _atom(kind, bytes(4), *parts)


def movie_elsewhere(path: str, length: int, skip: int = 44) -> bytes:
    """Return a QuickTime movie whose samples stand in another file, a mono wav at 44.1 kHz.

    :param path: absolute; it becomes the alias of the movie's one data reference.
    :param length: how many samples there are.
    :param skip: where they start.
    """
    name = path.encode()
    name += bytes(len(name) % 2)
    alias = bytes(10) + bytes(1 + 27) + bytes(12) + bytes(1 + 63) + bytes(16)
    alias += struct.pack(">HH", 0, 0) + bytes(16)
    alias += struct.pack(">HH", 2, len(name)) + name + struct.pack(">HH", 0xFFFF, 0)
    reference = _full_atom(b"dref", struct.pack(">I", 1), _full_atom(b"alis", alias))
    sound = struct.pack(">6xH8xHHHHI", 1, 1, 16, 0, 0, 44100 << 16)
    table = _atom(
        b"stbl",
        _full_atom(b"stsd", struct.pack(">I", 1), _atom(b"sowt", sound)),
        _full_atom(b"stts", struct.pack(">III", 1, length, 1)),
        _full_atom(b"stsc", struct.pack(">IIII", 1, 1, length, 1)),
        _full_atom(b"stsz", struct.pack(">II", 2, length)),
        _full_atom(b"stco", struct.pack(">II", 1, skip)),
    )
    media = _atom(
        b"mdia",
        _full_atom(b"mdhd", struct.pack(">8xIIHH", 44100, length, 0, 0)),
        _full_atom(b"hdlr", b"mhlr", b"soun", bytes(13)),
        _atom(b"minf", _full_atom(b"smhd", bytes(4)), _atom(b"dinf", reference), table),
    )
    header = struct.pack(">8xII", 44100, length) + bytes(80)
    track = _full_atom(b"tkhd", struct.pack(">8xI4xI", 1, length), bytes(60))
    kind = _atom(b"ftyp", b"qt  ", bytes(4), b"qt  ")
    return kind + _atom(b"moov", _full_atom(b"mvhd", header), _atom(b"trak", track, media))


# Witnesses


class Watch:
    """Sees each opening of a file in a folder, by whatever name and whichever process."""

    def __init__(self, case: Any, folder: Path) -> None:
        self._folder = folder
        self._seen: list[str] = []
        self._marks = 0
        notifier = INotify()
        notifier.startReading()
        case.addCleanup(notifier.loseConnection)
        notifier.watch(FilePath(str(folder)), IN_OPEN, callbacks=[self._note])

    def _note(self, _: object, path: FilePath[Any], mask: int) -> None:
        self._seen.append(os.path.basename(os.fsdecode(path.path)))

    async def opened(self) -> set[str]:
        """Return the names of all files that were opened since the last time."""
        self._marks += 1
        mark = f"mark-{self._marks}"
        # What was opened before this is told of before it.
        (self._folder / mark).touch()
        await until(lambda: mark in self._seen, "the mark to be seen")
        seen, self._seen = set(self._seen), []
        return seen - {mark, self._folder.name}


async def plain(source: str, *words: str, folder: Path | None = None) -> bytes:
    """Decode a source with ffmpeg as it comes and return what it puts out, which may be nothing.

    :param words: ahead of the source.
    :param folder: where it runs.
    """
    command = [FFMPEG, "-nostdin", "-v", "error", *words, "-i", source, "-f", "s16le", "pipe:1"]
    process = Process()
    environ = {"PATH": os.environ["PATH"]}
    where = None if folder is None else str(folder)
    reactor.spawnProcess(process, command[0], command, env=environ, path=where)
    await process.end()
    return bytes(process.out)


@dataclass(frozen=True, slots=True)
class Run:
    """How a program was called.

    :ivar words: its command line.
    :ivar environment: all of it.
    :ivar descriptors: the numbers that it inherited.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    descriptors: frozenset[int]

    def after(self, option: str) -> list[str]:
        """Return what follows an option, for each time that it is there."""
        pairs = zip(self.words, self.words[1:], strict=False)
        return [value for word, value in pairs if word == option]

    @property
    def before_input(self) -> tuple[str, ...]:
        """The words ahead of the only input."""
        return self.words[: self.words.index("-i")]


# The shell itself has its script open, on a descriptor that its children do not get; a child that
# lists them all has the folder open.
_RECORDER = """#!/bin/sh
log=$(mktemp {folder}/XXXXXXXXXX)
cat /proc/$$/environ > $log.environment
ls /proc/self/fd > $log.descriptors
cat /proc/$$/cmdline > $log.words
exec {program} "$@"
"""


class Recorder:
    """A folder of programs that write down how they are called and become the real ones.

    :ivar path: a PATH that has them first.
    """

    def __init__(self, folder: Path) -> None:
        programs, self._log = folder / "programs", folder / "log"
        for made in (programs, self._log):
            made.mkdir(parents=True)
        for name in ("ffmpeg", "ffprobe"):
            text = _RECORDER.format(folder=self._log, program=shutil.which(name))
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.path = f"{programs}:{os.environ['PATH']}"

    def runs(self) -> list[Run]:
        """Return all runs so far."""
        return [self._read(path.with_suffix("")) for path in self._log.glob("*.words")]

    def inputs(self) -> list[Run]:
        """Return those that opened a source."""
        return [run for run in self.runs() if "-i" in run.words]

    @staticmethod
    def _read(log: Path) -> Run:
        shell, script, *words = _split(log.with_suffix(".words").read_bytes())
        assert shell.endswith("sh"), shell
        pairs = (
            line.partition("=") for line in _split(log.with_suffix(".environment").read_bytes())
        )
        numbers = {int(line) for line in log.with_suffix(".descriptors").read_text().split()}
        return Run(
            (os.path.basename(script), *words),
            {name: value for name, _, value in pairs},
            # That of the listing itself is the highest.
            frozenset(numbers - {max(numbers)}),
        )


def _split(text: bytes) -> Iterable[str]:
    return text.decode("utf-8", "surrogateescape").removesuffix("\0").split("\0")
