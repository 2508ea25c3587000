"""Descriptions of options for ``audioproxy explain``."""

from __future__ import annotations

from collections.abc import Iterator

from audioproxy.grammar.options import PEAKS_DEFAULTS, VariantOptions
from audioproxy.grammar.values import print_decimal

_CONTAINERS = {
    "mp3": "MPEG audio, layer III",
    "opus": "Opus in Ogg",
    "ogg": "Vorbis in Ogg",
    "aac": "AAC in ADTS",
    "m4a": "AAC in fragmented MP4",
    "flac": "FLAC, lossless",
    "wav": "PCM in WAVE, lossless",
    "peaks": "a waveform",
}
_DEFAULT_QUALITIES = {
    "mp3": "192 kbps",
    "opus": "128 kbps",
    "aac": "160 kbps",
    "m4a": "160 kbps",
    "ogg": "quality 5",
    "flac": "compression level 5",
}


def describe_options(options: VariantOptions) -> Iterator[tuple[str, str]]:
    """Yield each segment of the canonical options string with its description."""
    for segment in options.canonical().split("/"):
        key = segment.partition(":")[0]
        yield segment, _describe(key, options)


def describe_defaults(options: VariantOptions) -> Iterator[str]:
    """Yield the defaults of the omitted options that affect the sound."""
    if options.br is None and options.q is None and options.f in _DEFAULT_QUALITIES:
        yield _DEFAULT_QUALITIES[options.f]
    if options.sr is None:
        nearest = "" if options.f in ("flac", "wav", "peaks") else ", or the nearest supported one"
        yield f"the source's sample rate{nearest}"
    if options.ch is None:
        yield "the source's channels, at most 2"
    if options.bd is None and options.format.depths:
        yield "the source's bit depth"
    if options.t is None:
        yield "the whole length"


def _describe(key: str, options: VariantOptions) -> str:
    value = getattr(options, key)
    if key == "t":
        start = print_decimal(value.start)
        if value.duration is None:
            return f"from second {start} to the end"
        return f"{print_decimal(value.duration)} s, from second {start} on"
    if key == "fade":
        fade_in, fade_out = print_decimal(value.fade_in), print_decimal(value.fade_out)
        return f"fade-in of {fade_in} s and fade-out of {fade_out} s"
    if key == "norm":
        loud, peak, width = map(
            print_decimal, (value.integrated, value.true_peak, value.loudness_range)
        )
        return f"loudness normalized to {loud} LUFS, at most {peak} dBTP, range {width} LU"
    if key == "q":
        kind = "compression level" if options.format.q_whole else "quality (variable bit rate)"
        return f"{kind} {print_decimal(value)}"
    if key == "f":
        return f"{_CONTAINERS[value]} ({options.content_type})"
    if key == "gain":
        return f"gain of {print_decimal(value)} dB"
    if key == "cb":
        return "no effect except another cache key"
    default = " (the default)" if options.f == "peaks" and PEAKS_DEFAULTS.get(key) == value else ""
    return _PHRASES[key].format(value) + default


_PHRASES = {
    "br": "bit rate of {} kbps",
    "sr": "sample rate of {} Hz",
    "ch": "channels: {}",
    "bd": "bit depth of {}",
    "enhance": "the preset {}: high-pass, denoise, de-ess, compress, limit",
    "pts": "{} pixels, each a minimum and a maximum",
    "pk_fmt": "serialized as {}",
    "pk_bits": "values of {} bits",
    "dl": "browsers save it as {}",
}
