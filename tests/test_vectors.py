"""Published vectors: the service and an independent implementation agree with each row."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions, NotFound
from audioproxy.grammar.cache_key import cache_key
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.signature import verify
from audioproxy.grammar.sources import Source, read_source

HERE = Path(__file__).parent / "vectors"
SIGNATURES: dict[str, Any] = json.loads((HERE / "signatures.json").read_text("utf-8"))
CANONICAL: dict[str, Any] = json.loads((HERE / "canonical.json").read_text("utf-8"))
README = (HERE / "README.md").read_text("utf-8")

SECTIONS = {name: part for name, part in CANONICAL.items() if isinstance(part, dict)}
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def base64url(raw: bytes) -> str:
    """Return bytes as base64url without padding."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def mac(key: bytes, data: bytes) -> str:
    """Return a signature, computed without the package."""
    return base64url(hmac.new(key, data, hashlib.sha256).digest())


def neighbour(signature: str) -> str:
    """Return a signature with another last character that decodes to the same bytes."""
    return signature[:-1] + ALPHABET[ALPHABET.index(signature[-1]) + 1]


def mistakes(key_text: str, salt_text: str, path: bytes) -> dict[str, str]:
    """Return the signatures of a path that result from each mistake."""
    key, salt = bytes.fromhex(key_text), bytes.fromhex(salt_text)
    right = mac(key, salt + path)
    return {
        "over-padded": right + "==",
        "last-character": neighbour(right),
        "standard-alphabet": right.replace("-", "+").replace("_", "/"),
        "hexadecimal": base64.urlsafe_b64decode(right + "=").hex(),
        "cut": right[:-1],
        "key-text": mac(key_text.encode(), salt + path),
        "salt-text": mac(key, salt_text.encode() + path),
        "both-texts": mac(key_text.encode(), salt_text.encode() + path),
        "no-salt": mac(key, path),
        "salt-behind": mac(key, path + salt),
        "swapped": mac(salt, key + path),
        "no-hmac": base64url(hashlib.sha256(key + salt + path).digest()),
        "no-slash": mac(key, salt + path[1:]),
        "decoded-path": mac(key, salt + unquote_to_bytes(path)),
        "with-query": mac(key, salt + path + b"?x=1"),
        "with-host": mac(key, salt + b"https://audio.example" + path),
    }


def rows(section: str) -> list[dict[str, Any]]:
    """Return the rows of a section of canonical.json."""
    found: list[dict[str, Any]] = SECTIONS[section]["rows"]
    return found


def cut(options: str) -> list[bytes]:
    """Return the segments of an options string; none for an empty string."""
    return options.encode("ascii").split(b"/") if options else []


def source_of(text: str) -> Source:
    """Return the source in a URL."""
    form, _, raw = text.encode("ascii").partition(b"/")
    return read_source(form, raw)


def names_in(value: Any) -> Iterator[str]:
    """Yield the names of all fields, except those inside ``mistakes`` and ``variant``."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            if name not in ("mistakes", "variant"):
                yield from names_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names_in(inner)


class DocumentTests(SynchronousTestCase):
    """Form of both files."""

    def test_form(self) -> None:
        """Each file has a description and the version of its fields."""
        for version, document in ((1, SIGNATURES), (2, CANONICAL)):
            self.assertEqual(version, document["version"])
            self.assertTrue(document["description"])

    def test_readme(self) -> None:
        """The README beside the files explains each field, section and mistake."""
        for name in {*names_in(SIGNATURES), *names_in(CANONICAL)}:
            self.assertIn(f"`{name}`", README)


class SignatureTests(SynchronousTestCase):
    """``signatures.json``"""

    def test_signed(self) -> None:
        """Signatures are plain HMACs, valid with or without padding (Authentication, 1 and 2)."""
        for pair in SIGNATURES["pairs"]:
            key, salt = bytes.fromhex(pair["key"]), bytes.fromhex(pair["salt"])
            for row in pair["signed"]:
                path = row["path"].encode("ascii")
                self.assertEqual(mac(key, salt + path), row["signature"])
                self.assertEqual(row["signature"] + "=", row["padded"])
                for spelled in (row["signature"], row["padded"]):
                    self.assertTrue(verify(key, salt, path, spelled.encode()), row["path"])

    def test_refused(self) -> None:
        """Each mistake is explained, and makes a signature that is refused (Authentication, 3)."""
        found = set()
        for pair in SIGNATURES["pairs"]:
            key, salt = bytes.fromhex(pair["key"]), bytes.fromhex(pair["salt"])
            for row in pair["refused"]:
                path = row["path"].encode("ascii")
                made = mistakes(pair["key"], pair["salt"], path)
                self.assertEqual(SIGNATURES["mistakes"].keys(), made.keys())
                self.assertEqual(made[row["mistake"]], row["signature"], row)
                self.assertFalse(verify(key, salt, path, row["signature"].encode()), row)
                found.add(row["mistake"])
        self.assertEqual(SIGNATURES["mistakes"].keys(), found)


class CanonicalTests(SynchronousTestCase):
    """``canonical.json``"""

    def test_options(self) -> None:
        """Each options string has one canonical form, which parses to the same options (D3, D4)."""
        for row in rows("options"):
            options, exp = parse_options(cut(row["options"]))
            self.assertEqual(row["canonical"], options.canonical(), row)
            self.assertEqual(row["content_type"], options.content_type, row)
            self.assertEqual(row.get("exp"), exp, row)
            self.assertEqual((options, None), parse_options(cut(row["canonical"])), row)

    def test_every_option(self) -> None:
        """Each option occurs in an accepted row and in a refused row, and each format in a row."""
        read = {parse_options(cut(row["options"]))[0].f for row in rows("options")}
        self.assertEqual(set(FORMATS), read)
        names = {row.name for row in fields(VariantOptions)} | {"exp"}
        for section in ("options", "refused_options"):
            spelled = [row["options"].split("/") for row in rows(section)]
            used = {segment.partition(":")[0] for segments in spelled for segment in segments}
            self.assertEqual(set(), names - used, section)
        offending = {row["segment"].partition(":")[0] for row in rows("refused_options")}
        self.assertEqual(set(), names - offending)

    def test_refused_options(self) -> None:
        """Each refused options string returns 422 with a message that quotes the segment (D20)."""
        section = SECTIONS["refused_options"]
        for row in section["rows"]:
            error = self.assertRaises(InvalidOptions, parse_options, cut(row["options"]))
            self.assertEqual((section["status"], section["code"]), (error.status, error.code))
            quoted = row["segment"]
            if quoted:
                shown = quoted if len(quoted) <= 80 else quoted[:80] + "..."
                self.assertTrue(error.message.startswith(f'"{shown}" '), (row, error.message))
            else:
                self.assertIn("segment is empty", error.message)

    def test_sources(self) -> None:
        """Each source has one canonical string, which is given as text if it is UTF-8 (D15)."""
        for row in rows("sources"):
            canonical = source_of(row["source"]).canonical
            self.assertEqual(row["base64url"], base64url(canonical), row)
            try:
                text = canonical.decode("utf-8")
            except UnicodeDecodeError:
                text = None
            self.assertEqual(row["canonical"], text, row)
            self.assertEqual(canonical, source_of("enc/" + row["base64url"]).canonical, row)

    def test_refused_sources(self) -> None:
        """Each refused source returns 404, for its spelling or for leaving the root (D16)."""
        section = SECTIONS["refused_sources"]
        self.assertEqual((NotFound.status, NotFound.code), (section["status"], section["code"]))
        for row in section["rows"]:
            self.assertTrue(row["why"])
            self.assertRaises(NotFound, source_of, row["source"])

    def test_keys(self) -> None:
        """A cache key is the SHA-256 of a revision and both canonical strings (D5)."""
        for row in rows("keys"):
            options, _ = parse_options(cut(row["options"]))
            source = source_of(row["source"]).canonical
            self.assertEqual(row["key"], cache_key(options, source), row)
            validator = (
                f"{options.format.revision}\n{options.canonical()}\n".encode("ascii") + source
            )
            self.assertEqual(row["key"], hashlib.sha256(validator).hexdigest(), row)
