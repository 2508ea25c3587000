"""Calls of the libraries that build URLs, and what each has to answer.

The calls are the rows of ``tests/vectors``, and more. A call and an answer are JSON, so that
a program in another language can answer too.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from audioproxy import urls
from audioproxy.errors import Refusal
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.sources import Source
from audioproxy.grammar.values import percent_decode
from audioproxy.urls import Signer, Variant
from tests.test_vectors import SIGNATURES, base64url, mac, rows

BASE = "https://audio.example"
PAIR = SIGNATURES["pairs"][0]

#: Arguments of `Signer`.
SIGNER = {"key": PAIR["key"], "salt": PAIR["salt"], "base": BASE, "encoded": False, "now": 0}

#: Values of options, some of which the service refuses. None is a whole float, which JavaScript
#: does not tell from an integer.
VALUES: dict[str, tuple[Any, ...]] = {
    "f": ("mp3", "opus", "ogg", "aac", "m4a", "flac", "wav", "peaks", "MP3", ""),
    "br": (96, "0128", 8, 6, 320, 321, 510, 96.5, -1, "1e2", 10**9),
    "q": (0, 2.5, "2.50", "-0.0", -1, 9, 10, 12, 0.1, "+1", ".5", "1.2345"),
    "sr": (8000, 44100, 48000, 96000, 384000, 65535, 65540, "044100", 999),
    "ch": (1, 2, 3, "1", "01"),
    "bd": (16, 24, "16", "32f", 32),
    "t": (0, 30, [30, 15], [0.30000000000000004, 5], ["1.50", "2"], "1:2", [], [1, 0], "1:"),
    "fade": (0, 1, [0.5, 2], [0, 0.0625], "0.500:0", [1, 2, 3], 20),
    "gain": (-6, 0.5, "+3", "-60", 61, "1dB", -0.00001),
    "norm": ("ebu", -14, [-14, -1], [-23, "-2.0", 7], "ebu:-70", "EBU", [-4], [-16, -1, 0.5]),
    "enhance": ("voice", "music"),
    "pts": (1, 400, 65536, 65537, 0),
    "pk_fmt": ("json", "dat", "xml"),
    "pk_bits": (8, 16, 24),
    "dl": ("a b.mp3", "Größe: 100%.mp3", "a/b", "a\nb", "\u0085", "", "🎵", "x" * 256),
    "cb": ("v/2", "a:b", "%", "ä", "", "\x00", "x" * 255, "ä" * 128),
}
NAMES = ("a b", "%2e%2e", "..", ".", "a/../b", "../a", "//", "ä", "\xff", "\n", "?#", "~'()*!", "")


def bounds() -> Iterator[dict[str, Any]]:
    """Yield the options at the bounds of each format, and next to them."""
    rates = {rate for form in FORMATS.values() for rate in form.rates.listed}
    rates |= {48001, 65534, 65535, 65540, 200001, 384000}
    for form in FORMATS.values():
        low, high = form.br or (8, 320)
        values = {"br": (low - 1, low, high, high + 1), "sr": sorted(rates), "bd": (16, 24, "32f")}
        least, most = map(Decimal, form.q or ("0", "9"))
        tenth = Decimal("0.1")
        values["q"] = tuple(map(str, (least - tenth, least, least + tenth, most, most + tenth)))
        for name, each in values.items():
            yield from ({"f": form.token, name: value} for value in each)


def more_calls() -> Iterator[dict[str, Any]]:
    """Yield calls at all bounds, and random ones, the same in every run."""
    chance = random.Random(45)
    for _ in range(400):
        names = [name for name in VALUES if chance.random() < 0.2]
        variant = {name: chance.choice(VALUES[name]) for name in names}
        yield {"call": "url", "signer": SIGNER, "source": "local://a", "variant": variant}
    for variant in bounds():
        yield {"call": "url", "signer": SIGNER, "source": "local://a", "variant": variant}
    for scheme in ("local", "s3", "https", "S3", "HTTPS", "file"):
        for host in ("", "b/", "h.example:8443/", "H.example./", "x" * 64 + "/", "a..b/"):
            name = "/".join(chance.choices(NAMES, k=3))
            raw = f"{scheme}://{host}{name}".encode("latin-1")
            raw += chance.randbytes(chance.choice((0, 0, 20)))
            yield {"call": "read_source", "arguments": [{"base64url": base64url(raw)}]}


def decoded(source: str) -> bytes | None:
    """Return the source of a URL without its encoding, or None for an invalid encoding."""
    form, _, text = source.partition("/")
    try:
        if form == "plain":
            return percent_decode(text.encode())
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        spellings = base64url(raw), base64.urlsafe_b64encode(raw).decode()
        return raw if text in spellings else None
    except ValueError:
        return None


def signed(path: str) -> str:
    """Return a path with its signature in front."""
    salt = bytes.fromhex(PAIR["salt"])
    return f"/{mac(bytes.fromhex(PAIR['key']), salt + path.encode())}{path}"


def _of_builder(row: dict[str, Any], call: str) -> dict[str, Any]:
    """Return the call of a row with the arguments of a method of `Signer`."""
    names = ("variant", "expires_in", "expires_at", "round_to", "file_name", "formats")
    arguments = {name: row[name] for name in names if name in row}
    signer = {**SIGNER, "encoded": row.get("encoded", False), "now": row.get("now", 0)}
    encoded = {"base64url": row.get("source_base64url")}
    return {"call": call, "signer": signer, "source": row.get("source", encoded), **arguments}


def vectors() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the call of each published vector that a library can answer, and its answer.

    In an answer, ``says`` is a part of the message.
    """
    for pair in SIGNATURES["pairs"]:
        signer = {**SIGNER, "key": pair["key"], "salt": pair["salt"], "base": ""}
        for row in pair["signed"]:
            yield (
                {"call": "sign", "signer": signer, "path": row["path"]},
                {"text": f"/{row['signature']}{row['path']}"},
            )
    for row in rows("options"):
        # `exp` is no option of a variant.
        segments = "/".join(each for each in row["options"].split("/") if each[:4] != "exp:")
        text = f"{row['canonical']} {row['content_type']}"
        yield {"call": "read", "segments": segments}, {"text": text}
    for row in rows("refused_options"):
        yield {"call": "read", "segments": row["options"]}, {"code": "invalid_options"}
    for section in ("sources", "refused_sources"):
        for row in rows(section):
            if (raw := decoded(row["source"])) is not None:
                call = {"call": "read_source", "arguments": [{"base64url": base64url(raw)}]}
                text = row.get("base64url")
                yield call, {"text": text} if text else {"code": "not_found"}
    for section in ("makers", "refused_makers"):
        for row in rows(section):
            (maker,) = row.keys() & {"local", "s3", "https"}
            canonical = row.get("canonical")
            text = canonical and base64url(canonical.encode())
            yield (
                {"call": maker, "arguments": row[maker]},
                {"text": text} if text else {"code": "not_found"},
            )
    for row in rows("paths"):
        name = f"/{row['name']}" if "name" in row else ""
        url = BASE + ("/media" if name else "") + signed(row["path"]) + name
        yield _of_builder(row, "info_url" if row.get("info") else "url"), {"text": url}
    for row in rows("refused_paths"):
        call = _of_builder(row, "info_url" if row.get("info") else "url")
        yield call, {"code": row.get("code"), "says": row["says"]}
    for row in rows("elements"):
        sources = "".join(
            f'<source src="{BASE}{signed(path)}" type="{kind}">' for path, kind in row["sources"]
        )
        element = f'<audio controls preload="none">{sources}</audio>'
        yield _of_builder(row, "audio_element"), {"text": element}


def answer(call: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of `audioproxy.urls`."""
    try:
        return {"text": _text(**call)}
    except Refusal as refusal:
        return {"code": refusal.code, "status": refusal.status, "message": str(refusal)}
    except (TypeError, ValueError) as error:
        return {"code": None, "message": str(error)}


def _raw(value: Any) -> Any:
    if isinstance(value, dict) and "base64url" in value:
        return base64.urlsafe_b64decode(value["base64url"] + "==")
    return value


def _text(call: str, signer: dict[str, Any] | None = None, **values: Any) -> str:
    if call == "read":
        variant = Variant.read(values["segments"])
        return f"{variant.canonical} {variant.content_type}"
    if "arguments" in values:
        made: Source = getattr(urls, call)(*map(_raw, values["arguments"]))
        return base64url(made.canonical)
    if call == "from_env":
        return Signer.from_env(values["environ"]).sign("/")
    assert signer is not None
    now = signer["now"]
    made_signer = Signer.from_hex(**{**signer, "now": lambda: now})
    if "variant" in values:
        values["variant"] = Variant(**values["variant"])
    positional = [_raw(values.pop(name)) for name in ("path", "source") if name in values]
    text: str = getattr(made_signer, call)(*positional, **values)
    return text


def mismatch(call: dict[str, Any], expected: dict[str, Any], found: dict[str, Any]) -> str | None:
    """Return a description of a wrong answer, or None."""
    same = all(found.get(name) == expected.get(name) for name in ("text", "code"))
    same &= "status" not in expected or found.get("status") == expected["status"]
    if same and expected.get("says", "") in found.get("message", ""):
        return None
    return f"{call}\n  expected {expected}\n  found    {found}"
