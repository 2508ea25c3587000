"""Promises that hold for any input: a short run that is always the same, or a long one.

``make fuzz`` sets FUZZ_SECONDS, and begins with the inputs that failed in earlier runs.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz import corpus
from tests.fuzz.headers import check_conditions, check_range
from tests.fuzz.lengths import check_length
from tests.fuzz.reports import check_diagnostic, check_probe
from tests.fuzz.requests import check_server
from tests.fuzz.stored import check_stored
from tests.support.service import PROJECT

#: Seconds of a long run, in which each test has an equal part.
SECONDS = float(os.environ.get("FUZZ_SECONDS") or 0)
SHORT = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=150,
    derandomize=True,
    database=None,
)
# The deadline is checked only between runs of Hypothesis.
LONG = settings(
    SHORT,
    max_examples=300,
    derandomize=False,
    database=DirectoryBasedExampleDatabase(PROJECT / "build/hypothesis"),
)


class FuzzTests(SynchronousTestCase):
    """Checks, each of its seeds, and of inputs that are often nearly valid"""

    def examine(
        self,
        check: Callable[..., None],
        seeds: Iterable[tuple[Any, ...]],
        inputs: st.SearchStrategy[tuple[Any, ...]],
        examples: int = SHORT.max_examples,
    ) -> None:
        """Call a check with the arguments of each seed, and with those that Hypothesis draws."""

        @(LONG if SECONDS else settings(SHORT, max_examples=examples))
        @given(inputs)
        def draw(arguments: tuple[Any, ...]) -> None:
            check(*arguments)

        end = time.monotonic() + SECONDS / 7
        try:
            for seed in seeds:
                check(*seed)
            draw()
            while time.monotonic() < end:
                draw()
        except Exception:
            # A note, which trial does not print, has the shortest such input.
            self.fail(traceback.format_exc())

    def test_server(self) -> None:
        """Any bytes on a connection get valid responses, and leak nothing."""
        # Its examples are much slower than the others.
        self.examine(check_server, corpus.CONVERSATIONS, corpus.conversations(), 60)

    def test_range(self) -> None:
        """Any Range selects the bytes that RFC 9110, 14 specifies."""
        self.examine(check_range, corpus.RANGES, corpus.ranges())

    def test_conditions(self) -> None:
        """Any If-None-Match and If-Range are read as RFC 9110, 13 specifies."""
        self.examine(check_conditions, corpus.CONDITIONS, corpus.conditions())

    def test_probe(self) -> None:
        """Any output of ffprobe gives a valid result, a refusal or a ValueError."""
        self.examine(check_probe, corpus.PROBES, corpus.probes())

    def test_diagnostic(self) -> None:
        """Any diagnostic becomes one printable line, and URLs lose their secrets."""
        self.examine(check_diagnostic, corpus.DIAGNOSTICS, corpus.diagnostics())

    def test_length(self) -> None:
        """A search in any source ends without an error, with a plausible length or none."""
        self.examine(check_length, corpus.AUDIO_FILES, corpus.audio_files())

    def test_stored(self) -> None:
        """Any file of a store is a complete variant with its headers, or ignored."""
        self.examine(check_stored, corpus.FILES, corpus.stored_files())
