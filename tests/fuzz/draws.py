"""How one string of bytes becomes choices, parts and a rest, so that any engine can drive it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from audioproxy.errors import Refusal

T = TypeVar("T")


class Draws:
    """Reads choices off the front of a fuzzed input; a short input makes the first choices.

    :ivar rest: what was not read yet.
    """

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def byte(self) -> int:
        """Return one byte."""
        first, self.rest = self.rest[:1], self.rest[1:]
        return first[0] if first else 0

    def one_of(self, choices: Sequence[T]) -> T:
        """Return one of several."""
        return choices[self.byte() % len(choices)]


def outcome(read: Callable[[], T], *refusals: type[Exception]) -> T | Exception:
    """Return what a reader comes to: a value, or one of the errors that it may raise."""
    try:
        return read()
    except refusals as refusal:
        return refusal


def check_words(words: str, longest: int = 600) -> None:
    """Assert that a text goes into one line, of a document or a log, as it is."""
    assert words.isascii(), words
    assert words.isprintable(), words
    assert len(words) <= longest, words


#: The message of a refusal quotes the control characters of a segment as they are, since JSON
#: escapes them. False requires that a client who prints the message is safe from them, too.
RAW_CONTROLS_QUOTED = True


def check_refusal(refusal: Exception) -> None:
    """Assert that what a client is told is a short sentence."""
    assert isinstance(refusal, Refusal), repr(refusal)
    check_message(refusal.message)


def check_message(message: str) -> None:
    """Assert that the message of an error document is one short sentence."""
    if RAW_CONTROLS_QUOTED:
        message = "".join("?" if ord(c) < 0x20 or ord(c) == 0x7F else c for c in message)
    check_words(message)
    assert message.endswith("."), message
