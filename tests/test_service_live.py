"""Renders through the whole service: real files, real ffmpeg, real sockets."""

from __future__ import annotations

import os
import shutil
import signal

from tests.support.http import MEDIA_CACHE_CONTROL
from tests.support.programs import FFMPEG
from tests.support.service import (
    ServiceCase,
    children,
    encoders,
    fetch,
    is_running,
    is_stopped,
    long_flac,
    send,
    short_flac,
    signed,
    until,
    until_hit,
)

MINUTE = signed("/f:mp3/t:0:60/plain/local://long.flac")
#: An ffmpeg that writes 100 kB of a render, and the rest once the last process gets SIGCONT.
HELD_FFMPEG = f"""\
#!/bin/sh
case "$*" in
*pipe:1*) {FFMPEG} "$@" | sh -c 'head -c 100000; kill -STOP $$; exec cat' ;;
*) exec {FFMPEG} "$@" ;;
esac
"""
SHORT = signed("/f:mp3/plain/local://short.flac")


class StreamTests(ServiceCase):
    """Renders that are streamed, shared, stored and served again."""

    def setUp(self) -> None:
        super().setUp()
        self.add("long.flac", long_flac())
        self.add("short.flac", short_flac())

    async def test_shared_stream(self) -> None:
        """A render streams, and a client that joins half way gets every byte, from one encoder.

        The encoder runs at nice +10, so that requests get the CPU first.
        """
        node = self.twistd(PATH=self.shadow_ffmpeg(HELD_FFMPEG))
        port = await node.port()
        first = await send(port, MINUTE)
        await until(lambda: len(first.received) > 100_000, "a part of the stream")
        (encoder,) = children(node.pid)
        (held,) = await until(
            lambda: [child for child in children(encoder) if is_stopped(child)],
            "the encoder to stop",
        )
        self.addCleanup(lambda: is_running(held) and os.kill(held, signal.SIGKILL))
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        self.assertEqual(os.getpriority(os.PRIO_PROCESS, encoder), min(19, niceness + 10))
        second = await send(port, MINUTE)
        await until(lambda: len(second.received) > 100_000, "the other client to catch up")
        self.assertEqual([encoder], children(node.pid))
        os.kill(held, signal.SIGCONT)
        one, two = await first.end(), await second.end()
        for cache, response in ((b"MISS", one), (b"COALESCED", two)):
            self.assertEqual((200, True), (response.status, response.complete), cache)
            self.assertEqual(cache, response["x-audio-proxy"])
            self.assertEqual(b"chunked", response["transfer-encoding"])
        self.assertTrue(one.body == two.body, "the clients got different bytes")
        # One minute at 160 kbps, the maximum for 22.05 kHz.
        self.assertApproximates(60 * 20_000, len(one.body), 20_000)

    async def test_miss_and_hit(self) -> None:
        """After a render, requests are hits with the same bytes and headers, and ranges work.

        HEAD of a MISS or HIT has no body, starts no encoder and stores nothing. The file name of
        ``dl`` is in every response (D10). A stored variant survives its source, a restart and a
        change of AP_LOCAL_ROOT. A matching If-None-Match gets 304 even if the store is gone too.
        """
        service = self.start()
        port = service.port
        rest = "/f:mp3/dl:M%C3%BCll.mp3/plain/local://short.flac"
        path = signed(rest)
        head = await fetch(port, path, b"HEAD")
        self.assertEqual((200, b"MISS", b""), (head.status, head["x-audio-proxy"], head.body))
        self.assertIsNone(head["content-length"])
        self.assertEqual([], encoders())
        miss = await fetch(port, path)
        self.assertEqual((200, b"MISS"), (miss.status, miss["x-audio-proxy"]))
        disposition = b"attachment; filename=\"M_ll.mp3\"; filename*=UTF-8''M%C3%BCll.mp3"
        self.assertEqual(disposition, miss["content-disposition"])
        hits = [await until_hit(port, path), await fetch(port, path, b"HEAD")]
        self.assertEqual([miss.body, b""], [hit.body for hit in hits])
        for hit in hits:
            self.assertEqual((200, b"HIT"), (hit.status, hit["x-audio-proxy"]))
            self.assertEqual(b"%d" % len(miss.body), hit["content-length"])
            self.assertEqual(b"bytes", hit["accept-ranges"])
            for name in ("content-type", "cache-control", "etag", "content-disposition"):
                self.assertEqual(miss[name], hit[name], name)
        part = await fetch(port, path, range=b"bytes=1000-1999")
        self.assertEqual((206, miss.body[1000:2000]), (part.status, part.body))
        self.assertEqual(b"bytes 1000-1999/%d" % len(miss.body), part["content-range"])
        beyond = await fetch(port, path, range=b"bytes=99999999-")
        self.assertEqual((416, "range_not_satisfiable"), (beyond.status, beyond.error))
        self.assertEqual(401, (await fetch(port, b"/insecure" + rest.encode())).status)
        await service.stopService()
        shutil.rmtree(self.root)
        self.root.with_name("elsewhere").mkdir()
        port = self.start(local_root=str(self.root.with_name("elsewhere"))).port
        hit = await fetch(port, path)
        self.assertEqual((b"HIT", miss.body), (hit["x-audio-proxy"], hit.body))
        other = await fetch(port, signed("/f:wav/plain/local://short.flac"))
        self.assertEqual(404, other.status)
        shutil.rmtree(self.store)
        tag = miss["etag"] or b""
        response = await fetch(port, path, if_none_match=tag)
        self.assertEqual((304, tag), (response.status, response["etag"]))
        self.assertEqual(MEDIA_CACHE_CONTROL.encode(), response["cache-control"])
