"""GET requests of the commands, sent by treq."""

from __future__ import annotations

from typing import Any

from treq.client import HTTPClient
from twisted.python.failure import Failure
from twisted.web.http_headers import Headers

from audioproxy.http_client.client import USER_AGENT, HttpClient, Response
from audioproxy.http_client.errors import translate_error

# treq needs a URL that hyperlink can parse; the agent sends the exact one. RFC 6761, 6.4 reserves
# the name.
_PLACEHOLDER = "http://url.invalid/"
# Seconds for the headers of a response.
_TIMEOUT = 15.0


async def get(client: HttpClient, clock: Any, url: str, timeout: float = _TIMEOUT) -> Response:
    """Send a GET request and return the response, whose body is not read yet.

    The URL is sent byte for byte. Redirects are not followed, cookies are not kept, and bodies are
    not decoded.

    :param clock: a reactor, of which only the time is used.
    :param client: owns the connections and closes them.
    :param timeout: seconds for the headers of the response.
    :raises UntrustedCertificate: for a server without a trusted certificate.
    :raises TransportError: without a response, or without one in time.
    """
    # A new client has no cookies.
    agent = client.agent(url)
    sending = HTTPClient(agent).get(
        _PLACEHOLDER,
        headers=Headers({"user-agent": [USER_AGENT]}),
        allow_redirects=False,
        # treq's buffer has no limit.
        unbuffered=True,
        reactor=clock,
    )
    sending.addTimeout(
        timeout, clock, lambda failure, _: Failure(translate_error(failure.value, expired=True))
    )
    try:
        await sending
    except Exception as error:
        raise translate_error(error) from error
    # `treq.collect` takes a truncated body for a complete one; `Response` does not.
    assert agent.response is not None
    return Response(clock, agent.response, is_head=False)
