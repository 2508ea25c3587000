"""Signing for the page: documents with URLs, and the options that each format accepts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from audioproxy.grammar.formats import FORMATS, LOSSY_RATE_CEILING, Format
from audioproxy.grammar.options import VariantOptions, refusals
from audioproxy.grammar.sources import Source
from audioproxy.urls import InvalidOptions, Signer, Variant
from examples.player.snippets import write_snippets

#: Options that change the audio, and therefore the waveform too.
SHAPING = ("t", "ch", "fade", "gain", "norm", "enhance")
#: Options of the waveform only.
DRAWING = ("pts", "pk_fmt", "pk_bits")

#: Rates that the page offers for a format that accepts nearly every rate.
RATES = (8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000, 88200, 96000, 192000)

_OPTIONS = tuple(field.name for field in fields(Variant) if field.init)


def describe_formats() -> dict[str, object]:
    """Return the document with the options of each format, from the service's own table.

    ``shaping`` are the options that change the audio.
    """
    return {"formats": [_describe(form) for form in FORMATS.values()], "shaping": SHAPING}


def _describe(form: Format) -> dict[str, object]:
    # Each value is one that this format accepts, if it accepts any. So if the value is refused, the
    # format does not support the option.
    probes: dict[str, Any] = {
        "br": form.br[0] if form.br else 1,
        "q": Decimal(form.q[0] if form.q else 1),
        "sr": form.rates.nearest(44100),
        "bd": form.depths[0] if form.depths else "16",
    }
    unavailable: dict[str, str] = {}
    for key, value in probes.items():
        unavailable |= dict(refusals(VariantOptions(f=form.token, **{key: value})))
    ceiling = LOSSY_RATE_CEILING if form.lossy else RATES[-1]
    rates = form.rates.listed or RATES
    return {
        "token": form.token,
        "content_type": form.content_type,
        "br": form.br,
        "q": form.q and [float(bound) for bound in form.q],
        "q_whole": form.q_whole,
        "bd": form.depths,
        "sr": [rate for rate in rates if rate <= ceiling and form.rates.accepts(rate)],
        "unavailable": unavailable,
    }


def sign(
    signer: Signer,
    find: Callable[[str], Source],
    env_file: Path,
    parameters: Mapping[str, str],
) -> dict[str, object]:
    """Return the document with the URLs of a variant, of its waveform and of the source's info.

    ``original`` is the URL of the same part of the source, without loss and without other options.
    ``snippets`` are programs that print ``url``, or fetch or embed it.

    :param find: returns a source, as `Sources.find` does.
    :param env_file: a file with the settings of the service.
    :param parameters: ``source``, the options with their values as in a URL, and ``exp`` as seconds
        from now.
    :raises Refusal: for options and sources that the service would refuse.
    """
    given = dict(parameters)
    source = find(given.pop("source", ""))
    expires_in = _read_seconds(given.pop("exp", None))
    expires_at = None if expires_in is None else int(signer.now()) + expires_in
    for name in given.keys() - set(_OPTIONS):
        raise InvalidOptions(f'"{name}" is not accepted: the options are {", ".join(_OPTIONS)}.')

    def build_url(variant: Variant) -> str:
        return signer.url(source, variant, expires_at=expires_at)

    drawing = {name: value for name, value in given.items() if name in SHAPING + DRAWING}
    if given.get("f") == "peaks":
        heard = read_variant(**given)
    else:
        heard = read_variant(**{name: text for name, text in given.items() if name not in DRAWING})
    url = build_url(heard)
    return {
        "url": url,
        "canonical": heard.canonical,
        "key": heard.key(source),
        "waveform": build_url(read_variant(**{**drawing, "f": "peaks"})),
        "original": build_url(Variant(f="flac", t=given.get("t"))),
        "info": signer.info_url(source),
        "snippets": write_snippets(url, signer.base, source, heard, expires_at, env_file),
    }


def read_variant(**options: Any) -> Variant:
    """Return the variant of options whose values are text, spelled as in a URL."""
    return Variant(**options)


def _read_seconds(text: str | None) -> int | None:
    if text is None:
        return None
    if re.fullmatch(r"-?[0-9]{1,9}", text) is None:
        raise InvalidOptions(f'"exp" is not accepted: {text!a} is not a whole number of seconds.')
    return int(text)
