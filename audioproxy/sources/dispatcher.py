"""Every kind of source behind one door, which asks the allowlist first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audioproxy.errors import NotConfigured, NotFound
from audioproxy.grammar.sources import LocalSource, Source
from audioproxy.log_context import Logger
from audioproxy.sources.allowlist import Allowlist
from audioproxy.sources.interfaces import OpenSource

_log = Logger()


class SourceDispatcher:
    """Opens a source with the backend of its kind.

    :param backends: by the class of the source, an object with ``open(source)``.
    """

    def __init__(self, allowlist: Allowlist, backends: Mapping[type[Any], Any]) -> None:
        self._allowlist = allowlist
        self._backends = backends
        self._told: set[str] = set()

    async def open(self, source: Source) -> OpenSource:
        """Check a source and hold it.

        :raises NotFound: where it is missing, unreadable, not allowed, or local without a root.
        :raises NotConfigured: for an allowed remote source of a kind without a backend.
        """
        if not self._allowlist.admits(source):
            if self._allowlist.entries is None:
                self._tell(
                    "an https source was asked for, and AP_SOURCE_ALLOWLIST is not set, so no host"
                    " may be one; set it to the hosts that may"
                )
            raise NotFound("not on the allowlist")
        backend = self._backends.get(type(source))
        if backend is None:
            if isinstance(source, LocalSource):
                self._tell(
                    "a local source was asked for, and AP_LOCAL_ROOT is not set, so there are none;"
                    " set it to the directory that they lie in"
                )
                raise NotFound("local sources are disabled: AP_LOCAL_ROOT is not set")
            _log.warn(
                "a source in a bucket was asked for, and there are no credentials for it; set"
                " AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION"
            )
            raise NotConfigured
        opened: OpenSource = await backend.open(source)
        return opened

    def _tell(self, words: str) -> None:
        # To the client it is a 404 like any other, and whoever has forgotten a setting would look
        # for it for long. Whoever has not, need not hear it again.
        if words not in self._told:
            self._told.add(words)
            _log.warn("{words}", words=words)
