"""All fuzz targets by name: their checks, inputs and seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.headers import check_conditions, check_range
from tests.fuzz.lengths import check_length
from tests.fuzz.paths import check_path
from tests.fuzz.reports import check_diagnostic, check_probe
from tests.fuzz.requests import check_server
from tests.fuzz.stored import check_stored


@dataclass(frozen=True)
class Target:
    """A promise that holds for any bytes.

    :ivar check: raises an exception, usually AssertionError, if the input breaks the promise.
    :ivar inputs: strategy that often draws nearly valid bytes.
    :ivar seeds: valid and nearly valid inputs, with which a coverage-guided fuzzer starts.
    :ivar words: dictionary of a coverage-guided fuzzer.
    :ivar longest: longest input of a coverage-guided fuzzer, in bytes.
    """

    check: Callable[[bytes], None]
    inputs: st.SearchStrategy[bytes]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...]
    longest: int = 4096


def _target(
    check: Callable[[bytes], None],
    seeds: tuple[bytes, ...],
    words: tuple[bytes, ...],
    inputs: st.SearchStrategy[bytes] | None = None,
    longest: int = 4096,
) -> Target:
    spoiled = corpus.spoiled(seeds, words) | st.binary(max_size=60)
    return Target(check, spoiled if inputs is None else inputs, seeds, words, longest)


TARGETS: dict[str, Target] = {
    "path": _target(check_path, corpus.PATHS, corpus.URL_WORDS, corpus.paths()),
    "server": _target(
        check_server,
        corpus.CONVERSATIONS,
        (*corpus.HTTP_WORDS, *corpus.URL_WORDS),
        corpus.conversations(),
        # A header line may have 16 KiB, and a request body 64 KiB.
        longest=100_000,
    ),
    "range": _target(check_range, corpus.RANGES, corpus.HEADER_WORDS, longest=8192),
    "conditions": _target(check_conditions, corpus.CONDITIONS, corpus.HEADER_WORDS),
    "probe": _target(check_probe, corpus.PROBES, corpus.JSON_WORDS, corpus.probes(), 16_384),
    "diagnostic": _target(check_diagnostic, corpus.DIAGNOSTICS, corpus.TEXT_WORDS),
    "length": _target(check_length, corpus.AUDIO_FILES, corpus.CONTAINER_WORDS, longest=16_384),
    "stored": _target(check_stored, corpus.FILES, corpus.JSON_WORDS, longest=16_384),
}
