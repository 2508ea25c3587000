"""Fixture: an HTTP resource with test doubles chosen by an input, and its leak checks."""

from __future__ import annotations

import json
from typing import Any

from audioproxy.errors import (
    NotFound,
    QueueFull,
    RenderTimeout,
    UndecodableSource,
    UpstreamUnavailable,
)
from tests.support.http import ResourceHarness
from tests.support.stores import FakeStored

VARIANT = bytes(range(100))
_AUDIO = {"codec_type": "audio", "codec_name": "mp3", "sample_rate": "44100", "channels": 2}
#: A value of each of the `SETTINGS`.
Setup = tuple[Any, ...]
#: Values of each setting of a service; the first ones are the default.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "origin": (None, "*", "https://app.example"),
    "has_store": (True, False),
    # The stored variants are those whose key ends with one of these digits.
    "stored": ("", "0123456789abcdef", "02468ace"),
    # The size and the validator of every source, and the refusal of its `open`.
    "source": (
        (1000, b"material", None),
        (1000, b"", None),
        (10**9, b"material", None),
        (0, b"", NotFound("no such file")),
        (0, b"", UpstreamUnavailable()),
    ),
    # The output of renders, and the refusal that ends them.
    "render": (
        (b"sound" * 20, None),
        (b"", UndecodableSource()),
        (b"", RenderTimeout()),
        (b"", QueueFull(3)),
        (b"sound", RenderTimeout()),
    ),
    # The output of ffprobe, and its exit status.
    "probe": (
        (json.dumps({"format": {"format_name": "mp3"}, "streams": [_AUDIO]}).encode(), 0),
        (json.dumps({"format": {}, "streams": [{"codec_type": "video"}]}).encode(), 0),
        (b"{}", 0),
        (b"", 1),
    ),
    # Whether the client leaves as soon as it has sent everything.
    "disconnects": (False, True),
    # Bytes that the client sends at a time, or 0 for all at once.
    "piece": (0, 1, 7, 100),
    # Bytes after which the client pauses reading.
    "window": (None, 1, 300),
}
DEFAULT: Setup = tuple(values[0] for values in SETTINGS.values())
_FFMPEG_ERROR = b"Invalid data found when processing input"


class FuzzFixture(ResourceHarness):
    """Service with a choice of `SETTINGS`.

    :ivar received_methods: the method of each request that reached the resource, in order.
    """

    def __init__(self, setup: Setup = DEFAULT) -> None:
        origin, has_store, self._stored, source, render, probe, *client = setup
        super().__init__(origin=origin, insecure=True, has_store=has_store)
        self.disconnects, self.piece, self.window = client
        self.origin = self.instrumentation.cors
        self.sources.default_size, self.sources.validator, self.sources.crash = source
        self._output, self._failure = render
        self._answer, self._status = probe
        self.received_methods: list[bytes] = []
        self._found: list[FakeStored] = []
        self.store.lookup = self._lookup  # type: ignore[method-assign]
        respond = self.resource.render

        def spy(request: Any) -> int:
            self.received_methods.append(bytes(request.method))
            return respond(request)

        self.resource.render = spy  # type: ignore[method-assign]

    async def _lookup(self, key: str) -> FakeStored | None:
        if key[-1] not in self._stored:
            return None
        self._found.append(FakeStored(VARIANT))
        self._found[-1].opened = 1
        return self._found[-1]

    def work(self) -> bool:
        """End all running child processes and renders; return whether there were any."""
        children, renders = self.spawner.alive, list(self.renders.running.items())
        for child in children:
            child.write_stdout(self._answer)
            child.write_stderr(_FFMPEG_ERROR if self._status else b"")
            child.exit_and_end(self._status)
        for key, render in renders:
            del self.renders.running[key]
            if self._output:
                render.write_output(self._output)
            render.end(self._failure)
        return bool(children or renders)

    def check_released(self) -> None:
        """Assert that nothing is held once the only client has left."""
        self.spawner.kill_all()
        assert self.resource.active.count == 0, (
            f"{self.resource.active.count} requests are still in progress"
        )
        assert not self.clock.getDelayedCalls(), self.clock.getDelayedCalls()
        assert (self.slots.held, self.slots.depth, self.probe_slots.held) == (0, 0, 0)
        for render in self.renders.started:
            assert render.subscribers == render.left, (
                f"{render.subscribers} subscribed, {render.left} left"
            )
            assert not render.waiting, "a subscriber still waits"
            render.output.end()
            render.output.release()
            assert render.output.scratch.closed, "an output still has a reader"
        assert not self.sources.held, f"{self.sources.held} sources were not closed"
        for stored in self._found:
            assert stored.closed == 1, f"a stored variant was closed {stored.closed} times"
