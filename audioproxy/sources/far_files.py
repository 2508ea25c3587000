"""The far files of a node: shared by version, kept for a while, in bounded space."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from audioproxy.concurrency.threads import ThreadRunner
from audioproxy.errors import RenderFailed, SourceTooLarge, reason_of
from audioproxy.observe.log_context import Logger
from audioproxy.sources.blocks import BLOCK, BlockFile
from audioproxy.sources.far_file import LEAST_KEPT, FarFile
from audioproxy.sources.fetch import Version

#: Bytes of all blocks together, and at most half of what is free without them. Sources of which no
#: block may be given back can take more.
MOST_BYTES = 1 << 30
#: Seconds for which blocks are kept after their last use, and the most files that nobody reads.
KEPT_SECONDS = 300.0
_MOST_IDLE = 64
# Bytes that no source has.
_LARGEST = 1 << 40

_log = Logger()


@dataclass(slots=True, eq=False, repr=False)
class FarFiles:
    """Far files by the identities of their sources.

    :ivar most_unknown: bytes of a source whose size is not known.
    :ivar most_bytes: of all blocks together.
    :ivar least_kept: bytes of one file that are not given back.
    """

    folder: str
    clock: IReactorTime
    run_in_thread: ThreadRunner
    most_unknown: int
    most_bytes: int = MOST_BYTES
    least_kept: int = LEAST_KEPT
    # From the one whose last use is longest ago, and by identity, where that is certain.
    _users: OrderedDict[FarFile, int] = field(default_factory=OrderedDict, init=False)
    _known: dict[bytes, FarFile] = field(default_factory=dict, init=False)
    _expiries: dict[FarFile, IDelayedCall] = field(default_factory=dict, init=False)
    _is_closed: bool = field(default=False, init=False)

    def find(self, identity: bytes) -> FarFile | None:
        file = self._known.get(identity)
        return file if file is not None and file.failure is None else None

    def knows(self, place: bytes) -> bool:
        """Return whether blocks of some version of a source are kept."""
        return any(
            identity.startswith(place + b"\n") and file.failure is None
            for identity, file in self._known.items()
        )

    def create(self, version: Version, size: int | None, identity: bytes | None) -> FarFile:
        """Return a new file without blocks, which others find by its identity, if it has one."""
        if size is not None and size > _LARGEST:
            raise SourceTooLarge(f"No source has {size} bytes.")
        try:
            blocks = BlockFile(self.folder, self.most_unknown if size is None else size)
        except OSError as error:
            _log.warn("no file can be created in TMPDIR: {why}", why=reason_of(error))
            raise RenderFailed("The source could not be written to the disk.") from error
        file = FarFile(version, blocks, size, self.clock, self.run_in_thread, self.make_room)
        self._users[file] = 0
        if identity is not None:
            self._known[identity] = file
        return file

    def use(self, file: FarFile) -> None:
        if file not in self._users:
            raise RenderFailed("The source is closed.")
        self._users[file] += 1
        self._users.move_to_end(file)
        if (expiry := self._expiries.pop(file, None)) is not None:
            expiry.cancel()

    def release(self, file: FarFile) -> None:
        """Count a user less. A file without users is kept for a while, if that is of use."""
        if file not in self._users:
            return
        self._users[file] -= 1
        if self._users[file]:
            return
        is_known = file in self._known.values()
        if file.failure is not None or not is_known or file.is_partial or self._is_closed:
            self._remove(file)
            return
        file.rest()
        self._expiries[file] = self.clock.callLater(KEPT_SECONDS, self._remove, file)
        if len(self._expiries) > _MOST_IDLE:
            self._remove(next(iter(self._expiries)))

    async def make_room(self, file: FarFile, is_full: bool) -> None:
        """Give blocks back until all together are within the bound, and leave half of the disk.

        Those of unused files go first, then the oldest ones of the file that was used longest ago,
        and last those of the file that is written.

        :param is_full: the disk has no room at all, whatever the bound is.
        """
        used = self._used
        # The other half is for outputs, which may be on the same disk.
        most = min(self.most_bytes, (used if is_full else used + file.free) // 2)
        for each in list(self._expiries):
            if self._used <= most:
                return
            self._remove(each)
        # Its blocks were used last.
        others = [each for each in self._users if each is not file]
        for each in (*others, file):
            excess = -(-(self._used - most) // BLOCK)
            spare = (each.blocks.used - self.least_kept) // BLOCK
            if excess <= 0:
                return
            if each in self._users and _gives_back(each) and spare > 0:
                await each.give_back(min(excess, spare))

    @property
    def _used(self) -> int:
        """Bytes of all blocks that can be given back, in any way."""
        files = self._users
        return sum(
            each.blocks.used for each in files if each in self._expiries or _gives_back(each)
        )

    def open(self) -> None:
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        for file in list(self._users):
            self._remove(file)

    def _remove(self, file: FarFile) -> None:
        del self._users[file]
        for identity, known in list(self._known.items()):
            if known is file:
                del self._known[identity]
        if (expiry := self._expiries.pop(file, None)) is not None and expiry.active():
            expiry.cancel()
        file.close()


def _gives_back(file: FarFile) -> bool:
    return file.can_punch and not file.is_kept
