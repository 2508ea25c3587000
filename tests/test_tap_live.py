"""`twistd audioproxy` from a user's view: output, streams and exit status."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from audioproxy import tap
from audioproxy.grammar.signature import sign
from audioproxy.process import ffmpeg_capabilities as ffmpeg_capabilities_module
from tests.support.http import KEY, SALT
from tests.support.service import Process, ServiceCase, fetch, short_flac, signed, until, until_hit

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
        self.assertEqual(1, await process.end(), process.stdout)
        said = process.stdout + process.stderr
        for word in ("Traceback", "SystemExit", "listening on"):
            self.assertNotIn(word, said)
        lines = process.stderr.splitlines()
        for line in lines:
            self.assertTrue(line.startswith("audioproxy: ") and line.isprintable(), line)
        return [line.removeprefix("audioproxy: ") for line in lines]

    async def late_refusal(self, **variables: str) -> str:
        """Return the only error line in the log of a start that fails after logging has begun."""
        process = self.twistd(**variables)
        self.assertEqual(1, await process.end())
        self.assertEqual("", process.stderr)
        for word in ("Traceback", "SystemExit", "listening on"):
            self.assertNotIn(word, process.stdout)
        (error,) = [line["text"] for line in self.lines(process) if line["level"] == "error"]
        return error

    def lines(self, process: Process) -> list[re.Match[str]]:
        """Parse the log lines on stdout, all of which must have the right format."""
        matches = []
        for line in process.stdout.splitlines():
            match = LINE.fullmatch(line)
            assert match is not None, line
            matches.append(match)
        return matches


#: Variables of a bucket store. No server listens at the endpoint; some tests replace it.
BUCKET = {
    "AP_VARIANT_STORE": "s3://bucket",
    "AP_S3_ENDPOINT": "http://127.0.0.1:9",
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "eu-west-1",
}


class RefusedStartTests(TapCase):
    """Refused starts, with messages that name the variable."""

    async def test_all_problems_at_once(self) -> None:
        """A start with several wrong settings reports each in its own line, before a port opens."""
        lines = await self.refusal(
            AP_KEY="abc",
            AP_SALT="",
            AP_PORT="http",
            AP_LOCAL_ROOT="/nowhere/at/all",
            AP_VARIANT_STORE="ftp://x",
            AP_LOG_LEVEL="loud",
            AP_ALLOW_ORIGIN="https://Example.com/",
            AWS_REGION="eu-west-1",
        )
        names = [line.partition(":")[0] for line in lines]
        expected = {
            *("AP_KEY", "AP_SALT", "AP_PORT", "AP_LOCAL_ROOT", "AP_VARIANT_STORE", "AP_LOG_LEVEL"),
            *("AP_ALLOW_ORIGIN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        }
        self.assertEqual(expected, set(names))
        self.assertEqual(len(names), len(set(names)), lines)
        self.assertIn("https://example.com", lines[names.index("AP_ALLOW_ORIGIN")])

    async def test_nothing_set(self) -> None:
        """A start without any AP_ variable reports AP_KEY and AP_SALT, and nothing else."""
        unset = dict.fromkeys(self.environment(), "")
        unset |= {name: self.environment()[name] for name in ("PATH", "HOME", "PYTHONPATH")}
        lines = await self.refusal(**unset)
        self.assertEqual(["AP_KEY", "AP_SALT"], [line.partition(":")[0] for line in lines])

    async def test_redirect_over_a_file_store(self) -> None:
        """Default redirect mode and a file store are refused in one line with both variables."""
        (line,) = await self.refusal(AP_SERVE_MODE="")
        self.assertIn("AP_SERVE_MODE", line)
        self.assertIn("AP_VARIANT_STORE", line)

    async def test_typo_and_its_consequence(self) -> None:
        """A misspelled variable is reported with the required variable that is missing (D33)."""
        lines = await self.refusal(AP_SALT="", AP_SLAT="5a17")
        self.assertEqual(2, len(lines), lines)
        self.assertTrue(any("AP_SLAT" in line and "AP_SALT" in line for line in lines))

    async def test_port_taken(self) -> None:
        """A start on a port in use logs one error line with AP_PORT and the port."""
        with socket.create_server(("", 0)) as taken:
            port = taken.getsockname()[1]
            error = await self.late_refusal(AP_PORT=str(port))
        self.assertRegex(error, rf"\Aaudioproxy: AP_PORT: .*\b{port}\b")
        self.assertEqual([], list((self.store / ".scratch").iterdir()))

    async def test_metrics_port_taken(self) -> None:
        """A start with the metrics port in use logs one error line with AP_METRICS_PORT.

        No scratch file stays in the store.
        """
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            error = await self.late_refusal(AP_METRICS_PORT=str(port))
        self.assertRegex(error, rf"\Aaudioproxy: AP_METRICS_PORT: .*\b127\.0\.0\.1 port {port}\b")
        self.assertEqual([], list((self.store / ".scratch").iterdir()))

    async def test_metrics_address(self) -> None:
        """A start on an address of another machine logs AP_METRICS_BIND and the address."""
        error = await self.late_refusal(AP_METRICS_BIND="192.0.2.1")
        self.assertRegex(error, r"\Aaudioproxy: AP_METRICS_BIND: .*\b192\.0\.2\.1\b")
        self.assertEqual([], list((self.store / ".scratch").iterdir()))

    async def test_port_taken_for_a_daemon(self) -> None:
        """A daemon that cannot start names the variable on its terminal and exits with status 1."""
        with socket.create_server(("", 0)) as taken:
            environment = self.environment(AP_PORT=str(taken.getsockname()[1]))
            words = ["--pidfile", self.root / "pid", "--logfile", self.root / "log", "audioproxy"]
            command = [Path(sys.executable).with_name("twistd"), *words]
            ended = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=30, check=False
            )
        self.assertEqual(1, ended.returncode)
        self.assertIn("AP_PORT", ended.stdout + ended.stderr)

    async def test_proof_of_the_store(self) -> None:
        """A store in which no object can be written fails the start before a port opens."""
        (self.store / ".scratch").write_bytes(b"in the way")
        error = await self.late_refusal()
        self.assertTrue(error.startswith("audioproxy: AP_VARIANT_STORE: "), error)

    async def test_store_not_writable(self) -> None:
        """A store that is a file or not writable is refused in one line with AP_VARIANT_STORE."""
        self.store.rmdir()
        self.store.write_bytes(b"")
        for path in (str(self.store), "/proc/self"):
            (line,) = await self.refusal(AP_VARIANT_STORE=f"file://{path}")
            self.assertTrue(line.startswith("AP_VARIANT_STORE: "), line)

    async def bucket_refusal(self, **variables: str) -> str:
        """Return the message of a failed start with a bucket at a local endpoint."""
        (line,) = await self.refusal(**{**BUCKET, **variables})
        return line

    async def test_bucket_store(self) -> None:
        """A bucket that does not respond fails the start in one line, before a port opens."""
        with socket.socket() as nobody:
            # A bound port that does not listen: no other program can respond there.
            nobody.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{nobody.getsockname()[1]}"
            line = await self.bucket_refusal(AP_S3_ENDPOINT=f"http://{address}")
        self.assertTrue(line.startswith("AP_VARIANT_STORE: "), line)
        self.assertIn(address, line)

    async def test_bucket_no_host_name_can_hold(self) -> None:
        """Virtual addressing requires a host name that can include the bucket's name."""
        line = await self.bucket_refusal(AP_S3_ADDRESSING="virtual")
        self.assertTrue(line.startswith("AP_S3_ADDRESSING: "), line)
        line = await self.bucket_refusal(
            AP_S3_ADDRESSING="virtual",
            AP_S3_ENDPOINT="http://s3.test:9",
            AP_VARIANT_STORE="s3://a_bucket",
        )
        self.assertTrue(line.startswith("AP_VARIANT_STORE: "), line)

    async def test_stopped_while_it_asks(self) -> None:
        """SIGTERM during the check of a bucket ends the start with status 0 and without errors."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.setblocking(False)
            endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
            process = self.twistd(**{**BUCKET, "AP_S3_ENDPOINT": endpoint})

            def asked() -> socket.socket | None:
                with contextlib.suppress(BlockingIOError):
                    return silent.accept()[0]
                return None

            with await until(asked, "the request to the bucket"):
                process.signal(signal.SIGTERM)
                self.assertEqual(0, await process.end())
        self.assertEqual("", process.stderr)
        for word in ("Traceback", "error", "listening on"):
            self.assertNotIn(word, process.stdout)

    async def test_ca_bundle(self) -> None:
        """A CA bundle without certificates is refused with the name of its variable."""
        bundle = self.root / "bundle.pem"
        bundle.write_text("nothing")
        line = await self.bucket_refusal(AP_S3_CA_BUNDLE=str(bundle))
        self.assertTrue(line.startswith("AP_S3_CA_BUNDLE: "), line)


class RunTests(TapCase):
    """Running service: log, metrics, readiness and insecure mode."""

    async def test_log(self) -> None:
        """All lines on stdout have the log format, and each request has one line (Request log)."""
        self.add("a b.flac", short_flac())
        process = self.twistd(AP_PROT="4000", AP_LOG_LEVEL="debug", AP_ALLOW_ORIGIN="*")
        port = await process.port()
        target = signed("/f:opus/plain/local://a%20b.flac") + b"?secret=1"
        size = len((await fetch(port, target, x_request_id=b"one")).body)
        hit = await until_hit(port, target)
        part = await fetch(port, target, x_request_id=b"two", range=b"bytes=0-9")
        self.assertEqual(hit.body[:10], part.body)
        await fetch(port, b"/health", x_request_id=b"three")
        await fetch(port, b"/a/b", x_request_id=b"four")
        await fetch(port, signed("/q:99/plain/local://x"), x_request_id=b"five")
        await fetch(port, signed("/plain/local://none"), b"HEAD", x_request_id=b"six")
        await fetch(port, b"/x", b"OPTIONS", x_request_id=b"seven")
        process.signal(signal.SIGTERM)
        self.assertEqual(0, await process.end())
        self.assertEqual("", process.stderr)
        lines = self.lines(process)
        known = "opts=f:opus src=local://a%20b.flac"
        expected = {
            "one": ("info", rf"render 200 {known} cache=MISS {size} bytes in \d+ms"),
            "two": ("info", rf"render 206 {known} cache=HIT 10 bytes in \d+ms"),
            "three": ("debug", r"health 200 \d+ bytes in \d+ms"),
            "four": ("info", r"render 401 invalid_signature \d+ bytes in \d+ms"),
            "five": ("info", r"render 422 invalid_options \d+ bytes in \d+ms"),
            "six": (
                "info",
                r"render 404 not_found opts=f:mp3 src=local://none 0 bytes in \d+ms",
            ),
            "seven": ("info", r"preflight 204 0 bytes in \d+ms"),
        }
        for request_id, (level, text) in expected.items():
            its = [line for line in lines if line["id"] == f"request_id={request_id} "]
            # The events of a render have the request id too (D54).
            (line,) = [line for line in its if line["text"].endswith("ms")]
            self.assertEqual(level, line["level"], request_id)
            self.assertRegex(line["text"], rf"\A{text}\Z")
        self.assertNotIn("secret", process.stdout)
        # A variable with a name similar to a known one causes a warning (D33).
        (warning,) = [line["text"] for line in lines if line["level"] == "warning"]
        self.assertIn("AP_PROT", warning)
        self.assertIn("AP_PORT", warning)
        self.assertEqual([], [line for line in lines if line["level"] == "error"])

    async def test_scrapes(self) -> None:
        """The log has the metrics port at info, and scrapes and render events at debug."""
        self.add("short.flac", short_flac())
        process = self.twistd(AP_LOG_LEVEL="debug")
        port = await process.port()
        (line,) = re.findall(r"\[info\] metrics on 127\.0\.0\.1 port (\d+)\n", process.stdout)
        await fetch(port, signed("/plain/local://short.flac"), x_request_id=b"render")
        await until(lambda: "is stored" in process.stdout, "the write-back")
        body = (await fetch(int(line), b"/metrics", x_request_id=b"scrape")).body
        self.assertIn(b'audio_proxy_renders_total{format="mp3",outcome="success"} 1.0\n', body)
        await until(lambda: "request_id=scrape" in process.stdout, "the log line")
        debug = [line for line in self.lines(process) if line["level"] == "debug"]
        ids = ("request_id=scrape ", "request_id=render ")
        (scrape,), life = ([line["text"] for line in debug if line["id"] == each] for each in ids)
        self.assertRegex(scrape, rf"\Ametrics 200 {len(body)} bytes in \d+ms\Z")
        self.assertEqual(
            ["has a slot", "has ended", "is stored"],
            [" ".join(text.split(":")[0].split()[4:]) for text in life],
        )

    async def test_log_file(self) -> None:
        """With --logfile, the log goes to the file, and stdout stays empty.

        Lines below AP_LOG_LEVEL, such as those of health checks, are left out.
        """
        path = self.root / "service.log"
        process = self.twistd(f"--logfile={path}", AP_LOG_LEVEL="info")
        await until(lambda: path.exists() and "listening on" in path.read_text(), "the log file")
        (port,) = re.findall(r"listening on port (\d+)", path.read_text())
        await fetch(int(port), b"/health")
        await fetch(int(port), b"/nowhere", x_request_id=b"last")
        process.signal(signal.SIGTERM)
        self.assertEqual(0, await process.end())
        self.assertEqual(("", ""), (process.stdout, process.stderr))
        lines = [LINE.fullmatch(line) for line in path.read_text().splitlines()]
        self.assertNotIn(None, lines, path.read_text())
        self.assertEqual(1, sum(line["id"] == "request_id=last " for line in lines if line))
        self.assertEqual([], [line for line in lines if line and line["level"] == "debug"])
        self.assertNotIn("health", path.read_text())

    async def test_insecure(self) -> None:
        """Insecure mode without keys works, logs a warning, and accepts only ``insecure`` (D31)."""
        self.add("short.flac", short_flac())
        process = self.twistd(AP_ALLOW_INSECURE="yes", AP_KEY="", AP_SALT="")
        port = await process.port()
        rest = b"/plain/local://short.flac"
        self.assertEqual(200, (await fetch(port, b"/insecure" + rest, b"HEAD")).status)
        signature = sign(KEY, SALT, rest)
        self.assertEqual(401, (await fetch(port, b"/" + signature + rest, b"HEAD")).status)
        warnings = [line["text"] for line in self.lines(process) if line["level"] == "warning"]
        self.assertTrue(any("AP_ALLOW_INSECURE" in text for text in warnings), warnings)

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
        await until(lambda: "[error]" in process.stdout, "the error line")
        errors = [line["text"] for line in self.lines(process) if line["level"] == "error"]
        self.assertEqual(1, len(errors), errors)
        for program in ("ffmpeg", "ffprobe"):
            self.assertIn(program, errors[0])
        await self.assert_not_ready(port)
        response = await fetch(port, signed("/f:wav/plain/local://short.flac"))
        self.assertEqual((500, b"no-store"), (response.status, response["cache-control"]))
        self.assertIn(response.error, ("probe_failed", "render_failed"))
        missing = await fetch(port, signed("/plain/local://none.flac"))
        self.assertEqual(404, missing.status)
        process.signal(signal.SIGTERM)
        self.assertEqual(0, await process.end())
        self.lines(process)

    async def assert_not_ready(self, port: int) -> None:
        """Assert that a node soon becomes not ready, and that the response has the right form."""
        while (response := await fetch(port, b"/ready")).status == 200:
            pass
        self.assertEqual(503, response.status)
        self.assertEqual({"status": "not_ready", "queued": 0, "threshold": 16}, response.document)
        self.assertEqual((b"no-store", None), (response["cache-control"], response["retry-after"]))

    async def test_ffmpeg_that_goes_and_comes(self) -> None:
        """A node is ready only while both ffmpeg and ffprobe can run (D34)."""
        self.add("short.flac", short_flac())
        programs = self.root / "programs"
        programs.mkdir()
        self.patch(ffmpeg_capabilities_module, "_RETRY", 0.05)
        for name in ("ffmpeg", "ffprobe", "setpriv"):
            os.symlink(shutil.which(name) or name, programs / name)
        self.patch(os, "environ", {**os.environ, "PATH": str(programs)})
        port = self.start(queue_size=32).port
        self.assertEqual(200, (await fetch(port, b"/ready")).status)
        for name, options in (("ffmpeg", "f:wav/cb:1"), ("ffprobe", "info")):
            target = (programs / name).readlink()
            (programs / name).unlink()
            # The service notices a missing program only when it has to start one.
            self.assertEqual(200, (await fetch(port, b"/ready")).status)
            os.utime(self.root / "short.flac")
            response = await fetch(port, signed(f"/{options}/plain/local://short.flac"))
            self.assertEqual(500, response.status)
            await self.assert_not_ready(port)
            os.symlink(target, programs / name)
            while (await fetch(port, b"/ready")).status == 503:
                pass
            response = await fetch(port, signed(f"/{options}/plain/local://short.flac"))
            self.assertEqual(200, response.status)

    async def test_without_ffmpeg_and_without_a_threshold(self) -> None:
        """With a threshold of 0 a node is always ready (Readiness states; D34)."""
        process = self.twistd(PATH=str(self.root), AP_READY_QUEUE_THRESHOLD="0")
        port = await process.port()
        await until(lambda: "[error]" in process.stdout, "the error line")
        self.assertEqual(200, (await fetch(port, b"/ready")).status)

    async def test_from_anywhere(self) -> None:
        """The service works in the folder in which it was started."""
        process = self.twistd()
        self.assertTrue(await process.port())
        self.assertEqual(str(self.root), os.readlink(f"/proc/{process.pid}/cwd"))


class NotDumpableTests(TapCase):
    """Protection of the keys in the service's memory from code in a decoder (D45)."""

    async def test_hidden(self) -> None:
        """The service's process is not dumpable (prctl); its child processes are."""
        read = "import ctypes, os, sys; sys.exit(40 + ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
        script = (
            "import atexit, ctypes, subprocess, sys\n"
            "from audioproxy import tap\n"
            "tap.hide_from_children()\n"
            f"child = subprocess.call([sys.executable, '-c', {read!r}])\n"
            "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), child)"
        )
        ended = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, check=False, text=True
        )
        self.assertEqual("0 41\n", ended.stdout)

    async def test_of_every_start(self) -> None:
        """The service protects its memory before it listens."""
        hidden: list[bool] = []
        self.patch(tap, "hide_from_children", lambda: hidden.append(True))
        options = tap.Options()
        options.config, options.warnings = self.config(), ()
        options.listening, options.notify = None, lambda state: None
        tap.makeService(options)
        self.assertEqual([True], hidden)


class DescriptorTests(SynchronousTestCase):
    """Limit of open descriptors, which the service raises for its clients."""

    def raised(self, soft: int, hard: int) -> tuple[int, int]:
        """Return the soft and hard limits after a start with these limits."""
        limits = {resource.RLIMIT_NOFILE: (soft, hard)}
        self.patch(resource, "getrlimit", limits.__getitem__)
        self.patch(resource, "setrlimit", limits.__setitem__)
        tap.raise_descriptor_limit()
        return limits[resource.RLIMIT_NOFILE]

    def test_raised(self) -> None:
        """A low soft limit is raised to the hard limit, up to a sensible maximum."""
        self.assertEqual((4096, 4096), self.raised(1024, 4096))
        for hard in (524_288, resource.RLIM_INFINITY):
            soft, kept = self.raised(1024, hard)
            self.assertEqual(hard, kept)
            self.assertIn(soft, range(10_000, 100_000))

    def test_enough(self) -> None:
        """The soft limit is never lowered."""
        unlimited = resource.RLIM_INFINITY
        for limits in ((4096, 4096), (500_000, 524_288), (unlimited, unlimited), (256, 256)):
            self.assertEqual(limits, self.raised(*limits))
