"""Dispatch of each source to the opener of its scheme, after the allowlist is checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol
from urllib.parse import unquote_to_bytes

from audioproxy.errors import NoSuchSource, NotFound, Refusal
from audioproxy.grammar.sources import HttpsSource, S3Source, Source
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
            if forms := " or ".join(_other_remote_forms(source)):
                reason = f"{error}; it may be there in the Unicode form {forms}"
                raise NoSuchSource(reason) from error
            raise
        finally:
            if (seconds := self.now() - start) >= _SLOW_SECONDS:
                _log.warn(
                    "a source took {seconds} s to open: {place} is slow",
                    seconds=f"{seconds:.1f}",
                    place=_place_of(source),
                )


def _other_remote_forms(source: Source) -> Iterable[str]:
    """Return the other Unicode forms of a remote name; `LocalSources` looks for a local one."""
    if isinstance(source, S3Source):
        return other_forms(source.key)
    if isinstance(source, HttpsSource):
        return other_forms(unquote_to_bytes(source.url.partition("?")[0]))
    return ()


def _place_of(source: Source) -> str:
    """Return where a source is, for the log. The line of the request has the source itself."""
    if isinstance(source, HttpsSource):
        return f"the origin {source.host}"
    if isinstance(source, S3Source):
        return f"the bucket {source.bucket}"
    return "the disk of AP_LOCAL_ROOT"


def unset(refusal: Callable[[], Refusal], missing: str) -> Opener:
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
