"""The response headers that are kept with a stored variant."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

from audioproxy.grammar.options import VariantOptions

#: The Cache-Control of a variant whose URL has no ``exp``.
CACHE_CONTROL = "public, max-age=31536000, immutable, no-transform"


class VariantHeaders(NamedTuple):
    """Values of response headers; None is a header that is not sent.

    They are compared for each HIT. A dataclass would need Python code for that.
    """

    content_type: str
    cache_control: str
    content_disposition: str | None = None

    @classmethod
    def of(cls, options: VariantOptions) -> VariantHeaders:
        """Return the headers of the variant that the options describe."""
        return cls(options.content_type, CACHE_CONTROL, _disposition(options.dl))

    @property
    def is_printable(self) -> bool:
        """Whether each value is printable ASCII, as all values that this service writes are."""
        values = (self.content_type, self.cache_control, self.content_disposition or "")
        return all(value.isascii() and value.isprintable() for value in values)


def _disposition(file_name: str | None) -> str | None:
    """Return the Content-Disposition for a value of ``dl`` (D10, RFC 6266)."""
    if file_name is None:
        return None
    plain = "".join(c if " " <= c <= "~" and c not in '"%' else "_" for c in file_name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file_name, safe='')}"
