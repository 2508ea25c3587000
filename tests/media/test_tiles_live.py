"""Tiles of a waveform, as the cookbook requests them: together they are the whole."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from audioproxy.urls import Variant
from tests.support.audio import convert, noise, write_wav
from tests.support.service import ServiceCase, fetch, signed
from tests.support.waveforms import Frames, decode_frames, parse_waveform, render_waveform
from tests.test_docs import PAGES, code

RATE = 1000
#: Samples of a pixel of 0.6 s; those of two tiles of ten minutes, 506 pixels, and 123 samples.
PIXEL = RATE * 6 // 10
COUNT = RATE * 1200 + 506 * PIXEL + 123


class TileTests(ServiceCase):
    """The recipe of the cookbook for a waveform that a player zooms into"""

    def setUp(self) -> None:
        super().setUp()
        (recipe,) = code(PAGES["cookbook"], "python")
        names: dict[str, Any] = {}
        exec(recipe, names)
        self.tiles = names["tiles"]

    def test_ten_hours(self) -> None:
        """Ten hours are 60 tiles; what remains is a shorter tile, and less than a pixel."""
        whole = [Variant(f="peaks", t=(600 * n, 600), pts=1000) for n in range(60)]
        for rate in (8000, 44100, 48000, 96000):
            self.assertEqual(self.tiles(36_000.0, rate), whole)
            last = [Variant(f="peaks", t=t, pts=1).canonical for t in ((36_000, "0.6"), "36000.6")]
            rest = self.tiles(36_001.0, rate)[60:]
            self.assertEqual([variant.canonical for variant in rest], last)
        self.assertEqual(len(self.tiles(36_000.0, 44100, 60)), 600)

    async def values(self, port: int, name: str, variant: Variant, pixel: int) -> list[int]:
        """Return the values of a tile, whose pixels have so many frames."""
        path = signed(f"/{variant.canonical}/plain/local://{name}")
        response = await fetch(port, path)
        self.assertEqual(200, response.status, path)
        document = parse_waveform(response.body)
        self.assertEqual(document.length, variant.pts)
        if variant.pts != 1:
            self.assertEqual(document.pixel, pixel, path)
        return document.values

    async def test_whole(self) -> None:
        """The tiles have the pixels of the whole, computed from all of its samples."""
        wav = write_wav(noise(RATE, COUNT, 2))
        names = "a.wav", "a.flac", "a.mka"
        self.add("a.wav", wav)
        self.add("a.flac", convert(wav, *"-f flac -c:a flac".split()))
        # Its length is not known before it is decoded.
        self.add("a.mka", convert(wav, *"-f matroska -c:a flac".split()))
        port = self.start().port
        decoded = decode_frames(self.root, dict.fromkeys(names, 2))
        for name in names:
            response = await fetch(port, signed(f"/info/plain/local://{name}"))
            info = json.loads(response.body)
            frames: Frames = decoded[name]
            self.assertEqual(len(frames), COUNT)
            tiles = self.tiles(COUNT / RATE, info["sample_rate"])
            self.assertEqual([tile.pts for tile in tiles], [1000, 1000, 506, 1])
            if name != "a.mka":
                self.assertEqual(self.tiles(info["duration"], info["sample_rate"]), tiles)
            joined = []
            for tile in tiles:
                joined += await self.values(port, name, tile, PIXEL)
            mixed = np.trunc(frames.sum(axis=1, keepdims=True, dtype=np.float64) / 2)
            expected = render_waveform(mixed.astype(np.int16), PIXEL, 2507)
            self.assertTrue(joined == expected, name)
            # The waveform of the first two tiles, in one request.
            whole = Variant(f="peaks", t=(0, 1200), pts=2000)
            self.assertTrue(await self.values(port, name, whole, PIXEL) == expected[:4000], name)
