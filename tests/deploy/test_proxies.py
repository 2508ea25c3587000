"""What proxies with the files of ``deploy/`` do: HAProxy and nginx; `tests.deploy.other_proxies`
has the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from twisted.trial.unittest import SynchronousTestCase

from tests.deploy.balancer import Balancer, HAProxy, Nginx, NginxWithOneNode, balance, installed
from tests.deploy.nodes import HALF, Connection, Node, echo, start_stream
from tests.deploy.proxies import PROXIES, Envoy
from tests.deploy.torn_streams import COMPLETE, OURS, PAGE, TornStreamTests
from tests.render.test_failures_live import ScriptedEncoderCase, target
from tests.support.authority import Authority
from tests.support.service import PROJECT, Client, fetch, send, signed, until
from tests.support.wire import chunk, reply
from tests.test_docs import rows

#: Ways to write a path that RFC 3986 or proxies take for equal, and signatures do not.
SPELLINGS = {
    "`//`": "plain/local://a//b",
    "`/../`": "plain/a/./../b",
    "`%2F`": "plain/a%2Fb%252F",
    "`%c3`": "plain/%c3%bc",
    "`%41`": "plain/%41",
    "`%7E`": "plain/%7E~",
    "`;=@+`": "plain/;=@+!$&'()*,:",
    "raw `|^{}`": "plain/|^{}",
    "`%00`": "plain/a%00b",
    "`%` without digits": "plain/%zz",
}

#: What each proxy does with its shipped file, as docs/proxies.md states it.
KINDS = (HAProxy, Nginx, *PROXIES)
STATED = {what: dict(zip(KINDS, cells, strict=True)) for what, *cells in rows("proxies", "What")}

HERE = Path(__file__).parent
STATUSES = (429, 500, 502, 503, 504)
PATH = signed("/f:mp3/enc/a")


class ProxyCase(ScriptedEncoderCase):
    """Three nodes behind a proxy.

    :cvar kind: the proxy.
    """

    kind: ClassVar[type[Balancer]]

    def setUp(self) -> None:
        """Create a folder for the proxy."""
        super().setUp()
        self.folder = Path(self.mktemp()).resolve()
        self.folder.mkdir()
        self.nodes: list[Node] = []

    async def put_in_front(
        self, respond: Callable[[Connection], None] = echo, number: int = 3
    ) -> Balancer:
        """Start nodes, and the proxy in front of them."""
        ports = {}
        names = ("one", "two", "three")[:number]
        for name, host in zip(names, self.kind.hosts, strict=False):
            node = Node(name, host, respond)
            self.addCleanup(node.stop)
            self.nodes.append(node)
            ports[name] = node.port.getHost().port
        proxy = await balance(self, self.kind, self.folder, ports)
        self.forget()
        return proxy

    def forget(self) -> None:
        """Forget the requests so far."""
        for node in self.nodes:
            node.connections.clear()
            node.checks = 0

    @property
    def connections(self) -> list[Connection]:
        """The connection of each request so far."""
        return [each for node in self.nodes for each in node.connections]

    def assert_unsigned(self, proxy: Balancer, *paths: bytes) -> None:
        """Require that nothing which the proxy has written has the signature of a path."""
        files = [each for each in self.folder.rglob("*") if each.is_file()]
        for output in [proxy.stderr, *(each.read_text(errors="replace") for each in files)]:
            for path in paths:
                self.assertNotIn(path.decode().split("/")[1], output)


class ProxyTests(TornStreamTests):
    """What a proxy does with its shipped file."""

    def states(self, what: str) -> str:
        """Return what the page says of the proxy."""
        return STATED[what][self.kind]

    async def test_check(self) -> None:
        """The proxy accepts the file without a warning, with TLS too."""
        if not hasattr(self.kind, "checking"):
            return
        for certificate in (None, Authority(self.folder).issue("localhost")):
            proxy = self.kind(self.folder, {"one": 80, "two": 81}, certificate)
            self.addCleanup(proxy.stop)
            status, output = await proxy.check()
            self.assertEqual(0, status, output)
            self.assertNotRegex(output, r'(?i)warn|\[error\]|"level":"error"')

    async def test_spellings(self) -> None:
        """A path reaches the node as it was sent, except for the spellings that the page names."""
        proxy = await self.put_in_front()
        changed = set()
        for name, rest in SPELLINGS.items():
            path = signed(f"/f:mp3/{rest}")
            response = await fetch(proxy.port, path)
            if (response.status, response.body) != (200, path):
                changed.add(name)
        stated = self.states("spellings of a path that are a 400 or 401").replace("\\", "")
        self.assertEqual(set(stated.replace("none", "").split(", ")) - {""}, changed)
        path = signed("/f:mp3/plain/local://" + "n" * 12_000)
        response = await fetch(proxy.port, path + b"?query")
        self.assertEqual(path, response.body.partition(b"?")[0])

    async def test_file_names(self) -> None:
        """Under /media/, a node sees the bytes of a path before its last segment."""
        proxy = await self.put_in_front()
        names_plain = self.states("[file names](podcasts.md#end-a-url-in-a-file-name)") == "yes"
        source = "plain/local://a%2Fb%20%C3%BC//;=@.wav" if names_plain else "enc/bG9j"
        path = signed(f"/f:mp3/{source}")
        for sent, seen in (
            (b"/media%s/episode-12.mp3", b"%s"),
            (b"/media%s/%%2F%%C3%%BC%%20.mp3?utm=/1", b"%s"),
            (b"/media%s/", b"%s"),
            (b"/media%s/a.mp3/b.mp3?x", b"%s/a.mp3"),
            (b"/media%s/" + b"n" * 12_000, b"%s"),
            *((same, same) for same in (b"%s", b"%s/x.mp3", b"/MEDIA%s/x", b"/media2%s/x")),
            *((same, same) for same in (b"//media%s/x", b"/x/media%s/x")),
        ):
            response = await fetch(proxy.port, sent % path)
            self.assertEqual(200, response.status, sent)
            self.assertEqual(seen % path, response.body.partition(b"?")[0])

    async def test_one_node(self) -> None:
        """All requests for one URL go to one node, with a file name and without."""
        proxy = await self.put_in_front()
        names = set()
        for number in range(12):
            path = signed(f"/f:mp3/enc/{number}")
            same = {
                (await fetch(proxy.port, each))["x-name"]
                for each in (path, path, b"/media%s/%d.mp3" % (path, number), path)
            }
            hashes = self.states("all requests for a URL go to one node") == "yes"
            self.assertEqual(hashes, len(same) == 1)
            names |= same
        self.assertGreater(len(names), 1, names)

    async def test_statuses(self) -> None:
        """A node's own refusal reaches the client unchanged, and no other node is asked."""

        def refuse(connection: Connection) -> None:
            status = int(connection.target[-3:])
            connection.write(reply(status, b"own", {"Retry-After": "7"}))

        proxy = await self.put_in_front(refuse)
        for status in STATUSES:
            response = await fetch(proxy.port, signed(f"/f:mp3/enc/{status}"))
            self.assertEqual((status, b"own"), (response.status, response.body))
            self.assertEqual(b"7", response["retry-after"])
            stated = self.states(f"a node's own {', '.join(map(str, STATUSES))}")
            is_retried = stated == f"{status} is retried"
            self.assertEqual(is_retried, len(self.connections) > 1, status)
            self.forget()

    async def test_closed_requests(self) -> None:
        """A request that a node closes without a response is retried, except where the page says.

        A node closes the requests of its queue when it stops (D39).
        """

        def close_first(connection: Connection) -> None:
            (echo if len(self.connections) > 1 else Connection.close)(connection)

        proxy = await self.put_in_front(close_first)
        response = await fetch(proxy.port, signed("/f:mp3/enc/a"))
        stated = self.states("a request that a node closes without a response")
        self.assertEqual(stated, "is retried" if response.status == 200 else "fails")

    async def test_down(self) -> None:
        """If a node is down, the others get its requests."""
        proxy = await self.put_in_front()
        await self.nodes[0].stop()
        for number in range(12):
            response = await fetch(proxy.port, signed(f"/f:mp3/enc/{number}"))
            self.assertEqual(200, response.status)

    async def test_streams(self) -> None:
        """Bytes are forwarded at once, and to slow clients.

        If no node is ready, running streams continue, and requests still go to live nodes.
        """
        proxy = await self.put_in_front(start_stream)
        client = await send(proxy.port, signed("/f:mp3/enc/slow"))
        await until(lambda: client.response and len(client.response.body) == HALF, "the half")
        (stream,) = self.connections
        for node in self.nodes:
            node.respond, node.is_ready = echo, False
        if (check := self.states("checks of the nodes")) != "none":
            self.forget()
            await until(lambda: min(each.checks for each in self.nodes) > 2, f"checks of {check}")
        else:
            self.assertEqual([0, 0, 0], [node.checks for node in self.nodes])
        path = signed("/f:mp3/enc/other")
        for sent in (path, b"/media%s/a.mp3" % path):
            response = await fetch(proxy.port, sent)
            self.assertEqual((200, path), (response.status, response.body))
        stream.write(chunk(bytes(HALF)) + chunk(b""))
        response = await client.end()
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertEqual(2 * HALF, len(response.body))

    async def test_request_ids(self) -> None:
        """A client's x-request-id and traceparent reach the node, and the id wins (D67).

        A proxy adds no id of its own to a request with a traceparent.
        """
        proxy = await self.put_in_front()
        trace = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
        path = signed("/f:mp3/enc/a")
        response = await fetch(proxy.port, path, x_request_id=b"mine", traceparent=trace)
        seen = response["x-seen-x-request-id"], response["x-seen-traceparent"]
        self.assertEqual((b"mine", trace), seen)
        response = await fetch(proxy.port, path, traceparent=trace)
        seen = response["x-seen-x-request-id"], response["x-seen-traceparent"]
        self.assertEqual((None, trace), seen)

    async def test_client_leaves(self) -> None:
        """If a client disconnects before its response, the node learns it, if the page says so."""
        stated = self.states("a node learns that a client of HTTP/1.1 has left its queue")
        since = tuple(map(int, re.findall(r"\d+", stated)))
        if stated == "no" or self.kind.version() < since:
            return
        proxy = await self.put_in_front(lambda connection: None, number=1)
        # As a browser does.
        target = signed("/f:mp3/enc/queued")
        client: Client = await send(proxy.port, target, connection=b"keep-alive")
        await until(lambda: self.connections, "the request")
        (waiting,) = self.connections
        await client.leave()
        await until(lambda: waiting.is_lost, "the node to learn it")

    async def test_logs(self) -> None:
        """Nothing that the proxy writes has a signature: of a node that is down or closes, too.

        This includes signatures with padding, in the URL of a redirect, in a Referer, and in the
        absolute form of a target.
        """

        def misbehave(connection: Connection) -> None:
            if connection.target.endswith("torn"):
                start_stream(connection)
            if connection.target.endswith("stored"):
                signature = connection.target.split("/")[1].rstrip("=")
                url = f"https://bucket.example/key?X-Amz-Signature={signature}"
                connection.write(reply(302, headers={"Location": url}))
            connection.close()

        proxy = await self.put_in_front(misbehave)
        paths = [signed(f"/f:mp3/enc/{name}") for name in ("stored", "torn", "closed", "down")]
        for path in paths:
            if path.endswith(b"down"):
                for node in self.nodes:
                    await node.stop()
            padded = path.replace(b"/f:mp3", b"=/f:mp3")
            absolute = b"http://localhost" + path
            for each in (path, padded, absolute, b"/media%s/a.mp3?x" % path):
                client = await send(proxy.port, each, referer=b"https://audio.example.com" + path)
                await until(lambda client=client: client.closed, "the end")
        await proxy.stop()
        self.assert_unsigned(proxy, *paths)


class HAProxyTests(ProxyTests, ProxyCase):
    """HAProxy"""

    kind, name = HAProxy, "HAProxy"

    async def test_shipped_file(self) -> None:
        """HAProxy accepts the file unchanged, without a warning."""
        path = PROJECT / "deploy/haproxy/haproxy.cfg"
        checking = self.spawn(installed("haproxy"), "-c", "-V", "-f", str(path))
        self.assertEqual(0, await checking.end())
        self.assertEqual("Configuration file is valid\n", checking.stdout + checking.stderr)

    async def test_not_ready(self) -> None:
        """A node that is not ready gets no request, and gets those of its URLs when it is again."""
        proxy = await self.put_in_front()
        owner = (await fetch(proxy.port, PATH))["x-name"]
        (node,) = [each for each in self.nodes if each.name.encode() == owner]
        for is_ready, state in ((False, "DOWN"), (True, "UP")):
            node.is_ready = is_ready
            await proxy.until_state(**{node.name: state})
            self.assertEqual(is_ready, owner == (await fetch(proxy.port, PATH))["x-name"])

    async def test_cdn(self) -> None:
        """The line for CDNs keeps them from storing the stream of a render (D62)."""
        proxy = await balance(self, HAProxy, self.folder, {"one": self.start().port})
        response = await fetch(proxy.port, target("good", "mp3"), b"HEAD")
        self.assertEqual(b"no-store", response["cache-control"])


class NginxOutOfConnections(Nginx):
    """An nginx that can accept one client, and then has no connection left for a node."""

    connections = 3


class NginxTests(ProxyTests, ProxyCase):
    """nginx"""

    kind, name = Nginx, "nginx"

    async def test_out_of_connections(self) -> None:
        """If connections run out, nginx writes no signature: such messages have a higher level."""
        proxy = await balance(self, NginxOutOfConnections, self.folder, {"one": 80})
        path = signed("/f:mp3/enc/a")
        self.assertEqual(500, (await fetch(proxy.port, path)).status)
        await proxy.stop()
        self.assertIn(" 500 ", proxy.log.read_text())
        self.assert_unsigned(proxy, path)

    async def test_one_node_twice(self) -> None:
        """A node that is written twice gets each request again that it has closed, and stays up."""
        closed: set[str] = set()

        def close_first(connection: Connection) -> None:
            (echo if connection.target in closed else Connection.close)(connection)
            closed.add(connection.target)

        node = Node("one", "127.0.0.1", close_first)
        self.addCleanup(node.stop)
        port = node.port.getHost().port
        nginx = await balance(self, NginxWithOneNode, self.folder, {"one": port, "again": port})
        for number in range(4):
            self.assertEqual(200, (await fetch(nginx.port, b"/%d" % number)).status)
        self.assertEqual(4, len(closed))


class FileTests(SynchronousTestCase):
    """The shipped files"""

    def test_deadlines(self) -> None:
        """Each file outlives a render and names three nodes, and the page links to it."""
        page = PAGE.read_text()
        for kind in (HAProxy, Nginx, *PROXIES):
            text = (PROJECT / "deploy" / kind.file).read_text()
            self.assertRegex(text, r"\b630s?\b")
            for number in (11, 12, 13):
                self.assertIn(f"10.0.0.{number}", text)
            self.assertIn(f"../deploy/{kind.file}", page)
        # By default, Envoy ends each response after 15 seconds.
        self.assertIn(" timeout: 0s\n", (PROJECT / "deploy" / Envoy.file).read_text())

    def test_page(self) -> None:
        """With our files, torn streams break off; the page shows the handlers that are tested."""
        for row in rows("proxies", "Proxy"):
            self.assertFalse(row[2] in OURS and COMPLETE in row, row)
        scripts = "".join(path.read_text() for path in (HERE / "node_proxies").glob("*.mjs"))
        for handler in re.findall(r"```js\n(.*?)```", PAGE.read_text(), re.DOTALL):
            self.assertIn(handler, scripts)
