"""The variants whose files can be read on the reactor thread."""

from __future__ import annotations

# Seconds within which a file must be read to count as cached by the system. A page cache takes some
# microseconds, but on a busy machine a thread waits for the GIL and for a CPU as well.
_FAST = 0.02
# Seconds after which a read on the reactor thread has mostly waited for the disk.
_BLOCKED = 0.05
# Seconds after a read during which the file is expected to stay in the cache.
_WARM_SECONDS = 60.0
# Each key takes some 200 bytes.
_MOST_KEYS = 16_384


class WarmKeys:
    """The cache keys of variants that were read a moment ago, without a delay.

    Reading a cached file takes less time than a switch to another thread. Any other read may block
    for long: on a network file system, or on a disk that was idle. So a variant is first read in a
    thread, and then on the reactor thread if that was fast.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def has(self, key: str, now: float) -> bool:
        """Return whether the file of a key can be read on the reactor thread."""
        return self._until.get(key, now) > now

    def add(self, key: str, began: float, ended: float) -> None:
        """Record a read in a thread."""
        if ended - began < _FAST:
            if len(self._until) >= _MOST_KEYS:
                del self._until[next(iter(self._until))]
            self._until[key] = ended + _WARM_SECONDS

    def renew(self, key: str, began: float, ended: float) -> None:
        """Record a read on the reactor thread; after one that was blocked, no key is warm."""
        if ended - began < _FAST:
            self._until[key] = ended + _WARM_SECONDS
        elif ended - began < _BLOCKED:
            del self._until[key]
        else:
            self._until.clear()
