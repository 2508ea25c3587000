"""Elements of EBML."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.lengths.ebml import Element, parse_elements
from audioproxy.media.reading import Malformed

VOID = b"\xec\x80"


class ElementTests(SynchronousTestCase):
    """`Element` and `parse_elements`"""

    def test_number(self) -> None:
        """An integer has at most 8 bytes: longer ones would take minutes to compute with."""
        data = b"\xff" * 9
        self.assertEqual(Element(b"\xd7", 0, 0, 8).number(data), (1 << 64) - 1)
        self.assertRaises(Malformed, Element(b"\xd7", 0, 0, 9).number, data)

    def test_most(self) -> None:
        """A file has no more elements than take milliseconds."""
        self.assertEqual(len(list(parse_elements(VOID * 32_767))), 32_767)
        self.assertRaises(Malformed, list, parse_elements(VOID * 32_768))

    def test_parent(self) -> None:
        """Elements after the end of their parent are not among its elements."""
        size = len(VOID)
        (found,) = parse_elements(VOID * 3, size, 2 * size)
        self.assertEqual((size, 2 * size), (found.offset, found.end))
