"""A bounded memory of what was found out lately."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps what was asked for last, roughly, at the price of a dictionary.

    There are two generations. When the younger is full it becomes the older, and the older is
    forgotten whole, so that nothing has to be put in order at each look.
    """

    def __init__(self, room: int) -> None:
        """Prepare to keep things.

        :param room: how many there are at most.
        """
        self._half = room // 2
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return what is kept for a key; None for nothing."""
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.keep(key, value)
        return value

    def keep(self, key: K, value: V) -> None:
        """Keep something, in place of what was kept for the key."""
        if len(self._young) >= self._half and key not in self._young:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())
