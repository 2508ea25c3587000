"""Pages that show the waveform of a variant while the variant plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from twisted.protocols.policies import WrappingFactory
from twisted.web.resource import Resource
from twisted.web.server import Site
from twisted.web.static import File

from audioproxy.service import make_resource
from tests.browser.node import HERE, LIBRARIES, NodeCase
from tests.support.audio import Sound, write_wav
from tests.support.service import fetch, reactor, signed, until, until_hit

RATE = 48_000
#: Position in seconds to which the test seeks after it has measured the waveform.
TARGET = 9

#: Seconds that the variant and its waveform trim off the source's start.
SKIPPED = 1
#: Number of points of a waveform: one for each of the 600 columns on the page.
PIXELS = 600

#: Tolerance in rows: one for the truncation to 8 bits, and one for a line that lies between two
#: rows and covers both.
ROWS = 2
#: Tolerance in columns. The libraries place the points of the outline in the middle or at the edge
#: of a column, so a sudden change of loudness extends over two columns.
COLUMNS = 1

#: Lowest and highest sample of one channel.
Range = tuple[float, float]

SILENT: Range = (0.0, 0.0)
QUIET: Range = (-0.05, 0.05)
HALF: Range = (-0.45, 0.45)
LOUD: Range = (-0.9, 0.9)
#: Smaller below zero than above, which detects a waveform that is upside down.
ABOVE: Range = (-0.1, 0.7)


#: Twelve seconds of audio: lengths in fiftieths of a second, and ranges of both channels.
SECTIONS = (
    (70, SILENT, SILENT),
    (80, LOUD, LOUD),
    (50, SILENT, SILENT),
    (70, HALF, HALF),
    (30, QUIET, QUIET),
    (3, LOUD, LOUD),
    (47, QUIET, QUIET),
    (60, LOUD, SILENT),
    (60, SILENT, LOUD),
    (60, ABOVE, HALF),
    (20, SILENT, SILENT),
    (50, QUIET, ABOVE),
)

#: Expected ranges of both channels for each column.
EXPECTED = [(left, right) for columns, left, right in SECTIONS for _ in range(columns)]


def make_source() -> bytes:
    """Return a wav file of the sections after one loud second, which the variants trim off."""
    frames = RATE // 50
    # A tone with whole periods in a column, and samples at its peaks.
    tone = np.sin(np.arange(frames) * 2 * np.pi * 20 / frames)[:, None]
    columns = [(LOUD, LOUD)] * (50 * SKIPPED) + EXPECTED
    low, high = np.array(columns).transpose(2, 0, 1)
    samples = (high + low)[:, None] / 2 + (high - low)[:, None] / 2 * tone
    return write_wav(Sound(RATE, samples.reshape(-1, 2).T))


def variant_path(options: str) -> str:
    """Return the signed path of a variant of the source."""
    return signed(f"/{options}/t:{SKIPPED}/plain/local://source.wav").decode()


VARIANT_PATH = variant_path("f:opus")


class WaveformCase(NodeCase):
    """Pages that load audio and waveforms from the proxy."""

    def setUp(self) -> None:
        super().setUp()
        self.add("source.wav", make_source())

    def serve(self, proxy: Resource | None = None) -> int:
        """Serve the pages and the libraries, and a proxy at /audio; return the port."""
        root = Resource()
        root.putChild(b"page", File(str(HERE / "page")))
        root.putChild(b"libraries", File(str(LIBRARIES)))
        if proxy is not None:
            root.putChild(b"audio", proxy)
        # A browser keeps connections open: wait until the last one is closed.
        site = WrappingFactory(Site(root))
        port = reactor.listenTCP(0, site, interface="127.0.0.1")

        async def stop() -> None:
            await port.stopListening()
            await until(lambda: not site.protocols, "the browser's connections to end")

        self.addCleanup(stop)
        return int(port.getHost().port)

    def visit(self, page: str, bands: int, **urls: str) -> list[Any]:
        """Return the visit of a page with its URLs, whose waveform consists of bands."""
        screenshot = Path(self.mktemp()).resolve()
        screenshot.mkdir(parents=True)
        return ["watch", f"{page}?{urlencode(urls)}", bands, TARGET, str(screenshot / "page.png")]

    def assert_played(self, report: dict[str, Any]) -> None:
        """Require that audio played before, during and after the measurement of the waveform."""
        self.assertEqual([], report["consoleMessages"])
        for moment in ("before", "after", "afterSeek"):
            state = report[moment]
            self.assertIsNone(state["error"], moment)
            self.assertFalse(state["paused"] or state["ended"], moment)
            # HAVE_CURRENT_DATA: audio for the current position is available.
            self.assertGreaterEqual(state["readyState"], 2, moment)
            self.assertApproximates(len(EXPECTED) / 50, state["duration"], 0.05)
        self.assertEqual(TARGET, report["sought"])
        self.assertTrue(report["atEnd"]["ended"])
        self.assertIsNone(report["atEnd"]["error"])
        heard = [tuple(rest) for path, *rest in report["responses"] if path.endswith(VARIANT_PATH)]
        # Chromium sends ranges from the first request on.
        self.assertEqual({(206, "HIT")}, set(heard))

    def assert_drawn(self, columns: list[list[int]], rows: list[Range]) -> None:
        """Require that each column of the waveform covers the expected rows.

        :param columns: first row, last row and number of the rows drawn, for each column.
        :param rows: the expected first and last row of each column.
        """
        self.assertEqual(PIXELS, len(columns))
        # The first column is silent, like the space beside the waveform.
        padded = rows[:1] * COLUMNS + rows + rows[:1] * COLUMNS
        wrong = []
        for column, (first, last, drawn) in enumerate(columns):
            firsts, lasts = zip(*padded[column : column + 2 * COLUMNS + 1], strict=True)
            if (
                not drawn
                or drawn != last - first + 1
                or not min(firsts) - ROWS <= first <= max(firsts) + ROWS
                or not min(lasts) - ROWS <= last <= max(lasts) + ROWS
            ):
                wrong.append((column, (first, last, drawn), rows[column]))
        self.assertEqual([], wrong)

    async def visit_peaks_js(self) -> list[Any]:
        """Return a visit of peaks.js with a dat waveform, on a page of the same origin."""
        proxy = make_resource(self.config(), reactor)
        await proxy.startService()
        self.addCleanup(proxy.stopService)
        port = self.serve(proxy.resource)
        # Afterwards the variant is in the store, which both pages use.
        await fetch(port, b"/audio" + VARIANT_PATH.encode())
        await until_hit(port, b"/audio" + VARIANT_PATH.encode())
        waveform = "/audio" + variant_path(f"f:peaks/pts:{PIXELS}/ch:2/pk_bits:8/pk_fmt:dat")
        page = f"http://127.0.0.1:{port}/page/peaks.html"
        return self.visit(page, 2, sound="/audio" + VARIANT_PATH, waveform=waveform)

    def assert_peaks_js(self, report: dict[str, Any]) -> None:
        """Require that peaks.js shows both channels."""
        self.assert_played(report)
        for channel, columns in enumerate(report["columns"]):
            # 256 rows show the 256 values of 8 bits, with the highest value at the top.
            ranges = [both[channel] for both in EXPECTED]
            rows = [(127.5 - 128 * high, 127.5 - 128 * low) for low, high in ranges]
            self.assert_drawn(columns, rows)

    async def visit_wavesurfer_js(self) -> list[Any]:
        """Return a visit of wavesurfer.js with a JSON waveform, on a page of another origin."""
        pages = f"http://127.0.0.1:{self.serve()}"
        port = self.start(allow_origin=pages).port
        waveform = variant_path(f"f:peaks/pts:{PIXELS}/ch:2/pk_bits:16/pk_fmt:json")
        origin = f"http://127.0.0.1:{port}"
        page, sound = f"{pages}/page/wavesurfer.html", origin + VARIANT_PATH
        return self.visit(page, 1, sound=sound, waveform=origin + waveform)

    def assert_wavesurfer_js(self, report: dict[str, Any]) -> None:
        """Require that wavesurfer.js shows the maxima of both channels."""
        self.assert_played(report)
        (columns,) = report["columns"]
        # The left channel extends upward from the middle of 512 rows, the right one downward.
        rows = [(256 - 256 * left, 255 + 256 * right) for (_, left), (_, right) in EXPECTED]
        self.assert_drawn(columns, rows)
