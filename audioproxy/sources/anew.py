"""The second attempt to read a source that has failed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from audioproxy.errors import Refusal
from audioproxy.observe.log_context import Logger
from audioproxy.sources.interfaces import OpenSource

T = TypeVar("T")

_log = Logger()


async def use_source(
    open_source: Callable[[], Coroutine[Any, Any, OpenSource]],
    use: Callable[[OpenSource, bool], Coroutine[Any, Any, T]],
    *,
    attempts: int = 2,
) -> T:
    """Open a source, and return what is made of it; a source that fails is opened anew once.

    It may change or vanish while it is read, or its origin may have been busy for a moment. As long
    as no client has got anything, that is no failure.

    :param use: given the source, which stays open where it succeeds, and whether this is the last
        attempt.
    """
    while True:
        attempts -= 1
        opened = await open_source()
        try:
            return await use(opened, not attempts)
        except BaseException as error:
            opened.close()
            if not attempts or opened.failure is None or not isinstance(error, Refusal):
                raise
            _log.info("a source is opened anew: {why}", why=opened.failure.message)
