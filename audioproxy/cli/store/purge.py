"""``audioproxy store purge``: remove the variants of sources."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping

from twisted.internet.task import deferLater

from audioproxy.cli.progress import progress_bar
from audioproxy.cli.store.open_store import (
    StoreSession,
    add_common_arguments,
    run_command,
)
from audioproxy.cli.store.purge_outcome import PurgeOutcome
from audioproxy.cli.store.purge_plan import PurgePlan
from audioproxy.cli.store.source_states import SourceStates
from audioproxy.concurrency.workers import for_each
from audioproxy.grammar.cache_key import all_cache_keys
from audioproxy.grammar.request import VariantRequest
from audioproxy.variants.catalog import CatalogError, Entry
from audioproxy.variants.record import VariantRecord

# The listings of a purge that waits.
_LOOKS = 3

DESCRIPTION = """\
Remove every stored variant of the given sources, and print each one that is removed.

The whole store is listed, and the record of each variant is read. In a large bucket, name the
options of the variants instead: with --options, their keys are computed, under every revision that
the format ever had, and only these are requested and removed. Variants with other options stay.

With --stale, only variants go whose source has changed or vanished since they were rendered. Each
source is looked up once, with the settings of the service. Variants are counted and left whose
source cannot be reached now, is refused, or has no validator. So are those of local sources in an
empty folder, since a disk may not be mounted, and of https URLs with a query: the store has only a
digest of these. Give the whole address as SOURCE.

Without --stale, a render that is running may store a variant again. --wait looks again after
AP_RENDER_TIMEOUT, and once more after the same time: a render may wait for so long, and then take
so long. To keep a source from being rendered again, remove the source itself first.

Caches in front of the service keep what they have, since responses are immutable. With
AP_CACHE_TAG_HEADER, the tags of the sources are printed, under the current and each previous salt,
and the call with which a cache removes them. Nothing reaches browsers.

examples:
  audioproxy store purge local://album/piece.wav
  audioproxy store purge --options f:mp3/br:96 --options f:opus s3://masters/piece.wav
  audioproxy store purge --prefix local://album/ --dry-run
  audioproxy store purge --url https://audio.example/Gx3k.../f:opus/plain/local://piece.wav --wait
  audioproxy store purge --stale
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "sources",
        nargs="*",
        metavar="SOURCE",
        help="local://PATH, s3://BUCKET/KEY or an https URL with its query; - reads sources from"
        " the standard input, one per line",
    )
    parser.add_argument(
        "--prefix",
        action="append",
        default=[],
        help="all sources whose address begins with this; may be repeated. The address of an https"
        " source has no query",
    )
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="URL",
        help="the source of a signed URL, which need not be valid any more; may be repeated. All"
        " variants of the source are removed, whatever the options of the URL",
    )
    parser.add_argument(
        "-o",
        "--options",
        action="append",
        default=[],
        metavar="OPTIONS",
        help="only the variant with exactly these options, such as f:mp3/br:96, without listing the"
        " store; may be repeated",
    )
    parser.add_argument(
        "--stale", action="store_true", help="only if the source has changed or vanished"
    )
    parser.add_argument(
        "--wait", action="store_true", help="look again twice, each time after AP_RENDER_TIMEOUT"
    )
    parser.add_argument("-n", "--dry-run", action="store_true", help="remove nothing")
    add_common_arguments(parser)


def execute(arguments: Namespace, environment: Mapping[str, str]) -> int:
    """Run the command and return its exit status."""
    plan = PurgePlan.of(arguments)
    bar = progress_bar("variants", arguments.quiet)
    outcome = PurgeOutcome(arguments.json, bar, plan)

    async def work(session: StoreSession) -> None:
        await purge(session, plan, outcome)

    return run_command(arguments, environment, outcome, bar, work)


async def purge(session: StoreSession, plan: PurgePlan, outcome: PurgeOutcome) -> None:
    """Remove the variants of the plan, and look again later if it says so."""
    outcome.use_tags(session.config)
    for number in range(_LOOKS if plan.waits else 1):
        if number:
            await deferLater(session.engine.clock, session.config.render_timeout)
        session.bar.reset()
        outcome.begin()
        await (_purge_keys if plan.options else _purge_listed)(session, plan, outcome)


async def _purge_keys(session: StoreSession, plan: PurgePlan, outcome: PurgeOutcome) -> None:
    """Remove the variants whose options and sources are given."""
    requests = [
        (key, VariantRequest.of(options, source))
        for source in plan.wanted.sources.values()
        for options in plan.options
        for key in all_cache_keys(options, source.canonical)
    ]

    async def purge(wanted: tuple[str, VariantRequest]) -> None:
        key, request = wanted
        try:
            entry = await session.catalog.find(key)
        except (CatalogError, OSError) as error:
            outcome.fail(Entry(key, 0, 0), error)
            return
        if entry is not None:
            record = VariantRecord.of(request, b"", entry.stored)
            await _remove(session, plan, outcome, [(entry, record)])

    await for_each(requests, purge, session.concurrency)


async def _purge_listed(session: StoreSession, plan: PurgePlan, outcome: PurgeOutcome) -> None:
    """Remove the variants whose records have the given sources."""
    config = session.config
    states = SourceStates(session.engine.sources, config.local_root, plan.wanted.sources)

    async for page in session.pages():
        found = []
        for entry, record in await session.catalog.read_records(page.entries, outcome.fail):
            if record is None:
                outcome.unknown += 1
            elif plan.wanted.accepts(record):
                found.append((entry, record))
            elif plan.wanted.prefixes and record.source is None:
                outcome.unaddressed += 1
        if plan.is_stale:
            found = await _find_stale(found, states, outcome, session.concurrency)
        await _remove(session, plan, outcome, found)
        session.bar.update(len(page.entries))


async def _find_stale(
    found: Iterable[tuple[Entry, VariantRecord]],
    states: SourceStates,
    outcome: PurgeOutcome,
    concurrency: int,
) -> list[tuple[Entry, VariantRecord]]:
    """Return the variants whose source has changed or vanished."""
    stale = []

    async def look_up(variant: tuple[Entry, VariantRecord]) -> None:
        state = await states.state(variant[1])
        if state.is_stale:
            stale.append(variant)
        else:
            outcome.left[state] += 1

    await for_each(found, look_up, concurrency)
    return stale


async def _remove(
    session: StoreSession,
    plan: PurgePlan,
    outcome: PurgeOutcome,
    found: Iterable[tuple[Entry, VariantRecord]],
) -> None:
    entries = [entry for entry, _ in found]
    records = {entry.key: record for entry, record in found}

    def on_removed(entry: Entry) -> None:
        outcome.removed(entry, records[entry.key])

    if plan.dry_run:
        for entry in entries:
            on_removed(entry)
        return
    # Every variant of a source goes. One that was rendered again meanwhile is not stale any more.
    await session.catalog.remove(entries, on_removed, outcome.fail, unchanged=plan.is_stale)
