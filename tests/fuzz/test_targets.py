"""The check of the server detects a broken service, although its client gets a valid response."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.sources import Source
from audioproxy.observe.access_log import AccessLogEntry
from tests.fuzz import corpus
from tests.fuzz.fixture import FuzzFixture
from tests.fuzz.requests import check_response, converse
from tests.support.http import read_response

GET, INFO = (
    corpus.request(b"GET", path)
    for path in (b"insecure/plain/local://a", b"insecure/info/plain/local://a")
)
#: A right response, and changes that make it wrong.
RESPONSE = (
    b"HTTP/1.1 404 Not Found\r\ncache-control: max-age=10\r\nx-request-id: i\r\n"
    b"content-type: application/json\r\ncontent-length: 36\r\n\r\n"
    b'{"error":"not_found","message":"A."}'
)
CHANGES = (
    (b"cache-control", b"x-control"),
    (b"application/json", b"text/html"),
    (b"404", b"405"),
    (b"404", b"410"),
    (b"not_found", b"not_there"),
    (b"x-request-id: i", b'etag: "k"'),
    (b"x-request-id: i", b"retry-after: 5"),
)


class ServerTargetTests(SynchronousTestCase):
    """Broken services and wrong responses."""

    def test_broken_services(self) -> None:
        """Missing headers, leaks, crashes and timers that are left are detected."""

        def bare(service: FuzzFixture) -> None:
            """Responses lack their headers."""
            service.resource.render = lambda request: b"hello"  # type: ignore

        def sticky(service: FuzzFixture) -> None:
            """A subscription never ends."""
            join = service.renders.join

            def join_twice(*words: Any, **more: Any) -> Any:
                join(*words, **more)
                return join(*words, **more)

            service.renders.join = join_twice  # type: ignore

        def leaky(service: FuzzFixture) -> None:
            """A source stays open."""
            opener = service.sources.open

            async def open_twice(source: Source, *, reads: bool = True) -> Any:
                await opener(source, reads=reads)
                return await opener(source, reads=reads)

            service.sources.open = open_twice  # type: ignore[method-assign]

        def crashing(service: FuzzFixture) -> None:
            """The service crashes, with a valid 500."""
            service.sources.crash = KeyError("a")

        def late(service: FuzzFixture) -> None:
            """A timer outlives the connection."""
            service.clock.callLater(5, int)

        for sent, bugs in ((GET, (bare, sticky, late)), (INFO, (leaky, crashing))):
            converse(FuzzFixture(), sent)
            for spoil in bugs:
                service = FuzzFixture()
                spoil(service)
                with self.assertRaises(AssertionError, msg=spoil.__doc__):
                    converse(service, sent)
        self.flushLoggedErrors(KeyError)

    def test_responses(self) -> None:
        """Wrong headers, statuses and error codes are detected."""
        self.check(RESPONSE)
        for old, new in CHANGES:
            with self.assertRaises(AssertionError, msg=new):
                self.check(RESPONSE.replace(old, new))

    def check(self, data: bytes) -> None:
        """Check a response whose log entry has its status."""
        response = read_response(data)
        assert response is not None
        status = response.status
        entry = AccessLogEntry("i", "render", status, "not_found", None, None, None, 36, 0)
        check_response(response, b"GET", entry)
