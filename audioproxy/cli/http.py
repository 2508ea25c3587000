"""GET requests of the commands, through treq."""

from __future__ import annotations

from typing import Any

from treq.client import HTTPClient
from twisted.python.failure import Failure
from twisted.web.http_headers import Headers

from audioproxy.http_client.client import USER_AGENT, HttpClient, Response
from audioproxy.http_client.errors import translate_error

# treq accepts only URLs that hyperlink can parse, so it gets a placeholder. The agent sends the
# exact URL. The placeholder's host name is reserved (RFC 6761, 6.4).
_PLACEHOLDER = "http://url.invalid/"
# Seconds to wait for the headers of a response.
_TIMEOUT = 15.0


async def get(client: HttpClient, clock: Any, url: str, timeout: float = _TIMEOUT) -> Response:
    """Send a GET request and return the response, with its body not yet read.

    The URL is sent byte for byte. Redirects are not followed, cookies are not kept, and bodies are
    not decoded.

    :param clock: a reactor, used for its time only.
    :param client: owns the connections and closes them.
    :param timeout: seconds to wait for the headers of the response.
    :raises UntrustedCertificate: if the server has no trusted certificate.
    :raises TransportError: if there is no response in time.
    """
    # A new treq client has no cookies.
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
    # `treq.collect` does not detect a truncated body; `Response` does.
    assert agent.response is not None
    return Response(
        clock,
        agent.response,
    )
