"""Decoding of fuzzed inputs into choices and a remainder, and assertions on messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from audioproxy.errors import Refusal

T = TypeVar("T")


class Draws:
    """Reader of choices from the start of a fuzzed input; missing bytes mean the first choice.

    :ivar rest: the unread remainder.
    """

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def byte(self) -> int:
        """Read one byte; return 0 at the end of the input."""
        first, self.rest = self.rest[:1], self.rest[1:]
        return first[0] if first else 0

    def one_of(self, choices: Sequence[T]) -> T:
        """Read one byte and return the choice that it stands for."""
        return choices[self.byte() % len(choices)]


def outcome(read: Callable[[], T], *refusals: type[Exception]) -> T | Exception:
    """Return the result of a parser, or the error if it is one of the given types."""
    try:
        return read()
    except refusals as refusal:
        return refusal


def check_words(words: str, longest: int = 600) -> None:
    """Assert that a text is printable ASCII on one line and is not too long."""
    assert words.isascii(), words
    assert words.isprintable(), words
    assert len(words) <= longest, words


def check_refusal(refusal: Exception) -> None:
    """Assert that an exception is a refusal whose message is one short sentence."""
    assert isinstance(refusal, Refusal), repr(refusal)
    check_message(refusal.message)


def check_message(message: str) -> None:
    """Assert that the message of an error document is one short sentence."""
    # A message may quote control characters of a path, which JSON escapes.
    check_words("".join("?" if ord(c) < 0x20 or ord(c) == 0x7F else c for c in message))
    assert message.endswith("."), message
