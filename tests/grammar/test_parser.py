"""Parsing of option segments: each rule of the contract and each refusal has a table row."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.options import Fade, Loudness, Trim, VariantOptions
from audioproxy.grammar.parser import read_expiry, read_options, refuse_options
from audioproxy.grammar.segments import split_target
from tests.support.strategies import DETERMINISTIC, expiries, junk, option_segments

#: For each key: the segments that it requires, and two valid values; ``enhance`` has only one.
KEYS = {
    "f": ("", "mp3", "wav"),
    "br": ("", "128", "96"),
    "q": ("", "2", "3"),
    "sr": ("", "44100", "8000"),
    "ch": ("", "1", "2"),
    "bd": ("f:flac", "16", "24"),
    "t": ("", "1", "2:3"),
    "fade": ("", "1", "2:3"),
    "gain": ("", "3", "-3"),
    "norm": ("", "ebu", "ebu:-20"),
    "enhance": ("", "voice", "voice"),
    "pts": ("f:peaks", "800", "100"),
    "pk_fmt": ("f:peaks", "json", "dat"),
    "pk_bits": ("f:peaks", "16", "8"),
    "dl": ("", "a.mp3", "b.mp3"),
    "cb": ("", "1", "2"),
    "exp": ("", "1893456000", "1"),
}

PEAKS = "ch:1/f:peaks/pk_bits:16/pk_fmt:json/pts:800"


def split_options(text: str) -> list[bytes]:
    """Return the segments of an options string; an empty string has none."""
    return text.encode("latin-1").split(b"/") if text else []


def with_required(key: str, value: str) -> str:
    """Return ``key:value``, preceded by the segments that the key requires."""
    return "/".join(filter(None, [KEYS[key][0], f"{key}:{value}"]))


class OptionsCase(SynchronousTestCase):
    """Assertions on options strings that are accepted or refused."""

    def assert_canonical(self, rows: Iterable[tuple[str, str]]) -> None:
        """Assert that each options string has the canonical string that is paired with it."""
        for text, canonical in rows:
            self.assertEqual(read_options(split_options(text))[0].canonical(), canonical, text)

    def assert_refused(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Assert that each options string is refused.

        The message of the refusal quotes the segment in the row, and contains the words in the row.
        """
        for text, segment, words in rows:
            self.assert_segment_refused(split_options(text), segment, words)

    def assert_segment_refused(self, segments: list[bytes], segment: str, words: str) -> None:
        """Assert that one of the segments is refused, with a message that contains these words."""
        self.assertIn(words, self.refusal_reason(segments, segment), segments)

    def refusal_reason(self, segments: list[bytes], segment: str) -> str:
        """Return the reason for the refusal of one of the segments."""
        error = self.assertRaises(InvalidOptions, read_options, segments)
        self.assertEqual((error.status, error.code), (422, "invalid_options"))
        start, _, rest = error.message.partition(" is not accepted: ")
        self.assertEqual(start, f'"{segment}"', segments)
        self.assertTrue(rest.endswith("."), segments)
        return rest


class SegmentTests(OptionsCase):
    """Segments of every option class"""

    def test_every_key(self) -> None:
        """The known keys are exactly those of the contract (Versioning, 5)."""
        for key, (_, *values) in KEYS.items():
            for value in values:
                read_options(split_options(with_required(key, value)))
        error = self.assertRaises(InvalidOptions, read_options, [b"x:1"])
        listed = error.message.rpartition("the options are ")[2].rstrip(".").split(", ")
        self.assertEqual(listed, sorted(KEYS))

    def test_none(self) -> None:
        """A URL without options requests an mp3 (Format and encoding options; D1)."""
        self.assertEqual(read_options([]), (VariantOptions(f="mp3"), None))
        self.assert_canonical([("", "f:mp3")])

    def test_unknown(self) -> None:
        """Unknown keys are refused, even if they resemble known ones (Signed URL grammar; D2)."""
        for key, (_, value, _) in KEYS.items():
            for other in (
                key.upper(),
                key + "x",
                key + " ",
                " " + key,
                f"%{ord(key[0]):02x}{key[1:]}",
                key + "\xff",
                key + "\0",
            ):
                shown = other.replace("\xff", "\\xff")
                segment = f"{other}:{value}"
                self.assert_refused([(segment, f"{shown}:{value}", "the options are ")])
        self.assert_refused(
            [
                ("format:mp3", "format:mp3", "the options are "),
                (":mp3", ":mp3", "the options are "),
                (":", ":", "the options are "),
                ("f=mp3", "f=mp3", "the options are "),
                ("info", "info", "the options are "),
                ("f:mp3/Plain", "Plain", "the options are "),
            ]
        )

    def test_repeated(self) -> None:
        """A repeated key is refused, even with the same value (Signed URL grammar)."""
        for key, (context, *values) in KEYS.items():
            for value in values:
                first = with_required(key, values[0])
                for text in (f"{first}/{key}:{value}", f"{first}/cb:x/{key}:{value}"):
                    if key == "cb" and "cb:x" in text:
                        continue
                    self.assert_refused([(text, f"{key}:{value}", f"{key} may be given only once")])
            if context:
                self.assert_refused([(f"{context}/{context}", context, "only once")])

    def test_empty(self) -> None:
        """An empty segment is refused at every position (Signed URL grammar)."""
        for key, (_, value, _) in KEYS.items():
            segments = split_options(with_required(key, value))
            for at in range(len(segments) + 1):
                error = self.assertRaises(
                    InvalidOptions, read_options, [*segments[:at], b"", *segments[at:]]
                )
                self.assertEqual(
                    error.message, "An option segment is empty; each is spelled key:value."
                )
        self.assertRaises(InvalidOptions, read_options, [b""])

    def test_valueless(self) -> None:
        """A key without a value is refused, with and without its colon (Signed URL grammar)."""
        for key in KEYS:
            words = f"{key} needs a value, spelled {key}:value"
            self.assert_refused([(key, key, words), (f"{key}:", f"{key}:", words)])

    def test_literal(self) -> None:
        """Only ``dl`` and ``cb`` are percent-decoded; other options are literal (D2)."""
        for key, (_, value, _) in KEYS.items():
            text = with_required(key, f"%{ord(value[0]):02X}{value[1:]}")
            if key in ("dl", "cb"):
                self.assertEqual(
                    read_options(split_options(text)),
                    read_options(split_options(with_required(key, value))),
                )
            else:
                self.assert_refused([(text, split_options(text)[-1].decode(), "expected")])

    def test_colons(self) -> None:
        """Only the values of ``dl`` and ``cb`` may contain any number of colons (D2)."""
        for key, (_, _, value) in KEYS.items():
            more = f"{value}:1:1:1:1"
            text = with_required(key, more)
            if key in ("dl", "cb"):
                shown = getattr(read_options(split_options(text))[0], key)
                self.assertEqual(shown, more if key == "dl" else more.encode())
            else:
                self.assert_refused([(text, f"{key}:{more}", "expected")])
            if key not in ("dl", "cb", "t", "fade", "norm"):
                self.assert_refused(
                    [(with_required(key, f"{value}:"), f"{key}:{value}:", "expected")]
                )

    def test_spaces(self) -> None:
        """Outside ``dl`` and ``cb``, spaces, line feeds and NUL around a value are refused (D2)."""
        for key, (_, value, _) in KEYS.items():
            if key not in ("dl", "cb"):
                for other in (f" {value}", f"{value} ", f"{value}\n", f"{value}\0"):
                    self.assert_refused([(with_required(key, other), f"{key}:{other}", "expected")])

    def test_first_in_order(self) -> None:
        """The refusal names the first segment that is invalid by itself (D20).

        Conflicts between valid segments are reported only if every segment is valid.
        """
        self.assert_refused(
            [
                ("f:x/br:x", "f:x", "mp3"),
                ("br:x/f:x", "br:x", "whole number"),
                ("f:mp3/zz:1/br:x", "zz:1", "the options are"),
                ("br:128/q:2/f:x", "f:x", "mp3"),
            ]
        )

    def test_quote(self) -> None:
        """A quoted segment is ASCII, and is shortened to 80 characters (D20)."""
        self.assert_segment_refused([b"\xffoo:\xc3\xa4"], "\\xffoo:\\xc3\\xa4", "the options are")
        self.assert_segment_refused([b"x" * 80], "x" * 80, "the options are")
        self.assert_segment_refused([b"x" * 81], "x" * 80 + "...", "the options are")
        self.assert_segment_refused(
            [b"br:" + b"9" * 5000], "br:" + "9" * 77 + "...", "whole number"
        )

    @DETERMINISTIC
    @given(segments=st.lists(junk(), max_size=4), good=option_segments())
    def test_any_bytes(self, segments: list[bytes], good: list[bytes]) -> None:
        """Any bytes are parsed, or refused with a 422 whose message is ASCII (D13, D20)."""
        for each in (segments, [*good, *segments]):
            try:
                options, _ = read_options(each)
            except InvalidOptions as error:
                self.assertTrue(error.message.isascii())
            else:
                self.assertEqual(
                    read_options(split_options(options.canonical())),
                    (options, None),
                    options.canonical(),
                )


class BoundsTests(OptionsCase):
    """The bounds of every number"""

    #: The required segments, the key, and the lowest and the highest value.
    WHOLE = (
        *(("f:mp3", "br", 8, 320), ("f:opus", "br", 6, 510), ("f:ogg", "br", 32, 500)),
        *(("f:aac", "br", 8, 512), ("f:m4a", "br", 8, 512)),
        *(("f:opus", "q", 0, 10), ("f:flac", "q", 0, 12)),
        ("f:wav", "sr", 1000, 384_000),
        ("f:flac", "sr", 1000, 384_000),
        ("f:ogg", "sr", 1000, 48_000),
        *(("", "ch", 1, 2), ("f:peaks", "ch", 1, 2)),
        ("f:peaks", "pts", 1, 65_536),
        ("", "exp", 0, 253_402_300_799),
    )
    DECIMAL = (
        *(("f:mp3", "q:{}", "0", "9"), ("f:ogg", "q:{}", "-1", "10")),
        *(("f:aac", "q:{}", "0.1", "2"), ("f:m4a", "q:{}", "0.1", "2")),
        ("", "gain:{}", "-60", "60"),
        ("", "t:{}", "0", "999999999"),
        ("", "t:1:{}", "0.001", "999999999"),
        ("", "fade:{}", "0", "999999999"),
        ("", "fade:1:{}", "0", "999999999"),
        ("", "norm:ebu:{}", "-70", "-5"),
        ("", "norm:ebu:-16:{}", "-9", "0"),
        ("", "norm:ebu:-16:-1.5:{}", "1", "50"),
    )

    def test_whole_numbers(self) -> None:
        """Options with whole numbers accept both bounds, and nothing outside them (D6)."""
        for context, key, low, high in self.WHOLE:
            for value in (low, high):
                options, exp = read_options([*split_options(context), f"{key}:{value}".encode()])
                self.assertEqual(exp if key == "exp" else getattr(options, key), value)
            for value in (low - 1, high + 1, -high, 10**9):
                if not low <= value <= high:
                    segment = f"{key}:{value}"
                    words = self.refusal_reason(
                        [*split_options(context), segment.encode()], segment
                    )
                    self.assertRegex(words, r"\d", segment)

    def test_decimals(self) -> None:
        """Options with decimals accept both bounds, and refuse values 0.001 outside (D3, D6)."""
        step = Decimal("0.001")
        for context, template, low, high in self.DECIMAL:
            for value in (low, high):
                read_options([*split_options(context), template.format(value).encode()])
            for beyond in (Decimal(low) - step, Decimal(high) + step):
                segment = template.format(beyond)
                words = self.refusal_reason([*split_options(context), segment.encode()], segment)
                self.assertRegex(words, r"\d", segment)

    def test_spellings_of_whole_numbers(self) -> None:
        """Whole numbers have at most 9 digits, and no fraction, plus or exponent (D3).

        ``exp`` may have 12 digits.
        """
        for key in ("br", "sr", "pts", "exp"):
            value = KEYS[key][1]
            for other in (f"{value}.0", f"+{value}", f"{value}e0", f"0x{value}", "x"):
                text = with_required(key, other)
                self.assert_refused([(text, f"{key}:{other}", "a whole number ")])
            text = with_required(key, value.rjust(13, "0"))
            self.assert_refused([(text, split_options(text)[-1].decode(), "a whole number ")])
            self.assert_refused([(with_required(key, f"-{value}"), f"{key}:-{value}", " to ")])
        self.assert_canonical([("br:000000128", "br:128/f:mp3")])
        self.assert_refused(
            [("br:0000000128", "br:0000000128", "a whole number of at most 9 digits is expected")]
        )

    def test_spellings_of_decimals(self) -> None:
        """A decimal has 1 to 9 integer digits, up to 3 fractional digits, and no exponent (D3)."""
        for template in (row[1] for row in self.DECIMAL):
            for other in ("1e0", "1.", ".5", "1.0000", "0000000001", "1,5", "x", "nan", "inf"):
                segment = template.format(other)
                context = split_options("f:aac" if template.startswith("q") else "")
                self.assert_segment_refused(
                    [*context, segment.encode()], segment, "a plain decimal"
                )

    def test_plus(self) -> None:
        """A leading plus is legal for ``gain`` only (D3)."""
        for template in (row[1] for row in self.DECIMAL):
            segment = template.format("+1")
            if template == "gain:{}":
                self.assert_canonical([(segment, "f:mp3/gain:1")])
            else:
                self.assert_refused([(segment, segment, "a plain decimal")])

    def test_bounds_of_the_format(self) -> None:
        """A ``br`` or ``q`` out of range is refused with the bounds of the format (D20)."""
        for token, row in FORMATS.items():
            for value in ("-999999999", "0", "999999999"):
                if row.br:
                    words = f"f:{token} takes {row.br[0]} to {row.br[1]} kbps"
                    self.assert_refused([(f"f:{token}/br:{value}", f"br:{value}", words)])
                if row.q and value != "0":
                    words = f"from {row.q[0]} to {row.q[1]}"
                    self.assert_refused([(f"f:{token}/q:{value}", f"q:{value}", words)])


class EncodingTests(OptionsCase):
    """f, br, q, sr, ch, bd"""

    def test_formats(self) -> None:
        """The canonical string always contains the format; unknown formats are refused (D4)."""
        for token in FORMATS:
            canonical = PEAKS if token == "peaks" else f"f:{token}"
            self.assert_canonical([(f"f:{token}", canonical)])
        for other in ("MP3", "mp4", "vorbis", "mp", "mp33", "\xff"):
            shown = other.replace("\xff", "\\xff")
            self.assert_refused([(f"f:{other}", f"f:{shown}", "mp3 or opus or ogg")])

    def test_bitrate(self) -> None:
        """``br`` is for lossy formats, within the bounds that the encoder honors (D6, D7)."""
        self.assert_canonical(
            [
                ("br:96", "br:96/f:mp3"),
                ("f:opus/br:6", "br:6/f:opus"),
                ("br:320/f:m4a", "br:320/f:m4a"),
            ]
        )
        self.assert_refused(
            [
                ("br:7", "br:7", "f:mp3 takes 8 to 320 kbps"),
                ("f:mp3/br:321", "br:321", "f:mp3 takes 8 to 320 kbps"),
                ("br:511/f:opus", "br:511", "f:opus takes 6 to 510 kbps"),
                ("f:ogg/br:31", "br:31", "f:ogg takes 32 to 500 kbps"),
                ("f:aac/br:7", "br:7", "f:aac takes 8 to 512 kbps"),
                ("f:m4a/br:7", "br:7", "f:m4a takes 8 to 512 kbps"),
                ("f:flac/br:128", "br:128", "f:flac has no bitrate to set"),
                ("f:wav/br:128", "br:128", "f:wav has no bitrate to set"),
            ]
        )

    def test_quality(self) -> None:
        """``q`` has the range of its codec; values out of range are refused (D7)."""
        self.assert_canonical(
            [
                ("q:0", "f:mp3/q:0"),
                ("q:-0", "f:mp3/q:0"),
                ("q:2.50", "f:mp3/q:2.5"),
                ("f:ogg/q:-1.0", "f:ogg/q:-1"),
                ("f:ogg/q:-0.5", "f:ogg/q:-0.5"),
                ("f:aac/q:0.1", "f:aac/q:0.1"),
                ("f:m4a/q:2.000", "f:m4a/q:2"),
                ("f:opus/q:10", "f:opus/q:10"),
                ("f:opus/q:5.0", "f:opus/q:5"),
                ("f:flac/q:12", "f:flac/q:12"),
            ]
        )
        self.assert_refused(
            [
                ("q:9.001", "q:9.001", "f:mp3 takes a number from 0 to 9"),
                ("q:-0.001", "q:-0.001", "f:mp3 takes a number from 0 to 9"),
                ("f:ogg/q:10.5", "q:10.5", "f:ogg takes a number from -1 to 10"),
                ("f:aac/q:0", "q:0", "f:aac takes a number from 0.1 to 2"),
                ("f:m4a/q:2.1", "q:2.1", "f:m4a takes a number from 0.1 to 2"),
                ("f:opus/q:11", "q:11", "f:opus takes a whole number from 0 to 10"),
                ("f:opus/q:5.5", "q:5.5", "f:opus takes a whole number from 0 to 10"),
                ("f:opus/q:-1", "q:-1", "f:opus takes a whole number from 0 to 10"),
                ("f:flac/q:0.001", "q:0.001", "f:flac takes a whole number from 0 to 12"),
                ("f:wav/q:1", "q:1", "f:wav has no quality to set"),
                ("f:wav/q:0", "q:0", "f:wav has no quality to set"),
            ]
        )

    def test_bitrate_with_quality(self) -> None:
        """``br`` and ``q`` exclude each other, in either order (Format and encoding options)."""
        for token in ("mp3", "opus", "ogg", "aac", "m4a"):
            for text in (f"f:{token}/br:128/q:1", f"q:1/br:128/f:{token}", f"q:1/f:{token}/br:128"):
                self.assert_refused([(text, "br:128", "br and q exclude each other")])
        self.assert_refused([("q:0/br:128", "br:128", "br and q exclude each other")])

    def test_rates(self) -> None:
        """``sr`` is a rate that the codec supports (D8)."""
        for token, accepted, refused in (
            ("mp3", (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000), (7350, 12345)),
            ("opus", (8000, 12000, 16000, 24000, 48000), (11025, 22050, 32000, 44100)),
            ("ogg", (1000, 12345, 44100, 48000), ()),
            ("aac", (7350, 8000, 11025, 44100, 48000), (1000, 12345, 47999)),
            ("m4a", (7350, 8000, 11025, 44100, 48000), (1000, 12345, 47999)),
            ("flac", (1000, 12345, 65534, 96000, 384_000), (65535, 65536, 88201, 352_801)),
            ("wav", (1000, 12345, 65535, 88201, 192_000, 384_000), ()),
        ):
            for rate in accepted:
                self.assert_canonical([(f"f:{token}/sr:{rate}", f"f:{token}/sr:{rate}")])
            for rate in refused:
                words = f"f:{token} takes "
                self.assert_refused([(f"f:{token}/sr:{rate}", f"sr:{rate}", words)])
        self.assert_refused(
            [
                (
                    "f:opus/sr:44100",
                    "sr:44100",
                    "f:opus takes one of 8000, 12000, 16000, 24000, 48000 Hz.",
                ),
                ("f:aac/sr:12345", "sr:12345", "32000, 44100, 48000 Hz."),
                (
                    "f:flac/sr:65535",
                    "sr:65535",
                    "f:flac takes only multiples of 10 above 65534 Hz.",
                ),
            ]
        )

    def test_lossy_ceiling(self) -> None:
        """An ``sr`` above 48000 is refused for lossy formats (Format and encoding options, 2)."""
        for token in ("mp3", "opus", "ogg", "aac", "m4a"):
            self.assert_canonical([(f"f:{token}/sr:48000", f"f:{token}/sr:48000")])
            for rate in (48001, 64000, 88200, 96000, 384_000):
                words = "a lossy format takes at most 48000 Hz"
                self.assert_refused([(f"f:{token}/sr:{rate}", f"sr:{rate}", words)])

    def test_rate_bounds(self) -> None:
        """``sr`` is 1000 to 384000 for every format (D6)."""
        for token in FORMATS:
            for rate in (999, 384_001):
                words = "a whole number from 1000 to 384000"
                self.assert_refused([(f"f:{token}/sr:{rate}", f"sr:{rate}", words)])

    def test_channels(self) -> None:
        """``ch`` is 1 or 2, for every format (Format and encoding options)."""
        for token in FORMATS:
            for channels in (1, 2):
                options, _ = read_options(split_options(f"f:{token}/ch:{channels}"))
                self.assertEqual(options.ch, channels)
        for other in ("0", "3", "-1", "01", "1.0", "+1", "mono", "\xb9"):
            shown = other.replace("\xb9", "\\xb9")
            self.assert_refused([(f"ch:{other}", f"ch:{shown}", "1 or 2 is expected")])

    def test_depths(self) -> None:
        """``bd`` is for lossless formats only, and 32f for wav only (D7)."""
        self.assert_canonical(
            [
                ("f:flac/bd:16", "bd:16/f:flac"),
                ("f:flac/bd:24", "bd:24/f:flac"),
                ("bd:16/f:wav", "bd:16/f:wav"),
                ("bd:24/f:wav", "bd:24/f:wav"),
                ("bd:32f/f:wav", "bd:32f/f:wav"),
            ]
        )
        self.assert_refused([("f:flac/bd:32f", "bd:32f", "f:flac takes 16 or 24")])
        for token in ("mp3", "opus", "ogg", "aac", "m4a"):
            for depth in ("16", "24", "32f"):
                words = f"f:{token} has no bit depth to set"
                self.assert_refused([(f"f:{token}/bd:{depth}", f"bd:{depth}", words)])
        for other in ("8", "32", "32F", "016", "16.0", "s16"):
            words = "16 or 24 or 32f is expected"
            self.assert_refused([(f"f:wav/bd:{other}", f"bd:{other}", words)])


class ProcessingTests(OptionsCase):
    """t, fade, gain, norm, enhance"""

    def test_trim(self) -> None:
        """``t`` is a start, and optionally a duration (D3)."""
        self.assert_canonical(
            [
                ("t:0", "f:mp3/t:0"),
                ("t:-0.0", "f:mp3/t:0"),
                ("t:1.50", "f:mp3/t:1.5"),
                ("t:1.50:30.0", "f:mp3/t:1.5:30"),
                ("t:0:0.001", "f:mp3/t:0:0.001"),
                ("f:peaks/t:1:2", f"{PEAKS}/t:1:2"),
            ]
        )
        self.assertEqual(read_options([b"t:3:4"])[0].t, Trim(Decimal(3), Decimal(4)))
        self.assertEqual(read_options([b"t:3"])[0].t, Trim(Decimal(3), None))

    def test_trim_refused(self) -> None:
        """Negative, missing and extra parts of ``t`` and a duration of 0 are refused (D6)."""
        self.assert_refused(
            [
                ("t:-1", "t:-1", "from 0 to 999999999"),
                ("t:1:-1", "t:1:-1", "from 0 to 999999999"),
                ("t:1:0", "t:1:0", "a duration longer than 0"),
                ("t:1:0.000", "t:1:0.000", "a duration longer than 0"),
                ("t:1:-0", "t:1:-0", "a duration longer than 0"),
                ("t:1:", "t:1:", "a plain decimal"),
                ("t::1", "t::1", "a plain decimal"),
                ("t::", "t::", "a plain decimal"),
                ("t:1:2:3", "t:1:2:3", "start[:duration] is expected"),
                ("t:00:01:30", "t:00:01:30", "start[:duration] is expected"),
            ]
        )

    def test_fade(self) -> None:
        """``fade`` is a fade-in, and optionally a fade-out (D4)."""
        self.assert_canonical(
            [
                ("fade:2", "f:mp3/fade:2"),
                ("fade:2:0", "f:mp3/fade:2"),
                ("fade:2.0:0.000", "f:mp3/fade:2"),
                ("fade:2:3.50", "f:mp3/fade:2:3.5"),
                ("fade:0:3", "f:mp3/fade:0:3"),
                ("f:peaks/fade:1", "ch:1/f:peaks/fade:1/pk_bits:16/pk_fmt:json/pts:800"),
            ]
        )
        self.assertEqual(read_options([b"fade:2"])[0].fade, Fade(Decimal(2), Decimal(0)))
        self.assertEqual(read_options([b"fade:2:3"])[0].fade, Fade(Decimal(2), Decimal(3)))
        self.assert_refused(
            [
                ("fade:-1", "fade:-1", "from 0 to 999999999"),
                ("fade:1:-1", "fade:1:-1", "from 0 to 999999999"),
                ("fade:1:", "fade:1:", "a plain decimal"),
                ("fade::1", "fade::1", "a plain decimal"),
                ("fade:1:2:3", "fade:1:2:3", "in[:out] is expected"),
            ]
        )

    def test_fade_longer_than_trim(self) -> None:
        """A fade longer than the duration of ``t`` is refused (D12)."""
        for text, canonical in (
            ("t:5:10/fade:10:10", "f:mp3/fade:10:10/t:5:10"),
            ("fade:9.999/t:0:10", "f:mp3/fade:9.999/t:0:10"),
            ("t:5/fade:999999999:999999999", "f:mp3/fade:999999999:999999999/t:5"),
            ("fade:999999999", "f:mp3/fade:999999999"),
        ):
            self.assert_canonical([(text, canonical)])
        for text, segment, seconds in (
            ("t:5:10/fade:10.001", "fade:10.001", "10"),
            ("fade:0:10.001/t:5:10", "fade:0:10.001", "10"),
            ("fade:1:0/t:0:0.50", "fade:1:0", "0.5"),
        ):
            words = f"t limits the output to {seconds} s"
            self.assert_refused([(text, segment, words)])

    def test_gain(self) -> None:
        """``gain`` is signed, -60 to 60 dB (D3, D6)."""
        self.assert_canonical(
            [
                ("gain:3", "f:mp3/gain:3"),
                ("gain:+3", "f:mp3/gain:3"),
                ("gain:+3.50", "f:mp3/gain:3.5"),
                ("gain:-3.5", "f:mp3/gain:-3.5"),
                ("gain:+0", "f:mp3/gain:0"),
                ("gain:-0.0", "f:mp3/gain:0"),
                ("gain:-60.000", "f:mp3/gain:-60"),
                ("f:peaks/gain:6", "ch:1/f:peaks/gain:6/pk_bits:16/pk_fmt:json/pts:800"),
            ]
        )
        self.assert_refused(
            [
                ("gain:60.001", "gain:60.001", "a number from -60 to 60"),
                ("gain:-61", "gain:-61", "a number from -60 to 60"),
                ("gain:3dB", "gain:3dB", "a plain decimal from -60 to 60"),
                ("gain:%2B3", "gain:%2B3", "a plain decimal from -60 to 60"),
                ("gain:++3", "gain:++3", "a plain decimal from -60 to 60"),
            ]
        )

    def test_norm(self) -> None:
        """The canonical ``norm`` always has three targets, by default -16:-1.5:11 (D4)."""
        self.assert_canonical(
            [
                ("norm:ebu", "f:mp3/norm:ebu:-16:-1.5:11"),
                ("norm:ebu:-16", "f:mp3/norm:ebu:-16:-1.5:11"),
                ("norm:ebu:-16:-1.50:11.0", "f:mp3/norm:ebu:-16:-1.5:11"),
                ("norm:ebu:-23", "f:mp3/norm:ebu:-23:-1.5:11"),
                ("norm:ebu:-23:-0", "f:mp3/norm:ebu:-23:0:11"),
                ("norm:ebu:-23:-2:7", "f:mp3/norm:ebu:-23:-2:7"),
                ("f:peaks/norm:ebu", "ch:1/f:peaks/norm:ebu:-16:-1.5:11/" + PEAKS[13:]),
            ]
        )
        self.assertEqual(read_options([b"norm:ebu"])[0].norm, Loudness())
        self.assert_refused(
            [
                ("norm:EBU", "norm:EBU", "ebu is expected"),
                ("norm:-16", "norm:-16", "ebu is expected"),
                ("norm::-16", "norm::-16", "ebu is expected"),
                ("norm:ebu:", "norm:ebu:", "from -70 to -5"),
                ("norm:ebu::-2", "norm:ebu::-2", "from -70 to -5"),
                ("norm:ebu:-4", "norm:ebu:-4", "from -70 to -5"),
                ("norm:ebu:-16:1", "norm:ebu:-16:1", "from -9 to 0"),
                ("norm:ebu:-16:-2:51", "norm:ebu:-16:-2:51", "from 1 to 50"),
                ("norm:ebu:-16:-2:7:1", "norm:ebu:-16:-2:7:1", "ebu[:I[:TP[:LRA]]] is expected"),
            ]
        )

    def test_enhance(self) -> None:
        """Unknown presets are refused (Versioning, 4).

        This includes ``voice2``, a name that a later preset may get.
        """
        self.assert_canonical(
            [
                ("enhance:voice", "enhance:voice/f:mp3"),
                ("norm:ebu/enhance:voice", "enhance:voice/f:mp3/norm:ebu:-16:-1.5:11"),
                (
                    "f:peaks/enhance:voice",
                    "ch:1/enhance:voice/f:peaks/pk_bits:16/pk_fmt:json/pts:800",
                ),
            ]
        )
        for other in ("voice2", "Voice", "music", "voice:2"):
            words = "voice is expected"
            self.assert_refused([(f"enhance:{other}", f"enhance:{other}", words)])


class PeaksTests(OptionsCase):
    """pts, pk_fmt, pk_bits, and ch with peaks"""

    def test_defaults(self) -> None:
        """The canonical string contains every default of peaks (Peaks options; D4)."""
        self.assert_canonical(
            [
                ("f:peaks", PEAKS),
                (PEAKS, PEAKS),
                ("ch:1/f:peaks", PEAKS),
                ("f:peaks/ch:2", "ch:2/f:peaks/pk_bits:16/pk_fmt:json/pts:800"),
                ("f:peaks/pts:0100", "ch:1/f:peaks/pk_bits:16/pk_fmt:json/pts:100"),
                ("f:peaks/pk_fmt:dat", "ch:1/f:peaks/pk_bits:16/pk_fmt:dat/pts:800"),
                ("pk_bits:8/f:peaks", "ch:1/f:peaks/pk_bits:8/pk_fmt:json/pts:800"),
                (
                    "pts:65536/pk_fmt:dat/pk_bits:8/f:peaks/ch:2",
                    "ch:2/f:peaks/pk_bits:8/pk_fmt:dat/pts:65536",
                ),
            ]
        )
        options, _ = read_options([b"f:peaks"])
        self.assertEqual(
            options, VariantOptions(f="peaks", ch=1, pts=800, pk_fmt="json", pk_bits=16)
        )

    def test_values(self) -> None:
        """Options of peaks refuse values outside those of the contract (Peaks options; D6)."""
        self.assert_refused(
            [
                ("f:peaks/pts:0", "pts:0", "a whole number from 1 to 65536"),
                ("f:peaks/pts:65537", "pts:65537", "a whole number from 1 to 65536"),
                ("f:peaks/pk_fmt:bin", "pk_fmt:bin", "json or dat is expected"),
                ("f:peaks/pk_fmt:JSON", "pk_fmt:JSON", "json or dat is expected"),
                ("f:peaks/pk_bits:24", "pk_bits:24", "8 or 16 is expected"),
                ("f:peaks/pk_bits:08", "pk_bits:08", "8 or 16 is expected"),
            ]
        )

    def test_encoding_options(self) -> None:
        """``br``, ``q``, ``bd`` and ``sr`` are refused with peaks (Peaks options, 2)."""
        for segment, words in (
            ("br:128", "f:peaks has no bitrate to set"),
            ("q:1", "f:peaks has no quality to set"),
            ("bd:16", "f:peaks has no bit depth to set"),
            ("sr:44100", "f:peaks has no sample rate to set"),
            ("sr:384000", "f:peaks has no sample rate to set"),
        ):
            for text in (f"f:peaks/{segment}", f"{segment}/f:peaks"):
                self.assert_refused([(text, segment, words)])

    def test_without_peaks(self) -> None:
        """Options of peaks are refused for other formats (D7).

        They would have no effect, and would create a second cache key for the same bytes.
        """
        for segment in ("pts:800", "pk_fmt:json", "pk_bits:16"):
            self.assert_refused([(segment, segment, "it goes with f:peaks only")])
            for token in FORMATS:
                if token != "peaks":
                    text = f"{segment}/f:{token}"
                    self.assert_refused([(text, segment, "it goes with f:peaks only")])


class DeliveryTests(OptionsCase):
    """dl and cb"""

    def test_filename(self) -> None:
        """``dl`` is a UTF-8 file name, percent-decoded once (D2, D10)."""
        for value, name, canonical in (
            ("a.mp3", "a.mp3", "a.mp3"),
            ("a%20b.mp3", "a b.mp3", "a%20b.mp3"),
            ("a+b", "a+b", "a%2Bb"),
            ("a:b", "a:b", "a%3Ab"),
            ("a%3ab", "a:b", "a%3Ab"),
            ("%252e", "%2e", "%252e"),
            ("%2e", ".", "."),
            ("caf%C3%A9", "café", "caf%C3%A9"),
            ("caf\xc3\xa9", "café", "caf%C3%A9"),
            ("%F0%9F%8E%B5", "🎵", "%F0%9F%8E%B5"),
            ('"quoted"', '"quoted"', "%22quoted%22"),
            ("a%22%3Bb", 'a";b', "a%22%3Bb"),
            ("%C2%A0", "\xa0", "%C2%A0"),
        ):
            options, _ = read_options(split_options(f"dl:{value}"))
            self.assertEqual(options.dl, name, value)
            self.assertEqual(options.canonical(), f"dl:{canonical}/f:mp3", value)

    def test_filename_characters(self) -> None:
        """A file name with control characters, ``/`` or ``\\`` is refused (D10)."""
        controls = [*range(0x20), 0x7F]
        values = [f"a%{code:02X}b" for code in controls]
        values += [f"%C2%{code:02X}" for code in range(0x80, 0xA0)]
        values += ["..%2F..%2Fetc", "a%2fb", "a%5Cb", "a\\b"]
        for value in values:
            words = "a file name without control characters, / or \\"
            self.assert_refused([(f"dl:{value}", f"dl:{value}", words)])

    def test_filename_encoding(self) -> None:
        """A file name that is not UTF-8 is refused (D10)."""
        for value in ("%FF", "%C3", "%ED%A0%80", "%C0%AF", "a%E9"):
            words = "a UTF-8 file name is expected"
            self.assert_refused([(f"dl:{value}", f"dl:{value}", words)])

    def test_cache_buster(self) -> None:
        """``cb`` is an opaque byte string, percent-decoded once (D2)."""
        for value, opaque, canonical in (
            ("1", b"1", "1"),
            ("v1.2_3-4~5", b"v1.2_3-4~5", "v1.2_3-4~5"),
            ("a%2Fb", b"a/b", "a%2Fb"),
            ("a:b:c", b"a:b:c", "a%3Ab%3Ac"),
            ("%ff%00", b"\xff\0", "%FF%00"),
            ("\xff", b"\xff", "%FF"),
            ("%252e", b"%2e", "%252e"),
            ("%31", b"1", "1"),
            ("plain", b"plain", "plain"),
        ):
            options, _ = read_options(split_options(f"cb:{value}"))
            self.assertEqual(options.cb, opaque, value)
            self.assertEqual(options.canonical(), f"cb:{canonical}/f:mp3", value)
        self.assertNotEqual(read_options([b"cb:1"]), read_options([b"cb:01"]))

    def test_broken_escapes(self) -> None:
        """A percent sign without two hexadecimal digits is refused (D2)."""
        for key in ("dl", "cb"):
            for value in ("100%", "%", "%2", "%zz"):
                words = "every % must start an escape of two hexadecimal digits"
                self.assert_refused([(f"{key}:{value}", f"{key}:{value}", words)])

    def test_length(self) -> None:
        """``dl`` and ``cb`` have at most 255 bytes, counted when decoded (D6)."""
        for key in ("dl", "cb"):
            for value in ("a" * 255, "%61" * 255, "%C3%A9" * 127 + "a"):
                options, _ = read_options(split_options(f"{key}:{value}"))
                shown = getattr(options, key)
                self.assertEqual(len(shown.encode() if key == "dl" else shown), 255)
            for value in ("a" * 256, "%C3%A9" * 128):
                shown = f"{key}:{value}"[:80] + "..."
                self.assert_refused([(f"{key}:{value}", shown, "at most 255 bytes")])


class ExpTests(OptionsCase):
    """exp"""

    def test_value(self) -> None:
        """``exp`` is Unix seconds, and may be in the past (Request option exp)."""
        for text, exp in (
            ("exp:0", 0),
            ("exp:1", 1),
            ("exp:0001", 1),
            ("exp:1893456000", 1_893_456_000),
            ("exp:253402300799", 253_402_300_799),
        ):
            self.assertEqual(read_options(split_options(text)), (VariantOptions(), exp), text)
            self.assertEqual(read_expiry(split_options(text)), exp, text)

    def test_refused(self) -> None:
        """``exp`` is a whole number from 0 to the end of the year 9999 (D6)."""
        for value in (
            "-1",
            "253402300800",
            "1.5",
            "1e9",
            "+1",
            "never",
            "0" * 12 + "1",
            "1:1",
        ):
            words = "a whole number from 0 to 253402300799"
            self.assert_refused([(f"exp:{value}", f"exp:{value}", words)])
            self.assertIsNone(read_expiry(split_options(f"exp:{value}")), value)

    def test_other_errors(self) -> None:
        """`read_expiry` ignores errors in other segments (Request handling order, 2)."""
        for text in ("exp:5/br:1", "zz:1/exp:5", "f:mp3//exp:5", "br/exp:5", "br:96/q:1/exp:5"):
            self.assertEqual(read_expiry(split_options(text)), 5, text)
            self.assertRaises(InvalidOptions, read_options, split_options(text))

    def test_none(self) -> None:
        """``exp`` is None unless it is given exactly once and well formed (Request option exp)."""
        for text in (
            *("", "f:mp3", "exp", "exp:", "EXP:5", "cb:exp:5", "exp:5/exp:6", "exp:5/exp:5"),
            *("exp:5/exp:x", "expires:5", "%65xp:5", " exp:5"),
        ):
            self.assertIsNone(read_expiry(split_options(text)), text)

    @DETERMINISTIC
    @given(segments=option_segments(), exp=expiries(), data=st.data())
    def test_request_option(self, segments: list[bytes], exp: int, data: st.DataObject) -> None:
        """The options and their canonical string exclude ``exp`` (Option classes)."""
        with_exp = data.draw(st.permutations([*segments, b"exp:%d" % exp]))
        options, nothing = read_options(segments)
        self.assertIsNone(nothing)
        self.assertEqual(read_options(with_exp), (options, exp))
        self.assertEqual(read_expiry(with_exp), exp)
        self.assertNotIn("exp:", options.canonical().replace("cb:exp:", ""))

    @DETERMINISTIC
    @given(segments=st.lists(junk(), max_size=4))
    def test_any_bytes(self, segments: list[bytes]) -> None:
        """For any bytes, `read_expiry` returns None or a number within bounds.

        If `read_options` accepts the same bytes, it returns the same ``exp`` (Request option exp).
        """
        exp = read_expiry(segments)
        self.assertTrue(exp is None or 0 <= exp <= 253_402_300_799)
        try:
            self.assertEqual(read_options(segments)[1], exp)
        except InvalidOptions:
            return


class InfoTests(SynchronousTestCase):
    """`refuse_options`: an info document has no options."""

    def quoted_segment(self, segments: list[bytes]) -> str:
        """Return the quoted segment from the refusal of an info URL with these segments."""
        error = self.assertRaises(InvalidOptions, refuse_options, segments)
        self.assertEqual((error.status, error.code), (422, "invalid_options"))
        quoted, _, rest = error.message.partition(" is not accepted: ")
        self.assertEqual(rest, "an info document has no options.")
        return quoted

    def test_none(self) -> None:
        """An info URL without options is accepted."""
        self.assertIsNone(refuse_options([]))
        self.assertIsNone(refuse_options(()))

    def test_any_option(self) -> None:
        """Every option of every class is refused in an info URL (Info document, 5)."""
        for key, (_, *values) in KEYS.items():
            for value in values:
                segment = f"{key}:{value}"
                self.assertEqual(self.quoted_segment(split_options(segment)), f'"{segment}"')

    def test_any_segment(self) -> None:
        """In an info URL, unknown keys, empty segments and a second info are refused (D20)."""
        for segment, quoted in (
            (b"", '""'),
            (b"x", '"x"'),
            (b"info", '"info"'),
            (b"f:", '"f:"'),
            (b"\xff\x00", '"\\xff\x00"'),
            (b"x" * 100, f'"{"x" * 80}..."'),
        ):
            self.assertEqual(self.quoted_segment([segment]), quoted)

    def test_first(self) -> None:
        """The refusal quotes the first of several segments."""
        self.assertEqual(self.quoted_segment([b"f:mp3", b"q:99"]), '"f:mp3"')

    def test_expired(self) -> None:
        """An ``exp`` is refused in an info URL, even if it has passed (Info document, 5)."""
        for second in (1, 253_402_300_799):
            self.assertEqual(self.quoted_segment([b"exp:%d" % second]), f'"exp:{second}"')

    @DETERMINISTIC
    @given(segments=st.lists(junk(), min_size=1, max_size=4))
    def test_any_bytes(self, segments: list[bytes]) -> None:
        """Any segment between info and the source is refused with a 422."""
        target = split_target(b"/info/" + b"/".join([*segments, b"plain", b"local://a"]))
        assert target is not None
        if target.options:
            self.assertTrue(self.quoted_segment(list(target.options)).startswith('"'))
        else:
            # The first segment is plain or enc, so the source starts there.
            self.assertIn(segments[0].split(b"/")[0], (b"plain", b"enc"))
