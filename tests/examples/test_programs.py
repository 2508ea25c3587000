"""The examples, run as separate programs."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.support.service import Process, ServiceCase, fetch, short_flac

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


class EmbedTests(ServiceCase):
    """`examples/embed.py`"""

    def start(self, root: Path, store: Path) -> Process:
        """Start the example with its folders and its port replaced by those of the test."""
        self.port = self.reserve_port()
        text = (EXAMPLES / "embed.py").read_text()
        for old, new in (
            ("/tmp/audio", str(root)),
            ("/tmp/variants", str(store)),
            ("8080", str(self.port)),
        ):
            self.assertIn(old, text)
            text = text.replace(old, new)
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(root)}
        return self.spawn(sys.executable, "-c", text, **environment)

    async def test_renders(self) -> None:
        """The example prints a URL that renders a source, and SIGTERM ends it cleanly."""
        folder = Path(self.mktemp()).resolve()
        (folder / "variants").mkdir(parents=True)
        (folder / "tone.flac").write_bytes(short_flac().read_bytes())
        process = self.start(folder, folder / "variants")
        await process.printed("\n", "the URL")
        origin = f"http://127.0.0.1:{self.port}"
        url = process.stdout.strip()
        self.assertTrue(url.startswith(f"{origin}/audio/"), url)
        response = await fetch(self.port, url.removeprefix(origin).encode())
        self.assertEqual((200, b"audio/mpeg"), (response.status, response["content-type"]))
        self.assertGreater(len(response.body), 10_000)
        process.signal(signal.SIGTERM)
        await process.end()
        self.assertEqual("", process.stderr)

    async def test_missing_store(self) -> None:
        """If its store is missing, the example prints one line and exits."""
        folder = Path(self.mktemp()).resolve()
        folder.mkdir()
        process = self.start(folder, folder / "missing")
        await process.end()
        self.assertEqual(1, process.stdout.count("\n"), process.stdout)
        self.assertIn("AP_VARIANT_STORE: not writable", process.stdout)
