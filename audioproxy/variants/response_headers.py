"""The response headers that are kept with a stored variant."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, urlencode

from audioproxy.grammar.options import VariantOptions

#: The Cache-Control of a variant whose URL has no ``exp``.
CACHE_CONTROL = "public, max-age=31536000, immutable, no-transform"


class VariantHeaders(NamedTuple):
    """Values of response headers; None is a header that is not sent.

    A store keeps them for clients that read the variant there. The service sends its own, since a
    store may change or lose them.
    """

    content_type: str
    cache_control: str
    content_disposition: str | None = None

    @classmethod
    def of(cls, options: VariantOptions) -> VariantHeaders:
        return cls(options.content_type, CACHE_CONTROL, _disposition(options.dl))

    def lines(self) -> dict[str, str]:
        return {name.replace("_", "-"): value for name, value in self._asdict().items() if value}

    def response_parameters(self) -> str:
        """Return the query with which a presigned URL names the headers of its response.

        A variant without a Content-Disposition gets ``inline``, since a store may add one.
        """
        return _response_parameters(self)


# It is needed for each HIT.
@lru_cache(1024)
def _disposition(file_name: str | None) -> str | None:
    """Return the Content-Disposition for a value of ``dl`` (D10, RFC 6266)."""
    if file_name is None:
        return None
    plain = "".join(c if " " <= c <= "~" and c not in '"%' else "_" for c in file_name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file_name, safe='')}"


# It is needed for each redirect, and takes longer than the look-up of a signature.
@lru_cache(1024)
def _response_parameters(headers: VariantHeaders) -> str:
    values = headers._replace(content_disposition=headers.content_disposition or "inline")
    parameters = {f"response-{name}": value for name, value in values.lines().items()}
    return urlencode(parameters, quote_via=quote)
