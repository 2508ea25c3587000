"""The table of options, the options of a variant as one value, and their canonical string."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any

from audioproxy.grammar.formats import FORMATS, LOSSY_RATE_CEILING, Format
from audioproxy.grammar.values import (
    Fade,
    LoudnessTargets,
    Trim,
    choice,
    integer,
    number_choice,
    parse_bytes,
    parse_decimal,
    parse_file_name,
    parse_integer,
    print_decimal,
    spell,
)

_PEAKS_CONTENT_TYPES = {"json": "application/json", "dat": "application/octet-stream"}


@dataclass(frozen=True, slots=True)
class Option:
    """One option; the field of `VariantOptions` has its name, its type and its default.

    The canonical spelling follows from the type (`audioproxy.grammar.values.spell`).

    :ivar help: a description with a placeholder for the value, or a function that returns it.
    :ivar rule: returns why the option conflicts with others, as the end of a sentence that says
        what would be accepted, or None.
    :ivar peaks_default: the value that the URL of a waveform omits; it is part of the cache key.
    """

    parse: Callable[[bytes], Any]
    help: str | Callable[[Any, VariantOptions], str]
    rule: Callable[[VariantOptions], str | None] | None
    peaks_default: int | str | None


def _option(
    parse: Callable[[bytes], Any],
    help: str | Callable[[Any, VariantOptions], str],
    rule: Callable[[VariantOptions], str | None] | None = None,
    *,
    default: str | None = None,
    peaks_default: int | str | None = None,
) -> Any:
    return field(default=default, metadata={"row": Option(parse, help, rule, peaks_default)})


def _missing(form: Format, what: str, key: str, have: Callable[[Format], object]) -> str:
    *head, tail = (row.token for row in FORMATS.values() if have(row))
    return f"f:{form.token} has no {what} to set; {key} goes with {', '.join(head)} and {tail}"


def _bitrate_rule(options: VariantOptions) -> str | None:
    form = options.format
    if form.br is None:
        return _missing(form, "bitrate", "br", lambda row: row.br)
    if options.q is not None:
        return "br and q exclude each other; one of them is expected"
    low, high = form.br
    if not low <= (options.br or 0) <= high:
        return f"f:{form.token} takes {low} to {high} kbps"
    return None


def _quality_rule(options: VariantOptions) -> str | None:
    form, q = options.format, options.q or Decimal(0)
    if form.q is None:
        return _missing(form, "quality", "q", lambda row: row.q)
    low, high = form.q
    kind = "a whole number" if form.q_whole else "a number"
    if not Decimal(low) <= q <= Decimal(high) or (form.q_whole and q % 1):
        return f"f:{form.token} takes {kind} from {low} to {high}"
    return None


def _rate_rule(options: VariantOptions) -> str | None:
    form, rate = options.format, options.sr or 0
    if form.token == "peaks":
        return "f:peaks has no sample rate to set; sr goes with every other format"
    if form.lossy and rate > LOSSY_RATE_CEILING:
        return f"a lossy format takes at most {LOSSY_RATE_CEILING} Hz"
    if not form.rates.accepts(rate):
        return f"f:{form.token} takes {form.rates.describe(LOSSY_RATE_CEILING)} Hz"
    return None


def _depth_rule(options: VariantOptions) -> str | None:
    form = options.format
    if not form.depths:
        return _missing(form, "bit depth", "bd", lambda row: row.depths)
    if options.bd not in form.depths:
        return f"f:{form.token} takes {' or '.join(form.depths)}"
    return None


def _fade_rule(options: VariantOptions) -> str | None:
    duration = options.t.duration if options.t else None
    fade = options.fade
    if fade and duration is not None and max(fade.fade_in, fade.fade_out) > duration:
        return f"t limits the output to {print_decimal(duration)} s, and a fade cannot be longer"
    return None


def _peaks_rule(options: VariantOptions) -> str | None:
    return None if options.f == "peaks" else "it goes with f:peaks only"


def _describe_format(token: str, options: VariantOptions) -> str:
    return f"{FORMATS[token].description} ({options.content_type})"


def _describe_quality(q: Decimal, options: VariantOptions) -> str:
    kind = "compression level" if options.format.q_whole else "quality (variable bit rate)"
    return f"{kind} {print_decimal(q)}"


def _describe_trim(trim: Trim, options: VariantOptions) -> str:
    start = print_decimal(trim.start)
    if trim.duration is None:
        return f"from second {start} to the end"
    return f"{print_decimal(trim.duration)} s, from second {start} on"


def _describe_fade(fade: Fade, options: VariantOptions) -> str:
    fade_in, fade_out = print_decimal(fade.fade_in), print_decimal(fade.fade_out)
    return f"fade-in of {fade_in} s and fade-out of {fade_out} s"


def _describe_loudness(norm: LoudnessTargets, options: VariantOptions) -> str:
    loud, peak, width = map(print_decimal, (norm.integrated, norm.true_peak, norm.loudness_range))
    return f"loudness normalized to {loud} LUFS, at most {peak} dBTP, range {width} LU"


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantOptions:
    """All variant options of one URL, one row for each; None is an option that the URL omits.

    `refusals` returns the conflicts between values that are valid separately.
    """

    f: str = _option(choice(*FORMATS), _describe_format, default="mp3")
    # The bounds of `br` and `q` depend on the format.
    br: int | None = _option(parse_integer, "bit rate of {} kbps", _bitrate_rule)
    q: Decimal | None = _option(parse_decimal, _describe_quality, _quality_rule)
    sr: int | None = _option(integer(1000, 384_000), "sample rate of {} Hz", _rate_rule)
    ch: int | None = _option(number_choice("1", "2"), "channels: {}", peaks_default=1)
    bd: str | None = _option(choice("16", "24", "32f"), "bit depth of {}", _depth_rule)
    t: Trim | None = _option(Trim.parse, _describe_trim)
    fade: Fade | None = _option(Fade.parse, _describe_fade, _fade_rule)
    gain: Decimal | None = _option(
        lambda text: parse_decimal(text, -60, 60, plus=True), "gain of {} dB"
    )
    norm: LoudnessTargets | None = _option(LoudnessTargets.parse, _describe_loudness)
    enhance: str | None = _option(
        choice("voice"), "the preset {}: high-pass, denoise, de-ess, compress, limit"
    )
    pts: int | None = _option(
        integer(1, 65_536),
        "{} pixels, each a minimum and a maximum",
        _peaks_rule,
        peaks_default=800,
    )
    pk_fmt: str | None = _option(
        choice("json", "dat"), "serialized as {}", _peaks_rule, peaks_default="json"
    )
    pk_bits: int | None = _option(
        number_choice("8", "16"), "values of {} bits", _peaks_rule, peaks_default=16
    )
    dl: str | None = _option(parse_file_name, "browsers save it as {}")
    cb: bytes | None = _option(parse_bytes, "no effect except another cache key")

    @property
    def format(self) -> Format:
        return FORMATS[self.f]

    @property
    def content_type(self) -> str:
        return self.format.content_type or _PEAKS_CONTENT_TYPES[self.pk_fmt or "json"]

    def canonical(self) -> str:
        """Return the options in ascending order of keys, with the shortest values (D4)."""
        return "/".join(self.segments().values())

    def segments(self) -> dict[str, str]:
        return {
            key: f"{key}:{spell(value)}"
            for key in _ASCENDING
            if (value := getattr(self, key)) is not None
        }


OPTIONS: dict[str, Option] = {row.name: row.metadata["row"] for row in fields(VariantOptions)}

#: Values of options that the URL of a waveform omits.
PEAKS_DEFAULTS: dict[str, Any] = {
    key: row.peaks_default for key, row in OPTIONS.items() if row.peaks_default is not None
}

_ASCENDING = tuple(sorted(OPTIONS))


def refusals(options: VariantOptions) -> Iterator[tuple[str, str]]:
    """Yield the key of each option that conflicts with others, and the reason of its rule."""
    for key, row in OPTIONS.items():
        if row.rule and getattr(options, key) is not None and (why := row.rule(options)):
            yield key, why


def describe_options(options: VariantOptions) -> Iterator[tuple[str, str]]:
    """Yield each segment of the canonical options string with its description."""
    for key, segment in options.segments().items():
        row, value = OPTIONS[key], getattr(options, key)
        if isinstance(row.help, str):
            shown = print_decimal(value) if isinstance(value, Decimal) else value
            default = options.f == "peaks" and value == row.peaks_default
            yield segment, row.help.format(shown) + (" (the default)" if default else "")
        else:
            yield segment, row.help(value, options)


def describe_defaults(options: VariantOptions) -> Iterator[str]:
    """Yield the defaults of the omitted options that affect the sound."""
    form = options.format
    if options.br is None and options.q is None:
        if form.default_br is not None:
            yield f"{form.default_br} kbps"
        elif form.default_q:
            yield f"{'compression level' if form.q_whole else 'quality'} {form.default_q}"
    if options.sr is None:
        nearest = ", or the nearest supported one" if form.lossy else ""
        yield f"the source's sample rate{nearest}"
    if options.ch is None:
        yield "the source's channels, at most 2"
    if options.bd is None and form.depths:
        yield "the source's bit depth"
    if options.t is None:
        yield "the whole length"
