"""What the records of variants say: filters of variants, and texts for the output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from audioproxy.cli.exit_status import UsageError
from audioproxy.cli.output import format_bytes, format_count
from audioproxy.grammar.sources import SCHEMES, Source, parse_source
from audioproxy.urls.sources import to_bytes
from audioproxy.variants.catalog import Amount, Entry
from audioproxy.variants.record import VariantRecord, digest_of

#: The build of a variant whose record has none.
UNKNOWN_BUILD = "unknown"

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


@dataclass(frozen=True, slots=True)
class SourceFilter:
    """Some sources, or all of them where no source and no prefix is given.

    :ivar sources: by the digest that a record has of them.
    :ivar prefixes: of the addresses of sources.
    """

    sources: dict[str, Source]
    prefixes: tuple[bytes, ...]

    @classmethod
    def of(cls, sources: Iterable[Source], prefixes: Iterable[str]) -> SourceFilter:
        raw = tuple(map(to_bytes, prefixes))
        schemes = [f"{scheme}://" for scheme in SCHEMES]
        # An empty prefix would select every source.
        if not all(prefix.startswith(tuple(map(str.encode, schemes))) for prefix in raw):
            raise UsageError(f"--prefix: an address begins with {', '.join(schemes)}")
        return cls({digest_of(each): each for each in sources}, raw)

    @property
    def is_all(self) -> bool:
        return not (self.sources or self.prefixes)

    def accepts(self, record: VariantRecord | None) -> bool:
        if self.is_all or record is None:
            return self.is_all
        address = record.source or b""
        return record.source_sha256 in self.sources or address.startswith(self.prefixes)


def whole_source(record: VariantRecord) -> Source | None:
    """Return the source of a variant; None if its record does not have the whole source."""
    try:
        source = parse_source(record.source or b"")
    except ValueError:
        return None
    return source if digest_of(source) == record.source_sha256 else None


def format_of(record: VariantRecord) -> str:
    segments = record.options.split("/")
    return next((each[2:] for each in segments if each.startswith("f:")), "unknown")


def build_of(record: VariantRecord | None) -> str:
    return UNKNOWN_BUILD if record is None or not record.build else record.build


def source_text(record: VariantRecord) -> str:
    if record.source is None:
        return f"sha256:{record.source_sha256}"
    return record.source.decode("utf-8", "surrogateescape")


def variant_values(entry: Entry, record: VariantRecord | None) -> dict[str, Any]:
    return {
        "key": entry.key,
        "bytes": entry.size,
        "stored": int(entry.stored),
        "used": None if entry.used is None else int(entry.used),
        "options": record and record.options,
        "source": record and record.source and source_text(record),
        "source_sha256": record and record.source_sha256,
        "build": (record and record.build) or None,
    }


def known_text(record: VariantRecord | None) -> str:
    return "unknown" if record is None else f"{record.options}  {source_text(record)}"


def variant_text(entry: Entry, record: VariantRecord | None) -> str:
    return f"{entry.key}  {format_bytes(entry.size):>7}  {known_text(record)}"


def amount_text(amount: Amount) -> str:
    return f"{format_count(amount.variants, 'variant')}, {format_bytes(amount.bytes)}"


def age_text(seconds: float) -> str:
    """Return a duration in its largest unit: ``3 d``."""
    for unit, length in _UNITS:
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return "0 s"
