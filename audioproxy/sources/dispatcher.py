"""Dispatch of each kind of source to its backend, after the allowlist is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audioproxy.errors import NotConfigured, NotFound
from audioproxy.grammar.sources import LocalSource, Source
from audioproxy.observe.log_context import Logger
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
        self._logged: set[str] = set()

    async def open(self, source: Source) -> OpenSource:
        """Check and open a source.

        :raises NotFound: where it is missing, unreadable or not allowed, or local without
            AP_LOCAL_ROOT.
        :raises NotConfigured: for an allowed remote source of a kind without a backend.
        """
        if not self._allowlist.allows(source):
            if self._allowlist.entries is None:
                self._log_once(
                    "an https source was requested, but AP_SOURCE_ALLOWLIST is not set, so every"
                    " https host is refused; set it to the hosts that may be sources"
                )
            raise NotFound("not on the allowlist")
        backend = self._backends.get(type(source))
        if backend is None:
            if isinstance(source, LocalSource):
                self._log_once(
                    "a local source was requested, but AP_LOCAL_ROOT is not set, so local sources"
                    " are disabled; set it to the directory that holds them"
                )
                raise NotFound("local sources are disabled: AP_LOCAL_ROOT is not set")
            _log.warn(
                "an s3 source was requested, but no credentials are set; set"
                " AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION"
            )
            raise NotConfigured
        opened: OpenSource = await backend.open(source)
        return opened

    def _log_once(self, text: str) -> None:
        # The client gets a plain 404, so only the log can name a setting that was forgotten. Where
        # the setting is left out on purpose, one line is enough.
        if text not in self._logged:
            self._logged.add(text)
            _log.warn("{text}", text=text)
