"""Every way in which a render can fail, with a real service, real children and a real disk."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from twisted.internet.interfaces import IDelayedCall

from audioproxy.media.inputs import SOURCE_DESCRIPTOR
from audioproxy.service import AudioProxy
from tests.support.http import Log
from tests.support.processes import open_descriptors, set_environment
from tests.support.service import (
    Client,
    ServiceCase,
    children,
    counter_increases,
    fetch,
    is_running,
    is_stopped,
    reactor,
    scratch_files,
    send,
    short_flac,
    signed,
    until,
    until_scraped,
)

# Script in place of ffmpeg. For a source in `encoder_scripts`, an encoder runs the shell commands
# of that source, and then the real ffmpeg unless they exit. Other sources and other calls run the
# real ffmpeg. `write_64k` writes 64 KiB, `stop_self` suspends the script until the test continues
# it.
ENCODER = f"""#!/bin/sh
case " $* " in
*" pipe:1 "*) ;;
*) exec {shutil.which("ffmpeg")} "$@" ;;
esac
write_64k() {{ head -c 65536 /dev/zero; }}
stop_self() {{ kill -STOP $$; }}
source=$(readlink /proc/$$/fd/{SOURCE_DESCRIPTOR})
case ${{source##*/}} in
%s
esac
exec {shutil.which("ffmpeg")} "$@"
"""

SLOTS_HELD = "audio_proxy_render_slots_held"
QUEUE_DEPTH = "audio_proxy_render_queue_depth"


class ScriptedEncoderCase(ServiceCase):
    """Service whose encoder misbehaves for some sources.

    :cvar encoder_scripts: shell commands of the encoder by the name of the source.
    """

    encoder_scripts: ClassVar[dict[str, str]] = {}

    def setUp(self) -> None:
        super().setUp()
        rows = [f"{name}.flac) {script} ;;" for name, script in self.encoder_scripts.items()]
        path = self.shadow_ffmpeg(ENCODER % "\n".join(rows))
        self.programs = Path(path.partition(":")[0])
        set_environment(self, PATH=path)
        for name in ("good", *self.encoder_scripts):
            self.add(f"{name}.flac", short_flac())

    async def start_service(self, **settings: Any) -> AudioProxy:
        """Start a service in this process, and let it finish one good render."""
        service = self.start(**settings)
        good = await fetch(service.port, target("good", "opus"))
        self.assertEqual(200, good.status)
        await until(lambda: not children(), "its children to be reaped")
        return service

    async def until_idle(self, service: AudioProxy) -> dict[str, float]:
        """Wait until no render holds resources; return all metrics."""
        await until(lambda: not children(), "all children to be reaped")
        await until(lambda: not scratch_files(self.store), "the scratch files to go")
        series = await until_scraped(
            service.metrics_port, lambda series: not series[SLOTS_HELD], "the slots to be free"
        )
        self.assertEqual(0, series["audio_proxy_renders_running"])
        return series


async def until_stopped(pid: int | None = None, but: Collection[int] = ()) -> int:
    """Wait until a child of a process, not in ``but``, is stopped; return its id."""

    def stopped() -> list[int]:
        return [child for child in children(pid) if child not in but and is_stopped(child)]

    (found,) = await until(stopped, "the encoder to stop")
    return found


def target(source: str, form: str, more: str = "") -> bytes:
    """Return the signed path of a variant."""
    if form == "peaks":
        # A waveform of one pixel takes one pass, however many samples the encoder outputs.
        more += "/pts:1"
    return signed(f"/f:{form}{more}/plain/local://{source}.flac")


class JumpingReactor:
    """The reactor, whose time a test can set forward."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._calls: list[IDelayedCall] = []

    def seconds(self) -> float:
        return float(reactor.seconds()) + self._ahead

    def callLater(self, delay: float, work: Callable[..., Any], *words: Any) -> IDelayedCall:
        self._calls = [call for call in self._calls if call.active()]
        self._calls.append(reactor.callLater(delay, work, *words))
        return self._calls[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(reactor, name)

    def jump(self, seconds: float) -> None:
        """Set the time forward; timers that are due then run in their order."""
        self._ahead += seconds
        calls = [call for call in self._calls if call.active()]
        for call in sorted(calls, key=lambda call: call.getTime()):
            call.reset(max(0, call.getTime() - reactor.seconds() - seconds))


class RenderEnd(NamedTuple):
    """Expected end of a render, as the client, the metrics and the log report it.

    :ivar status: status of the response; 200 without a ``code`` means the complete variant.
    :ivar code: error code, also if the status was sent before the error.
    :ivar line: pattern of the failure's log line.
    """

    script: str
    form: str
    status: int
    code: str | None = None
    line: str = ""

    @property
    def counter(self) -> str:
        """The series that counts it."""
        return f'renders_total{{format="{self.form}",outcome="{self.code or "success"}"}}'


TOO_LONG = "the encoder was stopped: The render took longer than AP_RENDER_TIMEOUT"

# Batches that run concurrently.
FAILURES = (
    RenderEnd("midway", "aac", 200, "render_failed", r"encoder failed \(exit status 1\): no luck"),
    RenderEnd("aborted", "aac", 200, "render_failed", r"\(ended by SIGABRT\): .*Assertion"),
    RenderEnd("killed", "peaks", 500, "render_failed", r"\(ended by SIGKILL\)"),
    RenderEnd("nothing", "aac", 415, "undecodable_source", "the encoder output no audio"),
    RenderEnd("endless", "aac", 200, "render_failed", "larger than AP_MAX_VARIANT_BYTES"),
    # These succeed, and leave a process that holds the pipes open.
    RenderEnd("orphan", "aac", 200),
    RenderEnd("orphan", "peaks", 200),
)
TIMEOUTS = (
    RenderEnd("ignores-term", "aac", 200, "render_timeout", TOO_LONG),
    RenderEnd("ignores-term", "peaks", 504, "render_timeout", TOO_LONG),
    RenderEnd("closed-pipes", "aac", 504, "render_timeout", TOO_LONG),
    RenderEnd("closed-pipes", "peaks", 504, "render_timeout", TOO_LONG),
    RenderEnd("frozen", "aac", 200, "render_timeout", TOO_LONG),
    RenderEnd("frozen", "peaks", 504, "render_timeout", TOO_LONG),
    RenderEnd("slow", "peaks", 504, "render_timeout", TOO_LONG),
)
#: Timeout of renders, to which a test sets the time forward, and of a child that gets SIGTERM.
RENDER_TIMEOUT, KILL_DELAY = 100, 2


class FailureTests(ScriptedEncoderCase):
    """Status, log line and metric of each kind of failure that takes a real child"""

    encoder_scripts: ClassVar[dict[str, str]] = {
        "midway": "write_64k; echo no luck >&2; stop_self; exit 1",
        # As ffmpeg 7.1.5 does behind loudnorm.
        "aborted": "write_64k; stop_self; echo 'Assertion failed' >&2; kill -ABRT $$",
        "killed": "write_64k; stop_self; kill -KILL $$",
        "nothing": "stop_self; exit 0",
        "endless": "write_64k; stop_self; exec cat /dev/zero",
        "slow": "stop_self; while write_64k; do sleep 0.1; done",
        "orphan": "sleep 60 & echo $! >> ${0%/*}/orphans; write_64k; stop_self; exit 0",
        "ignores-term": "trap '' TERM; write_64k; stop_self; exec sleep 60",
        "closed-pipes": "stop_self; exec >&- 2>&- sleep 60",
        "frozen": "write_64k; stop_self; stop_self; exit 0",
    }

    def setUp(self) -> None:
        super().setUp()
        self.log = Log(self)
        self.reactor = JumpingReactor()

    async def start_render(self, port: int, end: RenderEnd) -> Client:
        """Start a render, wait until its encoder stops, and continue the encoder."""
        before = set(children())
        client: Client = await send(port, target(end.script, end.form))
        encoder = await until_stopped(but=before)
        if end.status == 200 and end.form != "peaks":
            await until(lambda: client.response, "the headers")
        os.kill(encoder, signal.SIGCONT)
        if end.script == "frozen":
            await until_stopped(but=before)
        elif end.script == "closed-pipes":
            stderr = Path(f"/proc/{encoder}/fd/2")
            await until(lambda: not os.path.lexists(stderr), "the encoder to close its pipes")
        return client

    async def assert_ends(self, service: AudioProxy, ends: tuple[RenderEnd, ...]) -> None:
        """Run renders concurrently; require the expected responses, metrics and log lines."""
        before, stored = await self.until_idle(service), self.stored()
        self.log.events.clear()
        clients = [await self.start_render(service.port, end) for end in ends]
        if ends is TIMEOUTS:
            self.reactor.jump(RENDER_TIMEOUT)
        for client, end in zip(clients, ends, strict=True):
            response = await client.end()
            self.assertEqual(end.status, response.status, end)
            if end.status != 200:
                self.assertEqual((True, end.code), (response.complete, response.error), end)
            else:
                # A failed body must not look complete.
                self.assertEqual(end.code is None, response.complete, end)
        if ends is TIMEOUTS:
            self.reactor.jump(KILL_DELAY)
        counted = counter_increases(before, await self.until_idle(service))
        for counter, count in Counter(end.counter for end in ends).items():
            self.assertEqual(count, counted[counter], counter)
        lines = self.log.warnings
        for end in ends:
            found = [line for line in lines if re.search(end.line, line)]
            self.assertTrue(found or not end.code, (end, lines))
        new = set(self.stored()) - set(stored)
        self.assertEqual(len([end for end in ends if end.code is None]), len(new))

    async def test_failures(self) -> None:
        """Every failure of an encoder is reported to the client, and frees the render slot."""
        service = await self.start_service(
            max_concurrency=len(TIMEOUTS),
            max_variant_bytes=1_000_000,
            render_timeout=RENDER_TIMEOUT,
        )
        before = open_descriptors()
        for ends in (FAILURES, TIMEOUTS):
            await self.assert_ends(service, ends)
        await until(lambda: open_descriptors() <= before, "descriptors to close")
        whole = await fetch(service.port, target("good", "aac"))
        self.assertEqual((200, True), (whole.status, whole.complete))
        # What an encoder leaves behind ends with it.
        orphans = (self.programs / "orphans").read_text().split()
        await until(lambda: not any(is_running(int(pid)) for pid in orphans), "the orphans to end")
