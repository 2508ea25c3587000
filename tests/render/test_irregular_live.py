"""Irregular sources through the whole service, which the first listener gets whole."""

from __future__ import annotations

import os
import struct

from twisted.internet.defer import Deferred, gatherResults

from tests.support.audio import convert, convert_all, decode, decode_all, noise, tone, write_wav
from tests.support.http import Response
from tests.support.programs import STAND_IN
from tests.support.service import ServiceCase, fetch, signed, until_hit

MP3 = "-c:a libmp3lame -b:a 128k -write_xing 0 -id3v2_version 0 -f mp3"


class IrregularTests(ServiceCase):
    """Sources that change inside, or hold samples that are no audio (D63)."""

    async def fetch_twice(self, port: int, path: bytes) -> Response:
        """Request a variant on a node without a store, which then knows the source.

        Both responses are whole, and the same (D78).
        """
        first, again = [await fetch(port, path) for _ in range(2)]
        self.assertEqual((True, True), (first.complete, again.complete), path)
        self.assertTrue(first.body == again.body, path)
        return first

    async def fetch_whole(self, port: int, path: bytes) -> Response:
        """Request a variant until it is not broken off; that is at most once."""
        response = await fetch(port, path)
        if response.complete:
            return response
        self.assertEqual(response["x-audio-proxy"], b"MISS")
        again = await fetch(port, path)
        # Nothing of the first attempt was stored.
        self.assertEqual((again["x-audio-proxy"], again.complete), (b"MISS", True))
        return again

    def join(self, name: str, *forms: str) -> dict[str, bytes]:
        """Add a source that consists of several files, the first of 20 s; return these."""
        parts = {}
        for number, form in enumerate(forms):
            sound = tone(44100, (6 if number else 20) * 44100, 440, 440)
            parts[str(number)] = convert(write_wav(sound), form)
        self.add(name, b"".join(parts.values()))
        return parts

    async def test_first_listener(self) -> None:
        """The first listener gets all of a source that changes inside, in one response (D63).

        What the node then knows changes no byte, and neither does another node or the store (D78).
        """
        parts = self.join("a.mp3", f"{MP3} -ac 1", f"{MP3} -ac 2", f"{MP3} -ar 48000")
        self.join("a.ac3", "-ac 2 -c:a ac3 -f ac3", "-ac 1 -c:a ac3 -f ac3")
        self.join("a.ogg", "-c:a flac -f ogg", "-c:a flac -ar 48000 -serial_offset 9 -f ogg")
        bodies = {}
        for name in ("a.mp3", "a.ac3", "a.ogg"):
            for options in (
                *("f:wav/bd:16/sr:22050", "f:flac", "f:mp3", "f:opus", "f:ogg", "f:aac", "f:m4a"),
                *("f:wav/t:1:21", "f:flac/fade:1:1"),
            ):
                if name == "a.mp3" or options == "f:wav/bd:16/sr:22050":
                    # Each is the first request of a node.
                    port = self.start(variant_store=None).port
                    path = signed(f"/{options}/plain/local://{name}")
                    bodies[name, options] = (await self.fetch_twice(port, path)).body
        sounds = decode_all({"whole": bodies["a.mp3", "f:flac"], **parts})
        lengths = [len(sounds[name]) / sounds[name].rate for name in ("0", "1", "2")]
        self.assertLess(abs(len(sounds["whole"]) / 44100 - sum(lengths)), 0.01)
        self.assertEqual(21 * 44100, len(decode(bodies["a.mp3", "f:wav/t:1:21"])))
        port = self.start().port
        path = signed("/f:flac/plain/local://a.mp3")
        await fetch(port, path)
        self.assertTrue((await until_hit(port, path)).body == bodies["a.mp3", "f:flac"])

    async def test_variants_at_once(self) -> None:
        """Several variants of such a source that are requested at once are all whole."""
        self.join("a.mp3", f"{MP3} -ac 1", f"{MP3} -ac 2")
        forms = ("f:mp3", "f:flac", "f:ogg", "f:peaks/pts:100", "f:opus")
        node = self.start(variant_store=None, max_concurrency=len(forms))
        paths = [signed(f"/{form}/plain/local://a.mp3") for form in forms]
        first = await gatherResults(
            [Deferred.fromCoroutine(fetch(node.port, path)) for path in paths]
        )
        for path, response in zip(paths, first, strict=True):
            self.assertTrue(response.complete, path)
            self.assertTrue(response.body == (await fetch(node.port, path)).body, path)

    async def test_wrong_length(self) -> None:
        """Of equally long parts that were joined, no part is taken for the whole (D57).

        Where the bytes of the file allow the length that its header states, a first listener who
        has bytes is broken off. From then on, no length is stated (D78).
        """
        sound = noise(44100, 4 * 44100, amplitude=0.5)
        # Silence makes the average frame of flac small, so that the size does not tell.
        sound.channels[:, 44100:] = 0
        forms = {"a.flac": "", "a.ogg": "-c:a libvorbis", "a.opus": ""}
        parts, bodies = convert_all(write_wav(sound), forms), {}
        port = self.start(variant_store=None).port
        for name, part in parts.items():
            self.add(name, part * 2)
            path = signed(f"/f:flac/plain/local://{name}")
            bodies[f"whole of {name}"] = (await self.fetch_whole(port, path)).body
        sounds = decode_all({**parts, **bodies})
        for name in parts:
            whole = f"whole of {name}"
            stated = int.from_bytes(bodies[whole][18:26], "big") & 2**36 - 1
            # Some are found before they are rendered, and state nothing.
            self.assertIn(stated, (0, len(sounds[whole])), name)
            self.assertGreater(len(sounds[whole]), 1.9 * len(sounds[name]), name)

    async def test_less_than_stated(self) -> None:
        """A length that Matroska states, but does not have, is not stated for a trim (D57)."""
        made = convert(write_wav(noise(48000, 6 * 48000)), "-c:a libopus -f matroska")
        at = made.index(b"\x44\x89\x88") + 3
        self.add("short.mka", made[:at] + struct.pack(">d", 9000) + made[at + 8 :])
        bodies = {}
        for options in ("f:flac/t:4:4", "f:flac/t:4:4/fade:0:1"):
            path = signed(f"/{options}/plain/local://short.mka")
            port = self.start(variant_store=None).port
            bodies[options] = (await self.fetch_whole(port, path)).body
        for options, heard in decode_all(bodies).items():
            stated = int.from_bytes(bodies[options][18:26], "big") & 2**36 - 1
            self.assertIn(stated, (0, len(heard)), options)
            self.assertLess(abs(len(heard) - 2 * heard.rate), 0.05 * heard.rate, options)

    async def test_samples(self) -> None:
        """A huge sample far inside a source gives no error, and no waveform at full scale."""
        floats = write_wav(noise(44100, 9 * 44100, amplitude=0.25), "32f")
        self.add("huge.wav", floats[:-400] + struct.pack("<f", 1e30) + floats[-396:])
        self.add("zero.wav", floats[:-400] + bytes(4) + floats[-396:])
        port = self.start(variant_store=None).port
        for options in ("f:mp3/norm:ebu", "f:peaks/pts:9", "f:m4a"):
            broken, clean = [
                await self.fetch_twice(port, signed(f"/{options}/plain/local://{name}.wav"))
                for name in ("huge", "zero")
            ]
            self.assertTrue(broken.body == clean.body, options)

    async def test_abort(self) -> None:
        """If an encoder aborts at a sample, the next one gets the output of a decoder.

        A program that stands in for ffmpeg aborts as LAME 3.100 does at some samples.
        """
        self.patch(os, "environ", {**os.environ, "PATH": self.shadow_ffmpeg(STAND_IN)})
        port, bodies = self.start(variant_store=None).port, set()
        for name in ("abort-ffmpeg", "other"):
            self.add(f"{name}.flac", write_wav(noise(44100, 44100), "32f"))
            path = signed(f"/f:mp3/plain/local://{name}.flac")
            bodies.add((await self.fetch_twice(port, path)).body)
        self.assertEqual(1, len(bodies))
