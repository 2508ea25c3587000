"""Every way in which a render can fail, in a separate service process with real children."""

from __future__ import annotations

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

from audioproxy.media.command.inputs import SOURCE_DESCRIPTOR
from tests.support.service import (
    PATIENCE,
    Client,
    Process,
    ServiceCase,
    children,
    counter_increases,
    descriptors,
    fetch,
    is_running,
    is_stopped,
    long_flac,
    scrape,
    scratch_files,
    send,
    short_flac,
    signed,
    until,
    until_hit,
)
from tests.test_tap_live import LINE

# Script in place of ffmpeg. For a source in `encoder_scripts`, an encoder runs the shell commands
# of that source. Other sources and other calls run the real ffmpeg. `write_64k` writes 64 KiB, and
# `stop_self` suspends the script until the test continues it.
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
class RenderEnd:
    """Expected end of a render, as the client, the log and the metrics report it.

    :ivar status: status of the response; 200 without a ``code`` means the complete variant.
    :ivar code: error code, also if the status was sent before the error.
    :ivar line: log line of the failure, besides the access log line.
    :ivar level: log level of ``line``.
    """

    script: str
    form: str
    status: int
    code: str | None
    line: str | None
    level: str = "warning"

    @property
    def outcome(self) -> str:
        """Label of the metric."""
        return self.code or "success"

    @property
    def access_log_line(self) -> tuple[str, str]:
        """Level and pattern of the access log line."""
        level = "warning" if self.code not in (None, "undecodable_source") else "info"
        code = f" {self.code}" if self.code else ""
        options = r"(ch:1/)?" + f"f:{self.form}" + r"(/pk_bits:16/pk_fmt:json/pts:800)?"
        source = f"src=local://{self.script}.flac"
        return level, rf"render {self.status}{code} opts={options} {source} .*bytes in \d+ms"

    def counts(self) -> dict[str, int]:
        """Return how much each counter increases."""
        return {
            f'cache_lookups_total{{format="{self.form}",outcome="miss"}}': 1,
            f'renders_total{{format="{self.form}",outcome="{self.outcome}"}}': 1,
            f'http_requests_total{{endpoint="render",status="{self.status // 100}xx"}}': 1,
        }


FAILED = r"the encoder failed \(exit status 1\): out of luck"
KILLED = r".*\(ended by SIGKILL\).*"
SILENT = "the encoder output no audio"
TOO_LARGE = r"the encoder was stopped: The output is larger than AP_MAX_VARIANT_BYTES\."
TOO_LONG = r"the encoder was stopped: The render took longer than AP_RENDER_TIMEOUT\."

# Batches that run concurrently.
FAILURES = (
    (
        RenderEnd("early", "aac", 500, "render_failed", FAILED),
        RenderEnd("early", "peaks", 500, "render_failed", FAILED),
        RenderEnd("midway", "aac", 200, "render_failed", FAILED),
        RenderEnd("midway", "peaks", 500, "render_failed", FAILED),
    ),
    (
        RenderEnd("killed", "aac", 200, "render_failed", KILLED),
        RenderEnd("killed", "peaks", 500, "render_failed", KILLED),
        RenderEnd("nothing", "aac", 415, "undecodable_source", SILENT),
        RenderEnd("nothing", "peaks", 415, "undecodable_source", SILENT),
    ),
    (
        RenderEnd("missing", "aac", 500, "render_failed", r".*status 127.*", "error"),
        RenderEnd("endless", "aac", 200, "render_failed", TOO_LARGE),
        # These succeed, and leave a process that holds the pipes open.
        RenderEnd("orphan", "aac", 200, None, None),
        RenderEnd("orphan", "peaks", 200, None, None),
    ),
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


class FailureTests(ScriptedEncoderCase):
    """Status, log line and metric of each kind of failure"""

    encoder_scripts: ClassVar[dict[str, str]] = {
        "early": "echo out of luck >&2; stop_self; exit 1",
        "midway": "write_64k; echo out of luck >&2; stop_self; exit 1",
        "killed": "write_64k; stop_self; kill -KILL $$",
        "nothing": "stop_self; exit 0",
        "missing": "stop_self; exit 127",
        "endless": "write_64k; stop_self; exec cat /dev/zero",
        "slow": "stop_self; while write_64k; do sleep 0.1; done",
        "orphan": "sleep 60 & echo $! >> orphans; write_64k; stop_self; exit 0",
        "ignores-term": "trap '' TERM; write_64k; stop_self; exec sleep 60",
        "closed-pipes": "stop_self; exec >&- 2>&- sleep 60",
        "frozen": "write_64k; stop_self; stop_self; exit 0",
    }

    async def start_render(self, node: Process, end: RenderEnd) -> Client:
        """Start a render, wait until its encoder stops, and continue the encoder."""
        before = set(children(node.pid))
        client: Client = await send(await node.port(), target(end.script, end.form))
        encoder = await until_stopped(node.pid, but=before)
        if end.status == 200 and end.form != "peaks":
            await until(lambda: client.response, "the headers")
        os.kill(encoder, signal.SIGCONT)
        return client

    async def assert_answered(self, client: Client, end: RenderEnd) -> None:
        """Require the expected status and error; a failed body must not look complete."""
        response = await client.end()
        self.assertEqual(end.status, response.status, end)
        if end.status == 200:
            self.assertEqual(end.code is None, response.complete, end)
            self.assertNotIn(b"\r\n0\r\n\r\n" if end.code else b"HTTP/1.1 5", client.received)
        else:
            self.assertTrue(response.complete)
            self.assertEqual(end.code, response.error, end)

    def assert_logged(self, lines: list[tuple[str, str]], ends: tuple[RenderEnd, ...]) -> None:
        """Require exactly the log lines of the given ends, in any order."""
        expected = [end.access_log_line for end in ends]
        expected += [(end.level, end.line) for end in ends if end.line is not None]
        for level, pattern in expected:
            found = [line for line in lines if line[0] == level and re.fullmatch(pattern, line[1])]
            self.assertTrue(found, f"{level} {pattern} is not among {lines}")
            lines.remove(found[0])
        self.assertEqual([], lines)

    async def assert_ends(self, node: Process, *ends: RenderEnd) -> None:
        """Run renders concurrently; require the expected responses, metrics and log lines."""
        before, stored, log_start = await self.until_idle(node), self.stored(), len(node.stdout)
        clients = [await self.start_render(node, end) for end in ends]
        for client, end in zip(clients, ends, strict=True):
            await self.assert_answered(client, end)
        after = await self.until_idle(node)
        expected: Counter[str] = Counter()
        for end in ends:
            expected.update(end.counts())
            labels = f'format="{end.form}",outcome="{end.outcome}"'
            self.assertIn(f"audio_proxy_render_duration_seconds_count{{{labels}}}", after)
        self.assertEqual(expected, without_scrapes(counter_increases(before, after)))
        count = len(ends) + sum(end.line is not None for end in ends)
        await until(lambda: len(render_log_lines(node, log_start)) >= count, "the log lines")
        self.assert_logged(render_log_lines(node, log_start), ends)
        new = [name for name in self.stored() if name not in stored]
        self.assertEqual(len([end for end in ends if end.code is None]), len(new))

    async def assert_recovered(self, node: Process, descriptors_before: int) -> None:
        """Require that a service has leaked no descriptor, and renders again."""
        await until(lambda: descriptors(node.pid) <= descriptors_before, "descriptors to close")
        whole = await fetch(await node.port(), target("good", "aac"))
        self.assertEqual((200, True), (whole.status, whole.complete))

    async def test_failures(self) -> None:
        """Every failure of an encoder is reported to the client, and frees the render slot.

        A render succeeds even if its encoder leaves a process that holds the pipes open.
        """
        node = await self.start_service(AP_MAX_CONCURRENCY="4", AP_MAX_VARIANT_BYTES="1000000")
        before = descriptors(node.pid)
        for ends in FAILURES:
            await self.assert_ends(node, *ends)
        await self.assert_recovered(node, before)
        # What an encoder leaves behind ends with it.
        orphans = (self.root / "orphans").read_text().split()
        await until(lambda: not any(is_running(int(pid)) for pid in orphans), "the orphans to end")

    async def test_timeouts(self) -> None:
        """A child that does not exit is terminated, and its slot and descriptors are freed."""
        seconds = {"AP_RENDER_TIMEOUT": "3", "AP_PROBE_TIMEOUT": "2"}
        node = await self.start_service(AP_MAX_CONCURRENCY=str(len(TIMEOUTS)), **seconds)
        before = descriptors(node.pid)
        await self.assert_ends(node, *TIMEOUTS)
        await self.assert_recovered(node, before)


class FullDiskTests(ScriptedEncoderCase):
    """A store on a disk of one megabyte"""

    def setUp(self) -> None:
        super().setUp()
        mount(self, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(self.store))

    async def test_full(self) -> None:
        """A render that fills the disk fails, and its disk space is freed."""
        self.add("long.flac", long_flac())
        node = await self.start_service()
        before = await self.until_idle(node)
        log_start, free_blocks = len(node.stdout), os.statvfs(self.store).f_bfree
        client = await send(await node.port(), target("long", "wav", "/t:0:60"))
        response = await client.end()
        self.assertIn(response.status, (200, 500))
        self.assertFalse(response.status == 200 and response.complete)
        after = counter_increases(before, await self.until_idle(node))
        self.assertEqual(1, after['renders_total{format="wav",outcome="render_failed"}'])
        diagnostic, request = render_log_lines(node, log_start)
        self.assertRegex(diagnostic[1], r"the encoder failed .*No space left on device")
        self.assertRegex(request[1], rf"render {response.status} render_failed ")
        self.assertEqual({"warning"}, {diagnostic[0], request[0]})
        await until(
            lambda: os.statvfs(self.store).f_bfree == free_blocks, "the disk to be free again"
        )
        await fetch(await node.port(), target("good", "aac"))
        await until_hit(await node.port(), target("good", "aac"))


def mount(case: ServiceCase, *words: str) -> None:
    """Mount a file system for the duration of a test.

    :raises SkipTest: if file systems cannot be mounted here.
    """
    command = ["mount", *words]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", "") or error
        raise SkipTest(f"File systems cannot be mounted here: {reason}") from error
    mount_point = words[-1]

    def unmount() -> None:
        subprocess.run(["umount", "--lazy", mount_point], check=True, timeout=PATIENCE)

    case.addCleanup(unmount)


def without_scrapes(counted: dict[str, float]) -> dict[str, float]:
    """Return counter increases without the series that count metrics requests."""
    return {series: count for series, count in counted.items() if '"metrics"' not in series}
