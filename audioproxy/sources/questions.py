"""The socket at which one child asks for blocks of its source: see ``cell.c``."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

_QUESTION = struct.Struct("<Q")
_ANSWER = struct.Struct("i")
# Seconds before the next question of a child that has asked for a block which is there. It may have
# come that moment; but a child could ask without end.
_PAUSE = 0.001
_AGAIN, _FAILED = _ANSWER.pack(0), _ANSWER.pack(errno.EIO)


@implementer(IReadDescriptor)
class Questions:
    """Answers the questions of one child, one at a time, until it has closed its end.

    :param bring: brings a block; the Deferred fails where that is impossible, or there is none.
    :param ended: called once when no more questions come, with whether that is a fault: the
        child may read on, and take the next failure for the end of its source.
    :ivar theirs: the end of the child. It is closed by `started`.
    """

    def __init__(
        self, reactor: Any, bring: Callable[[int], Deferred[None]], ended: Callable[[bool], object]
    ) -> None:
        self._reactor = reactor
        self._bring = bring
        self._ended = ended
        self._bringing: Deferred[None] | None = None
        self._pause: IDelayedCall | None = None
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        reactor.addReader(self)

    def started(self) -> None:
        """Close the end of the child, which has its own descriptor of it."""
        self.theirs.close()

    def fileno(self) -> int:
        return self._ours.fileno()

    def logPrefix(self) -> str:
        return "questions"

    def doRead(self) -> None:
        """Read one question. No more are read until it is answered."""
        try:
            # A longer message is cut off, and is none.
            question = self._ours.recv(_QUESTION.size + 1)
        except BlockingIOError:
            return
        except OSError:
            question = b""
        if len(question) != _QUESTION.size:
            self._close(is_fault=bool(question))
            return
        (block,) = _QUESTION.unpack(question)
        self._reactor.removeReader(self)
        self._bringing = bringing = self._bring(block)
        seconds = _PAUSE if bringing.called else 0
        bringing.addCallbacks(lambda _: self._answer(_AGAIN, seconds), self._refuse)

    def connectionLost(self, reason: Failure) -> None:
        self._close(is_fault=True)

    def close(self) -> None:
        self._close(is_fault=False)

    def _close(self, *, is_fault: bool) -> None:
        if self._ours.fileno() < 0:
            return
        self._reactor.removeReader(self)
        self._ours.close()
        if self._pause is not None and self._pause.active():
            self._pause.cancel()
        bringing, self._bringing = self._bringing, None
        if bringing is not None:
            bringing.cancel()
        self._ended(is_fault)

    def _refuse(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._answer(_FAILED, _PAUSE)

    def _answer(self, answer: bytes, seconds: float) -> None:
        self._bringing = None
        if self._ours.fileno() < 0:
            return
        try:
            self._ours.send(answer)
        except OSError as error:
            # It has ended, or floods its own socket.
            self._close(is_fault=isinstance(error, BlockingIOError))
            return
        if seconds:
            self._pause = self._reactor.callLater(seconds, self._reactor.addReader, self)
        else:
            self._reactor.addReader(self)
