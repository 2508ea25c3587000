"""Cache of requests by path, for paths whose signatures were verified lately."""

from __future__ import annotations

from cachetools import LRUCache

from audioproxy.grammar.request import VariantRequest

# Paths in the cache, and the most bytes of one. A cache full of long paths takes some ten
# megabytes.
_MOST_PATHS = 4096
_LONGEST_PATH = 1024


class VerifiedPathCache:
    """The requests of the paths that were verified last, by path.

    The key is the whole path with its signature, so a path that differs in one byte is verified
    again. A request does not depend on the time or on what is stored, so a cached request never
    becomes wrong.
    """

    def __init__(self) -> None:
        self._requests: LRUCache[bytes, VariantRequest] = LRUCache(_MOST_PATHS)
        #: Returns the request of a path, or None if the path is not cached.
        self.find = self._requests.get

    def add(self, path: bytes, request: VariantRequest) -> None:
        """Add the request of a verified path."""
        if len(path) <= _LONGEST_PATH:
            self._requests[path] = request
