"""What the page asks of the holder of the key: URLs, and why there are none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any
from urllib.parse import unquote_to_bytes

from audioproxy.grammar.formats import FORMATS, LOSSY_RATE_CEILING, Format
from audioproxy.grammar.options import VariantOptions, refusals
from audioproxy.urls import InvalidOptions, Signer, Variant, local

#: Those that change what is heard, so that the waveform takes part in them.
SHAPING = ("t", "ch", "fade", "gain", "norm", "enhance")
#: Those of the waveform alone.
DRAWING = ("pts", "pk_fmt", "pk_bits")

#: Rates to offer for a format that takes nearly every one.
RATES = (8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000, 88200, 96000, 192000)

_OPTIONS = tuple(field.name for field in fields(Variant) if field.init)


def describe_formats() -> dict[str, object]:
    """Return the document of what goes with each format, from the service's own table."""
    return {"formats": [_describe(form) for form in FORMATS.values()]}


def _describe(form: Format) -> dict[str, object]:
    # Each with a value that this format takes, if it takes any: what is refused then is the option.
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


def sign(signer: Signer, parameters: Mapping[str, str]) -> dict[str, object]:
    """Return the document with the URLs of a variant, of its waveform and of what its source is.

    :param parameters: the options as a URL spells their values, ``source`` as `list_sources` has
        it, and ``exp`` as seconds from now.
    :raises Refusal: what the service would answer.
    """
    given = dict(parameters)
    source = local(unquote_to_bytes(given.pop("source", "")))
    expires_in = _read_seconds(given.pop("exp", None))
    for name in given.keys() - set(_OPTIONS):
        raise InvalidOptions(f'"{name}" is not accepted: the options are {", ".join(_OPTIONS)}.')
    drawing = {name: value for name, value in given.items() if name in SHAPING + DRAWING}
    drawn = _variant(f="peaks", **drawing)
    if given.get("f") == "peaks":
        heard = _variant(**given)
    else:
        heard = _variant(**{name: text for name, text in given.items() if name not in DRAWING})
    return {
        "url": signer.url(source, heard, expires_in=expires_in),
        "canonical": heard.canonical,
        "key": heard.key(source),
        "waveform": signer.url(source, drawn, expires_in=expires_in),
        "info": signer.info_url(source),
    }


def _variant(**options: Any) -> Variant:
    # The fields take text too, spelled as in a URL.
    return Variant(**options)


def _read_seconds(text: str | None) -> int | None:
    if text is None:
        return None
    if re.fullmatch(r"-?[0-9]{1,9}", text) is None:
        raise InvalidOptions(f'"exp" is not accepted: {text!a} is no whole number of seconds.')
    return int(text)
