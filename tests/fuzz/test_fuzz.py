"""A short, deterministic run of every fuzz target; ``make fuzz`` runs longer."""

from __future__ import annotations

import traceback

from hypothesis import HealthCheck, given, settings
from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz.corpus import DEFAULT_SETUP
from tests.fuzz.reports import check_diagnostic, check_probe
from tests.fuzz.requests import check_server
from tests.fuzz.stored import check_stored
from tests.fuzz.targets import TARGETS, Target

SHORT = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

#: Settings for the target whose examples are much slower than those of the others.
SHORTER = settings(SHORT, max_examples=60)


def fuzz(target: Target, how: settings) -> None:
    """Draw inputs for a target, and check its promise."""

    @how
    @given(data=target.inputs)
    def check(data: bytes) -> None:
        target.check(data)

    check()


class FuzzTests(SynchronousTestCase):
    """Promises that hold for any input bytes."""

    def test_seeds(self) -> None:
        """The check of every fuzz target accepts all of its seeds."""
        for target in TARGETS.values():
            for seed in target.seeds:
                target.check(seed)

    def test_any_bytes(self) -> None:
        """The check of every fuzz target accepts any bytes."""
        broken = []
        for name, target in TARGETS.items():
            try:
                fuzz(target, SHORTER if name == "server" else SHORT)
            except Exception:
                broken.append(f"{name}: {traceback.format_exc()}")
        self.assertEqual([], broken, "\n".join(broken))


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
