"""Answers that a server can give, generated from the right one.

`ANSWERS` has, by name:

- each status with a page, an error document and, up to 399, the right body and none;
- each redirect to each place;
- 200 and 206, which carry what was asked for, with each other body and each change of the headers;
- the right reply and an error in each framing, which may break off at any place;
- each thing that is no reply.

Each is a function of the right reply, so it fits every request to every server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

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
_CUT_ERROR = b"<Error><Code>Internal"

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
        return self.status in (None, 408, 425, 429) or self.status >= 500

    @property
    def is_refusal(self) -> bool:
        """Whether it says that what was asked for cannot be had."""
        return self.status is None or (self.status >= 400 and self.status != 416)

    @property
    def is_unfinished(self) -> bool:
        """Whether another attempt may have another end."""
        return self.is_temporary or self.body is None

    @property
    def is_page(self) -> bool:
        """Whether the body is a page or an error document."""
        return self.body is not None and self.body.startswith((_PAGE, _CUT_ERROR, b"<?xml"))


def _body(body: bytes | Callable[[bytes], bytes]) -> Change:
    return lambda good: replace(good, body=body if isinstance(body, bytes) else body(good.body))


def _headers(**lines: str) -> Change:
    """Return a change of some headers; an empty text removes one."""
    added = {name.replace("_", "-"): text for name, text in lines.items()}
    return lambda good: replace(good, headers={**good.headers, **added})


def _range(first: int = 0, last: int = 0, total: Callable[[int], object] = int) -> Change:
    """Return a change of Content-Range, or an addition of one for the whole body."""

    def change(good: Reply) -> Reply:
        a, b, size = _content_range(good)
        return _headers(Content_Range=f"bytes {a + first}-{b + last}/{total(size)}")(good)

    return change


def _other(change: Change) -> Change:
    """Return a change which also makes other bytes of the body, so that the headers alone tell."""
    return lambda good: change(_body(lambda body: body[::-1])(good))


def _content_range(reply: Reply) -> tuple[int, int, int]:
    text = reply.headers.get("Content-Range", f"bytes 0-{len(reply.body) - 1}/{len(reply.body)}")
    places, _, size = text.removeprefix("bytes ").partition("/")
    first, _, last = places.partition("-")
    return int(first), int(last), int(size)


def _refuse(good: Reply) -> Reply:
    return replace(good, body=error(_CODES.get(good.status, "InternalError")))


_BODIES: Mapping[str, Change] = {
    "a page": _body(_PAGE),
    "an error": _refuse,
    "the right body": lambda good: good,
    "no body": _body(b""),
}
_CONTENTS: Mapping[str, Change] = {
    "short body": _body(lambda body: body[: len(body) // 2]),
    "long body": _body(lambda body: body + b"more"),
    "malformed document": _body(_CUT_ERROR),
    "another document": _body(b"<Result><Owner>somebody</Owner></Result>"),
    "large body": _body(b"<" + bytes(100 * 1024)),
    "no range": _headers(Content_Range=""),
    "later range": _other(_range(1, 1)),
    "longer range": _other(_range(0, 1)),
    "shorter range": lambda good: _range(0, -1)(_body(lambda body: body[:-1])(good)),
    "larger total": _range(total=lambda size: size + 1),
    "smaller total": _range(total=lambda size: size - 1),
    "unknown total": _range(total=lambda size: "*"),
    "malformed range": _headers(Content_Range="bytes=0-0/x"),
    "several ranges": _headers(Content_Range="", Content_Type="multipart/byteranges; boundary=b"),
    "other tag": _other(_headers(ETag='"other"')),
    "weak tag": _other(_headers(ETag='W/"other"')),
    "no tag": _other(_headers(ETag="")),
    "coding": _other(_headers(Content_Encoding="gzip")),
    "unasked location": _headers(Location="/elsewhere"),
    "no headers": lambda good: replace(good, headers={}),
    "page": lambda good: replace(good, headers={"Content-Type": "text/html"}, body=_PAGE),
}
_PLACES = ("?new", "https://elsewhere.test/", "http://origin.test/a.mp3")


def _head(reply: Reply, *lines: str, version: str = "1.1") -> bytes:
    named = [f"{name}: {text}" for name, text in reply.headers.items() if text]
    text = "\r\n".join([f"HTTP/{version} {reply.status} Status", *lines, *named, "", ""])
    return text.encode("latin-1")


def _sized(reply: Reply, *lines: str, version: str = "1.1") -> bytes:
    length = f"Content-Length: {len(reply.body)}"
    return _head(reply, length, *lines, version=version) + reply.body


def _cut(reply: Reply, stop: int) -> bytes:
    body = reply.body or b" "
    return _head(reply, f"Content-Length: {len(body)}") + body[:stop]


def _chunked(reply: Reply, *lines: str, end: bytes = chunk(b"")) -> bytes:
    body = chunk(reply.body) if reply.body else b""
    return _head(reply, "Transfer-Encoding: chunked", *lines) + body + end


#: What arrives of a reply, and how the connection ends, with whether the body is a whole one.
_FRAMINGS: Mapping[str, tuple[Callable[[Reply], bytes], Callable[[Peer], object], bool]] = {
    "with a length": (_sized, id, True),
    "and closed": (_sized, Peer.close, True),
    "in chunks": (_chunked, id, True),
    "of HTTP 1.0": (partial(_sized, version="1.0"), Peer.close, True),
    "after 100": (lambda it: b"HTTP/1.1 100 Continue\r\n\r\n" + _sized(it), id, True),
    "after 103": (lambda it: b"HTTP/1.1 103 Hints\r\nLink: </>\r\n\r\n" + _sized(it), id, True),
    "before another": (lambda it: _sized(it) + _sized(it), id, True),
    "with two lengths": (lambda it: _sized(it, "Content-Length: 3"), id, False),
    "with length and chunks": (lambda it: _chunked(it, "Content-Length: 3"), id, True),
    "with a malformed length": (lambda it: _head(it, "Content-Length: x") + it.body, id, False),
    "with a negative length": (lambda it: _head(it, "Content-Length: -1") + it.body, id, False),
    "until an early end": (lambda it: _head(it) + it.body[:-1], Peer.close, False),
    "with chunks cut off": (partial(_chunked, end=b""), Peer.close, False),
    "with chunks reset": (partial(_chunked, end=b""), Peer.reset, False),
    "with chunks stalled": (partial(_chunked, end=b""), id, False),
    "cut off": (lambda it: _cut(it, -1), Peer.close, False),
    "reset": (lambda it: _cut(it, -1), Peer.reset, False),
    "stalled": (lambda it: _cut(it, -1), id, False),
    "without its body": (lambda it: _cut(it, 0), Peer.close, False),
}
_NO_REPLIES: Mapping[str, tuple[bytes, Callable[[Peer], object]]] = {
    "silence": (b"", id),
    "a close": (b"", Peer.close),
    "a reset": (b"", Peer.reset),
    "a part of a head": (b"HTTP/1.1 200 OK\r\nContent-Le", Peer.close),
    "a stalled head": (b"HTTP/1.1 200 OK\r\nContent-Le", id),
    "an endless head": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000, id),
    "100 alone": (b"HTTP/1.1 100 Continue\r\n\r\n", id),
    "another protocol": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", Peer.close),
}


def _answer(good: Reply, *changes: Change, framing: str = "with a length") -> Answer:
    reply = good
    for change in changes:
        reply = change(reply)
    encode, end, is_whole = _FRAMINGS[framing]
    if reply.status in (204, 304):
        # Framing means nothing to what has no body.
        reply, is_whole = replace(reply, body=b""), True
    body = reply.body if is_whole else None
    _, total = parse_content_range(reply.headers.get("Content-Range", ""))
    return Answer(encode(reply), end, reply.status, body, total, is_whole and reply == good)


def _status(status: int) -> Change:
    return lambda good: replace(good, status=status)


def _generate() -> Iterator[tuple[str, Callable[[Reply], Answer]]]:
    def made(*changes: Change, framing: str = "with a length") -> Callable[[Reply], Answer]:
        return lambda good: _answer(good, *changes, framing=framing)

    for status in STATUSES:
        for name, change in list(_BODIES.items())[: 4 if status < 400 else 2]:
            yield f"{status} with {name}", made(_status(status), change)
        for place in _PLACES if 300 < status < 400 else ():
            yield f"{status} to {place}", made(_status(status), _body(b""), _headers(Location=place))
    for status in (200, 206):
        for name, change in _CONTENTS.items():
            yield f"{status} with {name}", made(_status(status), change)
        for name in ("short body", "long body"):
            changes = _status(status), _CONTENTS[name]
            yield f"{status} with {name} in chunks", made(*changes, framing="in chunks")
    for framing in _FRAMINGS:
        yield f"the right reply {framing}", made(framing=framing)
        yield f"503 {framing}", made(_status(503), _refuse, framing=framing)
    for name, (packet, end) in _NO_REPLIES.items():
        yield name, lambda good, packet=packet, end=end: Answer(packet, end)


#: Each answer by its name.
ANSWERS: Mapping[str, Callable[[Reply], Answer]] = dict(_generate())
#: The right answer.
RIGHT = ANSWERS["the right reply with a length"]
