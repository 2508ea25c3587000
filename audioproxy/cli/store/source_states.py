"""Whether the sources of variants are still those that were rendered."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum

from audioproxy.cli.store.variant_rows import whole_source
from audioproxy.concurrency.shared_result import SharedCalls
from audioproxy.errors import NoSuchSource, NotFound, Refusal
from audioproxy.grammar.sources import Source
from audioproxy.sources.interfaces import SourceStore
from audioproxy.variants.record import VariantRecord


class State(Enum):
    """The state of a variant's source; the value is the name in JSON."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    VANISHED = "vanished"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    NO_VALIDATOR = "no_validator"
    NO_ADDRESS = "no_address"


#: The states of sources whose variants are certainly not those of the source as it is now.
STALE = (State.CHANGED, State.VANISHED)

#: What the states mean whose variants are left, although their source may have changed.
LEFT = {
    State.UNREACHABLE: "whose source cannot be reached now",
    State.REFUSED: "whose source is not allowed, or to which access is denied",
    State.NO_VALIDATOR: "whose source has, or had, nothing that tells its versions apart",
    State.NO_ADDRESS: "whose source was recorded without its whole address",
}


class SourceStates:
    """The states of sources, each of which is looked up once.

    :param given: sources by their digest; a record may have less than their whole address.
    """

    def __init__(
        self, sources: SourceStore, local_root: str | None, given: Mapping[str, Source]
    ) -> None:
        self._sources = sources
        self._local_root = local_root
        self._given = given
        self._calls: SharedCalls[str, State | bytes] = SharedCalls()
        # The validator of each source, or its state if it has none.
        self._known: dict[str, State | bytes] = {}

    async def state(self, record: VariantRecord) -> State:
        source = self._given.get(record.source_sha256) or whole_source(record)
        if source is None:
            return State.NO_ADDRESS
        if not record.validator:
            return State.NO_VALIDATOR
        digest = record.source_sha256
        if digest not in self._known:
            looking = self._calls.join(digest, lambda: self._look_up(source))
            self._known[digest] = await looking
        found = self._known[digest]
        if isinstance(found, State):
            return found
        return State.UNCHANGED if found == record.validator else State.CHANGED

    async def _look_up(self, source: Source) -> State | bytes:
        try:
            opened = await self._sources.open(source, reads=False)
        except NoSuchSource:
            root = os.path.realpath(os.fsencode(self._local_root or ""))
            path = source.path_below(root)
            may_be_elsewhere = path is not None and _may_be_unmounted(root, path)
            return State.UNREACHABLE if may_be_elsewhere else State.VANISHED
        except NotFound:
            return State.REFUSED
        except Refusal:
            return State.UNREACHABLE
        validator = opened.validator
        opened.close()
        return validator or State.NO_VALIDATOR


def _may_be_unmounted(root: bytes, path: bytes) -> bool:
    """Return whether a missing file may be on a disk that is not mounted.

    Such a disk leaves an empty folder, which is the last one that exists on the way to the
    file, or a link that leads nowhere.
    """
    path = os.path.realpath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    try:
        with os.scandir(path) as entries:
            is_empty = next(entries, None) is None
    except OSError:
        return True
    return is_empty or not (path + b"/").startswith(root.rstrip(b"/") + b"/")
