"""What is recorded with a stored variant, and read again (D58)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.cache_tag import CacheTagHeader
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.request import VariantRequest, parse_request
from audioproxy.grammar.sources import LocalSource
from audioproxy.variants.record import METADATA_PREFIX, VariantRecord, digest_of
from tests.support.stores import RECORD
from tests.support.strategies import DETERMINISTIC

STORED = replace(RECORD, sha256="b" * 64)


def options_of(text: str) -> VariantOptions:
    """Return parsed options."""
    request = parse_request(f"/{text}/plain/local://a".encode(), None)
    assert isinstance(request, VariantRequest)
    return request.options


def read_metadata(lines: Mapping[str, str]) -> VariantRecord | None:
    """Return the record of an object's metadata."""
    return VariantRecord.read({n.removeprefix(METADATA_PREFIX): text for n, text in lines.items()})


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
        header = CacheTagHeader("cache-tag", b"salt")
        tagged = VariantRecord.of(request, b"", 0, header)
        self.assertEqual(header.line(request.source.canonical), tagged.cache_tag)

    @DETERMINISTIC
    @given(source=st.binary(min_size=1, max_size=99), validator=st.binary(max_size=99))
    @example(source=b"base64:////", validator=b"base64:")
    def test_round_trip(self, source: bytes, validator: bytes) -> None:
        """Any bytes become visible ASCII, and are read again, beside texts of later versions."""
        record = replace(STORED, source=source, validator=validator, build="7.1.5-0+deb13u1:0a")
        texts = record.texts()
        self.assertRegex("".join(texts.values()), r"\A[!-~]+\Z")
        self.assertEqual(record, VariantRecord.read({**texts, "later": "x"}))

    def test_long(self) -> None:
        """Metadata has values of at most 256 bytes, and 2 KB in all; it is read as texts are."""
        for source, options, kept in (
            ("a" * 1024, "f:mp3", True),
            ("\N{HIRAGANA LETTER A}" * 341, "f:mp3", True),
            ("a" * 1500, "f:mp3", False),
            ("a" * 1024, "dl:" + "%2B" * 255, False),
            ("a" * 300, "dl:" + "%2B" * 255, True),
            ("a" * 300, "cb:" + "%2B" * 200 + "/f:mp3", True),
        ):
            request = VariantRequest.of(options_of(options), LocalSource(source.encode()))
            record = replace(VariantRecord.of(request, b'"tag"', 0), sha256="b" * 64)
            header = CacheTagHeader("cache-tag", b"salt").line(b"")
            metadata = replace(record, cache_tag=header).metadata()
            size = sum(len(name) + len(text) for name, text in metadata.items())
            self.assertLessEqual(size, 2048)
            self.assertLessEqual(max(map(len, metadata.values())), 256)
            found = read_metadata(metadata)
            self.assertEqual(VariantRecord.read(record.texts()), found)
            self.assertEqual(record if kept else replace(record, source=None), found)
        both = options_of("cb:" + "%2B" * 255 + "/dl:" + "%2B" * 255 + "/f:mp3")
        record = VariantRecord.of(VariantRequest.of(both, LocalSource(b"a")), b"", 0)
        self.assertEqual("dl:" + "%2B" * 255 + "/f:mp3", record.options)

    def test_least(self) -> None:
        """The least record of any variant has less than 500 bytes, and finds those of a source."""
        options = options_of("dl:" + "%2B" * 255 + "/f:mp3")
        request = VariantRequest.of(options, LocalSource(b"a" * 1000))
        record = replace(VariantRecord.of(request, b"tag", 0, None, "5.1:0a"), sha256="b" * 64)
        metadata = record.least.metadata()
        self.assertLess(sum(len(name) + len(text) for name, text in metadata.items()), 500)
        found = read_metadata(metadata)
        assert found is not None
        self.assertEqual(("f:mp3", digest_of(request.source)), (found.options, found.source_sha256))

    def test_older_nodes(self) -> None:
        """A node that reads no numbered texts reads a shorter record (D58), not a wrong source."""
        options = "br:96/dl:" + "%2B" * 200 + "/f:mp3"
        request = VariantRequest.of(options_of(options), LocalSource(b"a" * 300))
        metadata = replace(VariantRecord.of(request, b"v" * 300, 7), sha256="b" * 64).metadata()
        older = {name: text for name, text in metadata.items() if not re.search(r"-[0-9]+$", name)}
        found = read_metadata(older)
        assert found is not None
        self.assertEqual(("br:96/f:mp3", None, b""), (found.options, found.source, found.validator))
        self.assertEqual(digest_of(request.source), found.source_sha256)

    def test_build(self) -> None:
        """The build of ffmpeg is recorded where there is room; records may have none (D58)."""
        build = "9" * 60 + ":0123abcd"
        for source, kept in ((b"a" * 1200, True), (b"a" * 1300, False)):
            record = replace(STORED, source=source, validator=b"v" * 64, build=build)
            expected = record if kept else replace(record, build="")
            self.assertEqual(expected, VariantRecord.read(record.texts()))
        self.assertNotIn("build", STORED.texts())

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
