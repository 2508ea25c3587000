"""Pages in a real browser."""

from __future__ import annotations

import json
import traceback

from tests.browser.node import program
from tests.browser.site import SiteCase
from tests.browser.test_player import PlayerCase
from tests.browser.waveforms import WaveformCase


class PageTests(SiteCase, WaveformCase, PlayerCase):
    """Chromium, which visits all pages: a browser starts slowly."""

    async def test_pages(self) -> None:
        """All pages work in a browser.

        Documentation: every page fits narrow and wide screens, axe finds no barriers, search works,
        and no other host is used. peaks.js and wavesurfer.js show the waveform of audio that plays.
        Player: each format plays while it is rendered, and supports seeking once it is stored. The
        URL matches the controls, the waveform and the loudness match the source, and each refusal
        is shown with its reason. The address keeps the state. Sources are chosen or typed.
        """
        visits = {
            "site": self.visit_site(),
            "peaks_js": await self.visit_peaks_js(),
            "wavesurfer_js": await self.visit_wavesurfer_js(),
            "player": await self.visit_player(),
        }
        browser = program("chromium-headless-shell")
        reports = await self.run_script("pages.mjs", browser, json.dumps(visits))
        failures = []
        for name, report in reports.items():
            try:
                self.assertNotIn("error", report)
                getattr(self, f"assert_{name}")(report)
            except Exception:
                failures.append(traceback.format_exc())
        self.assertEqual([], failures, "\n".join(failures))
