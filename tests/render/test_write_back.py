"""A failing variant store: clients still get their bytes; only later requests miss."""

from __future__ import annotations

import errno
import shutil
from itertools import count, product
from pathlib import Path
from typing import Any

from audioproxy.errors import DiskFailed, DiskFull, RenderFailed
from audioproxy.variants.stored_file import read_trailer
from tests.observe.test_metrics import Counts
from tests.render.harness import ENCODED, Client, DiskHarness
from tests.render.test_render import RenderCase
from tests.support.transfers import Transfers

# Seconds that the file store allows a disk to create a file and to commit it.
CREATE, COMMIT = 10, 120

SUCCESS, CANCELLED = "renders_total mp3 success", "renders_total mp3 cancelled"
WRITE_FAILURE = "variant_store_write_failures_total"


class StoreCase(RenderCase):
    """A node that must leave no running thread and no scratch file in the store."""

    harness: DiskHarness

    def setUp(self) -> None:
        self.root = Path(self.mktemp()).absolute()
        super().setUp()

    def start(self, **settings: Any) -> None:
        self.harness = DiskHarness(self.root, **settings)
        self.counts = Counts(self.harness.metrics)

    def shut_down(self) -> None:
        self.harness.close()
        self.assertEqual((self.harness.disk.waiting, self.harness.scratch_files()), (0, []))
        self.harness.variants.close_now()
        self.assert_released()

    def counted(self) -> dict[str, float]:
        """Return the changes of all counters since the test began."""
        return {name: change for name, change in self.counts.changes.items() if "_total" in name}

    def warnings(self) -> list[str]:
        """Return the beginning of each logged warning; assert that no error was logged."""
        self.assertEqual(self.log.errors, [])
        return [text.partition(",")[0].partition(" of ")[0] for text in self.log.warnings]

    def break_store(self) -> None:
        """Remove the store's folder, so that every operation on the store fails."""
        shutil.rmtree(self.root)

    def assert_served_without_storing(self, client: Client) -> None:
        """Assert that a client received all bytes, and one write failure was counted and logged."""
        self.assertEqual((client.data, client.outcome), (b"abc", "whole"))
        self.assertEqual(self.counted(), {SUCCESS: 1, WRITE_FAILURE: 1})
        self.assertEqual(self.warnings(), ["the store accepts no file"])
        self.assertEqual(self.harness.slots.held, 0)


class NoFileTests(StoreCase):
    """Stores that provide no scratch file."""

    def test_refused(self) -> None:
        """If the store refuses a scratch file, clients get all bytes; one failure is counted."""
        self.break_store()
        client, _ = self.harness.render()
        half_way = self.harness.start_client()
        self.harness.finish()
        self.assert_served_without_storing(client)
        self.assertEqual((half_way.started, half_way.data), (False, b"abc"))

    def test_late(self) -> None:
        """A render waits ten seconds for a file of the store; later ones at once do without it."""
        client = self.harness.start_probed()
        self.harness.clock.advance(CREATE - 0.1)
        self.assertEqual(self.harness.spawner.alive, [])
        self.harness.clock.advance(0.1)
        self.harness.finish()
        self.assert_served_without_storing(client)
        client = self.harness.start_probed("f:flac")
        self.harness.finish(b"x" * 100)
        self.assertEqual((client.outcome, self.counted()[WRITE_FAILURE]), ("whole", 2))
        self.assertEqual(self.warnings(), ["the store accepts no file"] * 2)
        # A scratch file that the store provides too late is removed.
        self.harness.disk.run()
        self.assertEqual(self.harness.scratch_files(), [])
        self.assertIsNone(self.harness.found())
        self.harness.render("f:flac")
        self.harness.complete(b"x" * 100)
        self.assertEqual(self.harness.found("f:flac"), b"x" * 100)
        self.assertEqual(self.counted()[WRITE_FAILURE], 2)

    def test_nobody_left(self) -> None:
        """An abandoned render is completed and stored if the store responds in time (D36)."""
        self.harness.start_probed("f:mp3/br:64").disconnect()
        self.harness.clock.advance(CREATE - 1)
        self.harness.disk.run()
        self.harness.complete()
        self.assertEqual(self.harness.found("f:mp3/br:64"), b"abc")
        for late in (True, False):
            self.harness.start_probed().disconnect()
            self.assertEqual(self.harness.slots.held, 1)
            if late:
                self.harness.clock.advance(CREATE)
            else:
                self.break_store()
                self.harness.disk.run()
            self.assertEqual((self.harness.spawner.alive, self.harness.slots.held), ([], 0))
            self.assertEqual(self.counted(), {SUCCESS: 1, CANCELLED: 1 if late else 2})
            self.harness.disk.run()

    def test_all_leave(self) -> None:
        """A render that will not be stored is stopped when its last client leaves (D36)."""
        self.break_store()
        client, encoder = self.harness.render()
        other = self.harness.start_client()
        self.harness.write_output(b"abc")
        client.disconnect()
        self.assertEqual(encoder.signals, [])
        other.disconnect()
        self.assertEqual((encoder.signals, self.harness.slots.held), (["TERM"], 1))
        encoder.exit_and_end(signal=15)
        self.assertEqual(self.harness.slots.held, 0)
        self.assertEqual(self.counted(), {CANCELLED: 1})


class WriteBackTests(StoreCase):
    """Stores that provide a scratch file, and then fail to store it."""

    def test_no_room(self) -> None:
        """Without room in the store, the client gets all bytes; that is no write failure (D59)."""
        self.harness.variants.usage.max_bytes = 1
        client, _ = self.harness.render()
        self.harness.complete()
        self.assertEqual((client.data, client.outcome), (b"abc", "whole"))
        self.assertEqual(self.counted(), {SUCCESS: 1, "variant_store_full_total": 1})
        self.assertEqual((self.warnings(), self.harness.found()), ([], None))

    def test_build(self) -> None:
        """The record names the build of ffmpeg with which the render began (D78)."""
        self.harness.render()
        self.harness.build = "9.0:4567cdef"
        self.harness.complete()
        self.harness.render("f:ogg")
        self.harness.complete(b"O" * 10_000)
        builds = []
        for options in ("", "f:ogg"):
            with self.harness.variant_path(options).open("rb") as file:
                trailer = read_trailer(file.fileno())
            assert trailer is not None and trailer[1] is not None
            builds.append(trailer[1].build)
        self.assertEqual(["7.1:0123abcd", "9.0:4567cdef"], builds)

    def test_late(self) -> None:
        """A write-back is given up after two minutes; until then clients join its output (D37)."""
        client, _ = self.harness.render()
        self.harness.finish()
        self.assertEqual(self.harness.disk.waiting, 1)
        self.assertEqual((client.data, client.outcome), (b"abc", "whole"))
        self.assertEqual((self.harness.slots.held, self.harness.sources.held), (0, 0))
        for seconds in (COMMIT / 2, COMMIT / 2 - 0.1):
            self.harness.clock.advance(seconds)
            client = self.harness.start_client()
            self.assertEqual((client.started, client.data), (False, b"abc"))
        self.assertEqual(self.counted(), {SUCCESS: 1})
        self.harness.clock.advance(0.1)
        self.assertEqual(self.counted(), {SUCCESS: 1, WRITE_FAILURE: 1})
        self.assertEqual(self.warnings(), ["write-back"])
        self.assertIsNone(self.harness.found())
        self.assertNotEqual(self.harness.scratch_files(), [])
        self.harness.clock.advance(1)
        client = self.harness.start_probed()
        self.assertTrue(client.started)
        self.harness.finish(b"xyz")
        self.assertEqual((client.data, client.outcome), (b"xyz", "whole"))
        self.assertEqual(self.counted(), {SUCCESS: 2, WRITE_FAILURE: 2})
        self.assertEqual(self.warnings(), ["write-back", "the store accepts no file"])
        self.harness.disk.run()
        self.assertEqual((self.harness.scratch_files(), self.harness.found()), ([], b"abc"))


class FullDiskTests(StoreCase):
    """A disk of the store that fills up during a render"""

    FULL = b"av_interleaved_write_frame(): No space left on device"

    def test_after_audio(self) -> None:
        """A client that has bytes gets the rest from outside the store, as do the next ones."""
        client, encoder = self.harness.render()
        self.harness.write_output(b"abc")
        encoder.exit_and_end(1, stderr=self.FULL)
        self.assertEqual((client.data, client.outcome), (b"abc", None))
        self.harness.encoder().exit_and_end(stdout=b"abcdef")
        self.assertEqual((client.data, client.outcome), (b"abcdef", "whole"))
        self.assertEqual(self.counted()[WRITE_FAILURE], 1)
        self.harness.disk.run()
        self.assertEqual(self.harness.scratch_files(), [])
        for options, seconds, stored in (("", 0, None), ("br:64", 0, b"abc"), ("", 600, b"abc")):
            self.harness.clock.advance(seconds)
            client, _ = self.harness.render(options)
            self.harness.complete()
            self.assertEqual((client.outcome, client.data), ("whole", b"abc"))
            self.harness.disk.run()
            self.assertEqual(self.harness.found(options) if stored else None, stored, options)


class FullScratchSpaceTests(RenderCase):
    """A TMPDIR that fills up during a render whose store has no disk of its own, as a bucket"""

    def test_variant(self) -> None:
        """The render fails at once, the log names TMPDIR, and the next render is stored."""
        client, encoder = self.harness.render()
        encoder.exit_and_end(1, stderr=FullDiskTests.FULL)
        self.assertIs(DiskFull, type(client.outcome))
        self.assertEqual("the disk of TMPDIR fails: The disk is full.", self.log.warnings[-1])
        self.harness.render()
        self.harness.encoder().exit_and_end(stdout=b"abc")
        self.assertEqual(b"abc", self.harness.stored())


class FaultyDiskTests(StoreCase):
    """Reads and writes of an output's file that are short, or fail (D57)"""

    def setUp(self) -> None:
        super().setUp()
        self.transfers = Transfers(self)

    def start(self, **settings: Any) -> None:
        super().start(**settings)
        self.harness.fill_sources()

    def render(self, form: str) -> Client:
        """Return a client of a render that has ended; it reads while the encoder writes."""
        data = ENCODED[form]
        client, first = self.harness.render(f"f:{form}")
        self.harness.write_output(data[:-1])
        while self.harness.spawner.alive:
            encoder = self.harness.encoder()
            if encoder.signals:
                encoder.exit_and_end(signal=15)
            else:
                encoder.exit_and_end(stdout=data[-1:] if encoder is first else data)
        self.harness.disk.run()
        self.harness.clock.advance(1)
        self.transfers.clear()
        return client

    def stored(self, form: str) -> bytes | None:
        """Return the stored bytes of the variant in a format, which is then removed."""
        found = self.harness.found(f"f:{form}")
        if found is not None:
            self.harness.variant_path(f"f:{form}").unlink()
        return found

    def test_every_fault(self) -> None:
        """Whatever read or write fails, no client and no store takes a torn output for whole."""
        for form, name, code in product(ENCODED, ("pread", "pwrite"), (errno.EIO, errno.ENOSPC)):
            whole = self.render(form).data
            self.assertEqual(whole, self.stored(form))
            for succeeding in count():
                self.transfers.failures[name] = left = [*[None] * succeeding, code]
                client = self.render(form)
                if left:
                    break
                with self.subTest(form=form, name=name, code=code, succeeding=succeeding):
                    # A read for this client may have failed, and no other one.
                    is_aborted = name == "pread" and isinstance(client.outcome, OSError)
                    self.assertTrue(is_aborted or client.outcome == "whole", client.outcome)
                    self.assertEqual(is_aborted, client.data != whole)
                    self.assertIn(self.stored(form), (None, whole))
                    is_barred = self.render(form).data == whole and self.stored(form) is None
                    self.assertLessEqual(is_barred, code == errno.ENOSPC)
                    self.harness.clock.advance(600)
            self.assertEqual(("whole", whole), (client.outcome, client.data))
            self.assertLess(1, succeeding, (form, name))
            self.stored(form)

    def test_both_disks(self) -> None:
        """If the second disk fails, too, the render fails with the fault of that disk."""
        for codes, refusal in (
            ((errno.EIO, errno.EIO), DiskFailed),
            ((errno.EIO, errno.ENOSPC), DiskFull),
            ((errno.ENOSPC, errno.EIO), DiskFailed),
        ):
            self.make()
            self.transfers.failures["pwrite"] = list(codes)
            client = self.harness.start_probed("f:mp3")
            self.harness.disk.run()
            self.assertIs(refusal, type(client.outcome))
            self.assertEqual(
                ["ffprobe"], [each.arguments[0] for each in self.harness.spawner.children]
            )

    def test_unreadable_start(self) -> None:
        """If what clients have got is unreadable, they are cut off; TMPDIR is not blamed."""
        client, encoder = self.harness.render()
        self.harness.write_output(b"abc")
        (path,) = self.harness.scratch_files()
        encoder.exit_and_end(1, stderr=FullDiskTests.FULL)
        self.transfers.failures["pread"] = [None, None, errno.EIO]
        self.harness.encoder().exit_and_end(stdout=b"abcdef")
        self.assertEqual((True, RenderFailed), (client.data.endswith(b"abc"), type(client.outcome)))
        *_, left, failed = self.log.warnings
        self.assertIn("the disk of the store fails", left)
        self.assertRegex(failed, f"the output file /.*{path} fails: Input/output error")
