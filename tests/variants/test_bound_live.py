"""Bounded stores with real prunes, threads and clients."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Thread

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.variants.interfaces import NoRoom
from audioproxy.variants.stored_file import StoredFile
from audioproxy.variants.usage import StoreUsage
from tests.support.service import ServiceCase, fetch, long_flac, signed, until, until_scraped
from tests.support.variants import StoredVariant

EVICTIONS = "audio_proxy_variant_store_evictions_total"
BYTES = "audio_proxy_variant_store_bytes"


class LockTests(SynchronousTestCase):
    """The lock of the ledger"""

    def test_threads(self) -> None:
        """Threads that store and remove variants at a time count each byte, and pass no bound."""
        root = Path(self.mktemp()).absolute()
        root.mkdir()
        StoreUsage(str(root), 100).ensure()
        most: list[int] = []

        def work(name: str) -> None:
            usage = StoreUsage(str(root), 100)
            for size in [40, 1, 30, 7, 60, 2] * 20:
                scratch, path = root / f"{name}.scratch", root / name
                scratch.write_bytes(bytes(size))
                try:
                    usage.add(str(scratch), str(path))
                except NoRoom as error:
                    most.append(error.needed)
                    with usage.removal() as subtract:
                        size = path.stat().st_size if path.exists() else 0
                        path.unlink(missing_ok=True)
                        subtract(size)

        threads = [Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        left = sum(path.stat().st_size for name in "abcd" if (path := root / name).exists())
        self.assertEqual(left, StoreUsage(str(root)).read())
        self.assertLessEqual(left, 100)
        self.assertTrue(most)


class PruneTests(ServiceCase):
    """A service on a store of 10 MB"""

    async def test_modules(self) -> None:
        """A prune finds modules wherever the service does, such as by its PYTHONPATH."""
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        (folder / "attr.py").write_text("import pathlib; pathlib.Path(__file__ + '.ran').touch()")
        sys.path.insert(0, str(folder))
        self.addCleanup(sys.path.remove, str(folder))
        self.start(variant_store_max_bytes=10_000_000)
        await until((folder / "attr.py.ran").exists, "the import")

    async def test_prune(self) -> None:
        """Past 95 %, the least recently used variants go; what is being sent stays open."""
        self.add("long.flac", long_flac())
        victim = StoredVariant.of(data=bytes(8_000_000))
        path = victim.write(self.store)
        others = [
            StoredVariant.of(options=f"f:mp3/cb:{number}", data=bytes(100_000)).write(self.store)
            for number in range(9)
        ]
        stranger = self.store / "00" / "master.wav"
        stranger.parent.mkdir(exist_ok=True)
        stranger.write_bytes(bytes(5_000_000))
        service = self.start(variant_store_max_bytes=10_000_000)
        await until_scraped(service.metrics_port, lambda series: series[BYTES] > 0, "the count")
        assert service.engine.store is not None
        stored = await service.engine.store.lookup(victim.key)
        assert isinstance(stored, StoredFile)
        os.utime(path, (1000, 1000))
        await fetch(service.port, signed("/f:wav/t:0:15/plain/local://long.flac"))
        series = await until_scraped(
            service.metrics_port, lambda series: series[EVICTIONS], "the prune"
        )
        self.assertEqual((1, False), (series[EVICTIONS], path.exists()))
        self.assertEqual(victim.data, stored.read(0, 9_000_000))
        stored.close()
        left = [path for path in self.store.glob("??/*") if path != stranger]
        self.assertEqual(10, len(left))
        self.assertTrue(all(path.exists() for path in (*others, stranger)))
        self.assertEqual(sum(path.stat().st_size for path in left), series[BYTES])
