"""Fixture of a run: two nodes, a store, sources with their references, and a journal."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path

from twisted.internet.defer import DeferredLock
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol

from audioproxy.grammar.formats import FORMATS
from tests.soak.journal import Journal
from tests.soak.lines import PATIENCE, ClientBehavior, ClientConnection, read_to_end
from tests.soak.nodes import Node
from tests.soak.records import ExpectedRequest, ExpectedResponse, RequestRecord
from tests.soak.sounds import LONG, SPEECH, TONE, Sounds, document, render
from tests.soak.verdicts import RENDER_TIMEOUT
from tests.support.audio import options_of
from tests.support.http import key_of
from tests.support.service import basic_environment, reactor, signed

CAPACITY, QUEUE = 2, 12
#: The bytes that nodes A and B may store.
BOUND = 10**12

#: Options and source of the short renders: every format, and some of the other options.
SHORT = [
    *((f"f:{token}", TONE) for token in FORMATS),
    ("f:mp3/t:0.5:1/fade:0.2:0.2", TONE),
    ("f:opus/enhance:voice", SPEECH),
    ("f:mp3/norm:ebu", SPEECH),
    ("f:wav/sr:22050/ch:1", SPEECH),
    ("f:peaks/pk_fmt:dat/pts:200/pk_bits:8", SPEECH),
]
#: A render long enough to be joined half way, and one larger than any socket buffer.
LONG_RENDER, LARGE = ("f:mp3", LONG), ("f:flac", LONG)
#: Renders whose child processes are attacked.
ATTACKED = [LONG_RENDER, LONG_RENDER, ("f:wav", TONE), ("f:peaks", LONG)]


@dataclass(frozen=True)
class RunParameters:
    """Parameters of a run.

    :ivar seconds: duration of the load.
    :ivar clients: number of concurrent clients that choose their actions at random. Clients that
        cause one particular fault are not counted.
    :ivar idle: number of idle connections.
    :ivar long: duration of the long source in seconds.
    :ivar faults: number of faults of each kind that are injected even if the load ends earlier.
    :ivar extras: whether there are a node with buckets and an operator.
    :ivar short: renders of short sources, as in `SHORT`.
    """

    seconds: float
    seed: int
    clients: int = 14
    idle: int = 200
    long: float = 150
    faults: int = 2
    extras: bool = True
    short: Sequence[tuple[str, str]] = tuple(SHORT)

    @classmethod
    def of(cls, seconds: float, seed: int) -> RunParameters:
        """Return the parameters of a run; a run under 60 seconds gets less load."""
        if seconds >= 60:
            return cls(seconds, seed)
        medium = cls(seconds, seed, clients=10, idle=50, long=90)
        if seconds >= 10:
            return medium
        # Rendering the references of all variants takes longer than such a run.
        less = replace(medium, clients=4, idle=20, long=20, faults=0, extras=False)
        return replace(less, short=SHORT[::3])

    @property
    def renders(self) -> Iterator[tuple[str, str]]:
        """Options and source of every render."""
        return chain(self.short, (LONG_RENDER, LARGE), ATTACKED)


@dataclass
class Rig:
    """The nodes, sources, references and journal of a run.

    :ivar environment: variables of nodes A and B, but for the bound of their store.
    :ivar restarts: lock for restarts of a node and for taking the store away, because a node does
        not start without the store.
    """

    parameters: RunParameters
    base: Path
    environment: dict[str, str]
    journal: Journal
    sounds: Sounds
    a: Node
    b: Node
    restarts: DeferredLock = field(default_factory=DeferredLock)
    _expected: dict[tuple[str, str], ExpectedResponse] = field(default_factory=dict)
    _busters: count[int] = field(default_factory=lambda: count(1))

    @classmethod
    def build(cls, parameters: RunParameters, base: Path) -> Rig:
        """Create the folders, the sources and the references; the nodes are not started."""
        for name in ("root", "store"):
            (base / name).mkdir(parents=True)
        sounds = Sounds(base / "root", parameters.long)
        environment = {
            **basic_environment(base / "root", base / "store"),
            "AP_MAX_CONCURRENCY": str(CAPACITY),
            "AP_QUEUE_SIZE": str(QUEUE),
            "AP_RENDER_TIMEOUT": str(RENDER_TIMEOUT),
            "AP_PROBE_TIMEOUT": str(RENDER_TIMEOUT // 3),
        }
        # It is never reached, but the usage of the store is counted.
        bounded = {**environment, "AP_VARIANT_STORE_MAX_BYTES": str(BOUND)}
        nodes = [Node(name, base, bounded) for name in "ab"]
        rig = cls(parameters, base, environment, Journal(), sounds, *nodes)
        # Render the references now, so that no client waits for them under load.
        for options, source in parameters.renders:
            rig.reference(options, source)
        for source in (TONE, SPEECH):
            rig.info(source)
        return rig

    @property
    def store(self) -> Path:
        """The folder of the variant store."""
        return self.base / "store"

    def random(self, name: object) -> random.Random:
        """Return a random generator for one purpose; equal seeds give equal numbers."""
        return random.Random(f"{self.parameters.seed}/{name}")

    def node(self, chance: random.Random) -> Node:
        """Choose a node that is up: mostly node A, which is never restarted."""
        return self.b if self.b.up and chance.random() < 0.3 else self.a

    def variant(
        self, options: str, source: str, cold: bool = True, place: str | None = None
    ) -> ExpectedRequest:
        """Return a GET of a variant.

        :param cold: use a cache key that was never requested before.
        :param place: URL of another copy of the same source.
        """
        if cold:
            options += f"/cb:{next(self._busters)}"
        rest = f"/{options}/plain/{place or f'local://{source}'}"
        key = key_of(rest.encode())
        expected = replace(self.reference(options.partition("/cb:")[0], source), etag=f'"{key}"')
        return ExpectedRequest(signed(rest), expected, key=key)

    def info(self, source: str, place: str | None = None) -> ExpectedRequest:
        """Return a GET of an info document.

        :param place: URL of another copy of the same source.
        """
        where = ("info", source)
        if where not in self._expected:
            right = document(self.sounds.path(source))
            self._expected[where] = ExpectedResponse(frozenset({200}), document=right)
        target = signed(f"/info/plain/{place or f'local://{source}'}")
        return ExpectedRequest(target, self._expected[where], "info")

    def reference(self, options: str, source: str) -> ExpectedResponse:
        """Return the expected response to a GET of a variant.

        The body is rendered only at the first call.
        """
        where = (options, source)
        if where not in self._expected:
            body = render(self.sounds.path(source), options)
            kind = options_of(options).content_type
            self._expected[where] = ExpectedResponse(frozenset({200}), body, content_type=kind)
        return self._expected[where]

    async def request(
        self,
        node: Node,
        request: ExpectedRequest,
        kind: str,
        behavior: ClientBehavior = read_to_end,
        causes: set[str] | None = None,
    ) -> RequestRecord:
        """Make a request on a new connection and judge the response.

        :param behavior: what the client does after it has sent the request.
        :param causes: injected faults that may affect the response.
        """
        record = self.journal.begin(node.name, request, kind, causes)
        connection = await self.connect(node, request.method)
        if connection is None:
            record.certain = False
            self.journal.judge(record, None)
            return record
        connection.write(request.head(record.request_id))
        connection.on_success_begun = lambda: setattr(record, "begun", True)
        await behavior(connection, record)
        connection.reset()
        await connection.wait(lambda: False, 5)
        self.journal.end(record, connection)
        return record

    async def connect(self, node: Node, method: bytes = b"GET") -> ClientConnection | None:
        """Open a connection; return None if the node accepts none."""
        connection = ClientConnection(method)
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", node.port, timeout=PATIENCE)
        try:
            await connectProtocol(endpoint, connection)
        except Exception:
            return None
        return connection

    def in_flight(self, node: Node) -> Iterable[RequestRecord]:
        """Return the records to a node that have not ended."""
        return [record for record in self.journal.running if record.node == node.name]


def stored_path(store: Path, request: ExpectedRequest) -> Path:
    """Return the path of a variant in a store."""
    key = request.key or ""
    return store / key[:2] / key
