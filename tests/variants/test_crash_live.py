"""Killed nodes and hanging disks: no truncated variant, and no leftover files or processes."""

from __future__ import annotations

import fcntl
import os
import signal
from typing import ClassVar

from tests.render.test_failures_live import QUEUE_DEPTH, ScriptedEncoderCase, target, until_stopped
from tests.support.http import Log
from tests.support.service import (
    ServiceCase,
    fetch,
    is_running,
    scratch_files,
    send,
    short_flac,
    signed,
    until,
    until_hit,
    until_scraped,
)


class KillTests(ScriptedEncoderCase):
    """Nodes on one store, some of which are killed with kill -9 (D40)"""

    encoder_scripts: ClassVar[dict[str, str]] = {
        "start": "stop_self; exec sleep 60",
        "middle": "write_64k; stop_self; exec sleep 60",
    }

    async def test_at_any_moment(self) -> None:
        """A node killed at any stage leaves no encoder and no truncated variant (D40)."""
        node = self.twistd(AP_MAX_CONCURRENCY="2")
        port = await node.port()
        reference = await fetch(port, target("good", "mp3"))
        await until_hit(port, target("good", "mp3"))
        clients, encoders = [], list[int]()
        for script in self.encoder_scripts:
            clients.append(await send(port, target(script, "mp3")))
            encoders.append(await until_stopped(node.pid, but=encoders))
        clients.append(await send(port, target("good", "flac")))
        await until_scraped(
            await node.metrics_port(), lambda series: series[QUEUE_DEPTH] == 1, "a queued render"
        )
        node.signal(signal.SIGKILL)
        self.assertEqual(-signal.SIGKILL, await node.end())
        await until(lambda: not any(map(is_running, encoders)), "the encoders to end")
        await until(lambda: all(client.closed for client in clients), "the connections to break")
        self.assertLessEqual(1, len(scratch_files(self.store)))
        starting, middle, queued = (client.response for client in clients)
        self.assertEqual((None, None), (starting, queued))
        self.assertFalse(middle and middle.complete)
        port = await self.twistd().port()
        # The file of the writability check is removed a moment after the start.
        await until(lambda: not scratch_files(self.store), "the scratch files to go")
        self.assertEqual(1, len(list(self.store.glob("??/*"))))
        # The scratch folder and lock of the running node remain; those of the killed one are gone.
        self.assertEqual(2, len(list((self.store / ".scratch").iterdir())))
        hit = await fetch(port, target("good", "mp3"))
        self.assertEqual((b"HIT", reference.body), (hit["x-audio-proxy"], hit.body))
        for script in self.encoder_scripts:
            head = await fetch(port, target(script, "mp3"), b"HEAD")
            self.assertEqual(b"MISS", head["x-audio-proxy"])


class HungDiskTests(ServiceCase):
    """A disk that suddenly hangs on writes"""

    async def test_write_that_hangs(self) -> None:
        """While a write hangs, clients are served, and a shutdown does not wait for it (D39)."""
        self.add("a.flac", short_flac())
        log = Log(self)
        service = self.start(drain_timeout=1)
        # Each write-back waits for the lock of the ledger.
        ledger = os.open(self.store / ".usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self.addCleanup(os.close, ledger)
        fcntl.flock(ledger, fcntl.LOCK_EX)
        path = signed("/f:wav/plain/local://a.flac")
        for state in (b"MISS", b"COALESCED"):
            response = await fetch(service.port, path)
            self.assertEqual((200, True), (response.status, response.complete))
            self.assertEqual(state, response["x-audio-proxy"])
        self.assertEqual(200, (await fetch(service.port, b"/ready")).status)
        await service.stopService()
        self.assertEqual([], log.errors)
