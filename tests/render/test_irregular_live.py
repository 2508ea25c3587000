"""Irregular sources through the whole service, which the first listener gets whole."""

from __future__ import annotations

import struct

from tests.support.audio import convert, convert_all, decode, decode_all, noise, tone, write_wav
from tests.support.http import Response
from tests.support.service import ServiceCase, fetch, signed, until_hit

MP3 = "-c:a libmp3lame -b:a 128k -write_xing 0 -id3v2_version 0 -f mp3"


class IrregularTests(ServiceCase):
    """Sources that change inside, or hold samples that are no audio (D63)."""

    async def fetch_twice(self, port: int, path: bytes) -> Response:
        """Request a variant twice without a store; both responses are whole, and the same (D78)."""
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

    def join(self, *forms: str) -> dict[str, bytes]:
        """Return the files of which a source consists, the first of 9 s and others of 3 s."""
        return {
            str(number): convert(write_wav(tone(44100, seconds * 44100, 440, 440)), form)
            for number, (form, seconds) in enumerate(zip(forms, (9, 3, 3), strict=False))
        }

    async def test_first_listener(self) -> None:
        """The first listener gets all of a changing source (D63), and later ones the same (D78)."""
        parts = self.join(f"{MP3} -ac 1", f"{MP3} -ac 2", f"{MP3} -ar 48000")
        sources = {
            "a.mp3": parts,
            "a.ac3": self.join("-ac 2 -c:a ac3 -f ac3", "-ac 1 -c:a ac3 -f ac3"),
            "a.ogg": self.join("-c:a flac -f ogg", "-c:a flac -ar 48000 -serial_offset 9 -f ogg"),
        }
        port, bodies = self.start(variant_store=None).port, {}
        for name, files in sources.items():
            for options in ("f:wav/bd:16/sr:22050", "f:flac", "f:opus", "f:m4a", "f:wav/t:1:10"):
                if name == "a.mp3" or options == "f:wav/bd:16/sr:22050":
                    # Each is the first request for its source.
                    copy = self.add(f"{len(bodies)}-{name}", b"".join(files.values())).name
                    path = signed(f"/{options}/plain/local://{copy}")
                    bodies[name, options] = (await self.fetch_twice(port, path)).body
        sounds = decode_all({"whole": bodies["a.mp3", "f:flac"], **parts})
        lengths = [len(sounds[name]) / sounds[name].rate for name in ("0", "1", "2")]
        self.assertLess(abs(len(sounds["whole"]) / 44100 - sum(lengths)), 0.01)
        self.assertEqual(10 * 44100, len(decode(bodies["a.mp3", "f:wav/t:1:10"])))
        port = self.start().port
        path = signed("/f:flac/plain/local://1-a.mp3")
        await fetch(port, path)
        self.assertTrue((await until_hit(port, path)).body == bodies["a.mp3", "f:flac"])

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
        bodies = {}
        port = self.start(variant_store=None).port
        for options in ("f:flac/t:4:4", "f:flac/t:4:4/fade:0:1"):
            self.add(f"{len(bodies)}.mka", made[:at] + struct.pack(">d", 9000) + made[at + 8 :])
            path = signed(f"/{options}/plain/local://{len(bodies)}.mka")
            bodies[options] = (await self.fetch_whole(port, path)).body
        for options, heard in decode_all(bodies).items():
            stated = int.from_bytes(bodies[options][18:26], "big") & 2**36 - 1
            self.assertIn(stated, (0, len(heard)), options)
            self.assertLess(abs(len(heard) - 2 * heard.rate), 0.05 * heard.rate, options)
