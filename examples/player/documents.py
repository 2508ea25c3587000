"""Responses: JSON documents for the page, error documents, and lines of text."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from http import HTTPStatus
from inspect import isawaitable

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure
from twisted.web.error import UnsupportedMethod
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from audioproxy.errors import Refusal
from audioproxy.urls import InvalidOptions


class Document(Resource):
    """A JSON document, or an error document."""

    isLeaf = True

    def __init__(
        self,
        make: Callable[[Request, dict[str, str]], object],
        methods: tuple[bytes, ...] = (b"GET", b"HEAD"),
    ) -> None:
        """Serve what a function or a coroutine returns for a request and its parameters."""
        Resource.__init__(self)
        self._make = make
        self._methods = methods

    def render(self, request: Request) -> int:
        """Send the document, or the error document of a refusal.

        If the client disconnects, the coroutine is cancelled.
        """
        if request.method not in self._methods:
            raise UnsupportedMethod(self._methods)
        left = request.notifyFinish()
        responding = Deferred.fromCoroutine(self._respond(request))
        left.addErrback(lambda _: responding.cancel())

        def fail(failure: Failure) -> None:
            if not failure.check(CancelledError):
                request.processingFailed(failure)

        responding.addErrback(fail)
        return NOT_DONE_YET

    async def _respond(self, request: Request) -> None:
        try:
            document = self._make(request, _parameters(request))
            if isawaitable(document):
                document = await document
        except Refusal as refusal:
            request.setResponseCode(refusal.status, HTTPStatus(refusal.status).phrase.encode())
            # The reason of a refused source is a part of a sentence.
            text = str(refusal)
            sentence = text[:1].upper() + text[1:].removesuffix(".") + "."
            document = {"error": refusal.code, "message": sentence}
        body = json.dumps(document).encode()
        request.setHeader(b"cache-control", b"no-store")
        request.setHeader(b"content-type", b"application/json")
        request.setHeader(b"content-length", b"%d" % len(body))
        request.write(trim_body(request, body))
        request.finish()


class Line(Resource):
    """A line of text with a status, for requests that cannot be served."""

    isLeaf = True

    def __init__(self, status: HTTPStatus, text: str) -> None:
        """Serve a line."""
        Resource.__init__(self)
        self._status = status
        self._text = text

    def render(self, request: Request) -> bytes:
        """Return the line."""
        request.setResponseCode(self._status, self._status.phrase.encode())
        request.setHeader(b"content-type", b"text/plain")
        return trim_body(request, f"{self._text}\n".encode())


NOTHING = Line(HTTPStatus.NOT_FOUND, "There is no such page.")


def trim_body(request: Request, body: bytes) -> bytes:
    """Return the body, or an empty one for HEAD; Twisted warns of a body in response to HEAD."""
    if request.method == b"HEAD":
        request.setHeader(b"content-length", b"%d" % len(body))
        return b""
    return body


def _parameters(request: Request) -> dict[str, str]:
    parameters = {}
    for name, values in (request.args or {}).items():
        key = name.decode("utf-8", "replace")
        if len(values) > 1:
            raise InvalidOptions(f'"{key}" is not accepted: it may be given only once.')
        # The name of a file may have any bytes.
        parameters[key] = os.fsdecode(values[0])
    return parameters
