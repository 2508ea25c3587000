"""Which bytes of a file a response has (RFC 9110, 14.4), and which a request asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CONTENT_RANGE = re.compile(
    r"bytes[ ]+(?:([0-9]{1,18})-([0-9]{1,18})|\*)/([0-9]{1,18}|\*)", re.IGNORECASE
)
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class ByteRange:
    first: int
    last: int
    total: int | None

    @property
    def size(self) -> int:
        return self.last + 1 - self.first

    def is_answer_to(self, asked: str) -> bool:
        """Return whether these are exactly the bytes that a Range header asks for.

        A range ends with the file at the latest. Where the size of the file is not stated, only a
        range with both ends can be compared.
        """
        match = _RANGE.fullmatch(asked)
        if match is None:
            return False
        first, last = match.groups()
        end = None if self.total is None else self.total - 1
        if not first:
            return bool(last) and self.total is not None and self._is_suffix(int(last))
        if int(first) != self.first:
            return False
        if last and (end is None or int(last) <= end):
            return int(last) == self.last
        return self.last == end

    def _is_suffix(self, count: int) -> bool:
        assert self.total is not None
        return self.last == self.total - 1 and self.size == min(count, self.total)


def parse_content_range(text: str) -> tuple[ByteRange | None, int | None]:
    """Return the bytes that a Content-Range header states, and the size of the whole file.

    The bytes are None in a 416; both are, if the header is malformed or contradicts itself.
    """
    match = _CONTENT_RANGE.fullmatch(text)
    if match is None:
        return None, None
    total = None if match[3] == "*" else int(match[3])
    if match[1] is None:
        return None, total
    first, last = int(match[1]), int(match[2])
    if last < first or (total is not None and total <= last):
        return None, None
    return ByteRange(first, last, total), total
