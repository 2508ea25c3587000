"""Conditional requests against one strong entity tag (RFC 9110, 13)."""

from __future__ import annotations

import re

_ENTITY_TAG = re.compile(rb'(?:W/)?("[^"]*")')


def matches(if_none_match: bytes | None, tag: bytes) -> bool:
    """Return whether a list of entity tags contains ``tag``, by weak comparison (RFC 9110, 13.1.2).

    ``*`` never matches here. It asks whether a representation exists, which only storage or a probe
    can show.
    """
    return if_none_match is not None and tag in _ENTITY_TAG.findall(if_none_match)


def range_applies(if_range: bytes | None, tag: bytes) -> bool:
    """Return whether a Range applies: If-Range is absent or equals ``tag`` (RFC 9110, 13.1.5)."""
    return if_range is None or if_range.strip() == tag
