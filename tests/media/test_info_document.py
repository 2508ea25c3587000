"""The fields of the info document, each with its fallbacks (Info document)."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.formats import FORMATS
from audioproxy.media.info_document import SourceInfo, read_count, read_seconds, read_source_info
from tests.support.strategies import DETERMINISTIC

#: Values that count as missing: those that ffprobe prints, and others.
MISSING = (
    *("N/A", "0", 0, "", " ", None, "nonsense", "-1", -1, "nan", "-nan", "inf", "-inf", "Infinity"),
    *("0x10", "1,5", "1:30", "12 Hz", True, False, [], {}, ["1"], {"a": 1}, math.nan, math.inf),
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
    return read_source_info(container or {}, audio or {}).document(size)


def tags(given: object) -> object:
    """Return the document's tags for the format's tags."""
    return document({"tags": given}).get("tags")


class DocumentTests(SynchronousTestCase):
    """`SourceInfo.document`"""

    def test_whole(self) -> None:
        """A source with all values has all eight fields, with the documented types."""
        found = document(
            {
                "format_name": "flac",
                "duration": "2.500000",
                "bit_rate": "1234567",
                "size": "99",
                "tags": {"TITLE": "A song"},
            },
            {
                "codec_name": "flac",
                "sample_rate": "96000",
                "channels": 2,
                "bits_per_sample": 0,
                "bits_per_raw_sample": "24",
            },
            size=100,
        )
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
        self.assertEqual({}, document())
        self.assertEqual({}, SourceInfo().document(None))
        self.assertEqual({}, SourceInfo().document(0))

    def test_each_alone(self) -> None:
        """No field depends on another: each is present if only its value is known."""
        for container, audio, field, value in (
            ({"format_name": "wav"}, {}, "format", "wav"),
            ({"duration": "1"}, {}, "duration", 1.0),
            ({}, {"duration": "1"}, "duration", 1.0),
            ({}, {"sample_rate": "8000"}, "sample_rate", 8000),
            ({}, {"channels": 6}, "channels", 6),
            ({}, {"bits_per_sample": 8}, "bit_depth", 8),
            ({"bit_rate": "9"}, {}, "bitrate", 9),
            ({}, {"bit_rate": "9"}, "bitrate", 9),
            ({"size": "9"}, {}, "size", 9),
            ({"tags": {"a": "b"}}, {}, "tags", {"a": "b"}),
        ):
            self.assertEqual({field: value}, document(container, audio))

    def test_fields_in_the_wrong_object(self) -> None:
        """Rate, channels and depth come from the stream only, size and tags from the container."""
        self.assertEqual(
            {},
            document(
                {"sample_rate": "1", "channels": 1, "bits_per_sample": 1, "codec_name": "flac"},
                {"size": "1", "tags": {"title": "of the stream"}, "format_name": "flac"},
            ),
        )

    def test_document_is_a_copy(self) -> None:
        """Each client of a shared probe has its own copy of the document."""
        found = read_source_info({"tags": {"a": "b"}}, {})
        first: Any = found.document(None)
        first["tags"]["a"] = "spoilt"
        self.assertEqual({"tags": {"a": "b"}}, found.document(None))

    def test_hashable(self) -> None:
        """A `SourceInfo` is hashable with any tags."""
        self.assertEqual(1, len({read_source_info({"tags": {"a": "b"}}, {}) for _ in range(2)}))


class FormatTests(SynchronousTestCase):
    """The field ``format``"""

    def test_names(self) -> None:
        """The first name that is a format token is used, or else the first name (Info document)."""
        for names, expected in (
            # Names of containers as ffprobe writes them.
            ("mp3", "mp3"),
            ("wav", "wav"),
            ("flac", "flac"),
            ("aac", "aac"),
            ("ogg", "ogg"),
            ("mov,mp4,m4a,3gp,3g2,mj2", "m4a"),
            ("matroska,webm", "matroska"),
            ("w64", "w64"),
            ("aiff", "aiff"),
            ("caf", "caf"),
            ("wv", "wv"),
            ("asf", "asf"),
            # Names that no container has yet.
            ("x,mp3,flac", "mp3"),
            ("x,flac,mp3", "flac"),
            ("flac,x", "flac"),
            ("x,y", "x"),
            ("x,opus", "opus"),
            # A token must equal a whole name, including letter case.
            ("mp3x,xmp3", "mp3x"),
            ("MP3,x", "MP3"),
            (" mp3", " mp3"),
            # peaks is a token of requests, but never the format of a file.
            ("x,peaks", "x"),
            ("peaks,mp3", "mp3"),
        ):
            self.assertEqual({"format": expected}, document({"format_name": names}), names)

    def test_tokens(self) -> None:
        """Every output format of audio is recognized by its own token."""
        for row in FORMATS.values():
            if row.token != "peaks":
                found = document({"format_name": f"x,{row.token},y"})
                self.assertEqual({"format": row.token}, found)

    def test_ogg(self) -> None:
        """An Ogg file is opus or ogg, depending on its codec; other containers ignore the codec."""
        for names, codec, expected in (
            ("ogg", "opus", "opus"),
            ("ogg", "vorbis", "ogg"),
            ("ogg", "flac", "ogg"),
            ("ogg", "speex", "ogg"),
            ("ogg", None, "ogg"),
            ("ogg", ["opus"], "ogg"),
            ("x,ogg", "opus", "opus"),
            ("matroska,webm", "opus", "matroska"),
            ("mov,mp4,m4a,3gp,3g2,mj2", "opus", "m4a"),
        ):
            found = document({"format_name": names}, {"codec_name": codec})
            self.assertEqual({"format": expected}, found, (names, codec))

    def test_missing(self) -> None:
        """Without a name there is no format."""
        for names in ("", None, 0, 1, True, [], ["mp3"], {"mp3": 1}):
            self.assertEqual({}, document({"format_name": names}), names)


class NumberTests(SynchronousTestCase):
    """The numeric fields: duration, sample_rate, channels, bit_depth, bitrate and size"""

    def test_fallbacks(self) -> None:
        """Every missing first choice is replaced by its fallback (Info document, 1)."""
        for field, first, second, where in (
            ("bit_depth", "bits_per_raw_sample", "bits_per_sample", ("audio", "audio")),
            ("bitrate", "bit_rate", "bit_rate", ("container", "audio")),
            ("duration", "duration", "duration", ("container", "audio")),
        ):
            for missing in (*MISSING, *(FRACTIONS if field != "duration" else ())):
                parts: dict[str, dict[str, Any]] = {"container": {}, "audio": {}}
                parts[where[0]][first] = missing
                self.assertEqual({}, document(**parts), (field, missing))
                parts[where[1]][second] = "7"
                self.assertEqual({field: 7}, document(**parts), (field, missing))
                parts[where[0]][first] = "8"
                self.assertEqual({field: 8}, document(**parts), field)
                parts[where[1]][second] = missing
                self.assertEqual({field: 8}, document(**parts), (field, missing))
                parts[where[0]][first] = missing
                self.assertEqual({}, document(**parts), (field, missing))

    def test_without_a_fallback(self) -> None:
        """A missing rate or channel count is omitted, never guessed."""
        for field in ("sample_rate", "channels"):
            for missing in (*MISSING, *FRACTIONS, TOO_MANY_DIGITS):
                self.assertEqual({}, document({}, {field: missing}), (field, missing))
            for given_value in ("44100", 44100, "044100"):
                self.assertEqual({field: 44100}, document({}, {field: given_value}))

    def test_size(self) -> None:
        """The storage's size comes first, then the probe's; an unknown one is omitted."""
        for storage, probed, expected in (
            (100, "99", 100),
            (100, "N/A", 100),
            (None, "99", 99),
            (0, "99", 99),
            *((None, missing, None) for missing in (*MISSING, *FRACTIONS, TOO_MANY_DIGITS)),
        ):
            found = document({"size": probed}, size=storage)
            self.assertEqual({} if expected is None else {"size": expected}, found, probed)

    def test_depth_is_never_guessed(self) -> None:
        """Sample format, rate and codec never determine the stored bit depth."""
        for audio in (
            {"sample_fmt": "s32", "codec_name": "flac"},
            {"sample_fmt": "s16p", "codec_name": "mp3", "bits_per_sample": 0},
            {"sample_fmt": "fltp", "bits_per_raw_sample": "N/A", "bits_per_sample": "0"},
        ):
            self.assertNotIn("bit_depth", document({}, audio))

    def test_raw_depth_first(self) -> None:
        """24 bits that are stored in 32 are reported as 24."""
        found = document({}, {"bits_per_raw_sample": "24", "bits_per_sample": 32})
        self.assertEqual({"bit_depth": 24}, found)

    def test_duration(self) -> None:
        """Durations are as precise as ffprobe states them."""
        for text, seconds in (
            ("2.500000", 2.5),
            ("0.000023", 0.000023),
            ("0.1", 0.1),
            ("359999.999999", 359999.999999),
            ("9223372036854.775807", 9223372036854.775807),
            (3, 3.0),
            (0.25, 0.25),
        ):
            self.assertEqual({"duration": seconds}, document({"duration": text}))

    def test_huge_counts(self) -> None:
        """Counts of more than 18 digits are treated as missing."""
        longest = "9" * 18
        found = document({"bit_rate": longest}, {"channels": longest})
        self.assertEqual({"bitrate": int(longest), "channels": int(longest)}, found)
        for digits in ("9" * 19, "9" * 4000, TOO_MANY_DIGITS):
            self.assertEqual({}, document({"bit_rate": digits}, {"channels": digits}))
            self.assertEqual({"bitrate": 5}, document({"bit_rate": digits}, {"bit_rate": "5"}))

    def test_huge_durations(self) -> None:
        """Durations with an exponent or too many digits are omitted."""
        for text in ("1e400", "1e-400", "9" * 400, "0." + "0" * 400 + "1", 1e300, 1e-300):
            self.assertEqual({}, document({"duration": text}), text)

    def test_spelling(self) -> None:
        """Numbers that Python's syntax allows, but not ffprobe's, count as missing."""
        for text in ("1_000", "\uff11\uff12", "+5", " 5", "5\n", "5."):
            self.assertEqual({}, document({"duration": text}, {"channels": text}), text)

    def test_readers(self) -> None:
        """`read_seconds` and `read_count` return a positive number or None, and never raise."""
        for missing in MISSING:
            self.assertIsNone(read_seconds(missing), missing)
            self.assertIsNone(read_count(missing), missing)
        self.assertEqual(Decimal("0.5"), read_seconds("0.5"))
        self.assertEqual(5, read_count("5"))
        self.assertIsNone(read_seconds("sNaN"))


class TagTests(SynchronousTestCase):
    """The field ``tags``"""

    def test_keys(self) -> None:
        """Keys are lower-cased, in every script; values are not."""
        for key, lowered in (
            ("TITLE", "title"),
            ("Album_Artist", "album_artist"),
            ("ÄÖ", "äö"),
            ("ΑΒΓ", "αβγ"),
            ("title", "title"),
            ("TXXX:My Key", "txxx:my key"),
            ("", ""),
        ):
            self.assertEqual({lowered: "Some VALUE"}, tags({key: "Some VALUE"}))

    def test_strings_only(self) -> None:
        """Tags that are not strings are omitted (Info document)."""
        given_tags = {
            "number": 1,
            "none": None,
            "list": ["x"],
            "object": {"x": "y"},
            "true": True,
            "title": "kept",
            "empty": "",
        }
        self.assertEqual({"title": "kept", "empty": ""}, tags(given_tags))

    def test_none(self) -> None:
        """Without valid tags the field is omitted: there is no empty object."""
        for given_tags in ({}, {"a": 1}, None, [], ["title"], "title", 1, True, [["a", "b"]]):
            self.assertIsNone(tags(given_tags), given_tags)

    def test_count(self) -> None:
        """The first 32 valid tags are kept (D24)."""
        for count, kept in ((31, 31), (32, 32), (33, 32), (1000, 32)):
            given_tags = {f"Tag{number}": "x" for number in range(count)}
            expected = {f"tag{number}": "x" for number in range(kept)}
            self.assertEqual(expected, tags(given_tags))
        dropped = {f"number{number}": number for number in range(100)}
        self.assertEqual({"title": "x"}, tags({**dropped, "title": "x"}))
        collided = {"a" * 600 + str(number): "x" for number in range(100)}
        self.assertEqual({"a" * 512: "x", "title": "x"}, tags({**collided, "title": "x"}))

    def test_length(self) -> None:
        """Values and keys are cut after 512 whole characters (D24)."""
        for length in (511, 512, 513, 100_000):
            for character in ("x", "ü", "\N{MULTIPLE MUSICAL NOTES}"):
                text = character * length
                self.assertEqual({"lyrics": text[:512]}, tags({"lyrics": text}))
                self.assertEqual({text[:512]: "x"}, tags({text: "x"}))

    def test_key_that_grows(self) -> None:
        """A key that grows in lower case is cut after the conversion (D24)."""
        grown: Any = tags({"\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}" * 512: "x"})
        self.assertEqual([512], [len(key) for key in grown])

    def test_collision(self) -> None:
        """Of keys that differ only in case, the first is kept."""
        self.assertEqual({"title": "1"}, tags({"Title": "1", "TITLE": "2", "title": "3"}))
        self.assertEqual({"title": "2"}, tags({"Title": 1, "TITLE": "2"}))
        self.assertEqual({"title": ""}, tags({"Title": "", "TITLE": "2"}))

    def test_any_character(self) -> None:
        """Control characters, newlines and surrogates are valid in values."""
        for text in ("a\nb", "\0", "\x1b[0m", "\ufffd", "\u2028", '"\\', "\ud800", "</script>"):
            found = document({"tags": {text: text}})
            self.assertEqual({"tags": {text.lower(): text}}, found)
            self.assertEqual(found, json.loads(json.dumps(found).encode("ascii")))


#: Numbers as text, with their special values, and values that count as missing.
NUMBERS = (
    st.integers().map(str)
    | st.floats().map(str)
    | st.decimals(allow_nan=True, min_value=-(10**18), max_value=10**18).map(str)
    | st.sampled_from([str(value) for value in MISSING])
)
#: Any JSON value; Python's parser accepts NaN and infinities too.
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
FIELDS = (
    *("format_name", "duration", "bit_rate", "size", "tags", "codec_name", "sample_rate"),
    *("channels", "bits_per_sample", "bits_per_raw_sample"),
)
OBJECTS = st.dictionaries(
    st.sampled_from(FIELDS) | st.text(max_size=9),
    JSON_VALUES | st.dictionaries(st.text(max_size=9), st.text(max_size=20), max_size=40),
)

FIELD_TYPES = {
    "format": str,
    "duration": float,
    "sample_rate": int,
    "channels": int,
    "bit_depth": int,
    "bitrate": int,
    "size": int,
    "tags": dict,
}


class AnyOutputTests(SynchronousTestCase):
    """Any output of ffprobe"""

    @DETERMINISTIC
    @given(container=OBJECTS, audio=OBJECTS, size=st.none() | st.integers(min_value=0))
    def test_any_output(
        self, container: dict[str, Any], audio: dict[str, Any], size: int | None
    ) -> None:
        """Any output gives valid JSON of the documented fields (Info document, 2).

        No field is null or zero.
        """
        found = document(container, audio, size)
        for name, value in found.items():
            self.assertIs(FIELD_TYPES[name], type(value), name)
            if name in ("format", "tags"):
                self.assertTrue(value, name)
            else:
                self.assertGreater(value, 0, name)
        for key, value in found.get("tags", {}).items():  # type: ignore[attr-defined]
            self.assertTrue(type(key) is type(value) is str)
            self.assertTrue(len(key) <= 512 and len(value) <= 512)
        self.assertEqual(found, json.loads(json.dumps(found, allow_nan=False)))
