"""The options of a variant, as the Python values that applications have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field, fields, is_dataclass
from datetime import timedelta
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, Literal

from audioproxy import errors
from audioproxy.errors import Refusal
from audioproxy.grammar.cache_key import cache_key
from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.values import percent_encode
from audioproxy.urls.sources import SourceLike, read_source, require_type, to_bytes

#: A number of an option. URLs have 3 decimal places: a float is rounded to them, any other number
#: with more places is refused.
Number = int | float | Decimal | str

#: A number of seconds.
Seconds = Number | timedelta

#: An output format.
Format = Literal["mp3", "opus", "ogg", "aac", "m4a", "flac", "wav", "peaks"]


class InvalidOptions(errors.InvalidOptions, ValueError):
    """An option that the service refuses with 422. The message quotes it."""


def parse_segments(segments: Iterable[str]) -> tuple[VariantOptions, int | None]:
    """Return the options and ``exp`` of segments; raise InvalidOptions where they are refused."""
    try:
        return parse_options([to_bytes(segment) for segment in segments])
    except UnicodeEncodeError as error:
        raise InvalidOptions(f"An option has text that is not valid Unicode: {error}.") from None
    except Refusal as refusal:
        raise InvalidOptions(refusal.message) from None


@dataclass(frozen=True, slots=True)
class _Kind:
    """The Python values that an option accepts.

    :ivar types: of a value. The abstract classes of numbers include those of NumPy. Text is spelled
        as in a URL.
    :ivar several: a sequence of such values is accepted too.
    :ivar encoded: the URL has the value percent-encoded.
    :ivar whole: numbers are whole. The parser refuses others.
    :ivar prefix: precedes numbers in the URL.
    """

    types: tuple[type, ...]
    description: str
    several: bool = False
    encoded: bool = False
    whole: bool = False
    prefix: str = ""

    def segment(self, name: str, value: Any) -> str:
        """Return the segment of an option. The parser refuses invalid values."""
        is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        values = value if self.several and is_list else (value,)
        parts = [self._spell(name, each) for each in values]
        if self.prefix and not isinstance(value, str):
            parts.insert(0, self.prefix)
        return f"{name}:{':'.join(parts)}"

    def _spell(self, name: str, value: Any) -> str:
        require_type(name, value, self.types, self.description)
        if self.encoded:
            return percent_encode(to_bytes(value))
        if isinstance(value, str):
            # The value of a member of an enumeration, not its name.
            return str.__str__(value)
        if isinstance(value, Decimal):
            return format(value, "f")
        if isinstance(value, Integral) or (self.whole and float(value).is_integer()):
            return str(int(value))
        if self.whole:
            return str(value)
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        return format(float(seconds), ".3f")


_NUMBER_TYPES = "int, float, Decimal or str"
_SEVERAL = "or a tuple or list of them"

_WORD = _Kind((str,), "str")
_TEXT = _Kind((str,), "str", encoded=True)
_BYTES = _Kind((str, bytes), "str or bytes", encoded=True)
_WHOLE = _Kind((Real, str), "int or str", whole=True)
_NUMBER = _Kind((Real, Decimal, str), _NUMBER_TYPES)
_LOUDNESS = _Kind(_NUMBER.types, f"{_NUMBER_TYPES}, {_SEVERAL}", several=True, prefix="ebu")
_SECONDS = _Kind(
    (*_NUMBER.types, timedelta), f"timedelta, {_NUMBER_TYPES}, {_SEVERAL}", several=True
)


# Names that other programs have for options, in lower case and without underscores.
_OTHER_NAMES = {
    "bitdepth": "bd",
    "bitrate": "br",
    "channels": "ch",
    "codec": "f",
    "download": "dl",
    "fadein": "fade",
    "fadeout": "fade",
    "filename": "dl",
    "format": "f",
    "loudness": "norm",
    "normalize": "norm",
    "preset": "enhance",
    "quality": "q",
    "samplerate": "sr",
    "trim": "t",
    "volume": "gain",
}


def _option(kind: _Kind, default: str | None = None) -> Any:
    return field(default=default, metadata={"kind": kind})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Variant:
    """The options of a variant. Fields have the names of the options; None omits an option.

    ``t=30`` starts at second 30, ``t=(30, 15)`` lasts 15 seconds from there. ``norm="ebu"`` has the
    service's default targets, ``norm=(-14, -1)`` has others.

    URLs have 3 decimal places. A float or a timedelta is rounded to them: ``t=(0.1 + 0.2, 5)`` is
    ``t=(0.3, 5)``. A Decimal, or text as in a URL, with more places is refused. Where an option is
    whole, so is its float: ``br=96.0``. Variants with the same canonical options are equal.

    :ivar f: the output format.
    :ivar br: kbps.
    :ivar q: quality, on the scale of the format.
    :ivar sr: Hz.
    :ivar ch: channels.
    :ivar bd: bit depth.
    :ivar t: seconds: the start, or the start and a duration.
    :ivar fade: seconds: the fade-in, or the fade-in and the fade-out.
    :ivar gain: dB.
    :ivar norm: LUFS, dBTP and LU, or only the first of these.
    :ivar enhance: a preset of filters.
    :ivar pts: pixels of a waveform.
    :ivar pk_fmt: serialization of a waveform.
    :ivar pk_bits: bits of each value of a waveform.
    :ivar dl: a file name, unencoded.
    :ivar cb: any text or bytes, unencoded.
    :ivar options: the parsed options.
    :raises InvalidOptions: for a value or a conflict that the service refuses.
    """

    f: Format = _option(_WORD, "mp3")
    br: int | None = _option(_WHOLE)
    q: Number | None = _option(_NUMBER)
    sr: int | None = _option(_WHOLE)
    ch: Literal[1, 2] | None = _option(_WHOLE)
    bd: Literal[16, 24, "16", "24", "32f"] | None = _option(_WHOLE)
    t: Seconds | Sequence[Seconds] | None = _option(_SECONDS)
    fade: Seconds | Sequence[Seconds] | None = _option(_SECONDS)
    gain: Number | None = _option(_NUMBER)
    norm: Literal["ebu"] | Number | Sequence[Number] | None = _option(_LOUDNESS)
    enhance: Literal["voice"] | None = _option(_WORD)
    pts: int | None = _option(_WHOLE)
    pk_fmt: Literal["json", "dat"] | None = _option(_WORD)
    pk_bits: Literal[8, 16] | None = _option(_WHOLE)
    dl: str | None = _option(_TEXT)
    cb: str | bytes | None = _option(_BYTES)
    options: VariantOptions = field(init=False, repr=False)

    def __new__(cls, **values: Any) -> Variant:
        """Raise TypeError for names that are no options, with a hint."""
        names = [row.name for row in fields(cls) if row.init]
        for name in values:
            if name.startswith("exp"):
                raise TypeError(f"Variant: {name} is an argument of Signer.url, not of a variant")
            if name not in names:
                meant = _OTHER_NAMES.get(name.lower().replace("_", ""))
                hint = f"did you mean {meant}?" if meant else f"use {', '.join(names)}"
                raise TypeError(f"Variant: {name} is not an option; {hint}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        segments = (
            row.metadata["kind"].segment(row.name, value)
            for row in fields(self)
            if row.init and (value := getattr(self, row.name)) is not None
        )
        object.__setattr__(self, "options", parse_segments(segments)[0])

    def __repr__(self) -> str:
        values = ((row.name, getattr(self, row.name)) for row in fields(self) if row.init)
        given = (f"{name}={value!r}" for name, value in values if value is not None)
        return f"Variant({', '.join(given)})"

    def __eq__(self, other: object) -> bool:
        return self.options == other.options if isinstance(other, Variant) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.options)

    @classmethod
    def read(cls, segments: str) -> Variant:
        """Return the variant of option segments as they stand in a URL: ``f:opus/br:96``.

        :raises InvalidOptions: for segments that the service refuses, and for ``exp``, which is an
            option of a URL and not of a variant.
        """
        require_type("segments", segments, (str,), "str")
        options, exp = parse_segments(segments.split("/") if segments else [])
        if exp is not None:
            raise InvalidOptions(
                f'"exp:{exp}" is not accepted: a variant never expires; the URL does, with'
                " expires_in or expires_at (--expires-in or --expires-at)."
            )
        values = {row.name: getattr(options, row.name) for row in fields(cls) if row.init}
        return cls(**{name: _accepted(value) for name, value in values.items()})

    @property
    def canonical(self) -> str:
        """The canonical options string, which the URLs contain."""
        return self.options.canonical()

    @property
    def content_type(self) -> str:
        """The Content-Type that the variant is served with."""
        return self.options.content_type

    def key(self, source: SourceLike) -> str:
        """Return the cache key of this variant of a source: its ETag and its name in the store."""
        return cache_key(self.options, read_source(source).canonical)


def _accepted(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(number for number in astuple(value) if number is not None)
    return value
