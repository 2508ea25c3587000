"""`audioproxy.urls`: it builds what the service accepts, and refuses what the service refuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path, PureWindowsPath
from typing import Any, get_args, get_type_hints

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy import errors, urls
from audioproxy.grammar import sources as grammar
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.values import percent_encode
from audioproxy.urls import InvalidOptions, NotFound, Variant, https, local, s3
from tests.support.strategies import DETERMINISTIC, encoded, junk, sources
from tests.test_vectors import rows
from tests.urls.calls import answer, mismatch, vectors

WHOLE = ("br", "sr", "ch", "pts", "pk_bits")
TEXTS = ("dl", "cb")


class Codec(str, Enum):  # noqa: UP042 - unlike those of StrEnum, members print their names
    """Formats, as an application may list them."""

    OPUS = "opus"


#: Values of options as Python objects, and the canonical options string. The published vectors
#: have a row for each option.
TYPED: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "f:mp3"),
    ({"q": "2.50", "t": (30,), "gain": "+3"}, "f:mp3/gain:3/q:2.5/t:30"),
    ({"q": Decimal("2.500"), "t": 30, "gain": -0.0}, "f:mp3/gain:0/q:2.5/t:30"),
    ({"t": (0.1, "0.20"), "fade": 0.1}, "f:mp3/fade:0.1/t:0.1:0.2"),
    ({"fade": (0, Decimal("1.50")), "norm": (-14,)}, "f:mp3/fade:0:1.5/norm:ebu:-14:-1.5:11"),
    ({"norm": -14, "gain": 1e-7}, "f:mp3/gain:0/norm:ebu:-14:-1.5:11"),
    ({"t": [0.1 + 0.2, 5.0], "fade": [1 / 3]}, "f:mp3/fade:0.333/t:0.3:5"),
    (
        {"t": (timedelta(minutes=2), 15), "fade": timedelta(milliseconds=250)},
        "f:mp3/fade:0.25/t:120:15",
    ),
    ({"gain": Fraction(-2, 3), "br": np.int64(96)}, "br:96/f:mp3/gain:-0.667"),
    (
        {"t": (np.float32(0.1), np.int16(2)), "norm": [np.float64(-23.00001)]},
        "f:mp3/norm:ebu:-23:-1.5:11/t:0.1:2",
    ),
    ({"f": Codec.OPUS, "bd": None}, "f:opus"),
    ({"br": 96.0, "sr": np.float32(48000), "ch": Fraction(2)}, "br:96/ch:2/f:mp3/sr:48000"),
    ({"dl": "Größe: 1", "cb": b"\xff%"}, "cb:%FF%25/dl:Gr%C3%B6%C3%9Fe%3A%201/f:mp3"),
)

#: Refused arguments, and the segment that the message quotes.
REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"f": "mp3/br:96"}, "f:mp3/br:96"),
    ({"br": 96.5}, "br:96.5"),
    ({"br": float("inf")}, "br:inf"),
    ({"q": float("nan")}, "q:nan"),
    ({"q": Decimal("Infinity")}, "q:Infinity"),
    ({"t": Decimal("0.3001")}, "t:0.3001"),
    ({"t": (float("inf"), 1)}, "t:inf:1"),
    ({"t": (1, 0.0004)}, "t:1:0.000"),
    ({"t": ()}, "t:"),
    ({"norm": "-14"}, "norm:-14"),
    ({"norm": (-14, 1)}, "norm:ebu:-14:1"),
    ({"dl": "a/b"}, "dl:a%2Fb"),
    ({"dl": os.fsdecode(b"\xff.mp3")}, "dl:%FF.mp3"),
    ({"cb": ""}, "cb:"),
)

#: Arguments of a wrong type.
MISTYPED: tuple[dict[str, Any], ...] = (
    *({"br": True}, {"ch": [1]}, {"q": [2]}, {"gain": b"3"}, {"gain": timedelta(1)}),
    *({"t": {}}, {"t": {30, 15}}, {"t": b"30"}, {"t": (30, None)}, {"t": [[30, 15]]}, {"t": 1j}),
    *({"norm": (timedelta(1),)}, {"fade": True}, {"dl": b"a"}, {"cb": 1}, {"f": b"mp3"}),
)


def variant_of(values: dict[str, Any]) -> Variant:
    """Return the variant with these arguments."""
    return Variant(**values)


def outcome(make: Callable[[], str]) -> tuple[str, str]:
    """Return the result of a call, or the message of its refusal."""
    try:
        return "made", make()
    except errors.InvalidOptions as error:
        return "refused", error.message


def climbs(source: bytes) -> bool:
    """Return whether a local source, which the grammar accepts, leads out of its root."""
    path = source.removeprefix(b"local://")
    return path != source and grammar.leaves_root(path)


class VectorTests(SynchronousTestCase):
    """Published vectors; `tests.urls.test_clients_live` has the other languages."""

    def test_vectors(self) -> None:
        """`audioproxy.urls` answers every vector, and they have each field of `Variant`."""
        wrong = [mismatch(call, expected, answer(call)) for call, expected in vectors()]
        self.assertEqual([], [text for text in wrong if text])
        given = {name for row in rows("paths") for name in row.get("variant", {})}
        self.assertEqual({row.name for row in fields(Variant) if row.init}, given)


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
        for values in MISTYPED:
            (name,) = values
            error = self.assertRaises(TypeError, variant_of, values)
            self.assertRegex(str(error), rf"^{name}: '\w+' is not accepted; use \w+")
        # A lone surrogate, which no URL can contain.
        for values in ({"f": "\ud800"}, {"dl": "\ud800"}, {"cb": "\ud800"}):
            self.assertRaises(InvalidOptions, variant_of, values)
        self.assertRaises(InvalidOptions, Variant.read, "cb:\ud800")

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
            outcome(lambda: parse_options(segments)[0].canonical()),
            outcome(lambda: Variant(**values).canonical),
        )

    def test_read(self) -> None:
        """`Variant.read` parses option segments, returns the default for none, and refuses exp."""
        self.assertEqual("f:mp3", Variant.read("").canonical)
        self.assertEqual("br:96/f:opus", Variant.read("f:opus/br:096").canonical)
        for text in ("f:mp3/exp:1893456000", "f:mp3/", "zz:1", "br:96/q:1"):
            self.assertRaises(InvalidOptions, Variant.read, text)

    def test_value(self) -> None:
        """A variant is immutable, hashable, and equal to one with the same canonical options."""
        one = Variant(f="opus", t=(30, 15))
        self.assertEqual({one: 1}, {Variant(f="opus", t=[30.0, "15.00"]): 1})
        self.assertNotIn(Variant(f="opus", t=30), {one, "f:opus/t:30:15"})
        self.assertRaises(AttributeError, setattr, one, "f", "mp3")

    def test_repr(self) -> None:
        """`repr` shows the options that are set, and is itself Python."""
        text = "Variant(f='opus', br=96, t=(30, 15), cb=b'1')"
        self.assertEqual(text, repr(eval(text, {"Variant": Variant})))
        self.assertEqual("Variant(f='mp3')", repr(Variant()))

    def test_hints(self) -> None:
        """A name that is no option is a TypeError that names what was meant."""
        for name, words in (
            ("format", "did you mean f?"),
            ("bit_rate", "did you mean br?"),
            ("speed", "use f, br, q, "),
            ("expires_in", "an argument of Signer.url"),
        ):
            error = self.assertRaises(TypeError, variant_of, {name: 1})
            self.assertIn(words, str(error))
        error = self.assertRaises(InvalidOptions, Variant.read, "f:mp3/exp:1893456000")
        self.assertIn("expires_in or expires_at (--expires-in or --expires-at)", error.message)

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
        self.assertEqual(b"local://b/c.wav", local(PureWindowsPath("b", "c.wav")).canonical)
        for path in ("", "/etc/passwd", "../a", "a/../../b", "a\0", "\ud800", "a/" * 64):
            self.assertTrue(self.assertRaises(NotFound, local, path).reason)
        error = self.assertRaises(NotFound, local, Path("/srv/a.wav"))
        self.assertIn("'/srv/a.wav' is absolute; use the path relative to", error.reason)

    def test_s3(self) -> None:
        """A bucket and a key are separate arguments, and each is checked."""
        self.assertEqual(b"s3://masters/a b/\xff", s3("masters", b"a b/\xff").canonical)
        self.assertEqual(b"s3://masters//\xff", s3("masters", os.fsdecode(b"/\xff")).canonical)
        for bucket, key in (
            *(("a/b", "c"), ("", "k"), ("b", ""), ("-b", "k"), ("b" * 64, "k"), ("b", "k" * 1025)),
            *(("b\ud800", "k"), ("b", "\ud800")),
        ):
            self.assertTrue(self.assertRaises(NotFound, s3, bucket, key).reason)

    def test_https(self) -> None:
        """A URL may have spaces and umlauts. Characters that a URL holds stay as they are."""
        for url, canonical in (
            ("https://example.com/Größe 1.wav?v=ä b", "/Gr%C3%B6%C3%9Fe%201.wav?v=%C3%A4%20b"),
            ("https://EXAMPLE.com/a%20b%2f%C3.wav#t=1 2", "/a%20b%2f%C3.wav"),
            ("https://example.com/100%.wav?q=5%2", "/100%25.wav?q=5%252"),
            ("HTTPS://example.com?a=1&b=[2]", "/?a=1&b=%5B2%5D"),
            ("https://example.com/a'(b)*;c,d=e:@!$&+~._-", "/a'(b)*;c,d=e:@!$&+~._-"),
            ('https://example.com/a\\b|"<c>^`{d}\n', "/a%5Cb%7C%22%3Cc%3E%5E%60%7Bd%7D%0A"),
            (os.fsdecode(b"https://example.com/\xff"), "/%FF"),
        ):
            self.assertEqual(f"https://example.com{canonical}", https(url).url)
            self.assertEqual(https(url), https(https(url).url))
        self.assertEqual("https://[::1]:8443/a", https("https://[::1]:8443/a").url)
        for url in (
            *("http://h/a", "h/a", "", "https://", "https://u:p@h/a", "https://h h/a"),
            *("https://h:0/a", "https://h/\ud800", "https://h/" + "ä" * 1000),
        ):
            self.assertTrue(self.assertRaises(NotFound, https, url).reason)
        error = self.assertRaises(NotFound, https, "https://größe.example/a")
        self.assertIn("xn--", error.reason)

    def test_types(self) -> None:
        """An argument of a wrong type is a TypeError that names the argument and the type."""
        for make, values, words in (
            (local, (1,), "path: 'int'"),
            (s3, (b"b", "k"), "bucket: 'bytes'"),
            (s3, ("b", None), "key: 'NoneType'"),
            (https, (b"https://h/",), "url: 'bytes'"),
            (urls.read_source, (Path("a"),), "source: 'PosixPath'"),
            (Variant.read, (b"f:mp3",), "segments: 'bytes'"),
        ):
            error = self.assertRaises(TypeError, make, *values)
            self.assertTrue(str(error).startswith(f"{words} is not accepted; use "), error)

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
        except errors.NotFound as error:
            refused = self.assertRaises(NotFound, urls.read_source, text)
            self.assertEqual(error.reason, refused.reason)
        else:
            if climbs(text):
                self.assertRaises(NotFound, urls.read_source, text)
            else:
                self.assertEqual(source, urls.read_source(text))


class InterfaceTests(SynchronousTestCase):
    """Exceptions and help of `audioproxy.urls`"""

    def test_refusals(self) -> None:
        """A refusal of the service is a ValueError here, with the same status and code."""
        for error, raised in (
            (urls.Expired, errors.Expired),
            (urls.InvalidOptions, errors.InvalidOptions),
            (urls.NotFound, errors.NotFound),
        ):
            self.assertTrue(issubclass(error, ValueError) and issubclass(error, raised))
            self.assertEqual((raised.status, raised.code), (error.status, error.code))
            self.assertFalse(issubclass(raised, ValueError))
