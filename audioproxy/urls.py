"""Creates and signs URLs: the library for client applications.

It needs neither Twisted nor the service's configuration::

    from audioproxy.urls import Signer, Variant, local

    signer = Signer.from_hex(key, salt, "https://audio.example")  # AP_KEY, AP_SALT
    preview = Variant(f="opus", br=96, t=(30, 15), fade=(0.5, 2))
    signer.url("s3://masters/piece.wav", preview, expires_in=3600)
    signer.info_url(local("masters/Größe.wav"))

Everything that the service refuses is refused here with the same message: options with
`InvalidOptions`, malformed sources with `NotFound`, and an expiry in the past with `Expired`.
"""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields
from decimal import Decimal
from typing import Any, Literal
from urllib.parse import quote

from audioproxy.errors import Expired, InvalidOptions, NotFound, Refusal
from audioproxy.grammar.cache_key import cache_key
from audioproxy.grammar.expiry import expired
from audioproxy.grammar.options import Fade, LoudnessTargets, Trim, VariantOptions
from audioproxy.grammar.parser import read_options
from audioproxy.grammar.signature import sign
from audioproxy.grammar.signing_secrets import MIN_KEY_BYTES, MIN_SALT_BYTES, secret_reader
from audioproxy.grammar.sources import (
    LocalSource,
    S3Source,
    Source,
    parse_source,
)
from audioproxy.grammar.values import percent_encode

__all__ = [
    "Expired",
    "InvalidOptions",
    "NotFound",
    "Refusal",
    "Signer",
    "Variant",
    "local",
    "read_source",
    "s3",
]

#: A number as options accept it: at most 9 digits before the point and 3 after it. A number with
#: more digits is refused, never rounded.
Number = int | float | str | Decimal

#: A source: its string without any encoding (``s3://masters/piece.wav``), or a value from `local`,
#: `s3` or `read_source`.
SourceLike = str | bytes | Source

# Clients remove dot segments from a path before they send it, which makes the signature wrong (RFC
# 3986, 5.2.4; URL standard, 4.4).
_DOT_SEGMENT = re.compile(rb"(?:^|/)\.{1,2}(?:/|$)")
# The characters that browsers send unchanged: visible ASCII except # and ?, and except those that
# browsers encode or turn into a slash (URL standard, 1.3 and 4.4). Browsers treat an encoded dot as
# a dot.
_PATH = re.compile(r"/[!$-;=@-\[\]_a-z|~]*")
_DOTS = re.compile(r"/(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)
_BASE = re.compile(r"(?:https?://[A-Za-z0-9._:\[\]-]+)?(?:/[!$-;=@-Z_a-z~]*)?")


def local(path: str | bytes | os.PathLike[str]) -> LocalSource:
    """Return the source that is a file below AP_LOCAL_ROOT.

    :param path: relative to the root, unencoded.
    :raises NotFound: for a path that cannot be a source; the text says why.
    """
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise NotFound(str(error)) from None
    source = read_source(b"local://" + raw)
    assert isinstance(source, LocalSource)
    return source


def s3(bucket: str, key: str | bytes) -> S3Source:
    """Return the source that is an object in a bucket.

    :param key: unencoded; text is encoded as UTF-8.
    :raises NotFound: for a bucket or a key that cannot be a source; the text says why.
    """
    text = key if isinstance(key, str) else key.decode("utf-8", "surrogateescape")
    source = read_source(f"s3://{bucket}/{text}")
    if not isinstance(source, S3Source) or source.bucket != bucket:
        raise NotFound("a bucket name has no slash")
    return source


def read_source(text: SourceLike) -> Source:
    """Return the source of a string that begins with ``local://``, ``s3://`` or ``https://``.

    :param text: unencoded, except for encoding that is part of an https URL.
    :raises NotFound: for text that the service refuses as a source; the text of the error says why.
    """
    try:
        raw = _bytes(text) if isinstance(text, str | bytes) else text.canonical
        return parse_source(raw)
    except ValueError as error:
        raise NotFound(str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The options of a variant. Fields have the names of the options; None omits an option.

    ``t=30`` starts at second 30, ``t=(30, 15)`` lasts 15 seconds from there. ``norm="ebu"`` has the
    service's default targets, ``norm=(-14, -1)`` has others.

    :ivar br: kbps.
    :ivar sr: Hz.
    :ivar t: seconds: the start, or the start and a duration.
    :ivar fade: seconds: the fade-in, or the fade-in and the fade-out.
    :ivar gain: dB.
    :ivar norm: LUFS, dBTP and LU, or only the first of these.
    :ivar pts: pixels of a waveform.
    :ivar dl: a file name, unencoded.
    :ivar cb: any text or bytes, unencoded.
    :raises InvalidOptions: for a value or a conflict that the service refuses, with the same
        message.
    """

    f: Literal["mp3", "opus", "ogg", "aac", "m4a", "flac", "wav", "peaks"] = "mp3"
    br: int | None = None
    q: Number | None = None
    sr: int | None = None
    ch: Literal[1, 2] | None = None
    bd: Literal[16, 24, "16", "24", "32f"] | None = None
    t: Number | tuple[Number] | tuple[Number, Number] | None = None
    fade: Number | tuple[Number] | tuple[Number, Number] | None = None
    gain: Number | None = None
    norm: Literal["ebu"] | tuple[Number, ...] | None = None
    enhance: Literal["voice"] | None = None
    pts: int | None = None
    pk_fmt: Literal["json", "dat"] | None = None
    pk_bits: Literal[8, 16] | None = None
    dl: str | None = None
    cb: str | bytes | None = None
    _options: VariantOptions = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        segments = [
            _option_bytes(f"{row.name}:{_format_value(row.name, value)}")
            for row in fields(self)
            if row.init and (value := getattr(self, row.name)) is not None
        ]
        object.__setattr__(self, "_options", read_options(segments)[0])

    @classmethod
    def read(cls, segments: str) -> Variant:
        """Return the variant of option segments as they stand in a URL: ``f:opus/br:96``.

        :raises InvalidOptions: for segments that the service refuses, and for ``exp``, which is an
            option of a URL and not of a variant.
        """
        options, exp = read_options(_option_bytes(segments).split(b"/") if segments else [])
        if exp is not None:
            raise InvalidOptions(f'"exp:{exp}" is not accepted: a variant never expires.')
        values = {row.name: getattr(options, row.name) for row in fields(cls) if row.init}
        return cls(**{name: _numbers(value) for name, value in values.items()})

    @property
    def options(self) -> VariantOptions:
        """The parsed options."""
        return self._options

    @property
    def canonical(self) -> str:
        """The canonical options string, which the URLs contain."""
        return self._options.canonical()

    @property
    def content_type(self) -> str:
        """The Content-Type that the variant is served with."""
        return self._options.content_type

    def key(self, source: SourceLike) -> str:
        """Return the cache key of this variant of a source: 64 lower-case hexadecimal digits.

        It is the variant's ETag and its name in the store.
        """
        return cache_key(self._options, read_source(source).canonical)


@dataclass(frozen=True, slots=True)
class Signer:
    """Creates URLs that a service with the same key and salt accepts.

    :ivar key: AP_KEY, decoded: at least 32 bytes.
    :ivar salt: AP_SALT, decoded: at least 1 byte.
    :ivar base: the text before the signature: an origin, the mount point of the resource, both, or
        nothing.
    :ivar encoded: write every source in base64url, which hides its name from a casual reader. This
        is not encryption.
    :ivar now: Unix time in seconds.
    :raises ValueError: for an invalid key, salt or base.
    """

    key: bytes = field(repr=False)
    salt: bytes = field(repr=False)
    base: str = ""
    _: KW_ONLY
    encoded: bool = False
    now: Callable[[], float] = field(default=time.time, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.key, bytes) or len(self.key) < MIN_KEY_BYTES:
            raise ValueError(
                f"a key is at least {MIN_KEY_BYTES} bytes;"
                " Signer.from_hex accepts the text of AP_KEY"
            )
        if not isinstance(self.salt, bytes) or len(self.salt) < MIN_SALT_BYTES:
            raise ValueError(
                "a salt is at least 1 byte; Signer.from_hex accepts the text of AP_SALT"
            )
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

        :raises ValueError: for text that is not hexadecimal, or too short. The error does not quote
            it.
        """
        raw_key = _secret("AP_KEY", key, MIN_KEY_BYTES)
        return cls(
            raw_key, _secret("AP_SALT", salt, MIN_SALT_BYTES), base, encoded=encoded, now=now
        )

    def url(
        self,
        source: SourceLike,
        variant: Variant | None = None,
        *,
        expires_in: int | None = None,
        expires_at: int | None = None,
    ) -> str:
        """Return the signed URL of a variant, by default an mp3 without other options.

        :param expires_in: seconds from now until the service refuses the URL.
        :param expires_at: the same time, as Unix seconds. URLs with the same ``expires_at`` are the
            same for caches.
        :raises Expired: if that time has already passed.
        """
        segments = (variant or Variant()).canonical.split("/")
        if expires_in is not None and expires_at is not None:
            raise ValueError("expires_in and expires_at exclude each other")
        exp = expires_at if expires_in is None else int(self.now()) + expires_in
        if exp is not None:
            # The order does not matter to the service.
            segments.append(f"exp:{exp}")
            read_options([segments[-1].encode("ascii")])
            if expired(exp, self.now()):
                raise Expired
        return self._signed("/".join(segments), source)

    def info_url(self, source: SourceLike) -> str:
        """Return the signed URL of a source's info document. It has no options or expiry."""
        return self._signed("info", source)

    def sign(self, path: str) -> str:
        """Return the base, the signature and a path that the caller wrote.

        :param path: everything after the signature, percent-encoded as it is sent, with its leading
            slash.
        :raises ValueError: for a path that clients would change before sending it.
        """
        if _PATH.fullmatch(path) is None:
            raise ValueError("a path starts with a slash, is percent-encoded and has no query")
        if _DOTS.search(path):
            raise ValueError("clients remove . and .. segments from a path; use enc/")
        signature = sign(self.key, self.salt, path.encode("ascii")).decode("ascii")
        return f"{self.base.rstrip('/')}/{signature}{path}"

    def _signed(self, options: str, source: SourceLike) -> str:
        raw = read_source(source).canonical
        if self.encoded or _DOT_SEGMENT.search(raw):
            spelled = "enc/" + base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")
        else:
            spelled = "plain/" + quote(raw, safe="/:")
        return self.sign(f"/{options}/{spelled}")


def _bytes(text: str | bytes) -> bytes:
    # File names that are not UTF-8 come from `os` with surrogates.
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def _option_bytes(text: str | bytes) -> bytes:
    try:
        return _bytes(text)
    except UnicodeEncodeError as error:
        raise InvalidOptions(f"An option has text that is not valid Unicode: {error}.") from None


def _secret(name: str, text: str, least: int) -> bytes:
    try:
        return secret_reader(least)(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _numbers(value: Any) -> Any:
    """Return a parsed option as the value that a `Variant` field accepts."""
    if isinstance(value, Trim):
        return (value.start,) if value.duration is None else (value.start, value.duration)
    if isinstance(value, Fade):
        return (value.fade_in, value.fade_out)
    if isinstance(value, LoudnessTargets):
        return (value.integrated, value.true_peak, value.loudness_range)
    return value


def _format_value(name: str, value: object) -> str:
    """Return a field's value as a segment spells it; the parser refuses invalid values."""
    if name in ("dl", "cb") and isinstance(value, str | bytes):
        return percent_encode(_option_bytes(value))
    if isinstance(value, tuple):
        parts = [_format_value("", part) for part in value]
        return ":".join(["ebu", *parts] if name == "norm" else parts)
    return format(value, "f") if isinstance(value, Decimal) else str(value)
