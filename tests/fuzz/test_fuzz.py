"""A short run of every target, the same on every machine; ``make fuzz`` is the long one."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz.corpus import PLAIN_HOUSE
from tests.fuzz.environments import check_environment
from tests.fuzz.headers import check_conditions, check_range
from tests.fuzz.paths import check_path
from tests.fuzz.reports import check_diagnostic, check_probe
from tests.fuzz.requests import check_front
from tests.fuzz.stored import check_stored
from tests.fuzz.targets import TARGETS

SHORT = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


#: For a target of which one example takes as long as many of another.
SHORTER = settings(SHORT, max_examples=60)


def inputs_of(
    name: str, how: settings = SHORT
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what gives a test the inputs of a target."""

    def with_inputs(test: Callable[..., None]) -> Callable[..., None]:
        wrapped: Callable[..., None] = how(given(data=TARGETS[name].inputs)(test))
        return wrapped

    return with_inputs


class FuzzTests(SynchronousTestCase):
    """Whatever bytes come, each reader keeps its promises."""

    def test_every_target(self) -> None:
        """No target is left out here, and no seed of one is anything but good."""
        here = {name.removeprefix("test_") for name in dir(self) if name.startswith("test_")}
        self.assertLessEqual(set(TARGETS), here)
        for target in TARGETS.values():
            for seed in target.seeds:
                target.check(seed)

    @inputs_of("path")
    def test_path(self, data: bytes) -> None:
        """Any path is a variant with one key and one normal form, or refused in one line."""
        check_path(data)

    @inputs_of("front", SHORTER)
    def test_front(self, data: bytes) -> None:
        """Any bytes on a connection get answers of the contract's, and nothing is held then."""
        check_front(data)

    @inputs_of("range")
    def test_range(self, data: bytes) -> None:
        """Any Range means what RFC 9110 says, or nothing."""
        check_range(data)

    @inputs_of("conditions")
    def test_conditions(self, data: bytes) -> None:
        """Any list of entity tags matches where ours is in it."""
        check_conditions(data)

    @inputs_of("probe")
    def test_probe(self, data: bytes) -> None:
        """Any answer of a probe is a description without holes, or refused."""
        check_probe(data)

    @inputs_of("diagnostic")
    def test_diagnostic(self, data: bytes) -> None:
        """Any diagnostic is one printable line in which no URL tells its secrets."""
        check_diagnostic(data)

    @inputs_of("environment")
    def test_environment(self, data: bytes) -> None:
        """Any environment is a configuration or a list of problems, and no secret is told."""
        check_environment(data)

    @inputs_of("stored")
    def test_stored(self, data: bytes) -> None:
        """Any file in the store is exactly the variant that it is, or none."""
        check_stored(data)


class FoundTests(SynchronousTestCase):
    """What fuzzing found once stays found."""

    def test_quotes_in_a_query(self) -> None:
        """A quote in a query is no end of it: what follows is as secret as what came before."""
        check_diagnostic(b"opening\nuser\nh\n'\nfailed")

    def test_at_signs_in_a_password(self) -> None:
        """User information goes to its last ``@``, as ffmpeg reads it."""
        check_diagnostic(b"opening\n@\nh\nq\nfailed")

    def test_depth(self) -> None:
        """JSON that is nested deeper than Python follows is no answer and no variant."""
        check_probe(bytes(2) + b"[" * 9999)
        check_stored(b"\2" + b"[" * 9999)

    def test_infinity(self) -> None:
        """A size that is no number of bytes is no variant's."""
        check_stored(b'\2{"size": 1e999}')

    def test_broken_request_behind_a_render(self) -> None:
        """A connection that was closed for a broken request is done with, not read on."""
        get = b"GET /insecure/plain/local://a HTTP/1.1\r\nHost: h\r\n\r\n"
        check_front(PLAIN_HOUSE + b"GT 3 HTTP/1.1\r\nt:\r\n\r\n" + get + b"e\r\n")
