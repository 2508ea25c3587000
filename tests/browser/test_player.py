"""The player as ``make demo`` starts it, in a real browser."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from audioproxy.grammar.formats import FORMATS
from audioproxy.media.command.encoders import ENCODERS
from examples.player.site import LIBRARIES
from tests.browser.node import NodeCase, missing
from tests.examples.test_player import HOSTILE
from tests.support.audio import Sound, write_wav
from tests.support.authority import Authority
from tests.support.origins import open_origin
from tests.support.service import PATIENCE, PROJECT, Process, fetch, until_hit

RATE = 44_100
SECONDS = 6
#: Program that starts the player as if `make docs` had never run.
WITHOUT_SITE = """
import sys
from pathlib import Path
from examples.player import __main__, documentation
documentation.SITE = Path("/nowhere")
__main__.main(*sys.argv[1:])
"""
#: AP_MAX_SRC_BYTES.
LIMIT = 1_000_000
#: Minimum number of columns of a waveform on the page.
COLUMNS = 100

#: Sources that cannot be read: what the user types, the reason, and the advice.
UNREADABLE = [
    ("nowhere.wav", "nothing at this address", "It is relative to this folder"),
    ("https://other.example/a.wav", "other.example is not on the list", "AP_SOURCE_ALLOWLIST=HOST"),
    ("s3://masters/a.wav", "masters is not on the list", "Check the bucket"),
    ("ftp://a", "A source is", "Type a path, or a URL"),
]

AUDIO_FORMATS = [form.token for form in FORMATS.values() if form.in_browsers]


def make_tone(first: float, last: float) -> bytes:
    """Return a wav file of a tone whose loudness changes evenly."""
    times = np.arange(SECONDS * RATE) / RATE
    samples = np.linspace(first, last, len(times)) * np.sin(times * 2 * np.pi * 440)
    return write_wav(Sound(RATE, samples[None]))


class PlayerCase(NodeCase):
    """The player in a process of its own."""

    def setUp(self) -> None:
        super().setUp()
        if not LIBRARIES.is_dir():
            raise missing(f"there is no {LIBRARIES.relative_to(PROJECT)}")

    def start_player(self, *program: str, **variables: str) -> Process:
        """Start the player, or a program that starts it."""
        command = (sys.executable, *(program or ("-m", "examples.player")), str(self.store))
        # On a busy machine probes take long.
        limits = {"AP_PROBE_TIMEOUT": f"{PATIENCE:g}"}
        environ = {"PATH": os.environ["PATH"], "AP_PORT": "0", **limits, **variables}
        return self.spawn(*command, path=str(PROJECT), **environ)

    async def visit_player(self) -> list[Any]:
        """Return a visit of the player in which all scenarios are played."""
        rising = make_tone(0.1, 0.9)
        for name, content in (
            *(("falling.wav", make_tone(0.9, 0.1)), ("rising.wav", rising)),
            *((HOSTILE, make_tone(0.5, 0.5)), ("text.wav", b"No sound.")),
        ):
            self.add(name, content)
        authority = Authority(self.root.parent / "authority")
        origin = open_origin(self, authority.issue("localhost"))
        self.remote = origin.put("/a/remote.wav", rising)
        player = self.start_player(
            *("-c", WITHOUT_SITE),
            AP_LOCAL_ROOT=str(self.root),
            AP_SOURCE_ALLOWLIST="localhost",
            AP_MAX_SRC_BYTES=str(LIMIT),
            SSL_CERT_FILE=str(authority.bundle),
        )
        url = (await player.printed(r"http://\S+", "the player to listen"))[0]
        scenarios = {
            "playFormats": [SECONDS, *AUDIO_FORMATS],
            "keepState": [f"{self.remote}?x=1&y#z", [row[:2] for row in UNREADABLE]],
            "useControls": ["falling.wav", "rising.wav", HOSTILE, "text.wav"],
            "useOwnFile": ["../<b>own.wav", str(self.root / "rising.wav"), LIMIT],
        }
        return ["usePlayer", url, scenarios]

    def assert_player(self, report: dict[str, Any]) -> None:
        """Require that all scenarios have succeeded, and that no other host was used."""
        self.assertEqual([], report["consoleMessages"])
        self.assertEqual([], report["foreignRequests"])
        self.assert_formats_played(report["playFormats"])
        self.assert_state_kept(report["keepState"], self.remote)
        self.assert_controls_worked(report["useControls"])
        self.assert_own_file_used(report["useOwnFile"])

    def assert_formats_played(self, report: dict[str, Any]) -> None:
        """Require that every format has played."""
        self.assertEqual(set(AUDIO_FORMATS), set(report))
        for token, heard in report.items():
            (status, state), *later = heard["responses"]
            self.assertEqual((200, "MISS"), (status, state), token)
            # A seek sends a range request, which may cover the whole file from its first byte.
            self.assertEqual({(206, "HIT")}, {tuple(response) for response in later}, token)
            # The header of these formats states the length of a stream (D57).
            if ENCODERS[token].length_header is not None:
                duration = float(heard["streamed"]["duration"])
                self.assertApproximates(SECONDS, duration, 0.06, token)
            # The page shows the duration even if the browser cannot tell the length of a stream.
            self.assertRegex(heard["streamed"]["shown"], r"\A0:06\.[01]\Z", token)
            self.assertRegex(heard["afterSeek"]["shown"], r"\A0:06\.[01]\Z", token)
            self.assertApproximates(0.7 * SECONDS, heard["afterSeek"]["time"], 1.5, token)
            self.assertIn("X-Audio-ProxyHITStatus206", heard["afterSeek"]["measured"], token)

    def assert_equal_to(self, seen: dict[str, Any], **expected: Any) -> None:
        """Require these values of what was seen; a failure shows all that differ."""
        self.assertEqual(expected, {name: seen[name] for name in expected})

    def assert_state_kept(self, seen: dict[str, Any], remote: str) -> None:
        """Require that addresses restored the state, and that each failure was explained."""
        local, options = "#source=rising.wav", "br:96/f:opus/t:1:2"
        address = f"#source={remote}%3Fx%3D1%26y%23z"
        opened = ["rising.wav", options, f"{local}&f=opus&br=96&t=1:2"]
        notice, *state = seen["unusable"]
        self.assertRegex(notice, r"left out: gain, f, ch, zzz\.\Z")
        self.assertEqual(["rising.wav", "f:mp3/gain:-3", f"{local}&f=mp3&gain=-3"], state)
        self.assertIn("opus: 6 to 510 kbps", seen["hint"])
        self.assertEqual('"t:6" is not accepted', seen["trim"][:21])
        self.assert_equal_to(
            seen,
            consoleMessages=[],
            opened=opened,
            back=opened,
            typed=["remote.wav", options, f"{address}&f=opus&br=96&t=1:2"],
            reloaded=["remote.wav", "f:wav/t:1:2", f"{address}&f=wav&t=1:2"],
            space=[True, False, True, False, False, True],
            field=" ",
            unexplained=[],
            cleared=["", True],
            width=390,
        )
        # The same audio, 3 dB quieter. Its loudness range does not change.
        numbers = [float(cell.replace("\N{MINUS SIGN}", "-")) for cell in seen["loudness"]]
        for before, after, change in zip(numbers[::2], numbers[1::2], (-3, 0, -3), strict=True):
            self.assertApproximates(change, after - before, 0.11)
        self.assertApproximates(20 * np.log10(0.9), numbers[4], 0.1)
        words = ["Change the marked option"] * 2 + [row[2] for row in UNREADABLE]
        for (shown, playable), advice in zip(seen["failures"], words, strict=True):
            self.assertIn(advice, shown)
            self.assertFalse(playable, shown)

    def assert_controls_worked(self, seen: dict[str, Any]) -> None:
        """Require that every control has had its effect."""
        for falling, rising in zip(seen["first"], seen["second"], strict=True):
            for columns, direction in ((falling, -1), (rising, 1)):
                loud = np.array([height for height in columns if height])
                self.assertGreater(len(loud), COLUMNS)
                slope = np.polyfit(np.arange(len(loud)), loud, 1)[0]
                self.assertEqual(direction, np.sign(slope))
                self.assertGreater(loud.max(), 5 * loud.min())
        for before, after in zip(seen["before"], seen["after"], strict=True):
            self.assertNotEqual(before, after)
        url, canonical, key = seen["after"]
        self.assertIn("/f:mp3/gain:1/plain/local://rising.wav", url)
        self.assertRegex(key, r"\A[0-9a-f]{64}\Z")
        trim = re.fullmatch(r"f:mp3/gain:1/t:([\d.]+):([\d.]+)", seen["trimmed"])
        assert trim is not None, seen["trimmed"]
        self.assertApproximates(SECONDS / 4, float(trim[1]), 0.1)
        self.assertApproximates(SECONDS / 2, float(trim[2]), 0.1)
        # Playback moves to the last position of a drag. A new variant plays from its start.
        self.assertLess(seen["startPosition"], 3)
        self.assertGreaterEqual(seen["dragged"], 4)
        play, chosen, other = seen["colours"]
        self.assertNotEqual(chosen, other)
        self.assert_equal_to(
            {**seen, "canonical": canonical, "play": play, "depths": seen["depths"][1:]},
            consoleMessages=[],
            canonical="f:mp3/gain:1",
            copied=url,
            disabled=True,
            depths=["16", "24", "32f"],
            hostile=HOSTILE,
            refusal='"br:9999" is not accepted: f:mp3 takes 8 to 320 kbps.',
            playable=False,
            clearedRefusal="",
            seekTarget="4",
            steps=[0, 5],
            play=chosen,
        )
        self.assertRegex(seen["reason"], "f:wav has no bitrate to set")
        ((refused,), (failed,)) = seen["refused"], seen["failed"]
        self.assertIn("422", refused)
        self.assertIn("ERR_FAILED", failed)
        reason, *others = seen["unavailable"]
        self.assertRegex(reason, "The service does not respond.*make demo")
        self.assertEqual(["", False], others)
        reason, *others = seen["broken"]
        self.assertRegex(reason, "no audio that can be decoded.*Choose an audio file")
        self.assertEqual([False, ["", "", "", "", False, False]], others)
        playable, shown = seen["recovered"]
        self.assertTrue(playable and all(shown), shown)
        for line in seen["failureMessages"]:
            self.assertRegex(line, "ERR_FAILED|Failed to fetch|415")

    def assert_own_file_used(self, seen: dict[str, Any]) -> None:
        """Require that a dropped file was trimmed, compared and copied as programs."""
        self.assertRegex(seen["source"], r"\Adropped-\w{8}/<b>own\.wav\Z")
        self.assertIn("large.wav: It is larger than 1,000,000 bytes.", seen["tooLarge"])
        for box in seen["trim"]["sizes"]:
            self.assertGreaterEqual(min(box["width"], box["height"]), 44)
        self.assertEqual("0:01.1 of 0:06.0", seen["trim"]["value"])
        start, duration = map(float, seen["trim"]["dragged"].split("/t:")[1].split(":"))
        self.assertEqual(1.1, start)
        self.assertApproximates(4 - 1.1, duration, 0.1)
        self.assertRegex(
            seen["compared"],
            r"f:mp3/gain:-6. Both at \N{MINUS SIGN}\d+\.\d LUFS: the source turned down by 6\.0 dB",
        )
        own, source = seen["volumes"]
        self.assertEqual(1, own)
        self.assertApproximates(-6, 20 * np.log10(source), 0.1)
        self.assertEqual([True, False, False, False, False, False], seen["switched"])
        self.assertEqual([0.5, source / 2, "50 %"], seen["half"])
        self.assertEqual([0.5, False, False, True], seen["alone"])
        copied = seen["copied"]
        self.assertEqual(seen["shown"], copied.pop("url"))
        self.assertEqual(5, len({text for text in copied.values() if "exp" in text}))
        self.assertRegex(seen["documentation"], ". · audioproxy")
        self.assert_equal_to(seen, invited=True, consoleMessages=[], barriers=[])


class PlayerTests(PlayerCase):
    """The player on the command line."""

    async def test_command_line(self) -> None:
        """The player makes samples in an empty folder, and Ctrl-C ends the player with status 0.

        The Server-Timing header of a variant has the cache state and the time to the first byte. A
        port in use or a missing folder is reported in one line.
        """
        process = self.start_player()
        url = (await process.printed(r"http://\S+", "the player to listen"))[0]
        port = urlsplit(url).port
        assert port is not None
        listed = json.loads((await fetch(port, b"/sources")).body)["sources"]
        self.assertLessEqual({"melody.wav", "nocturne.flac"}, {row["name"] for row in listed})
        document = json.loads((await fetch(port, b"/sign?source=drone.mp3&f=ogg")).body)
        # The page reads the cache state of its audio element's requests from Server-Timing.
        target = urlsplit(document["url"]).path.encode()
        miss, hit = await fetch(port, target), await until_hit(port, target)
        for state, response in ((b"MISS", miss), (b"HIT", hit)):
            self.assertEqual((200, state), (response.status, response["x-audio-proxy"]))
            timing = rb"\Acache;desc=%s, first;dur=[\d.]+\Z" % state
            self.assertRegex(response["server-timing"], timing)
        failing = self.start_player(AP_LOCAL_ROOT=str(self.root), AP_PORT=str(port))
        self.assertEqual(1, await failing.end())
        words = r"\Aplayer: AP_PORT: cannot listen on 127\.0\.0\.1 port \d+ \([^\n]*\n\Z"
        self.assertRegex(failing.stderr, words)
        refused = self.start_player(AP_LOCAL_ROOT="/nowhere")
        self.assertEqual(1, await refused.end())
        words = r"\Aplayer: AP_LOCAL_ROOT: '/nowhere' is not a directory[^\n]*\n\Z"
        self.assertRegex(refused.stderr, words)
        await fetch(port, b"/uploads?name=a.wav", b"PUT", origin=b"http://localhost")
        samples = self.store / "samples"
        self.assertEqual(1, len(list(samples.glob("dropped-*/a.wav"))))
        # Ctrl-C, and a terminal that is closed.
        process.signal(signal.SIGHUP)
        self.assertEqual(0, await process.end(), process.stderr)
        self.assertEqual([], list(samples.glob("dropped-*")))
