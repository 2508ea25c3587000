"""Check of the builds of ffmpeg that made the variants in the store (D78)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from twisted.internet.interfaces import IReactorTime

from audioproxy.cli.checks.results import CheckResult, good, note
from audioproxy.cli.output import format_count
from audioproxy.cli.store.command import open_catalog
from audioproxy.cli.store.variant_rows import UNKNOWN_BUILD, build_of
from audioproxy.concurrency.deadlines import Deadline
from audioproxy.config import Config
from audioproxy.config.values import listed
from audioproxy.engine import Engine
from audioproxy.variants.catalog import CatalogError, Entry, VariantCatalog

# Keys are digests, so the first variants of a listing are a random sample. In a bucket, each of
# them takes a request.
_SAMPLE = 100
_AT_A_TIME = 10
# Seconds for the sample. What was read until then counts.
_TIMEOUT = 10.0


async def check_builds(reactor: Any, config: Config, engine: Engine) -> AsyncIterator[CheckResult]:
    if engine.store is None:
        return
    catalog = open_catalog(config, engine, reactor, _AT_A_TIME)
    yield await check_catalog(catalog, engine.clock, engine.programs.build_name)


async def check_catalog(catalog: VariantCatalog, clock: IReactorTime, own: str) -> CheckResult:
    """Compare this machine's build, empty if unknown, with those of a sample of variants."""
    builds: list[str] = []
    failure = ""
    try:
        await Deadline(clock, _TIMEOUT).limit(sample_builds(catalog, builds))
    except TimeoutError:
        failure = f"the store did not respond within {_TIMEOUT:.0f} seconds"
    except (CatalogError, OSError) as error:
        failure = str(error)
    if failure and not builds:
        return note("builds", f"not checked, since variants cannot be read: {failure}")
    return compare_builds(own, builds)


async def sample_builds(catalog: VariantCatalog, builds: list[str], most: int = _SAMPLE) -> None:
    """Append the builds of some variants to a list; raise the error if none can be read."""
    failures: list[Exception] = []

    def skip(entry: Entry, error: Exception) -> None:
        failures.append(error)

    async with aclosing(catalog.pages()) as pages:
        async for page in pages:
            entries = page.entries[:most]
            most -= len(entries)
            for start in range(0, len(entries), _AT_A_TIME):
                found = await catalog.read_records(entries[start : start + _AT_A_TIME], skip)
                builds += [build_of(record) for _, record in found]
            if not most:
                break
    if failures and not builds:
        raise failures[0]


def compare_builds(own: str, builds: Sequence[str]) -> CheckResult:
    """Compare this machine's build, empty if unknown, with those of stored variants."""
    if not builds:
        return good("builds", "the store has no variants yet")
    counts = Counter(builds)
    ours, unknown = counts.pop(own, 0), counts.pop(UNKNOWN_BUILD, 0)
    parts = [f"{count} by {name}" for name, count in counts.most_common()]
    if ours:
        parts.insert(0, f"{ours} by the build of this machine, {own}")
    if unknown:
        parts.append(f"{unknown} by builds that were not recorded")
    text = f"of {format_count(len(builds), 'stored variant')}, ffmpeg made {listed(parts)}"
    if not counts or not own:
        return good("builds", text)
    if not ours:
        text = f"{text}, and this machine has {own}"
    return note(
        "builds",
        f"{text}; stored variants stay as they are, but until all nodes have one build, a download"
        " that is cut off must not be resumed on another node",
    )
