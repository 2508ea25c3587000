"""`audioproxy doctor` with real programs, ports and buckets, and in a process of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

from audioproxy import __version__
from audioproxy.cli.checks import disk as disk_module
from audioproxy.cli.checks import ports
from audioproxy.cli.checks.ports import check_ports
from audioproxy.cli.checks.results import CheckResult, Verdict, good
from audioproxy.cli.checks.settings import load_usable
from audioproxy.process import find_starter
from audioproxy.process.programs import LISTS
from audioproxy.server.listener import open_socket
from tests.cli.command import run_command
from tests.support.authority import Authority
from tests.support.checks import collect, run_checks, single_result
from tests.support.folders import short_folder
from tests.support.origins import open_origin
from tests.support.programs import write_script
from tests.support.remote import RemoteCase
from tests.support.runs import RunResult
from tests.support.service import PATIENCE, ServiceCase, reactor
from tests.support.stand_ins import compile_program

GOOD, NOTE, BAD = Verdict.GOOD, Verdict.NOTE, Verdict.BAD


class CheckTests(ServiceCase):
    """Checks of a machine and settings without problems, with local sources and a file store"""

    def setUp(self) -> None:
        super().setUp()
        self.add("a.wav", b"RIFF")

    async def run_checks(self, ffmpeg: bool = False, **variables: str) -> list[CheckResult]:
        """Return the results of the checks, with these additional variables."""
        return await run_checks(self, self.environment(**variables), ffmpeg)

    def assert_result(
        self, results: list[CheckResult], what: str, verdict: Verdict, words: str
    ) -> None:
        """Require this verdict and text for one check."""
        found = single_result(results, what)
        self.assertIs(verdict, found.verdict, found.line)
        self.assertRegex(found.text, words)

    async def test_problems(self) -> None:
        """A refused setting or certificate is reported, and the checks without it run."""
        bundle = str(Authority(Path(self.mktemp()).resolve()).bundle)
        https = {"AP_SOURCE_ALLOWLIST": "*", "SSL_CERT_FILE": bundle}
        results = await self.run_checks(AP_VARIANT_STORE="file:///nowhere", **https)
        self.assert_result(results, "certificates", GOOD, bundle)
        self.assert_result(results, "AP_VARIANT_STORE", BAD, "is not a directory")
        self.assert_result(results, "variant store", NOTE, "AP_VARIANT_STORE is refused")
        results = await self.run_checks(AP_VARIANT_STORE="", AP_SERVE_MODE="", AP_PORT="many")
        self.assert_result(results, "AP_PORT", BAD, "a whole number")
        self.assert_result(results, "variant store", NOTE, "every request renders")
        results = await self.run_checks(SSL_CERT_FILE="/nowhere", AP_SOURCE_ALLOWLIST="*")
        self.assert_result(results, "SSL_CERT_FILE", BAD, "no certificates could be read")
        self.assert_result(results, "variant store", GOOD, "is writable")
        self.assertNotIn("certificates", [result.check for result in results])

    async def test_crash(self) -> None:
        """A check that raises is reported as an error and does not stop the others."""

        async def crash(*arguments: Any) -> AsyncIterator[CheckResult]:
            raise RuntimeError("oh")
            yield

        self.patch(disk_module, "check_temporary_files", crash)
        traceback = io.StringIO()
        with contextlib.redirect_stderr(traceback):
            results = await self.run_checks()
        self.assert_result(results, "temporary files", BAD, "audioproxy itself failed")
        self.assertIn("RuntimeError: oh", traceback.getvalue())
        others = [result.check for result in results if result.verdict is not GOOD]
        self.assertEqual(["temporary files"], others)
        self.assertEqual("AP_METRICS_PORT", results[-1].check)

    async def test_no_programs(self) -> None:
        """Without ffmpeg, util-linux and audioproxy-cell, the results say how to install them."""
        # This is where it is expected.
        self.patch(find_starter, "BINARY", Path("/nowhere/audioproxy-cell"))
        results = await self.run_checks(ffmpeg=True, PATH="/nowhere", AP_REQUIRE_CELL="1")
        words = "ffmpeg and ffprobe are not on .*: apt-get install ffmpeg"
        self.assert_result(results, "ffmpeg", BAD, words)
        remedies = r"`cc .* /nowhere/audioproxy-cell\.so .*cell\.c`;.*apt-get install util-linux"
        self.assert_result(results, "cell", NOTE, remedies)
        self.assert_result(results, "AP_REQUIRE_CELL", BAD, remedies)

    async def test_start_of_programs(self) -> None:
        """The way in which each program is started is reported, and why it is the slow one."""
        folder = Path(self.mktemp()).resolve()
        program = compile_program(folder)
        ffmpeg = program.rename(program.with_name("ffmpeg"))
        ffprobe = write_script(program.with_name("ffprobe"), "#!/bin/sh\n")
        for variables, expected in (
            ({}, [
                f"remote sources are copied before they are read: {ffprobe}: it is a script",
                f"{ffmpeg} is linked once, and forked; linking took \\d+ ms of CPU time",
                f"{ffprobe} is started anew for each child: it is a script",
            ]),
            ({"AP_WARM_PROGRAMS": "0"}, ["AP_WARM_PROGRAMS=0 .* are copied"]),
        ):  # fmt: skip
            results = await self.run_checks(ffmpeg=True, PATH=str(program.parent), **variables)
            found = [result.text for result in results if result.check == "start"]
            for pattern, text in zip(expected, found, strict=True):
                self.assertRegex(text, pattern)

    async def test_incomplete_ffmpeg(self) -> None:
        """An incomplete ffmpeg is reported with the missing encoder, a complete one by version."""
        folder = Path(self.mktemp()).resolve()
        folder.mkdir()
        names = [name for _, _, needed in LISTS for name in needed]
        for listed, verdict, words in (
            (names, GOOD, "ffmpeg and .+ffprobe 7.1-test, with everything"),
            (names[1:], BAD, f"lacks the encoder {names[0]}; a complete ffmpeg"),
        ):
            for program in ("ffmpeg", "ffprobe"):
                lines = "\n".join(f" A....D {name} what it does" for name in listed)
                write_script(
                    folder / program,
                    "#!/bin/sh\n"
                    f"case $* in *-version) echo '{program} version 7.1-test of somebody';;\n"
                    f"*) echo '{lines}';; esac\n",
                )
            results = await self.run_checks(ffmpeg=True, PATH=str(folder))
            self.assert_result(results, "ffmpeg", verdict, words)
            if verdict == GOOD:
                self.assert_result(results, "libsoxr", NOTE, "lacks libsoxr, .* install ffmpeg")

    async def check_ports(
        self, open_socket: Callable[[str, int], socket] = open_socket, **variables: str
    ) -> list[CheckResult]:
        """Return the results of the checks of the ports, which wait for a slow machine."""
        self.patch(ports, "open_socket", open_socket)
        settings = load_usable(self.environment(**variables))
        return await collect(check_ports(reactor, settings, PATIENCE))

    async def test_taken(self) -> None:
        """A port in use is good if this service uses it for the same setting, otherwise bad."""
        running = self.start()
        port, metrics_port = str(running.port), str(running.metrics_port)
        results = await self.check_ports(AP_PORT=port, AP_METRICS_PORT=metrics_port)
        self.assert_result(results, "AP_PORT", GOOD, f"audioproxy {re.escape(__version__)}")
        self.assert_result(results, "AP_METRICS_PORT", GOOD, "an audioproxy")
        for other in ({"AP_SALT": "00"}, {"AP_KEY": "", "AP_SALT": "", "AP_ALLOW_INSECURE": "1"}):
            results = await self.check_ports(AP_PORT=port, AP_METRICS_PORT=metrics_port, **other)
            words = "with another AP_KEY or AP_SALT; set AP_PORT to a free port"
            self.assert_result(results, "AP_PORT", BAD, words)
        # With a key that is refused, there is no question.
        results = await self.check_ports(AP_PORT=port, AP_KEY="00")
        self.assert_result(results, "AP_PORT", GOOD, "which is running")
        results = await self.check_ports(AP_PORT="0", AP_METRICS_PORT=metrics_port)
        words = "an audioproxy that does not listen on AP_PORT; set AP_METRICS_PORT to"
        self.assert_result(results, "AP_METRICS_PORT", NOTE, words)
        # Each port is used by the service's other listener.
        results = await self.check_ports(AP_PORT=metrics_port, AP_METRICS_PORT=port)
        for name in ("AP_PORT", "AP_METRICS_PORT"):
            words = rf"taken by another program, or by a socket unit .*; set {name} to a free port"
            self.assert_result(results, name, BAD, words)

    async def test_free(self) -> None:
        """The check of a free port leaves it free."""
        asked: list[tuple[str, int]] = []
        sockets: list[socket] = []

        # Another program may take every port that is chosen here.
        def open_any(bind: str, port: int) -> socket:
            asked.append((bind, port))
            sockets.append(open_socket(bind, 0))
            return sockets[-1]

        results = await self.check_ports(open_any, AP_PORT="4001", AP_METRICS_PORT="4002")
        for name, port in (("AP_PORT", 4001), ("AP_METRICS_PORT", 4002)):
            self.assertEqual(good(name, f"{port} is free"), single_result(results, name))
        self.assertEqual([("", 4001), ("127.0.0.1", 4002)], asked)
        self.assertEqual([-1, -1], [each.fileno() for each in sockets])

    async def test_socket(self) -> None:
        """A Unix socket can be created, or has a listener, or is refused with the reason (D59)."""
        folder = short_folder(self)
        free, taken, file = (folder / name for name in ("free", "taken", "file"))
        file.touch()
        with socket(AF_UNIX) as listening:
            listening.bind(str(taken))
            listening.listen()
            for path, verdict, words in (
                (free, GOOD, "free is free"),
                (taken, NOTE, "a program listens on .*taken"),
                (file, BAD, r"file cannot be used \(a file that is not a socket is there\)"),
                (folder / "none" / "x", BAD, "none is missing, or not readable and"),
            ):
                results = await self.check_ports(AP_BIND=f"unix:{path}")
                self.assert_result(results, "AP_BIND", verdict, words)
                self.assertEqual([], [each for each in results if each.check == "AP_PORT"])
        self.assertFalse(free.exists())

    async def test_unusable(self) -> None:
        """An address of another machine, and a port that requires root, are reported."""
        results = await self.check_ports(AP_METRICS_BIND="192.0.2.1", AP_METRICS_PORT="4000")
        self.assert_result(results, "AP_METRICS_BIND", BAD, "an address of this machine")
        results = await self.run_checks(
            AP_BIND="192.0.2.1", AP_PREVIOUS_KEY="b2" * 32, AP_PREVIOUS_SALT="01"
        )
        self.assert_result(results, "AP_BIND", BAD, "cannot listen on 192.0.2.1")
        words = "signed URLs, also of 1 previous pair of key and salt"
        self.assert_result(results, "settings", GOOD, words)

        def refuse(*arguments: Any) -> socket:
            raise PermissionError(13, "Permission denied")

        results = await self.check_ports(refuse, AP_PORT="80")
        self.assert_result(results, "AP_PORT", BAD, "CAP_NET_BIND_SERVICE")


class ProgramTests(ServiceCase):
    """`doctor` in a process of its own."""

    def run_doctor(self, *words: str, **variables: str) -> RunResult:
        """Run the command to its end."""
        return run_command("doctor", *words, environment=self.environment(**variables))

    def write_settings(self, text: str, mode: int) -> str:
        """Write a file of settings and return its path."""
        file = Path(self.mktemp()).resolve()
        file.write_text(text)
        file.chmod(mode)
        return str(file)

    def test_good(self) -> None:
        """Without problems `doctor` marks each of its checks with ok, and exits with 0."""
        self.add("a.wav", b"RIFF")
        file = self.write_settings(f"AP_LOCAL_ROOT={self.root}\n", 0o600)
        ended = self.run_doctor("--env-file", file)
        *lines, blank, last = ended.out.splitlines()
        self.assertEqual((0, "", "", "All is well."), (ended.status, ended.err, blank, last))
        self.assertEqual({"ok  "}, {line[:4] for line in lines})
        self.assertEqual(
            "audioproxy settings open_files ffmpeg start start cell local_sources variant_store"
            " builds temporary_files AP_PORT AP_METRICS_PORT settings_file",
            " ".join(line[4:22].strip().replace(" ", "_") for line in lines),
        )
        self.assertEqual([], os.listdir(self.store))
        self.assertRegex(ended.out, r"ffmpeg and \S+ffprobe [0-9]")

    def test_bad(self) -> None:
        """With --json `doctor` prints one document without secrets; on problems it exits with 1."""
        secret = "a-secret-that-nobody-may-see"
        file = self.write_settings(
            f"AP_KEY=0011\nAP_VARIANT_STORE=s3://bucket\nAP_SERVE_MODE=redirect\nAWS_REGION=x\n"
            f"AP_S3_ENDPOINT=http://127.0.0.1:9\nTMPDIR={self.root}\n"
            f"AWS_ACCESS_KEY_ID=x\nAWS_SECRET_ACCESS_KEY={secret}\n",
            0o644,
        )
        ended = self.run_doctor("--json", "--env-file", file)
        self.assertEqual((1, ""), (ended.status, ended.err))
        document = json.loads(ended.out)
        verdicts = {check["check"]: check["verdict"] for check in document["checks"]}
        self.assertIs(False, document["ok"])
        names = "AP_KEY|AP_SERVE_MODE|variant store|ffmpeg|settings file".split("|")
        found = [verdicts[name] for name in names]
        self.assertEqual(["bad", "note", "bad", "good", "note"], found)
        self.assertIn(str(self.root), ended.out)
        self.assertNotIn(secret, ended.out)


class BucketTests(RemoteCase):
    """Checks of a real bucket for variants, in redirect mode."""

    async def run_checks(self, **variables: str) -> dict[str, CheckResult]:
        """Return the result of each check, and require that no line holds a secret."""
        environment = self.environment(**{"AP_SERVE_MODE": "redirect", **variables})
        results = await run_checks(self, environment)
        lines = "\n".join(result.line for result in results)
        for name, value in environment.items():
            if name in ("AP_KEY", "AP_SALT") or name.endswith(("_KEY", "_ID")):
                self.assertNotIn(value, lines, name)
        self.assertNotIn("X-Amz-Signature", lines)
        return {result.check: result for result in results}

    async def test_certificates(self) -> None:
        """An untrusted certificate is reported with AP_S3_CA_BUNDLE, and passes with it."""
        authority = Authority(Path(self.mktemp()).resolve())
        origin = open_origin(self, authority.issue("localhost"))
        endpoint = {"AP_S3_ENDPOINT": f"https://localhost:{origin.port}"}
        results = await self.run_checks(**endpoint)
        self.assertIn("AP_S3_CA_BUNDLE", results["variant store"].text)
        self.assertIs(NOTE, results["way to the store"].verdict)
        results = await self.run_checks(**endpoint, AP_S3_CA_BUNDLE=str(authority.bundle))
        way = results["way to the store"]
        self.assertEqual((GOOD, True), (way.verdict, str(authority.bundle) in way.text))
