"""The player in the engine that differs most from Chromium.

Debian's WebKitGTK has fewer megabytes than its Firefox, and starts in a quarter of the time.
``make browsers`` plays the same in all engines.
"""

from __future__ import annotations

from tests.browser.engines import EngineCase


class WebKitTests(EngineCase):
    """WebKitGTK"""

    async def test_player(self) -> None:
        """The player plays, seeks, compares and fails in WebKit, on narrow and on wide screens."""
        await self.assert_player_works("webkit")
