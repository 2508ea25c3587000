"""What is recorded with a stored variant, and read again (D58)."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.request import VariantRequest, parse_request
from audioproxy.variants.record import METADATA_PREFIX, VariantRecord
from tests.support.stores import RECORD
from tests.support.strategies import DETERMINISTIC

STORED = replace(RECORD, sha256="b" * 64)


class RecordTests(SynchronousTestCase):
    """`VariantRecord`"""

    def test_of_a_request(self) -> None:
        """It names the source, without the query of a URL but with a digest of the whole."""
        url = b"https://h/a.wav?token=secret"
        request = parse_request(b"/br:96/f:mp3/plain/" + url.replace(b"?", b"%3F"), None)
        assert isinstance(request, VariantRequest)
        record = VariantRecord.of(request, b'"tag"', 1_800_000_000.9, build="5.1:0a")
        digest = sha256(url).hexdigest()
        expected = ("br:96/f:mp3", digest, 1_800_000_000, b"https://h/a.wav", b'"tag"', "")
        self.assertEqual(VariantRecord(*expected, "5.1:0a"), record)
        self.assertNotIn("secret", repr(record.texts()))

    @DETERMINISTIC
    @given(source=st.binary(min_size=1, max_size=99), validator=st.binary(max_size=99))
    def test_round_trip(self, source: bytes, validator: bytes) -> None:
        """Any bytes become visible ASCII, and are read again, beside texts of later versions."""
        record = replace(STORED, source=source, validator=validator, build="7.1.5-0+deb13u1:0a")
        texts = record.texts()
        self.assertRegex("".join(texts.values()), r"\A[!-~]+\Z")
        self.assertEqual(record, VariantRecord.read({**texts, "later": "x"}))

    def test_like_base64(self) -> None:
        """A source that looks like an encoded one is encoded."""
        record = replace(STORED, source=b"base64:////", validator=b"base64:")
        self.assertEqual(record, VariantRecord.read(record.texts()))

    def test_long(self) -> None:
        """A source of more than 1.5 KB is recorded as its digest alone.

        So is a shorter one beside options that leave no room in the 2 KB of an object's metadata.
        """
        for source, options, kept in (
            (b"a" * 1500, "f:mp3", True),
            (b"a" * 1501, "f:mp3", False),
            (b"\xff" * 1200, "f:mp3", False),
            (b"a" * 1024, "dl:" + "%C3" * 255, False),
            (b"a" * 500, "dl:" + "%C3" * 255, True),
        ):
            record = replace(STORED, source=source, options=options)
            texts = record.texts()
            size = sum(len(METADATA_PREFIX + name + text) for name, text in texts.items())
            self.assertLessEqual(size, 2048)
            expected = record if kept else replace(record, source=None)
            self.assertEqual(expected, VariantRecord.read(texts))

    def test_build(self) -> None:
        """The build of ffmpeg is recorded where the 2 KB have room; records may have none (D58)."""
        build = "9" * 60 + ":0123abcd"
        for source, validator, kept in (
            (b"a" * 1024, b"v" * 64, True),
            (b"a" * 1500, b"", True),
            (b"a" * 1500, b"v" * 64, False),
        ):
            record = replace(STORED, source=source, validator=validator, build=build)
            expected = record if kept else replace(record, build="")
            self.assertEqual(expected, VariantRecord.read(record.texts()))
        self.assertNotIn("build", STORED.texts())

    def test_empty_source(self) -> None:
        """A record whose source is empty has none, as no source is empty."""
        for text in ("", "base64:"):
            found = VariantRecord.read({**STORED.texts(), "source": text})
            self.assertEqual(replace(STORED, source=None), found)

    def test_others(self) -> None:
        """Texts that no version of this service writes are no record."""
        texts = STORED.texts()
        self.assertIsNotNone(VariantRecord.read(texts))
        for name in ("options", "source-sha256", "sha256", "stored"):
            self.assertIsNone(VariantRecord.read({n: t for n, t in texts.items() if n != name}))
        for change in (
            {"sha256": "b" * 63},
            {"source-sha256": "B" * 64},
            {"stored": "now"},
            {"stored": float("inf")},
            {"source": "base64:*"},
            {"validator": "\xe9"},
        ):
            self.assertIsNone(VariantRecord.read({**texts, **change}), change)
