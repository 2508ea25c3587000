"""Every way in which a render can fail, in a separate service process with real children."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from twisted.trial.unittest import SkipTest

from audioproxy.media.inputs import SOURCE_DESCRIPTOR
from tests.live.test_service import scratch_files, until_hit
from tests.support.service import (
    PATIENCE,
    Client,
    Process,
    ServiceCase,
    children,
    counter_increases,
    descriptors,
    fetch,
    is_stopped,
    long_flac,
    scrape,
    send,
    short_flac,
    signed,
    until,
)
from tests.test_tap import LINE

# Script in place of ffmpeg. For a source in `encoder_scripts`, an encoder runs the shell commands
# of that source. Other sources and other calls run the real ffmpeg. `say` writes 64 KiB, and
# `wait_here` suspends the script until the test continues it.
ENCODER = f"""#!/bin/sh
case " $* " in
*" pipe:1 "*) ;;
*) exec {shutil.which("ffmpeg")} "$@" ;;
esac
say() {{ head -c 65536 /dev/zero; }}
wait_here() {{ kill -STOP $$; }}
source=$(readlink /proc/$$/fd/{SOURCE_DESCRIPTOR})
case ${{source##*/}} in
%s
esac
exec {shutil.which("ffmpeg")} "$@"
"""


class ScriptedEncoderCase(ServiceCase):
    """Service whose encoder misbehaves for some sources.

    :cvar encoder_scripts: shell commands of the encoder by the name of the source.
    """

    encoder_scripts: ClassVar[dict[str, str]] = {}

    def setUp(self) -> None:
        super().setUp()
        self.programs = self.root.with_name("programs")
        self.programs.mkdir()
        rows = [f"{name}.flac) {script} ;;" for name, script in self.encoder_scripts.items()]
        self.write_program("ffmpeg", ENCODER % "\n".join(rows))
        for name in ("good", *self.encoder_scripts):
            self.add(f"{name}.flac", short_flac())

    def write_program(self, name: str, text: str) -> None:
        """Write a program into the folder that is first in PATH."""
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    async def start_service(self, **variables: str) -> Process:
        """Start a service and let it finish one good render."""
        path = f"{self.programs}:{os.environ['PATH']}"
        node = self.twistd(**{"PATH": path, "AP_LOG_LEVEL": "debug", **variables})
        port = await node.port()
        good = await fetch(port, signed("/f:opus/plain/local://good.flac"))
        self.assertEqual(200, good.status)
        await until(lambda: not children(node.pid), "its children to be reaped")
        return node

    async def until_idle(self, node: Process) -> dict[str, float]:
        """Wait until no render holds resources; return all metrics."""
        await until(lambda: not children(node.pid), "all children to be reaped")
        await until(lambda: not scratch_files(self.store), "the scratch files to go")
        port = await node.metrics_port()
        while (series := await scrape(port))["audio_proxy_render_slots_held"]:
            self.assertIsNone(node.code)
        self.assertEqual(0, series["audio_proxy_renders_running"])
        return series

    def stored(self) -> list[str]:
        """Return the names of all variants in the store."""
        return [path.name for path in self.store.glob("??/*")]


async def until_stopped(pid: int | None = None, but: Collection[int] = ()) -> int:
    """Wait until a child of a process, not in ``but``, is stopped; return its id."""

    def stopped() -> list[int]:
        return [child for child in children(pid) if child not in but and is_stopped(child)]

    (found,) = await until(stopped, "the encoder to stop")
    return found


def target(source: str, form: str, more: str = "") -> bytes:
    """Return the signed path of a variant."""
    return signed(f"/f:{form}{more}/plain/local://{source}.flac")


def render_log_lines(node: Process, since: int = 0) -> list[tuple[str, str]]:
    """Return level and text of warnings, errors and access log lines of renders."""
    lines = [LINE.fullmatch(line) for line in node.stdout[since:].splitlines()]
    found = [(line["level"], line["text"]) for line in lines if line is not None]
    return [
        (level, text)
        for level, text in found
        if level in ("warning", "error") or text.startswith("render ")
    ]


@dataclass(frozen=True)
class End:
    """Expected end of a render, as the client, the log and the metrics report it.

    :ivar status: status of the response; 200 without a ``code`` means the complete variant.
    :ivar code: error code, also if the status was sent before the error.
    :ivar outcome: label of the metric.
    :ivar line: log line of the failure, besides the access log line.
    :ivar level: log level of ``line``.
    """

    script: str
    form: str
    status: int
    code: str | None
    outcome: str
    line: str | None
    level: str = "warning"

    @property
    def request_line(self) -> tuple[str, str]:
        """Level and pattern of the access log line."""
        level = "warning" if self.code not in (None, "undecodable_source") else "info"
        code = f" {self.code}" if self.code else ""
        options = r"(ch:1/)?" + f"f:{self.form}" + r"(/pk_bits:16/pk_fmt:json/pts:800)?"
        source = f"src=local://{self.script}.flac"
        return level, rf"render {self.status}{code} opts={options} {source} .*bytes in \d+ms"

    @property
    def histogram(self) -> str:
        """Name of the series that counts the duration of the render."""
        labels = f'format="{self.form}",outcome="{self.outcome}"'
        return f"audio_proxy_render_duration_seconds_count{{{labels}}}"

    def counts(self) -> dict[str, int]:
        """Return how much each counter increases."""
        return {
            f'cache_lookups_total{{format="{self.form}",outcome="miss"}}': 1,
            f'renders_total{{format="{self.form}",outcome="{self.outcome}"}}': 1,
            f'http_requests_total{{endpoint="render",status="{self.status // 100}xx"}}': 1,
        }


FAILED = r"the encoder failed \(exit status 1\): out of luck"
SILENT = "the encoder output no audio"
TOO_LARGE = r"the encoder was stopped: The output is larger than AP_MAX_VARIANT_BYTES\."
TOO_LONG = r"the encoder was stopped: The render took longer than AP_RENDER_TIMEOUT\."

QUICK = (
    End("early", "mp3", 500, "render_failed", "render_failed", FAILED),
    End("early", "peaks", 500, "render_failed", "render_failed", FAILED),
    End("midway", "mp3", 200, "render_failed", "render_failed", FAILED),
    End("midway", "peaks", 500, "render_failed", "render_failed", FAILED),
    End("shot", "mp3", 200, "render_failed", "render_failed", r".*\(ended by SIGKILL\).*"),
    End("shot", "peaks", 500, "render_failed", "render_failed", r".*\(ended by SIGKILL\).*"),
    End("nothing", "mp3", 415, "undecodable_source", "undecodable_source", SILENT),
    End("nothing", "peaks", 415, "undecodable_source", "undecodable_source", SILENT),
    End("missing", "mp3", 500, "render_failed", "render_failed", r".*status 127.*", "error"),
    End("endless", "mp3", 200, "render_failed", "render_failed", TOO_LARGE),
)

LEFT_BEHIND = (
    End("heir", "mp3", 200, None, "success", None),
    End("heir", "peaks", 200, None, "success", None),
)

LATE = (
    End("stubborn", "mp3", 200, "render_timeout", "render_timeout", TOO_LONG),
    End("stubborn", "peaks", 504, "render_timeout", "render_timeout", TOO_LONG),
    End("mute", "mp3", 504, "render_timeout", "render_timeout", TOO_LONG),
    End("mute", "peaks", 504, "render_timeout", "render_timeout", TOO_LONG),
    End("frozen", "mp3", 200, "render_timeout", "render_timeout", TOO_LONG),
    End("frozen", "peaks", 504, "render_timeout", "render_timeout", TOO_LONG),
    End("endless", "peaks", 504, "render_timeout", "render_timeout", TOO_LONG),
)


class EndTests(ScriptedEncoderCase):
    """Status, log line and metric of each kind of failure"""

    encoder_scripts: ClassVar[dict[str, str]] = {
        "early": "echo out of luck >&2; wait_here; exit 1",
        "midway": "say; echo out of luck >&2; wait_here; exit 1",
        "shot": "say; wait_here; kill -KILL $$",
        "nothing": "wait_here; exit 0",
        "missing": "wait_here; exit 127",
        "endless": "say; wait_here; exec cat /dev/zero",
        "heir": "sleep 60 & echo $! >> heirs; say; wait_here; exit 0",
        "stubborn": "trap '' TERM; say; wait_here; exec sleep 60",
        "mute": "wait_here; exec >&- 2>&- sleep 60",
        "frozen": "say; wait_here; wait_here; exit 0",
    }

    async def perform(self, node: Process, end: End) -> Client:
        """Start a render, wait until its encoder stops, and continue the encoder."""
        before = set(children(node.pid))
        client: Client = await send(await node.port(), target(end.script, end.form))
        encoder = await until_stopped(node.pid, but=before)
        if end.status == 200 and end.form != "peaks":
            await until(lambda: client.response, "the headers")
        os.kill(encoder, signal.SIGCONT)
        return client

    async def assert_answered(self, client: Client, end: End) -> None:
        """Require the expected status and error; a failed body must not look complete."""
        response = await client.end()
        self.assertEqual(end.status, response.status, end)
        if end.status == 200:
            self.assertEqual(end.code is None, response.complete, end)
            self.assertNotIn(b"\r\n0\r\n\r\n" if end.code else b"HTTP/1.1 5", client.received)
        else:
            self.assertTrue(response.complete)
            self.assertEqual(end.code, response.error, end)

    def assert_logged(self, lines: list[tuple[str, str]], ends: tuple[End, ...]) -> None:
        """Require exactly the log lines of the given ends, in any order."""
        expected = [end.request_line for end in ends]
        expected += [(end.level, end.line) for end in ends if end.line is not None]
        for level, shape in expected:
            found = [line for line in lines if line[0] == level and re.fullmatch(shape, line[1])]
            self.assertTrue(found, f"{level} {shape} is not among {lines}")
            lines.remove(found[0])
        self.assertEqual([], lines)

    async def assert_ends(self, node: Process, *ends: End) -> None:
        """Run renders concurrently; require the expected responses, metrics and log lines."""
        before, stored, said = await self.until_idle(node), self.stored(), len(node.stdout)
        clients = [await self.perform(node, end) for end in ends]
        for client, end in zip(clients, ends, strict=True):
            await self.assert_answered(client, end)
        after = await self.until_idle(node)
        expected: Counter[str] = Counter()
        for end in ends:
            expected.update(end.counts())
            self.assertIn(end.histogram, after)
        self.assertEqual(expected, without_scrapes(counter_increases(before, after)))
        self.assert_logged(render_log_lines(node, said), ends)
        new = [name for name in self.stored() if name not in stored]
        self.assertEqual(len([end for end in ends if end.code is None]), len(new))

    async def assert_unharmed(self, node: Process, descriptors_before: int) -> None:
        """Require that a service has leaked no descriptor, and renders again."""
        await until(lambda: descriptors(node.pid) <= descriptors_before, "descriptors to close")
        whole = await fetch(await node.port(), target("good", "mp3"))
        self.assertEqual((200, True), (whole.status, whole.complete))

    async def test_failures(self) -> None:
        """Every failure of an encoder is reported to the client, and frees the render slot."""
        node = await self.start_service(AP_MAX_CONCURRENCY="1", AP_MAX_VARIANT_BYTES="1000000")
        before = descriptors(node.pid)
        for end in QUICK:
            await self.assert_ends(node, end)
        await self.assert_unharmed(node, before)

    async def test_process_left_behind(self) -> None:
        """A render succeeds even if its encoder leaves a process that holds the pipes open."""
        node = await self.start_service()
        before = descriptors(node.pid)
        self.addCleanup(self.kill_orphans)
        await self.assert_ends(node, *LEFT_BEHIND)
        await self.assert_unharmed(node, before)

    def kill_orphans(self) -> None:
        """Kill the processes that the encoders left behind."""
        for pid in (self.root / "heirs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)

    async def test_timeouts(self) -> None:
        """A child that does not exit is terminated, and its slot and descriptors are freed."""
        seconds = {"AP_RENDER_TIMEOUT": "3", "AP_PROBE_TIMEOUT": "2"}
        node = await self.start_service(AP_MAX_CONCURRENCY=str(len(LATE)), **seconds)
        before = descriptors(node.pid)
        await self.assert_ends(node, *LATE)
        await self.assert_unharmed(node, before)


class FullDiskTests(ScriptedEncoderCase):
    """A store on a disk of one megabyte"""

    encoder_scripts: ClassVar[dict[str, str]] = {"brim": "say; wait_here; exit 0"}

    def setUp(self) -> None:
        super().setUp()
        mount(self, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(self.store))

    async def test_full(self) -> None:
        """A render that fills the disk fails, and its disk space is freed."""
        self.add("long.flac", long_flac())
        node = await self.start_service()
        before = await self.until_idle(node)
        said, room = len(node.stdout), os.statvfs(self.store).f_bfree
        client = await send(await node.port(), target("long", "wav", "/t:0:60"))
        response = await client.end()
        self.assertIn(response.status, (200, 500))
        self.assertFalse(response.status == 200 and response.complete)
        after = counter_increases(before, await self.until_idle(node))
        self.assertEqual(1, after['renders_total{format="wav",outcome="render_failed"}'])
        diagnostic, request = render_log_lines(node, said)
        self.assertRegex(diagnostic[1], r"the encoder failed .*No space left on device")
        self.assertRegex(request[1], rf"render {response.status} render_failed ")
        self.assertEqual({"warning"}, {diagnostic[0], request[0]})
        await until(lambda: os.statvfs(self.store).f_bfree == room, "the disk to be free again")
        await fetch(await node.port(), target("good", "mp3"))
        await until_hit(await node.port(), target("good", "mp3"))

    async def test_full_at_the_last_moment(self) -> None:
        """If the disk is full at write-back, the client gets all bytes, and nothing is stored."""
        node = await self.start_service()
        port = await node.port()
        before = await self.until_idle(node)
        said, stored = len(node.stdout), self.stored()
        client = await send(port, target("brim", "mp3"))
        encoder = await until_stopped(node.pid)
        filler = self.store / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        os.kill(encoder, signal.SIGCONT)
        response = await client.end()
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertEqual(bytes(65536), response.body)
        await until(lambda: "write-back" in node.stdout, "the log line")
        counted = counter_increases(before, await self.until_idle(node))
        self.assertEqual(1, counted["variant_store_write_failures_total"])
        self.assertEqual(1, counted['renders_total{format="mp3",outcome="success"}'])
        warnings = [text for level, text in render_log_lines(node, said) if level != "info"]
        self.assertRegex(
            *warnings, r"\Awrite-back of [0-9a-f]{64} failed: .*No space left on device"
        )
        self.assertEqual(stored, self.stored())
        head = await fetch(port, target("brim", "mp3"), b"HEAD")
        self.assertEqual(b"MISS", head["x-audio-proxy"])


def mount(case: ServiceCase, *words: str) -> None:
    """Mount a file system for the duration of a test.

    :raises SkipTest: if file systems cannot be mounted here.
    """
    command = ["mount", *words]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or error
        raise SkipTest(f"File systems cannot be mounted here: {said}") from error
    where = words[-1]

    def unmount() -> None:
        subprocess.run(["umount", "--lazy", where], check=True, timeout=PATIENCE)

    case.addCleanup(unmount)


def without_scrapes(counted: dict[str, float]) -> dict[str, float]:
    """Return counter increases without those of requests for the metrics."""
    return {series: count for series, count in counted.items() if '"metrics"' not in series}
