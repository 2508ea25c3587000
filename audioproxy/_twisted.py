"""Private and undocumented parts of Twisted that the package uses, each behind one function.

``tests/test_twisted.py`` and ``tests/test_twisted_server.py`` fail when a release makes one of them
needless or changes it. Nothing here imports ``twisted.web.client``: a service of local files starts
without it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocolFactory
from twisted.internet.protocol import Factory, Protocol
from twisted.web.http import HTTPChannel

if TYPE_CHECKING:
    from twisted.internet.interfaces import IStreamClientEndpoint
    from twisted.web.client import URI, Agent
    from twisted.web.http_headers import Headers
    from twisted.web.iweb import IBodyProducer, IResponse


def request_with_target(
    agent: Agent,
    endpoint: IStreamClientEndpoint,
    method: bytes,
    uri: URI,
    headers: Headers,
    body: IBodyProducer | None,
    target: bytes,
) -> Deferred[IResponse]:
    """Send a request with exactly this request target.

    Twisted 26.10: ``Agent.request`` serializes the URL anew and so loses a ``;`` at the end of a
    path; with Python 3.13 it turns two slashes at the beginning of one into four. A signature
    covers the target as it was. Needless when ``Agent`` takes a target, or keeps the URL as given.
    """
    key = (uri.scheme, uri.host, uri.port)
    sent: Deferred[IResponse] = agent._requestWithEndpoint(
        key, endpoint, method, uri, headers, body, target
    )
    return sent


def response_connection(response: IResponse) -> object | None:
    """Return the transport of the connection that a response came on; None where it has ended.

    Twisted 26.10: ``IResponse`` does not name its connection, which alone tells whether TLS ended
    with close_notify. Needless when ``IResponse`` gives access to its transport.
    """
    proxy: Any = getattr(response, "_transport", None)
    return getattr(proxy, "_producer", None)


def abort_response(receiver: Protocol) -> None:
    """Close the connection of a response at once, from the protocol that receives its body.

    Twisted 26.10: the protocol's transport is a proxy without ``abortConnection``, and over TLS
    ``loseConnection`` waits for a server that may never answer. Needless when ``deliverBody``
    connects the protocol to a transport with ``abortConnection``.
    """
    proxy: Any = receiver.transport
    connection = proxy._producer if proxy is not None else None
    if connection is not None:
        connection.abortConnection()


def silence_factory(factory: IProtocolFactory) -> None:
    """Keep a factory from logging each start and stop.

    Twisted 26.10: factories log both at info level, and the connection pool of ``Agent`` makes one
    for each connection. ``Factory.noisy``, which stops that, is not documented. Needless when
    factories are silent by default.
    """
    if isinstance(factory, Factory):
        factory.noisy = False


def has_sent_all(transport: Any) -> bool:
    """Return whether the system has all that was ever written to a transport.

    Twisted 26.10: transports do not tell. What is written waits in ``dataBuffer``, of which
    ``offset`` bytes are sent, and behind that in ``_tempDataBuffer``. Transports without these
    buffers, such as those of tests, keep nothing. Needless when ``ITransport`` tells.
    """
    waiting = len(getattr(transport, "dataBuffer", b"")) - getattr(transport, "offset", 0)
    return not waiting and not getattr(transport, "_tempDataBuffer", ())


def is_plain_tcp(transport: Any) -> bool:
    """Return whether a transport is a TCP socket without TLS.

    Twisted 26.10: ``startTLS`` changes the class of a transport in place, and sets ``TLS``, which
    is not part of ``ITCPTransport``. Needless when an interface tells.
    """
    # It imports OpenSSL, without which a client of plain HTTP starts sooner.
    from twisted.internet.tcp import Connection

    return isinstance(transport, Connection) and not transport.TLS


def send_now(transport: Any, data: bytes) -> bytes:
    """Send what the system takes at once over plain TCP, and return the rest.

    To be called only when `has_sent_all`. Twisted 26.10: ``write`` sends in the next turn of the
    reactor, after two more system calls; ``writeSomeData``, which sends now, is not part of
    ``ITransport``. It returns the number of bytes sent, or an exception. Needless when ``write``
    sends at once.
    """
    sent = transport.writeSomeData(data)
    return data[sent:] if isinstance(sent, int) else data


def pause_until_writable(transport: Any) -> None:
    """Have the producer of a transport resumed when the system takes bytes again.

    Twisted 26.10: a transport resumes its producer once its own buffer is empty, if it has paused
    it. A caller that sends past that buffer, with ``sendfile``, has no public way to ask for the
    same. Needless when transports send files.
    """
    transport.producerPaused = True
    transport.startWriting()


def set_send_buffer(transport: Any, size: int) -> None:
    """Set how many bytes wait in a transport before its producer is paused.

    Twisted 26.10: the class attribute ``bufferSize`` of ``FileDescriptor``, 64 KiB, decides; it is
    how much is read at a time, too. Needless when transports have such a setting.
    """
    transport.bufferSize = size


def forget_exit_signal(reactor: Any) -> None:
    """Have twistd exit with 0 after a signal.

    Twisted 26.10: when the reactor has stopped for a signal, twistd sends itself that signal once
    more, and so ends with another status than 0, however well everything has ended. Needless when
    a service can tell twistd its exit status.
    """
    reactor._exitSignal = None


def first_environment(fallback: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that the process was started with.

    Twisted 26.10: once ``twisted.internet.endpoints`` is imported, by whichever module,
    ``os.environ`` lacks the variables of systemd's socket activation, which it keeps for endpoints
    of its own. Needless when it leaves them.

    :param fallback: what is returned where the system does not tell.
    """
    try:
        pairs = os.fsdecode(Path("/proc/self/environ").read_bytes()).split("\0")
    except OSError:
        return dict(fallback)
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


class HookedChannel(HTTPChannel):
    """An `HTTPChannel` with names for what its subclass has to see or change.

    Twisted 26.10: none of this is public.
    """

    def set_read_ahead(self, size: int) -> None:
        """Set for how many bytes of further requests reading stops while a request is answered.

        While it is stopped, nobody notices that the client is gone. Needless when there is such a
        setting.
        """
        self._optimisticEagerReadSize = size

    @property
    def unparsed(self) -> bytes:
        """The bytes that were received and are no whole line yet.

        Needless when ``LineReceiver`` shows its buffer.
        """
        return self._buffer

    @property
    def command(self) -> bytes:
        """The method of the request whose body is received.

        The request has no ``method`` before its body is complete. Needless when it has.
        """
        return self._command

    def _respondToBadRequestAndDisconnect(self) -> None:
        self.bad_request_received()

    def bad_request_received(self) -> None:
        """Answer bytes that are no request.

        Twisted's own response has no headers, and no log line. Needless when there is a public
        hook.
        """
        raise NotImplementedError
