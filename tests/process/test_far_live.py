"""Sources whose blocks arrive on demand: a program reads what it would read of the whole file."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from unittest import SkipTest

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.process.cell import CellStarter
from audioproxy.process.child_limits import ChildLimits
from audioproxy.process.find_starter import find_starter
from tests.support.audio import convert_all, noise, write_wav
from tests.support.far import BLOCK, FarSource, LinkedProgram
from tests.support.programs import FFMPEG, FFPROBE
from tests.support.service import PATIENCE
from tests.support.stand_ins import compile_program
from tests.support.strategies import DETERMINISTIC
from tests.support.warm_programs import plain_program

LIMITS = ChildLimits(1 << 30).of_child(PATIENCE, None)
#: Five blocks, and part of a sixth one
CONTENT = random.Random(63).randbytes(5 * BLOCK + 2345)
WAYS = ["read", "read_chk", "readv"]
#: What an interrupted program asks for ahead of each read.
NO_BLOCK = 2**64 - 1
WAYS_AT = ["pread", "pread64", "pread_chk", "pread64_chk", "preadv", "preadv64"]


def link(case: SynchronousTestCase, program: str) -> LinkedProgram:
    """Return a linked program, for the length of a test."""
    starter, shortcomings = find_starter([], LIMITS, {})
    if not isinstance(starter, CellStarter):
        raise SkipTest(f"there is no cell: {shortcomings}")
    linked = LinkedProgram(starter, program, LIMITS)
    case.addCleanup(linked.close)
    return linked


class ReadTests(SynchronousTestCase):
    """A program in C that reads in all ways"""

    _interrupted: LinkedProgram | None = None

    def setUp(self) -> None:
        self.program = link(self, plain_program())

    def open(self, content: bytes = CONTENT, blocks: int | None = None) -> FarSource:
        """Return a source without blocks."""
        source = FarSource(content, blocks)
        self.addCleanup(source.close)
        return source

    def follow(
        self, source: FarSource, *steps: str, program: LinkedProgram | None = None
    ) -> list[tuple[int, bytes]]:
        """Return the result of each step, or a negative errno, and what was read."""
        ended = (program or self.program).run(["follow", *steps], source)
        self.assertEqual((0, b""), (ended.returncode, ended.stderr))
        rest, found = ended.stdout, []
        for step in steps:
            line, _, rest = rest.partition(b"\n")
            result, error = map(int, line.split())
            size = max(result, 0) if "read" in step.partition(":")[0] else 0
            found.append((-error if result < 0 else result, rest[:size]))
            rest = rest[size:]
        self.assertEqual(b"", rest)
        return found

    def interrupted(self) -> LinkedProgram:
        """Return a program that asks ahead of each read."""
        if self._interrupted is None:
            folder = Path(self.mktemp()).resolve()
            program = compile_program(folder, "-DREPORTS_READS", "-rdynamic")
            self._interrupted = link(self, str(program))
        return self._interrupted

    @DETERMINISTIC
    @given(st.data())
    def test_same_bytes(self, data: st.DataObject) -> None:
        """Any sequence of reads and seeks equals that of the whole file.

        In the meantime, blocks arrive, are removed, and come back: while the program waits, and
        after it has found a block, but has not read it yet.
        """
        program = self.interrupted()
        source = FarSource(CONTENT)
        blocks = st.integers(0, source.blocks - 1)
        changes = data.draw(st.lists(st.lists(st.tuples(blocks, st.booleans()), max_size=3)))
        for block in data.draw(st.sets(blocks)):
            source.put(block)

        def answer(block: int) -> int:
            for other, arrives in changes.pop() if changes else []:
                (source.put if arrives else source.punch)(other)
            if not changes and block != NO_BLOCK:
                source.put(block)
            return 0

        source.answer = answer
        # Descriptors 5 and 6 share their offset.
        offsets = {3: 0, 5: 0, 7: 0}
        steps, expected = ["open", "dup:5", "openat"], [(5, b""), (6, b""), (7, b"")]
        edges = st.builds(
            lambda block, more: max(0, block * BLOCK + more),
            st.integers(0, 6), st.integers(-3, 3),
        )  # fmt: skip
        places = st.one_of(edges, st.integers(0, len(CONTENT) + 10))
        sizes = st.one_of(edges, st.integers(0, 400_000))
        for _ in range(data.draw(st.integers(1, 8))):
            descriptor = data.draw(st.sampled_from([3, 5, 6, 7]))
            file = 5 if descriptor == 6 else descriptor
            way = data.draw(st.sampled_from(["seek", *WAYS, *WAYS_AT]))
            at, size = data.draw(places), data.draw(sizes)
            steps.append(f"{way}:{descriptor}:{size}:{at}")
            if way == "seek":
                offsets[file] = at
                expected.append((at, b""))
                continue
            start = at if way in WAYS_AT else offsets[file]
            # Those of several pieces have one more, of a single byte.
            size += way in ("readv", "preadv", "preadv64")
            read = CONTENT[start : start + size]
            expected.append((len(read), read))
            if way in WAYS:
                offsets[file] += len(read)
        try:
            self.assertEqual(expected, self.follow(source, *steps, program=program))
        finally:
            source.close()

    def test_size_becomes_known(self) -> None:
        """A source ends where its file ends when a block is there, not when it was opened."""
        source = self.open()

        def cut(block: int) -> int:
            source.put(block)
            if block == 2:
                source.file.truncate(2 * BLOCK + 10)
            return 0

        source.answer = cut
        first, last = self.follow(source, "read:3:400000", "read:3:1")
        self.assertEqual((2 * BLOCK + 10, 0), (first[0], last[0]))
        self.assertEqual(CONTENT[: 2 * BLOCK + 10], first[1])

    def test_failed_block(self) -> None:
        """A block that cannot be had is an error, behind the bytes ahead of it."""
        source = self.open()
        source.answer = lambda block: errno.EIO if block == 1 else source.put(block)
        steps = ("read:3:100000", "read:3:1", "readv:3:1", "pread:3:9:65536", "pread:3:9:131072")
        found = self.follow(source, *steps)
        self.assertEqual([BLOCK, *[-errno.EIO] * 3, 9], [result for result, _ in found])
        self.assertEqual(CONTENT[:BLOCK], found[0][1])

    def test_outside_of_the_map(self) -> None:
        """The service learns of a read behind the map, which fails whatever it answers."""
        source = self.open(blocks=1)
        source.answer = lambda block: source.put(block) if block == 0 else 0
        found = self.follow(source, "read:3:100000", "read:3:1")
        self.assertEqual([BLOCK, -errno.EIO], [result for result, _ in found])
        self.assertEqual([0, 1, 1], source.questions)

    def test_closed_socket(self) -> None:
        """Without the service, a missing block is an error, and no signal ends the program."""
        source = self.open()
        source.put(0)
        source.answer = lambda _: None
        found = self.follow(source, "pread:3:9:65536", "pread:3:9:65536", "pread:3:9:0")
        self.assertEqual([-errno.EIO, -errno.EIO, 9], [result for result, _ in found])

    def test_threads(self) -> None:
        """Threads that read at once get their own bytes, whose answers they may exchange."""
        source = self.open()
        (found,) = self.follow(source, "threads:3:330000")
        self.assertEqual(330_000, found[0])

    def test_not_mapped(self) -> None:
        """The file cannot be mapped into memory, where nothing would ask for its blocks."""
        found = self.follow(self.open(), "mmap:3", "open", "mmap:5")
        self.assertEqual([-errno.ENODEV, 5, -errno.ENODEV], [result for result, _ in found])


@cache
def sources() -> dict[str, bytes]:
    """Return sources of some blocks each."""
    sound = write_wav(noise(44_100, 44_100 * 8, 2))
    forms = {"a.flac": "", "a.mp3": "-b:a 192k", "a.m4a": "-c:a aac", "a.ogg": "-c:a libvorbis"}
    return {"a.wav": sound, **convert_all(sound, forms)}


class ProgramTests(SynchronousTestCase):
    """ffmpeg and ffprobe"""

    def compare(self, program: str, *words: str) -> None:
        """Require the same output of a program for all sources, with and without their file."""
        linked = link(self, os.path.realpath(shutil.which(program) or program))
        for name, content in sources().items():
            with tempfile.NamedTemporaryFile() as file:
                file.write(content)
                file.flush()
                whole = subprocess.run(
                    [program, *self.place(words, file.name)], capture_output=True, check=True
                )
            source = FarSource(content)
            ended = linked.run(self.place(words, "/dev/fd/3"), source)
            source.close()
            self.assertEqual((0, b""), (ended.returncode, ended.stderr), name)
            self.assertTrue(source.questions, name)
            expected = whole.stdout
            self.assertTrue(len(expected) > 30, name)
            self.assertEqual(expected, ended.stdout, name)

    def place(self, words: tuple[str, ...], path: str) -> list[str]:
        return [f"file:{path}" if word == "SOURCE" else word for word in words]

    def test_ffmpeg(self) -> None:
        """ffmpeg decodes the samples of the whole file, also from a place within it."""
        for start in (), ("-ss", "6"):
            words = ("-nostdin", "-v", "error", *start, "-i", "SOURCE", "-map", "0:a:0")
            self.compare(FFMPEG, *words, "-f", "md5", "-")

    def test_ffprobe(self) -> None:
        """ffprobe finds the same streams, packets and places."""
        words = ("-v", "error", "-show_streams", "-show_packets", "-i", "SOURCE")
        self.compare(FFPROBE, *words)
