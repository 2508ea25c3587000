"""What a purge has removed, what it has left, and what caches in front still have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from audioproxy.cli.formatting import format_count
from audioproxy.cli.purge_calls import calls_for
from audioproxy.cli.store.open_store import Amount, Outcome
from audioproxy.cli.store.purge_plan import PurgePlan
from audioproxy.cli.store.source_states import LEFT, State
from audioproxy.cli.store.variant_rows import variant_text, variant_values, whole_source
from audioproxy.config import Config
from audioproxy.grammar.cache_tag import cache_tags
from audioproxy.grammar.sources import HttpsSource, Source
from audioproxy.variants.catalog import Entry
from audioproxy.variants.record import VariantRecord

_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}")


class PurgeOutcome(Outcome):
    """What was removed so far, and what was left.

    :ivar unknown: variants without a record, in the last listing.
    :ivar unaddressed: variants whose record has a digest of the source alone, so that no prefix
        selects them, in the last listing.
    :ivar left: variants by the state of their source, in the last listing.
    :ivar untagged: removed variants whose source is not known in full, so that its tag is not.
    """

    def __init__(self, as_json: bool, bar: Any, plan: PurgePlan) -> None:
        super().__init__(as_json, bar)
        self._plan = plan
        self._verb = "would be removed" if plan.dry_run else "removed"
        self._removed = Amount()
        self._rows: list[dict[str, Any]] = []
        self._header: str | None = None
        self._salts: list[bytes] = []
        # In the order in which they were found.
        self._tags: dict[str, None] = {}
        self.untagged = 0
        self.begin()

    def use_tags(self, config: Config) -> None:
        """Print the tags of sources, if responses have tags (AP_CACHE_TAG_HEADER)."""
        self._header = config.cache_tag_header
        self._salts = [salt for _, salt in config.signing_pairs]
        # Caches may have responses whose variants are not in the store any more.
        for source in self._plan.wanted.sources.values():
            self._add_tags(source)

    def _add_tags(self, source: Source) -> None:
        if self._header is not None:
            self._tags |= dict.fromkeys(cache_tags(self._salts, source.canonical))

    def begin(self) -> None:
        """Begin a listing of the store."""
        self.unknown = self.unaddressed = 0
        self.left = Counter[State]()

    def removed(self, entry: Entry, record: VariantRecord) -> None:
        """Record and print that a variant was removed, or would be."""
        self._removed.add(entry)
        if record.source_sha256 not in self._plan.wanted.sources:
            source = whole_source(record)
            if source is None:
                self.untagged += 1
            else:
                self._add_tags(source)
        if self._as_json:
            self._rows.append(variant_values(entry, record))
        self.print_row(f"{self._verb}: {variant_text(entry, record)}")

    def values(self) -> dict[str, Any]:
        """Return the values of the JSON object."""
        return {
            "dry_run": self._plan.dry_run,
            "removed": self._rows,
            "bytes": self._removed.bytes,
            "unknown": self.unknown,
            "unaddressed": self.unaddressed,
            "left": {state.value: self.left[state] for state in LEFT},
            "cache_tags": list(self._tags),
            "untagged": self.untagged,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        yield f"{self._verb}: {self._removed}"
        if not self._removed.variants and any(
            map(_looks_encoded, self._plan.wanted.sources.values())
        ):
            # The log has sources in this form.
            yield "a local:// or s3:// SOURCE has no percent-encoding: write a space for %20"
        if self.unknown:
            variants = format_count(self.unknown, "variant")
            yield f"unknown: {variants} without a record of the source; --options reaches these too"
        if self.unaddressed:
            variants = format_count(self.unaddressed, "variant")
            yield f"unknown: {variants} whose source is too long to be recorded; name it as SOURCE"
        for state, meaning in LEFT.items():
            if self.left[state]:
                yield f"left: {format_count(self.left[state], 'variant')} {meaning}"
        plan = self._plan
        if not (plan.is_stale or plan.waits or plan.dry_run):
            yield "a render that is running may store a variant again: --wait looks again"
        yield from self._cache_lines()

    def _cache_lines(self) -> Iterator[str]:
        if self._header is None:
            yield (
                "caches in front and browsers keep what they have; with AP_CACHE_TAG_HEADER, the"
                " tags for caches are printed here"
            )
            return
        if self.untagged:
            variants = format_count(self.untagged, "variant")
            yield f"tags unknown: {variants} with a part of the source recorded; name it as SOURCE"
        if self._tags:
            yield f"cache tags: {' '.join(self._tags)}"
            for call in calls_for(self._header):
                yield from (f"{call.cache}: {each}" for each in call.commands(list(self._tags)))
        yield "browsers keep what they have"


def _looks_encoded(source: Source) -> bool:
    """Return whether a source is probably percent-encoded, though it should not be."""
    return not isinstance(source, HttpsSource) and _ESCAPE.search(source.canonical) is not None
