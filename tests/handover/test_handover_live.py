"""Replacement of a service under load, in short: no times are measured."""

from __future__ import annotations

import os
import signal

from twisted.internet.defer import Deferred

from tests.handover.case import NEW_KEY, NEW_SALT, ROTATION, HandoverCase
from tests.support.programs import HELD_FFMPEG
from tests.support.service import children, fetch, is_stopped, send, until, until_hit, until_scraped


class HandoverTests(HandoverCase):
    """Two replacements of one service; `tests.handover.long` has ten."""

    async def test_two_replacements(self) -> None:
        """Clients see no failure while the service is replaced and its key is changed.

        A render of the old instance ends, however long it takes. A request that waits there for a
        slot is closed, and the new instance responds. Wrong settings change nothing.
        """
        self.add_sources(1)
        self.variables["AP_MAX_CONCURRENCY"] = "1"
        self.instance = await self.start()
        load, stored = self.load, self.path("f:mp3")
        await fetch(self.port, self.sign(stored))
        await until_hit(self.port, self.sign(stored))
        load.every(0.02, lambda: load.hit(stored))
        load.every(0.1, lambda: load.get(f"/info/plain/s3://{self.sources}/short.flac"))
        await self.replace(PATH=self.shadow_ffmpeg(HELD_FFMPEG), **ROTATION["new is accepted"])
        self.signs_with = NEW_KEY, NEW_SALT
        old = self.instance
        client = await send(self.port, self.sign(self.path("f:wav", "long.flac")))
        (encoder,) = await until(
            lambda: [child for child in children(old.pid) if is_stopped(child)], "the encoder"
        )
        waiting = Deferred.fromCoroutine(load.get(self.path("f:flac"), renders=True))
        await until_scraped(
            self.metrics_port, lambda it: it["audio_proxy_render_queue_depth"], "the queue"
        )
        await self.refuse(AP_SALT="not hexadecimal")
        self.assertEqual(0, load.seen.repeated)
        path = os.environ["PATH"]
        replacing = Deferred.fromCoroutine(self.replace(PATH=path, **ROTATION["new is current"]))
        await old.printed(rf"Port {self.port} Closed", "the port to close")
        before = sum(load.seen.statuses.values())
        await until(lambda: sum(load.seen.statuses.values()) > before + 20, "responses")
        await waiting
        self.assertEqual(1, load.seen.repeated)
        self.assertEqual((None, None), (old.code, client.closed))
        os.kill(encoder, signal.SIGCONT)
        response = await client.end()
        self.assertEqual((200, True), (response.status, response.complete))
        await replacing
        await load.stop()
        self.assertEqual([], load.seen.failures)
        self.assertEqual({200}, load.seen.statuses.keys())
