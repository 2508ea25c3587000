"""The examples, run as separate programs."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.support.service import Process, ServiceCase, fetch, short_flac, until

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


class EmbedTests(ServiceCase):
    """`examples/embed.py` and `examples/embed_fastapi.py`"""

    def setUp(self) -> None:
        """Create the folders of an example: one with a source, and one for variants."""
        super().setUp()
        self.folder = Path(self.mktemp()).resolve()
        (self.folder / "variants").mkdir(parents=True)
        (self.folder / "tone.flac").write_bytes(short_flac().read_bytes())

    def start(self, name: str, **replaced: str) -> Process:
        """Start an example with its folders and its port replaced by those of the test."""
        self.port = self.reserve_port()
        text = (EXAMPLES / name).read_text()
        usual = {"/tmp/audio": str(self.folder), "/tmp/variants": f"{self.folder}/variants"}
        for old, new in (usual | {"8080": str(self.port)} | replaced).items():
            self.assertIn(old, text)
            text = text.replace(old, new)
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(self.folder)}
        return self.spawn(sys.executable, "-c", text, **environment)

    async def assert_plays(self, url: str, content_type: bytes) -> None:
        """Require that the resource serves a URL, whose variant is not tiny."""
        origin = f"http://127.0.0.1:{self.port}"
        self.assertTrue(url.startswith(f"{origin}/audio/"), url)
        response = await fetch(self.port, url.removeprefix(origin).encode())
        self.assertEqual((200, content_type), (response.status, response["content-type"]))
        self.assertGreater(len(response.body), 10_000)

    async def test_renders(self) -> None:
        """The example prints a URL that renders a source, and SIGTERM ends it cleanly."""
        process = self.start("embed.py")
        await process.printed("\n", "the URL")
        await self.assert_plays(process.stdout.strip(), b"audio/mpeg")
        process.signal(signal.SIGTERM)
        self.assertEqual((0, ""), (await process.end(), process.stderr))

    async def test_beside_fastapi(self) -> None:
        """FastAPI signs a URL that the resource in its process renders; SIGTERM ends both."""
        port = self.reserve_port()
        process = self.start("embed_fastapi.py", **{"8000": str(port)})
        await until(lambda: "running on" in process.stderr, "uvicorn")
        signed = (await fetch(port, b"/tracks/tone.flac")).document["preview"]
        await self.assert_plays(signed, b"audio/ogg")
        process.signal(signal.SIGTERM)
        self.assertEqual(0, await process.end(), process.stderr)
        self.assertNotIn("Traceback", process.stderr)
