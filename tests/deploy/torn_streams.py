"""What proxies do with streams that break off, as the table of docs/proxies.md states it."""

from __future__ import annotations

import contextlib
import os
from typing import ClassVar

from tests.deploy.balancer import balance, installed
from tests.deploy.nodes import HALF, Node, start_stream
from tests.support.authority import Authority
from tests.support.service import PROJECT, until
from tests.test_docs import rows

PAGE = PROJECT / "docs/proxies.md"

#: Cell of a torn stream that its client takes for a complete one.
COMPLETE = "**looks complete**"

#: The settings with which torn streams have to break off.
OURS = ("our file", "our files", "with the handler")

#: Protocols, each with the options of curl.
PROTOCOLS = {
    "HTTP/1.1": ("--http1.1",),
    "HTTP/2": ("--http2",),
    "h2c": ("--http2-prior-knowledge",),
}

#: The version and the cells of each proxy with a setting.
STATED = {(name, setting): cells for name, version, setting, *cells in rows("proxies", "Proxy")}
VERSIONS = {(name, setting): version for name, version, setting, *_ in rows("proxies", "Proxy")}


class TornStreamTests:
    """A proxy in front of a node whose stream breaks off.

    :cvar name: the name of the proxy in the table.
    :cvar setting: what differs from the proxy's defaults.
    :cvar secure: the protocols over TLS that are tried.
    :cvar clear: those without TLS.
    """

    name: ClassVar[str]
    setting: ClassVar[str] = "our file"
    secure: ClassVar[tuple[str, ...]] = ("HTTP/1.1", "HTTP/2")
    clear: ClassVar[tuple[str, ...]] = ("h2c",)

    async def test_torn_stream(self) -> None:
        """A torn stream breaks off, or looks complete, as the table says of this version.

        With our files, no version lets it look complete.
        """
        self.node = Node("one", "127.0.0.1", start_stream)
        self.addCleanup(self.node.stop)
        nodes = {"one": self.node.port.getHost().port}
        certificate = Authority(self.folder).issue("localhost")
        seen = dict.fromkeys(PROTOCOLS, "-")
        for used, protocols in ((certificate, self.secure), (None, self.clear)):
            if protocols:
                folder = self.folder / ("secure" if used else "clear")
                folder.mkdir()
                proxy = await balance(self, self.kind, folder, nodes, used)
                for protocol in protocols:
                    seen[protocol] = await self.see(proxy.port, protocol, "s" if used else "")
        cells = [*seen.values()]
        row = self.name, self.setting
        if self.setting in OURS:
            self.assertNotIn(COMPLETE, cells)
        if VERSIONS[row] == ".".join(map(str, self.kind.version())):
            self.assertEqual(STATED[row], cells)

    async def see(self, port: int, protocol: str, suffix: str) -> str:
        """Return what curl sees of a stream that breaks off; "-" without the protocol."""
        path = self.folder / "body"
        path.unlink(missing_ok=True)
        url = f"http{suffix}://localhost:{port}/s/f:wav/enc/{protocol.replace('/', '')}"
        words = ("-skN", *PROTOCOLS[protocol], "-o", str(path), "-w", "%{http_version}", url)
        curl = self.spawn(installed("curl"), *words, PATH=os.environ["PATH"])
        before = len(self.node.connections)
        # A proxy that collects a stream sends nothing yet.
        with contextlib.suppress(AssertionError):
            await until(
                lambda: curl.code is not None or (path.exists() and path.stat().st_size >= HALF),
                "the first part",
                5,
            )
        if len(self.node.connections) == before:
            await curl.kill()
            return "-"
        self.node.connections[-1].transport.abortConnection()  # type: ignore[union-attr]
        status = await curl.end()
        if protocol != "HTTP/1.1" and curl.stdout != "2":
            return "-"
        return "breaks off" if status else COMPLETE
