"""Each fuzz target detects a broken implementation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from twisted.internet.defer import execute
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.config import Config, ConfigError, Problem, load
from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.sources import Source, read_source
from audioproxy.media.diagnostics import redact
from audioproxy.media.probe import Probe, parse_probe
from audioproxy.observe.access_log import AccessLogEntry
from audioproxy.variants.files import FileVariantStore, StoredFile, variant_path
from audioproxy.variants.headers import VariantHeaders
from audioproxy.web.conditions import read_range
from tests.fuzz import corpus
from tests.fuzz.draws import Draws
from tests.fuzz.engines import shrink
from tests.fuzz.environments import check_environment
from tests.fuzz.fixture import FuzzFixture
from tests.fuzz.headers import check_conditions, check_range
from tests.fuzz.paths import check_path
from tests.fuzz.reports import check_diagnostic, check_probe
from tests.fuzz.requests import check_response, check_server
from tests.fuzz.stored import BODY, check_stored
from tests.support.http import read_response

GET = corpus.request(b"GET", b"insecure/plain/local://a")


class GrammarTargetTests(SynchronousTestCase):
    """Broken grammars that `check_path` detects."""

    def test_order(self) -> None:
        """`check_path` detects options whose meaning depends on their order."""

        def last_wins(segments: Sequence[bytes]) -> tuple[VariantOptions, int | None]:
            return parse_options(segments[-1:])

        with self.assertRaises(AssertionError):
            check_path(b"s/br:96/ch:2/plain/local://a", options=last_wins)

    def test_canonical(self) -> None:
        """`check_path` detects options whose canonical form parses to other options."""

        def louder(segments: Sequence[bytes]) -> tuple[VariantOptions, int | None]:
            options, exp = parse_options(segments)
            return replace(options, gain=(options.gain or 0) + 1), exp

        with self.assertRaises(AssertionError):
            check_path(b"s/plain/local://a", options=louder)

    def test_source(self) -> None:
        """`check_path` detects a source that is percent-decoded twice."""

        def twice(form: bytes, raw: bytes) -> Source:
            return read_source(b"plain", read_source(form, raw).canonical)

        check_path(b"s/plain/local://%252541")
        with self.assertRaises(AssertionError):
            check_path(b"s/plain/local://%252541", source=twice)

    def test_crash(self) -> None:
        """`check_path` lets the error of a parser through if the error is not a refusal."""

        def crash(segments: Sequence[bytes]) -> tuple[VariantOptions, int | None]:
            raise KeyError("f")

        with self.assertRaises(KeyError):
            check_path(b"s/plain/local://a", options=crash)


class ServerTargetTests(SynchronousTestCase):
    """Broken services that `check_server` detects."""

    def refused(self, harness: Any, sent: bytes = GET) -> None:
        """Assert that `check_server` accepts the correct service and rejects a broken one."""
        check_server(corpus.DEFAULT_SETUP + sent)
        with self.assertRaises(AssertionError):
            check_server(corpus.DEFAULT_SETUP + sent, harness)

    def test_default_setup(self) -> None:
        """`FuzzFixture` reads exactly `DEFAULT_SETUP`, and leaves the following request unread."""
        draws = Draws(corpus.DEFAULT_SETUP + GET)
        FuzzFixture(draws)
        self.assertEqual(draws.rest, GET)

    def test_response_of_twisted(self) -> None:
        """`check_server` detects a response without the service's headers."""

        def bare(draws: Draws) -> FuzzFixture:
            fixture = FuzzFixture(draws)
            fixture.resource.render = lambda request: b"hello"  # type: ignore[method-assign]
            return fixture

        self.refused(bare)

    def test_subscription_left_open(self) -> None:
        """`check_server` detects a subscription that is never ended."""

        def sticky(draws: Draws) -> FuzzFixture:
            fixture = FuzzFixture(draws)
            join = fixture.renders.join

            def join_twice(order: Any, admitted: bool) -> Any:
                join(order, admitted)
                return join(order, admitted)

            fixture.renders.join = join_twice  # type: ignore[method-assign]
            return fixture

        self.refused(sticky)

    def test_open_source(self) -> None:
        """`check_server` detects a source that stays open."""

        def open_twice(draws: Draws) -> FuzzFixture:
            fixture = FuzzFixture(draws)
            opener = fixture.sources.open

            async def opened(source: Source) -> Any:
                await opener(source)
                return await opener(source)

            fixture.sources.open = opened  # type: ignore[method-assign]
            return fixture

        self.refused(open_twice, corpus.request(b"GET", b"insecure/info/plain/local://a"))

    def test_crash(self) -> None:
        """`check_server` detects a crash in the resource, although the client gets a valid 500."""

        def crashing(draws: Draws) -> FuzzFixture:
            fixture = FuzzFixture(draws)
            fixture.sources.crash = KeyError("a")
            return fixture

        self.refused(crashing, corpus.request(b"GET", b"insecure/info/plain/local://a"))
        self.flushLoggedErrors(KeyError)

    def test_delayed_call(self) -> None:
        """`check_server` detects a timer that outlives the connection."""

        def late(draws: Draws) -> FuzzFixture:
            fixture = FuzzFixture(draws)
            fixture.clock.callLater(5, int)
            return fixture

        self.refused(late)

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


class ReaderTargetTests(SynchronousTestCase):
    """Broken parsers, each detected by the fuzz target of its parser."""

    def test_range(self) -> None:
        """`check_range` detects a range that is one byte too long, and a missing 416."""

        def longer(header: bytes | None, size: int) -> tuple[int, int] | None:
            found = read_range(header, size)
            return None if found is None else (found[0], found[1] + 1)

        with self.assertRaises(AssertionError):
            check_range(b"\4bytes=0-9", longer)
        with self.assertRaises(AssertionError):
            check_range(b"\0bytes=0-9", lambda header, size: None)

    def test_conditions(self) -> None:
        """`check_conditions` detects comparison functions that match too little or too much."""
        with self.assertRaises(AssertionError):
            check_conditions(b"W/TAG", matches=lambda header, tag: header == tag)
        with self.assertRaises(AssertionError):
            check_conditions(b'"a"', matches=lambda header, tag: True)
        with self.assertRaises(AssertionError):
            check_conditions(b"W/TAG", applies=lambda header, tag: tag in (header or b""))

    def test_probe(self) -> None:
        """`check_probe` detects an estimate marked as exact, and lets unexpected errors through."""

        def exact(stdout: bytes, stderr: bytes, *, cut_off: bool) -> Probe:
            return replace(parse_probe(stdout, stderr, cut_off=cut_off), exact=True)

        response = corpus.PROBES[0][2:]
        with self.assertRaises(AssertionError):
            check_probe(b"\0\1" + response, exact)
        with self.assertRaises(KeyError):
            check_probe(b"\0\0" + response, lambda *_, cut_off: {}["format"])

    def test_diagnostic(self) -> None:
        """`check_diagnostic` detects secrets, second lines and control characters."""
        for broken in (
            lambda text: text.decode("ascii", "replace").replace("\n", " "),
            lambda text: redact(text) + "\nmore",
            lambda text: redact(text) + "\x1b",
        ):
            with self.assertRaises(AssertionError):
                check_diagnostic(corpus.DIAGNOSTICS[0], broken)

    def test_environment(self) -> None:
        """`check_environment` detects a secret in a problem."""

        def chatty(environ: Mapping[str, str]) -> tuple[Config, tuple[Problem, ...]]:
            try:
                return load(environ)
            except ConfigError as error:
                raise ConfigError([Problem("AP_KEY", environ["AP_KEY"], "")]) from error

        with self.assertRaises(AssertionError):
            check_environment(b"AP_KEY=zz", chatty)

    def test_stored(self) -> None:
        """`check_stored` detects a store that serves a file whose first bytes are missing."""

        class Trusting(FileVariantStore):
            async def lookup(self, key: str) -> StoredFile | None:
                descriptor = os.open(variant_path(self._root, key), os.O_RDONLY)
                return StoredFile(descriptor, len(BODY), VariantHeaders("audio/mpeg", "no-store"))

        with self.assertRaises(AssertionError):
            calls = BlockingCalls(Clock(), execute)
            check_stored(b"\1\0\0\5", lambda root: Trusting(root, calls, calls))

    def test_shrink(self) -> None:
        """`shrink` removes all bytes that are not needed to break the promise."""

        def check(data: bytes) -> None:
            assert not (b"a" in data and b"z" in data)

        self.assertEqual(shrink(check, b"xxxaxxxxxxxzxxxxx"), b"az")
