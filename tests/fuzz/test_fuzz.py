"""A short, deterministic run of every fuzz target; ``make fuzz`` runs longer."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz.corpus import DEFAULT_SETUP
from tests.fuzz.environments import check_environment
from tests.fuzz.headers import check_conditions, check_range
from tests.fuzz.lengths import check_length
from tests.fuzz.paths import check_path
from tests.fuzz.reports import check_diagnostic, check_probe
from tests.fuzz.requests import check_server
from tests.fuzz.stored import check_stored
from tests.fuzz.targets import TARGETS

SHORT = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


#: Settings for a target whose examples are much slower than those of the others.
SHORTER = settings(SHORT, max_examples=60)


def inputs_of(
    name: str, how: settings = SHORT
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that passes the inputs of a target to a test."""

    def with_inputs(test: Callable[..., None]) -> Callable[..., None]:
        wrapped: Callable[..., None] = how(given(data=TARGETS[name].inputs)(test))
        return wrapped

    return with_inputs


class FuzzTests(SynchronousTestCase):
    """Promises that hold for any input bytes."""

    def test_every_target(self) -> None:
        """Every fuzz target has a test in this class, and its check accepts all of its seeds."""
        here = {name.removeprefix("test_") for name in dir(self) if name.startswith("test_")}
        self.assertLessEqual(set(TARGETS), here)
        for target in TARGETS.values():
            for seed in target.seeds:
                target.check(seed)

    @inputs_of("path")
    def test_path(self, data: bytes) -> None:
        """Any path is refused, or its options and its source each have one canonical form."""
        check_path(data)

    @inputs_of("server", SHORTER)
    def test_server(self, data: bytes) -> None:
        """Any bytes on a connection get valid responses, and leak nothing."""
        check_server(data)

    @inputs_of("range")
    def test_range(self, data: bytes) -> None:
        """Any Range header selects the bytes that RFC 9110 specifies, or is ignored or refused."""
        check_range(data)

    @inputs_of("conditions")
    def test_conditions(self, data: bytes) -> None:
        """If-None-Match matches a list with the ETag, and If-Range matches only the ETag itself."""
        check_conditions(data)

    @inputs_of("probe")
    def test_probe(self, data: bytes) -> None:
        """Any ffprobe output gives a valid document without nulls, a refusal or a ValueError."""
        check_probe(data)

    @inputs_of("diagnostic")
    def test_diagnostic(self, data: bytes) -> None:
        """Any ffmpeg diagnostic becomes one printable line without the secrets of a URL."""
        check_diagnostic(data)

    @inputs_of("environment")
    def test_environment(self, data: bytes) -> None:
        """Any environment gives a configuration or a list of problems, without secrets."""
        check_environment(data)

    @inputs_of("length")
    def test_length(self, data: bytes) -> None:
        """The length of a source of any bytes is found or not, without an error."""
        check_length(data)

    @inputs_of("stored")
    def test_stored(self, data: bytes) -> None:
        """Any file in the store is served as exactly the variant it holds, or not at all."""
        check_stored(data)


class FoundTests(SynchronousTestCase):
    """Regression tests of bugs that fuzzing found."""

    def test_quotes_in_a_query(self) -> None:
        """A quote in the query of a URL does not end the query: the rest of it stays secret."""
        check_diagnostic(b"opening\nuser\nh\n'\nfailed")

    def test_at_signs_in_a_password(self) -> None:
        """The userinfo of a URL ends at the last ``@`` of the authority, as ffmpeg parses it."""
        check_diagnostic(b"opening\n@\nh\nq\nfailed")

    def test_depth(self) -> None:
        """Deeply nested JSON crashes neither the parser of probe results nor the store lookup."""
        check_probe(bytes(2) + b"[" * 9999)
        check_stored(b"\2" + b"[" * 9999)

    def test_infinity(self) -> None:
        """A stored file whose record has an infinite size is not a variant."""
        check_stored(b'\2{"size": 1e999}')

    def test_broken_request_behind_a_render(self) -> None:
        """A malformed request pipelined behind a render gets at most one response, a 400."""
        get = b"GET /insecure/plain/local://a HTTP/1.1\r\nHost: h\r\n\r\n"
        check_server(DEFAULT_SETUP + b"GT 3 HTTP/1.1\r\nt:\r\n\r\n" + get + b"e\r\n")
