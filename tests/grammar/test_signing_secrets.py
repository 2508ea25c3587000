"""Parsing of signing secrets: a key or a salt in hexadecimal."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.signing_secrets import (
    check_length,
    describe_secret,
    secret_list_parser,
    secret_parser,
)


class SecretTests(SynchronousTestCase):
    """`secret_parser`, `secret_list_parser`, `check_length` and `describe_secret`"""

    def test_right(self) -> None:
        """Enough hexadecimal digits, in either letter case, are accepted."""
        self.assertEqual(b"\xab\xcd", secret_parser(2)("aBcD"))
        self.assertEqual(b"ab", check_length(b"ab", 2))

    def test_wrong(self) -> None:
        """Invalid text is refused with its fault and the requirement, and is never quoted."""
        for text, fault in (
            ("abcd ", "white space around the value"),
            ("abxd", "character 3 of 4 is not a hexadecimal digit"),
            ("abc", "an odd number of hexadecimal digits, 3, but each byte has two"),
            ("ab", "1 byte"),
        ):
            error = self.assertRaises(ValueError, secret_parser(2), text)
            self.assertEqual(f"{fault}; {describe_secret(2)}", str(error))
        error = self.assertRaises(ValueError, check_length, b"abc", 32)
        self.assertEqual(f"3 bytes; {describe_secret(32)}", str(error))

    def test_list(self) -> None:
        """A list has any number of secrets; a refusal names the entry, and quotes none (D55)."""
        read = secret_list_parser(2)
        self.assertEqual((b"\xab\xcd", b"abc"), read("aBcD,616263"))
        self.assertEqual((b"ab",), read("6162"))
        for text, fault in (
            ("abcd,abxd", "entry 2 of 2: character 3 of 4 is not a hexadecimal digit"),
            ("ab,abcd", "entry 1 of 2: 1 byte"),
            ("abcd,,abcd", "entry 2 of 3: empty"),
            ("", "entry 1 of 1: empty"),
        ):
            error = self.assertRaises(ValueError, read, text)
            self.assertEqual(f"{fault}; {describe_secret(2)}", str(error))

    def test_describe(self) -> None:
        """The description states the minimum length, and a command that generates enough bytes."""
        self.assertEqual(
            "at least 1 byte written as hexadecimal is required, such as `openssl rand -hex 16`"
            " prints",
            describe_secret(1),
        )
        self.assertIn("at least 32 bytes written as hexadecimal are", describe_secret(32))
