"""What a signed path asks for, read once."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from audioproxy.grammar.cache_key import cache_key, etag
from audioproxy.grammar.expiry import expired
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.parser import read_options
from audioproxy.grammar.segments import Target
from audioproxy.grammar.sources import read_source
from audioproxy.recent import Recent
from audioproxy.render.context import Order
from audioproxy.variants.interfaces import VariantHeaders
from audioproxy.web.exchange import Exchange

#: The caching of a variant that has no ``exp``.
CACHE_CONTROL = "public, max-age=31536000, immutable, no-transform"

# Some ten megabytes where they are full of long paths.
_KNOWN_PATHS = 4096
_LONGEST_PATH = 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a variant.

    :ivar canonical: the options in their normal form.
    :ivar exp: Unix seconds, or None.
    :ivar tag: the variant's entity tag.
    """

    order: Order
    canonical: str
    exp: int | None
    tag: bytes

    def is_over(self, now: float) -> bool:
        """Tell whether the URL is refused at ``now`` (Unix seconds)."""
        return expired(self.exp, now)

    def describe(self, exchange: Exchange) -> None:
        """Say what it is about, for the log."""
        exchange.about(self.order.source.canonical, self.canonical)


class VerifiedPathCache:
    """What paths asked for whose signatures were verified, for as long as there is room.

    The path with its signature is the key, byte by byte, so that whatever differs is verified for
    itself. Nothing in it depends on the time or on what is stored.
    """

    def __init__(self) -> None:
        self._recent: Recent[bytes, Asked] = Recent(_KNOWN_PATHS)
        #: Returns what a path asked for, or None.
        self.find = self._recent.get

    def keep(self, path: bytes, asked: Asked) -> None:
        """Remember what a path asks for that was verified."""
        if len(path) <= _LONGEST_PATH:
            self._recent.keep(path, asked)


def read_asked(exchange: Exchange, target: Target) -> Asked:
    """Read what a verified path asks for.

    :raises InvalidOptions: for options that are none or do not go together.
    :raises NotFound: for what cannot be a source.
    """
    options, exp = read_options(target.options)
    source = read_source(target.form, target.source)
    key = cache_key(options, source.canonical)
    headers = VariantHeaders(options.content_type, CACHE_CONTROL, _disposition(options))
    asked = Asked(Order(key, options, source, headers), options.canonical(), exp, etag(key))
    asked.describe(exchange)
    return asked


def _disposition(options: VariantOptions) -> str | None:
    """Return the Content-Disposition that ``dl`` asks for (D10, RFC 6266)."""
    if options.dl is None:
        return None
    plain = "".join(c if " " <= c <= "~" and c not in '"%' else "_" for c in options.dl)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(options.dl, safe='')}"
