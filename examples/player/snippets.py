"""Programs that print, fetch or embed the URL of the page, to copy."""

from __future__ import annotations

import html
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

from audioproxy.grammar.sources import Source
from audioproxy.urls import Variant

_JAVASCRIPT = Path(__file__).parent.parent / "clients" / "javascript" / "index.js"

_PYTHON_PROGRAM = """\
# First, in the shell: set -a; . {env_file}; set +a
import os

from audioproxy.urls import Signer, Variant

signer = Signer.from_env(os.environ, {base})
variant = Variant({options})
print(signer.url({source}, variant{expiry}))
"""

_JAVASCRIPT_PROGRAM = """\
// First, in the shell: set -a; . {env_file}; set +a
import {{ Signer }} from {library};

const signer = Signer.fromEnv(process.env, {base});
const variant = {{ {options} }};
console.log(signer.url({source}, variant{expiry}));
"""


def write_snippets(
    url: str, base: str, source: Source, variant: Variant, expires_at: int | None, env_file: Path
) -> dict[str, str]:
    """Return programs by the name of their language.

    :param base: the part of the URL before the signature.
    :param expires_at: in Unix seconds.
    :param env_file: a file with the settings of the service.
    """
    extension = variant.f if variant.f != "peaks" else variant.options.pk_fmt
    return {
        "html": _embed(url, variant),
        "curl": f"curl -o audio.{extension} {shlex.quote(url)}\n",
        "command": _command(base, source, variant, expires_at, env_file),
        "python": _PYTHON_PROGRAM.format(
            env_file=shlex.quote(str(env_file)),
            base=_quote(base),
            options=", ".join(f"{name}={_python(value)}" for name, value in _options(variant)),
            source=_python(source.canonical),
            expiry="" if expires_at is None else f", expires_at={expires_at}",
        ),
        "javascript": _JAVASCRIPT_PROGRAM.format(
            env_file=shlex.quote(str(env_file)),
            library=_quote(str(_JAVASCRIPT)),
            base=_quote(base),
            options=", ".join(f"{name}: {_javascript(it)}" for name, it in _options(variant)),
            source=_javascript(source.canonical),
            expiry="" if expires_at is None else f", {{ expiresAt: {expires_at} }}",
        ),
    }


def _embed(url: str, variant: Variant) -> str:
    address = html.escape(url)
    if variant.f == "peaks" or variant.dl is not None:
        return f'<a href="{address}">Download</a>\n'
    # Without preload, nothing is rendered before somebody listens.
    return f'<audio controls preload="none" src="{address}"></audio>\n'


def _command(
    base: str, source: Source, variant: Variant, expires_at: int | None, env_file: Path
) -> str:
    program = Path(sys.executable).with_name("audioproxy")
    lines = [
        f"{shlex.quote(str(program))} sign --env-file {shlex.quote(str(env_file))}",
        f"--base {base} --options {shlex.quote(variant.canonical)}",
        *([] if expires_at is None else [f"--expires-at {expires_at}"]),
        _shell(source.canonical),
    ]
    return " \\\n    ".join(lines) + "\n"


def _options(variant: Variant) -> Iterator[tuple[str, Any]]:
    """Yield the options that are set, with numbers where a URL has them."""
    # The fields of the variant have the text that the user typed.
    values = Variant.read(variant.canonical)
    for row in fields(values):
        value = getattr(values, row.name)
        if row.init and value is not None:
            yield row.name, value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _quote(text: str) -> str:
    """Return a string literal of Python and of JavaScript."""
    return json.dumps(text, ensure_ascii=False)


def _literal(value: Any, brackets: str, write_bytes: Callable[[bytes], str]) -> str:
    """Return a literal.

    :param brackets: of a list.
    :param write_bytes: returns the literal of bytes that are not UTF-8.
    """
    if isinstance(value, tuple):
        items = ", ".join(_literal(item, brackets, write_bytes) for item in value)
        return f"{brackets[0]}{items}{brackets[1]}"
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return write_bytes(value)
    return _quote(value) if isinstance(value, str) else format(value, "f" if value % 1 else ".0f")


def _python(value: Any) -> str:
    return _literal(value, "()", repr)


def _javascript(value: Any) -> str:
    return _literal(value, "[]", lambda raw: f"Uint8Array.of({', '.join(map(str, raw))})")


def _shell(raw: bytes) -> str:
    """Return a word of a shell."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and text:
        return shlex.quote(text)
    # POSIX has this form since 2024; bash and zsh have always had it.
    return "$'" + quote_from_bytes(raw, safe="/:").replace("%", "\\x") + "'"
