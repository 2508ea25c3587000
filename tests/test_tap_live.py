"""`twistd audioproxy` from a user's view: output, streams and exit status."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from audioproxy import tap
from audioproxy.grammar.signature import sign
from tests.support.folders import short_folder
from tests.support.hostile import system_calls
from tests.support.http import KEY, SALT
from tests.support.programs import FFMPEG, FFPROBE, write_ffmpeg_without_soxr
from tests.support.runs import run_program
from tests.support.service import (
    TWISTD,
    Process,
    ServiceCase,
    fetch,
    is_running,
    short_flac,
    signed,
    until,
    until_hit,
)

# prctl(2)
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4

#: Log line with its time (Request log).
LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "
    r"(?P<id>request_id=[A-Za-z0-9._-]+ )?\[(?P<level>debug|info|warning|error)\] (?P<text>\S.*)"
)


class TapCase(ServiceCase):
    """Base class with helpers for failed starts and log lines."""

    checks_ffmpeg = True

    async def refusal(self, **variables: str) -> list[str]:
        """Return the lines on stderr of a start that fails."""
        process = self.twistd(**variables)
        # EX_CONFIG: systemd does not start the service again.
        self.assertEqual(78, await process.end(), process.stdout)
        self.assert_not_served(process)
        lines = process.stderr.splitlines()
        for line in lines:
            self.assertTrue(line.startswith("audioproxy: ") and line.isprintable(), line)
        return [line.removeprefix("audioproxy: ") for line in lines]

    def assert_not_served(self, process: Process) -> None:
        """Assert that a service has not listened, and that its output has no traceback."""
        self.assertNotRegex(process.stdout + process.stderr, "Traceback|SystemExit|listening on")

    def texts(self, process: Process, level: str) -> list[str]:
        """Return the texts of a level in the log of a process."""
        return [line["text"] for line in self.lines(process.stdout) if line["level"] == level]

    def lines(self, log: str) -> list[re.Match[str]]:
        """Parse log lines, all of which must have the right format."""
        matches = [match for line in log.splitlines() if (match := LINE.fullmatch(line))]
        self.assertEqual(len(log.splitlines()), len(matches), log)
        return matches


class RefusedStartTests(TapCase):
    """Refused starts, with messages that name the variable."""

    async def test_all_problems_at_once(self) -> None:
        """Each wrong setting is reported in a line of its own, before a port opens (D33)."""
        lines = await self.refusal(
            AP_KEY="abc",
            AP_SALT="",
            AP_SLAT="5a17",
            AP_PORT="http",
            AP_LOCAL_ROOT="/nowhere/at/all",
            AP_VARIANT_STORE="ftp://x",
            AP_LOG_LEVEL="loud",
            AP_ALLOW_ORIGIN="https://Example.com/",
            AWS_REGION="eu-west-1",
        )
        (misspelled,) = [line for line in lines if "AP_SLAT" in line]
        self.assertIn("AP_SALT", misspelled)
        lines.remove(misspelled)
        names = [line.partition(":")[0] for line in lines]
        expected = [
            *("AP_ALLOW_ORIGIN", "AP_KEY", "AP_LOCAL_ROOT", "AP_LOG_LEVEL", "AP_PORT", "AP_SALT"),
            *("AP_VARIANT_STORE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ]
        self.assertEqual(expected, sorted(names))
        self.assertIn("https://example.com", lines[names.index("AP_ALLOW_ORIGIN")])

    async def test_bind_refused(self) -> None:
        """An address or a Unix socket that cannot be used is one error line with AP_BIND (D59)."""
        file = short_folder(self) / "file"
        file.touch()
        for bind, words in (
            *(
                (bind, rf"{re.escape(bind)} port 0 \(.*; set AP_BIND to an address of this machine")
                for bind in ("192.0.2.1", "::ffff:127.0.0.1", "fe80::1%none")
            ),
            (f"unix:{file}", r".*/file \(.*; set AP_BIND to a path in a writable directory, of no"),
        ):
            process = self.twistd(AP_BIND=bind)
            self.assertEqual(1, await process.end())
            (error,) = self.texts(process, "error")
            self.assertRegex(error, f"AP_BIND: cannot listen on {words}")

    async def test_port_taken(self) -> None:
        """A port in use is one error line with AP_PORT, also of a daemon, and exit status 1."""
        taken = socket.create_server(("", 0))
        self.addCleanup(taken.close)
        port = str(taken.getsockname()[1])
        process = self.twistd(AP_PORT=port)
        self.assertEqual(1, await process.end())
        self.assertEqual("", process.stderr)
        self.assert_not_served(process)
        (error,) = self.texts(process, "error")
        self.assertRegex(error, rf"\Aaudioproxy: AP_PORT: .*\b{port}\b")
        words = ["--pidfile", self.root / "pid", "--logfile", self.root / "log", "audioproxy"]
        twistd = Path(sys.executable).with_name("twistd")
        ended = run_program(twistd, *words, environment=self.environment(AP_PORT=port))
        self.assertEqual(1, ended.status)
        self.assertIn("AP_PORT", ended.out + ended.err)

    async def test_no_temporary_files(self) -> None:
        """A TMPDIR that is missing or no directory is refused: no other folder is used (D46)."""
        for folder, reason in (("/nowhere", "No such file"), (__file__, "Not a directory")):
            process = self.twistd(TMPDIR=folder)
            self.assertEqual(1, await process.end())
            self.assert_not_served(process)
            (error,) = self.texts(process, "error")
            self.assertRegex(error, rf"\Aaudioproxy: TMPDIR: .*{folder} \({reason}.*; set")

    async def test_missing_ssl_cert_file(self) -> None:
        """A missing SSL_CERT_FILE is refused if https sources are allowed."""
        missing = {"SSL_CERT_FILE": "/nowhere.pem"}
        (line,) = await self.refusal(AP_SOURCE_ALLOWLIST="a.test", **missing)
        self.assertRegex(line, r"\ASSL_CERT_FILE: .*No such file")
        # If no host is allowed, no certificate is ever verified.
        await self.twistd(**missing).port()


class RunTests(TapCase):
    """Running service: log, metrics, readiness and insecure mode."""

    async def test_log(self) -> None:
        """All lines on stdout have the log format, and each request has one line (Request log).

        `tests.observe.test_logs` has the line of each kind of request.
        The log has the metrics port at info, and scrapes and render events at debug. The service
        works in the folder in which it was started.
        """
        self.add("a b.flac", short_flac())
        process = self.twistd(AP_PROT="4000", AP_LOG_LEVEL="debug")
        port, metrics_port = await process.port(), await process.metrics_port()
        self.assertEqual(str(self.root), os.readlink(f"/proc/{process.pid}/cwd"))
        target = signed("/f:opus/plain/local://a%20b.flac") + b"?secret=1"
        size = len((await fetch(port, target, x_request_id=b"one")).body)
        hit = await until_hit(port, target)
        part = await fetch(port, target, x_request_id=b"two", range=b"bytes=0-9")
        self.assertEqual(hit.body[:10], part.body)
        known = "opts=f:opus src=local://a%20b.flac"
        scrape = (await fetch(metrics_port, b"/metrics", x_request_id=b"three")).body
        self.assertIn(b'audio_proxy_renders_total{format="opus",outcome="success"} 1.0\n', scrape)
        # Ctrl-C ends it like SIGTERM.
        process.signal(signal.SIGINT)
        self.assertEqual(0, await process.end())
        self.assertEqual("", process.stderr)
        lines = self.lines(process.stdout)
        expected = {
            "one": ("info", f"render 200 {known} cache=MISS {size}"),
            "two": ("info", f"render 206 {known} cache=HIT 10"),
            "three": ("debug", f"metrics 200 {len(scrape)}"),
        }
        for request_id, (level, text) in expected.items():
            its = [line for line in lines if line["id"] == f"request_id={request_id} "]
            # The events of a render have the request id too (D54).
            (line,) = [line for line in its if line["text"].endswith("ms")]
            self.assertEqual(level, line["level"], request_id)
            self.assertRegex(line["text"], rf"\A{text} bytes in \d+ms\Z")
        own = [line for line in lines if line["id"] == "request_id=one "]
        life = [line["text"] for line in own if line["level"] == "debug"]
        self.assertEqual(
            ["has a slot", "has ended", "is stored"],
            [" ".join(text.split(":")[0].split()[4:]) for text in life],
        )
        self.assertIn(f"[info] metrics on 127.0.0.1 port {metrics_port}\n", process.stdout)
        self.assertNotIn("secret", process.stdout)
        # A variable with a name similar to a known one causes a warning (D33).
        (warning,) = [line["text"] for line in lines if line["text"].startswith("AP_")]
        self.assertIn("AP_PROT", warning)
        self.assertIn("AP_PORT", warning)
        self.assertEqual([], [line for line in lines if line["level"] == "error"])

    async def test_stalled_log(self) -> None:
        """A log reader that stalls delays nothing, and finds all and only whole lines (D68)."""
        process = self.twistd()
        port, pid = await process.port(), process.pid
        missing = signed("/plain/local://" + "x/" * 900)
        for stops in (False, True):
            process.transport.pauseProducing()  # type: ignore[union-attr]
            # More lines than a pipe holds.
            for _ in range(60):
                self.assertEqual(404, (await fetch(port, missing, b"HEAD")).status)
            if stops:
                process.signal(signal.SIGTERM)
                await until(lambda: not is_running(pid), "the end")
            process.transport.resumeProducing()  # type: ignore[union-attr]
            if stops:
                self.assertEqual(0, await process.end())
            else:
                await until(lambda: process.stdout.count(" 404 ") == 60, "all lines")
            self.assertTrue(process.stdout.endswith("\n"))
            self.lines(process.stdout)

    async def test_closed_stdout(self) -> None:
        """A service whose stdout is closed runs."""
        # The service gets an open socket, as from systemd, because it cannot say its port.
        listening = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listening.close)
        command = (sys.executable, "-c", TWISTD, "--nodaemon", "--pidfile=", "audioproxy")
        script = f'LISTEN_PID=$$ exec "$@" 3<&{listening.fileno()} >&-'
        process = subprocess.Popen(
            # dash accepts only one digit after <&.
            ["bash", "-c", script, "bash", *command],
            env=self.environment(LISTEN_FDS="1"),
            cwd=self.root,
            pass_fds=[listening.fileno()],
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        port = listening.getsockname()[1]
        self.assertEqual(200, (await fetch(port, b"/health")).status)

    async def test_log_file(self) -> None:
        """With --logfile, the log goes to the file, and stdout stays empty.

        Lines below AP_LOG_LEVEL, such as those of health checks, are left out. Insecure mode
        without keys works, logs a warning, and accepts only ``insecure`` (D31).
        """
        self.add("short.flac", short_flac())
        path = self.root / "service.log"
        insecure = {"AP_ALLOW_INSECURE": "yes", "AP_KEY": "", "AP_SALT": ""}
        process = self.twistd(f"--logfile={path}", AP_LOG_LEVEL="info", **insecure)
        await until(lambda: path.exists() and "listening on" in path.read_text(), "the log file")
        port = int(re.findall(r"listening on port (\d+)", path.read_text())[0])
        rest = b"/plain/local://short.flac"
        self.assertEqual(200, (await fetch(port, b"/insecure" + rest, b"HEAD")).status)
        signature = sign(KEY, SALT, rest)
        self.assertEqual(401, (await fetch(port, b"/" + signature + rest, b"HEAD")).status)
        await fetch(port, b"/health")
        await fetch(port, b"/nowhere", x_request_id=b"last")
        process.signal(signal.SIGTERM)
        self.assertEqual(0, await process.end())
        self.assertEqual(("", ""), (process.stdout, process.stderr))
        text = path.read_text()
        lines = self.lines(text)
        self.assertEqual(1, sum(line["id"] == "request_id=last " for line in lines))
        self.assertNotIn("debug", [line["level"] for line in lines])
        self.assertNotIn("health", text)
        warnings = [line["text"] for line in lines if line["level"] == "warning"]
        self.assertTrue(any("AP_ALLOW_INSECURE" in warning for warning in warnings), warnings)

    async def test_without_ffmpeg(self) -> None:
        """Without ffmpeg the service starts, logs one error and serves stored variants (D34)."""
        self.add("short.flac", short_flac())
        stored = signed("/f:mp3/plain/local://short.flac")
        service = self.start()
        await fetch(service.port, stored)
        await service.stopService()
        empty = self.root / "empty"
        empty.mkdir()
        process = self.twistd(PATH=str(empty))
        port = await process.port()
        self.assertEqual(b"HIT", (await fetch(port, stored))["x-audio-proxy"])
        await process.printed(r"\[error\]", "the error line")
        (error,) = self.texts(process, "error")
        for program in ("ffmpeg", "ffprobe"):
            self.assertIn(program, error)
        await self.assert_not_ready(port)
        response = await fetch(port, signed("/f:wav/plain/local://short.flac"))
        self.assertEqual((500, b"no-store"), (response.status, response["cache-control"]))
        self.assertIn(response.error, ("probe_failed", "render_failed"))
        missing = await fetch(port, signed("/plain/local://none.flac"))
        self.assertEqual(404, missing.status)
        process.signal(signal.SIGTERM)
        self.assertEqual(0, await process.end())
        self.lines(process.stdout)

    async def assert_not_ready(self, port: int) -> None:
        """Assert that a node soon becomes not ready, and that the response has the right form."""

        async def refusal() -> object:
            response = await fetch(port, b"/ready")
            return None if response.status == 200 else response

        response = await until(refusal, "a 503")
        self.assertEqual(503, response.status)
        self.assertEqual({"status": "not_ready", "queued": 0, "threshold": 16}, response.document)
        self.assertEqual((b"no-store", None), (response["cache-control"], response["retry-after"]))

    async def test_ffmpeg_that_goes(self) -> None:
        """A node is not ready any more after a program could not be started (D34)."""
        self.add("short.flac", short_flac())
        programs = self.root / "programs"
        programs.mkdir()
        for path in (FFMPEG, FFPROBE):
            (programs / Path(path).name).symlink_to(path)
        port = await self.twistd(PATH=str(programs)).port()
        (programs / "ffmpeg").unlink()
        self.assertEqual(200, (await fetch(port, b"/ready")).status)
        response = await fetch(port, signed("/f:wav/plain/local://short.flac"))
        self.assertEqual(500, response.status)
        await self.assert_not_ready(port)


#: Python code that has the kernel answer as one without a system call, or without one that has a
#: first argument: a filter of seccomp(2) refuses it with ENOSYS, in this process and its children.
WITHOUT = """\
import ctypes, struct
rows = (0x20, 0, 0, 0), (0x15, 0, 4, {number}), (0x20, 0, 0, 16), (0x54, 0, 0, {mask})
rows += (0x15, 0, 1, {argument}), (6, 0, 0, 0x50026), (6, 0, 0, 0x7FFF0000)
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
program = struct.pack("HP", len(rows), ctypes.addressof(code))
prctl = ctypes.CDLL(None).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, program) == 0
"""


class CellTests(TapCase):
    """Machines that do not fully confine ffmpeg, and AP_REQUIRE_CELL (D59)."""

    async def test_required(self) -> None:
        """With AP_REQUIRE_CELL, ffmpeg without a cell is refused, such as a script around it."""
        programs = self.root / "programs"
        programs.mkdir()
        write_ffmpeg_without_soxr(programs)
        path = f"{programs}:{os.environ['PATH']}"
        (line,) = await self.refusal(AP_REQUIRE_CELL="1", PATH=path)
        wanted = "ffmpeg itself is required in the PATH; with AP_REQUIRE_CELL=0"
        self.assertRegex(line, rf"\AAP_REQUIRE_CELL: .*{programs}/ffmpeg runs without .*; {wanted}")

    async def render(self, count: int, name: str, argument: int | None = None) -> list[str]:
        """Render on a kernel without a system call; return the first warnings of the log.

        :param count: of the warnings.
        :param name: of the call, in `tests.support.hostile`.
        """
        mask = 0 if argument is None else 0xFFFFFFFF
        code = WITHOUT.format(number=system_calls()[name], mask=mask, argument=argument or 0)
        words = ("-c", code + TWISTD, "--nodaemon", "--pidfile=", "audioproxy")
        process = self.spawn(sys.executable, *words, **self.environment())
        response = await fetch(await process.port(), signed("/f:wav/plain/local://short.flac"))
        self.assertEqual(200, response.status, response.body)

        await until(lambda: process.stdout.count("[warning]") >= count, "warnings")
        # The last line may not be complete yet.
        await process.kill()
        return self.texts(process, "warning")

    async def test_no_fork_server(self) -> None:
        """Where a fork server lacks a system call, warnings of both programs say so.

        Renders work.
        """
        self.add("short.flac", short_flac())
        get_tid_address = 40
        for name, argument, reason in (
            ("close_range", None, "cannot close descriptors: Function not implemented"),
            ("prctl", get_tid_address, "the kernel lacks PR_GET_TID_ADDRESS"),
        ):
            for warning in await self.render(2, name, argument):
                self.assertRegex(
                    warning, f"is started anew for each child until it is linked again: .*{reason}"
                )


class NotDumpableTests(TapCase):
    """Protection of the keys in the service's memory from code in a decoder (D45)."""

    def test_hidden(self) -> None:
        """The service's process is not dumpable (prctl) before it listens; its children are."""
        prctl = ctypes.CDLL(None).prctl
        self.addCleanup(prctl, PR_SET_DUMPABLE, 1, 0, 0, 0)
        options = tap.Options()
        options.config, options.warnings = self.config(), ()
        options.listening = options.metrics_socket = None
        options.notify = lambda state: None
        tap.makeService(options)
        self.assertEqual(0, prctl(PR_GET_DUMPABLE, 0, 0, 0, 0))
        read = f"ctypes.CDLL(None).prctl({PR_GET_DUMPABLE}, 0, 0, 0, 0)"
        script = f"import ctypes, sys; sys.exit(40 + {read})"
        self.assertEqual(41, subprocess.call([sys.executable, "-c", script]))


class DescriptorTests(SynchronousTestCase):
    """Limit of open descriptors, which the service raises for its clients."""

    def test_limits(self) -> None:
        """A low soft limit is raised to the hard limit, up to a maximum, and never lowered."""
        unlimited = resource.RLIM_INFINITY
        for soft, hard, raised in (
            *((256, 256, 256), (1024, 4096, 4096), (4096, 4096, 4096)),
            *((1024, 524_288, 16_384), (1024, unlimited, 16_384), (500_000, 524_288, 500_000)),
            (unlimited, unlimited, unlimited),
        ):
            self.assertEqual(raised, tap.raised_limit(soft, hard))

    def test_raised(self) -> None:
        """The limit of this process is raised once."""
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        low = (min(256, before[0]), before[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, low)
        for _ in range(2):
            tap.raise_descriptor_limit()
            expected = (tap.raised_limit(*low), before[1])
            self.assertEqual(expected, resource.getrlimit(resource.RLIMIT_NOFILE))
