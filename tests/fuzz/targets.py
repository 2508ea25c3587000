"""All fuzz targets by name: their checks, seeds and inputs, and how Hypothesis draws these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.headers import check_conditions, check_range
from tests.fuzz.lengths import check_length
from tests.fuzz.reports import check_diagnostic, check_probe
from tests.fuzz.requests import check_server
from tests.fuzz.stored import check_stored

#: Settings of all runs.
SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Target:
    """A promise that holds for any input.

    :ivar check: raises an exception, usually AssertionError, if an input breaks the promise.
    :ivar seeds: valid and nearly valid inputs, each with the arguments of the check.
    :ivar inputs: strategy that often draws nearly valid inputs.
    """

    check: Callable[..., None]
    seeds: tuple[tuple[Any, ...], ...]
    inputs: st.SearchStrategy[tuple[Any, ...]]

    def fuzz(self, how: settings) -> None:
        """Draw inputs, and check the promise.

        :raises Exception: if an input breaks it; a note has the shortest such input.
        """

        @how
        @given(drawn=self.inputs)
        def check(drawn: tuple[Any, ...]) -> None:
            self.check(*drawn)

        check()


TARGETS = {
    "server": Target(check_server, corpus.CONVERSATIONS, corpus.conversations()),
    "range": Target(check_range, corpus.RANGES, corpus.ranges()),
    "conditions": Target(
        check_conditions,
        tuple((each,) for each in corpus.CONDITIONS),
        st.tuples(corpus.conditions()),
    ),
    "probe": Target(check_probe, corpus.PROBES, corpus.probes()),
    "diagnostic": Target(check_diagnostic, corpus.DIAGNOSTICS, corpus.diagnostics()),
    "length": Target(check_length, corpus.AUDIO_FILES, corpus.audio_files()),
    "stored": Target(check_stored, corpus.FILES, corpus.stored_files()),
}
