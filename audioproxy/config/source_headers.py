"""The headers of AP_SOURCE_HEADERS_FILE, for https origins that demand credentials.

Each line of the file is a host, a header and its value: ``media.example Authorization: Bearer
abc``. Blank lines are ignored, and so are lines that begin with ``#``.
"""

from __future__ import annotations

import codecs
import ipaddress
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from audioproxy.config.values import NUMBER_LAST, readable_file
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
# The most bytes of all headers of a request that Node, HAProxy and IIS accept by default. Apache
# and nginx accept 8 KiB in one line.
_MAX_BYTES = 16 * 1024
_BLANKS = " \t\r"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class InvalidHeaders(Exception):
    """Headers have mistakes. Their texts quote no value, and nothing that may be one.

    :ivar mistakes: all of them, in the order of the lines.
    """

    def __init__(self, mistakes: list[InvalidValue]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes


def read_source_headers(path: str) -> SourceHeaders:
    """Read the headers in a file.

    :raises InvalidHeaders: for a file that others may read or change, or with mistakes.
    """
    headers = _Collector("the first word")
    with open(readable_file(path), "rb") as file:
        with headers.naming():
            check_access(os.fstat(file.fileno()), os.geteuid())
        data = file.read()
    wanted = "UTF-8 without a byte-order mark is required"
    with headers.naming():
        if data.startswith(_UTF16) or b"\0" in data[:2]:
            data = b""
            raise InvalidValue("the file is UTF-16", wanted)
        if data.startswith(codecs.BOM_UTF8):
            data = data.removeprefix(codecs.BOM_UTF8)
            raise InvalidValue("the file has a byte-order mark", wanted)
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    for number, line in enumerate((line.strip(_BLANKS) for line in lines), 1):
        if line and not line.startswith("#"):
            with headers.naming(f"line {number}"):
                headers.add(*_split(line), f"line {number}")
    return headers.collect()


def check_source_headers(headers: Any) -> SourceHeaders:
    """Return the headers that an application passes, with each host as it stands in a URL."""
    found = _Collector("the key")
    with found.naming():
        if not isinstance(headers, Mapping):
            raise _wrong_type(headers, "headers by host")
        for number, (host, lines) in enumerate(headers.items(), 1):
            place = f"host {number}"
            with found.naming(place):
                if not isinstance(lines, Mapping):
                    raise _wrong_type(lines, "values by header")
                for name, value in lines.items():
                    found.add(host, name, value, place)
    return found.collect()


class _Collector:
    """Collects headers, and all mistakes in them; ``host_label`` is what these call a host."""

    def __init__(self, host_label: str) -> None:
        self._host_label = host_label
        self._headers: dict[str, dict[str, str]] = {}
        self._places: dict[tuple[str, str], str] = {}
        self._mistakes: list[InvalidValue] = []

    @contextmanager
    def naming(self, place: str = "") -> Iterator[None]:
        try:
            yield
        except InvalidValue as error:
            fault = f"{place}: {error.fault}" if place else error.fault
            self._mistakes.append(InvalidValue(fault, error.wanted))

    def add(self, host: Any, name: Any, value: Any, place: str) -> None:
        # What is no host or no name is not quoted: it may be a value in a wrong place.
        for text in (host, name, value):
            if not isinstance(text, str):
                raise InvalidValue(f"{type(text).__name__} in place of text", "str is required")
        host = self._normalize_host(host)
        _check_header(name, value)
        if first := self._places.get((host, name.lower())):
            raise InvalidValue(
                f"the host and the header of {first}", "a host has one value for a header"
            )
        self._places[host, name.lower()] = place
        lines = {**self._headers.get(host, {}), name: value}
        if sum(len(f"{name}: {value}\r\n") for name, value in lines.items()) > _MAX_BYTES:
            raise InvalidValue(
                f"the headers of the host have more than {_MAX_BYTES} bytes",
                "shorter values are required, since servers refuse these",
            )
        self._headers[host] = lines

    def collect(self) -> SourceHeaders:
        if self._mistakes:
            raise InvalidHeaders(self._mistakes)
        return self._headers

    def _normalize_host(self, text: str) -> str:
        wanted = "one exact name or address is required, with its port unless that is 443"
        try:
            if not {"/", "?", "#"}.isdisjoint(text):
                raise ValueError
            source = parse_https(f"https://{text}".encode("ascii"))
        except ValueError:
            raise InvalidValue(f"{self._host_label} is not a host", wanted) from None
        if _is_number(source.host):
            # A URL may have such a host, but no public authority issues a certificate for it.
            raise InvalidValue(f"{self._host_label} is a number", wanted)
        return source.authority


def check_access(status: os.stat_result, uid: int) -> None:
    """Raise `InvalidValue` for a file of a user that others than its owner may read or change.

    A file of root that another user can read was given to that user by root: by an ACL, as by
    LoadCredential= of systemd, where the mode shows the ACL's mask in place of the group's rights
    (acl(5)), or by a group, as in a volume of Kubernetes.
    """
    is_given = status.st_uid == 0 != uid
    if status.st_mode & (0o037 if is_given else 0o077):
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise InvalidValue(
            f"others than its owner can read or change the file (mode {mode})",
            "chmod 600 is required",
        )


def _is_number(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return NUMBER_LAST.fullmatch(host) is not None
    return False


def _split(line: str) -> tuple[str, str, str]:
    """Return the host, the name and the value of a line, or what stands in their places."""
    host, *rest = re.split(f"[{_BLANKS}]+", line, maxsplit=1)
    name, colon, value = "".join(rest).partition(":")
    return host, name if colon else "", value.strip(_BLANKS)


def _check_header(name: str, value: str) -> None:
    if _NAME.fullmatch(name) is None:
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


def _wrong_type(found: object, wanted: str) -> InvalidValue:
    return InvalidValue(type(found).__name__, f"a mapping of {wanted} is required")
