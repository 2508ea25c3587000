"""Each request of the service to a store or an origin, with each answer of `tests.support.faults`.

Whatever the answer is, the outcome is the right one or a documented refusal, and comes in time. The
server does not carry out the request that it answers so. Nothing wrong is stored, and nothing is
left behind: no connection, call, descriptor or error.
"""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

# The reactor opens descriptors when it is first imported, so import it before counting them.
from twisted.internet import reactor  # noqa: F401
from twisted.internet.defer import Deferred, execute
from twisted.internet.ssl import platformTrust
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.config import S3Config
from audioproxy.errors import (
    NoSuchSource,
    NotConfigured,
    NotFound,
    RenderFailed,
    UndecodableSource,
    UpstreamUnavailable,
)
from audioproxy.files.scratch_files import AnonymousSpace
from audioproxy.grammar.sources import S3Source, Source, parse_https
from audioproxy.http_client.client import HttpClient
from audioproxy.s3 import listing
from audioproxy.s3.objects import Denied, ObjectStore, StoreError
from audioproxy.sources.dispatcher import Opener
from audioproxy.sources.far_files import FarFiles
from audioproxy.sources.far_source import FarReading, FarSource
from audioproxy.sources.https import HttpsSources
from audioproxy.sources.https_origin import OriginClient
from audioproxy.sources.s3 import S3Sources
from audioproxy.variants import bucket_catalog
from audioproxy.variants.bucket_catalog import BucketCatalog
from audioproxy.variants.catalog import CatalogError, Entry, Pace, Verdict
from audioproxy.variants.interfaces import Unwritable, VariantChanged
from audioproxy.variants.s3 import S3VariantStore
from tests.support.consumers import FakeConsumer
from tests.support.far_versions import LONG, FakeReaders, PlaintextClient
from tests.support.faults import ANSWERS, Answer
from tests.support.processes import open_descriptors
from tests.support.s3_double import BUCKET, Reply, S3Double, StoredObject, refusal
from tests.support.variants import HEADERS, StoredVariant
from tests.support.wire import Network, Peer, Request

SETTINGS = S3Config("http://s3.test", "path", None, "AKIA", "secret", None, "us-east-1")
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
VARIANT = StoredVariant.of(data=LONG[:1000])
STORED = {**VARIANT.headers, "content-type": HEADERS.content_type}
STORED["cache-control"] = HEADERS.cache_control
#: A source that is read by its start, its end and its middle, and one that its start has.
SOURCE, SMALL = LONG[:450_000], LONG[:1000]
#: Seconds within which everything has ended.
PATIENCE = 150.0


class World:
    """What one conversation is about: a node's clients, and the server at their other end.

    :ivar count: the requests that the server has received.
    :ivar answer: the fault that it has sent.
    """

    def __init__(
        self,
        case: FaultCase,
        conversation: Conversation,
        number: int = -1,
        fault: Callable[[Reply], Answer] = ANSWERS["the right reply with a length"],
        is_lasting: bool = False,
    ) -> None:
        """Give the answer at the request of this number, or also at all that follow."""
        self.network = Network()
        self.client = HttpClient(self.network, platformTrust())
        self.double = S3Double(self.network, "secret", None, NOW)
        self.double.objects = {
            key: StoredObject(body, STORED, NOW) for key, body in conversation.objects.items()
        }
        self.network.scripts = [self._respond] * 200
        self.store = ObjectStore(SETTINGS, self.client)
        files = FarFiles(case.folder, self.network, execute, 2_000_000)
        readers: Any = FakeReaders()
        self.reading = FarReading(
            readers, self.network, files, execute, case.can_preload, 2_000_000, PATIENCE
        )
        self.count = 0
        self.answer: Answer | None = None
        self.is_lasting = is_lasting
        self._conversation, self._number, self._fault = conversation, number, fault

    def _respond(self, peer: Peer, request: Request) -> None:
        number, self.count = self.count, self.count + 1
        if not self._conversation.has_ranges:
            lines = tuple(each for each in request.lines if each[0].lower() != "range")
            request = Request(request.method, request.target, lines, request.body)
        is_fault = number == self._number or (self.is_lasting and number > self._number)
        before = copy.deepcopy((self.double.objects, self.double.uploads)) if is_fault else None
        respond = serve if request.headers["host"] == "origin.test" else self.double.respond
        good = respond(request)
        answer = ANSWERS["the right reply with a length"](good)
        if before is not None:
            answer = self._fault(good)
            if self.count == self._number + 1:
                self.answer = answer
            if not answer.is_right:
                self.double.objects, self.double.uploads = before
        peer.send(answer.sent)
        self.network.callLater(0.1, answer.end, peer)

    def run(self) -> Any:
        """Run the conversation to its end, and return its result or Failure."""
        results: list[Any] = []
        Deferred.fromCoroutine(self._conversation.run(self)).addBoth(results.append)
        self._pass_time(lambda: bool(results))
        self.reading.files.close()
        return results[0]

    def end(self) -> None:
        """Wait until idle connections are closed, and all others have been closed before."""
        self._pass_time(lambda: not self.network.getDelayedCalls())
        assert all(each.closed for each in self.network.peers), "a connection is left open"

    def _pass_time(self, is_over: Callable[[], bool]) -> None:
        start = self.network.seconds()
        self.network.run()
        while not is_over():
            times = [call.getTime() for call in self.network.getDelayedCalls()]
            assert times, "nothing will ever happen"
            self.network.advance(max(0.0, min(times) - self.network.seconds()))
            assert self.network.seconds() - start < PATIENCE, "no end in time"


def serve(request: Request) -> Reply:
    """Return the response of an origin, whose source may be behind a redirect."""
    if "moved" in request.target:
        return Reply(302, b"", {"Location": "/a.mp3"})
    content = SMALL if "small" in request.target else SOURCE
    tags = {"ETag": '"1"', "Content-Type": "audio/mpeg"}
    if "range" not in request.headers:
        return Reply(200, content, tags)
    first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
    size = len(content)
    start, stop = (int(first), int(last) + 1) if first else (max(0, size - int(last)), size)
    stop = min(stop, size)
    tags["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return Reply(206, content[start:stop], tags)


def is_absent(value: Any, answer: Answer) -> bool:
    """Return whether the answer says that there is nothing, or at least nothing of this service."""
    return not value and not answer.is_temporary


def is_done(value: Any, answer: Answer) -> bool:
    """Return whether the answer says that the server has done what it was asked for."""
    return answer.status in (200, 204) and answer.body is not None and not answer.is_page


def is_stated(value: Any, answer: Answer) -> bool:
    """Return whether the answer states this size, or no usable one."""
    length = b"Content-Length: %d\r" % (value or 0)
    return value in (None, 0, answer.total) or length in answer.sent


def is_body(value: Any, answer: Answer) -> bool:
    """Return whether the answer brings this as the whole of a source, or states its size."""
    if answer.total is not None and len(value) == answer.total:
        return bool(value == SOURCE[: answer.total])
    return answer.status in (200, 203) and value == answer.body


@dataclass(frozen=True)
class Conversation:
    """Requests of the service for one purpose.

    :ivar run: returns what the service makes of the responses, and what the store has then.
    :ivar refusals: the errors that its interface promises.
    :ivar accepts: whether another value than the right one is what the answer says.
    :ivar objects: of the store, by key.
    :ivar first: the first request that gets another answer.
    """

    run: Callable[[World], Coroutine[Any, Any, Any]]
    refusals: tuple[type[Exception], ...]
    accepts: Callable[[Any, Answer], bool] = lambda value, answer: False
    objects: Mapping[str, bytes] = field(default_factory=dict)
    has_ranges: bool = True
    first: int = 0


class FaultCase(SynchronousTestCase):
    """Conversations in which one request after the other gets each answer."""

    def setUp(self) -> None:
        self.folder: str = self.mktemp()
        os.makedirs(self.folder)
        self.patch(bucket_catalog, "_PREFIXES", [VARIANT.key[0]])
        self.patch(listing, "_PAGE_SIZE", 1)

    async def can_preload(self) -> bool:
        """Return that children can ask for blocks."""
        return True

    def check(self, conversation: Conversation) -> None:
        """Assert that no answer to any request of a conversation does harm."""
        before = open_descriptors()
        world = World(self, conversation)
        right = world.run()
        world.end()
        self.assertNotIsInstance(right, Failure)
        count, found = world.count, []
        import time; begin = time.process_time(); runs = 0
        for number in range(conversation.first, count):
            for name, fault in ANSWERS.items():
                for is_lasting in (False, True):
                    runs += 1
                    world = World(self, conversation, number, fault, is_lasting)
                    try:
                        problem = self.judge(conversation, right, world, world.run())
                        world.end()
                    except AssertionError as error:
                        problem = str(error)
                    errors = [str(each.value) for each in self.flushLoggedErrors()]
                    if problem or errors:
                        found.append((number, name, is_lasting, problem, *errors))
                    assert world.answer is not None
                    is_cut = world.answer.body is None
                    if world.count <= count or not (is_cut or world.answer.is_temporary):
                        # Nothing was asked for again, so a lasting fault is no other one.
                        break
        gc.collect()
        print(self.id(), count - conversation.first, runs, time.process_time() - begin)
        for f in found: print("   FAULT", str(f)[:300])
        self.assertEqual([], self.flushLoggedErrors())
        self.assertEqual(before, open_descriptors())
        self.assertEqual([], found)

    def judge(self, conversation: Conversation, right: Any, world: World, outcome: Any) -> str:
        """Return what is wrong with an outcome; empty for nothing."""
        answer = world.answer
        assert answer is not None
        if isinstance(outcome, Failure):
            error = outcome.value
            if not isinstance(error, conversation.refusals):
                return f"{error!r} is not documented"
            if isinstance(error, NotFound) and answer.is_temporary:
                return f"{error!r} though the server does not say so"
            if world.double.uploads and not world.is_lasting:
                return f"{error!r} leaves parts of an upload"
            return f"{error!r} for the right reply" if answer.is_right else ""
        if outcome == right or (not answer.is_right and conversation.accepts(outcome, answer)):
            return ""
        return f"taken for right: {outcome!r}"


def variants(world: World, part_size: int = 5000) -> S3VariantStore:
    """Return the variant store of a node."""
    space = AnonymousSpace()
    return S3VariantStore(world.store, BUCKET, space, world.network, execute, redirects=True, part_size=part_size)


def contents(world: World) -> dict[str, bytes]:
    """Return the content of each object in the store."""
    return {key: each.body for key, each in world.double.objects.items()}


async def prove(world: World) -> object:
    await variants(world).open()
    return [key[:7] for key in world.double.objects]


async def look_up(world: World) -> object:
    found = await variants(world).lookup(VARIANT.key)
    if found is None:
        return None
    consumer = FakeConsumer()
    await (await found.open_range(1, found.size)).send(consumer)
    return bytes(consumer.data)


async def commit(world: World, part_size: int = 5000) -> object:
    store = variants(world, part_size)
    scratch = await store.create(10)
    try:
        os.write(scratch.descriptor, VARIANT.data)
        await store.commit(VARIANT.key, scratch, len(VARIANT.data), HEADERS, VARIANT.record)
    finally:
        scratch.close()
    return contents(world)


async def commit_parts(world: World) -> object:
    return await commit(world, 600)


async def abort(world: World) -> object:
    denied = refusal(403, "AccessDenied")
    world.double.before = lambda _, it: denied if "partNumber=2" in it.target else it
    try:
        await commit(world, 600)
    except Denied:
        pass
    return contents(world)


class StoreTests(FaultCase):
    """The variant store in a bucket"""

    def test_proof(self) -> None:
        """A store is proved by true answers alone."""
        self.check(Conversation(prove, (Unwritable,), is_done))

    def test_hit(self) -> None:
        """A variant is sent as it is, or not at all."""
        refusals = UpstreamUnavailable, NotConfigured, VariantChanged
        self.check(Conversation(look_up, refusals, is_absent, {VARIANT.key: VARIANT.data}))

    def test_commit(self) -> None:
        """A variant counts as stored where the store says so."""
        self.check(Conversation(commit, (StoreError,), is_done))

    def test_commit_parts(self) -> None:
        """So does one in parts, and no part is left behind."""
        self.check(Conversation(commit_parts, (StoreError,), is_done))

    def test_abort(self) -> None:
        """An upload that has failed fails with its own error, whether it is aborted or not."""
        self.check(Conversation(abort, (), first=3))


ENTRY = Entry(VARIANT.key, 1000, 0.0, None, StoredObject(VARIANT.data, {}, NOW).etag)


def catalog(world: World) -> BucketCatalog:
    """Return the catalog of a command."""
    return BucketCatalog(world.store, BUCKET, 1, lambda text: None)


def fail(entry: Entry, error: Exception) -> None:
    raise error


async def list_all(world: World) -> object:
    return [each.key async for page in catalog(world).pages() for each in page.entries]


async def find(world: World) -> object:
    return await catalog(world).find(VARIANT.key) is not None


async def read_records(world: World) -> object:
    return [record async for record in _records(world)]


async def _records(world: World) -> Any:
    for _, record in await catalog(world).read_records([ENTRY], fail):
        yield record


async def verify(world: World) -> object:
    found = (await catalog(world).check(ENTRY, Pace(None))).verdict
    return None if found is Verdict.GONE else found


def is_damaged(value: Any, answer: Answer) -> bool:
    """Return whether the answer says that there is no such variant, or an empty or coded one."""
    is_other = answer.status == 416 or answer.body == b"" or b"gzip" in answer.sent
    return is_other if value is Verdict.BROKEN else is_absent(value, answer)


async def remove(world: World, *, unchanged: bool = False) -> object:
    removed: list[Entry] = []
    await catalog(world).remove([ENTRY], removed.append, fail, unchanged=unchanged)
    return [bool(removed), contents(world)] if removed else None


async def remove_unchanged(world: World) -> object:
    return await remove(world, unchanged=True)


class CatalogTests(FaultCase):
    """What commands do with a bucket"""

    objects: Mapping[str, bytes] = {VARIANT.key: VARIANT.data}

    def test_pages(self) -> None:
        """A listing is complete, or an error."""
        keys = {VARIANT.key[:-1] + digit: b"" for digit in "01"}
        self.check(Conversation(list_all, (CatalogError,), objects=keys))

    def test_find(self) -> None:
        self.check(Conversation(find, (CatalogError,), is_absent, self.objects))

    def test_records(self) -> None:
        self.check(Conversation(read_records, (CatalogError,), is_absent, self.objects))

    def test_verify(self) -> None:
        self.check(Conversation(verify, (CatalogError,), is_damaged, self.objects))

    def test_remove(self) -> None:
        for run in (remove, remove_unchanged):
            self.check(Conversation(run, (CatalogError,), lambda v, a: is_done(v, a) or is_absent(v, a), self.objects))


REFUSALS = NotFound, NotConfigured, UpstreamUnavailable, RenderFailed, UndecodableSource


async def read(world: World, opener: Opener, source: Source) -> bytes:
    """Return the content of a source."""
    found: Any = await opener(source)
    try:
        deadline = Deadline(world.network, PATIENCE)
        await found.input(deadline)
        await found.complete(deadline)
        return bytes(await found.read(0, found.size))
    finally:
        found.close()


async def stat(opener: Opener, source: Source) -> int | None:
    """Return the size of a source."""
    found = await opener(source, reads=False)
    found.close()
    return found.size


def conversations(opener: Callable[[World], Opener], source: Source) -> dict[str, Any]:
    async def new(world: World) -> object:
        return await read(world, opener(world), source)

    async def kept(world: World) -> object:
        it = opener(world)
        await stat(it, source)
        return await read(world, it, source)

    async def known(world: World) -> object:
        it = opener(world)
        await read(world, it, source)
        return await read(world, it, source)

    async def head(world: World) -> object:
        return await stat(opener(world), source)
    return {"new": new, "kept": kept, "known": known, "head": head}


class ObjectSourceTests(FaultCase):
    """Sources in a bucket"""

    def runs(self) -> Any:
        return conversations(lambda world: S3Sources(world.store, world.reading).open, S3Source(BUCKET, b"a.mp3"))
    objects = {"a.mp3": SOURCE}
    def test_new(self) -> None:
        self.check(Conversation(self.runs()["new"], REFUSALS, is_body, self.objects))
    def test_small(self) -> None:
        self.check(Conversation(self.runs()["new"], REFUSALS, is_body, {"a.mp3": SMALL}))
    def test_kept(self) -> None:
        self.check(Conversation(self.runs()["kept"], REFUSALS, is_body, self.objects, first=1))
    def test_known(self) -> None:
        self.check(Conversation(self.runs()["known"], REFUSALS, is_body, self.objects, first=3))
    def test_whole(self) -> None:
        self.check(Conversation(self.runs()["new"], REFUSALS, is_body, self.objects, has_ranges=False))
    def test_head(self) -> None:
        self.check(Conversation(self.runs()["head"], REFUSALS, is_stated, self.objects))


class OriginTests(FaultCase):
    """Sources at https addresses"""

    def runs(self, path: str = "a.mp3") -> Any:
        def opener(world: World) -> Opener:
            client: Any = PlaintextClient(world.client)
            origins = OriginClient(client, ("origin.test",), world.network)
            return HttpsSources(origins, world.reading).open
        return conversations(opener, parse_https(f"https://origin.test/{path}".encode()))
    def test_new(self) -> None:
        self.check(Conversation(self.runs()["new"], REFUSALS, is_body))
    def test_small(self) -> None:
        self.check(Conversation(self.runs("small")["new"], REFUSALS, is_body))
    def test_kept(self) -> None:
        self.check(Conversation(self.runs()["kept"], REFUSALS, is_body, first=1))
    def test_known(self) -> None:
        self.check(Conversation(self.runs()["known"], REFUSALS, is_body, first=3))
    def test_moved(self) -> None:
        self.check(Conversation(self.runs("moved")["kept"], REFUSALS, is_body, first=2))
    def test_whole(self) -> None:
        self.check(Conversation(self.runs()["new"], REFUSALS, is_body, has_ranges=False))
    def test_head(self) -> None:
        self.check(Conversation(self.runs()["head"], REFUSALS, is_stated))
