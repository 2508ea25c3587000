"""Irregular sources through the whole service: broken off at most once, then always whole."""

from __future__ import annotations

import os
import struct

from tests.support.audio import convert, convert_all, decode_all, noise, tone, write_wav
from tests.support.http import Response
from tests.support.programs import STAND_IN
from tests.support.service import ServiceCase, fetch, signed, until_hit

MP3 = "-c:a libmp3lame -b:a 128k -write_xing 0 -id3v2_version 0 -f mp3"


class IrregularTests(ServiceCase):
    """Sources that change inside, or hold samples that are no audio (D63)."""

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

    async def test_same_bytes(self) -> None:
        """Whatever is delivered whole is the same on all nodes, and has all of the audio.

        A node that knows the source breaks no further variant of it off.
        """
        stereo = write_wav(tone(44100, 6 * 44100, 440, 440))
        one, two = convert_all(stereo, {str(n): f"{MP3} -ac {n}" for n in (1, 2)}).values()
        self.add("a.mp3", one + two)
        path = signed("/f:flac/fade:1:1/plain/local://a.mp3")
        bodies = set()
        for store in (None, self.config().variant_store):
            port = self.start(variant_store=store).port
            bodies.add((await self.fetch_whole(port, path)).body)
        bodies.add((await until_hit(port, path)).body)
        (body,) = bodies
        sounds = decode_all({"body": body, "one": one})
        self.assertEqual(len(sounds["body"]), 2 * len(sounds["one"]))
        for options in ("f:wav", "f:opus/t:1:9", "f:peaks/pts:50", "f:aac/norm:ebu"):
            response = await fetch(port, signed(f"/{options}/plain/local://a.mp3"))
            self.assertTrue(response.complete, options)

    async def test_more_than_stated(self) -> None:
        """Of equally long parts that were joined, no part is taken for the whole (D57)."""
        sound = noise(44100, 4 * 44100, amplitude=0.5)
        # Silence makes the average frame of flac small, so that the size does not tell.
        sound.channels[:, 44100:] = 0
        port = self.start(variant_store=None).port
        forms = {"a.flac": "", "a.ogg": "-c:a libvorbis", "a.opus": ""}
        parts, bodies = convert_all(write_wav(sound), forms), {}
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
            self.assertEqual(stated, len(heard), options)
            self.assertLess(abs(len(heard) - 2 * heard.rate), 0.05 * heard.rate, options)

    async def test_samples(self) -> None:
        """A huge sample far inside a source gives no error, and no waveform at full scale."""
        floats = write_wav(noise(44100, 9 * 44100, amplitude=0.25), "32f")
        self.add("huge.wav", floats[:-400] + struct.pack("<f", 1e30) + floats[-396:])
        self.add("zero.wav", floats[:-400] + bytes(4) + floats[-396:])
        port = self.start(variant_store=None).port
        for options in ("f:mp3/norm:ebu", "f:peaks/pts:9", "f:m4a"):
            broken, clean = [
                await self.fetch_whole(port, signed(f"/{options}/plain/local://{name}.wav"))
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
            bodies.add((await self.fetch_whole(port, path)).body)
        self.assertEqual(1, len(bodies))
