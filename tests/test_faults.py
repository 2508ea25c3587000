"""Each request of the service to a store or an origin, with each answer of `tests.support.faults`.

A conversation is what the service asks for one purpose. It is run once as it should be, and then
for each of its requests and each answer: the server does not carry that request out, and answers
so. A refusal that makes the service ask again is also given to all requests that follow.
"""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias, cast

# The reactor opens descriptors when it is first imported, so import it before counting them.
from twisted.internet import reactor  # noqa: F401
from twisted.internet.defer import Deferred, execute
from twisted.internet.ssl import platformTrust
from twisted.internet.task import deferLater
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
from audioproxy.s3.errors import Denied, StoreError
from audioproxy.s3.listing import list_uploads
from audioproxy.s3.objects import ObjectStore
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
from tests.support.http import ResourceHarness, read_response
from tests.support.processes import open_descriptors
from tests.support.s3_double import BUCKET, Reply, S3Double, StoredObject, refusal
from tests.support.variants import HEADERS, StoredVariant
from tests.support.wire import Network, Peer, Request

SETTINGS = S3Config("http://s3.test", "path", None, "AKIA", "secret", None, "us-east-1")
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
VARIANT = StoredVariant.of(data=LONG[:1000])
ENTRY = Entry(VARIANT.key, 1000, 0.0, None, StoredObject(VARIANT.data, {}, NOW).etag)
ONE_VARIANT = {VARIANT.key: VARIANT.data}
#: A source of which the start, the end and the middle are requested, and one of one request.
SOURCE, SMALL = LONG[:450_000], LONG[:1000]
#: Seconds within which a conversation ends, and all that it has begun.
PATIENCE = 150.0
#: What sources may be, instead of right.
REFUSALS = NotFound, NotConfigured, UpstreamUnavailable, RenderFailed, UndecodableSource

#: Opens one source of a node, as `SourceStore.open` does.
Opener: TypeAlias = Callable[..., Coroutine[Any, Any, FarSource]]


class Node:
    """A node, and a server that gives one answer.

    Each conversation returns what the service makes of the responses, and what the store has then.

    :ivar count: the requests that the server has received.
    :ivar answer: what it has answered to the request of the number.
    :ivar method: that of this request.
    """

    def __init__(
        self,
        folder: str,
        objects: Mapping[str, StoredObject],
        has_ranges: bool,
        number: int = -1,
        fault: Callable[[Reply], Answer] = RIGHT,
        is_lasting: bool = False,
    ) -> None:
        self.network = Network()
        self.client = HttpClient(self.network, platformTrust())
        self.double = S3Double(self.network, "secret", None, NOW)
        self.network.scripts = [self._respond] * 200
        self.double.objects.update(objects)
        # Other tests verify signatures, which takes long.
        self.double.ignored = frozenset({"signature"})
        store, readers = ObjectStore(SETTINGS, self.client), cast(Any, FakeReaders())
        self.make_variants = partial(
            S3VariantStore, store, BUCKET, AnonymousSpace(), self.network, execute, presign_ttl=300
        )
        self.variants = self.make_variants()
        self.catalog = BucketCatalog(store, BUCKET, 1)
        self.files = FarFiles(folder, self.network, execute, 2_000_000)
        reading = FarReading(
            readers, self.network, self.files, execute, self._can_preload, 2_000_000, PATIENCE
        )
        self.store, self.buckets = store, S3Sources(store, reading)
        client = cast(Any, PlaintextClient(self.client))
        self.origins = HttpsSources(OriginClient(client, ["origin.test"], self.network), reading)
        self.count, self.answer, self.method = 0, RIGHT(Reply(200)), ""
        self.is_lasting = is_lasting
        self._has_ranges, self._number, self._fault = has_ranges, number, fault

    async def _can_preload(self) -> bool:
        return True

    def _respond(self, peer: Peer, request: Request) -> None:
        number, self.count = self.count, self.count + 1
        if not self._has_ranges:
            lines = tuple(each for each in request.lines if each[0].lower() != "range")
            request = Request(request.method, request.target, lines, request.body)
        is_fault = number == self._number or (self.is_lasting and number > self._number)
        before = dict(self.double.objects), copy.deepcopy(self.double.uploads) if is_fault else {}
        is_origin = request.headers["host"] == "origin.test"
        good = serve(request) if is_origin else self.double.respond(request)
        answer = (self._fault if is_fault else RIGHT)(good)
        if is_fault and not answer.is_right:
            self.double.objects, self.double.uploads = before
        if number == self._number:
            self.answer, self.method = answer, request.method
        peer.send(answer.sent)
        self.network.callLater(0.1, answer.end, peer)

    def run(self, conversation: Callable[[Node], Coroutine[Any, Any, Any]]) -> Any:
        """Run a conversation, and return its value or its Failure.

        Then wait until the pool has closed its connections, and assert that no other is open.
        """
        results: list[Any] = []
        Deferred.fromCoroutine(conversation(self)).addBoth(results.append)
        self._pass_time(lambda: bool(results))
        self.files.close()
        self._pass_time(lambda: not self.network.getDelayedCalls())
        assert all(each.closed for each in self.network.peers), "a connection is left open"
        assert {"origin.test", "s3.test"}.issuperset(self.network.names), "it leaves the allowlist"
        return results[0]

    def _pass_time(self, is_over: Callable[[], bool]) -> None:
        end = self.network.seconds() + PATIENCE
        self.network.run()
        while not is_over():
            times = [call.getTime() for call in self.network.getDelayedCalls()]
            assert times and min(times) < end, "it takes too long"
            self.network.advance(max(0.0, min(times) - self.network.seconds()))

    @property
    def contents(self) -> dict[str, bytes]:
        """The content of each object in the store."""
        return {key: each.body for key, each in self.double.objects.items()}

    async def prove(self) -> object:
        await self.variants.open()
        return len(self.contents)

    async def look_up(self) -> object:
        found = await self.variants.lookup(VARIANT.key)
        return found and found.size

    async def hit(self) -> object:
        if (found := await self.variants.lookup(VARIANT.key)) is None:
            return None
        consumer = FakeConsumer()
        await (await found.open_range(1, found.size)).send(consumer)
        return bytes(consumer.data)

    async def respond(self) -> object:
        """Send a whole request for the variant, which is rendered where it is not found."""
        harness = ResourceHarness()
        harness.resource._variants = replace(harness.resource._variants, store=self.variants)
        connection, response = harness.connect(), None
        connection.send(harness.path(b"/f:mp3/plain/local://piece.wav"))
        while response is None or not (response.complete or connection.closed):
            await deferLater(self.network, 1)
            for render in harness.renders.running.values():
                render.write_output(VARIANT.data)
                render.end()
            harness.renders.running.clear()
            response = read_response(connection.received)
        is_right = response.status == 200 and VARIANT.data.startswith(response.body)
        return response.status, response.complete, is_right or response.error

    async def commit(self) -> object:
        scratch = await self.variants.create(10)
        try:
            os.write(scratch.descriptor, VARIANT.data)
            await self.variants.commit(VARIANT.key, scratch, 1000, HEADERS, VARIANT.record)
        finally:
            scratch.close()
        return self.contents

    async def commit_parts(self) -> object:
        self.variants = self.make_variants(part_size=600)
        return await self.commit()

    async def abort(self) -> object:
        denied = refusal(403, "AccessDenied")
        self.double.before = lambda _, it: denied if "partNumber=2" in it.target else it
        try:
            return await self.commit_parts()
        except Denied:
            return self.contents

    async def list_all(self) -> object:
        return [each.key async for page in self.catalog.pages() for each in page.entries]

    async def list_parts(self) -> object:
        return await list_uploads(self.store, BUCKET, "")

    async def list_buckets(self) -> object:
        self.double.before = lambda store, request: Reply(200, b"<Buckets/>")
        return await self.buckets.request_bucket_list()

    async def find(self) -> object:
        return await self.catalog.find(VARIANT.key) is not None

    async def read_records(self) -> object:
        found = await self.catalog.read_records([ENTRY], fail)
        return [record for _, record in found if record is not None]

    async def verify(self) -> object:
        found = (await self.catalog.check(ENTRY, Pace(None))).verdict
        return None if found in (Verdict.GONE, Verdict.UNKNOWN) else found

    async def remove(self, unchanged: bool = False) -> object:
        removed: list[Entry] = []
        await self.catalog.remove([ENTRY], removed.append, fail, unchanged=unchanged)
        return self.contents if removed else None

    def opener(self, path: str) -> Opener:
        """Return the opener of an object, or of a source at an origin."""
        if path.startswith("https:"):
            return partial(self.origins.open, parse_https(path.encode()))
        return partial(self.buckets.open, S3Source(BUCKET, path.encode()))

    async def read_size(self, path: str) -> int | None:
        found = await self.opener(path)(reads=False)
        found.close()
        return found.size

    async def read(self, path: str) -> object:
        found = await self.opener(path)()
        try:
            deadline = Deadline(self.network, PATIENCE)
            await found.input(deadline)
            await found.complete(deadline)
            return await found.read(0, found.size or 0)
        finally:
            found.close()

    async def read_on(self, path: str) -> object:
        await self.read_size(path)
        return await self.read(path)

    async def read_twice(self, path: str) -> object:
        await self.read(path)
        return await self.read(path)


def fail(entry: Entry, error: Exception) -> None:
    raise error


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


def is_response(value: Any, answer: Answer) -> bool:
    """Return whether a response is torn, or an error; its bytes are right in any case."""
    torn, errors = (200, False, True), ((502, "upstream_unavailable"), (500, "not_configured"))
    return value == torn or value in [(status, True, code) for status, code in errors]


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
    return value == answer.total or (is_stated and not answer.is_refusal)


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
        conversation: Callable[[Node], Coroutine[Any, Any, Any]],
        refusals: tuple[type[Exception], ...],
        says: Callable[[Any, Answer], bool] = lambda value, answer: False,
        objects: Mapping[str, bytes] | None = None,
        requests: slice = slice(None),
        *,
        has_ranges: bool = True,
        asks_again: bool = True,
    ) -> None:
        """Assert that no answer to any request of a conversation does harm.

        :param refusals: what it may raise.
        :param says: returns whether an answer says a value that is not the right one.
        :param objects: what the store has before.
        :param requests: those that get other answers.
        :param has_ranges: the server serves ranges.
        :param asks_again: a server that is busy for a moment is asked again.
        """
        lines = {**VARIANT.headers, **HEADERS.lines()}
        stored = {key: StoredObject(body, lines, NOW) for key, body in (objects or {}).items()}
        make = partial(Node, self.folder, stored, has_ranges)
        descriptors, node, found = open_descriptors(), make(), []
        right = node.run(conversation)
        self.assertNotIsInstance(right, Failure)
        count = node.count

        def judge(node: Node, outcome: Any) -> str:
            answer, is_once = node.answer, not node.is_lasting
            if not isinstance(outcome, Failure):
                is_said = not answer.is_right and says(outcome, answer)
                return "" if outcome == right or is_said else f"taken for right: {outcome!r}"
            is_moment = is_once and answer.status in (429, 503) and answer.body is not None
            left = [*(node.contents.keys() - stored.keys()), *node.double.uploads]
            is_absent = isinstance(outcome.value, NotFound)
            for is_wrong, text in (
                (not isinstance(outcome.value, refusals), "is not documented"),
                (answer.is_right, "follows the right reply"),
                (is_moment and asks_again, "follows one busy moment"),
                (is_absent and answer.is_temporary, "is not what the answer says"),
                (left and is_once and node.method != "DELETE", f"leaves {left}"),
            ):
                if is_wrong:
                    return f"{outcome.value!r} {text}"
            return ""

        for number in range(count)[requests]:
            for name, fault in ANSWERS.items():
                for is_lasting in (False, True):
                    node = make(number, fault, is_lasting)
                    try:
                        problem = judge(node, node.run(conversation))
                    except AssertionError as error:
                        problem = str(error)
                    errors = [str(each.value) for each in self.flushLoggedErrors()]
                    if problem or errors:
                        found.append(f"{number}: {name}, {is_lasting}: {problem} {errors}"[:300])
                    is_refusal = asks_again and node.answer.is_refusal
                    may_last = is_refusal or node.answer.body is None
                    if node.count <= count or not may_last:
                        break
        gc.collect()
        self.assertEqual([], self.flushLoggedErrors())
        self.assertEqual(descriptors, open_descriptors())
        self.assertEqual("", "\n".join(found))


class StoreTests(FaultCase):
    """The variant store in a bucket, and what commands do with it"""

    def test_proof(self) -> None:
        """A store is refused at boot where it does not do what it says, and nothing is left."""
        self.check(Node.prove, (Unwritable,), is_done)

    def test_hit(self) -> None:
        """A variant is sent as it was stored, or rendered, or an error."""
        refusals = UpstreamUnavailable, NotConfigured, VariantChanged
        self.check(Node.look_up, refusals, is_total, ONE_VARIANT)
        self.check(Node.hit, refusals, is_absent, ONE_VARIANT)
        self.check(Node.respond, (), is_response, ONE_VARIANT)

    def test_commit(self) -> None:
        """A variant counts as stored where the store says so, and no part of it is left."""
        for conversation in (Node.commit, Node.commit_parts):
            self.check(conversation, (StoreError,), is_done)
        self.check(Node.abort, (), requests=slice(3, None))

    def test_listings(self) -> None:
        """A listing has all objects, or is an error; an empty one is proved."""
        for digits in ("", "01"):
            keys = {VARIANT.key[:-1] + digit: b"" for digit in digits}
            self.check(Node.list_all, (CatalogError,), objects=keys)
        for conversation in (Node.list_parts, Node.list_buckets):
            self.check(conversation, (StoreError,), asks_again=False)

    def test_catalog(self) -> None:
        """A variant is found, or broken, or removed, where the store says so."""
        for conversation, says in (
            (Node.find, is_absent),
            (Node.read_records, is_absent),
            (Node.verify, is_damaged),
            (Node.remove, is_removed),
            (partial(Node.remove, unchanged=True), is_removed),
        ):
            self.check(conversation, (CatalogError,), says, ONE_VARIANT)


class SourceTests(FaultCase):
    """Remote sources"""

    def check_source(self, path: str) -> None:
        """Assert that a source is read as it is, in ranges or as a whole, or is an error."""
        check, objects = partial(self.check, refusals=REFUSALS), {path: SOURCE}
        check(partial(Node.read_size, path=path), says=is_size, objects=objects)
        for conversation, requests, has_ranges in (
            # Its end and its start are requested side by side.
            (Node.read, slice(2), True),
            (Node.read, slice(2), False),
            (Node.read_on, slice(1, None), True),
            (Node.read_twice, slice(-1, None), True),
        ):
            check(
                partial(conversation, path=path),
                says=is_whole,
                objects=objects,
                requests=requests,
                has_ranges=has_ranges,
            )

    def test_object(self) -> None:
        """An object is read as it is, in ranges or as a whole, or is an error."""
        self.check_source("a.mp3")

    def test_address(self) -> None:
        """So is a source at an origin."""
        self.check_source("https://origin.test/a.mp3")

    def test_other_addresses(self) -> None:
        """So is one that its first request brings, and one behind a redirect."""
        for conversation, says, path, requests in (
            (Node.read, is_whole, "https://origin.test/small", slice(None)),
            (Node.read_size, is_size, "https://origin.test/moved", slice(None)),
            (Node.read_on, is_whole, "https://origin.test/moved", slice(-1, None)),
        ):
            self.check(partial(conversation, path=path), REFUSALS, says, requests=requests)
