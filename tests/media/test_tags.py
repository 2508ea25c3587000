"""The tags that variants carry (D61)."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.info_document import parse_source_info
from audioproxy.media.tags import CARRIED_TAGS, carried_tags


class CarriedTagsTests(SynchronousTestCase):
    """`carried_tags`"""

    def test_keys(self) -> None:
        """Eleven tags are carried, and nothing else (D61)."""
        others = ("comment", "encoder", "location", "replaygain_track_gain", "year", "lyrics")
        found = carried_tags({key: key for key in (*others, *reversed(CARRIED_TAGS))})
        self.assertEqual([*found.items()], [(key, key) for key in CARRIED_TAGS])
        self.assertEqual(len(found), 11)

    def test_values(self) -> None:
        """Control characters are removed; tags without other characters are left out (D61)."""
        given = {"title": "\0a\nb\r\tc\x1b\x7f\x85\x9f", "artist": "\r\n", "album": ""}
        self.assertEqual(carried_tags(given), {"title": "abc"})
        for value in ("-f", "a=b;c", " \u00a0\u2028", "\U0001f3b5\ufffd", "silencedetect"):
            self.assertEqual(carried_tags({"title": value}), {"title": value})

    def test_size(self) -> None:
        """Keys and values have 8 KB of UTF-8 at most; a tag that exceeds them is left out (D61)."""
        found = carried_tags(dict.fromkeys(CARRIED_TAGS, "\U0001f3b5" * 512) | {"date": "2001"})
        self.assertEqual([*found], ["title", "artist", "album", "date"])
        room = 8192 - len("titleartist")
        for size, kept in ((room, ["title", "artist"]), (room + 1, ["title"])):
            found = carried_tags({"title": "x" * 5000, "artist": "x" * (size - 5000)})
            self.assertEqual([*found], kept)

    def test_many(self) -> None:
        """They are among the tags of the info document, however many a source has (D24, D61)."""
        tags = {f"k{number}": "v" for number in range(40)} | {"publisher": "P", "title": "T"}
        found = parse_source_info({"tags": tags}, {}).tags
        expected = ["title", *(f"k{number}" for number in range(30)), "publisher"]
        self.assertEqual([*found], expected)


class ArgumentTests(SynchronousTestCase):
    """Tags in the command line of each format"""

    def test_words(self) -> None:
        """Each tag is one word, with the container's name; some formats carry none (D61)."""
        tags = {"title": "-a=b", "album_artist": "c", "track": "3/12", "disc": "1"}
        generic = [f"{key}={value}" for key, value in tags.items()]
        comments = ["TITLE=-a=b", "ALBUMARTIST=c", "TRACKNUMBER=3/12", "DISCNUMBER=1"]
        none: list[str] = []
        expected = {
            **dict.fromkeys(("mp3", "m4a"), generic),
            **dict.fromkeys(("opus", "ogg", "flac"), comments),
            **dict.fromkeys(("aac", "wav", "peaks"), none),
        }
        self.assertEqual(expected.keys(), ENCODERS.keys())
        for token, encoder in ENCODERS.items():
            words = encoder.tags(tags)
            if token == "mp3":
                self.assertEqual(words[:2], ["-id3v2_version", "4"])
                words = words[2:]
            self.assertEqual(words[::2], ["-metadata"] * (len(words) // 2))
            self.assertEqual(words[1::2], expected[token], token)

    def test_nothing(self) -> None:
        """Without tags there is no argument for them, and no empty ID3v2 tag."""
        for token, encoder in ENCODERS.items():
            self.assertEqual(encoder.tags({}), ["-id3v2_version", "0"] * (token == "mp3"))

    def test_numbers(self) -> None:
        """m4a has no publisher, and takes track and disc as numbers alone (D61)."""
        for value, taken in (("3", 1), ("03/12", 1), ("A1", 0), ("3 of 12", 0), ("70000", 0)):
            tags = {"track": value, "disc": value, "publisher": "P"}
            self.assertEqual(len(ENCODERS["m4a"].tags(tags)), 4 * taken, value)
