"""Sources whose blocks arrive on demand, and programs that read them, without a reactor."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from audioproxy.media.inputs import MAP_DESCRIPTOR, QUESTIONS_DESCRIPTOR, SOURCE_DESCRIPTOR
from audioproxy.process.cell import CellStarter
from audioproxy.process.child_limits import Limits
from tests.support.linked_programs import LinkedServer
from tests.support.servers import wait

BLOCK = 1 << 16
_LIBC = ctypes.CDLL(None, use_errno=True)
# FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE
_PUNCH_HOLE = 3
# linux/fcntl.h: all that maps the file from now on can only read it.
_F_SEAL_FUTURE_WRITE = 0x10


class FarSource:
    """The service's side of a far source: a file, its map, and answers to questions.

    By default, the answer to a question is that the block is there.

    :ivar answer: given the number of a block; returns 0, an errno, or None to close the socket.
    :ivar questions: the numbers of the blocks that were asked for.
    """

    def __init__(self, content: bytes, blocks: int | None = None) -> None:
        """Lack all blocks.

        :param blocks: the length of the map; None for that of the content.
        """
        self.content = content
        self.blocks = -(-len(content) // BLOCK) if blocks is None else blocks
        self.answer: Callable[[int], int | None] = self.put
        self.questions: list[int] = []
        self._generations = [0] * self.blocks
        self._stack = ExitStack()
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self.file = self._stack.enter_context(file)
        self.file.truncate(len(content))
        self._map = os.memfd_create("map", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._stack.callback(os.close, self._map)
        os.ftruncate(self._map, self.blocks)
        self._states: mmap.mmap | bytearray = bytearray()
        if self.blocks:
            self._states = self._stack.enter_context(mmap.mmap(self._map, self.blocks))
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE
        fcntl.fcntl(self._map, fcntl.F_ADD_SEALS, seals)

    def put(self, block: int) -> int:
        """Let a block arrive, and return 0."""
        if not self._states[block]:
            at = block * BLOCK
            os.pwrite(self.file.fileno(), self.content[at : at + BLOCK], at)
            self._generations[block] = self._generations[block] % 255 + 1
            self._states[block] = self._generations[block]
        return 0

    def punch(self, block: int) -> None:
        """Remove a block, and leave a hole."""
        self._states[block] = 0
        at = ctypes.c_long(block * BLOCK)
        if _LIBC.fallocate(self.file.fileno(), _PUNCH_HOLE, at, ctypes.c_long(BLOCK)):
            raise OSError(ctypes.get_errno(), "the file system has no holes")

    def is_intact(self) -> bool:
        """Return whether all blocks are there, and nobody else has written to file or map."""
        content = os.pread(self.file.fileno(), len(self.content) + 1, 0)
        return content == self.content and bytes(self._generations) == bytes(self._states[:])

    @contextmanager
    def inherit(self) -> Iterator[dict[int, int]]:
        """Return the descriptors of one child; answer its questions until the end of the block."""
        with ExitStack() as stack:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(ours)
            stack.enter_context(theirs)
            answers = threading.Thread(target=self._answer, args=(ours,))
            answers.start()
            stack.callback(answers.join)
            stack.callback(ours.shutdown, socket.SHUT_RDWR)
            opened = {SOURCE_DESCRIPTOR: self.file.fileno(), MAP_DESCRIPTOR: self._map}
            for number, descriptor in opened.items():
                opened[number] = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, opened[number])
            yield opened | {QUESTIONS_DESCRIPTOR: theirs.fileno()}

    def _answer(self, ours: socket.socket) -> None:
        while question := ours.recv(8):
            block = int.from_bytes(question, "little")
            self.questions.append(block)
            if (answer := self.answer(block)) is None:
                ours.shutdown(socket.SHUT_RDWR)
            else:
                ours.send(answer.to_bytes(4, "little"))

    def close(self) -> None:
        """Remove the file and its map."""
        self._stack.close()


class LinkedProgram(LinkedServer):
    """A program with a fork server, whose children are confined."""

    def __init__(self, cells: CellStarter, program: str, limits: Limits) -> None:
        """Start the server, and wait until the program is linked."""
        self._cells, self._program, self._limits = cells, program, limits
        super().__init__(cells.server_command(program, limits), cells.library)
        assert self.is_ready, "the program has ended"

    def run(self, words: Sequence[str], source: FarSource) -> subprocess.CompletedProcess[bytes]:
        """Run a child with a source to its end."""
        command = [self._program, *words]
        with (
            source.inherit() as inherited,
            open(os.devnull, "rb") as null,
            tempfile.TemporaryFile() as stdout,
            tempfile.TemporaryFile() as stderr,
        ):
            descriptors = {0: null.fileno(), 1: stdout.fileno(), 2: stderr.fileno(), **inherited}
            request = self._cells.request(command, descriptors, self._limits)
            status = wait(self.fork(request, descriptors))
            stdout.seek(0)
            stderr.seek(0)
            return subprocess.CompletedProcess(command, status, stdout.read(), stderr.read())
