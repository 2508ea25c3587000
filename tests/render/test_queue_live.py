"""More requests than render slots: queue order and rejections."""

from __future__ import annotations

import os
import signal
from typing import ClassVar

from audioproxy.service import AudioProxy
from tests.render.test_failures_live import (
    QUEUE_DEPTH,
    ScriptedEncoderCase,
    target,
    until_stopped,
)
from tests.support.service import (
    Client,
    counter_increases,
    fetch,
    scrape,
    send,
    until_scraped,
)


class QueueTests(ScriptedEncoderCase):
    """One render slot, and a queue of three; encoders stop until a test continues them."""

    encoder_scripts: ClassVar[dict[str, str]] = {"busy": "stop_self; write_64k; exit 0"}

    async def until_depth(self, service: AudioProxy, depth: int) -> None:
        """Wait until a number of renders are queued for a slot; require what /ready reports."""
        await until_scraped(
            service.metrics_port, lambda series: series[QUEUE_DEPTH] == depth, f"{depth} renders"
        )
        response = await fetch(service.port, b"/ready")
        status, ready = (200, "ready") if depth < 2 else (503, "not_ready")
        expected = {"status": ready, "queued": depth, "threshold": 2}
        self.assertEqual((status, expected), (response.status, response.document))

    async def fill_queue(self) -> tuple[AudioProxy, list[Client]]:
        """Start one render, and queue three others."""
        service = await self.start_service(max_concurrency=1, queue_size=3, ready_queue_threshold=2)
        clients = []
        for number in range(4):
            clients.append(await self.connect(service.port, number))
            if not number:
                await until_stopped()
            await self.until_depth(service, number)
        return service, clients

    async def connect(self, port: int, number: int) -> Client:
        """Connect a client that requests the variant of a number."""
        client: Client = await send(port, target("busy", "aac", f"/cb:{number}"))
        return client

    async def test_order(self) -> None:
        """Queued requests are served in order; /ready is 503 while two or more are queued.

        A client that leaves the queue frees its place at once, and its render never starts.
        """
        service, clients = await self.fill_queue()
        before = await scrape(service.metrics_port)
        refused = await fetch(service.port, target("busy", "aac", "/cb:refused"))
        self.assertEqual((429, "queue_full"), (refused.status, refused.error))
        self.assertEqual(b"no-store", refused["cache-control"])
        self.assertIn(int(refused["retry-after"] or 0), range(1, 301))
        await clients.pop(2).leave()
        await self.until_depth(service, 2)
        clients.append(await self.connect(service.port, 4))
        await self.until_depth(service, 3)
        for number, depth in enumerate((2, 1, 0, 0)):
            os.kill(await until_stopped(), signal.SIGCONT)
            response = await clients[number].end()
            self.assertEqual((200, True), (response.status, response.complete))
            self.assertEqual([], [each for each in clients[number + 1 :] if each.received])
            await self.until_depth(service, depth)
        counted = counter_increases(before, await self.until_idle(service))
        self.assertEqual(1, counted["render_queue_rejections_total"])
        self.assertEqual(4, counted['renders_total{format="aac",outcome="success"}'])
