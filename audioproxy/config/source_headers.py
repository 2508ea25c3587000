"""The file of AP_SOURCE_HEADERS_FILE: headers for https origins that demand credentials.

Each line is a host, a header and its value: ``media.example Authorization: Bearer abc``. Blank
lines are ignored, and so are lines that begin with ``#``.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from typing import TypeAlias

from audioproxy.config.values import readable_file
from audioproxy.errors import InvalidValue
from audioproxy.grammar.sources import parse_https

#: Headers by name, by the host as it stands in a canonical URL, with its port unless that is 443.
SourceHeaders: TypeAlias = Mapping[str, Mapping[str, str]]

# RFC 9110, 5.6.2 and 5.5: a name, and a value of visible ASCII with blanks inside.
_NAME = re.compile(r"[!#$%&'*+.^_`|~\w-]+", re.ASCII)
_VALUE = re.compile(r"[!-~](?:[ \t!-~]*[!-~])?")
# Headers that decide about the connection, the framing, or which bytes a response has.
_OWN_HEADERS = re.compile(
    r"(?:content|if|proxy)-.*|accept-encoding|connection|expect|host|http2-settings|keep-alive"
    r"|range|te|trailer|transfer-encoding|upgrade"
)


class InvalidFile(Exception):
    """A file has mistakes. Their texts quote no value, and nothing that may be one.

    :ivar mistakes: all of them, in the order of the lines.
    """

    def __init__(self, mistakes: list[InvalidValue]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes


def read_source_headers(path: str) -> SourceHeaders:
    """Read the headers in a file.

    :raises InvalidValue: for a path that is not a readable file.
    :raises InvalidFile: for a file that others may read or change, or with mistakes.
    """
    mistakes: list[InvalidValue] = []
    with open(
        readable_file(path), encoding="utf-8", errors="surrogateescape", newline="\n"
    ) as file:
        try:
            _check_access(os.fstat(file.fileno()))
        except InvalidValue as error:
            mistakes.append(error)
        lines = file.read().split("\n")
    headers: dict[str, dict[str, str]] = {}
    numbers: dict[tuple[str, str], int] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        try:
            host, name, value = _parse_line(line)
            first = numbers.setdefault((host, name.lower()), number)
            if first != number:
                raise InvalidValue(
                    f"the host and the header of line {first}", "a host has one line for a header"
                )
        except InvalidValue as error:
            mistakes.append(InvalidValue(f"line {number}: {error.fault}", error.wanted))
        else:
            headers.setdefault(host, {})[name] = value
    if mistakes:
        raise InvalidFile(mistakes)
    return headers


def _check_access(status: os.stat_result) -> None:
    """Raise `InvalidValue` for a file that others than its owner may read or change.

    A file of root that another user can read was given to that user by root: by an ACL, as by
    LoadCredential= of systemd, where the mode shows the ACL's mask in place of the group's rights
    (acl(5)), or by a group, as in a volume of Kubernetes.
    """
    is_given = status.st_uid == 0 != os.geteuid()
    if status.st_mode & (0o037 if is_given else 0o077):
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise InvalidValue(
            f"others than its owner can read or change the file (mode {mode})",
            "chmod 600 is required",
        )


def _parse_line(line: str) -> tuple[str, str, str]:
    """Return the host, the name and the value of a line.

    :raises InvalidValue: for the first mistake. What is no host or no name is not quoted: it may be
        a value in a wrong place.
    """
    host, *rest = line.split(None, 1)
    name, colon, value = "".join(rest).partition(":")
    value = value.strip()
    try:
        if not {"/", "?", "#"}.isdisjoint(host):
            raise ValueError
        host = parse_https(f"https://{host}".encode("ascii")).authority
    except ValueError:
        raise InvalidValue(
            "the first word is not a host",
            "one exact name or address is required, with its port unless that is 443",
        ) from None
    if not colon or _NAME.fullmatch(name) is None:
        raise InvalidValue(
            "no header and colon after the host",
            "a line such as media.example Authorization: Bearer abc is required",
        )
    if _OWN_HEADERS.fullmatch(name.lower()) is not None:
        raise InvalidValue(f"the service itself decides about {name}", "omit the line")
    if _VALUE.fullmatch(value) is None:
        raise InvalidValue(
            "the value is empty, or has a character that is not visible ASCII",
            "visible ASCII is required, with blanks between words at most",
        )
    return host, name, value
