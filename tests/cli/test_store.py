"""`audioproxy store`: what is selected, what is left, and what is removed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper
from itertools import product
from types import SimpleNamespace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from tqdm import tqdm
from twisted.internet.defer import CancelledError, Deferred, execute
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.cli import reactor as cli_reactor
from audioproxy.cli.store import command as store_command
from audioproxy.cli.store.command import OpenStore
from audioproxy.cli.store.ls import Listing
from audioproxy.cli.store.prune import Prune
from audioproxy.cli.store.purge import Purge
from audioproxy.cli.store.stat import Statistics
from audioproxy.config import Config
from audioproxy.errors import NotConfigured, NotFound, UpstreamUnavailable
from audioproxy.grammar.cache_key import all_cache_keys
from audioproxy.grammar.cache_tag import cache_tags
from audioproxy.sources.local import LocalSources
from audioproxy.testing import FakeThreads
from audioproxy.urls import Variant
from audioproxy.variants.catalog import CatalogError, Entry, Page
from audioproxy.variants.folder_catalog import FolderCatalog
from audioproxy.variants.record import VariantRecord
from tests.cli.command import command, parse_store
from tests.support.folders import short_folder
from tests.support.stores import FakeSources
from tests.support.strategies import DETERMINISTIC
from tests.support.variants import StoredVariant

NOW = 1_800_000_000

#: What a field of a record may be in the JSON of a file.
ODD = st.text(max_size=20) | st.sampled_from(["", "base64:/w==", "f:mp3", "local://\ud800"])

UNSYNCED = "audioproxy: the store: a power cut may restore variants that were removed"


class UnlistedCatalog(FolderCatalog):
    """Catalog that no command may list."""

    def pages(self) -> AsyncGenerator[Page]:
        raise AssertionError("the store is listed")


class StoreCase(SynchronousTestCase):
    """Variants in a folder, and local sources of which a test states what they are now.

    :ivar states: the validator of each source, or why it cannot be opened, by its address.
    """

    def setUp(self) -> None:
        base = short_folder(self)
        self.store, self.sources_root = base / "store", base / "sources"
        for folder in (self.store, self.sources_root):
            folder.mkdir()
        self.clock = Clock()
        self.bar = tqdm(disable=True)
        self.sources: Any = FakeSources({})
        config = Config(allow_insecure=True, local_root=str(self.sources_root))
        engine: Any = SimpleNamespace(clock=self.clock, sources=self, close=self.close)
        catalog = FolderCatalog(str(self.store), execute, 2)
        self.session = OpenStore(config, engine, catalog, 2, self.bar)

    async def open(self, source: Any, *, reads: bool = True) -> Any:
        """Open a source as the engine does."""
        return await self.sources.open(source)

    async def close(self) -> None:
        """Do nothing, where an engine closes its connections."""

    def put(self, *variants: StoredVariant, used: int = NOW) -> None:
        """Store variants."""
        for variant in variants:
            variant.write(self.store, used=used)

    def stored(self) -> set[str]:
        """Return the keys of all variants."""
        return {path.name for path in self.store.glob("??/*")}

    def purge(self, *words: str) -> dict[str, Any]:
        """Return the values of the report, and the keys that are removed."""
        purge, purging = self.begin_purge(*words)
        self.successResultOf(purging)
        values = purge.values()
        return {**values, "removed": {row["key"] for row in values["removed"]}}

    def begin_purge(self, *words: str) -> tuple[Purge, Deferred[None]]:
        """Start to purge."""
        purge = Purge(parse_store("purge", "--json", *words))
        return purge, Deferred.fromCoroutine(purge.work(self.session))


class PurgeTests(StoreCase):
    """`audioproxy store purge`"""

    def setUp(self) -> None:
        super().setUp()
        self.one = [StoredVariant.of("local://a/one.wav", each) for each in ("f:mp3", "f:opus")]
        self.two = StoredVariant.of("local://a/two.wav")
        self.near = StoredVariant.of("local://a/one.wav2")
        self.url = StoredVariant.of("https://h.example/a.wav?token=1")
        self.long = StoredVariant.of("https://h.example/" + "a" * 1600)
        self.put(*self.one, self.two, self.near, self.url, self.long)
        unknown = StoredVariant.of("local://a/unknown.wav").write(self.store)
        unknown.write_bytes(b"no variant")
        self.everything = self.stored()

    def keys(self, *variants: StoredVariant) -> set[str]:
        """Return the keys of variants."""
        return {variant.key for variant in variants}

    def test_sources(self) -> None:
        """All variants of exactly the given sources go, whatever names them."""
        for words, gone in (
            (["local://a/one.wav"], self.one),
            (["local://a/one"], []),
            (["--url", "/wrong/f:wav/t:1/plain/local%3A//a/two.wav"], [self.two]),
            (["--url", "https://p.example/x/info/plain/local://a/two.wav"], [self.two]),
            (["https://H.example/a.wav?token=1"], [self.url]),
            (["https://h.example/a.wav"], []),
            (["https://h.example/" + "a" * 1600], [self.long]),
            (["--prefix", "local://a/one", "local://a/two.wav"], [*self.one, self.near, self.two]),
            (["--prefix", "https://h.example/"], [self.url]),
        ):
            dry = self.purge("-n", *words)
            self.assertEqual(self.everything, self.stored())
            found = self.purge(*words)
            self.assertEqual(self.keys(*gone), found["removed"], words)
            self.assertEqual(found["removed"], dry["removed"])
            self.assertEqual(self.everything - found["removed"], self.stored())
            self.assertEqual(int("--prefix" in words), found["unaddressed"], words)
            self.put(*gone)

    def test_encoded(self) -> None:
        """A source that is percent-encoded, as in the log, has no variants, and a line says why."""
        for source, is_explained in (
            ("local://a/one%2Ewav", True),
            ("local://a/100%.wav", False),
            ("https://h.example/a%20b.wav", False),
        ):
            outcome, purging = self.begin_purge(source)
            self.successResultOf(purging)
            text = "\n".join(outcome.lines())
            self.assertEqual(is_explained, "percent-encoding" in text, text)

    def test_options(self) -> None:
        """The keys of every revision of a format are computed, and the store is not listed."""
        mp3, source = Variant.read("f:mp3").options, b"local://a/one.wav"
        keys = all_cache_keys(mp3, source)
        for key in keys:
            path = self.store / key[:2] / key
            path.parent.mkdir(exist_ok=True)
            # Without a record, as an earlier version stored it.
            path.write_bytes(b"audio")
        self.session = replace(self.session, catalog=UnlistedCatalog(str(self.store), execute, 2))
        found = self.purge(source.decode(), "-o", "f:mp3", "-o", "f:flac")
        self.assertEqual(set(keys), found["removed"])
        self.assertEqual(self.everything - set(keys), self.stored())

    def test_wait(self) -> None:
        """With --wait, variants that are stored during two AP_RENDER_TIMEOUT go too."""
        outcome, purging = self.begin_purge("--wait", "local://a/two.wav")
        for _ in range(2):
            self.assertNotIn(self.two.key, self.stored())
            self.put(self.two)
            self.assertNoResult(purging)
            self.clock.advance(self.session.config.render_timeout)
        self.successResultOf(purging)
        self.assertNotIn(self.two.key, self.stored())
        self.assertEqual(3, len(outcome.values()["removed"]))

    def test_tags(self) -> None:
        """The tags of all sources are printed, under every salt, and the calls of their caches."""
        salts = {"salt": b"new", "previous_key": (b"k" * 32,), "previous_salt": (b"old",)}
        config = Config(key=b"k" * 32, cache_tag_header="xkey", **salts)
        self.session = replace(self.session, config=config)
        none = self.purge("-n", "local://none")
        for words, sources in (
            (["--prefix", "local://a/"], [b"local://a/one.wav", b"local://a/two.wav"]),
            (["https://h.example/a.wav?token=1"], [b"https://h.example/a.wav?token=1"]),
        ):
            tags = self.purge("-n", *words)["cache_tags"]
            for source in sources:
                self.assertLessEqual(set(cache_tags([b"new", b"old"], source)), set(tags))
        self.assertEqual(cache_tags([b"new", b"old"], b"local://none"), none["cache_tags"])
        outcome, _ = self.begin_purge("-n", "--prefix", "https://h.example/")
        unknown, *_ = (line for line in outcome.lines() if "tags" in line)
        self.assertIn("1 variant with a part of the source recorded", unknown)
        self.assertEqual(1, outcome.values()["untagged"])
        outcome, _ = self.begin_purge("-n", "local://none")
        call = "curl -X PURGE -H 'xkey-purge: " + " ".join(none["cache_tags"])
        self.assertIn(call, "\n".join(outcome.lines()))

    def test_usage(self) -> None:
        """A purge that selects nothing, or contradicts itself, is refused with 2."""
        environment = {"AP_VARIANT_STORE": f"file://{self.store}"}
        for words in (
            "",
            "--prefix=",
            "--prefix=a/",
            "--prefix=local:// --options=f:mp3",
            "--stale --options=f:mp3",
            "--stale --wait",
            "local://a --wait --dry-run",
            "--url=/s/f:mp3/local://a",
            "--stale --concurrency=0",
        ):
            ended = command("store", "purge", *words.split(), environment=environment)
            self.assertEqual((2, ""), (ended.status, ended.out), words)
        self.assertEqual(2, command("store", "stat", environment={}).status)
        self.assertEqual(self.everything, self.stored())


class StaleTests(StoreCase):
    """`audioproxy store purge --stale`"""

    def local(self, name: str, options: str = "f:mp3") -> StoredVariant:
        """Return a variant of a local source, which may exist."""
        validator = b"1-2"
        with contextlib.suppress(OSError):
            status = (self.sources_root / name).stat()
            validator = b"%d-%d" % (status.st_size, status.st_mtime_ns)
        return StoredVariant.of(f"local://{name}", options, validator)

    def test_local(self) -> None:
        """Variants of changed and vanished sources go; each source is looked up once."""
        for name in ("same.wav", "new.wav"):
            (self.sources_root / name).write_bytes(b"audio")
        same = [self.local("same.wav", each) for each in ("f:mp3", "f:wav")]
        changed = [self.local("new.wav", each) for each in ("f:mp3", "f:wav")]
        vanished = [self.local("none.wav"), self.local("none/a.wav"), self.local("same.wav/a")]
        # A disk that is not mounted leaves an empty folder.
        (self.sources_root / "disk").mkdir()
        (self.sources_root / "link").symlink_to("/nowhere")
        left = [self.local("disk/a.wav"), self.local("disk/a/b.wav"), self.local("link/a.wav")]
        self.put(*same, *changed, *vanished, *left)
        (self.sources_root / "new.wav").write_bytes(b"another one")
        self.sources = LocalSources(str(self.sources_root), execute)
        opened: list[Any] = []
        looked_up = self.sources.open

        async def count(source: Any) -> Any:
            opened.append(source.path)
            return await looked_up(source)

        self.sources.open = count
        found = self.purge("--stale")
        self.assertEqual({each.key for each in (*changed, *vanished)}, found["removed"])
        self.assertEqual({each.key for each in (*same, *left)}, self.stored())
        self.assertEqual(3, found["left"]["unreachable"])
        self.assertEqual(sorted(set(opened)), sorted(opened))
        # The root itself is not mounted.
        for path in (*self.sources_root.glob("*.wav"), self.sources_root / "link"):
            path.unlink()
        for folder in (self.sources_root / "disk", self.sources_root):
            folder.rmdir()
            self.assertEqual(set(), self.purge("--stale")["removed"])

    def test_left(self) -> None:
        """Variants are left and counted whose source may be as it was."""
        address = "https://h.example/a.wav?token=1"
        url = StoredVariant.of(address)
        rows: dict[str, list[tuple[StoredVariant, Any]]] = {
            "unreachable": [
                (StoredVariant.of("s3://b/1"), UpstreamUnavailable()),
                (StoredVariant.of("s3://b/2"), NotConfigured()),
            ],
            "refused": [(StoredVariant.of("s3://b/3"), NotFound("not on the allowlist"))],
            "no_validator": [
                (StoredVariant.of("s3://b/4"), b""),
                (StoredVariant.of("s3://b/5", validator=b""), b"1-2"),
            ],
            "no_address": [(url, b"3-4")],
        }
        states = {each.record.source: state for row in rows.values() for each, state in row}

        async def open_source(source: Any) -> Any:
            state = states[source.address]
            if isinstance(state, Exception):
                raise state
            return SimpleNamespace(validator=state, close=lambda: None)

        self.sources = SimpleNamespace(open=open_source)
        self.put(*(each for row in rows.values() for each, _ in row))
        found = self.purge("--stale")
        self.assertEqual(set(), found["removed"])
        self.assertEqual({name: len(row) for name, row in rows.items()}, found["left"])
        self.assertEqual({url.key}, self.purge("--stale", address)["removed"])


class SizeTests(SynchronousTestCase):
    """Sizes and durations on the command line"""

    def test_sizes(self) -> None:
        """A size has a decimal unit or none; anything else is refused with 2."""
        for text, number in (("0", 0), ("12", 12), ("5k", 5000), ("2T", 2 * 10**12)):
            parsed = parse_store("prune", "--max-bytes", text)
            self.assertEqual(number, parsed.max_bytes)
        for text in ("", "1.5G", "20GiB", "5K", "-1", "k", "1kB", "\u0661"):
            ended = command("store", "prune", f"--max-bytes={text}")
            self.assertEqual(2, ended.status, text)
        for words in (("prune",), ("verify", "--pace=0")):
            self.assertEqual(2, command("store", *words).status, words)


class FailingCatalog(FolderCatalog):
    """Catalog whose listing fails at its end."""

    async def pages(self) -> AsyncGenerator[Page]:
        async for page in super().pages():
            yield page
        raise CatalogError("the listing fails")


class SyncTests(StoreCase):
    """What a purge says of folders that are not synced (D80)"""

    def purge_unsynced(self, run: Callable[[Deferred[None]], object]) -> tuple[int, str]:
        """Return the status and the errors of a purge that has removed a variant.

        :param run: ends the work, or raises KeyboardInterrupt.
        """

        def sync(path: str) -> None:
            raise OSError("no sync")

        def begin(work: Callable[[Any], Coroutine[Any, Any, None]], *_: object) -> None:
            working = Deferred.fromCoroutine(work(self.clock))
            while self.stored():
                self.threads.run_next()
            run(working)

        self.put(StoredVariant.of())
        self.threads = FakeThreads()
        catalog = FailingCatalog(str(self.store), self.threads.in_thread, 1, sync=sync)
        self.patch(store_command, "build", lambda *_: None)
        self.patch(store_command, "Engine", lambda _: self.session.engine)
        self.patch(store_command, "open_catalog", lambda *_: catalog)
        self.patch(cli_reactor, "run", begin)
        environment = {"AP_ALLOW_INSECURE": "1", "AP_SERVE_MODE": "proxy"}
        environment["AP_VARIANT_STORE"] = f"file://{self.store}"
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as errors:
            status = Purge(parse_store("purge", "--prefix", "local://")).run(environment)
        return status, errors.getvalue()

    def test_failure(self) -> None:
        """A failed sync is named beside a failure of the purge itself."""

        def end(working: Deferred[None]) -> None:
            self.threads.run()
            self.failureResultOf(working, CatalogError).raiseException()

        status, errors = self.purge_unsynced(end)
        other = "audioproxy: the store: the listing fails\n"
        self.assertEqual((1, f"{UNSYNCED}: no sync\n{other}"), (status, errors))

    def test_interrupted(self) -> None:
        """Ctrl-C does not end the sync. One that fails is named, and one that has not ended."""
        for is_ended, reason in ((True, "no sync"), (False, "the sync has not ended")):

            def interrupt(working: Deferred[None], is_ended: bool = is_ended) -> None:
                working.cancel()
                self.assertNoResult(working)
                if is_ended:
                    self.threads.run()
                    self.failureResultOf(working, CancelledError)
                raise KeyboardInterrupt

            self.assertEqual((130, f"{UNSYNCED}: {reason}\n"), self.purge_unsynced(interrupt))


class OutputTests(SynchronousTestCase):
    """The report of a command"""

    def test_lines(self) -> None:
        """A report for readers is lines; a report for programs is one JSON object."""
        for as_json, is_listed in product((True, False), repeat=2):
            prune = Prune(parse_store("prune", "-n", "--max-bytes=1", *["--json"] * as_json))
            prune.pruned.listed.add(Entry("0", 1000, 0))
            prune.pruned.is_listed = is_listed
            out = StringIO()
            with redirect_stdout(out):
                prune.print_report(interrupted=True)
            if as_json:
                values = json.loads(out.getvalue())
                expected = {"variants": 1, "bytes": 1000} if is_listed else None
                self.assertEqual(expected, values["remaining"])
                self.assertTrue(values["interrupted"])
            else:
                first, *rest = out.getvalue().splitlines()
                self.assertEqual("stopped, after this was done:", first)
                remaining = "1 variant, 1 kB" if is_listed else "unknown"
                lines = ["would be removed: 0 variants, 0 B", f"remaining: {remaining}"]
                self.assertEqual(lines, rest)

    @DETERMINISTIC
    @given(
        texts=st.fixed_dictionaries(
            {
                "stored": st.just("5") | st.integers(),
                **dict.fromkeys(("options", "source", "build"), ODD),
            }
        ),
        size=st.integers(0, 2**63),
        times=st.tuples(*[st.floats(-(2.0**63), 2.0**63)] * 2),
    )
    def test_odd_records(
        self, texts: dict[str, Any], size: int, times: tuple[float, float]
    ) -> None:
        """Whatever can be read of a record is printed, in a terminal of any encoding."""
        digests = {"source-sha256": "a" * 64, "sha256": "b" * 64}
        record = VariantRecord.read({**digests, **texts})
        assume(record is not None)
        entry = Entry("0" * 64, size, *times)
        assert record is not None
        for as_json, encoding in product((["--json"], []), ("utf-8", "ascii")):
            with redirect_stdout(TextIOWrapper(BytesIO(), encoding)) as stdout:
                purge = Purge(parse_store("purge", "--prefix", "local://", *as_json))
                purge.wanted.accepts(record)
                purge.use_tags(Config(key=b"k" * 32, salt=b"s", cache_tag_header="xkey"))
                purge.add_removed(entry, record)
                purge.print_report(interrupted=False)
                for shown in (
                    Listing(parse_store("ls", *as_json)),
                    Statistics(parse_store("stat", *as_json)),
                ):
                    shown.add(entry, record)
                    shown.print_report(interrupted=False)
                stdout.flush()
            lines = stdout.buffer.getvalue().decode(encoding).splitlines()
            self.assertIn(entry.key, "".join(lines))
            for line in lines if as_json else ():
                json.loads(line)
