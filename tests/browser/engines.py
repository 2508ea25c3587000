"""The player in Chromium, Firefox and WebKit: `make browsers`."""

from __future__ import annotations

import os

import numpy as np

from tests.browser.node import program
from tests.browser.test_player import RATE, PlayerCase, make_tone
from tests.support.audio import Sound, write_wav
from tests.support.programs import FFMPEG

#: A program in place of ffmpeg: an encoder of 320 kbps fails after two seconds of audio, each time.
BREAKING_FFMPEG = f"""\
#!/bin/sh
case " $* " in *" 320k "*)
    {FFMPEG} "$@" | head -c 80000
    sleep 2
    exit 1 ;;
esac
exec {FFMPEG} "$@"
"""

PROGRAMS = {
    "chromium": ("chromium-headless-shell",),
    "firefox": ("firefox-esr",),
    "webkit": ("WebKitWebDriver", "Xvfb"),
}


class EngineCase(PlayerCase):
    """The player in one of the engines."""

    async def assert_player_works(self, engine: str) -> None:
        """Require that all steps of play.mjs succeed, and that nothing is wider than the screen."""
        for name in PROGRAMS[engine]:
            program(name)
        self.add("falling.wav", make_tone(0.9, 0.1))
        short = self.root.with_name("short.wav")
        short.write_bytes(write_wav(Sound(RATE, np.zeros((1, RATE), np.float32))))
        programs = self.root.with_name("programs")
        programs.mkdir()
        (programs / "ffmpeg").write_text(BREAKING_FFMPEG)
        (programs / "ffmpeg").chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        player = self.start_player(AP_LOCAL_ROOT=str(self.root), PATH=path)
        url = (await player.printed(r"http://\S+", "the player to listen"))[0]
        report = await self.run_script("play.mjs", engine, url, str(short))
        expected = {
            "plays": ["MISS", True, True],
            "compares": [["false,true", "true,false", "false,true"], True],
            "trims": [[0, 100], True],
            "turns": True,
        }
        self.assertEqual(expected, report["390"], report["version"])
        self.assertEqual(expected, report["1280"], report["version"])
        self.assertEqual(["The render broke off", "", True, False, True], report["fails"])


class EngineTests(EngineCase):
    """All engines"""

    async def test_chromium(self) -> None:
        """The player plays, seeks, compares and fails in Chromium."""
        await self.assert_player_works("chromium")

    async def test_firefox(self) -> None:
        """The player plays, seeks, compares and fails in Firefox."""
        await self.assert_player_works("firefox")
