"""`audioproxy store` on folders and on buckets, also when it is interrupted or killed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from twisted.web.resource import Resource
from twisted.web.server import Site

from audioproxy.cli.output import progress_bar
from audioproxy.cli.store.command import OpenStore
from audioproxy.cli.store.prune import Prune
from audioproxy.cli.store.purge import Purge
from audioproxy.cli.store.verify import Verification
from audioproxy.engine import Engine, build
from audioproxy.variants.bucket_catalog import BucketCatalog
from audioproxy.variants.s3 import S3VariantStore
from tests.cli.command import command, json_keys, parse_store
from tests.support.remote import RemoteCase
from tests.support.service import ServiceCase, reactor
from tests.support.variants import StoredVariant, neighbors

ONE = [StoredVariant.of("local://one.wav", options) for options in ("f:mp3", "f:opus")]
OTHER_BUILD = "4.4.2-0ubuntu0.22.04.1:0123abcd"
TWO = StoredVariant.of("local://two.wav", build=OTHER_BUILD)
ROTTEN = replace(StoredVariant.of("local://three.wav", "f:wav"), data=b"other audio")
UNKNOWN = StoredVariant.of("local://four.wav").without_record


AMOUNT = dict.fromkeys(("variants", "bytes"))
AGES = ("up to 1 day", "1-7 days", "7-30 days", "30-365 days", "over 365 days")
VARIANT = dict.fromkeys("key bytes stored used options source source_sha256 build".split())
#: The keys of the document that each command prints of the variants above, with `ENDED`.
DOCUMENTS: dict[str, dict[str, Any]] = {
    "stat": {
        **AMOUNT,
        "unknown": AMOUNT,
        "formats": dict.fromkeys(("mp3", "opus", "wav"), AMOUNT),
        "builds": {OTHER_BUILD: AMOUNT, "unknown": AMOUNT},
        "ages": dict.fromkeys(AGES, AMOUNT),
    },
    "verify": {
        **dict.fromkeys(("good", "unknown", "gone", "bytes")),
        "broken": [dict.fromkeys(("key", "reason", "removed"))],
    },
    "purge": {
        **dict.fromkeys(("dry_run", "bytes", "unknown", "unaddressed", "untagged")),
        "removed": [VARIANT],
        "left": dict.fromkeys(("unreachable", "refused", "no_validator", "no_address")),
        "cache_tags": [],
    },
    "prune": {"dry_run": None, "removed": AMOUNT, "remaining": AMOUNT},
}
ENDED = dict.fromkeys(("failed", "interrupted"))


class FolderTests(ServiceCase):
    """Commands on a folder"""

    def values(self, status: int, *words: str) -> Any:
        """Return the values that a command prints, with its keys, before it ends with a status."""
        ended = command("store", *words, "--json", environment=self.environment())
        self.assertEqual(status, ended.status, ended.err)
        rows = [json.loads(line) for line in ended.out.splitlines()]
        if words[0] == "ls":
            self.assertEqual([VARIANT], json_keys(rows))
            return rows
        (found,) = rows
        self.assertEqual({**DOCUMENTS[words[0]], **ENDED}, json_keys(found))
        return found

    def test_commands(self) -> None:
        """Each command does what it says, and touches nothing that is beside the variants."""
        for variant in (*ONE, TWO, UNKNOWN, ROTTEN):
            variant.write(self.store)
        beside = [self.store / name for name in neighbors(TWO.key)]
        for path in beside:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"a master")
        stat = self.values(0, "stat")
        self.assertEqual((5, 1), (stat["variants"], stat["unknown"]["variants"]))
        self.assertEqual(
            {"mp3": 2, "opus": 1, "wav": 1},
            {name: amount["variants"] for name, amount in stat["formats"].items()},
        )
        self.assertEqual(
            {OTHER_BUILD: 1, "unknown": 4},
            {name: amount["variants"] for name, amount in stat["builds"].items()},
        )
        rows = self.values(0, "ls", "--prefix", "local://o", "--format", "opus")
        self.assertEqual(
            [(ONE[1].key, "f:opus", "local://one.wav")],
            [(row["key"], row["options"], row["source"]) for row in rows],
        )
        (row,) = self.values(0, "ls", "--source", "local://two.wav")
        self.assertEqual((OTHER_BUILD, None), (row["build"], rows[0]["build"]))
        verified = self.values(1, "verify", "--delete")
        self.assertEqual((3, 1), (verified["good"], verified["unknown"]))
        self.assertEqual([True], [each["removed"] for each in verified["broken"]])
        purged = self.values(0, "purge", "local://one.wav")
        self.assertEqual({each.key for each in ONE}, {row["key"] for row in purged["removed"]})
        pruned = self.values(0, "prune", "--max-bytes", "0")
        self.assertEqual((2, 0), (pruned["removed"]["variants"], pruned["remaining"]["variants"]))
        self.assertEqual([], [path for path in beside if not path.exists()])

    def test_dry_run(self) -> None:
        """A dry run says what a prune of the same limits removes, and removes nothing."""
        variants = [StoredVariant.of(f"local://{number}") for number in range(9)]
        for variant in variants:
            variant.write(self.store)
        dry = self.values(0, "prune", "--max-bytes", "2k", "-n")
        self.assertEqual(len(variants), len([*self.store.glob("??/*")]))
        real = self.values(0, "prune", "--max-bytes", "2k")
        self.assertLess(len([*self.store.glob("??/*")]), len(variants))
        self.assertEqual(real | {"dry_run": True}, dry)


class SilentStore(Resource):
    """Store that accepts whatever is written, and lists nothing."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []

    def render(self, request: Any) -> bytes:
        """Respond to a request."""
        self.requests.append(request.method.decode())
        if request.method == b"GET":
            return b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
        return b""


class SilentStoreTests(ServiceCase):
    """Commands on a bucket whose listing is empty, although it has objects"""

    def test_unlisted(self) -> None:
        """Each command says so, and ends with 1: nothing is known of the variants."""
        store = SilentStore()
        port = reactor.listenTCP(0, Site(store), interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
        variables = {**dict.fromkeys(names, "a"), "AP_VARIANT_STORE": "s3://bucket"}
        variables["AP_S3_ENDPOINT"] = f"http://127.0.0.1:{port.getHost().port}"
        for words, values in (
            ("stat", {"variants": 0}),
            ("prune --max-bytes 1", {"remaining": None}),
            ("purge local://one.wav", {"removed": []}),
            ("verify", {"good": 0}),
        ):
            environment = self.environment(**variables)
            ended = command("store", *words.split(), "--json", environment=environment)
            self.assertEqual(1, ended.status, words)
            error = "audioproxy: the store: its listing is empty, and lacks an object that was just"
            self.assertIn(error, ended.err)
            document = json.loads(ended.out)
            self.assertEqual(document, {**document, **values, "failed": 1})
            self.assertEqual(["PUT", "GET", "DELETE"], store.requests[-3:])


class BucketTests(RemoteCase):
    """Commands on a bucket"""

    def write(self, variant: StoredVariant) -> None:
        """Write a variant into the bucket."""
        self.server.put(self.variants, variant.key, variant.data, **variant.headers)

    def session(self) -> OpenStore:
        """Return an open store."""
        config = self.config()
        engine = Engine(build(config, reactor))
        self.addCleanup(engine.close)
        assert isinstance(engine.store, S3VariantStore)
        catalog = BucketCatalog(engine.store.object_store, self.variants, 4)
        return OpenStore(config, engine, catalog, 4, progress_bar("variants", quiet=True))

    async def test_commands(self) -> None:
        """Each command does what it says, and touches nothing that is beside the variants."""
        for variant in (*ONE, TWO, ROTTEN):
            self.write(variant)
        self.server.put(self.variants, UNKNOWN.key, UNKNOWN.data)
        beside = [name.encode() for name in neighbors(TWO.key)]
        for name in beside:
            self.server.put(self.variants, name, b"a master")
        session = self.session()
        verified = Verification(parse_store("verify", "--delete"))
        await verified.work(session)
        found = verified.values()
        self.assertEqual((3, 1, 0), (found["good"], found["unknown"], verified.failed))
        self.assertEqual([True], [each["removed"] for each in found["broken"]])
        for words, gone in (
            (["local://one.wav"], ONE),
            (["-o", "f:mp3", "local://two.wav"], [TWO]),
            (["local://two.wav"], []),
        ):
            found = await self.purge(session, *words)
            keys = {row["key"] for row in found["removed"]}
            self.assertEqual({each.key for each in gone}, keys, words)
        pruned = Prune(parse_store("prune", "--max-bytes", "0"))
        await pruned.work(session)
        self.assertEqual(1, pruned.values()["removed"]["variants"])
        self.assertEqual(sorted(beside), sorted(self.server.keys(self.variants)))

    async def purge(self, session: OpenStore, *words: str) -> dict[str, Any]:
        """Purge the bucket, and return the values of the report."""
        purge = Purge(parse_store("purge", "--json", *words))
        await purge.work(session)
        return purge.values()

    async def test_stale(self) -> None:
        """Variants of objects go that were replaced or removed, but not of a missing bucket."""
        for name in ("same", "new", "gone"):
            tag = self.put(name, b"audio").encode()
            self.write(StoredVariant.of(f"s3://{self.sources}/{name}", validator=tag))
        self.write(StoredVariant.of("s3://missing-bucket/a"))
        self.put("new", b"other audio")
        self.server.remove(self.sources, "gone")
        found = await self.purge(self.session(), "--stale")
        expected = {f"s3://{self.sources}/{name}" for name in ("new", "gone")}
        self.assertEqual(expected, {row["source"] for row in found["removed"]})
        self.assertEqual(1, found["left"]["refused"])
