"""The proxy in memory, for the tests of applications: no socket, no codec and no bucket.

Signatures, options, cache keys, headers, ranges and errors are those of the service. What ffmpeg
would write is made up. In a test case of Trial::

    proxy = MemoryProxy({"local://tone.flac": b"any bytes"})
    getting = proxy.treq.get(proxy.signer.url("local://tone.flac", Variant(f="mp3")))
    proxy.flush()
    response = self.successResultOf(getting)
    self.assertEqual(["MISS"], response.headers.getRawHeaders("x-audio-proxy"))
    self.assertEqual(proxy.ffmpeg.output, self.successResultOf(response.content()))
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from treq.testing import StubTreq
from twisted.internet.defer import Deferred, execute
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.web.resource import IResource

from audioproxy.config import Config
from audioproxy.engine import Engine, Parts
from audioproxy.errors import NoSuchSource
from audioproxy.files.disk_space import DiskMonitor
from audioproxy.files.scratch_files import AnonymousFile, AnonymousSpace, ScratchFile
from audioproxy.files.streams import FileProducer
from audioproxy.files.whole_transfers import read_whole, write_next
from audioproxy.grammar.sources import Source
from audioproxy.media.conversion import SOXR
from audioproxy.observe.metrics import Metrics
from audioproxy.process.programs import Programs
from audioproxy.process.spawn import Launcher
from audioproxy.process.warm_starter import WarmStarter
from audioproxy.service import AudioProxy
from audioproxy.sources.interfaces import SourceStore
from audioproxy.sources.local import OpenLocalSource
from audioproxy.urls import Signer
from audioproxy.variants.interfaces import VariantStore
from audioproxy.variants.record import VariantRecord
from audioproxy.variants.response_headers import VariantHeaders

__all__ = ["FakeFfmpeg", "MemoryProxy", "MemoryStore", "MemoryVariant"]

T = TypeVar("T")

# The key and the salt of a `MemoryProxy` without a configuration of its own.
_KEY, _SALT = b"a key of tests, which is no secret", b"salt"

# What `MemoryProxy.flush` advances its clock by, and how often: past the second for which a stored
# render can still be joined.
_STEP, _STEPS = 0.05, 30

# More than the headers of any format, without which an output has no audio.
_OUTPUT = b"audio " * 4096


class MemoryProxy(AudioProxy):
    """The service of `audioproxy.service.make_resource`, whose parts are in memory.

    :ivar sources: the bytes of each source by its URL, such as ``local://tone.flac``; a test may
        change them.
    :ivar variants: the bytes of each stored variant by its cache key.
    :ivar ffmpeg: what stands in for ffmpeg and ffprobe.
    :ivar signer: signs URLs that `treq` can get.
    :ivar treq: a client of the resource, with treq's interface.
    """

    def __init__(
        self,
        sources: Mapping[str, bytes] | None = None,
        config: Config | None = None,
        base: str = "http://proxy.test",
    ) -> None:
        """Construct everything; ``startService`` need not be called.

        :param config: its settings of sources, stores and listeners have no effect.
        :param base: of signed URLs, such as the mount point in an application.
        """
        config = config or Config(key=_KEY, salt=_SALT)
        clock, threads = Clock(), FakeThreads()
        opened, store = _Sources(dict(sources or {}), threads.in_thread), MemoryStore()
        self.sources, self.variants = opened.contents, store.variants
        self.ffmpeg = FakeFfmpeg(clock)
        parts = memory_parts(config, clock, self.ffmpeg, threads, opened, store)
        super().__init__(config, clock, engine=Engine(parts))
        self.signer = Signer(config.key or _KEY, config.salt or _SALT, base)
        self._clock = clock
        self._threads = threads
        self._clients: list[StubTreq] = []
        self.treq = self.client(self.resource)

    def client(self, root: IResource) -> StubTreq:
        """Return a client of the application that the resource is mounted in."""
        self._clients.append(StubTreq(root))
        return self._clients[-1]

    def flush(self) -> None:
        """Finish the renders, responses and write-backs that are under way."""
        for _ in range(_STEPS):
            self._clock.advance(_STEP)
            self._threads.run()
            for client in self._clients:
                client.flush()


def memory_parts(
    config: Config,
    clock: IReactorTime,
    spawner: Any,
    threads: FakeThreads,
    sources: SourceStore,
    store: VariantStore | None,
    space: AnonymousSpace | None = None,
) -> Parts:
    """Return the parts of an engine around doubles.

    :param spawner: has the method ``spawnProcess`` of a reactor.
    :param space: for renders that the store does not take.
    """
    launcher = Launcher(spawner, clock, {})
    return Parts(
        limits=config.limits,
        clock=clock,
        threads=threads.in_thread,
        space=space or AnonymousSpace(),
        disks=DiskMonitor({}, clock, threads.in_thread),
        metrics=Metrics(),
        starter=WarmStarter(launcher.starter, {}, is_wanted=False),
        programs=_FakePrograms(launcher, "ffmpeg", "ffprobe"),
        sources=sources,
        store=store,
        cache_tag=config.cache_tag,
    )


class FakeFfmpeg:
    """What stands in for ffmpeg and ffprobe; each ends a moment after it has begun.

    :ivar commands: the command lines, in order.
    :ivar probe: what ffprobe prints of every source.
    :ivar output: what ffmpeg writes for every variant.
    :ivar error: the message with which both fail; empty as long as they succeed.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self.commands: list[list[str]] = []
        self.probe: dict[str, Any] = {
            "format": {"format_name": "ac3", "duration": "10"},
            "streams": [
                {
                    "codec_type": "audio",
                    "codec_name": "ac3",
                    "sample_rate": "44100",
                    "channels": 2,
                }
            ],
        }
        self.output = _OUTPUT
        self.error = b""
        self._clock = clock

    def spawnProcess(
        self,
        processProtocol: ProcessProtocol,
        executable: str,
        args: Sequence[str],
        env: Mapping[str, str],
        *,
        childFDs: Mapping[int, int | str],
    ) -> Any:
        """Start a child, as a reactor does."""
        self.commands.append(list(args))
        stdout = childFDs.get(1)
        child = _Child(processProtocol, os.dup(stdout) if isinstance(stdout, int) else None)
        processProtocol.makeConnection(cast(Any, child))
        self._clock.callLater(0, self._end, child, executable)
        return child

    def _end(self, child: _Child, program: str) -> None:
        if self.error:
            child.end(1, stderr=self.error)
        elif program == "ffprobe":
            child.end(stdout=json.dumps(self.probe).encode())
        elif child.output is None:
            # A pass that measures the source: one byte is one sample.
            child.end(stdout=b"total_size=441000\n")
        else:
            child.end(stdout=self.output)


class _Child:
    """A child process without a process."""

    def __init__(self, protocol: ProcessProtocol, output: int | None) -> None:
        self.output = output
        self._protocol = protocol
        self._has_ended = False

    def end(self, code: int = 0, stdout: bytes = b"", stderr: bytes = b"") -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if self.output is None:
            self._protocol.childDataReceived(1, stdout)
        else:
            write_next(self.output, stdout)
            os.close(self.output)
        self._protocol.childDataReceived(2, stderr)
        reason = Failure(ProcessTerminated(code) if code else ProcessDone(0))
        self._protocol.processExited(reason)
        self._protocol.processEnded(reason)

    def signalProcess(self, signalID: str) -> None:
        if self._has_ended:
            raise ProcessExitedAlready
        self.end(255)


class _FakePrograms(Programs):
    """Programs that nobody has to examine."""

    async def probe_unusable(self) -> list[str]:
        return []

    async def probe_missing_features(self) -> list[str]:
        return []

    async def probe_resampler(self) -> str:
        return SOXR


class FakeThreads:
    """Threads whose calls run only when a test lets them: one may wait for the output of a child.

    :ivar waiting: the number of queued calls.
    """

    def __init__(self) -> None:
        self._work: list[tuple[Deferred[Any], Callable[[], Any]]] = []

    @property
    def waiting(self) -> int:
        """The number of queued calls."""
        return len(self._work)

    def in_thread(self, work: Callable[[], T]) -> Deferred[T]:
        """Queue a call and return a Deferred of its result; cancellation does not stop the call."""
        done: Deferred[T] = Deferred()
        self._work.append((done, work))
        return done

    def run(self) -> None:
        """Run all queued calls, including those that they queue."""
        while self._work:
            self.run_next()

    def run_next(self) -> None:
        """Run the call that was queued first."""
        done, work = self._work.pop(0)
        execute(work).chainDeferred(done)


class _Source(OpenLocalSource):
    """A source in memory, whose version is its content."""

    def __init__(self, content: bytes, run_in_thread: Any) -> None:
        file = AnonymousFile()
        write_next(file.descriptor, content)
        descriptor = os.dup(file.descriptor)
        file.close()
        super().__init__(descriptor, os.fstat(descriptor), run_in_thread)
        self.validator = self.identity = hashlib.sha256(content).digest()

    def has_certain_identity(self) -> bool:
        return True

    async def unchanged(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class _Sources:
    contents: dict[str, bytes]
    run_in_thread: Any

    async def open(self, source: Source, *, reads: bool = True) -> _Source:
        content = self.contents.get(source.canonical.decode("utf-8", "surrogateescape"))
        if content is None:
            raise NoSuchSource("no such source")
        return _Source(content, self.run_in_thread)


@dataclass(frozen=True, slots=True)
class MemoryVariant:
    """A stored variant in memory."""

    data: bytes
    stored: int | None

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self.data)

    def read(self, offset: int, limit: int) -> bytes:
        """Return up to ``limit`` bytes from ``offset``."""
        return self.data[offset : offset + limit]

    async def open_range(self, start: int, stop: int) -> FileProducer:
        """Return the bytes from ``start`` up to ``stop``."""
        return FileProducer(self, start, stop)

    def close(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class MemoryStore:
    """A store of variants in memory.

    :ivar variants: their bytes, by cache key.
    """

    variants: dict[str, bytes] = field(default_factory=dict)
    _stored: dict[str, int] = field(default_factory=dict)

    async def create(self, seconds: float) -> ScratchFile:
        """Return a new empty file."""
        return AnonymousFile()

    async def lookup(self, key: str) -> MemoryVariant | None:
        """Return the variant stored under ``key``."""
        data = self.variants.get(key)
        return None if data is None else MemoryVariant(data, self._stored.get(key))

    async def commit(
        self,
        key: str,
        scratch: ScratchFile,
        size: int,
        headers: VariantHeaders,
        record: VariantRecord,
    ) -> None:
        """Store the ``size`` bytes that a render wrote into ``scratch``."""
        self.variants[key] = read_whole(scratch.descriptor, size, 0)
        self._stored[key] = record.stored

    async def open(self) -> None:
        """Do nothing."""
