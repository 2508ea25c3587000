"""The id of the request that started the current work, on every log event of that work (D54)."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from twisted.logger import Logger as TwistedLogger

from audioproxy.errors import reason_of

_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

#: Sets the request id for the rest of the current coroutine and for everything that it starts.
#: Twisted runs each coroutine in a copy of the context that started it.
set_request_id = _request_id.set


class Logger(TwistedLogger):
    """A logger that adds the current request id to its events, as the field ``request_id``."""

    def emit(self, level: Any, format: str | None = None, **kwargs: object) -> None:
        """Emit an event. An error of the system is in its text without its number and class."""
        for name, value in kwargs.items():
            if isinstance(value, OSError):
                kwargs[name] = reason_of(value)
        if (request_id := _request_id.get()) is not None:
            kwargs.setdefault("request_id", request_id)
        super().emit(level, format, **kwargs)
