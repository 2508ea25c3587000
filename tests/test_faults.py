"""Each request of the service to a store or an origin, with each answer of `tests.support.faults`.

A conversation is what the service asks for one purpose. It is run once as it should be, and then
for each of its requests and each answer: the server does not carry that request out, and answers
so. An answer that makes the service ask again is also given to all requests that follow.
"""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, TypeAlias

# The reactor opens descriptors when it is first imported, so import it before counting them.
from twisted.internet import reactor  # noqa: F401
from twisted.internet.defer import Deferred, execute
from twisted.internet.ssl import platformTrust
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.config import S3Config
from audioproxy.errors import (
    NotConfigured,
    NotFound,
    RenderFailed,
    UndecodableSource,
    UpstreamUnavailable,
)
from audioproxy.files.scratch_files import AnonymousSpace
from audioproxy.grammar.sources import S3Source, parse_https
from audioproxy.http_client.client import HttpClient
from audioproxy.s3 import listing
from audioproxy.s3.listing import list_uploads
from audioproxy.s3.objects import Denied, ObjectStore, StoreError
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
from tests.support.faults import ANSWERS, RIGHT, Answer
from tests.support.processes import open_descriptors
from tests.support.s3_double import BUCKET, Reply, S3Double, StoredObject, refusal
from tests.support.variants import HEADERS, StoredVariant
from tests.support.wire import Network, Peer, Request

SETTINGS = S3Config("http://s3.test", "path", None, "AKIA", "secret", None, "us-east-1")
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
VARIANT = StoredVariant.of(data=LONG[:1000])
ENTRY = Entry(VARIANT.key, 1000, 0.0, None, StoredObject(VARIANT.data, {}, NOW).etag)
BUCKET_OF_ONE = {VARIANT.key: VARIANT.data}
#: A source of which the start, the end and the middle are requested, and one of one request.
SOURCE, SMALL = LONG[:450_000], LONG[:1000]
#: Seconds within which a conversation ends, and all that it has begun.
PATIENCE = 150.0

Run: TypeAlias = Callable[["World"], Coroutine[Any, Any, Any]]
#: Returns whether a value is what an answer says, though it is not the right one.
Accepts: TypeAlias = Callable[[Any, Answer], bool]
#: What decides that nothing is accepted but the right value.
NOTHING: Accepts = lambda value, answer: False  # noqa: E731


@dataclass(frozen=True)
class Conversation:
    """Requests of the service for one purpose.

    :ivar run: returns what the service makes of the responses, and what the store has then.
    :ivar refusals: the errors that its interface promises.
    :ivar objects: what the store has before, by key.
    :ivar has_ranges: the server serves ranges.
    :ivar asks_again: the service asks a server again that is busy.
    :ivar first: the number of the first request that gets other answers; negative from the end.
    :ivar stop: the number behind the last one.
    """

    run: Run
    refusals: tuple[type[Exception], ...]
    accepts: Accepts = NOTHING
    objects: Mapping[str, bytes] = field(default_factory=dict)
    has_ranges: bool = True
    asks_again: bool = True
    first: int = 0
    stop: int | None = None


class World:
    """The clients of a node, and a server that gives one answer in one conversation.

    :ivar count: the requests that the server has received.
    :ivar answer: what it has answered to the request of the number; None if it received no such.
    :ivar method: that of this request.
    """

    def __init__(
        self,
        conversation: Conversation,
        folder: str,
        number: int = -1,
        fault: Callable[[Reply], Answer] = RIGHT,
        is_lasting: bool = False,
    ) -> None:
        self.network = Network()
        self.network.scripts = [self._respond] * 200
        self.client = HttpClient(self.network, platformTrust())
        self.double = S3Double(self.network, "secret", None, NOW)
        self.network.scripts = [self._respond] * 200
        headers = {**VARIANT.headers, **HEADERS.lines()}
        self.double.objects = {
            key: StoredObject(body, headers, NOW) for key, body in conversation.objects.items()
        }
        self.store = ObjectStore(SETTINGS, self.client)
        files = FarFiles(folder, self.network, execute, 2_000_000)
        readers: Any = FakeReaders()
        self.reading = FarReading(
            readers, self.network, files, execute, _can_preload, 2_000_000, PATIENCE
        )
        self.count = 0
        self.answer: Answer | None = None
        self.method = ""
        self.is_lasting = is_lasting
        self._conversation, self._number, self._fault = conversation, number, fault

    @property
    def contents(self) -> dict[str, bytes]:
        """The content of each object in the store."""
        return {key: each.body for key, each in self.double.objects.items()}

    def _respond(self, peer: Peer, request: Request) -> None:
        number, self.count = self.count, self.count + 1
        if not self._conversation.has_ranges:
            lines = tuple(each for each in request.lines if each[0].lower() != "range")
            request = Request(request.method, request.target, lines, request.body)
        is_fault = number == self._number or (self.is_lasting and number > self._number)
        before = copy.deepcopy((self.double.objects, self.double.uploads)) if is_fault else None
        is_origin = request.headers["host"] == "origin.test"
        good = serve(request) if is_origin else self.double.respond(request)
        answer = (self._fault if is_fault else RIGHT)(good)
        if number == self._number:
            self.answer, self.method = answer, request.method
        if before is not None and not answer.is_right:
            self.double.objects, self.double.uploads = before
        peer.send(answer.sent)
        self.network.callLater(0.1, answer.end, peer)

    def run(self) -> Any:
        """Run the conversation, and return its value or its Failure."""
        results: list[Any] = []
        Deferred.fromCoroutine(self._conversation.run(self)).addBoth(results.append)
        self._pass_time(lambda: bool(results))
        self.reading.files.close()
        return results[0]

    def end(self) -> None:
        """Wait until the pool has closed its connections, and assert that no other is open."""
        self._pass_time(lambda: not self.network.getDelayedCalls())
        assert all(each.closed for each in self.network.peers), "a connection is left open"
        assert {"origin.test", "s3.test"}.issuperset(self.network.names), "it leaves the allowlist"

    def _pass_time(self, is_over: Callable[[], bool]) -> None:
        start = self.network.seconds()
        self.network.run()
        while not is_over():
            times = [call.getTime() for call in self.network.getDelayedCalls()]
            assert times, "it waits for ever"
            self.network.advance(max(0.0, min(times) - self.network.seconds()))
            assert self.network.seconds() - start < PATIENCE, "it takes too long"


async def _can_preload() -> bool:
    return True


def serve(request: Request) -> Reply:
    """Return the reply of an origin."""
    if "moved" in request.target:
        return Reply(302, b"", {"Location": "/there"})
    content = SMALL if "small" in request.target else SOURCE
    tag, size = {"ETag": '"1"'}, len(content)
    if "range" not in request.headers:
        return Reply(200, content, tag)
    first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, size - int(last))
    stop = min(int(last) + 1, size) if first else size
    stated = {"Content-Range": f"bytes {start}-{stop - 1}/{size}"}
    return Reply(206, content[start:stop], tag | stated)


def is_absent(value: Any, answer: Answer) -> bool:
    """Return whether the answer says that there is nothing, or nothing of this service."""
    return not value and not answer.is_temporary


def is_total(value: Any, answer: Answer) -> bool:
    """Return whether the answer has a range of something of this size, or nothing."""
    return value == answer.total or is_absent(value, answer)


def is_done(value: Any, answer: Answer) -> bool:
    """Return whether the answer says that the server has done what it was asked for."""
    return answer.status in (200, 204) and answer.body is not None and not answer.is_page


def is_removed(value: Any, answer: Answer) -> bool:
    """Return whether the answer says that an object is not there, or is removed."""
    return is_done(value, answer) if value else is_absent(value, answer)


def is_damaged(value: Any, answer: Answer) -> bool:
    """Return whether the answer says that a variant is not there, is empty, or has a coding."""
    is_other = answer.status == 416 or answer.body == b"" or b"gzip" in answer.sent
    return is_other if value is Verdict.BROKEN else is_absent(value, answer)


def is_size(value: Any, answer: Answer) -> bool:
    """Return whether the answer states this size, or none."""
    is_stated = not value or b"Content-Length: %d\r" % value in answer.sent
    return is_stated and not answer.is_refusal or value == answer.total


def is_whole(value: Any, answer: Answer) -> bool:
    """Return whether the answer has this as the whole of a source, perhaps of another version."""
    is_all = answer.total == len(value) if answer.status == 206 else answer.status in (200, 203)
    return is_all and bool(value == answer.body)


class FaultCase(SynchronousTestCase):
    """Conversations with servers that give one other answer."""

    def setUp(self) -> None:
        self.folder: str = self.mktemp()
        os.makedirs(self.folder)
        self.patch(bucket_catalog, "_PREFIXES", [VARIANT.key[0]])
        self.patch(listing, "_PAGE_SIZE", 1)

    def check(
        self,
        run: Run,
        refusals: tuple[type[Exception], ...],
        accepts: Accepts = NOTHING,
        objects: Mapping[str, bytes] | None = None,
        **settings: Any,
    ) -> None:
        """Assert that no answer to any request of a conversation does harm."""
        conversation = Conversation(run, refusals, accepts, objects or {}, **settings)
        before = open_descriptors()
        world = World(conversation, self.folder)
        right = world.run()
        world.end()
        self.assertNotIsInstance(right, Failure)
        count, found = world.count, []
        import time; begin = time.process_time(); runs = 0
        for number in range(count)[conversation.first : conversation.stop]:
            for name, fault in ANSWERS.items():
                for is_lasting in (False, True):
                    runs += 1
                    world = World(conversation, self.folder, number, fault, is_lasting)
                    try:
                        problem = _judge(conversation, right, world, world.run())
                        world.end()
                    except AssertionError as error:
                        problem = str(error)
                    errors = [str(each.value) for each in self.flushLoggedErrors()]
                    if problem or errors:
                        found.append((run.__name__, number, name, is_lasting, problem, *errors))
                    if world.count <= count or not (world.answer and world.answer.is_unfinished):
                        break
        gc.collect()
        print(run.__name__, len(range(count)[conversation.first : conversation.stop]), runs, time.process_time() - begin)
        self.assertEqual([], self.flushLoggedErrors())
        self.assertEqual(before, open_descriptors())
        self.assertEqual("", "\n".join(f"{each}"[:300] for each in found))


def _judge(conversation: Conversation, right: Any, world: World, outcome: Any) -> str:
    """Return what is wrong with the outcome of a conversation; empty for nothing."""
    answer = world.answer
    assert answer is not None, "the request was not sent"
    if not isinstance(outcome, Failure):
        is_accepted = not answer.is_right and conversation.accepts(outcome, answer)
        return "" if outcome == right or is_accepted else f"taken for right: {outcome!r}"
    error = outcome.value
    left = [*(world.contents.keys() - conversation.objects.keys()), *world.double.uploads]
    is_once = not world.is_lasting
    is_moment = is_once and answer.status in (429, 503) and answer.body is not None
    for is_wrong, text in (
        (not isinstance(error, conversation.refusals), "is not documented"),
        (answer.is_right, "follows the right reply"),
        (is_moment and conversation.asks_again, "follows one busy moment"),
        (isinstance(error, NotFound) and answer.is_temporary, "is more than the answer says"),
        (left and is_once and world.method != "DELETE", f"leaves {left}"),
    ):
        if is_wrong:
            return f"{error!r} {text}"
    return ""


def variants(world: World, part_size: int = 5000) -> S3VariantStore:
    """Return the variant store of a node."""
    return S3VariantStore(
        world.store,
        BUCKET,
        AnonymousSpace(),
        world.network,
        execute,
        redirects=True,
        part_size=part_size,
    )


async def prove(world: World) -> object:
    await variants(world).open()
    return len(world.contents)


async def look_up(world: World) -> object:
    found = await variants(world).lookup(VARIANT.key)
    return found and found.size


async def hit(world: World) -> object:
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
    return world.contents


async def commit_parts(world: World) -> object:
    return await commit(world, 600)


async def abort(world: World) -> object:
    denied = refusal(403, "AccessDenied")
    world.double.before = lambda _, it: denied if "partNumber=2" in it.target else it
    try:
        return await commit(world, 600)
    except Denied:
        return world.contents


class StoreTests(FaultCase):
    """The variant store in a bucket"""

    def test_proof(self) -> None:
        """A store is refused at boot where it does not do what it says, and nothing is left."""
        self.check(prove, (Unwritable,), is_done, asks_again=False)

    def test_hit(self) -> None:
        """A variant is sent as it was stored, or rendered, or an error."""
        refusals = UpstreamUnavailable, NotConfigured, VariantChanged
        self.check(look_up, refusals, is_total, BUCKET_OF_ONE)
        self.check(hit, refusals, is_absent, BUCKET_OF_ONE)

    def test_commit(self) -> None:
        """A variant counts as stored where the store says so, and is whole."""
        self.check(commit, (StoreError,), is_done)

    def test_commit_parts(self) -> None:
        """So does one in parts, of which none is left behind."""
        self.check(commit_parts, (StoreError,), is_done)
        self.check(abort, (), first=3)


def catalog(world: World) -> BucketCatalog:
    """Return the catalog of a command."""
    return BucketCatalog(world.store, BUCKET, 1, lambda text: None)


def fail(entry: Entry, error: Exception) -> None:
    """Raise the error of one variant."""
    raise error


async def list_all(world: World) -> object:
    return [each.key async for page in catalog(world).pages() for each in page.entries]


async def list_parts(world: World) -> object:
    return await list_uploads(world.store, BUCKET, "")


async def find(world: World) -> object:
    return await catalog(world).find(VARIANT.key) is not None


async def read_records(world: World) -> object:
    found = await catalog(world).read_records([ENTRY], fail)
    return [record for _, record in found if record is not None]


async def verify(world: World) -> object:
    found = (await catalog(world).check(ENTRY, Pace(None))).verdict
    return None if found in (Verdict.GONE, Verdict.UNKNOWN) else found


async def remove(world: World, unchanged: bool = False) -> object:
    removed: list[Entry] = []
    await catalog(world).remove([ENTRY], removed.append, fail, unchanged=unchanged)
    return world.contents if removed else None


async def remove_unchanged(world: World) -> object:
    return await remove(world, True)


class CatalogTests(FaultCase):
    """What commands do with a bucket"""

    def test_listings(self) -> None:
        """A listing has all objects, or is an error; an empty one is proved."""
        keys = {VARIANT.key[:-1] + digit: b"" for digit in "01"}
        self.check(list_all, (CatalogError,), objects=keys)
        self.check(list_all, (CatalogError,))
        self.check(list_parts, (StoreError,), asks_again=False)

    def test_look_ups(self) -> None:
        """A variant has its own record, or none, or is an error."""
        for run in (find, read_records):
            self.check(run, (CatalogError,), is_absent, BUCKET_OF_ONE)

    def test_verify(self) -> None:
        """A variant is called broken where its bytes are, and not for an answer that is."""
        self.check(verify, (CatalogError,), is_damaged, BUCKET_OF_ONE)

    def test_remove(self) -> None:
        """A variant counts as removed where the store says so."""
        for run in (remove, remove_unchanged):
            self.check(run, (CatalogError,), is_removed, BUCKET_OF_ONE)


#: Opens one source of a node, as `SourceStore.open` does.
Opener: TypeAlias = Callable[..., Coroutine[Any, Any, FarSource]]
REFUSALS = NotFound, NotConfigured, UpstreamUnavailable, RenderFailed, UndecodableSource


def open_object(world: World) -> Opener:
    """Return the opener of an object."""
    sources = S3Sources(world.store, world.reading)
    return partial(sources.open, S3Source(BUCKET, b"a.mp3"))


def open_address(world: World, path: bytes = b"a.mp3") -> Opener:
    """Return the opener of a source at an origin."""
    client: Any = PlaintextClient(world.client)
    origins = OriginClient(client, ("origin.test",), world.network)
    source = parse_https(b"https://origin.test/" + path)
    return partial(HttpsSources(origins, world.reading).open, source)


def open_small(world: World) -> Opener:
    """Return the opener of a source that its first request brings."""
    return open_address(world, b"small")


def open_moved(world: World) -> Opener:
    """Return the opener of a source behind a redirect."""
    return open_address(world, b"moved")


async def read(world: World, open_source: Opener) -> bytes:
    """Return the content of a source."""
    found = await open_source()
    try:
        deadline = Deadline(world.network, PATIENCE)
        await found.input(deadline)
        await found.complete(deadline)
        return await found.read(0, found.size or 0)
    finally:
        found.close()


class SourceCase(FaultCase):
    """Remote sources"""

    def check_source(
        self,
        make: Callable[[World], Opener],
        objects: Mapping[str, bytes] | None = None,
        **settings: Any,
    ) -> None:
        """Check the requests for a source of which nothing is known."""

        async def new(world: World) -> object:
            return await read(world, make(world))

        self.check(new, REFUSALS, is_whole, objects, **settings)

    def check_again(
        self,
        make: Callable[[World], Opener],
        objects: Mapping[str, bytes] | None = None,
        first: int = 1,
    ) -> None:
        """Check the requests for a source whose size is requested before its bytes."""

        async def read_size(world: World) -> object:
            found = await make(world)(reads=False)
            found.close()
            return found.size

        async def read_on(world: World) -> object:
            open_source = make(world)
            (await open_source(reads=False)).close()
            return await read(world, open_source)

        self.check(read_size, REFUSALS, is_size, objects)
        self.check(read_on, REFUSALS, is_whole, objects, first=first)

    def check_kept(
        self, make: Callable[[World], Opener], objects: Mapping[str, bytes] | None = None
    ) -> None:
        """Check the request for a source whose blocks are kept."""

        async def read_twice(world: World) -> object:
            open_source = make(world)
            await read(world, open_source)
            return await read(world, open_source)

        self.check(read_twice, REFUSALS, is_whole, objects, first=-1)


class ObjectTests(SourceCase):
    """Sources in a bucket"""

    objects: ClassVar = {"a.mp3": SOURCE}

    def test_new(self) -> None:
        """A source is read as it is, in ranges or as a whole, or is an error."""
        # The end and the start are requested side by side.
        self.check_source(open_object, self.objects, stop=2)
        self.check_source(open_object, self.objects, has_ranges=False)
        self.check_source(open_object, {"a.mp3": SMALL})

    def test_known(self) -> None:
        """So is a source that was opened before, and its size is what the store says."""
        self.check_again(open_object, self.objects)
        self.check_kept(open_object, self.objects)

    def test_buckets(self) -> None:
        """Credentials are good where the store lists its buckets."""

        async def list_buckets(world: World) -> object:
            world.double.before = lambda store, request: Reply(200, b"<Buckets/>")
            return await S3Sources(world.store, world.reading).request_bucket_list()

        self.check(list_buckets, (StoreError,), asks_again=False)


class AddressTests(SourceCase):
    """Sources at https addresses"""

    def test_new(self) -> None:
        """A source is read as it is, in ranges or as a whole, or is an error."""
        self.check_source(open_address, stop=2)
        self.check_source(open_address, has_ranges=False)
        self.check_source(open_small)

    def test_known(self) -> None:
        """So is a source that was opened before, and its size is what the origin says."""
        self.check_again(open_address)
        self.check_kept(open_address)

    def test_moved(self) -> None:
        """So is a source behind a redirect."""
        self.check_again(open_moved, first=-1)
