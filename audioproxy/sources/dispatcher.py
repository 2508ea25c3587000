"""Dispatch of each source to the opener of its scheme, after the allowlist is checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from audioproxy.errors import NoSuchSource, NotConfigured, NotFound, Refusal
from audioproxy.grammar.sources import HttpsSource, LocalSource, S3Source, Source
from audioproxy.grammar.values import other_forms
from audioproxy.observe.log_context import Logger
from audioproxy.sources.interfaces import OpenSource


class Opener(Protocol):
    def __call__(self, source: Any, *, reads: bool = True) -> Coroutine[Any, Any, OpenSource]: ...


#: Seconds after which the opening of a source is logged as slow.
_SLOW_SECONDS = 2

_log = Logger()


@dataclass(frozen=True, slots=True)
class SourceDispatcher:
    """Opens a source with the opener of its scheme.

    :ivar allowlist: the entries of AP_SOURCE_ALLOWLIST, or None where it is unset. Then it
        restricts nothing, and the openers of schemes that need it refuse everything.
    :ivar timed: called with the scheme of each source that is opened; measures the opening.
    """

    allowlist: Sequence[str] | None
    openers: Mapping[str, Opener]
    timed: Callable[[str], AbstractContextManager[None]] = lambda scheme: nullcontext()
    now: Callable[[], float] = time.monotonic

    async def open(self, source: Source, *, reads: bool = True) -> OpenSource:
        if self.allowlist is not None and not source.is_allowed(self.allowlist):
            raise NotFound("not on the allowlist")
        start = self.now()
        try:
            with self.timed(source.scheme):
                return await self.openers[source.scheme](source, reads=reads)
        except NoSuchSource as error:
            if forms := " or ".join(other_forms(source.remote_name)):
                reason = f"{error}; it may be there in the Unicode form {forms}"
                raise NoSuchSource(reason) from error
            raise
        finally:
            if (seconds := self.now() - start) >= _SLOW_SECONDS:
                _log.warn(
                    "a source took {seconds} s to open: {place} is slow",
                    seconds=f"{seconds:.1f}",
                    place=source.place,
                )


# What a client gets where the setting of a scheme is missing, and what the log says.
_UNSET: dict[str, tuple[Callable[[], Refusal], str]] = {
    LocalSource.scheme: (
        lambda: NotFound("local sources are disabled: AP_LOCAL_ROOT is not set"),
        "a local source was requested, but AP_LOCAL_ROOT is not set, so local sources are"
        " disabled; set it to the directory that holds them",
    ),
    S3Source.scheme: (
        NotConfigured,
        "an s3 source was requested, but no credentials are set; set AWS_ACCESS_KEY_ID,"
        " AWS_SECRET_ACCESS_KEY and AWS_REGION",
    ),
    HttpsSource.scheme: (
        lambda: NotFound("not on the allowlist"),
        "an https source was requested, but AP_SOURCE_ALLOWLIST is not set, so every https"
        " host is refused; set it to the hosts that may be sources",
    ),
}


def unset_openers() -> dict[str, Opener]:
    """Return the openers of all schemes, as if no setting of any were set."""
    return {scheme: _unset(*row) for scheme, row in _UNSET.items()}


def _unset(refusal: Callable[[], Refusal], missing: str) -> Opener:
    """Return the opener of a scheme whose setting is missing.

    :param missing: the name of the setting, and what it does. A client gets a plain 404, so only
        the log can name a setting that was forgotten.
    """
    logged = False

    async def refuse(source: Source, *, reads: bool = True) -> NoReturn:
        nonlocal logged
        error = refusal()
        # Where the setting is left out on purpose, clients get a 404, and one line is enough.
        if not (logged and isinstance(error, NotFound)):
            _log.warn("{text}", text=missing)
        logged = True
        raise error

    return refuse
