"""The buckets and https hosts that may be sources (Source allowlist)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from audioproxy.grammar.sources import HttpsSource, LocalSource, Source


@dataclass(frozen=True, slots=True)
class Allowlist:
    """The entries of AP_SOURCE_ALLOWLIST, or None where it is unset."""

    entries: Sequence[str] | None = None

    def allows(self, source: Source) -> bool:
        """Return whether a source may be read; local files are confined by their root alone."""
        if isinstance(source, LocalSource):
            return True
        if isinstance(source, HttpsSource):
            return any(_host_matches(entry.lower(), source.host) for entry in self.entries or ())
        if self.entries is None:
            return True
        return any(_bucket_matches(entry, source.bucket) for entry in self.entries)


def _bucket_matches(entry: str, bucket: str) -> bool:
    if entry.endswith("*") and entry.count("*") == 1:
        return bucket.startswith(entry[:-1])
    return entry == bucket


def _host_matches(entry: str, host: str) -> bool:
    if entry == "*":
        return True
    if entry.startswith("*.") and entry.count("*") == 1:
        return host.endswith(entry[1:])
    return entry == host
