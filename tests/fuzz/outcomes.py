"""The outcome of a parser, and an assertion on messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def outcome(read: Callable[[], T], *refusals: type[Exception]) -> T | Exception:
    """Return the result of a parser, or the error if it is one of the given types."""
    try:
        return read()
    except refusals as refusal:
        return refusal


def check_message(message: str) -> None:
    """Assert that the message of an error document is one short sentence."""
    # A message may quote control characters of a path, which JSON escapes.
    shown = "".join("?" if ord(c) < 0x20 or ord(c) == 0x7F else c for c in message)
    assert shown.isascii() and shown.isprintable(), message
    assert message.endswith(".") and len(message) <= 600, message
