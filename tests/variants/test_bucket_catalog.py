"""The catalog of a bucket: nothing but variants is listed, read or removed."""

from __future__ import annotations

import re
from collections.abc import Coroutine
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from twisted.internet.defer import CancelledError

from audioproxy.config import S3Config
from audioproxy.s3.objects import ObjectStore
from audioproxy.variants.bucket_catalog import BucketCatalog
from audioproxy.variants.catalog import CatalogError, Entry, Pace, Page, Verdict
from audioproxy.variants.proof import PROOF_PREFIX
from tests.support.variants import StoredVariant, neighbors
from tests.support.wire import Peer, Request, RetryCase, Script, error, reply

SETTINGS = S3Config("http://s3.test", "path", None, "AKIA", "secret", None, "us-east-1")
ONE, TWO = StoredVariant.of(), StoredVariant.of(options="f:opus")
TAG = {"ETag": '"1"'}
MISSING = reply(404, error("NoSuchKey"))
#: The response to a lookup of an object that has no record.
FOREIGN = reply(206, b"x", {**TAG, "Content-Range": "bytes 0-0/5"})


def listing(*keys: str, token: str = "") -> bytes:
    """Return a page of a listing."""
    rows = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>7</Size>"
        "<LastModified>2026-11-21T12:00:00Z</LastModified></Contents>"
        for key in keys
    )
    following = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    head = f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>{following}"
    return f"<ListBucketResult>{head}{rows}</ListBucketResult>".encode()


class CatalogCase(RetryCase):
    """A bucket."""

    def setUp(self) -> None:
        super().setUp()
        self.catalog = BucketCatalog(ObjectStore(SETTINGS, self.client), "bucket", 3)
        self.failed: list[tuple[str, str]] = []

    def fail_with(self, entry: Entry, error: Exception) -> None:
        """Record the failure of one variant."""
        self.assertIsInstance(error, CatalogError)
        self.failed.append((entry.key, str(error)))

    def answered(self, work: Coroutine[Any, Any, Any], *responses: Script) -> Any:
        """Return the result of work whose requests get these responses."""
        self.network.requests.clear()
        self.network.scripts[:] = responses
        result = self.result_of(work)
        self.assertEqual([], self.network.scripts)
        return result

    async def keys(self) -> list[str]:
        """Return the keys of all variants."""
        return [entry.key async for page in self.catalog.pages() for entry in page.entries]

    @property
    def sent(self) -> list[tuple[str, str]]:
        """The methods and targets of the last requests."""
        return [(request.method, request.target) for request in self.network.requests]


class PagesTests(CatalogCase):
    """`BucketCatalog.pages`"""

    def serve(self, keys: list[str], per_page: int = 2) -> Script:
        """Return the function of a store that has these objects."""

        def respond(peer: Peer, request: Request) -> None:
            self.network.scripts.append(respond)
            query = parse_qs(urlsplit(request.target).query)
            names = sorted(key for key in keys if key.startswith(query["prefix"][0]))
            names = [name for name in names if "/" not in name]
            start = int(query.get("continuation-token", ["0"])[0])
            page, rest = names[start : start + per_page], names[start + per_page :]
            token = str(start + per_page) if rest else ""
            peer.send(reply(200, listing(*page, token=token)))

        return respond

    def test_names(self) -> None:
        """Only objects that are named by a key are listed, in any number of pages."""
        keys = sorted(StoredVariant.of(f"local://{number}").key for number in range(60))
        names = [name for key in keys for name in neighbors(key)]
        first = keys[0]
        names += [first.upper(), first[:-1], f"{first}0", f"{first}.wav", f"{first}/a.wav"]

        async def list_all() -> list[Page]:
            return [page async for page in self.catalog.pages()]

        self.network.scripts = [self.serve([*keys, *names])]
        pages = self.result_of(list_all())
        found = [entry for page in pages for entry in page.entries]
        self.assertEqual(keys, sorted(entry.key for entry in found))
        self.assertEqual({(7, 1_795_262_400.0, None)}, {(e.size, e.stored, e.used) for e in found})
        covered = [page.covered for page in pages]
        self.assertEqual((sorted(covered), 1.0), (covered, covered[-1]))
        self.assertEqual(3, len(self.network.peers))

    def test_prefix_ignored(self) -> None:
        """Variants are listed once where the store lists all of them for each prefix."""
        page = reply(200, listing(ONE.key, TWO.key))
        self.assertCountEqual([ONE.key, TWO.key], self.answered(self.keys(), *[page] * 16))

    def test_refused(self) -> None:
        """A page that is refused ends the listing, and the other requests."""
        self.network.scripts = [reply(403, error("AccessDenied"))]
        error_text = str(self.error_of(anext(self.catalog.pages()), CatalogError))
        self.assertIn("AccessDenied); the right ListBucket is required", error_text)
        self.network.run()


class ProofTests(CatalogCase):
    """A listing without variants"""

    def list_nothing(self, *responses: Script) -> None:
        """List a bucket without variants; these are the responses after the listing."""
        pages = [reply(200, listing("other.wav"))] * 16
        self.assertEqual([], self.answered(self.keys(), *pages, *responses))

    def show_proof(self, peer: Peer, request: Request) -> None:
        """List the object that was written before."""
        key = self.network.requests[16].target.removeprefix("/bucket/")
        prefix = parse_qs(urlsplit(request.target).query)["prefix"][0]
        self.assertTrue(key.startswith(prefix) and key != prefix)
        peer.send(reply(200, listing(key)))

    @property
    def proofs(self) -> list[str]:
        """The methods of the last requests for objects that prove a listing."""
        return [method for method, target in self.sent if f"/bucket/{PROOF_PREFIX}" in target]

    def test_empty(self) -> None:
        """An object that is listed proves that there are no variants, once."""
        self.list_nothing(reply(200), self.show_proof, reply(204))
        self.assertEqual(["PUT", "DELETE"], self.proofs)
        self.list_nothing()

    def test_emptied(self) -> None:
        """A listing that has had variants before needs no proof."""
        self.answered(self.keys(), *[reply(200, listing(ONE.key))] * 16)
        self.list_nothing()

    def test_incomplete(self) -> None:
        """An object that is not listed is an error with what is required, and is removed."""
        pages = [reply(200, listing())] * 16
        for last, words in (
            (reply(200, listing()), "lacks an object that was just written.*ListObjectsV2"),
            (reply(403, error("AccessDenied")), "it cannot be listed"),
        ):
            self.network.requests.clear()
            self.network.scripts[:] = [*pages, reply(200), last, reply(204)]
            self.assertRegex(str(self.error_of(self.keys(), CatalogError)), words)
            self.assertEqual(["PUT", "DELETE"], self.proofs)

    def test_rights(self) -> None:
        """Credentials that cannot write or remove prove nothing, which is an error."""
        pages, denied = [reply(200, listing())] * 16, reply(403, error("AccessDenied"))
        busy = reply(503, error("SlowDown"))
        for responses, what, said in (
            ([denied, reply(204)], "written", "status 403, AccessDenied); the rights PutObject"),
            ([reply(200), self.show_proof, denied], "removed", "AccessDenied); the rights Put"),
            ([busy, busy, reply(204)], "written", "status 503, SlowDown)"),
        ):
            self.network.requests.clear()
            self.catalog = BucketCatalog(ObjectStore(SETTINGS, self.client), "bucket", 3)
            self.network.scripts[:] = [*pages, *responses]
            text = str(self.error_of(self.keys(), CatalogError))
            self.assertRegex(text, rf"cannot be {what} \(.*{re.escape(said)}")
            self.assertEqual("DELETE", self.proofs[-1])

    def test_removed_unseen(self) -> None:
        """An object that is gone at the second attempt has been removed by the first one."""
        self.list_nothing(reply(200), self.show_proof, reply(503), reply(404))

    def test_interrupted(self) -> None:
        """The object is removed by Ctrl-C, too."""
        hang: Script = lambda peer, request: None  # noqa: E731
        for responses in ([hang], [reply(200), hang]):
            self.network.requests.clear()
            self.network.scripts[:] = [*[reply(200, listing())] * 16, *responses]
            listing_all = self.begin(self.keys())
            self.network.run()
            self.network.scripts[:] = [reply(204)]
            listing_all.cancel()
            self.network.run()
            self.failureResultOf(listing_all, CancelledError)
            self.assertEqual(["PUT", "DELETE"], self.proofs)


class EntryTests(CatalogCase):
    """Requests for single variants."""

    def stored(self, variant: StoredVariant, **headers: str) -> bytes:
        """Return the response to a lookup."""
        total = {"Content-Range": f"bytes 0-0/{len(variant.data)}"}
        return reply(206, b"s", {**TAG, **variant.headers, **total, **headers})

    def body(self, data: bytes = ONE.data, tag: str = '"1"') -> bytes:
        """Return the response to a read."""
        total = {"Content-Range": f"bytes 0-{len(ONE.data) - 1}/{len(ONE.data)}"}
        return reply(206, data, {"ETag": tag, **total}, len(ONE.data))

    def test_find(self) -> None:
        """A variant is found by its key, without a listing."""
        modified = {"Last-Modified": "Sat, 21 Nov 2026 12:00:00 GMT"}
        work = self.catalog.find(ONE.key)
        found = self.answered(work, self.stored(ONE, **modified))
        self.assertEqual(Entry(ONE.key, 10, 1_795_262_400.0, None, '"1"'), found)
        self.assertEqual([("GET", f"/bucket/{ONE.key}")], self.sent)
        self.assertIsNone(self.answered(self.catalog.find(ONE.key), MISSING))
        self.network.scripts[:] = [reply(403)]
        self.error_of(self.catalog.find(ONE.key), CatalogError)

    def test_records(self) -> None:
        """A record is read of the metadata; an object may have none, be gone, or be denied."""
        keys = (ONE.key, TWO.key, "0" * 64, "1" * 64)
        entries = [Entry(key, 10, 0) for key in keys]
        catalog = BucketCatalog(ObjectStore(SETTINGS, self.client), "bucket", 1)
        responses = (self.stored(ONE), FOREIGN, MISSING, reply(403))
        found = self.answered(catalog.read_records(entries, self.fail_with), *responses)
        expected = [(ONE.key, '"1"', ONE.record), (TWO.key, '"1"', None)]
        self.assertEqual(expected, [(e.key, e.version, record) for e, record in found])
        self.assertEqual([("1" * 64, "status 403")], self.failed)

    def test_checked(self) -> None:
        """The bytes are compared with their digest."""
        broken = "its bytes do not match their digest"
        for responses, verdict, reason in (
            ((self.stored(ONE), self.body()), Verdict.GOOD, ""),
            ((self.stored(ONE), self.body(b"some-audio")), Verdict.BROKEN, broken),
            ((FOREIGN,), Verdict.UNKNOWN, ""),
            ((reply(416, headers={**TAG, **ONE.headers}),), Verdict.BROKEN, "it is empty"),
            ((MISSING,), Verdict.GONE, ""),
            ((self.stored(ONE), MISSING), Verdict.GONE, ""),
            ((self.stored(ONE), reply(412)), Verdict.GONE, ""),
            ((self.stored(ONE), self.body(tag='"2"')), Verdict.GONE, ""),
        ):
            work = self.catalog.check(Entry(ONE.key, 10, 0), Pace(None))
            finding = self.answered(work, *responses)
            self.assertEqual((verdict, reason), (finding.verdict, finding.reason))

    def test_pace(self) -> None:
        """A body is read in pieces, and no faster than allowed."""
        pace = Pace(2, self.network.seconds)
        self.network.scripts[:] = [self.stored(ONE), (self.body()[:-6], ONE.data[-6:-3], b"dio")]
        checking = self.begin(self.catalog.check(Entry(ONE.key, 10, 0), pace))
        for seconds in (2, 1.5):
            self.network.advance(seconds - 0.1)
            self.assertNoResult(checking)
            self.network.advance(0.1)
        self.assertIs(Verdict.GOOD, self.successResultOf(checking).verdict)

    def test_removed(self) -> None:
        """Each variant takes one DELETE, and another one if the store is busy."""
        removed: list[Entry] = []

        def remove(*entries: Entry, unchanged: bool = False) -> Any:
            removed.clear()
            return self.catalog.remove(entries, removed.append, self.fail_with, unchanged=unchanged)

        one, two = Entry(ONE.key, 10, 0, None, '"1"'), Entry(TWO.key, 10, 0, None, '"2"')
        self.answered(remove(one), reply(503), reply(204))
        self.assertEqual(([one], [("DELETE", f"/bucket/{ONE.key}")] * 2), (removed, self.sent))
        for entry, found, gone in ((one, [reply(204)], [one]), (two, [], [])):
            self.answered(remove(entry, unchanged=True), self.stored(ONE), *found)
            self.assertEqual(gone, removed)
        self.answered(remove(one, unchanged=True), MISSING)
        self.assertEqual([], removed)
        self.catalog = BucketCatalog(ObjectStore(SETTINGS, self.client), "bucket", 1)
        self.answered(remove(one, two), reply(403), reply(204))
        self.assertEqual(([two], [(ONE.key, "status 403")]), (removed, self.failed))
