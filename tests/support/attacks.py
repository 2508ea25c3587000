"""Crafted files that mislead an unguarded ffmpeg, and recorders of calls and opened files."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.inotify import IN_OPEN, INotify
from twisted.python.filepath import FilePath

from tests.support.mp4 import box, full_box
from tests.support.programs import FFMPEG, write_script
from tests.support.service import Process, until

reactor: Any = _reactor


# Crafted files


def playlist(*urls: str, more: str = "") -> bytes:
    """Return an HLS media playlist with these segments."""
    lines = ["#EXTM3U", "#EXT-X-TARGETDURATION:9", *filter(None, [more])]
    lines += [line for url in urls for line in ("#EXTINF:9,", url)]
    return "\n".join([*lines, "#EXT-X-ENDLIST", ""]).encode()


def master_playlist(url: str) -> bytes:
    """Return an HLS master playlist with one media playlist."""
    return f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{url}\n".encode()


def manifest(url: str) -> bytes:
    """Return a DASH manifest whose only representation is a whole MP4 file."""
    return f"""<?xml version="1.0"?>
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S"
 minBufferTime="PT1S" profiles="urn:mpeg:dash:profile:isoff-on-demand:2011"><Period>
<AdaptationSet mimeType="audio/mp4" contentType="audio">
<Representation id="1" bandwidth="64000" codecs="mp4a.40.2" audioSamplingRate="44100">
<BaseURL>{url}</BaseURL></Representation></AdaptationSet></Period></MPD>""".encode()


def concat_script(*names: str) -> bytes:
    """Return a script of the concat demuxer."""
    return "\n".join(["ffconcat version 1.0", *(f"file '{name}'" for name in names), ""]).encode()


def after_id3_tag(content: bytes) -> bytes:
    """Return a file that starts with an ID3 tag, as an mp3 does, and continues with ``content``."""
    return b"ID3\x03\0\0\0\0\0\x0a" + bytes(10) + content


def _full(kind: bytes, layout: str, *fields: int | bytes, rest: bytes = b"") -> bytes:
    return full_box(kind, struct.pack(f">{layout}", *fields) + rest)


def movie_with_external_data(path: str, length: int) -> bytes:
    """Return a QuickTime movie whose samples are in another file, a mono wav at 44.1 kHz.

    :param path: absolute path of that file; it is the alias of the movie's only data reference.
    :param length: number of samples.
    """
    name = path.encode()
    name += bytes(len(name) % 2)
    alias = bytes(150) + struct.pack(">HH", 2, len(name)) + name + struct.pack(">HH", 0xFFFF, 0)
    reference = _full(b"dref", "I", 1, rest=_full(b"alis", "", rest=alias))
    sound = box(b"sowt", struct.pack(">6xH8xHHHHI", 1, 1, 16, 0, 0, 44100 << 16))
    table = box(
        b"stbl",
        _full(b"stsd", "I", 1, rest=sound),
        _full(b"stts", "III", 1, length, 1),
        _full(b"stsc", "IIII", 1, 1, length, 1),
        _full(b"stsz", "II", 2, length),
        _full(b"stco", "II", 1, 44),  # offset of the wav's first sample
    )
    media = box(
        b"mdia",
        _full(b"mdhd", "8xII4x", 44100, length),
        _full(b"hdlr", "4s4s13x", b"mhlr", b"soun"),
        box(b"minf", _full(b"smhd", "4x"), box(b"dinf", reference), table),
    )
    header = _full(b"mvhd", "8xII80x", 44100, length)
    track = _full(b"tkhd", "8xI4xI60x", 1, length)
    kind = box(b"ftyp", b"qt  ", bytes(4), b"qt  ")
    return kind + box(b"moov", header, box(b"trak", track, media))


# Recorders


class Watch:
    """Recorder of the names of all files in a folder that any process opens."""

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
        """Return the names of all files that were opened since the last call."""
        self._marks += 1
        mark = f"mark-{self._marks}"
        # inotify reports events in order, so the mark comes last.
        (self._folder / mark).touch()
        await until(lambda: mark in self._seen, "the inotify event of the mark")
        seen, self._seen = set(self._seen), []
        return seen - {mark, self._folder.name}


async def decode_unguarded(source: str, *words: str, folder: Path | None = None) -> bytes:
    """Decode a source with an unguarded ffmpeg and return the output, which may be empty.

    :param words: options ahead of the source.
    :param folder: the working directory.
    """
    command = [FFMPEG, "-nostdin", "-v", "error", *words, "-i", source, "-f", "s16le", "pipe:1"]
    process, environ = Process(), {"PATH": os.environ["PATH"]}
    reactor.spawnProcess(process, FFMPEG, command, env=environ, path=folder and str(folder))
    await process.end()
    return bytes(process.out)


async def decode_playlist(source: str, *words: str) -> bytes:
    """Decode a playlist, as `decode_unguarded` does.

    ffmpeg 5 detects HLS under any name, ffmpeg 7 only as .m3u8 or by its media type.
    """
    decoded = await decode_unguarded(source, *words)
    return decoded or await decode_unguarded(source, "-f", "hls", *words)


@dataclass(frozen=True, slots=True)
class Run:
    """Record of one call of a program: its command line, environment and inherited descriptors.

    :ivar environment: all variables except those that a shell adds.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    descriptors: frozenset[int]

    def after(self, option: str) -> list[str]:
        """Return the values of all occurrences of an option."""
        pairs = zip(self.words, self.words[1:], strict=False)
        return [value for word, value in pairs if word == option]

    @property
    def before_input(self) -> tuple[str, ...]:
        """The command line ahead of the only input."""
        return self.words[: self.words.index("-i")]


# ``ls`` lists its own descriptors. It inherits those of the shell except for the script, which only
# the shell has open. Its list also has the descriptor of the listed folder.
_RECORDER = """#!/bin/sh
log=$(mktemp {folder}/XXXXXXXXXX)
cat /proc/$$/environ > $log.environment
ls /proc/self/fd > $log.descriptors
cat /proc/$$/cmdline > $log.words
exec {program} "$@"
"""


class Recorder:
    """Folder of scripts that record how they are called and then exec the real programs.

    :ivar path: a PATH in which the scripts come first.
    """

    def __init__(self, folder: Path) -> None:
        programs, self._log = folder / "programs", folder / "log"
        self._log.mkdir(parents=True)
        for name in ("ffmpeg", "ffprobe"):
            text = _RECORDER.format(folder=self._log, program=shutil.which(name))
            write_script(programs / name, text)
        self.path = f"{programs}:{os.environ['PATH']}"

    def runs(self) -> list[Run]:
        """Return the records of all calls so far."""
        return [_read_run(path.with_suffix("")) for path in self._log.glob("*.words")]

    def inputs(self) -> list[Run]:
        """Return the records of the calls that opened a source."""
        return [run for run in self.runs() if "-i" in run.words]


def _read_run(log: Path) -> Run:
    def read(suffix: str) -> list[str]:
        text = log.with_suffix(suffix).read_bytes().decode("utf-8", "surrogateescape")
        return text.removesuffix("\0").split("\0")

    shell, script, *words = read(".words")
    assert shell.endswith("sh"), shell
    pairs = (line.partition("=") for line in read(".environment"))
    numbers = {int(line) for line in log.with_suffix(".descriptors").read_text().split()}
    return Run(
        (os.path.basename(script), *words),
        {name: value for name, _, value in pairs if name not in ("PWD", "_")},
        # The highest descriptor is the folder that ls itself has open.
        frozenset(numbers - {max(numbers)}),
    )
