"""Render registries around a `FakeEngine`, and their clients."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, execute
from twisted.python.failure import Failure

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.errors import Refusal
from audioproxy.files.streams import FileProducer
from audioproxy.grammar.request import VariantRequest, parse_request
from audioproxy.render.output import RenderOutput
from audioproxy.render.registry import RenderRegistry
from audioproxy.render.subscribers import Subscription
from audioproxy.render.write_back import RenderStorage
from audioproxy.testing import FakeThreads
from audioproxy.variants.files import FileVariantStore, variant_path
from audioproxy.variants.response_headers import VariantHeaders
from tests.support.audio import noise, write_wav
from tests.support.consumers import FakeConsumer
from tests.support.engine import FakeEngine
from tests.support.processes import FakeChild

HEADERS = VariantHeaders("audio/mpeg", "public, max-age=31536000, immutable, no-transform")

#: What an encoder writes, by format: a header, into which the service writes the length, and audio.
ENCODED = {
    "flac": b"fLaC" + bytes(38) + b"audio" * 20,
    "mp3": b"ID3\4\0\0\0\0\0\4TAGS" + b"audio" * 20,
    "wav": b"RIFF____WAVEfmt " + bytes(20) + b"data____" + b"audio" * 30,
}


class Client:
    """Client that requests a variant, receives its bytes, and may disconnect.

    :ivar outcome: None while the transfer runs; then ``whole``, or the exception that ended it.
    """

    def __init__(self, subscription: Subscription, window: int | None = None) -> None:
        self.started = subscription.started
        self.consumer = FakeConsumer(window)
        self.outcome: object = None
        self.output_started = False
        self._subscription = subscription
        self._transfer = Deferred.fromCoroutine(self._run())
        self._transfer.addCallbacks(self._note, self._note_failure)

    @property
    def data(self) -> bytes:
        """The bytes received so far."""
        return bytes(self.consumer.data)

    def disconnect(self) -> None:
        """Close the connection."""
        self._transfer.cancel()

    async def _run(self) -> str:
        try:
            output: RenderOutput = await self._subscription.output
            self.output_started = True
            await FileProducer(output).send(self.consumer)
        finally:
            self._subscription.leave()
        return "whole"

    def _note(self, outcome: str) -> None:
        self.outcome = outcome

    def _note_failure(self, failure: Failure) -> None:
        self.outcome = failure.value


def answer_probe(
    child: FakeChild,
    duration: str | None,
    container: str = "wav",
    codec: str = "pcm_s16le",
    count: int = 1,
) -> None:
    """Make a probe report a number of decodable streams, and end."""
    assert child.arguments[0] == "ffprobe", child.arguments
    form = {"format_name": container} | ({} if duration is None else {"duration": duration})
    stream = {"codec_type": "audio", "codec_name": codec, "sample_rate": "44100", "channels": 2}
    child.exit_and_end(stdout=json.dumps({"format": form, "streams": [stream] * count}).encode())


class RenderHarness(FakeEngine):
    """A node, by default with one render slot and a variant store."""

    def __init__(self, *, stored: bool = True, **settings: Any) -> None:
        sizes = {b"a.wav": 1000, b"b.wav": 1000}
        super().__init__(sizes=sizes, has_store=stored, **settings)
        self.clients: list[Client] = []
        self.renders = RenderRegistry(self.context)

    def request(self, options: str = "", path: bytes = b"a.wav") -> VariantRequest:
        """Return a request for a variant."""
        middle = f"/{options}/" if options else "/"
        request = parse_request(middle.encode() + b"plain/local://" + path, None)
        assert isinstance(request, VariantRequest)
        return request

    def start_client(
        self,
        options: str = "",
        path: bytes = b"a.wav",
        window: int | None = None,
        *,
        is_low: bool = False,
    ) -> Client:
        """Start a client and return it."""
        client = Client(self.renders.join(self.request(options, path), is_low=is_low), window)
        self.clients.append(client)
        return client

    def answer_probe(
        self, duration: str | None = "10", container: str = "wav", codec: str = "pcm_s16le"
    ) -> None:
        """Make the most recent probe report decodable audio."""
        answer_probe(self.spawner.last, duration, container, codec)

    def start_probed(
        self,
        options: str = "",
        path: bytes = b"a.wav",
        duration: str | None = "10",
        *,
        is_low: bool = False,
    ) -> Client:
        """Start a client, and make the probe of its source report decodable audio."""
        client = self.start_client(options, path, is_low=is_low)
        self.answer_probe(duration)
        return client

    def render(self, options: str = "", path: bytes = b"a.wav") -> tuple[Client, FakeChild]:
        """Start a client and its encoder."""
        client = self.start_probed(options, path)
        return client, self.encoder()

    def render_whole(
        self, options: str = "", path: bytes = b"a.wav", data: bytes = b"abc"
    ) -> Client:
        """Return a client that has got a whole variant, which its encoder has written at once."""
        client, encoder = self.render(options, path)
        encoder.exit_and_end(stdout=data)
        assert (client.outcome, client.data) == ("whole", data)
        return client

    def encoder(self) -> FakeChild:
        """Return the encoder that was started most recently."""
        child = self.spawner.last
        assert child.arguments[0] == "ffmpeg", child.arguments
        return child

    def fill_sources(self) -> None:
        """Give the sources 500 samples, so that outputs state their length."""
        self.sources.content = content = write_wav(noise(44100, 500, 2))
        self.sources.sizes |= {b"a.wav": len(content), b"b.wav": len(content)}

    def fill_disk(self) -> None:
        """Leave no disk space for another scratch file, in the store and outside it."""
        error = OSError(28, "No space left on device")
        self.store.create_error = self.fallback_scratch_space.create_error = error

    def write_output(self, data: bytes) -> None:
        """Make the encoder write, and let the service check the size of the output."""
        self.encoder().write_stdout(data)
        self.advance_to_size_check()

    def advance_to_size_check(self) -> None:
        """Advance the clock until the service checks the size of the output."""
        self.clock.advance(0.03)

    def stored(self) -> bytes | None:
        """Return the bytes of the only stored variant, or None."""
        found = [data for data, _ in self.store.variants.values()]
        assert len(found) <= 1
        return found[0] if found else None

    def refusals(self) -> set[type[Refusal]]:
        """Return the types of the outcomes of all clients."""
        return {type(client.outcome) for client in self.clients}

    def close(self) -> None:
        """Disconnect all clients, end all child processes, and finish all writes to the store."""
        for client in self.clients:
            client.disconnect()
        # The end of one child process may start the next one.
        while self.spawner.alive or self.threads.waiting:
            self.spawner.kill_all()
            self.threads.run()
        for commit in self.store.commits:
            if not commit.called:
                commit.callback(None)
        self.clock.advance(1)

    def unreleased_resources(self) -> tuple[object, ...]:
        """Return the resources that must be released at the end; see `NOTHING_UNRELEASED`."""
        return (
            self.slots.held,
            self.slots.depth,
            self.slots.low_depth,
            self.probe_slots.held,
            self.sources.held,
            self.spawner.alive,
            self.threads.waiting,
            self.clock.getDelayedCalls(),
        )


NOTHING_UNRELEASED = (0, 0, 0, 0, 0, [], 0, [])


class DiskHarness(RenderHarness):
    """A node with a real file store on a disk that responds only when a test runs its threads.

    :ivar disk: the threads that wait for the disk.
    :ivar build: the build of ffmpeg.
    """

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__(**settings)
        root.mkdir(exist_ok=True)
        self.root = root
        self.disk = FakeThreads()
        self.variants = FileVariantStore(
            str(root),
            BlockingCalls(self.clock, self.disk.in_thread),
            BlockingCalls(self.clock, execute),
        )
        Deferred.fromCoroutine(self.variants.open())
        self.disk.run()
        self.build = "7.1:0123abcd"
        storage = RenderStorage(
            self.variants, self.fallback_scratch_space, self.clock, build=lambda: self.build
        )
        self.context = replace(self.context, storage=storage)
        self.renders = RenderRegistry(self.context)

    def render(self, options: str = "") -> tuple[Client, FakeChild]:
        """Start a client, let the store provide a scratch file, and start the encoder."""
        client = self.start_probed(options)
        self.disk.run()
        return client, self.encoder()

    def finish(self, data: bytes = b"abc") -> None:
        """Make the encoder write its whole output and exit."""
        self.encoder().exit_and_end(stdout=data)

    def complete(self, data: bytes = b"abc") -> None:
        """Finish the encoder, and let the store take over its output."""
        self.finish(data)
        self.disk.run()

    def variant_path(self, options: str = "", path: bytes = b"a.wav") -> Path:
        """Return the path of a variant in the store."""
        return Path(variant_path(str(self.root), self.request(options, path).key))

    def scratch_files(self) -> list[str]:
        """Return the names of the scratch files of renders in the store."""
        return [name for _, _, names in os.walk(self.root) for name in names if len(name) == 32]

    def found(self, options: str = "", path: bytes = b"a.wav") -> bytes | None:
        """Return the stored bytes of a variant, or None."""
        looking: list[Any] = []
        key = self.request(options, path).key
        Deferred.fromCoroutine(self.variants.lookup(key)).addCallback(looking.append)
        (stored,) = looking
        if stored is None:
            return None
        data: bytes = stored.read(0, stored.size)
        stored.close()
        return data

    def close(self) -> None:
        """End all renders, then let the disk respond."""
        super().close()
        self.disk.run()
        self.clock.advance(1)
        self.disk.run()
