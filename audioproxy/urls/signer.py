"""The signer of URLs."""

from __future__ import annotations

import base64
import html
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from numbers import Real
from typing import Any, ClassVar
from urllib.parse import quote

from audioproxy import errors
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.request import expired
from audioproxy.grammar.segments import MEDIA
from audioproxy.grammar.signature import sign
from audioproxy.grammar.signing_secrets import MIN_KEY_BYTES, MIN_SALT_BYTES, secret_parser
from audioproxy.grammar.values import parse_file_name, percent_encode
from audioproxy.urls.sources import SourceLike, read_source, require_type
from audioproxy.urls.variant import Format, Variant, parse_segments

# Clients remove dot segments from a path before they send it, which makes the signature wrong (RFC
# 3986, 5.2.4; URL standard, 4.4).
_DOT_SEGMENT = re.compile(rb"(?:^|/)\.{1,2}(?:/|$)")
# The characters that browsers send unchanged: visible ASCII except # and ?, and except those that
# browsers encode or turn into a slash (URL standard, 1.3 and 4.4). Browsers treat an encoded dot as
# a dot.
_PATH = re.compile(r"/[!$-;=@-\[\]_a-z|~]*")
_DOTS = re.compile(r"/(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)
_BASE = re.compile(r"(?:https?://[A-Za-z0-9._:\[\]-]+)?(?:/[!$-;=@-Z_a-z~]*)?")

# Parameter of the type of a source, which browsers that cannot play its codec skip.
_CODECS = {"opus": "; codecs=opus", "ogg": "; codecs=vorbis"}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


class Expired(errors.Expired, ValueError):
    """An expiry in the past. The service returns 410 for the URL."""


@dataclass(frozen=True, slots=True)
class Signer:
    """Creates URLs that a service with the same key and salt accepts.

    `from_hex` takes key and salt as the service does, in hexadecimal digits, and `from_env` takes
    them from the environment.

    :ivar key: AP_KEY, decoded: at least 32 bytes.
    :ivar salt: AP_SALT, decoded: at least 1 byte.
    :ivar base: the text before the signature: an origin, the mount point of the resource, both, or
        nothing.
    :ivar encoded: write every source in base64url, which hides its name from a casual reader. This
        is not encryption.
    :ivar now: Unix time in seconds.
    """

    # `help` lists these methods before all others.
    _fields: ClassVar = ("url", "audio_element", "info_url", "sign")

    key: bytes = field(repr=False)
    salt: bytes = field(repr=False)
    base: str = ""
    _: KW_ONLY
    encoded: bool = False
    now: Callable[[], float] = field(default=time.time, repr=False)

    def __post_init__(self) -> None:
        hint = "Signer.from_hex accepts the text of"
        require_type("key", self.key, (bytes,), f"bytes; {hint} AP_KEY")
        require_type("salt", self.salt, (bytes,), f"bytes; {hint} AP_SALT")
        require_type("base", self.base, (str,), "str")
        if len(self.key) < MIN_KEY_BYTES:
            raise ValueError(f"a key is at least {MIN_KEY_BYTES} bytes; {hint} AP_KEY")
        if len(self.salt) < MIN_SALT_BYTES:
            raise ValueError(f"a salt is at least 1 byte; {hint} AP_SALT")
        if self.base.rstrip("/").endswith(f"/{MEDIA.decode('ascii')}"):
            raise ValueError("a base must not end in /media, which URLs with a file name add to it")
        if _BASE.fullmatch(self.base) is None:
            raise ValueError(
                "a base is an origin such as https://audio.example, a path such as /audio, or both"
            )

    @classmethod
    def from_hex(
        cls,
        key: str,
        salt: str,
        base: str = "",
        *,
        encoded: bool = False,
        now: Callable[[], float] = time.time,
    ) -> Signer:
        """Return the signer for the values of AP_KEY and AP_SALT.

        :raises ValueError: for text that is not hexadecimal, or too short; it is not quoted.
        """
        raw_key = _secret("AP_KEY", key, MIN_KEY_BYTES)
        raw_salt = _secret("AP_SALT", salt, MIN_SALT_BYTES)
        return cls(raw_key, raw_salt, base, encoded=encoded, now=now)

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, Any],
        base: str = "",
        *,
        encoded: bool = False,
        now: Callable[[], float] = time.time,
    ) -> Signer:
        """Return the signer for AP_KEY and AP_SALT of a mapping, such as ``os.environ``.

        :raises ValueError: for a value that is missing or that `from_hex` refuses.
        """
        require_type("environ", environ, (Mapping,), "a mapping such as os.environ")
        for name in ("AP_KEY", "AP_SALT"):
            if not environ.get(name):
                raise ValueError(f"{name}: not set; use the value that the service has")
        return cls.from_hex(environ["AP_KEY"], environ["AP_SALT"], base, encoded=encoded, now=now)

    def url(
        self,
        source: SourceLike,
        variant: Variant | None = None,
        *,
        expires_in: float | timedelta | None = None,
        expires_at: float | datetime | None = None,
        round_to: float | timedelta | None = None,
        file_name: str | None = None,
    ) -> str:
        """Return the signed URL of a variant, by default an mp3 without other options.

        A fraction of a second is rounded up: the URL never expires early.

        :param expires_in: time from now until the service refuses the URL: seconds, or a timedelta.
        :param expires_at: the same point in time: Unix seconds, or a datetime with a time zone.
            URLs with the same ``expires_at`` are the same for caches.
        :param round_to: expire later than ``expires_in``, at the next multiple of this time (UTC):
            seconds, or a timedelta. All URLs of a day are the same with ``timedelta(days=1)``.
        :param file_name: end the URL in this name, for podcast directories, and put ``/media``
            before the signature. The balancer in front has to remove both.
        :raises ValueError: for a datetime without a time zone, for both times, for ``round_to``
            without ``expires_in``, or for a file name that does not suit the variant.
        :raises NotFound: for a malformed source.
        :raises Expired: if that time has already passed.
        """
        variant = _require_variant(variant)
        segments = variant.canonical.split("/")
        exp = self._expiry(expires_in, expires_at, round_to)
        if exp is not None:
            # The order does not matter to the service.
            segments.append(f"exp:{exp}")
        path = f"/{'/'.join(segments)}/{_spell_source(source, self.encoded)}"
        if file_name is None:
            return self.sign(path)
        name = encode_file_name(file_name, variant)
        signed = replace(self, base="").sign(path)
        return f"{self.base.rstrip('/')}/{MEDIA.decode('ascii')}{signed}/{name}"

    def audio_element(
        self,
        source: SourceLike,
        variant: Variant | None = None,
        *,
        formats: Iterable[Format] = ("opus", "m4a", "mp3"),
        attributes: str = 'controls preload="none"',
        expires_in: float | timedelta | None = None,
        expires_at: float | datetime | None = None,
        round_to: float | timedelta | None = None,
    ) -> str:
        """Return an HTML ``<audio>`` element with a variant in each format, the smallest first.

        Browsers play the first one that they support. With ``preload="none"``, they request it when
        the listener presses play, so a page view renders nothing.

        :param variant: the other options; each of ``formats`` replaces its ``f``.
        :param attributes: of the element, as they stand in HTML.
        """
        exp = self._expiry(expires_in, expires_at, round_to)
        variant = _require_variant(variant)
        sources = []
        for form in formats:
            each = replace(variant, f=form)
            url = html.escape(self.url(source, each, expires_at=exp))
            kind = each.content_type + _CODECS.get(form, "")
            sources.append(f'<source src="{url}" type="{kind}">')
        return f"<audio {attributes}>{''.join(sources)}</audio>"

    def info_url(self, source: SourceLike) -> str:
        """Return the signed URL of a source's info document. It has no options or expiry."""
        return self.sign(f"/info/{_spell_source(source, self.encoded)}")

    def sign(self, path: str) -> str:
        """Return the base, the signature and a path that the caller wrote.

        :param path: everything after the signature, percent-encoded as it is sent, with its leading
            slash.
        :raises ValueError: for a path that clients would change before sending it.
        """
        require_type("path", path, (str,), "str")
        if _PATH.fullmatch(path) is None:
            raise ValueError("a path starts with a slash, is percent-encoded and has no query")
        if _DOTS.search(path):
            raise ValueError("clients remove . and .. segments from a path; use enc/")
        signature = sign(self.key, self.salt, path.encode("ascii")).decode("ascii")
        return f"{self.base.rstrip('/')}/{signature}{path}"

    def _expiry(
        self,
        expires_in: float | timedelta | None,
        expires_at: float | datetime | None,
        round_to: float | timedelta | None,
    ) -> int | None:
        if expires_in is not None and expires_at is not None:
            raise ValueError("expires_in and expires_at exclude each other")
        if round_to is not None and expires_in is None:
            raise ValueError("round_to goes with expires_in")
        if expires_in is not None:
            exp = int(self.now()) + _whole_seconds("expires_in", expires_in)
            if round_to is not None:
                step = _whole_seconds("round_to", round_to)
                if step < 1:
                    raise ValueError("round_to: at least 1 second is expected")
                exp += -exp % step
        elif expires_at is not None:
            exp = _unix_seconds(expires_at)
        else:
            return None
        parse_segments([f"exp:{exp}"])
        if expired(exp, self.now()):
            raise Expired
        return exp


def encode_file_name(name: str, variant: Variant) -> str:
    """Return the file name at the end of a variant's URL, percent-encoded.

    :raises ValueError: for a name that is not one segment, or whose extension is not one of the
        variant's Content-Type.
    """
    require_type("file_name", name, (str,), "str")
    encoded = percent_encode(name.encode("utf-8", "surrogateescape"))
    try:
        parse_file_name(encoded.encode("ascii"))
    except ValueError as error:
        raise ValueError(f"file name {name!r}: {error}") from None
    kind = variant.content_type
    extensions = extensions_of(kind) or [str(variant.options.pk_fmt)]
    stem, _, extension = name.rpartition(".")
    if not stem or extension not in extensions:
        endings = " or ".join(f".{each}" for each in extensions)
        raise ValueError(f"file name {name!r}: a name that ends in {endings} suits {kind}")
    return encoded


def extensions_of(content_type: str) -> list[str]:
    """Return the extensions of files with the Content-Type of a format; none for other types.

    The extension of each format is its token. The formats of Ogg share their Content-Type.
    """
    return [row.token for row in FORMATS.values() if row.content_type == content_type]


def _require_variant(variant: Variant | None) -> Variant:
    if variant is None:
        return Variant()
    require_type("variant", variant, (Variant,), "Variant(...) or Variant.read(...)")
    return variant


def _unix_seconds(value: float | datetime) -> int:
    if not isinstance(value, datetime):
        return _whole_seconds("expires_at", value, "a number of Unix seconds or datetime")
    if value.utcoffset() is None:
        raise ValueError(
            f"expires_at: {value.isoformat()} has no time zone; add one, such as"
            " datetime.now(UTC) has"
        )
    return _whole_seconds("expires_at", value - _EPOCH)


def _whole_seconds(
    name: str, span: float | timedelta, accepted: str = "a number of seconds or timedelta"
) -> int:
    """Return a time in seconds, rounded up."""
    require_type(name, span, (Real, timedelta), accepted)
    if isinstance(span, timedelta):
        return -(-span // _SECOND)
    if not math.isfinite(span):
        raise ValueError(f"{name}: {span} is not a number of seconds")
    return math.ceil(span)


def _spell_source(source: SourceLike, encoded: bool) -> str:
    raw = read_source(source).canonical
    if encoded or _DOT_SEGMENT.search(raw):
        return "enc/" + base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")
    return "plain/" + quote(raw, safe="/:")


def _secret(name: str, text: str, least: int) -> bytes:
    require_type(name, text, (str,), "str")
    try:
        return secret_parser(least)(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
