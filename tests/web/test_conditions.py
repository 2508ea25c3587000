"""Conditional requests: If-None-Match and If-Range."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.cache_key import cache_key, etag
from audioproxy.grammar.options import VariantOptions
from audioproxy.web.conditions import matches, range_applies
from tests.support.strategies import DETERMINISTIC

TAG = etag(cache_key(VariantOptions(), b"local://a.mp3"))
OTHER = b'"another, with a comma"'

#: Characters of an entity tag (RFC 9110, 8.8.3).
_CHARACTERS = [0x21, *range(0x23, 0x7F), *range(0x80, 0x100)]
TAGS = st.lists(st.sampled_from(_CHARACTERS), max_size=20).map(lambda text: b'"%s"' % bytes(text))


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

    @DETERMINISTIC
    @given(tags=st.lists(TAGS, max_size=5), weak=st.booleans(), data=st.data())
    def test_any_list(self, tags: list[bytes], weak: bool, data: st.DataObject) -> None:
        """A list with the variant's entity tag matches, whatever the other tags contain."""
        tags = [tag for tag in tags if tag != TAG]
        self.assertFalse(matches(b", ".join(tags), TAG))
        held = data.draw(st.permutations([*tags, b"W/" + TAG if weak else TAG]))
        self.assertTrue(matches(b", ".join(held), TAG))

    @DETERMINISTIC
    @given(value=st.binary(max_size=60))
    def test_any_bytes(self, value: bytes) -> None:
        """Arbitrary bytes do not match the variant's entity tag."""
        self.assertFalse(matches(value, TAG))


class IfRangeTests(SynchronousTestCase):
    """`range_applies`"""

    def test_rows(self) -> None:
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
            (b"Sun, 06 Nov 1994 08:49:37 GMT", False),
        ):
            self.assertIs(applies, range_applies(condition, TAG), condition)
