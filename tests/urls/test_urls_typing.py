"""An application that signs URLs. `make types` checks it, so it shows what type checkers accept."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.urls import InvalidOptions, Seconds, Signer, SourceLike, Variant, https, local, s3

SIGNER = Signer(bytes(32), b"\x01", "https://audio.example")
SOURCES: list[SourceLike] = [
    *(local("a.wav"), local(Path("a.wav")), s3("masters", "a.wav"), https("https://h/a b.wav")),
    *("local://a.wav", b"local://a.wav"),
]
START: Seconds = 0.1 + 0.2
NUMBERS: list[float] = [0.5, 2]
END = datetime(2100, 1, 1, tzinfo=UTC)


def variants() -> Iterator[Variant]:
    """Yield variants with numbers of every type."""
    yield Variant(f="opus", br=96, q=None, t=START, fade=NUMBERS)
    yield Variant(t=(START, timedelta(seconds=5)), fade=[timedelta(seconds=1), 2])
    yield Variant(q=2.5, t=[Decimal("0.5"), 5], gain=-1.5, norm=(-14, Decimal(-1)))
    yield Variant(t=(30,), fade=(0.5, "2"), norm=-14, bd=None, dl="a.mp3", cb=b"1")


def mistakes() -> Iterator[Variant]:
    """Yield nothing: every argument has a wrong type, for the type checker too."""
    yield Variant(t={})  # type: ignore[arg-type]
    yield Variant(format="mp3")  # type: ignore[call-arg]


class TypingTests(SynchronousTestCase):
    """Types of `audioproxy.urls`, for type checkers and at run time"""

    def test_accepted(self) -> None:
        """Sources, numbers and times that a type checker accepts are accepted at run time."""
        for variant in variants():
            for source in SOURCES:
                url = SIGNER.url(source, variant, expires_in=timedelta(hours=1))
                self.assertIn(f"/{variant.canonical}/exp:", url)
        same = SIGNER.url("local://a", expires_at=END.timestamp())
        self.assertEqual(same, SIGNER.url("local://a", expires_at=END))

    def test_refused(self) -> None:
        """A wrong type is an error for a type checker, and a TypeError at run time."""
        self.assertRaises(TypeError, next, mistakes())
        with self.assertRaises(TypeError):
            SIGNER.url(Path("a.wav"))  # type: ignore[arg-type]
        with self.assertRaises(TypeError):
            SIGNER.url("local://a", expires_in="60")  # type: ignore[arg-type]
        with self.assertRaises(ValueError) as caught:
            Variant(t=(30, 0))
        self.assertIsInstance(caught.exception, InvalidOptions)
