"""The second attempt to read a source that has failed."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import NotFound, Refusal, UndecodableSource, UpstreamUnavailable
from audioproxy.grammar.sources import LocalSource
from audioproxy.sources.anew import use_source
from tests.support.http import Log
from tests.support.stores import FakeSource, FakeSources

LOST = UpstreamUnavailable("The connection was lost.")


class UseSourceTests(SynchronousTestCase):
    """`use_source`"""

    def setUp(self) -> None:
        self.log = Log(self)
        self.sources = FakeSources({b"a": 1})
        self.told: list[bool] = []

    def use(
        self, *ends: tuple[Refusal | None, Exception | None], attempts: int = 2
    ) -> Deferred[FakeSource]:
        """Use a source.

        :param ends: for each attempt the failure of the source, and what is raised.
        """
        left = list(ends)

        async def use(opened: FakeSource, is_last: bool) -> FakeSource:
            self.told.append(is_last)
            opened.failure, error = left.pop(0)
            if error is not None:
                raise error
            return opened

        using = use_source(lambda: self.sources.open(LocalSource(b"a")), use, attempts=attempts)
        return Deferred.fromCoroutine(using)

    def test_success(self) -> None:
        """A source that is read at the first attempt stays open, and no other one is opened."""
        opened = self.successResultOf(self.use((None, None)))
        self.assertEqual((self.sources.opened, opened.closed), ([opened], False))
        self.assertEqual(self.told, [False])
        opened.close()

    def test_opened_anew(self) -> None:
        """A source that has failed is closed and opened anew, whatever the refusal is."""
        for refusal in (LOST, UndecodableSource()):
            self.setUp()
            opened = self.successResultOf(self.use((LOST, refusal), (None, None)))
            first, second = self.sources.opened
            self.assertEqual((first.closed, second, second.closed), (True, opened, False))
            self.assertEqual(self.told, [False, True])
            self.assertEqual([event["why"] for event in self.log.events], [LOST.message])
            opened.close()

    def test_raised(self) -> None:
        """A second failure is raised as it is; so is a first one that a source has not caused."""
        for ends, attempts, error, count in (
            (((LOST, LOST), (LOST, NotFound())), 2, NotFound, 2),
            (((None, UndecodableSource()),), 2, UndecodableSource, 1),
            (((LOST, CancelledError()),), 2, CancelledError, 1),
            (((LOST, LOST),), 1, UpstreamUnavailable, 1),
        ):
            self.setUp()
            self.failureResultOf(self.use(*ends, attempts=attempts), error)
            self.assertEqual(len(self.sources.opened), count)
            self.assertEqual(self.sources.held, 0)
