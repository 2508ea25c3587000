"""Parsing of option segments: each rule of the contract and each refusal has a table row."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.option_parser import parse_expiry, parse_options, refuse_options
from audioproxy.grammar.options import VariantOptions
from tests.support.strategies import DETERMINISTIC, junk, option_segments

#: Two valid values for each key; ``enhance`` has only one.
KEYS = {
    key: values
    for key, *values in (
        *(("f", "mp3", "wav"), ("br", "128", "96"), ("q", "2", "3"), ("sr", "44100", "8000")),
        *(("ch", "1", "2"), ("bd", "16", "24"), ("t", "1", "2:3"), ("fade", "1", "2:3")),
        *(("gain", "3", "-3"), ("norm", "ebu", "ebu:-20"), ("enhance", "voice", "voice")),
        *(("pts", "800", "100"), ("pk_fmt", "json", "dat"), ("pk_bits", "16", "8")),
        *(("dl", "a.mp3", "b.mp3"), ("cb", "1", "2"), ("exp", "1893456000", "1")),
    )
}
#: The segment that a key requires beside it.
REQUIRED = {"bd": "f:flac", "pts": "f:peaks", "pk_fmt": "f:peaks", "pk_bits": "f:peaks"}
LOSSY = ("mp3", "opus", "ogg", "aac", "m4a")


def split_options(text: str) -> list[bytes]:
    """Return the segments of an options string; an empty string has none."""
    return text.encode("latin-1").split(b"/") if text else []


def joined(*segments: str | None) -> str:
    """Return the options string of all segments that are not empty."""
    return "/".join(filter(None, segments))


def with_required(key: str, value: str) -> str:
    """Return ``key:value``, preceded by the segment that the key requires."""
    return joined(REQUIRED.get(key), f"{key}:{value}")


def quoted(segment: bytes) -> str:
    """Return a segment as messages quote it: in ASCII, with at most 80 characters."""
    text = segment.decode("ascii", "backslashreplace")
    return f'"{text[:80]}{"..." if len(text) > 80 else ""}"'


class OptionsCase(SynchronousTestCase):
    """Assertions on options strings that are accepted or refused."""

    def assert_refused(self, words: str, *texts: str, at: int = -1) -> None:
        """Assert that options strings are refused with a message that contains these words.

        :param at: the position of the segment that the message quotes.
        """
        for text in texts:
            segments = split_options(text)
            error = self.assertRaises(InvalidOptions, parse_options, segments)
            self.assertEqual((error.status, error.code), (422, "invalid_options"))
            start, _, reason = error.message.partition(" is not accepted: ")
            self.assertEqual(start, quoted(segments[at]), text)
            self.assertIn(words, reason, text)
            self.assertTrue(reason.endswith("."), text)


class SegmentTests(OptionsCase):
    """Segments of every option class"""

    def test_every_key(self) -> None:
        """The keys are the contract's (Versioning, 5; Format and encoding options; D1)."""
        for key, values in KEYS.items():
            for value in values:
                parse_options(split_options(with_required(key, value)))
        error = self.assertRaises(InvalidOptions, parse_options, [b"x:1"])
        listed = error.message.rpartition("the options are ")[2].rstrip(".").split(", ")
        self.assertEqual(listed, sorted(KEYS))
        self.assertEqual(parse_options([]), (VariantOptions(f="mp3"), None))

    def test_unknown(self) -> None:
        """Unknown keys are refused, even if they resemble known ones (Signed URL grammar; D2)."""
        for key, (value, _) in KEYS.items():
            others = [key.upper(), f"%{ord(key[0]):02x}{key[1:]}", f" {key}"]
            others += [key + tail for tail in ("x", " ", "\xff", "\0")]
            self.assert_refused("the options are ", *(f"{other}:{value}" for other in others))
        self.assert_refused("the options are ", "format:mp3", ":mp3", ":", "f=mp3", "info")
        self.assert_refused("the options are ", "f:mp3/Plain")

    def test_repeated(self) -> None:
        """A repeated key is refused, even with the same value (Signed URL grammar)."""
        for key, (first, second) in KEYS.items():
            text, words = with_required(key, first), f"{key} may be given only once"
            between = "f:mp3" if key == "cb" else "cb:x"
            for value in (first, second):
                again = f"{key}:{value}"
                self.assert_refused(words, f"{text}/{again}", f"{text}/{between}/{again}")

    def test_empty(self) -> None:
        """An empty segment is refused at every position (Signed URL grammar)."""
        for text in ("/", "/f:peaks", "f:peaks//pts:800", "f:peaks/"):
            error = self.assertRaises(InvalidOptions, parse_options, split_options(text))
            message = "An option segment is empty; each is spelled key:value."
            self.assertEqual(error.message, message, text)

    def test_valueless(self) -> None:
        """A key without a value is refused, with and without its colon (Signed URL grammar)."""
        for key in KEYS:
            self.assert_refused(f"{key} needs a value, spelled {key}:value", key, f"{key}:")

    def test_literal(self) -> None:
        """Only ``dl`` and ``cb`` are decoded, and may have blanks and further colons (D2)."""
        for key, (first, second) in KEYS.items():
            others = [f"%{ord(first[0]):02X}{first[1:]}", f"{second}:1:1:1:1"]
            others += [f" {first}", f"{first} ", f"{first}\n", f"{first}\0"]
            if key not in ("t", "fade", "norm"):
                others += [f"{second}:"]
            for other in others if key not in ("dl", "cb") else ():
                self.assert_refused("expected", with_required(key, other))

    def test_first_in_order(self) -> None:
        """The first segment that is invalid by itself is refused, before any conflict (D20)."""
        for words, text, at in (
            ("mp3", "f:x/br:x", 0),
            ("whole number", "br:x/f:x", 0),
            ("the options are", "f:mp3/zz:1/br:x", 1),
            ("mp3", "br:128/q:2/f:x", 2),
        ):
            self.assert_refused(words, text, at=at)

    @DETERMINISTIC
    @given(segments=st.lists(junk(), max_size=4), good=option_segments())
    def test_any_bytes(self, segments: list[bytes], good: list[bytes]) -> None:
        """Any bytes are parsed, or refused in ASCII (Request option exp; D13, D20)."""
        for each in (segments, [*good, *segments]):
            exp = parse_expiry(each)
            self.assertTrue(exp is None or 0 <= exp <= 253_402_300_799)
            try:
                options, same_exp = parse_options(each)
            except InvalidOptions as error:
                self.assertTrue(error.message.isascii())
            else:
                self.assertEqual(same_exp, exp)
                canonical = options.canonical()
                self.assertEqual(
                    parse_options(split_options(canonical)), (options, None), canonical
                )


class BoundsTests(OptionsCase):
    """The bounds of every number"""

    #: The required segments, the key, the lowest and the highest value, and words of the refusal.
    WHOLE = (
        ("f:mp3", "br", 8, 320, "f:mp3 takes 8 to 320 kbps"),
        ("f:opus", "br", 6, 510, "f:opus takes 6 to 510 kbps"),
        ("f:ogg", "br", 32, 500, "f:ogg takes 32 to 500 kbps"),
        ("f:aac", "br", 8, 512, "f:aac takes 8 to 512 kbps"),
        ("f:m4a", "br", 8, 512, "f:m4a takes 8 to 512 kbps"),
        ("f:opus", "q", 0, 10, "f:opus takes a whole number from 0 to 10"),
        ("f:flac", "q", 0, 12, "f:flac takes a whole number from 0 to 12"),
        ("f:wav", "sr", 1000, 384_000, "from 1000 to 384000"),
        ("f:flac", "sr", 1000, 384_000, "from 1000 to 384000"),
        ("f:peaks", "pts", 1, 65_536, "a whole number from 1 to 65536"),
        ("", "exp", 0, 253_402_300_799, "a whole number from 0 to 253402300799"),
    )
    DECIMAL = (
        ("f:mp3", "q:{}", "0", "9", "f:mp3 takes a number from 0 to 9"),
        ("f:ogg", "q:{}", "-1", "10", "f:ogg takes a number from -1 to 10"),
        ("f:aac", "q:{}", "0.1", "2", "f:aac takes a number from 0.1 to 2"),
        ("f:m4a", "q:{}", "0.1", "2", "f:m4a takes a number from 0.1 to 2"),
        ("", "gain:{}", "-60", "60", "a number from -60 to 60"),
        ("", "t:{}", "0", "999999999", "a number from 0 to 999999999"),
        ("", "t:1:{}", "0.001", "999999999", ""),
        ("", "fade:{}", "0", "999999999", "a number from 0 to 999999999"),
        ("", "fade:1:{}", "0", "999999999", "a number from 0 to 999999999"),
        ("", "norm:ebu:{}", "-70", "-5", "a number from -70 to -5"),
        ("", "norm:ebu:-16:{}", "-9", "0", "a number from -9 to 0"),
        ("", "norm:ebu:-16:-1.5:{}", "1", "50", "a number from 1 to 50"),
    )

    def test_whole_numbers(self) -> None:
        """Whole numbers have both bounds, up to 9 digits, ``exp`` 12, and no sign (D3, D6, D20)."""
        for context, key, low, high, words in self.WHOLE:
            for value in (low, high, low - 1, high + 1, -999_999_999, 999_999_999):
                text = joined(context, f"{key}:{value}")
                if low <= value <= high:
                    options, exp = parse_options(split_options(text))
                    self.assertEqual(exp if key == "exp" else getattr(options, key), value, text)
                else:
                    self.assert_refused(words, text)
            others = (f"{low}.0", f"+{low}", f"{low}e0", f"0x{low}", "x", str(low).zfill(13))
            # A quality is a decimal without a fraction.
            for other in others if key != "q" else ():
                self.assert_refused("a whole number ", joined(context, f"{key}:{other}"))
        self.assert_refused("a whole number of at most 9 digits is expected", "br:0000000128")

    def test_decimals(self) -> None:
        """Decimals have both bounds, 1 to 9 and up to 3 digits, and no exponent (D3, D6)."""
        step = Decimal("0.001")
        for context, template, low, high, words in self.DECIMAL:
            text = joined(context, template)
            for value in (low, high):
                parse_options(split_options(text.format(value)))
            for beyond in (Decimal(low) - step, Decimal(high) + step):
                self.assert_refused(words, text.format(beyond))
            others = "1e0 1. .5 1.0000 0000000001 1,5 x nan inf +1".split()
            for other in others[:-1] if template == "gain:{}" else others:
                self.assert_refused("a plain decimal", text.format(other))
        self.assert_refused("f:aac takes a number from 0.1 to 2", "f:aac/q:0")


class EncodingTests(OptionsCase):
    """f, br, q, sr, ch, bd"""

    def test_choices(self) -> None:
        """Fixed values are the only ones (Versioning, 4; Format and encoding options; D6, D7)."""
        for key, others, words in (
            ("f:", "MP3 mp4 vorbis mp mp33 \xff", "mp3 or opus or ogg"),
            ("ch:", "0 3 -1 01 1.0 +1 mono \xb9", "1 or 2 is expected"),
            ("f:wav/bd:", "8 32 32F 016 16.0 s16", "16 or 24 or 32f is expected"),
            ("enhance:", "voice2 Voice music voice:2", "voice is expected"),
            ("f:peaks/pk_fmt:", "bin JSON", "json or dat is expected"),
            ("f:peaks/pk_bits:", "24 08", "8 or 16 is expected"),
        ):
            self.assert_refused(words, *(key + other for other in others.split()))

    def test_without_effect(self) -> None:
        """Options without an effect on the output are refused (Peaks options, 2; D7)."""
        for segments, forms, what in (
            ("br:128", ("flac", "wav", "peaks"), "bitrate"),
            ("q:1 q:0", ("wav", "peaks"), "quality"),
            ("bd:16 bd:24 bd:32f", (*LOSSY, "peaks"), "bit depth"),
            ("sr:44100 sr:384000", ("peaks",), "sample rate"),
        ):
            for segment in segments.split():
                for form in forms:
                    words = f"f:{form} has no {what} to set"
                    self.assert_refused(words, f"f:{form}/{segment}")
                    self.assert_refused(words, f"{segment}/f:{form}", at=0)
        self.assert_refused("f:flac takes 16 or 24", "f:flac/bd:32f")
        for segment in ("pts:800", "pk_fmt:json", "pk_bits:16"):
            texts = (f"f:{token}/{segment}" for token in FORMATS if token != "peaks")
            self.assert_refused("it goes with f:peaks only", segment, *texts)

    def test_bitrate_with_quality(self) -> None:
        """``br`` and ``q`` exclude each other, in either order (Format and encoding options)."""
        for token in LOSSY:
            for q in (0, 1):
                words = "br and q exclude each other"
                self.assert_refused(words, f"f:{token}/br:128/q:{q}", at=1)
                self.assert_refused(words, f"q:{q}/f:{token}/br:128")

    def test_rates(self) -> None:
        """``sr`` is a rate of the codec (Format and encoding options, 2; D6, D8)."""
        for token, accepted, refused, words in (
            ("opus", (8000, 48000), (11025, 44100), "one of 8000, 12000, 16000, 24000, 48000 Hz."),
            ("aac", (7350, 44100, 48000), (1000, 12345, 47999), "32000, 44100, 48000 Hz."),
            ("flac", (1000, 65534), (65535, 352_801), "only multiples of 10 above 65534 Hz."),
        ):
            for rate in accepted:
                parse_options(split_options(f"f:{token}/sr:{rate}"))
            self.assert_refused(words, *(f"f:{token}/sr:{rate}" for rate in refused))
        for token in FORMATS:
            texts = [f"f:{token}/sr:{rate}" for rate in (999, 384_001)]
            self.assert_refused("a whole number from 1000 to 384000", *texts)
        for token in LOSSY:
            texts = [f"f:{token}/sr:{rate}" for rate in (48001, 64000, 88200, 96000, 384_000)]
            self.assert_refused("a lossy format takes at most 48000 Hz", *texts)


class ProcessingTests(OptionsCase):
    """t, fade, gain, norm, enhance; and with peaks, pts, pk_fmt and pk_bits"""

    def test_refused(self) -> None:
        """Numbers out of bounds, wrong parts, and fades longer than ``t`` are refused (D6, D12)."""
        for words, texts in (
            ("from 0 to 999999999", "t:-1 t:1:-1 fade:-1 fade:1:-1"),
            ("a duration longer than 0", "t:1:0 t:1:0.000 t:1:-0"),
            ("a plain decimal", "t:1: t::1 t:: fade:1: fade::1"),
            ("start[:duration] is expected", "t:1:2:3 t:00:01:30"),
            ("in[:out] is expected", "fade:1:2:3"),
            ("t limits the output to 10 s", "t:5:10/fade:10.001 t:5:10/fade:0:10.001"),
            ("t limits the output to 0.5 s", "t:0:0.50/fade:1:0"),
            ("a plain decimal from -60 to 60", "gain:3dB gain:%2B3 gain:++3"),
            ("ebu is expected", "norm:EBU norm:-16 norm::-16"),
            ("from -70 to -5", "norm:ebu: norm:ebu::-2"),
            ("ebu[:I[:TP[:LRA]]] is expected", "norm:ebu:-16:-2:7:1"),
        ):
            self.assert_refused(words, *texts.split())


class DeliveryTests(OptionsCase):
    """dl and cb"""

    def test_refused_filenames(self) -> None:
        """``dl`` without UTF-8, or with control characters, ``/`` or ``\\``, is refused (D10)."""
        values = [f"a%{code:02X}b" for code in (*range(0x20), 0x7F)]
        values += [f"%C2%{code:02X}" for code in range(0x80, 0xA0)]
        values += ["..%2F..%2Fetc", "a%2fb", "a%5Cb", "a\\b"]
        words = "a file name without control characters, / or \\"
        self.assert_refused(words, *(f"dl:{value}" for value in values))
        values = ["%FF", "%C3", "%ED%A0%80", "%C0%AF", "a%E9"]
        self.assert_refused("a UTF-8 file name is expected", *(f"dl:{value}" for value in values))

    def test_limits(self) -> None:
        """``dl`` and ``cb`` have at most 255 decoded bytes, and whole escapes (D2, D6)."""
        broken = "every % must start an escape of two hexa"
        for key in ("dl", "cb"):
            for value in ("a" * 255, "%61" * 255, "%C3%A9" * 127 + "a", "X%C2%A0%C2%A1" * 51):
                shown = getattr(parse_options(split_options(f"{key}:{value}"))[0], key)
                self.assertEqual(len(shown.encode() if key == "dl" else shown), 255)
            for value in ("a" * 256, "%C3%A9" * 128):
                self.assert_refused("at most 255 bytes", f"{key}:{value}")
            self.assert_refused(broken, *(f"{key}:{value}" for value in "100% % %2 %zz".split()))


class ExpTests(OptionsCase):
    """exp"""

    def test_other_errors(self) -> None:
        """Errors in other segments are ignored (Request handling order, 2; Request option exp)."""
        for text in ("exp:5/br:1", "zz:1/exp:5", "f:mp3//exp:5", "br/exp:5", "br:96/q:1/exp:5"):
            self.assertEqual(parse_expiry(split_options(text)), 5, text)
            self.assertRaises(InvalidOptions, parse_options, split_options(text))
        for text in (
            *("", "f:mp3", "exp", "exp:", "EXP:5", "cb:exp:5", "exp:5/exp:6", "exp:5/exp:5"),
            *("exp:5/exp:x", "expires:5", "%65xp:5", " exp:5", "exp:-1", "exp:1.5", "exp:1:1"),
        ):
            self.assertIsNone(parse_expiry(split_options(text)), text)


class InfoTests(SynchronousTestCase):
    """`refuse_options`: an info document has no options."""

    def test_any_segment(self) -> None:
        """Only an info URL without segments is accepted (Info document, 5; D20)."""
        self.assertIsNone(refuse_options([]))
        segments = [f"{key}:{value}".encode() for key, values in KEYS.items() for value in values]
        for segment in (*segments, b"", b"x", b"info", b"f:", b"\xff\x00", b"x" * 100):
            error = self.assertRaises(InvalidOptions, refuse_options, [segment, b"q:99"])
            self.assertEqual((error.status, error.code), (422, "invalid_options"))
            message = f"{quoted(segment)} is not accepted: an info document has no options."
            self.assertEqual(error.message, message)
