"""Ranges of bytes in Content-Range and Range."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.http_client.ranges import ByteRange, parse_content_range
from tests.support.strategies import DETERMINISTIC

NUMBERS = st.integers(0, 20)


class ContentRangeTests(SynchronousTestCase):
    """`parse_content_range`"""

    def test_stated(self) -> None:
        """The bytes and the size of the file are returned; a 416 has no bytes."""
        for text, found, total in (
            ("bytes 5-9/20", ByteRange(5, 9, 20), 20),
            ("Bytes  0-0/1", ByteRange(0, 0, 1), 1),
            ("bytes 5-9/*", ByteRange(5, 9, None), None),
            ("bytes */20", None, 20),
            ("bytes */000", None, 0),
            ("bytes */*", None, None),
        ):
            self.assertEqual((found, total), parse_content_range(text), text)

    def test_malformed(self) -> None:
        """A header that is malformed, of another unit, doubled or absurd states nothing."""
        for text in (
            *("", "bytes", "bytes 5-9", "bytes 5-/20", "bytes -9/20", "bytes 5-9/", "5-9/20"),
            *("bytes=5-9/20", "seconds 5-9/20", "bytes 5-9/20, bytes 5-9/20", "bytes 5-9/20 "),
            *("bytes 9-5/20", "bytes 5-20/20", "bytes 0-0/0", "bytes 5-9/\u0662", "bytes +5-9/20"),
            *("bytes 0-0/" + "9" * 99, "bytes 0-" + "9" * 99 + "/*", "bytes\t0-0/1"),
        ):
            self.assertEqual((None, None), parse_content_range(text), text)

    @DETERMINISTIC
    @given(NUMBERS, NUMBERS, NUMBERS | st.just("*"))
    def test_consistent(self, first: int, last: int, total: int | str) -> None:
        """The bytes are within the file, and at least one."""
        found, _ = parse_content_range(f"bytes {first}-{last}/{total}")
        is_consistent = first <= last and (total == "*" or last < int(total))
        self.assertEqual(is_consistent, found is not None)
        if found is not None:
            self.assertEqual((first, last + 1), (found.first, found.first + found.size))


class AnswerTests(SynchronousTestCase):
    """`ByteRange.is_answer_to`"""

    @DETERMINISTIC
    @given(NUMBERS | st.just(""), NUMBERS | st.just(""), NUMBERS, NUMBERS, st.integers(1, 20))
    def test_exact(self, first: object, last: object, start: int, end: int, total: int) -> None:
        """A range answers the request for exactly its bytes, which end with the file."""
        every, asked = range(total), f"bytes={first}-{last}"
        wanted = range(0)
        if isinstance(first, int):
            wanted = every[first : last + 1 if isinstance(last, int) else None]
        elif isinstance(last, int):
            wanted = every[max(0, total - last) :]
        found, _ = parse_content_range(f"bytes {start}-{end}/{total}")
        if found is not None:
            given = every[found.first : found.last + 1]
            self.assertEqual(bool(wanted) and given == wanted, found.is_answer_to(asked), asked)

    def test_other_requests(self) -> None:
        """A range of a file of unknown size answers the request for both of its ends alone."""
        found = ByteRange(5, 9, None)
        self.assertTrue(found.is_answer_to("bytes=5-9"))
        for (
            asked
        ) in "bytes=5- bytes=-5 bytes=5-10 bytes=5-8 bytes=4-9 bytes=5-9,5-9 seconds=5-9".split():
            self.assertFalse(found.is_answer_to(asked), asked)
