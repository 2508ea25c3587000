"""`audioproxy.urls`: it builds what the service accepts, and refuses what the service refuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args, get_type_hints
from urllib.parse import unquote, unquote_to_bytes

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy import errors, urls
from audioproxy.grammar import sources as grammar
from audioproxy.grammar.cache_key import cache_key
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.parser import read_options
from audioproxy.grammar.values import percent_encode
from audioproxy.urls import InvalidOptions, NotFound, Variant, local, s3
from tests.support.strategies import DETERMINISTIC, encoded, junk, option_segments, sources

WHOLE = ("br", "sr", "ch", "pts", "pk_bits")
TEXTS = ("dl", "cb")

#: Values of options as Python objects, and the canonical options string. The published vectors
#: have a row for each option.
TYPED: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "f:mp3"),
    ({"q": "2.50", "t": (30,), "gain": "+3"}, "f:mp3/gain:3/q:2.5/t:30"),
    ({"q": Decimal("2.500"), "t": 30, "gain": -0.0}, "f:mp3/gain:0/q:2.5/t:30"),
    ({"f": "flac", "q": Decimal("1E+1"), "bd": 24}, "bd:24/f:flac/q:10"),
    ({"t": (0.1, "0.20"), "fade": 0.1}, "f:mp3/fade:0.1/t:0.1:0.2"),
    ({"fade": (0, Decimal("1.50")), "norm": (-14,)}, "f:mp3/fade:0:1.5/norm:ebu:-14:-1.5:11"),
    ({"norm": (-23, "-2.0", 7.5), "cb": "a/b"}, "cb:a%2Fb/f:mp3/norm:ebu:-23:-2:7.5"),
    ({"dl": "Größe: 1", "cb": b"\xff%"}, "cb:%FF%25/dl:Gr%C3%B6%C3%9Fe%3A%201/f:mp3"),
)

#: Refused arguments, and the segment that the message quotes.
REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"f": "MP3"}, "f:MP3"),
    ({"f": "mp3/br:96"}, "f:mp3/br:96"),
    ({"br": 96.0}, "br:96.0"),
    ({"br": True}, "br:True"),
    ({"br": 128, "q": 2}, "br:128"),
    ({"q": float("nan")}, "q:nan"),
    ({"q": Decimal("Infinity")}, "q:Infinity"),
    ({"t": 0.1 + 0.2}, "t:0.30000000000000004"),
    ({"t": (1, 2, 3)}, "t:1:2:3"),
    ({"t": ()}, "t:"),
    ({"t": [30, 15]}, "t:[30, 15]"),
    ({"t": (0, 2), "fade": 3}, "fade:3"),
    ({"gain": 1e-7}, "gain:1e-07"),
    ({"norm": -14}, "norm:-14"),
    ({"norm": (-14, 1)}, "norm:ebu:-14:1"),
    ({"f": "peaks", "pk_bits": 32}, "pk_bits:32"),
    ({"dl": "a/b"}, "dl:a%2Fb"),
    ({"dl": ""}, "dl:"),
    ({"dl": os.fsdecode(b"\xff.mp3")}, "dl:%FF.mp3"),
    ({"cb": ""}, "cb:"),
)


def variant_of(values: dict[str, Any]) -> Variant:
    """Return the variant with these arguments."""
    return Variant(**values)


def outcome(make: Callable[[], str]) -> tuple[str, str]:
    """Return the result of a call, or the message of its refusal."""
    try:
        return "made", make()
    except InvalidOptions as error:
        return "refused", error.message


def climbs(source: bytes) -> bool:
    """Return whether a local source leads out of its root.

    The grammar accepts such a source; it is refused when it is opened.
    """
    path = source.removeprefix(b"local://")
    return path != source and grammar.leaves_root(path)


@st.composite
def numbers(draw: st.DrawFn, text: str) -> Any:
    """Draw a number in one of the accepted types."""
    value = Decimal(text)
    kinds: list[Any] = [text, value, value.normalize()]
    if value == int(value):
        kinds.append(int(value))
    if Decimal(str(float(value))) == value and "e" not in str(float(value)):
        kinds.append(float(value))
    return draw(st.sampled_from(kinds))


@st.composite
def arguments(draw: st.DrawFn, segments: list[bytes]) -> dict[str, Any]:
    """Draw typed arguments that are equivalent to option segments."""
    found: dict[str, Any] = {}
    for segment in segments:
        name, _, text = segment.decode("ascii").partition(":")
        if name in WHOLE:
            found[name] = int(text)
        elif name == "dl":
            found[name] = unquote(text)
        elif name == "cb":
            found[name] = unquote_to_bytes(text)
        elif name in ("q", "gain"):
            found[name] = draw(numbers(text))
        elif name in ("t", "fade", "norm"):
            parts = text.removeprefix("ebu").strip(":").split(":")
            found[name] = tuple(draw(numbers(part)) for part in parts if part)
        else:
            found[name] = text
    return found


class VariantTests(SynchronousTestCase):
    """`Variant`"""

    def test_typed(self) -> None:
        """Each option accepts values as Python objects, and has one canonical spelling (D3, D4)."""
        for values, canonical in TYPED:
            self.assertEqual(canonical, Variant(**values).canonical, values)
            self.assertEqual(canonical, Variant.read(canonical).canonical)

    def test_refused(self) -> None:
        """A value that the service refuses is refused, and the message quotes the segment (D20)."""
        for values, segment in REFUSED:
            error = self.assertRaises(InvalidOptions, variant_of, values)
            self.assertTrue(error.message.startswith(f'"{segment}" is not accepted: '), error)
        # A lone surrogate, which no URL can contain.
        for values in ({"f": "\ud800"}, {"dl": "\ud800"}, {"cb": "\ud800"}):
            self.assertRaises(InvalidOptions, variant_of, values)
        self.assertRaises(InvalidOptions, Variant.read, "cb:\ud800")

    @settings(DETERMINISTIC, max_examples=25)
    @given(data=st.data(), segments=option_segments(), source=sources())
    def test_any_options(self, data: st.DataObject, segments: list[bytes], source: bytes) -> None:
        """Typed arguments and parsed segments give the variant that the service reads."""
        options, _ = read_options(segments)
        typed = Variant(**data.draw(arguments(segments)))
        for variant in (typed, Variant.read(b"/".join(segments).decode("latin-1"))):
            self.assertEqual(options.canonical(), variant.canonical)
            self.assertEqual(options.content_type, variant.content_type)
            normalized = grammar.parse_source(source).canonical
            self.assertEqual(cache_key(options, normalized), variant.key(source))

    @DETERMINISTIC
    @given(
        values=st.dictionaries(
            st.sampled_from("f br q sr ch bd t fade gain norm enhance pts pk_fmt dl cb".split()),
            junk().map(lambda raw: raw.decode("latin-1"))
            | st.sampled_from(("mp3", "peaks", "96", "2", "0.5", "1:2", "-3", "ebu", "voice")),
            max_size=3,
        )
    )
    def test_any_text(self, values: dict[str, Any]) -> None:
        """Any text in any field is accepted or refused as by the service, with the same message."""
        spelled = {"f": "mp3", **values}
        order = [name for name in Variant.__dataclass_fields__ if name in spelled]
        segments = []
        for name in order:
            value = spelled[name].encode()
            text = percent_encode(value).encode() if name in TEXTS else value
            segments.append(name.encode() + b":" + text)
        self.assertEqual(
            outcome(lambda: read_options(segments)[0].canonical()),
            outcome(lambda: Variant(**values).canonical),
        )

    def test_read(self) -> None:
        """`Variant.read` parses option segments, returns the default for none, and refuses exp."""
        self.assertEqual("f:mp3", Variant.read("").canonical)
        self.assertEqual("br:96/f:opus", Variant.read("f:opus/br:096").canonical)
        for text in ("f:mp3/exp:1893456000", "f:mp3/", "zz:1", "br:96/q:1"):
            self.assertRaises(InvalidOptions, Variant.read, text)

    def test_value(self) -> None:
        """A variant is immutable, hashable, and equal to a variant with the same fields."""
        one = Variant(f="opus", t=(30, 15))
        self.assertEqual({one: 1}, {Variant(f="opus", t=(30, 15)): 1})
        self.assertRaises(AttributeError, setattr, one, "f", "mp3")

    def test_type_of_f(self) -> None:
        """The type of `Variant.f` contains exactly the output formats."""
        self.assertEqual(tuple(FORMATS), get_args(get_type_hints(Variant)["f"]))


class SourceTests(SynchronousTestCase):
    """`local`, `s3` and `read_source`"""

    def test_local(self) -> None:
        """A path may be bytes, text or a Path, and need not be UTF-8 (D15)."""
        for path in ("ä/b.wav", "ä/b.wav".encode(), Path("ä/b.wav")):
            self.assertEqual("local://ä/b.wav".encode(), local(path).canonical)
        self.assertEqual(b"local://\xff.wav", local(os.fsdecode(b"\xff.wav")).canonical)
        for path in ("", "/etc/passwd", "../a", "a/../../b", "a\0", "\ud800", "a/" * 64):
            self.assertTrue(self.assertRaises(NotFound, local, path).reason)

    def test_s3(self) -> None:
        """A bucket and a key are separate arguments, and each is checked."""
        self.assertEqual(b"s3://masters/a b/\xff", s3("masters", b"a b/\xff").canonical)
        self.assertEqual(b"s3://masters//\xff", s3("masters", os.fsdecode(b"/\xff")).canonical)
        for bucket, key in (
            *(("a/b", "c"), ("", "k"), ("b", ""), ("-b", "k"), ("b" * 64, "k"), ("b", "k" * 1025)),
            *(("b\ud800", "k"), ("b", "\ud800")),
        ):
            self.assertTrue(self.assertRaises(NotFound, s3, bucket, key).reason)

    def test_made(self) -> None:
        """A source object that the caller created is checked like text."""
        for made in (
            grammar.LocalSource(b"/etc/passwd"),
            grammar.LocalSource(b"../a"),
            grammar.S3Source("ä", b"k"),
            grammar.HttpsSource("https://u:p@example.com/", "example.com"),
        ):
            self.assertRaises(NotFound, urls.read_source, made)
        self.assertEqual(local("a"), urls.read_source(local("a")))

    @DETERMINISTIC
    @given(text=junk() | sources())
    def test_any_bytes(self, text: bytes) -> None:
        """Bytes are a valid source if the service accepts them and they stay in the root."""
        try:
            source = grammar.read_source(b"enc", encoded(text))
        except NotFound as error:
            refused = self.assertRaises(NotFound, urls.read_source, text)
            self.assertEqual(error.reason, refused.reason)
        else:
            if climbs(text):
                self.assertRaises(NotFound, urls.read_source, text)
            else:
                self.assertEqual(source, urls.read_source(text))


class ErrorTests(SynchronousTestCase):
    """Exceptions of `audioproxy.urls`"""

    def test_refusals(self) -> None:
        """Every exception for input that the service would refuse is a `Refusal`."""
        self.assertIs(errors.InvalidOptions, urls.InvalidOptions)
        for error in (urls.Expired, urls.InvalidOptions, urls.NotFound):
            self.assertTrue(issubclass(error, urls.Refusal))
