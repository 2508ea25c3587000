"""The renders that have failed on this node lately, and are not repeated for every listener (D73).

A browser requests a variant that breaks off eight to ten times in a row. Each of these requests
would take a slot, up to the whole deadline, for the same end.
"""

from __future__ import annotations

from collections.abc import Callable

from cachetools import TTLCache

from audioproxy.errors import OutputTooLarge, Refusal, RenderTimeout
from audioproxy.sources.interfaces import OpenSource

# Seconds for which a failure is remembered.
_LIFETIME = 60
# Variants whose failure is remembered; each takes some 300 bytes, and a long https URL more.
_MOST_VARIANTS = 4096

# The refusals that the same source would cause again, and that take a slot for long.
_REMEMBERED = (OutputTooLarge, RenderTimeout)


class RecentFailures:
    def __init__(self, seconds: Callable[[], float]) -> None:
        self._refusals: TTLCache[str, tuple[bytes, type[Refusal]]] = TTLCache(
            _MOST_VARIANTS, _LIFETIME, timer=seconds
        )

    def remember(self, key: str, source: OpenSource, refusal: Refusal) -> None:
        """Remember why the render of a cache key has failed, if it would fail again."""
        # Without a validator, another version could not be told from this one. A source that could
        # not be read may be readable at the next attempt.
        is_of_version = source.validator and source.failure is None
        if isinstance(refusal, _REMEMBERED) and is_of_version:
            self._refusals[key] = source.identity, type(refusal)

    def check(self, key: str, source: OpenSource) -> None:
        """Refuse a render that has failed within the last minute, from the same version."""
        identity, refusal = self._refusals.get(key, (b"", None))
        if refusal is not None and identity == source.identity:
            raise refusal(
                f"{refusal.default_message} That was less than a minute ago, so it was not tried"
                " again."
            )
