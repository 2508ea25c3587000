"""Sources that make ffmpeg or ffprobe take memory, or a CPU for minutes.

With some files of 2 kB, ffprobe 5.1.9 and 7.1.5 take 6 GB and ten seconds, and 9.0.2 takes 7 GB. A
program that stands in for ffmpeg and ffprobe does so here, with ordinary files.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from twisted.internet.defer import Deferred, gatherResults

from tests.support.audio import riff
from tests.support.processes import set_environment
from tests.support.programs import STAND_IN
from tests.support.service import ServiceCase, fetch, short_flac, signed

#: The least AP_MAX_CHILD_MEMORY; ffmpeg 9 needs more than 128 MiB for the stacks of its threads.
MEMORY = 384 << 20


class HungrySourceTests(ServiceCase):
    """Children that take memory or a CPU, and a source of 1 Hz"""

    def stand_in(self, *names: str) -> None:
        """Replace ffmpeg and ffprobe, and add sources of these names and an ordinary one."""
        path = self.shadow_ffmpeg(STAND_IN)
        program = Path(path.partition(":")[0], "ffmpeg")
        os.link(program, program.with_name("ffprobe"))
        set_environment(self, PATH=path)
        for name in ("short", *names):
            # Names of one file would share a probe.
            self.add(f"{name}.flac", short_flac().read_bytes())

    async def assert_others_served(self, port: int) -> None:
        """Assert that variants of the ordinary source are rendered."""
        paths = [signed(f"/f:mp3/br:{rate}/plain/local://short.flac") for rate in (64, 96, 128)]
        others = [Deferred.fromCoroutine(fetch(port, path)) for path in paths]
        for response in await gatherResults(others, consumeErrors=True):
            self.assertEqual((200, True), (response.status, response.complete))

    async def test_memory(self) -> None:
        """A source that needs more memory is a 415; other clients are served."""
        names = ("memory-ffmpeg", "memory-ffprobe")
        self.stand_in(*names)
        port = self.start(max_child_memory=MEMORY, variant_store=None).port
        requests = [signed(f"/f:mp3/plain/local://{name}.flac") for name in names]
        hungry = [Deferred.fromCoroutine(fetch(port, each)) for each in requests * 4]
        await self.assert_others_served(port)
        for response in await gatherResults(hungry, consumeErrors=True):
            self.assertEqual((415, "undecodable_source"), (response.status, response.error))
            self.assertIn("memory", response.document["message"])
        for name, status in zip(names, (200, 415), strict=True):
            info = await fetch(port, signed(f"/info/plain/local://{name}.flac"))
            self.assertEqual(status, info.status, name)

    async def test_cpu(self) -> None:
        """A probe that takes a CPU for too long is a 504; other clients are served."""
        self.stand_in("cpu-ffprobe")
        port = self.start(variant_store=None, probe_timeout=5).port
        # The ordinary source is probed before the machine is busy.
        await self.assert_others_served(port)
        path = signed("/f:mp3/plain/local://cpu-ffprobe.flac")
        hungry = Deferred.fromCoroutine(fetch(port, path))
        await self.assert_others_served(port)
        response = await hungry
        self.assertEqual((504, "probe_timeout"), (response.status, response.error))

    async def test_low_rates(self) -> None:
        """A sample rate of 1 Hz is resampled piece by piece: its renders are whole."""
        form = struct.pack("<HHIIHH", 1, 1, 1, 2, 2, 16)
        self.add("low.wav", riff(form, b"\1\0" * 30))
        port = self.start().port
        for options, size in (("f:wav/sr:48000", 30 * 48_000 * 2), ("f:mp3", 30 * 64_000 // 8)):
            response = await fetch(port, signed(f"/{options}/plain/local://low.wav"))
            self.assertEqual((200, True), (response.status, response.complete))
            self.assertApproximates(size, len(response.body), 10_000)
