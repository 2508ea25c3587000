"""Renders through the whole service: real files, real ffmpeg, real sockets."""

from __future__ import annotations

import os
import shutil
import signal
import socket

from audioproxy.config import FileStore
from audioproxy.grammar.signature import sign
from tests.support.http import KEY, MEDIA_CACHE_CONTROL, SALT, Log
from tests.support.service import (
    ServiceCase,
    children,
    encoders,
    fetch,
    generate_audio,
    long_flac,
    scratch_files,
    send,
    short_flac,
    signed,
    until,
    until_hit,
)

LONG = signed("/f:mp3/plain/local://long.flac")
#: A render that runs long enough for a test to find its encoder.
FOUR_MINUTES = signed("/f:mp3/t:0:240/plain/local://long.flac")
SHORT = signed("/f:mp3/plain/local://short.flac")


class StreamTests(ServiceCase):
    """Renders that are streamed, shared, stored and served again."""

    def setUp(self) -> None:
        super().setUp()
        self.add("long.flac", long_flac())
        self.add("short.flac", short_flac())

    async def test_streams_as_it_renders(self) -> None:
        """A render streams: the first byte arrives while the encoder is still running."""
        port = self.start().port
        client = await send(port, LONG)
        await until(lambda: client.response, "the headers")
        running = encoders()
        early = len(client.received)
        self.assertEqual(1, len(running), "the first byte came after the encoder's end")
        response = await client.end()
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertEqual(b"MISS", response["x-audio-proxy"])
        self.assertEqual(b"chunked", response["transfer-encoding"])
        self.assertGreater(len(response.body), 10 * early)
        # Ten minutes at 160 kbps, the maximum for 22.05 kHz.
        self.assertApproximates(600 * 20_000, len(response.body), 20_000)

    async def test_encoder_niceness(self) -> None:
        """Encoders run at nice +10, so that requests get the CPU first."""
        client = await send(self.start().port, LONG)
        await until(lambda: client.response)
        (encoder,) = encoders()
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        self.assertEqual(os.getpriority(os.PRIO_PROCESS, encoder), min(19, niceness + 10))
        await client.leave()

    async def test_second_client_joins_half_way(self) -> None:
        """A client that joins half way gets every byte from the start, without a second encoder."""
        port = self.start().port
        first = await send(port, FOUR_MINUTES)
        await until(lambda: len(first.received) > 1_000_000, "a part of the stream")
        (encoder,) = encoders()
        # The encoder is stopped while the second client catches up.
        os.kill(encoder, signal.SIGSTOP)
        second = await send(port, FOUR_MINUTES)
        await until(lambda: len(second.received) > 1_000_000, "the other client to catch up")
        self.assertEqual([encoder], encoders())
        os.kill(encoder, signal.SIGCONT)
        one, two = await first.end(), await second.end()
        self.assertEqual((b"MISS", b"COALESCED"), (one["x-audio-proxy"], two["x-audio-proxy"]))
        self.assertTrue(one.complete and two.complete)
        self.assertTrue(one.body == two.body, "the clients got different bytes")

    async def test_source_truncated_during_render(self) -> None:
        """A source truncated during its render breaks the stream, and nothing is stored (D35)."""
        source = self.add("growing.flac", long_flac().read_bytes())
        port = self.start().port
        target = signed("/plain/local://growing.flac")
        client = await send(port, target)
        await until(lambda: client.received, "the first bytes")
        (encoder,) = encoders()
        os.kill(encoder, signal.SIGSTOP)
        os.truncate(source, source.stat().st_size // 2)
        os.kill(encoder, signal.SIGCONT)
        self.assertFalse((await client.end()).complete)
        self.assertEqual(b"MISS", (await fetch(port, target, b"HEAD"))["x-audio-proxy"])

    async def test_endless_body(self) -> None:
        """An endless request body is not read to its end: the connection is closed."""
        port = self.start().port
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            client.send(b"GET /health HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n\r\n")

            def refused() -> bool:
                try:
                    client.send(bytes(65536))
                except BlockingIOError:
                    return False
                except ConnectionError:
                    return True
                return False

            await until(refused, "the connection to be closed")

    async def test_hit(self) -> None:
        """After the render, requests are hits with the same bytes, and ranges work."""
        port = self.start().port
        miss = await fetch(port, SHORT)
        hit = await until_hit(port, SHORT)
        self.assertEqual(miss.body, hit.body)
        for name in ("content-type", "cache-control", "etag"):
            self.assertEqual(miss[name], hit[name], name)
        self.assertEqual(b"%d" % len(miss.body), hit["content-length"])
        part = await fetch(port, SHORT, range=b"bytes=1000-1999")
        self.assertEqual((206, miss.body[1000:2000]), (part.status, part.body))
        self.assertEqual(b"bytes 1000-1999/%d" % len(miss.body), part["content-range"])
        beyond = await fetch(port, SHORT, range=b"bytes=99999999-")
        self.assertEqual((416, "range_not_satisfiable"), (beyond.status, beyond.error))

    async def test_both_spellings_of_a_signature(self) -> None:
        """A signature is valid unpadded and with one `=`; wrong keys and other padding give 401."""
        port = self.start().port
        rest = b"/f:mp3/plain/local://short.flac"
        signature = sign(KEY, SALT, rest)
        for spelling in (signature, signature + b"="):
            self.assertEqual(200, (await fetch(port, b"/" + spelling + rest)).status)
        for other in (sign(SALT, KEY, rest), b"insecure", signature + b"=="):
            self.assertEqual(401, (await fetch(port, b"/" + other + rest)).status)

    async def test_outlives_source_restart_and_root(self) -> None:
        """A stored variant survives its source, a restart and a change of AP_LOCAL_ROOT."""
        service = self.start()
        miss = await fetch(service.port, SHORT)
        await service.stopService()
        shutil.rmtree(self.root)
        elsewhere = self.root.with_name("elsewhere")
        elsewhere.mkdir()
        service = self.start(local_root=str(elsewhere))
        hit = await fetch(service.port, SHORT)
        self.assertEqual((b"HIT", miss.body), (hit["x-audio-proxy"], hit.body))
        other = await fetch(service.port, signed("/f:wav/plain/local://short.flac"))
        self.assertEqual(404, other.status)

    async def test_head(self) -> None:
        """HEAD of a MISS or HIT has no body, starts no encoder and stores nothing."""
        port = self.start().port
        miss = await fetch(port, SHORT, b"HEAD")
        self.assertEqual((200, b"MISS", b""), (miss.status, miss["x-audio-proxy"], miss.body))
        self.assertIsNone(miss["content-length"])
        self.assertEqual([], encoders())
        get = await fetch(port, SHORT)
        self.assertEqual(b"MISS", get["x-audio-proxy"])
        await until_hit(port, SHORT)
        hit = await fetch(port, SHORT, b"HEAD")
        self.assertEqual((200, b"HIT", b""), (hit.status, hit["x-audio-proxy"], hit.body))
        self.assertEqual(b"%d" % len(get.body), hit["content-length"])
        self.assertEqual(b"bytes", hit["accept-ranges"])
        # HEAD runs no probe, so it returns 200 where GET returns 415 (HEAD on signed endpoints, 6).
        self.add("text.mp3", b"words " * 1000)
        text = signed("/plain/local://text.mp3")
        self.assertEqual(200, (await fetch(port, text, b"HEAD")).status)
        self.assertEqual(415, (await fetch(port, text)).status)

    async def test_304_without_storage(self) -> None:
        """A matching If-None-Match gets 304 even if store and source are gone."""
        port = self.start().port
        tag = (await fetch(port, SHORT, b"HEAD"))["etag"] or b""
        shutil.rmtree(self.store)
        shutil.rmtree(self.root)
        response = await fetch(port, SHORT, if_none_match=tag)
        self.assertEqual((304, tag), (response.status, response["etag"]))
        self.assertEqual(MEDIA_CACHE_CONTROL.encode(), response["cache-control"])

    async def test_download(self) -> None:
        """MISS and HIT both carry the file name of ``dl`` (D10)."""
        port = self.start().port
        path = signed("/dl:M%C3%BCll.mp3/plain/local://short.flac")
        expected = b"attachment; filename=\"M_ll.mp3\"; filename*=UTF-8''M%C3%BCll.mp3"
        self.assertEqual(expected, (await fetch(port, path))["content-disposition"])
        self.assertEqual(expected, (await until_hit(port, path))["content-disposition"])

    async def test_without_a_store(self) -> None:
        """Without a variant store no request is a hit, and no file remains."""
        port = self.start(variant_store=None).port
        first = await fetch(port, SHORT)
        self.assertEqual(b"MISS", first["x-audio-proxy"])
        again = await fetch(port, SHORT)
        self.assertIn(again["x-audio-proxy"], (b"MISS", b"COALESCED"))
        self.assertEqual(first.body, again.body)
        self.assertEqual([], list(self.store.iterdir()))

    async def test_all_clients_leave(self) -> None:
        """After all clients leave, a render with a store continues; without one it ends (D36)."""
        for store in (FileStore(str(self.store)), None):
            service = self.start(variant_store=store)
            client = await send(service.port, FOUR_MINUTES)
            await until(lambda client=client: client.response, "the headers")
            (encoder,) = encoders()
            os.kill(encoder, signal.SIGSTOP)
            await client.leave()
            if store is not None:
                self.assertEqual([encoder], encoders())
                os.kill(encoder, signal.SIGCONT)
                await until_hit(service.port, FOUR_MINUTES)
                shutil.rmtree(self.store)
                self.store.mkdir()
            else:
                os.kill(encoder, signal.SIGCONT)
            await until(lambda: not encoders(), "the encoder to end")
            await service.stopService()

    async def test_variant_size_limit(self) -> None:
        """Output above AP_MAX_VARIANT_BYTES breaks the stream and is not stored (Errors, 10).

        Clients get at most AP_MAX_VARIANT_BYTES bytes, for small and large limits (D52).
        """
        for limit in (100_000, 1_000_000):
            service = self.start(max_variant_bytes=limit)
            response = await fetch(service.port, signed("/f:wav/plain/local://long.flac"))
            self.assertFalse(response.complete and response.status == 200)
            self.assertLessEqual(len(response.body), limit)
            await service.stopService()
        port = self.start(max_variant_bytes=4_000_000).port
        response = await fetch(port, LONG)
        self.assertEqual((200, False), (response.status, response.complete))
        self.assertLessEqual(len(response.body), 4_000_000)
        await until(lambda: not encoders(), "the encoder to end")
        again = await fetch(port, LONG, b"HEAD")
        self.assertEqual(b"MISS", again["x-audio-proxy"])
        await until(lambda: not scratch_files(self.store), "the scratch file to go")

    async def test_deleted_source(self) -> None:
        """Without a store every GET renders, and returns 404 once the source is deleted (D37)."""
        self.add("gone.flac", short_flac())
        port, target = self.start(variant_store=None).port, signed("/plain/local://gone.flac")
        for _ in range(2):
            response = await fetch(port, target)
            self.assertEqual((200, b"MISS"), (response.status, response["x-audio-proxy"]))
        (self.root / "gone.flac").unlink()
        self.assertEqual(404, (await fetch(port, target)).status)

    async def test_request_of_a_render(self) -> None:
        """Log lines of a render have the id of the request that started it (D54)."""
        log = Log()
        self.addCleanup(log.start())
        port = self.start().port
        target = signed("/f:wav/plain/local://long.flac")
        first = await send(port, target, x_request_id=b"first")
        await until(lambda: first.response, "the headers")
        second = await send(port, target, x_request_id=b"second")
        await until(lambda: second.response, "the headers")
        for encoder in encoders():
            os.kill(encoder, signal.SIGKILL)
        for client in (first, second):
            self.assertFalse((await client.end()).complete)
        await fetch(port, signed("/plain/local://none.flac"), x_request_id=b"third")
        found = {
            (event["request_id"], event["log_format"].partition(" (")[0])
            for event in log.events
            if "request_id" in event and "{record}" not in event["log_format"]
        }
        self.assertEqual(
            found,
            {
                ("first", "the render of {key} has a slot"),
                ("first", "the encoder failed"),
                ("first", "the render of {key} has failed: {why}"),
                ("third", "the render of {key} has failed: {why}"),
                ("third", "the reason for a 404: {reason}"),
            },
        )

    async def test_nothing_leaks(self) -> None:
        """Renders, refusals and aborted requests leave no child, descriptor or scratch file."""
        self.add("text.mp3", b"words " * 1000)
        port = self.start().port
        await fetch(port, SHORT)
        before = len(os.listdir("/proc/self/fd"))
        for number in range(2):
            ended = await fetch(port, signed(f"/cb:{number}/plain/local://short.flac"))
            self.assertEqual(200, ended.status)
            await fetch(port, signed(f"/cb:{number}/plain/local://text.mp3"))
            await fetch(port, signed(f"/cb:{number}/plain/local://none.mp3"))
            client = await send(port, signed(f"/cb:{number}/t:0:20/plain/local://long.flac"))
            if number:
                await until(lambda client=client: client.response, "the headers")
            await client.leave()
        await until(lambda: not children(), "all children to be reaped")
        await until(lambda: not scratch_files(self.store), "the scratch files to go")
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before, "descriptors to be closed")


class SourceTests(ServiceCase):
    """Sources that are rendered or refused because of their real content."""

    async def test_source_content(self) -> None:
        """Video, text, playlists and empty files return 415; audio with cover art is rendered."""
        video = ("-f", "lavfi", "-i", "testsrc=size=64x64:rate=5:duration=1")
        sine = ("-f", "lavfi", "-i", "sine=duration=1")
        generate_audio(self.root / "film.mp4", *video, *sine, "-shortest")
        generate_audio(self.root / "silent.mp4", *video)
        generate_audio(self.root / "cover.png", *video, "-frames:v", "1")
        cover = ("-i", str(self.root / "cover.png"), "-map", "0", "-map", "1")
        generate_audio(self.root / "cover.mp3", *sine, *cover, "-disposition:v", "attached_pic")
        self.add("text.mp3", b"No sound, but words.\n" * 500)
        self.add("empty.mp3", b"")
        self.add("list.mp3", b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n")
        port = self.start().port
        for name, status, code in (
            ("film.mp4", 415, "video_source"),
            ("silent.mp4", 415, "video_source"),
            ("cover.mp3", 200, None),
            ("text.mp3", 415, "undecodable_source"),
            ("empty.mp3", 415, "undecodable_source"),
            ("list.mp3", 415, "undecodable_source"),
        ):
            response = await fetch(port, signed(f"/plain/local://{name}"))
            self.assertEqual(status, response.status, name)
            if code is not None:
                self.assertEqual(code, response.error, name)
                self.assertEqual(b"max-age=10", response["cache-control"])

    async def test_broadcast_containers(self) -> None:
        """TS, MPEG, AVI, FLV and MXF files without video are rendered; with video they give 415.

        The info document follows the same rule (D43).
        """
        video = ("-f", "lavfi", "-i", "testsrc=size=352x288:rate=25:duration=0.5")
        sine = ("-f", "lavfi", "-i", "sine=sample_rate=48000:duration=0.5")
        for name, video_codec, *sound in (
            ("a.ts", "mpeg2video", "-c:a", "mp2"),
            ("a.mpg", "mpeg1video", "-c:a", "mp2"),
            ("a.avi", "mpeg4", "-c:a", "libmp3lame"),
            ("a.flv", "flv", "-c:a", "libmp3lame", "-ar", "44100"),
            ("a.mxf", "mpeg2video", "-c:a", "pcm_s16le"),
        ):
            # ffmpeg's mxf muxer requires a video stream; mxf_opatom writes a single audio stream.
            alone = (*sound, "-f", "mxf_opatom") if name == "a.mxf" else sound
            generate_audio(self.root / name, *sine, *alone)
            generate_audio(self.root / f"film-{name}", *video, *sine, "-c:v", video_codec, *sound)
        port = self.start().port
        for name in ("a.ts", "a.mpg", "a.avi", "a.flv", "a.mxf"):
            for options in ("f:wav", "info"):
                heard = await fetch(port, signed(f"/{options}/plain/local://{name}"))
                self.assertEqual((200, True), (heard.status, heard.complete), (name, options))
                film = await fetch(port, signed(f"/{options}/plain/local://film-{name}"))
                self.assertEqual((415, "video_source"), (film.status, film.error), (name, options))

    async def test_confinement(self) -> None:
        """Paths outside the root and non-regular files return the same 404 as missing files."""
        outside = self.root.with_name("outside.flac")
        os.link(short_flac(), outside)
        self.add("folder/inside.flac", short_flac())
        os.symlink(outside, self.root / "out.flac")
        os.symlink("/", self.root / "slash")
        os.symlink("folder/inside.flac", self.root / "in.flac")
        os.symlink("loop.flac", self.root / "loop.flac")
        os.mkfifo(self.root / "fifo.flac")
        port = self.start().port
        responses = set()
        for path in (
            "missing.flac",
            "out.flac",
            f"slash{outside}",
            "loop.flac",
            "fifo.flac",
            "folder",
            "folder/",
            "../outside.flac",
            "folder/../../outside.flac",
            "%2e%2e/outside.flac",
            f"%2F{str(outside)[1:]}",
            "folder/inside.flac%00",
            "folder/inside.flac/",
            "folder/inside.flac/x",
            "a/" * 64 + "x",
            "x" * 300,
            "slash/dev/zero",
        ):
            for method in (b"GET", b"HEAD"):
                target = signed(f"/plain/local://{path}")
                response = await fetch(port, target, method, x_request_id=b"same")
                self.assertEqual(404, response.status, path)
                if method == b"GET":
                    headers = [line for line in response.headers if line[0] != b"date"]
                    responses.add((tuple(headers), response.body))
        self.assertEqual(1, len(responses), responses)
        # A symlink to a file inside the root, and a path with `..` that stays inside the root.
        for path in ("in.flac", "folder/../folder/inside.flac"):
            response = await fetch(port, signed(f"/plain/local://{path}"), b"HEAD")
            self.assertEqual(200, response.status, path)

    async def test_size(self) -> None:
        """A source of AP_MAX_SRC_BYTES is rendered; a source one byte larger returns 413."""
        size = self.add("short.flac", short_flac()).stat().st_size
        for limit, status in ((size, 200), (size - 1, 413)):
            port = self.start(max_src_bytes=limit).port
            for method in (b"HEAD", b"GET"):
                path = signed(f"/cb:{limit}/plain/local://short.flac")
                self.assertEqual(status, (await fetch(port, path, method)).status)

    async def test_unconfigured_sources(self) -> None:
        """Local sources require AP_LOCAL_ROOT, and bucket sources require credentials."""
        port = self.start(local_root=None, source_allowlist=("bucket", "127.0.0.1")).port
        with socket.socket() as unused:
            # Bound but not listening, so that no other program can take the port.
            unused.bind(("127.0.0.1", 0))
            closed = unused.getsockname()[1]
            for source, status, error in (
                ("local://short.flac", 404, "not_found"),
                ("s3://bucket/key", 500, "not_configured"),
                ("s3://other/key", 404, "not_found"),
                (f"https://127.0.0.1:{closed}/a", 502, "upstream_unavailable"),
                (f"https://127.0.0.2:{closed}/a", 404, "not_found"),
            ):
                for method in (b"GET", b"HEAD"):
                    response = await fetch(port, signed(f"/plain/{source}"), method)
                    self.assertEqual(status, response.status, source)
                    if method == b"GET":
                        self.assertEqual(error, response.error)

    async def test_start_past_the_end(self) -> None:
        """A start past the source's end returns 422 with the source's duration (D11)."""
        self.add("short.flac", short_flac())
        port = self.start().port
        response = await fetch(port, signed("/t:5/plain/local://short.flac"))
        self.assertEqual((422, "invalid_options"), (response.status, response.error))
        self.assertIn("1", response.document["message"])


class SlotTests(ServiceCase):
    """Two render slots, and a queue of one."""

    async def test_queue(self) -> None:
        """With two slots taken and one render queued, another render gets 429 with Retry-After."""
        self.add("long.flac", long_flac())
        self.add("short.flac", short_flac())
        port = self.start(queue_size=1, render_timeout=120).port
        await fetch(port, SHORT)
        await until_hit(port, SHORT)
        paths = [signed(f"/cb:{number}/t:0:30/plain/local://long.flac") for number in range(4)]
        running = [await send(port, path) for path in paths[:2]]
        for number in range(2):
            await until(lambda number=number: len(encoders()) > number, "an encoder")
            for encoder in encoders():
                os.kill(encoder, signal.SIGSTOP)
        held = encoders()
        waiting = await send(port, paths[2])
        await until_ready_is(port, 503)
        refused = await fetch(port, paths[3])
        self.assertEqual((429, "queue_full"), (refused.status, refused.error))
        self.assertEqual(b"no-store", refused["cache-control"])
        self.assertIn(int(refused["retry-after"] or b"0"), range(1, 121))
        self.assertEqual(held, encoders())
        self.assertIsNone(waiting.response)
        # A hit and a client that joins a running render need no slot.
        self.assertEqual(b"HIT", (await fetch(port, SHORT))["x-audio-proxy"])
        joined = await send(port, paths[0])
        for encoder in held:
            os.kill(encoder, signal.SIGCONT)
        for client in (*running, waiting, joined):
            response = await client.end()
            self.assertEqual((200, True), (response.status, response.complete))
        await until_ready_is(port, 200)


async def until_ready_is(port: int, status: int) -> None:
    """Repeat GET /ready until it returns a status."""
    while (await fetch(port, b"/ready")).status != status:
        pass
