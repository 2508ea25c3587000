"""Descriptions of options for ``audioproxy explain``."""

from __future__ import annotations

from collections.abc import Iterator

from audioproxy.grammar.options import OPTIONS, VariantOptions


def describe_options(options: VariantOptions) -> Iterator[tuple[str, str]]:
    """Yield each segment of the canonical options string with its description."""
    for segment in options.canonical().split("/"):
        key = segment.partition(":")[0]
        yield segment, OPTIONS[key].describe(getattr(options, key), options)


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
