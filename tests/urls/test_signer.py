"""`audioproxy.urls.Signer`: the service accepts its URLs, and clients do not change them."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar import sources as grammar
from audioproxy.grammar.cache_key import cache_key
from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.segments import Target, split_signature, split_target
from audioproxy.grammar.signature import verify
from audioproxy.urls import Expired, InvalidOptions, Signer, Variant
from tests.support.http import KEY, NOW, SALT
from tests.support.strategies import DETERMINISTIC, expiries, option_segments, sources

BASE = "https://audio.example"
EAST = timezone(timedelta(hours=5, minutes=30))
INSTANT = timedelta(microseconds=1)
SIGNER = Signer(KEY, SALT, BASE, now=lambda: NOW + 0.9)


def take_apart(url: str, base: str = BASE) -> Target:
    """Verify and split a URL as the service does."""
    path = split_signature(url.removeprefix(base).encode("ascii"))
    assert path is not None and verify(KEY, SALT, path.signed, path.signature), url
    target = split_target(path.signed)
    assert target is not None, url
    return target


def source_in(target: Target) -> bytes:
    """Return the canonical source that a URL names."""
    return grammar.read_source(target.form, target.source).canonical


class SignerTests(SynchronousTestCase):
    """`Signer`"""

    @settings(DETERMINISTIC, max_examples=25)
    @given(
        segments=option_segments(),
        source=sources(),
        exp=expiries() | st.none(),
        whole=st.booleans(),
    )
    def test_any_url(
        self, segments: list[bytes], source: bytes, exp: int | None, whole: bool
    ) -> None:
        """A URL has a valid signature and names its source, its variant and its expiry."""
        assume(exp is None or exp >= NOW)
        signer = Signer(KEY, SALT, BASE, encoded=whole, now=lambda: NOW)
        variant = Variant.read(b"/".join(segments).decode("latin-1"))
        target = take_apart(signer.url(source, variant, expires_at=exp))
        options, found = parse_options(target.options)
        self.assertFalse(target.info)
        self.assertEqual((variant.canonical, exp), (options.canonical(), found))
        self.assertEqual(variant.key(source), cache_key(options, source_in(target)))
        self.assertEqual(options.content_type, variant.content_type)
        self.assertTrue(target.form == b"enc" if whole else target.form in (b"plain", b"enc"))
        document = take_apart(signer.info_url(source))
        self.assertEqual((True, ()), (document.info, document.options))
        self.assertEqual(source_in(target), source_in(document))

    def test_dot_segments(self) -> None:
        """A source with dot segments is base64url-encoded, because clients remove dot segments."""
        for text, form in (
            *(("local://a/./b", b"enc"), ("local://a/../b", b"enc"), ("local://.", b"enc")),
            *(("s3://b/..", b"enc"), ("s3://b/../k", b"enc"), ("https://h/a/..?b", b"plain")),
            *(("https://h/a/../b", b"enc"), ("https://h/?a/../b", b"enc")),
            *(("local://...", b"plain"), ("local://a./.b/c..d", b"plain"), ("s3://b/.k", b"plain")),
            *(("local://%2e%2e/a", b"plain"), ("s3://b/%2E", b"plain"), ("local://a//b", b"plain")),
        ):
            self.assertEqual(form, take_apart(SIGNER.url(text)).form, text)
            self.assertEqual(form, take_apart(SIGNER.info_url(text)).form, text)

    def test_expiry(self) -> None:
        """Expiry is in seconds from now or in Unix seconds, and may be the current second (D14)."""
        for values, exp in (
            ({}, None),
            ({"expires_in": 3600}, NOW + 3600),
            ({"expires_in": 0}, NOW),
            ({"expires_at": NOW}, NOW),
            ({"expires_at": 253_402_300_799}, 253_402_300_799),
            ({"expires_in": timedelta(hours=1)}, NOW + 3600),
            ({"expires_in": timedelta(microseconds=1)}, NOW + 1),
            ({"expires_at": datetime.fromtimestamp(NOW, UTC)}, NOW),
            ({"expires_at": datetime.fromtimestamp(NOW, EAST) + INSTANT}, NOW + 1),
            ({"expires_in": 3600.0}, NOW + 3600),
            ({"expires_at": NOW + 0.5}, NOW + 1),
            ({"expires_in": 1, "round_to": timedelta(days=1)}, NOW - NOW % 86400 + 86400),
        ):
            found = parse_options(take_apart(SIGNER.url("local://a", **values)).options)[1]
            self.assertEqual(exp, found, values)
        for values, error in (
            ({"expires_in": -1}, Expired),
            ({"expires_at": NOW - 1}, Expired),
            ({"expires_at": 0}, Expired),
            ({"expires_at": -1}, InvalidOptions),
            ({"expires_at": 253_402_300_800}, InvalidOptions),
            ({"expires_in": timedelta(seconds=-1)}, Expired),
            ({"expires_at": datetime.fromtimestamp(NOW - 1, EAST)}, Expired),
            ({"expires_in": 1, "expires_at": NOW}, ValueError),
            ({"expires_in": float("inf")}, ValueError),
            ({"expires_at": float("nan")}, ValueError),
        ):
            self.assertRaises(error, SIGNER.url, "local://a", **values)
        naive = datetime(2030, 1, 1)
        error = self.assertRaises(ValueError, SIGNER.url, "local://a", expires_at=naive)
        self.assertIn("expires_at: 2030-01-01T00:00:00 has no time zone; add one", str(error))

    def test_types(self) -> None:
        """An argument of a wrong type is a TypeError that names the argument and the type."""
        values: tuple[dict[str, Any], ...] = (
            *({"expires_in": True}, {"expires_in": "60"}, {"expires_at": date(2030, 1, 1)}),
            *({"variant": {}}, {"variant": "f:opus"}, {"source": 1}, {"source": Path("a")}),
        )
        for wrong in values:
            (name,) = wrong
            error = self.assertRaises(TypeError, SIGNER.url, **{"source": "local://a", **wrong})
            self.assertRegex(str(error), rf"^{name}: '\w+' is not accepted; use ")
        self.assertRaises(TypeError, SIGNER.sign, b"/a")
        self.assertRaises(TypeError, Signer, KEY, SALT, None)
        self.assertRaises(TypeError, Signer.from_hex, None, SALT.hex())

    def test_base(self) -> None:
        """The base is an origin, a mount path, both or empty; the default variant is mp3 (D4)."""
        for base, shown in (
            *(("", ""), ("/", ""), ("/audio", "/audio"), ("/audio/", "/audio")),
            *((BASE, BASE), (f"{BASE}/", BASE), (f"{BASE}:8443/x/y/", f"{BASE}:8443/x/y")),
            *(("http://[::1]:4000", "http://[::1]:4000"),),
        ):
            url = Signer(KEY, SALT, base).url("local://a")
            self.assertTrue(url.startswith(shown + "/"), url)
            self.assertEqual((b"f:mp3",), take_apart(url, shown).options)
        for base in (
            "audio",
            "ftp://a",
            f"{BASE}?x",
            f"{BASE}/#x",
            "/a b",
            "/a\n",
            f"{BASE}/media/",
        ):
            self.assertRaises(ValueError, Signer, KEY, SALT, base)

    def test_file_name(self) -> None:
        """A URL with a file name has /media before its signature; the name suits its type."""
        for base in (BASE, f"{BASE}/audio/", ""):
            signer = Signer(KEY, SALT, base)
            for name, encoded, variant in (
                ("episode-12.mp3", "episode-12.mp3", None),
                ("Größe 1%2F?#;.mp3", "Gr%C3%B6%C3%9Fe%201%252F%3F%23%3B.mp3", Variant(br=96)),
                *((f"a.{end}", f"a.{end}", Variant(f="opus")) for end in ("opus", "ogg")),
                *((f"..{f}", f"..{f}", Variant(f=f)) for f in ("aac", "flac", "m4a", "ogg", "wav")),
                *((f"a.{f}", f"a.{f}", Variant(f="peaks", pk_fmt=f)) for f in ("json", "dat")),
            ):
                plain = signer.url("local://b/", variant).removeprefix(base.rstrip("/"))
                url = signer.url("local://b/", variant, file_name=name)
                self.assertEqual(f"{base.rstrip('/')}/media{plain}/{encoded}", url)
        for name, reason in (
            *(("a.wav", "ends in .mp3 suits audio/mpeg"), (".mp3", "ends in .mp3")),
            *((f"a{c}b.mp3", "without control characters, / or") for c in "/\\\n\x7f\x85"),
            *(("a\udcff.mp3", "UTF-8"), (f"{'a' * 252}.mp3", "255 bytes"), ("a.MP3", "in .mp3")),
        ):
            error = self.assertRaises(ValueError, SIGNER.url, "local://a", file_name=name)
            self.assertRegex(str(error), f"^file name {re.escape(repr(name))}: .*{reason}")
        error = self.assertRaises(
            ValueError, SIGNER.url, "local://a", Variant(f="ogg"), file_name="a"
        )
        self.assertIn("ends in .opus or .ogg suits audio/ogg", str(error))
        self.assertRaises(TypeError, SIGNER.url, "local://a", file_name=b"a.mp3")

    def test_one_url_a_day(self) -> None:
        """With ``round_to``, all page views of a day share one URL, which lasts ``expires_in``."""
        day, found = 86400, set()
        for second in range(NOW - NOW % day + 1, NOW - NOW % day + day + 1, 997):
            signer = Signer(KEY, SALT, BASE, now=lambda second=second: second + 0.5)
            url = signer.url("local://a", expires_in=timedelta(days=1), round_to=timedelta(days=1))
            exp = parse_options(take_apart(url).options)[1]
            self.assertIn(exp - second, range(day, 2 * day))
            found.add(url)
        self.assertEqual(1, len(found))

    def test_element(self) -> None:
        """An element has the source in each format; its text is safe in HTML."""
        signer = Signer(KEY, SALT, "/a&'b'")
        element = signer.audio_element("local://a", formats=["opus"], attributes="controls")
        self.assertEqual(
            '<audio controls><source src="/a&amp;&#x27;b&#x27;/'
            + signer.url("local://a", Variant(f="opus")).removeprefix("/a&'b'/")
            + '" type="audio/ogg; codecs=opus"></audio>',
            element,
        )
        self.assertRaises(Expired, SIGNER.audio_element, "local://a", expires_at=NOW - 1)

    def test_own_path(self) -> None:
        """`Signer.sign` signs a path unchanged, and refuses a path that clients cannot send."""
        path = "/f:mp3/plain/local://a%2fb'(c)"
        self.assertEqual(path.encode(), split_signature(SIGNER.sign(path)[21:].encode()).signed)
        for wrong in ("", "f:mp3", "/a b", "/a\n", "/a?b", "/a#b", "/ä", f"{BASE}/a"):
            self.assertRaises(ValueError, SIGNER.sign, wrong)

    def test_secrets(self) -> None:
        """`Signer` takes key and salt as bytes, and `Signer.from_hex` as hexadecimal text."""
        read = Signer.from_hex(KEY.hex(), SALT.hex().upper(), BASE, encoded=True, now=lambda: NOW)
        self.assertEqual((KEY, SALT, BASE, True), (read.key, read.salt, read.base, read.encoded))
        for kind, key, salt in (
            (TypeError, KEY.hex(), SALT),
            (TypeError, KEY, SALT.hex()),
            (ValueError, KEY[1:], SALT),
            (ValueError, KEY, b""),
        ):
            error = self.assertRaises(kind, Signer, key, salt)
            self.assertIn("from_hex", str(error))

    def test_environment(self) -> None:
        """`Signer.from_env` takes any mapping, and names a variable that is not set."""
        values = {"AP_KEY": KEY.hex(), "AP_SALT": SALT.hex(), "PATH": "/bin"}
        made = Signer.from_env(MappingProxyType(values), BASE)
        self.assertEqual((KEY, SALT, BASE), (made.key, made.salt, made.base))
        for name in ("AP_KEY", "AP_SALT"):
            for wrong in ({**values, name: ""}, {**values, name: None}):
                error = self.assertRaises(ValueError, Signer.from_env, wrong)
                self.assertTrue(str(error).startswith(f"{name}: not set"), error)
        self.assertRaises(TypeError, Signer.from_env, None)

    def test_secrets_untold(self) -> None:
        """Error messages and `repr` contain no part of the key or the salt."""
        key, salt = "5ec7e7" * 12, "5a17ed" * 2
        for wrong_key, wrong_salt, name in (
            *((f"0x{key}", salt, "AP_KEY"), (key[1:], salt, "AP_KEY"), (key[:60], salt, "AP_KEY")),
            *((f" {key}", salt, "AP_KEY"), (f"{key}\n", salt, "AP_KEY"), ("", salt, "AP_KEY")),
            *((key, f"{salt}x", "AP_SALT"), (key, salt[1:], "AP_SALT"), (key, "", "AP_SALT")),
        ):
            message = str(self.assertRaises(ValueError, Signer.from_hex, wrong_key, wrong_salt))
            self.assertTrue(message.startswith(f"{name}: "), message)
            self.assertNotIn(key[6:12], message)
            self.assertNotIn(salt[6:], message)
        shown = repr(Signer.from_hex(key, salt, BASE))
        self.assertEqual(f"Signer(base={BASE!r}, encoded=False)", shown)
