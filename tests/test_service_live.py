"""Renders through the whole service: real files, real ffmpeg, real sockets."""

from __future__ import annotations

import os
import shutil
import signal

from tests.support.http import MEDIA_CACHE_CONTROL
from tests.support.service import (
    ServiceCase,
    encoders,
    fetch,
    long_flac,
    send,
    short_flac,
    signed,
    until,
    until_hit,
)

#: A render that runs long enough for a test to find its encoder.
FOUR_MINUTES = signed("/f:mp3/t:0:240/plain/local://long.flac")
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
        port = self.start().port
        first = await send(port, FOUR_MINUTES)
        await until(lambda: len(first.received) > 100_000, "a part of the stream")
        (encoder,) = encoders()
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        self.assertEqual(os.getpriority(os.PRIO_PROCESS, encoder), min(19, niceness + 10))
        # The encoder is stopped while the second client catches up.
        os.kill(encoder, signal.SIGSTOP)
        second = await send(port, FOUR_MINUTES)
        # It gets the same bytes in fewer chunks, so that what it receives is shorter.
        await until(lambda: len(second.received) > 50_000, "the other client to catch up")
        self.assertEqual([encoder], encoders())
        os.kill(encoder, signal.SIGCONT)
        one, two = await first.end(), await second.end()
        for cache, response in ((b"MISS", one), (b"COALESCED", two)):
            self.assertEqual((200, True), (response.status, response.complete), cache)
            self.assertEqual(cache, response["x-audio-proxy"])
            self.assertEqual(b"chunked", response["transfer-encoding"])
        self.assertTrue(one.body == two.body, "the clients got different bytes")
        # Four minutes at 160 kbps, the maximum for 22.05 kHz.
        self.assertApproximates(240 * 20_000, len(one.body), 20_000)

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

    async def test_variant_size_limit(self) -> None:
        """Output above AP_MAX_VARIANT_BYTES is cut off and not stored (Errors, 10; D52)."""
        port = self.start(max_variant_bytes=50_000).port
        target = signed("/f:wav/plain/local://short.flac")
        response = await fetch(port, target)
        self.assertEqual((200, False), (response.status, response.complete))
        self.assertLessEqual(len(response.body), 50_000)
        await until(lambda: not encoders(), "the encoder to end")
        self.assertEqual(b"MISS", (await fetch(port, target, b"HEAD"))["x-audio-proxy"])

    async def test_request_of_a_render(self) -> None:
        """Log lines of a render have the id of the request that started it (D54)."""
        log = Log(self)
        port = self.start().port
        # Ten minutes, of which the encoder cannot make much before it is killed.
        target = signed("/f:flac/sr:384000/plain/local://long.flac")
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


class SourceTests(ServiceCase):
    """Sources that are rendered or refused because of their real content."""

    async def test_content(self) -> None:
        """TS, MPEG, AVI, FLV and MXF files without video are rendered; with video they give 415.

        The info document follows the same rule (D43). Text and empty files give 415 too. HEAD runs
        no probe, so it returns 200 for any file (HEAD on signed endpoints, 6). Afterwards no child,
        descriptor or scratch file is left.
        """
        self.add("text.mp3", b"No sound, but words.\n" * 500)
        self.add("empty.mp3", b"")
        words = ["-f", "lavfi", "-i", "testsrc=size=352x288:rate=25:duration=0.5"]
        words += ["-f", "lavfi", "-i", "sine=sample_rate=48000:duration=0.5"]
        codecs = {
            "a.ts": "-c:v mpeg2video -c:a mp2",
            "a.mpg": "-c:v mpeg1video -c:a mp2",
            "a.avi": "-c:v mpeg4 -c:a libmp3lame",
            "a.flv": "-c:v flv -c:a libmp3lame -ar 44100",
            "a.mxf": "-c:v mpeg2video -c:a pcm_s16le",
        }
        for name, codec in codecs.items():
            words += ["-map", "0", "-map", "1", *codec.split(), "-bitexact"]
            words += [str(self.root / f"film-{name}"), "-map", "1", *codec.split()[2:], "-bitexact"]
            # ffmpeg's mxf muxer requires a video stream; mxf_opatom writes a single audio stream.
            words += ["-f", "mxf_opatom"] if name == "a.mxf" else []
            words.append(str(self.root / name))
        generate_audio(Path(words.pop()), *words)
        port = self.start().port
        await fetch(port, signed("/plain/local://a.ts"))
        before = descriptors(os.getpid())
        for name in codecs:
            for options in ("f:wav", "info"):
                heard = await fetch(port, signed(f"/{options}/plain/local://{name}"))
                self.assertEqual((200, True), (heard.status, heard.complete), (name, options))
                film = await fetch(port, signed(f"/{options}/plain/local://film-{name}"))
                self.assertEqual((415, "video_source"), (film.status, film.error), (name, options))
        for name in ("text.mp3", "empty.mp3"):
            path = signed(f"/plain/local://{name}")
            refused = await fetch(port, path)
            self.assertEqual((415, "undecodable_source"), (refused.status, refused.error), name)
            self.assertEqual(b"max-age=10", refused["cache-control"])
            self.assertEqual(200, (await fetch(port, path, b"HEAD")).status)
        await until(lambda: not children(), "all children to be reaped")
        await until(lambda: not scratch_files(self.store), "the scratch files to go")
        await until(lambda: descriptors(os.getpid()) <= before, "descriptors to be closed")

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
                for method in (b"HEAD", b"GET"):
                    response = await fetch(port, signed(f"/plain/{source}"), method)
                    self.assertEqual(status, response.status, source)
                self.assertEqual(error, response.error)
