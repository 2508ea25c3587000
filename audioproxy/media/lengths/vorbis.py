"""Numbers of samples of Vorbis packets (Vorbis I specification, 1.3.2 and 4.3.8).

A packet has a block of one of two sizes, which its mode tells. Two blocks that follow each other
overlap, and give a quarter of the sum of their sizes. The modes are at the end of the setup header,
behind tables that would take a decoder to read. So they are read backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Bits of a mode: whether its block is long, 32 bits that are 0, and the number of its mapping. The
# number of modes precedes them, less one.
_MODE_BITS, _MODE_MASK, _COUNT_BITS = 41, (1 << 41) - 1, 6
_MOST_MODES, _MOST_MAPPINGS = 64, 64
#: Bytes at the end of the setup header that hold all modes.
MODES = (_MOST_MODES * _MODE_BITS + _COUNT_BITS) // 8 + 2


@dataclass(frozen=True, slots=True)
class Blocks:
    """The sizes of the blocks of a stream, and that of each mode; none where they are unknown."""

    shortest: int
    longest: int
    modes: tuple[int, ...] = ()

    @classmethod
    def parse(cls, sizes: int, setup: bytes) -> Blocks:
        """Return the sizes by the byte of the identification header, and the end of the setup."""
        shortest, longest = 1 << (sizes & 15), 1 << (sizes >> 4)
        bits = int.from_bytes(setup, "little")
        # The last bit that is 1 marks the end.
        end = bits.bit_length() - 1
        modes = found = tuple[int, ...]()
        while len(modes) < _MOST_MODES and end >= _MODE_BITS + _COUNT_BITS:
            end -= _MODE_BITS
            mode = bits >> end & _MODE_MASK
            if mode >> 1 & 0xFFFF_FFFF or mode >> 33 >= _MOST_MAPPINGS:
                break
            modes = (longest if mode & 1 else shortest, *modes)
            if bits >> (end - _COUNT_BITS) & (1 << _COUNT_BITS) - 1 == len(modes) - 1:
                found = modes
        return cls(shortest, longest, found)

    def count(self, packets: Sequence[bytes], ahead: bytes | None) -> tuple[int, int]:
        """Return the least and the largest number of samples of packets.

        :param ahead: the packet ahead of them; empty where it is unknown, None where there is none.
        """
        known = packets if ahead is None else (ahead, *packets)
        pairs = list(pairwise(map(self._size, known)))
        least, most = (sum(one[end] + other[end] for one, other in pairs) // 4 for end in (0, 1))
        return least, most

    def _size(self, packet: bytes) -> tuple[int, int]:
        mode = len(self.modes)
        if packet and self.modes:
            mode = packet[0] >> 1 & (1 << (len(self.modes) - 1).bit_length()) - 1
        if mode >= len(self.modes):
            return self.shortest, self.longest
        return self.modes[mode], self.modes[mode]
