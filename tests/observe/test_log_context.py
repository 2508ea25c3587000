"""Log events with the id of the request that caused them."""

from __future__ import annotations

from contextvars import copy_context

from twisted.internet.defer import Deferred
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.observe.log_context import Logger, set_request_id
from tests.support.http import Log

_log = Logger()


class RequestIdTests(SynchronousTestCase):
    """`set_request_id` and `Logger` (D54)"""

    def setUp(self) -> None:
        self.log = Log()
        self.addCleanup(self.log.start())

    def ids(self) -> list[object]:
        """Return the request id of each event, in order."""
        return [event.get("request_id") for event in self.log.events]

    def test_coroutines(self) -> None:
        """Everything that a request starts logs the request's id; other events have none."""
        waiting: Deferred[None] = Deferred()

        async def child() -> None:
            await waiting
            _log.warn("child")

        async def request(name: str) -> None:
            set_request_id(name)
            Deferred.fromCoroutine(child())
            _log.info("request")

        async def end() -> None:
            set_request_id("other")
            waiting.callback(None)
            _log.info("end")

        Deferred.fromCoroutine(request("one"))
        _log.info("outside")
        Deferred.fromCoroutine(end())
        self.assertEqual(["one", None, "one", "other"], self.ids())

    def test_event(self) -> None:
        """Apart from the id, an event is Twisted's own: level, namespace, fields and traceback.

        An event keeps a request id that it already has.
        """

        def work() -> None:
            set_request_id("one")
            _log.info("a", request_id="two")
            try:
                raise ZeroDivisionError
            except ZeroDivisionError:
                _log.failure("it failed: {why}", why="zero")

        copy_context().run(work)
        self.assertEqual(["two", "one"], self.ids())
        event = self.log.events[-1]
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.assertEqual((LogLevel.critical, "zero"), (event["log_level"], event["why"]))
        self.assertEqual(__name__, event["log_namespace"])
