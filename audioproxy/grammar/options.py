"""The options of a variant as one value, and the canonical options string."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any

from audioproxy.grammar.formats import FORMATS, LOSSY_RATE_CEILING, Format
from audioproxy.grammar.values import percent_encode, print_decimal

#: Values of options that the URL of a waveform omits; they are part of the cache key.
PEAKS_DEFAULTS: dict[str, Any] = {"ch": 1, "pk_bits": 16, "pk_fmt": "json", "pts": 800}

_PEAKS_CONTENT_TYPES = {"json": "application/json", "dat": "application/octet-stream"}


@dataclass(frozen=True, slots=True)
class Trim:
    """A region of the source, in seconds. Without a duration it extends to the end."""

    start: Decimal
    duration: Decimal | None = None

    def __str__(self) -> str:
        return _join(self.start, self.duration)


@dataclass(frozen=True, slots=True)
class Fade:
    """Lengths of the fade-in and the fade-out, in seconds; 0 means no fade."""

    fade_in: Decimal
    fade_out: Decimal = Decimal(0)

    def __str__(self) -> str:
        return _join(self.fade_in, self.fade_out or None)


@dataclass(frozen=True, slots=True)
class LoudnessTargets:
    """Targets of EBU R 128 normalization: LUFS, dBTP and LU."""

    integrated: Decimal = Decimal(-16)
    true_peak: Decimal = Decimal("-1.5")
    loudness_range: Decimal = Decimal(11)

    def __str__(self) -> str:
        return "ebu:" + _join(self.integrated, self.true_peak, self.loudness_range)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantOptions:
    """All variant options of one URL; None is an option that the URL omits.

    The fields have the names of the option keys. The values are those of
    `audioproxy.grammar.parser`; `refusals` returns the conflicts between them.
    """

    f: str = "mp3"
    br: int | None = None
    q: Decimal | None = None
    sr: int | None = None
    ch: int | None = None
    bd: str | None = None
    t: Trim | None = None
    fade: Fade | None = None
    gain: Decimal | None = None
    norm: LoudnessTargets | None = None
    enhance: str | None = None
    pts: int | None = None
    pk_fmt: str | None = None
    pk_bits: int | None = None
    dl: str | None = None
    cb: bytes | None = None

    @property
    def format(self) -> Format:
        """The row of the output format."""
        return FORMATS[self.f]

    @property
    def content_type(self) -> str:
        """The Content-Type of the variant."""
        return self.format.content_type or _PEAKS_CONTENT_TYPES[self.pk_fmt or "json"]

    def canonical(self) -> str:
        """Return the canonical options string: ascending keys, shortest values (D4)."""
        return "/".join(
            f"{key}:{_show(value)}"
            for key in _ASCENDING
            if (value := getattr(self, key)) is not None
        )


_ASCENDING = tuple(sorted(field.name for field in fields(VariantOptions)))


def refusals(options: VariantOptions) -> Iterator[tuple[str, str]]:
    """Yield each conflict between options that are valid separately.

    A conflict is a pair: the key of the offending segment, and the end of a sentence that says what
    would be accepted.
    """
    for key, rule in _RULES:
        if getattr(options, key) is not None and (why := rule(options)):
            yield key, why


def _show(value: object) -> str:
    if isinstance(value, Decimal):
        return print_decimal(value)
    if isinstance(value, bytes):
        return percent_encode(value)
    # Of the text options only `dl` can contain a character that must be escaped. A Trim, Fade or
    # LoudnessTargets formats itself.
    return percent_encode(value.encode()) if isinstance(value, str) else str(value)


def _join(*parts: Decimal | None) -> str:
    return ":".join(print_decimal(part) for part in parts if part is not None)


def _missing(form: Format, what: str, key: str, have: Callable[[Format], object]) -> str:
    *head, tail = (row.token for row in FORMATS.values() if have(row))
    return f"f:{form.token} has no {what} to set; {key} goes with {', '.join(head)} and {tail}"


def _bitrate(options: VariantOptions) -> str | None:
    form = options.format
    if form.br is None:
        return _missing(form, "bitrate", "br", lambda row: row.br)
    if options.q is not None:
        return "br and q exclude each other; one of them is expected"
    low, high = form.br
    if not low <= (options.br or 0) <= high:
        return f"f:{form.token} takes {low} to {high} kbps"
    return None


def _quality(options: VariantOptions) -> str | None:
    form, q = options.format, options.q or Decimal(0)
    if form.q is None:
        return _missing(form, "quality", "q", lambda row: row.q)
    low, high = form.q
    kind = "a whole number" if form.q_whole else "a number"
    if not Decimal(low) <= q <= Decimal(high) or (form.q_whole and q % 1):
        return f"f:{form.token} takes {kind} from {low} to {high}"
    return None


def _rate(options: VariantOptions) -> str | None:
    form, rate = options.format, options.sr or 0
    if form.token == "peaks":
        return "f:peaks has no sample rate to set; sr goes with every other format"
    if form.lossy and rate > LOSSY_RATE_CEILING:
        return f"a lossy format takes at most {LOSSY_RATE_CEILING} Hz"
    if not form.rates.accepts(rate):
        return f"f:{form.token} takes {form.rates.describe(LOSSY_RATE_CEILING)} Hz"
    return None


def _depth(options: VariantOptions) -> str | None:
    form = options.format
    if not form.depths:
        return _missing(form, "bit depth", "bd", lambda row: row.depths)
    if options.bd not in form.depths:
        return f"f:{form.token} takes {' or '.join(form.depths)}"
    return None


def _fade(options: VariantOptions) -> str | None:
    duration = options.t.duration if options.t else None
    fade = options.fade
    if fade and duration is not None and max(fade.fade_in, fade.fade_out) > duration:
        return f"t limits the output to {print_decimal(duration)} s, and a fade cannot be longer"
    return None


def _peaks_only(options: VariantOptions) -> str | None:
    return None if options.f == "peaks" else "it goes with f:peaks only"


_RULES: tuple[tuple[str, Callable[[VariantOptions], str | None]], ...] = (
    ("br", _bitrate),
    ("q", _quality),
    ("sr", _rate),
    ("bd", _depth),
    ("fade", _fade),
    ("pts", _peaks_only),
    ("pk_fmt", _peaks_only),
    ("pk_bits", _peaks_only),
)
