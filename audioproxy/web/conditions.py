"""Conditional requests against one strong entity tag (RFC 9110, 13)."""

from __future__ import annotations

import re

_ENTITY_TAG = re.compile(rb'(?:W/)?("[^"]*")')


def matches(if_none_match: bytes | None, tag: bytes) -> bool:
    """Tell whether a list of entity tags holds ours, by the weak comparison (RFC 9110, 13.1.2).

    ``*`` does not count: it asks whether there is such a thing, which takes storage or a probe to
    tell.
    """
    return if_none_match is not None and tag in _ENTITY_TAG.findall(if_none_match)


def range_applies(if_range: bytes | None, tag: bytes) -> bool:
    """Tell whether If-Range lets a Range count; only our own strong tag does (RFC 9110, 13.1.5)."""
    return if_range is None or if_range.strip() == tag
