"""Each fuzz target detects a broken implementation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.sources import Source, read_source
from audioproxy.media.diagnostics import one_line
from audioproxy.media.ffprobe import parse_probe
from audioproxy.media.probe import Probe
from audioproxy.observe.access_log import AccessLogEntry
from audioproxy.variants.files import FileVariantStore, StoredFile, variant_path
from audioproxy.web.conditions import read_range
from tests.fuzz import corpus
from tests.fuzz.draws import Draws
from tests.fuzz.engines import shrink
from tests.fuzz.fixture import FuzzFixture
from tests.fuzz.headers import check_conditions, check_range
from tests.fuzz.paths import check_path
from tests.fuzz.reports import check_diagnostic, check_probe
from tests.fuzz.requests import check_response, check_server
from tests.fuzz.stored import BODY, check_stored, open_store
from tests.support.http import read_response
from tests.support.probes import replace

GET = corpus.request(b"GET", b"insecure/plain/local://a")


def last_wins(segments: Sequence[bytes]) -> tuple[VariantOptions, int | None]:
    """Read options whose meaning depends on their order."""
    return parse_options(segments[-1:])


def louder(segments: Sequence[bytes]) -> tuple[VariantOptions, int | None]:
    """Read options whose canonical form parses to other options."""
    options, exp = parse_options(segments)
    return replace(options, gain=(options.gain or 0) + 1), exp


def decoded_twice(form: bytes, raw: bytes) -> Source:
    """Read a source that is percent-decoded twice."""
    return read_source(b"plain", read_source(form, raw).canonical)


def longer(header: bytes | None, size: int) -> tuple[int, int] | None:
    """Read a range that is one byte too long."""
    found = read_range(header, size)
    return None if found is None else (found[0], found[1] + 1)


def exact(stdout: bytes, stderr: bytes, *, cut_off: bool) -> Probe:
    """Read an estimate that is marked as exact."""
    return replace(parse_probe(stdout, stderr, cut_off=cut_off), exact=True)


def trusting(root: str) -> FileVariantStore:
    """Return a store that serves a file whose first bytes are missing."""
    store = open_store(root)

    async def lookup(key: str) -> StoredFile:
        descriptor = os.open(variant_path(root, key), os.O_RDONLY)
        return StoredFile(descriptor, len(BODY))

    store.lookup = lookup  # type: ignore[method-assign]
    return store


def crash(*_: object, **__: object) -> Any:
    """Raise an error that is not a refusal."""
    raise KeyError("f")


PROBE, DIAGNOSTIC = corpus.PROBES[0][2:], corpus.DIAGNOSTICS[0]

#: Checks, inputs, broken parsers, and the errors of the checks.
BROKEN: tuple[tuple[Callable[..., None], bytes, dict[str, Any], type[Exception]], ...] = (
    (check_path, b"s/br:96/ch:2/plain/local://a", {"options": last_wins}, AssertionError),
    (check_path, b"s/plain/local://a", {"options": louder}, AssertionError),
    (check_path, b"s/plain/local://%252541", {"source": decoded_twice}, AssertionError),
    (check_path, b"s/plain/local://a", {"options": crash}, KeyError),
    (check_range, b"\4bytes=0-9", {"read": longer}, AssertionError),
    # A missing 416.
    (check_range, b"\0bytes=0-9", {"read": lambda header, size: None}, AssertionError),
    # Comparisons that match too little or too much.
    (check_conditions, b"W/TAG", {"matches": lambda header, tag: header == tag}, AssertionError),
    (check_conditions, b'"a"', {"matches": lambda header, tag: True}, AssertionError),
    (check_conditions, b"W/TAG", {"applies": lambda header, tag, _: tag in header}, AssertionError),
    (check_conditions, b"DATE", {"applies": lambda header, tag, _: header == tag}, AssertionError),
    (check_probe, b"\0\1" + PROBE, {"read": exact}, AssertionError),
    (check_probe, b"\0\0" + PROBE, {"read": crash}, KeyError),
    # Secrets, second lines and control characters.
    (check_diagnostic, DIAGNOSTIC, {"without_secrets": str}, AssertionError),
    (
        check_diagnostic,
        DIAGNOSTIC,
        {"one_line": lambda text: one_line(text) + "\na"},
        AssertionError,
    ),
    (
        check_diagnostic,
        DIAGNOSTIC,
        {"one_line": lambda text: one_line(text) + "\x1b"},
        AssertionError,
    ),
    (check_stored, b"\1\0\0\5", {"store": trusting}, AssertionError),
)


class ParserTargetTests(SynchronousTestCase):
    """Broken parsers, each detected by the fuzz target of its parser."""

    def test_broken_parsers(self) -> None:
        """A check accepts the right parser; it detects a broken one, or lets its error through."""
        for check, data, broken, error in BROKEN:
            check(data)
            found = None
            try:
                check(data, **broken)
            except Exception as raised:
                found = type(raised)
            self.assertIs(error, found, (check, data, broken))

    def test_shrink(self) -> None:
        """`shrink` removes all bytes that are not needed to break the promise."""

        def check(data: bytes) -> None:
            assert not (b"a" in data and b"z" in data)

        self.assertEqual(shrink(check, b"xxxaxxxxxxxzxxxxx"), b"az")


class ServerTargetTests(SynchronousTestCase):
    """Broken services that `check_server` detects."""

    def test_default_setup(self) -> None:
        """`FuzzFixture` reads exactly `DEFAULT_SETUP`, and leaves the following request unread."""
        draws = Draws(corpus.DEFAULT_SETUP + GET)
        FuzzFixture(draws)
        self.assertEqual(draws.rest, GET)

    def test_broken_services(self) -> None:
        """`check_server` detects a broken service, although its client gets a valid response."""

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

        info = corpus.request(b"GET", b"insecure/info/plain/local://a")
        for sent, bugs in ((GET, (bare, sticky, late)), (info, (leaky, crashing))):
            check_server(corpus.DEFAULT_SETUP + sent)
            for spoil in bugs:

                def broken(draws: Draws, spoil: Callable[[FuzzFixture], None] = spoil) -> Any:
                    service = FuzzFixture(draws)
                    spoil(service)
                    return service

                with self.assertRaises(AssertionError, msg=spoil.__doc__):
                    check_server(corpus.DEFAULT_SETUP + sent, broken)
        self.flushLoggedErrors(KeyError)

    def test_responses(self) -> None:
        """`check_response` detects wrong headers, statuses and error codes."""
        good = (
            b"HTTP/1.1 404 Not Found\r\ncache-control: max-age=10\r\nx-request-id: i\r\n"
            b"content-type: application/json\r\ncontent-length: 36\r\n\r\n"
            b'{"error":"not_found","message":"A."}'
        )
        record = AccessLogEntry("i", "render", 404, "not_found", None, None, None, 36, 0)
        for old, new in (
            (b"", b""),
            (b"cache-control", b"x-control"),
            (b"application/json", b"text/html"),
            (b"404", b"405"),
            (b"404", b"410"),
            (b"not_found", b"not_there"),
            (b"x-request-id: i", b'etag: "k"'),
            (b"x-request-id: i", b"retry-after: 5"),
        ):
            response = read_response(good.replace(old, new) if old else good)
            assert response is not None
            if old:
                with self.assertRaises(AssertionError, msg=new):
                    check_response(response, b"GET", record._replace(status=response.status))
            else:
                check_response(response, b"GET", record)
