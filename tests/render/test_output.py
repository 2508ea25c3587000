"""The output of a render: a growing file, and the followers that it notifies."""

from __future__ import annotations

import os
from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import RenderFailed, RenderTimeout
from audioproxy.render.output import RenderOutput
from audioproxy.scratch_files import AnonymousFile
from tests.support.processes import open_descriptors


class RenderOutputTests(SynchronousTestCase):
    """`RenderOutput`"""

    def setUp(self) -> None:
        self.before = open_descriptors()
        self.output = RenderOutput(AnonymousFile(), 1 << 20)
        self.told: list[str] = []

    def is_closed(self) -> bool:
        """Return whether the file is closed."""
        return open_descriptors() == self.before

    def follow(self, name: str = "a") -> Callable[[], None]:
        """Add a follower that records its name on every change."""
        return self.output.follow(lambda: self.told.append(name))

    def put(self, data: bytes) -> int:
        """Write bytes as an encoder does, then update the known size."""
        os.write(self.output.descriptor, data)
        return self.output.update_size()

    def test_growth(self) -> None:
        """Followers are notified when the file has grown, and only then."""
        leave = self.follow()
        self.assertEqual((self.output.update_size(), self.told), (0, []))
        self.assertEqual((self.put(b"abc"), self.told), (3, ["a"]))
        self.assertEqual((self.output.update_size(), self.told), (3, ["a"]))
        self.assertEqual((self.put(b"de"), self.output.size, self.told), (5, 5, ["a", "a"]))
        leave()
        self.output.release()

    def test_reads(self) -> None:
        """Any range within the known size can be read; later bytes are not returned."""
        self.put(b"01234567")
        os.write(self.output.descriptor, b"not looked at")
        for start, limit, data in (
            (0, 3, b"012"),
            (5, 3, b"567"),
            (6, 99, b"67"),
            (8, 1, b""),
            (99, 9, b""),
            (2, 0, b""),
        ):
            self.assertEqual(self.output.read(start, limit), data, (start, limit))
        self.output.release()

    def test_limit(self) -> None:
        """Readers receive no byte past the limit, however large the file is (D52)."""
        limited = RenderOutput(AnonymousFile(), 5)
        os.write(limited.descriptor, b"0123456789")
        self.assertEqual((limited.update_size(), limited.size), (10, 5))
        self.assertEqual(limited.read(0, 99), b"01234")
        self.assertEqual(limited.read(5, 99), b"")
        limited.release()
        self.output.release()

    def test_end(self) -> None:
        """Followers are notified of the end once; the first reported result is final."""
        for failure in (RenderTimeout(), None):
            output = RenderOutput(AnonymousFile(), 1 << 20)
            self.told.clear()
            leave = output.follow(lambda: self.told.append("a"))
            output.end(failure)
            output.end()
            output.end(RenderFailed())
            self.assertEqual((output.ended, output.failure), (True, failure))
            self.assertEqual(self.told, ["a"])
            leave()
            output.release()
        self.output.release()

    def test_closed_by_the_last(self) -> None:
        """The file is closed when the render and the last reader have released it, in any order."""
        first, second = self.follow(), self.follow()
        first()
        self.output.release()
        self.put(b"abc")
        self.assertEqual(self.output.read(0, 9), b"abc")
        self.assertFalse(self.is_closed())
        second()
        self.assertTrue(self.is_closed())

    def test_leave_twice(self) -> None:
        """A follower that is removed twice does not close the file before the render does."""
        leave = self.follow()
        leave()
        leave()
        self.put(b"abc")
        self.assertEqual(self.told, [])
        self.assertFalse(self.is_closed())
        self.output.release()
        self.assertTrue(self.is_closed())

    def test_removal_during_notification(self) -> None:
        """Followers that are removed during a notification are not notified any more."""
        leavers: list[Callable[[], None]] = []

        def leave_all() -> None:
            self.told.append("first")
            for leave in leavers:
                leave()

        leavers.append(self.output.follow(leave_all))
        leavers.append(self.follow("second"))
        self.put(b"abc")
        self.put(b"def")
        self.assertEqual(self.told, ["first"])
        self.output.release()
        self.assertTrue(self.is_closed())

    def test_addition_during_notification(self) -> None:
        """A follower that is added during a notification is first notified of the next change."""
        leavers: list[Callable[[], None]] = []

        def bring() -> None:
            if len(leavers) == 1:
                leavers.append(self.follow("late"))

        leavers.append(self.output.follow(bring))
        self.put(b"abc")
        self.assertEqual(self.told, [])
        self.put(b"def")
        self.assertEqual(self.told, ["late"])
        for leave in leavers:
            leave()
        self.output.release()

    def test_everyone_leaves_at_the_end(self) -> None:
        """If the last reader leaves when notified of the end, the render closes the file."""
        leavers: list[Callable[[], None]] = []
        leavers.append(self.output.follow(lambda: leavers[0]()))
        self.output.end()
        self.output.release()
        self.assertTrue(self.is_closed())

    def test_same_follower_twice(self) -> None:
        """If a callable is added twice as a follower, each addition is removed separately."""
        follower = lambda: self.told.append("a")  # noqa: E731
        one, two = self.output.follow(follower), self.output.follow(follower)
        one()
        self.put(b"abc")
        self.assertEqual(self.told, ["a"])
        two()
        self.output.release()
        self.assertTrue(self.is_closed())
