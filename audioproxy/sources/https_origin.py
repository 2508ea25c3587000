"""Requests to https origins: the state of a source, through redirects on the allowlist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import NotFound, UpstreamUnavailable
from audioproxy.grammar.sources import HttpsSource
from audioproxy.http_client.client import HttpClient, Response
from audioproxy.http_client.errors import PrivateAddress, TransportError, UntrustedCertificate
from audioproxy.observe.log_context import Logger
from audioproxy.sources import redirects
from audioproxy.sources.origin_state import OriginState, Temporary, is_empty, read_state

# Statuses with which careless servers respond to a range, though they serve the whole.
_RANGE_REFUSED = (400, 416, 501)
# Statuses which ask for credentials, or for others.
_UNAUTHORIZED = (401, 403)
# Seconds for all requests about one source, redirects included; and those before another attempt
# after a temporary error, unless the origin states more.
_LOOKUP_TIMEOUT = 30.0
_DELAYS = (0.5, 2.0)

#: What the headers of a response state, and the response.
Answer: TypeAlias = tuple[OriginState, Response]

_log = Logger()


@dataclass(frozen=True, slots=True)
class OriginClient:
    """Sends requests to the https hosts on the allowlist.

    The headers are those of one process for its whole life. So all that it remembers of a source,
    by address and validator, was read with the same headers.

    :ivar client: connects to public addresses alone, if private ones are denied.
    :ivar headers: headers by name, by the authority of the origin whose sources they are for.
    """

    client: HttpClient
    allowlist: Sequence[str]
    clock: IReactorTime
    headers: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    def is_connected(self, source: HttpsSource) -> bool:
        return self.client.is_connected(redirects.request_url(source))

    async def look_up(self, source: HttpsSource, byte_range: str | None = None) -> Answer:
        """Follow redirects to the source, and return its state there and the response.

        :param byte_range: such as ``0-0``. An origin that responds to a range of the start with an
            error, though the source may exist, is asked for the whole.
        :raises NotFound: where there is no source, the origin refuses it, or a redirect leads off
            the allowlist.
        :raises UpstreamUnavailable: where the origin cannot be reached or trusted, is broken or
            busy, or redirects without end (D48).
        """
        deadline = Deadline(self.clock, _LOOKUP_TIMEOUT)
        for delay in (*_DELAYS, None):
            try:
                return await deadline.limit(self.walk(source, byte_range))
            except TimeoutError as error:
                _log.warn("the origin {host} does not respond in time", host=source.host)
                raise UpstreamUnavailable("The origin did not respond in time.") from error
            except Temporary as error:
                wait = max(delay or 0.0, error.retry_after or 0.0)
                if delay is None or not error.is_repeated or wait >= deadline.remaining:
                    _log.warn("the origin {host} {why}", host=source.host, why=error)
                    raise UpstreamUnavailable(error.message) from error
            await deferLater(self.clock, wait)
        raise AssertionError

    async def walk(self, source: HttpsSource, byte_range: str | None) -> Answer:
        target = source
        for _ in range(redirects.MAX_REDIRECTS + 1):
            response = await self._send(target, source, byte_range)
            is_start = byte_range is not None and byte_range.startswith("0-")
            if is_start and response.status in _RANGE_REFUSED and not is_empty(response):
                response.discard()
                response = await self._send(target, source, None)
            if response.status not in redirects.STATUSES:
                return read_state(target, response), response
            response.discard()
            target = redirects.redirect_target(target, response, self.allowlist)
        _log.warn("the origin {host} redirects without end", host=source.host)
        raise UpstreamUnavailable(
            f"The source is behind more than {redirects.MAX_REDIRECTS} redirects."
        )

    async def walk_again(
        self, source: HttpsSource, target: HttpsSource, byte_range: str | None
    ) -> Answer:
        """Request a source where redirects have led before, or follow them again.

        A redirect may lead to an address that is valid for seconds.
        """
        if target != source:
            with suppress(NotFound):
                response = await self._send(target, source, byte_range)
                if response.status not in redirects.STATUSES:
                    return read_state(target, response), response
                response.discard()
        return await self.walk(source, byte_range)

    async def _send(
        self, target: HttpsSource, source: HttpsSource, byte_range: str | None
    ) -> Response:
        # A redirect to another origin carries no headers, even if that one has its own (D79).
        is_own = target.authority == source.authority
        own_headers = self.headers.get(source.authority, {}) if is_own else {}
        headers = {**own_headers, "accept-encoding": "identity"}
        if byte_range:
            headers["range"] = f"bytes={byte_range}"
        host = target.host
        try:
            response = await self.client.request("GET", redirects.request_url(target), headers)
        except UntrustedCertificate as error:
            _log.warn("the origin {host} is not trusted: {error}", host=host, error=error)
            raise UpstreamUnavailable("The origin's certificate cannot be verified.") from error
        except PrivateAddress as error:
            text = "the origin {host} is refused by AP_SOURCE_DENY_PRIVATE: {error}"
            _log.warn(text, host=host, error=error)
            raise NotFound("the host has no public address") from error
        except TransportError as error:
            why = "the response is not HTTP" if own_headers and error.is_quote else error
            raise Temporary(
                f"is unreachable: {why}",
                "The origin could not be reached.",
                is_repeated=error.is_closed,
            ) from error
        if response.status in _UNAUTHORIZED and self.headers.get(target.authority):
            text = "the origin {host} responds with {status}: its headers in AP_SOURCE_HEADERS_FILE"
            if is_own:
                text += " may be wrong or expired"
            else:
                text += " are for sources whose own URL names it, and no redirect carries them"
            _log.warn(text, host=host, status=response.status)
        return response
