"""Answers that a server can give, generated from the right one.

`ANSWERS` has, by name:

- each status with a page, an error document and, up to 399, the right body and none;
- each redirect to each place;
- 200 and 206, which carry what was asked for, with each other body and each change of the headers;
- the right reply and an error in each framing, which may break off at any place;
- each thing that is no reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from audioproxy.http_client.ranges import parse_content_range
from tests.support.s3_double import Reply
from tests.support.wire import Peer, chunk, error

#: Representatives of each class, and each status that a client may distinguish.
STATUSES = (
    *(200, 201, 203, 204, 206, 300, 302, 304, 307, 400, 401, 403, 404, 408, 409, 410, 412, 416),
    *(425, 429, 451, 500, 501, 502, 503, 504, 511, 599),
)
_CODES = {400: "InvalidRequest", 403: "AccessDenied", 404: "NoSuchKey", 503: "SlowDown"}
_PAGE = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body>Sign in<br></body></html>"
_PLACES = ("?new", "https://elsewhere.test/", "http://origin.test/a.mp3")

Change = Callable[[Reply], Reply]


@dataclass(frozen=True)
class Answer:
    """What a server sends in place of the right reply.

    :ivar sent: the bytes on the wire.
    :ivar end: ends the connection after them, or leaves it open.
    :ivar status: None where no head arrives.
    :ivar body: None where it does not arrive as a whole.
    :ivar total: the size that its Content-Range states.
    :ivar is_right: it says what the right reply says.
    """

    sent: bytes
    end: Callable[[Peer], object]
    status: int | None = None
    body: bytes | None = None
    total: int | None = None
    is_right: bool = False

    @property
    def is_temporary(self) -> bool:
        """Whether it says nothing about what was asked for."""
        return self.status is None or self.status in (408, 425, 429) or self.status >= 500

    @property
    def is_refusal(self) -> bool:
        """Whether it does not have what was asked for, nor says that this is empty."""
        return self.status is None or (self.status >= 400 and self.status != 416)

    @property
    def is_page(self) -> bool:
        """Whether the body is a page or an error document."""
        return (self.body or b"").startswith((_PAGE, b"<?xml", b"<Error"))


def _with(body: Any = None, **headers: Any) -> Change:
    """Return a change of the body, and of headers by their names.

    :param body: or what makes it of the right one.
    :param headers: or what makes them of the range of the right reply; empty for none.
    """

    def change(good: Reply) -> Reply:
        stated = good.headers.get("Content-Range", f"bytes 0-{len(good.body) - 1}/{len(good.body)}")
        found, _ = parse_content_range(stated)
        place = (found.first, found.last, found.total) if found else (0, 0, 1)
        lines = {
            name.replace("_", "-"): text(*place) if callable(text) else text
            for name, text in headers.items()
        }
        new = good.body if body is None else body(good.body) if callable(body) else body
        return replace(good, body=new, headers={**good.headers, **lines})

    return change


def _refuse(good: Reply) -> Reply:
    return replace(good, body=error(_CODES.get(good.status, "InternalError")))


def _reverse(body: bytes) -> bytes:
    """Return other bytes of the same number, so that the headers alone tell."""
    return body[::-1]


_BODIES: Mapping[str, Change] = {
    "a page": _with(_PAGE),
    "an error": _refuse,
    "the right body": _with(),
    "no body": _with(b""),
}
_CONTENTS: Mapping[str, Change] = {
    "a short body": _with(lambda body: body[: len(body) // 2]),
    "a long body": _with(lambda body: body + b"more"),
    "a malformed document": _with(b"<Error><Code>Internal"),
    "another document": _with(b"<Result><Owner>somebody</Owner></Result>"),
    "a large body": _with(b"<" + bytes(100 * 1024)),
    "no range": _with(Content_Range=""),
    "a later range": _with(_reverse, Content_Range=lambda a, b, n: f"bytes {a + 1}-{b + 1}/{n}"),
    "a longer range": _with(_reverse, Content_Range=lambda a, b, n: f"bytes {a}-{b + 1}/{n}"),
    "a part": _with(lambda it: it[:-1], Content_Range=lambda a, b, n: f"bytes {a}-{b - 1}/{n}"),
    "a larger total": _with(Content_Range=lambda a, b, n: f"bytes {a}-{b}/{n + 1}"),
    "a smaller total": _with(Content_Range=lambda a, b, n: f"bytes {a}-{b}/{n - 1}"),
    "an unknown total": _with(Content_Range=lambda a, b, n: f"bytes {a}-{b}/*"),
    "a malformed range": _with(Content_Range="bytes=0-0/x"),
    "several ranges": _with(Content_Range="", Content_Type="multipart/byteranges; boundary=b"),
    "another tag": _with(_reverse, ETag='"other"'),
    "a weak tag": _with(_reverse, ETag='W/"other"'),
    "no tag": _with(_reverse, ETag=""),
    "a coding": _with(_reverse, Content_Encoding="gzip"),
    "a location": _with(Location="/elsewhere"),
    "no headers": lambda good: replace(good, headers={}),
    "a page of its own": lambda good: replace(good, headers={}, body=_PAGE),
}


def _head(reply: Reply, *lines: str, version: str = "1.1") -> bytes:
    named = [f"{name}: {text}" for name, text in reply.headers.items() if text]
    text = "\r\n".join([f"HTTP/{version} {reply.status} Status", *lines, *named, "", ""])
    return text.encode("latin-1")


def _sized(reply: Reply, *lines: str, version: str = "1.1", stop: int | None = None) -> bytes:
    length = f"Content-Length: {len(reply.body)}"
    return _head(reply, length, *lines, version=version) + reply.body[:stop]


def _cut(reply: Reply, stop: int = -1) -> bytes:
    return _sized(replace(reply, body=reply.body or b" "), stop=stop)


def _chunked(reply: Reply, *lines: str, end: bytes = chunk(b"")) -> bytes:
    body = chunk(reply.body) if reply.body else b""
    return _head(reply, "Transfer-Encoding: chunked", *lines) + body + end


_torn = partial(_chunked, end=b"")
#: What arrives of a reply, how its connection goes on, and whether the body is a whole one.
_FRAMINGS: Mapping[str, tuple[Callable[[Reply], bytes], Callable[[Peer], object], bool]] = {
    "with a length": (_sized, id, True),
    "and closed": (_sized, Peer.close, True),
    "in chunks": (_chunked, id, True),
    "of HTTP 1.0": (partial(_sized, version="1.0"), Peer.close, True),
    "after 100": (lambda it: b"HTTP/1.1 100 Continue\r\n\r\n" + _sized(it), id, True),
    "after 103": (lambda it: b"HTTP/1.1 103 Hints\r\nLink: </>\r\n\r\n" + _sized(it), id, True),
    "before another": (lambda it: _sized(it) + _sized(it), id, True),
    "with length and chunks": (lambda it: _chunked(it, "Content-Length: 3"), id, True),
    "with two lengths": (lambda it: _sized(it, "Content-Length: 3"), id, False),
    "with a malformed length": (lambda it: _head(it, "Content-Length: x") + it.body, id, False),
    "with a negative length": (lambda it: _head(it, "Content-Length: -1") + it.body, id, False),
    "until an early end": (lambda it: _head(it) + it.body[:-1], Peer.close, False),
    "with chunks cut off": (_torn, Peer.close, False),
    "with chunks reset": (_torn, Peer.reset, False),
    "with chunks stalled": (_torn, id, False),
    "cut off": (_cut, Peer.close, False),
    "reset": (_cut, Peer.reset, False),
    "stalled": (_cut, id, False),
    "without its body": (partial(_cut, stop=0), Peer.close, False),
}
_NO_REPLIES = {
    "silence": Answer(b"", id),
    "a close": Answer(b"", Peer.close),
    "a reset": Answer(b"", Peer.reset),
    "a part of a head": Answer(b"HTTP/1.1 200 OK\r\nContent-Le", Peer.close),
    "a stalled head": Answer(b"HTTP/1.1 200 OK\r\nContent-Le", id),
    "an endless head": Answer(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000, id),
    "100 alone": Answer(b"HTTP/1.1 100 Continue\r\n\r\n", id),
    "another protocol": Answer(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", Peer.close),
}


def _made(status: int | None, *changes: Change, framing: str = "with a length") -> Any:
    """Return the function that makes an answer of the right reply."""

    def make(good: Reply) -> Answer:
        reply = good if status is None else replace(good, status=status)
        for change in changes:
            reply = change(reply)
        encode, end, is_whole = _FRAMINGS[framing]
        if reply.status in (204, 304):
            # Framing means nothing to what has no body.
            reply, is_whole = replace(reply, body=b""), True
        body = reply.body if is_whole else None
        _, total = parse_content_range(reply.headers.get("Content-Range", ""))
        return Answer(encode(reply), end, reply.status, body, total, is_whole and reply == good)

    return make


def _generate() -> Iterator[tuple[str, Callable[[Reply], Answer]]]:
    for status in STATUSES:
        for name, change in list(_BODIES.items())[: 4 if status < 400 else 2]:
            yield f"{status} with {name}", _made(status, change)
        for place in _PLACES if 300 < status < 400 else ():
            yield f"{status} to {place}", _made(status, _with(b"", Location=place))
    for status in (200, 206):
        for name, change in _CONTENTS.items():
            yield f"{status} with {name}", _made(status, change)
        for name in ("a short body", "a long body"):
            made = _made(status, _CONTENTS[name], framing="in chunks")
            yield f"{status} with {name} in chunks", made
    for framing in _FRAMINGS:
        yield f"the right reply {framing}", _made(None, framing=framing)
        yield f"503 {framing}", _made(503, _refuse, framing=framing)
    for name, answer in _NO_REPLIES.items():
        yield name, lambda good, answer=answer: answer


#: Each answer by its name.
ANSWERS: Mapping[str, Callable[[Reply], Answer]] = dict(_generate())
#: The right answer.
RIGHT = ANSWERS["the right reply with a length"]
