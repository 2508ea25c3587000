"""The fields of the info document, each with its fallbacks (Info document)."""

from __future__ import annotations

import math
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.formats import FORMATS
from audioproxy.media.info_document import SourceInfo, parse_source_info

#: Values that count as missing: those that ffprobe prints, and others.
MISSING = (
    *("N/A", "0", 0, "", " ", None, "nonsense", "-1", -1, "nan", "-nan", "inf", "-inf", "Infinity"),
    *("0x10", "1,5", "1:30", "12 Hz", True, False, [], {}, ["1"], {"a": 1}, math.nan, math.inf),
    # Python's syntax allows these, but not ffprobe's.
    *("1_000", "\uff11\uff12", "+5", " 5", "5\n", "5.", "sNaN"),
)

#: Values that are not written as a whole number.
FRACTIONS = ("44100.5", "0.0", "0.1", 44100.0, "4e3", "1/44100")

#: More digits than Python parses as one number.
TOO_MANY_DIGITS = "9" * 5000


def document(
    container: dict[str, Any] | None = None,
    audio: dict[str, Any] | None = None,
    size: int | None = None,
) -> dict[str, object]:
    """Return the document for ffprobe's fields of a container and its first audio stream."""
    return parse_source_info(container or {}, audio or {}).document(size)


def tags(given: object) -> object:
    """Return the document's tags for the format's tags."""
    return document({"tags": given}).get("tags")


class DocumentTests(SynchronousTestCase):
    """`SourceInfo.document`"""

    def test_whole(self) -> None:
        """A source with all values has all eight fields, with the documented types."""
        container = {"format_name": "flac", "duration": "2.500000", "bit_rate": "1234567"}
        audio = {"codec_name": "flac", "sample_rate": "96000", "channels": 2}
        audio |= {"bits_per_sample": 0, "bits_per_raw_sample": "24"}
        found = document({**container, "size": "99", "tags": {"TITLE": "A song"}}, audio, size=100)
        expected = {
            "format": "flac",
            "duration": 2.5,
            "sample_rate": 96000,
            "channels": 2,
            "bit_depth": 24,
            "bitrate": 1234567,
            "size": 100,
            "tags": {"title": "A song"},
        }
        self.assertEqual(expected, found)
        for name, value in expected.items():
            self.assertIs(type(value), type(found[name]), name)

    def test_nothing(self) -> None:
        """A field without a value is omitted, never null and never zero (Info document, 2)."""
        self.assertEqual({}, SourceInfo().document(None))
        self.assertEqual({}, SourceInfo().document(0))

    def test_shared(self) -> None:
        """A shared probe is hashable, and each client has its own copy of the document."""
        found = parse_source_info({"tags": {"a": "b"}}, {})
        first: Any = found.document(None)
        first["tags"]["a"] = "spoilt"
        self.assertEqual({"tags": {"a": "b"}}, found.document(None))
        self.assertEqual(1, len({found, parse_source_info({"tags": {"a": "b"}}, {})}))

    def test_format(self) -> None:
        """The first format token is used, or else the first name; Ogg depends on its codec."""
        mov = "mov,mp4,m4a,3gp,3g2,mj2"
        for names, codec, expected in (
            (mov, None, "m4a"),
            ("x,mp3,flac", None, "mp3"),
            ("x,y", None, "x"),
            *((f"x,{token},y", None, token) for token in FORMATS if token != "peaks"),
            # A token must equal a whole name, including letter case.
            ("mp3x,xmp3", None, "mp3x"),
            (" mp3", None, " mp3"),
            # peaks is a token of requests, but never the format of a file.
            ("peaks,mp3", None, "mp3"),
            ("ogg", "opus", "opus"),
            *(("ogg", codec, "ogg") for codec in ("vorbis", "flac", "speex", ["opus"])),
            ("matroska,webm", "opus", "matroska"),
            (mov, "opus", "m4a"),
        ):
            found = document({"format_name": names}, {"codec_name": codec})
            self.assertEqual({"format": expected}, found, (names, codec))
        for missing in ("", None, 0, 1, True, [], ["mp3"], {"mp3": 1}):
            self.assertEqual({}, document({"format_name": missing}), missing)


class NumberTests(SynchronousTestCase):
    """The numeric fields: duration, sample_rate, channels, bit_depth, bitrate and size"""

    def test_fallbacks(self) -> None:
        """Missing values have a fallback; the raw depth is the first (Info document, 1)."""
        for field, first, second, where in (
            ("bit_depth", "bits_per_raw_sample", "bits_per_sample", ("audio", "audio")),
            ("bitrate", "bit_rate", "bit_rate", ("container", "audio")),
            ("duration", "duration", "duration", ("container", "audio")),
        ):
            for missing in (*MISSING, *(FRACTIONS if field != "duration" else ())):
                for one, other, expected in (
                    (missing, None, {}),
                    (missing, "7", {field: 7}),
                    ("8", "7", {field: 8}),
                    ("8", missing, {field: 8}),
                    (missing, missing, {}),
                ):
                    parts: dict[str, dict[str, Any]] = {"container": {}, "audio": {}}
                    parts[where[0]][first] = one
                    parts[where[1]][second] = other
                    self.assertEqual(expected, document(**parts), (field, one, other))

    def test_without_a_fallback(self) -> None:
        """A missing rate or channel count is omitted, never guessed."""
        for field in ("sample_rate", "channels"):
            for missing in (*MISSING, *FRACTIONS, TOO_MANY_DIGITS):
                self.assertEqual({}, document({}, {field: missing}), (field, missing))
            for number in ("44100", 44100, "044100"):
                self.assertEqual({field: 44100}, document({}, {field: number}))

    def test_size(self) -> None:
        """The storage's size comes first, then the probe's; an unknown one is omitted."""
        for storage, probed, expected in (
            (100, "99", {"size": 100}),
            (100, "N/A", {"size": 100}),
            (None, "99", {"size": 99}),
            (0, "9" * 18, {"size": int("9" * 18)}),
            (None, "9" * 19, {}),
            *((None, missing, {}) for missing in (*MISSING, *FRACTIONS, TOO_MANY_DIGITS)),
        ):
            self.assertEqual(expected, document({"size": probed}, size=storage), probed)

    def test_duration(self) -> None:
        """Durations are as precise as stated; with an exponent or too long, omitted."""
        precise = "2.5 0.000023 0.1 359999.999999 9223372036854.775807"
        for text in (*precise.split(), "2.500000", 3, 0.25):
            self.assertEqual({"duration": float(text)}, document({"duration": text}))
        for text in ("1e400", "1e-400", "9" * 400, "0." + "0" * 400 + "1", 1e300, 1e-300):
            self.assertEqual({}, document({"duration": text}), text)


class TagTests(SynchronousTestCase):
    """The field ``tags``"""

    def test_kept(self) -> None:
        """Tags that are strings are kept (Info document), under their keys in lower case.

        Of keys that differ only in case, the first is kept. Values keep their case. Without valid
        tags the field is omitted: there is no empty object.
        """
        others = {"number": 1, "none": None, "list": ["x"], "object": {"x": "y"}, "true": True}
        for given_tags, expected in (
            ({"TITLE": "Some VALUE"}, {"title": "Some VALUE"}),
            ({"Album_Artist": "x", "ÄÖ": "y"}, {"album_artist": "x", "äö": "y"}),
            ({"ΑΒΓ": "x", "TXXX:My Key": "y"}, {"αβγ": "x", "txxx:my key": "y"}),
            ({"": "x"}, {"": "x"}),
            ({**others, "title": "kept", "empty": ""}, {"title": "kept", "empty": ""}),
            ({"Title": "1", "TITLE": "2", "title": "3"}, {"title": "1"}),
            ({"Title": 1, "TITLE": "2"}, {"title": "2"}),
            ({"Title": "", "TITLE": "2"}, {"title": ""}),
            *((none, None) for none in ({}, {"a": 1}, None, [], ["title"], "title", 1, True)),
            ([["a", "b"]], None),
        ):
            self.assertEqual(expected, tags(given_tags), given_tags)

    def test_count(self) -> None:
        """At most 32 valid tags are kept (D24)."""
        for count, kept in ((31, 31), (32, 32), (33, 32), (1000, 32)):
            given_tags = {f"Tag{number}": "x" for number in range(count)}
            self.assertEqual({f"tag{number}": "x" for number in range(kept)}, tags(given_tags))
        dropped = {f"number{number}": number for number in range(100)}
        self.assertEqual({"title": "x"}, tags({**dropped, "title": "x"}))
        collided = {"a" * 600 + str(number): "x" for number in range(100)}
        self.assertEqual({"a" * 512: "x", "title": "x"}, tags({**collided, "title": "x"}))

    def test_order(self) -> None:
        """Well-known tags come first, those of MP4 last, and the others keep their order (D24)."""
        first = "title artist album album_artist track disc date genre composer comment".split()
        last = ["major_brand", "minor_version", "compatible_brands"]
        others = [f"musicbrainz_{number}" for number in range(40)]
        given_tags = {key.upper(): "x" for key in (*last, *others, *reversed(first))}
        found: Any = tags(given_tags)
        self.assertEqual([*first, *others[:22]], list(found))
        found = tags(dict.fromkeys((*last, "encoder", "title"), "x"))
        self.assertEqual(["title", "encoder", *last], list(found))

    def test_ogg(self) -> None:
        """The tags of Ogg are those of its first audio stream (D24)."""
        audio = {"codec_name": "opus", "tags": {"TITLE": "x"}}
        for container, expected in (
            ({"format_name": "ogg"}, {"title": "x"}),
            ({"format_name": "ogg", "tags": {"artist": "y"}}, {"title": "x"}),
            ({"format_name": "matroska,webm", "tags": {"artist": "y"}}, {"artist": "y"}),
            ({"format_name": "matroska,webm"}, None),
        ):
            self.assertEqual(expected, document(container, audio).get("tags"))
        only = {"format_name": "ogg", "tags": {"artist": "y"}}
        self.assertEqual({"artist": "y"}, document(only, {}).get("tags"))

    def test_length(self) -> None:
        """Values and keys are cut after 512 whole characters (D24)."""
        for length in (511, 512, 513, 100_000):
            for character in ("x", "ü", "\N{MULTIPLE MUSICAL NOTES}"):
                text = character * length
                self.assertEqual({text[:512]: text[:512]}, tags({text: text}))
        # A key that grows in lower case is cut after the conversion.
        grown: Any = tags({"\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}" * 512: "x"})
        self.assertEqual([512], [len(key) for key in grown])
