"""``audioproxy store purge``: remove the variants of sources."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from twisted.internet.task import deferLater

from audioproxy.cli.arguments import add_repeatable
from audioproxy.cli.exit_status import UsageError
from audioproxy.cli.output import Form, format_count
from audioproxy.cli.purge_calls import calls_for
from audioproxy.cli.store.command import OpenStore, StoreCommand, add_common_arguments
from audioproxy.cli.store.source_states import LEFT, STALE, SourceStates, State
from audioproxy.cli.store.variant_rows import (
    SourceFilter,
    amount_text,
    variant_text,
    variant_values,
    whole_source,
)
from audioproxy.cli.url_input import parse_url, percent_encode_typed, read_lines
from audioproxy.concurrency.workers import for_each
from audioproxy.config import Config
from audioproxy.grammar import sources as grammar_sources
from audioproxy.grammar.cache_key import all_cache_keys
from audioproxy.grammar.cache_tag import cache_tags
from audioproxy.grammar.request import VariantRequest
from audioproxy.grammar.segments import split_target
from audioproxy.grammar.sources import FORMS, Source
from audioproxy.urls import Variant, read_source
from audioproxy.variants.catalog import Amount, CatalogError, Entry
from audioproxy.variants.record import VariantRecord

# A variant that was stored with a record.
_Stored: TypeAlias = tuple[Entry, VariantRecord]

_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}")
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
    add = parser.add_argument
    add(
        "sources",
        nargs="*",
        metavar="SOURCE",
        help=f"{FORMS} with its query; - reads sources from the standard input, one per line",
    )
    add_repeatable(
        parser,
        "--prefix",
        help="all sources whose address begins with this; may be repeated. The address of an https"
        " source has no query",
    )
    add_repeatable(
        parser,
        "--url",
        metavar="URL",
        help="the source of a signed URL, which need not be valid any more; may be repeated. All"
        " variants of the source are removed, whatever the options of the URL",
    )
    add_repeatable(
        parser,
        "-o",
        "--options",
        metavar="OPTIONS",
        help="only the variant with exactly these options, such as f:mp3/br:96, without listing the"
        " store; may be repeated",
    )
    add("--stale", action="store_true", help="only if the source has changed or vanished")
    add("--wait", action="store_true", help="look again twice, each time after AP_RENDER_TIMEOUT")
    add("-n", "--dry-run", action="store_true", help="remove nothing")
    add_common_arguments(parser)


class Purge(StoreCommand):
    """Removes the variants of sources, and finds what caches in front still have of them."""

    def __init__(self, arguments: Namespace) -> None:
        given = [*map(read_source, read_lines(arguments.sources)), *map(_source_of, arguments.url)]
        self.wanted = wanted = SourceFilter.of(given, arguments.prefix)
        if wanted.is_all and not arguments.stale:
            raise UsageError("a SOURCE, --prefix, --url or --stale is required")
        if arguments.options and (wanted.prefixes or arguments.stale):
            raise UsageError("--options goes with SOURCE and --url only")
        if arguments.wait and (arguments.stale or arguments.dry_run):
            raise UsageError("--wait goes neither with --stale nor with --dry-run")
        self._options = [Variant.read(each).options for each in arguments.options]
        super().__init__(arguments)
        self._verb = "would be removed" if arguments.dry_run else "removed"
        self._removed = Amount()
        self._rows: list[dict[str, Any]] = []
        self._header: str | None = None
        self._salts: list[bytes] = []
        self._tags: dict[str, None] = {}
        # Removed variants whose source is not known in full, so that its tag is not.
        self._untagged = 0
        self._begin_listing()

    def _begin_listing(self) -> None:
        # Variants without a record, and those whose record has a digest of the source alone, so
        # that no prefix selects them.
        self._unknown = self._unaddressed = 0
        self._left = Counter[State]()

    @property
    def removes(self) -> bool:
        return not self.arguments.dry_run

    async def work(self, store: OpenStore) -> None:
        self.use_tags(store.config)
        for number in range(_LOOKS if self.arguments.wait else 1):
            if number:
                await deferLater(store.engine.clock, store.config.render_timeout)
            self._begin_listing()
            await (self._purge_keys if self._options else self._purge_listed)(store)

    async def _purge_keys(self, store: OpenStore) -> None:
        requests = [
            (key, VariantRequest.of(options, source))
            for source in self.wanted.sources.values()
            for options in self._options
            for key in all_cache_keys(options, source.canonical)
        ]

        async def purge(wanted: tuple[str, VariantRequest]) -> None:
            key, request = wanted
            try:
                entry = await store.catalog.find(key)
            except (CatalogError, OSError) as error:
                self.fail(Entry(key, 0, 0), error)
            else:
                if entry is not None:
                    record = VariantRecord.of(request, b"", entry.stored)
                    await self._remove(store, [(entry, record)])

        await for_each(requests, purge, store.concurrency)

    async def _purge_listed(self, store: OpenStore) -> None:
        root = store.config.local_root
        states = SourceStates(store.engine.sources, root, self.wanted.sources)
        async for page in store.pages():
            found = []
            for entry, record in await store.catalog.read_records(page.entries, self.fail):
                if record is None:
                    self._unknown += 1
                elif self.wanted.accepts(record):
                    found.append((entry, record))
                elif self.wanted.prefixes and record.source is None:
                    self._unaddressed += 1
            if self.arguments.stale:
                found = await self._stale_ones(found, states, store.concurrency)
            await self._remove(store, found)

    async def _stale_ones(
        self, found: Sequence[_Stored], states: SourceStates, concurrency: int
    ) -> list[_Stored]:
        stale = []

        async def look_up(variant: _Stored) -> None:
            state = await states.state(variant[1])
            if state in STALE:
                stale.append(variant)
            else:
                self._left[state] += 1

        await for_each(found, look_up, concurrency)
        return stale

    async def _remove(self, store: OpenStore, found: Sequence[_Stored]) -> None:
        records = {entry.key: record for entry, record in found}

        def on_removed(entry: Entry) -> None:
            self.add_removed(entry, records[entry.key])

        entries = [entry for entry, _ in found]
        # A variant that was rendered again meanwhile is not stale any more.
        await self.remove(store, entries, on_removed, unchanged=self.arguments.stale)

    def use_tags(self, config: Config) -> None:
        self._header = config.cache_tag_header
        self._salts = [salt for _, salt in config.signing_pairs]
        # Caches may have responses whose variants are not in the store any more.
        for source in self.wanted.sources.values():
            self._add_tags(source)

    def _add_tags(self, source: Source) -> None:
        if self._header is not None:
            self._tags |= dict.fromkeys(cache_tags(self._salts, source.canonical))

    def add_removed(self, entry: Entry, record: VariantRecord) -> None:
        self._removed.add(entry)
        if record.source_sha256 not in self.wanted.sources:
            if (source := whole_source(record)) is None:
                self._untagged += 1
            else:
                self._add_tags(source)
        if self.out.form is Form.JSON:
            self._rows.append(variant_values(entry, record))
        self.out.line(f"{self._verb}: {variant_text(entry, record)}")

    def values(self) -> dict[str, Any]:
        return {
            "dry_run": self.arguments.dry_run,
            "removed": self._rows,
            "bytes": self._removed.bytes,
            "unknown": self._unknown,
            "unaddressed": self._unaddressed,
            "left": {state.value: self._left[state] for state in LEFT},
            "cache_tags": list(self._tags),
            "untagged": self._untagged,
        }

    def lines(self) -> Iterator[str]:
        yield f"{self._verb}: {amount_text(self._removed)}"
        if not self._removed.variants and any(map(_looks_encoded, self.wanted.sources.values())):
            # The log has sources in this form.
            yield "a local:// or s3:// SOURCE has no percent-encoding: write a space for %20"
        for count, words in (
            (self._unknown, "without a record of the source; --options reaches these too"),
            (self._unaddressed, "whose source is too long to be recorded; name it as SOURCE"),
        ):
            if count:
                yield f"unknown: {format_count(count, 'variant')} {words}"
        for state, meaning in LEFT.items():
            if self._left[state]:
                yield f"left: {format_count(self._left[state], 'variant')} {meaning}"
        if not (self.arguments.stale or self.arguments.wait or self.arguments.dry_run):
            yield "a render that is running may store a variant again: --wait looks again"
        yield from self._cache_lines()

    def _cache_lines(self) -> Iterator[str]:
        if self._header is None:
            yield (
                "caches in front and browsers keep what they have; with AP_CACHE_TAG_HEADER, the"
                " tags for caches are printed here"
            )
            return
        if self._untagged:
            variants = format_count(self._untagged, "variant")
            yield f"tags unknown: {variants} with a part of the source recorded; name it as SOURCE"
        if self._tags:
            yield f"cache tags: {' '.join(self._tags)}"
            for call in calls_for(self._header):
                yield from (f"{call.cache}: {each}" for each in call.commands(list(self._tags)))
        yield "browsers keep what they have"


def _looks_encoded(source: Source) -> bool:
    return not source.is_url and _ESCAPE.search(source.canonical) is not None


def _source_of(url: str) -> Source:
    target = split_target(parse_url(percent_encode_typed(url)).signed)
    if target is None:
        raise UsageError(f"{url!r} has no source: plain/ or enc/ and a source are expected")
    return grammar_sources.read_source(target.form, target.source)


execute = Purge.execute
