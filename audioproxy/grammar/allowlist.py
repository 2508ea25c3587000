"""What the entries of AP_SOURCE_ALLOWLIST match (Source allowlist)."""

from __future__ import annotations

from collections.abc import Iterable


def allows_bucket(allowlist: Iterable[str], bucket: str) -> bool:
    """Return whether an entry is the bucket, or its prefix and ``*``."""
    return any(
        bucket.startswith(entry[:-1])
        if entry.endswith("*") and entry.count("*") == 1
        else entry == bucket
        for entry in allowlist
    )


def allows_host(allowlist: Iterable[str], host: str) -> bool:
    """Return whether an entry is the host, ``*.`` and its suffix, or ``*``."""
    return any(
        host.endswith(entry[1:])
        if entry.startswith("*.") and entry.count("*") == 1
        else entry in ("*", host)
        for entry in map(str.lower, allowlist)
    )
