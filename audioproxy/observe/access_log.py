"""The access log line of one completed request (Request log)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from twisted.logger import LogLevel

from audioproxy.grammar.sources import log_name
from audioproxy.observe.log_context import Logger

_QUIET_ENDPOINTS = {"health", "ready", "metrics"}

_log = Logger()


class AccessLogEntry(NamedTuple):
    """The fields of the access log line of one completed request; options and source canonical.

    :ivar cache: the X-Audio-Proxy state.
    :ivar sent: body bytes; of a client that has left, at most those that the system has sent.
    :ivar milliseconds: from the request's arrival to its end.
    """

    request_id: str
    endpoint: str
    status: int
    error_code: str | None
    options: str | None
    source: bytes | None
    cache: str | None
    sent: int
    milliseconds: int

    @property
    def level(self) -> Any:
        # A response that was aborted counts as an error, although its status is that of a success.
        # The 503 of a node that is not ready has no error code.
        if self.error_code is not None and not 400 <= self.status < 500:
            return LogLevel.warn
        return LogLevel.debug if self.endpoint in _QUIET_ENDPOINTS else LogLevel.info

    def __str__(self) -> str:
        code = f" {self.error_code}" if self.error_code else ""
        options = f" opts={self.options}" if self.options is not None else ""
        source = f" src={_log_name(self.source)}" if self.source is not None else ""
        cache = f" cache={self.cache}" if self.cache else ""
        return (
            f"{self.endpoint} {self.status}{code}{options}{source}{cache}"
            f" {self.sent} bytes in {self.milliseconds}ms"
        )


#: Receives the entry of each completed request.
AccessLog = Callable[[AccessLogEntry], None]


def log_request(entry: AccessLogEntry) -> None:
    _log.emit(entry.level, "{record}", record=entry, request_id=entry.request_id)


# The number is enough for the sources that a busy node serves repeatedly. The longest names are
# some hundred bytes.
_log_name = lru_cache(4096)(log_name)
