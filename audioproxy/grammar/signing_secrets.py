"""Keys and salts that sign URLs: their minimum lengths and their hexadecimal text."""

from __future__ import annotations

import re
from collections.abc import Callable

from audioproxy.errors import InvalidValue

#: The minimum lengths of a key and of a salt in bytes (Authentication, 4; D32).
MIN_KEY_BYTES, MIN_SALT_BYTES = 32, 1

_NOT_HEXADECIMAL = re.compile(r"[^0-9A-Fa-f]")


def describe_secret(min_bytes: int) -> str:
    amount, verb = ("1 byte", "is") if min_bytes == 1 else (f"{min_bytes} bytes", "are")
    # The example has 16 bytes where the minimum is lower.
    return (
        f"at least {amount} written as hexadecimal {verb} required, such as `openssl rand -hex"
        f" {max(min_bytes, 16)}` prints"
    )


def secret_parser(min_bytes: int) -> Callable[[str], bytes]:
    """Return a parser of secrets of ``min_bytes`` or more. Its errors never quote the value."""

    def read(text: str) -> bytes:
        # bytes.fromhex() alone would skip white space, even in the middle.
        digits = len(text)
        if text != text.strip():
            fault = "white space around the value"
        elif (invalid := _NOT_HEXADECIMAL.search(text)) is not None:
            fault = f"character {invalid.start() + 1} of {digits} is not a hexadecimal digit"
        elif digits % 2:
            fault = f"an odd number of hexadecimal digits, {digits}, but each byte has two"
        else:
            return check_length(bytes.fromhex(text), min_bytes)
        raise InvalidValue(fault, describe_secret(min_bytes))

    return read


def secret_list_parser(min_bytes: int) -> Callable[[str], tuple[bytes, ...]]:
    read_one = secret_parser(min_bytes)

    def read(text: str) -> tuple[bytes, ...]:
        secrets = []
        entries = text.split(",")
        for number, entry in enumerate(entries, 1):
            try:
                if not entry:
                    raise InvalidValue("empty", describe_secret(min_bytes))
                secrets.append(read_one(entry))
            except InvalidValue as error:
                fault = f"entry {number} of {len(entries)}: {error.fault}"
                raise InvalidValue(fault, error.wanted) from None
        return tuple(secrets)

    return read


def check_length(secret: bytes, min_bytes: int) -> bytes:
    if len(secret) < min_bytes:
        amount = f"{len(secret)} byte{'' if len(secret) == 1 else 's'}"
        raise InvalidValue(amount, describe_secret(min_bytes))
    return secret
