"""The requests of paths whose signatures were verified lately."""

from __future__ import annotations

from cachetools import LRUCache

from audioproxy.grammar.request import VariantRequest

# Some ten megabytes where they are full of long paths.
_MOST_PATHS = 4096
_LONGEST_PATH = 1024


class VerifiedPathCache:
    """The requests of the paths that were verified last, by path.

    The whole path with its signature is the key, so that a path that differs in one byte is
    verified anew. Nothing in a request depends on the time or on what is stored.
    """

    def __init__(self) -> None:
        self._requests: LRUCache[bytes, VariantRequest] = LRUCache(_MOST_PATHS)
        #: Returns the request of a path, or None.
        self.find = self._requests.get

    def add(self, path: bytes, request: VariantRequest) -> None:
        """Remember the request of a path that was verified."""
        if len(path) <= _LONGEST_PATH:
            self._requests[path] = request
