"""Conditional requests and ranges: If-None-Match, If-Range and Range.

`tests.fuzz.test_fuzz` sends any bytes in these headers.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import RangeNotSatisfiable
from audioproxy.grammar.cache_key import cache_key, etag
from audioproxy.grammar.options import VariantOptions
from audioproxy.web.conditions import matches, range_applies, read_range

TAG = etag(cache_key(VariantOptions(), b"local://a.mp3"))
OTHER = b'"another, with a comma"'
DATE = b"Sun, 06 Nov 1994 08:49:37 GMT"

SIZE = 1000
HUGE = b"9" * 5000

#: Range headers for a variant of 1000 bytes, and the range that is sent.
SATISFIABLE = (
    (b"bytes=0-0", (0, 1)),
    (b"bytes=0-499", (0, 500)),
    (b"bytes=500-999", (500, 1000)),
    (b"bytes=500-", (500, 1000)),
    (b"bytes=0-", (0, 1000)),
    (b"bytes=999-", (999, 1000)),
    (b"bytes=999-999", (999, 1000)),
    (b"bytes=990-2000", (990, 1000)),
    (b"bytes=-1", (999, 1000)),
    (b"bytes=-1000", (0, 1000)),
    (b"bytes=-2000", (0, 1000)),
    (b"bytes=007-0008", (7, 9)),
    # The unit is case-insensitive (RFC 9110, 14.1); whitespace around the range is allowed.
    (b"BYTES=1-2", (1, 3)),
    (b"bytes= 1-2 ", (1, 3)),
    # Numbers may have any length.
    (b"bytes=5-" + b"9" * 20, (5, 1000)),
    (b"bytes=5-" + HUGE, (5, 1000)),
    (b"bytes=-" + HUGE, (0, 1000)),
    (b"bytes=" + b"0" * 5000 + b"-1", (0, 2)),
)

UNSATISFIABLE = (
    *(b"bytes=1000-", b"bytes=1000-1000", b"bytes=1000-2000", b"bytes=-0", b"bytes=-000"),
    *(b"bytes=" + b"9" * 20 + b"-", b"bytes=" + HUGE + b"-" + HUGE),
)

IGNORED = (
    *(b"", b"bytes", b"bytes=", b"bytes=-", b"bytes=a-b", b"bytes=1-b", b"bytes=1", b"bytes=--1"),
    *(b"bytes=-1-", b"bytes=+1-2", b"bytes=1.0-2", b"bytes=0x1-2", b"bytes 1-2", b"bytes=1 -2"),
    *(b"bytes=2-1", b"bytes=2000-1999", b"bytes=" + HUGE + b"-1"),
    *(b"bytes=" + b"9" * 30 + b"-" + b"8" * 30, b"bytes=0-1,4-5", b"bytes=0-1,", b"bytes=,0-1"),
    *(b"bytes=0-1, 0-1", b"items=0-1", b"seconds=1-2", b"=0-1", b"bytes=0-1\n"),
    *("bytes=\u0661-2".encode(), b"bytes=\xb2-\xb3"),
)


class IfNoneMatchTests(SynchronousTestCase):
    """`matches`"""

    def test_match(self) -> None:
        """The variant's tag matches anywhere in the list, weak or strong (RFC 9110, 13.1.2)."""
        for value in (
            TAG,
            b"W/" + TAG,
            b" " + TAG + b"\t",
            OTHER + b", " + TAG,
            TAG + b"," + OTHER,
            b"W/" + OTHER + b" ,\tW/" + TAG,
            b"*, " + TAG,
            b", ," + TAG,
            b'"", ' + TAG,
        ):
            self.assertIs(True, matches(value, TAG), value)

    def test_no_match(self) -> None:
        """A missing header, another tag, an incomplete tag and ``*`` do not match."""
        for value in (
            *(None, b"", b"*", b",", b'"', b'""', OTHER, b"W/" + OTHER),
            *(TAG.strip(b'"'), TAG[:-1], TAG[1:], TAG.upper(), TAG[:-1] + b'x"', b'"x' + TAG[1:]),
            # Text between two tags is not a tag, and neither is a part of a tag.
            b'"x' + TAG + b'y"',
            b'"' + TAG.strip(b'"') + b", " + TAG.strip(b'"') + b'"',
        ):
            self.assertIs(False, matches(value, TAG), value)


class IfRangeTests(SynchronousTestCase):
    """`range_applies`"""

    def test_tags(self) -> None:
        """Range applies without If-Range, or with the variant's strong tag (RFC 9110, 13.1.5)."""
        for condition, applies in (
            (None, True),
            (TAG, True),
            (b" " + TAG + b"\t", True),
            (b"W/" + TAG, False),
            (OTHER, False),
            (TAG + b", " + OTHER, False),
            (TAG.strip(b'"'), False),
            (b"*", False),
            (b"", False),
            (b"None", False),
        ):
            for last_modified in (None, DATE):
                self.assertIs(applies, range_applies(condition, TAG, last_modified), condition)

    def test_dates(self) -> None:
        """Range applies with exactly the Last-Modified that the response has (RFC 9110, 13.1.5).

        An earlier or later date, the same second in another form, and a malformed date do not.
        """
        for condition, applies in (
            (DATE, True),
            (b"\t" + DATE + b" ", True),
            (b"Sun, 06 Nov 1994 08:49:36 GMT", False),
            (b"Sun, 06 Nov 1994 08:49:38 GMT", False),
            (b"Mon, 06 Nov 1994 08:49:37 GMT", False),
            (b"Sunday, 06-Nov-94 08:49:37 GMT", False),
            (b"Sun Nov  6 08:49:37 1994", False),
            (b"Sun, 06 Nov 1994 08:49:37 UTC", False),
            (b"Sun, 06 Nov 1994 08:49:37 +0000", False),
            (b"sun, 06 nov 1994 08:49:37 gmt", False),
            (b"06 Nov 1994 08:49:37 GMT", False),
            (b'"' + DATE + b'"', False),
            (b"W/" + DATE, False),
            (DATE + b", " + TAG, False),
            (DATE[:-1], False),
            (b"784111777", False),
        ):
            self.assertIs(applies, range_applies(condition, TAG, DATE), condition)
            self.assertFalse(range_applies(condition, TAG, None), condition)


class ReadRangeTests(SynchronousTestCase):
    """`read_range`"""

    def test_satisfiable(self) -> None:
        """A single satisfiable range is cut at the variant's end (Hit in proxy mode, 2)."""
        for header, stretch in SATISFIABLE:
            self.assertEqual(stretch, read_range(header, SIZE), header[:60])

    def test_unsatisfiable(self) -> None:
        """A valid range without any byte of the variant is a 416 that states the size."""
        for header in UNSATISFIABLE:
            refusal = self.assertRaises(RangeNotSatisfiable, read_range, header, SIZE)
            self.assertEqual(SIZE, refusal.size, header[:60])

    def test_ignored(self) -> None:
        """Several ranges, other units and malformed values are ignored."""
        self.assertIsNone(read_range(None, SIZE))
        for header in IGNORED:
            self.assertIsNone(read_range(header, SIZE), header[:60])

    def test_empty_variant(self) -> None:
        """No range is satisfiable for an empty variant."""
        for header in (b"bytes=0-", b"bytes=0-0", b"bytes=-1", b"bytes=-0"):
            self.assertRaises(RangeNotSatisfiable, read_range, header, 0)
