"""`audioproxy doctor`: problems that keep the service from working, and what fixes them."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from audioproxy import __version__
from audioproxy.cli import doctor as doctor_module
from audioproxy.cli.checks import disk_space as disk_space_module
from audioproxy.cli.checks import machine as machine_module
from audioproxy.cli.checks.disk_space import filesystem_of
from audioproxy.cli.checks.results import CheckResult, Verdict, bad, good, note, summarize
from audioproxy.cli.checks.settings import load_usable
from audioproxy.cli.formatting import format_bytes, format_count
from audioproxy.config import Config, FileStore
from audioproxy.process.ffmpeg_capabilities import LISTS
from tests.cli.command import SECRETS, command
from tests.support.authority import Authority
from tests.support.checks import run_checks, single_result
from tests.support.origins import open_origin
from tests.support.servers import free_port
from tests.support.service import ServiceCase

GOOD, NOTE, BAD = Verdict.GOOD, Verdict.NOTE, Verdict.BAD


class DoctorCase(ServiceCase):
    """Machine and settings without problems, with local sources and a file store."""

    def setUp(self) -> None:
        super().setUp()
        self.add("a.wav", b"RIFF")

    async def run_checks(self, ffmpeg: bool = False, **variables: str) -> list[CheckResult]:
        """Return the results of the checks, with these additional variables."""
        return await run_checks(self, self.environment(**variables), ffmpeg)

    async def result_for(self, what: str, **variables: str) -> CheckResult:
        """Return the result of one check."""
        return single_result(await self.run_checks(**variables), what)

    async def assert_only_problem(
        self, verdict: Verdict, what: str, words: str, **variables: str
    ) -> None:
        """Require this verdict and text for one check, and good results of all others."""
        results = await self.run_checks(**variables)
        found = single_result(results, what)
        self.assertIs(verdict, found.verdict, found.line)
        self.assertRegex(found.text, words)
        others = [result for result in results if result.verdict is not GOOD]
        self.assertEqual([found], others)


class SettingsTests(DoctorCase):
    """Problems of the settings, which do not prevent the other checks."""

    async def test_good(self) -> None:
        """`doctor` checks settings, sources, store, disk space, open files and both ports."""
        results = await self.run_checks()
        self.assertEqual({GOOD}, {result.verdict for result in results})
        self.assertEqual(
            "audioproxy settings open_files ffmpeg setpriv local_sources variant_store"
            " temporary_files AP_PORT AP_METRICS_PORT",
            " ".join(result.check.replace(" ", "_") for result in results),
        )
        self.assertEqual([], os.listdir(self.store))

    async def test_common_mistakes(self) -> None:
        """Each common mistake gets one line with the setting and what is required."""
        for what, words, variables in (
            ("AP_KEY", "5 bytes; at least 32 bytes", {"AP_KEY": "0011223344"}),
            ("AP_KEY", "missing beside AP_SALT", {"AP_KEY": ""}),
            ("AP_SERVE_MODE", "AP_VARIANT_STORE", {"AP_SERVE_MODE": "redirect"}),
            ("AP_SERVE_MODE", r"redirect \(the default\)", {"AP_SERVE_MODE": ""}),
            ("AP_LOCAL_ROOT", "is not a directory", {"AP_LOCAL_ROOT": "/nowhere"}),
            ("AP_PORT", "a whole number", {"AP_PORT": "many"}),
            ("AP_METRICS_BIND", "an address of this machine", {"AP_METRICS_BIND": "192.0.2.1"}),
            ("sources", "set AP_LOCAL_ROOT for", {"AP_LOCAL_ROOT": ""}),
        ):
            if what == "AP_METRICS_BIND":
                variables["AP_METRICS_PORT"] = str(free_port())
            await self.assert_only_problem(BAD, what, words, **variables)

    async def test_typo(self) -> None:
        """A misspelled setting is reported with the nearest known one."""
        words = "unknown, so it is ignored; the nearest known name is AP_QUEUE_SIZE"
        await self.assert_only_problem(NOTE, "AP_QEUE_SIZE", words, AP_QEUE_SIZE="9")

    async def test_store_missing(self) -> None:
        """A missing file store is reported by its setting, and its checks are skipped."""
        results = await self.run_checks(AP_VARIANT_STORE="file:///nowhere")
        self.assertIn("is not a directory", single_result(results, "AP_VARIANT_STORE").text)
        self.assertIs(NOTE, single_result(results, "variant store").verdict)

    async def test_no_store(self) -> None:
        """A service without a variant store gets a note that every request renders."""
        found = await self.result_for("variant store", AP_VARIANT_STORE="", AP_SERVE_MODE="")
        self.assertEqual((NOTE, True), (found.verdict, "every request renders" in found.text))

    async def test_build_errors(self) -> None:
        """Errors raised while the service is built are reported, and the other checks run."""
        results = await self.run_checks(SSL_CERT_FILE="/nowhere", AP_SOURCE_ALLOWLIST="*")
        self.assertIn("no certificates could be read", single_result(results, "SSL_CERT_FILE").text)
        self.assertIs(GOOD, single_result(results, "variant store").verdict)

    def test_load_usable(self) -> None:
        """`load_usable` drops refused settings and keeps all others."""
        store = {"AP_VARIANT_STORE": f"file://{self.store}"}
        for environment, config, refused in (
            ({}, Config(allow_insecure=True), set()),
            (
                {**store, "AP_PORT": "x"},
                Config(
                    allow_insecure=True,
                    serve_mode="proxy",
                    variant_store=FileStore(str(self.store)),
                ),
                {"AP_PORT", "AP_SERVE_MODE"},
            ),
            (
                {"AP_VARIANT_STORE": "s3://bucket", "AWS_REGION": "x", "AP_QUEUE_SIZE": "7"},
                Config(allow_insecure=True, queue_size=7),
                {"AP_VARIANT_STORE", "AWS_REGION"},
            ),
            (
                {"AP_METRICS_PORT": "4000", "AP_ALLOW_INSECURE": "perhaps"},
                Config(allow_insecure=True),
                {"AP_METRICS_PORT"},
            ),
        ):
            settings = load_usable(environment)
            self.assertEqual((config, refused), (settings.config, settings.refused), environment)
            self.assertIn(BAD, [result.verdict for result in settings.results])


class MachineTests(DoctorCase):
    """Checks of the machine on which the service runs."""

    async def test_no_programs(self) -> None:
        """Without ffmpeg or setpriv, the result names the package to install."""
        results = await self.run_checks(ffmpeg=True, PATH="/nowhere")
        ffmpeg, setpriv = single_result(results, "ffmpeg"), single_result(results, "setpriv")
        self.assertEqual((BAD, NOTE), (ffmpeg.verdict, setpriv.verdict))
        self.assertRegex(ffmpeg.text, "ffmpeg and ffprobe are not on .*: apt-get install ffmpeg")
        self.assertRegex(setpriv.text, "apt-get install util-linux")

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
                script = folder / program
                lines = "\n".join(f" A....D {name} what it does" for name in listed)
                script.write_text(
                    "#!/bin/sh\n"
                    f"case $* in *-version) echo '{program} version 7.1-test of somebody';;\n"
                    f"*) echo '{lines}';; esac\n"
                )
                script.chmod(0o755)
            results = await self.run_checks(ffmpeg=True, PATH=str(folder))
            found = single_result(results, "ffmpeg")
            self.assertIs(verdict, found.verdict, found.line)
            self.assertRegex(found.text, words)

    async def test_ports(self) -> None:
        """A port in use is good if an audioproxy uses it for the same setting, otherwise bad."""
        running = self.start()
        ports = {"AP_PORT": running.port, "AP_METRICS_PORT": running.metrics_port}
        results = await self.run_checks(**{name: str(port) for name, port in ports.items()})
        found = single_result(results, "AP_PORT")
        self.assertEqual((GOOD, True), (found.verdict, f"audioproxy {__version__}" in found.text))
        found = single_result(results, "AP_METRICS_PORT")
        self.assertEqual((GOOD, True), (found.verdict, "an audioproxy" in found.text))
        # Each port is used by the service's other listener.
        results = await self.run_checks(
            AP_PORT=str(running.metrics_port), AP_METRICS_PORT=str(running.port)
        )
        for name in ports:
            found = single_result(results, name)
            self.assertEqual(BAD, found.verdict, found.line)
            self.assertRegex(found.text, rf"taken by another program .*; set {name} to a free port")

    async def test_free_ports(self) -> None:
        """The check of a free port leaves it free."""
        ports = {"AP_PORT": str(free_port()), "AP_METRICS_PORT": str(free_port())}
        for _ in range(2):
            results = await self.run_checks(**ports)
            for name, port in ports.items():
                self.assertEqual(good(name, f"{port} is free"), single_result(results, name))

    async def test_no_permission(self) -> None:
        """A port that requires root is reported with the capability that permits it."""

        def refuse(*arguments: Any) -> None:
            raise PermissionError(13, "Permission denied")

        self.patch(machine_module.Listener, "open", refuse)
        found = await self.result_for("AP_PORT", AP_PORT="80")
        self.assertEqual((BAD, True), (found.verdict, "CAP_NET_BIND_SERVICE" in found.text))

    async def test_open_files(self) -> None:
        """A low limit of open files gets a note, and an unusable limit gets an error.

        Both messages name what fixes the limit.
        """
        for limit, verdict in (
            (100_000, GOOD),
            (resource.RLIM_INFINITY, GOOD),
            (1000, NOTE),
            (280, BAD),
        ):
            self.patch(resource, "getrlimit", lambda which, limit=limit: (limit, limit))
            found = await self.result_for("open files", AP_MAX_CONCURRENCY="2")
            self.assertIs(verdict, found.verdict, found.line)
            if verdict is not GOOD:
                self.assertRegex(found.text, "LimitNOFILE=16384 .*ulimit -Hn 16384")

    async def test_disk_space(self) -> None:
        """`doctor` compares the maximum disk use of renders with the space that is free."""
        terabytes = {"AP_MAX_VARIANT_BYTES": str(10**15), "AP_MAX_CONCURRENCY": "2"}
        await self.assert_only_problem(
            NOTE, "variant store", "2 renders at a time .+ may take 2000 TB; free some", **terabytes
        )
        found = await self.result_for(
            "temporary files", AP_VARIANT_STORE="", AP_SERVE_MODE="", **terabytes
        )
        self.assertEqual(NOTE, found.verdict)
        self.assertRegex(found.text, "2000 TB; free some space, set TMPDIR")
        sources = {"AP_SOURCE_ALLOWLIST": "*", "AP_MAX_SRC_BYTES": str(10**15)}
        found = await self.result_for("temporary files", AP_MAX_VARIANT_BYTES="1", **sources)
        self.assertRegex(found.text, "https sources of AP_MAX_SRC_BYTES")

    async def test_temporary_files(self) -> None:
        """An unusable TMPDIR is reported with the folder that is used instead."""
        self.patch(tempfile, "tempdir", None)
        results = await self.run_checks(TMPDIR="/nowhere")
        first, second = [each for each in results if each.check == "temporary files"]
        self.assertEqual((NOTE, GOOD), (first.verdict, second.verdict))
        self.assertRegex(first.text, "TMPDIR is /nowhere, which is not writable, so /.* is used")

    async def test_no_temporary_files(self) -> None:
        """`doctor` reports an error if no folder can hold temporary files."""
        self.patch(tempfile, "tempdir", "/nowhere")
        await self.assert_only_problem(BAD, "temporary files", "set TMPDIR to a writable directory")

    async def test_certificates(self) -> None:
        """The bundle that verifies https sources is named."""
        bundle = str(Authority(Path(self.mktemp()).resolve()).bundle)
        found = await self.result_for("certificates", AP_SOURCE_ALLOWLIST="*", SSL_CERT_FILE=bundle)
        self.assertEqual((GOOD, True), (found.verdict, bundle in found.text))

    async def test_cleartext_store(self) -> None:
        """A cleartext connection to a store gets a note, unless it is local."""
        origin = open_origin(self)
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
        credentials = dict.fromkeys(names, "x")
        for host, verdict in (("127.0.0.1", GOOD), ("localhost", GOOD), ("0.0.0.0", NOTE)):
            endpoint = f"http://{host}:{origin.port}"
            results = await self.run_checks(**credentials, AP_S3_ENDPOINT=endpoint)
            found = single_result(results, "way to sources")
            self.assertIs(verdict, found.verdict, found.line)

    async def test_empty_local_root(self) -> None:
        """An empty AP_LOCAL_ROOT gets a note."""
        (self.root / "a.wav").unlink()
        await self.assert_only_problem(NOTE, "local sources", "it is empty")

    async def test_crash(self) -> None:
        """A check that raises is reported as an error and does not stop the others."""

        async def crash(*arguments: Any) -> AsyncIterator[CheckResult]:
            raise RuntimeError("oh")
            yield

        self.patch(doctor_module, "check_temporary_files", crash)
        await self.assert_only_problem(BAD, "temporary files", r"RuntimeError\('oh'\)")


class ProgramTests(ServiceCase):
    """`doctor` in a process of its own."""

    def run_doctor(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "audioproxy.cli.main", "doctor", *words],
            env=self.environment(**variables),
            capture_output=True,
            check=False,
            text=True,
        )

    def test_good(self) -> None:
        """Without problems `doctor` marks each line with ok, and exits with 0."""
        self.add("a.wav", b"RIFF")
        ended = self.run_doctor()
        *lines, blank, last = ended.stdout.splitlines()
        self.assertEqual((0, "", "", "All is well."), (ended.returncode, ended.stderr, blank, last))
        self.assertEqual({"ok  "}, {line[:4] for line in lines})
        self.assertRegex(ended.stdout, r"ffmpeg and \S+ffprobe [0-9]")

    def test_bad(self) -> None:
        """With --json `doctor` prints one document without secrets; on problems it exits with 1."""
        file = Path(self.mktemp())
        secret = "a-secret-that-nobody-may-see"
        file.write_text(
            f"AP_KEY=0011\nAP_VARIANT_STORE=s3://bucket\nAP_SERVE_MODE=redirect\nAWS_REGION=x\n"
            f"AP_S3_ENDPOINT=http://127.0.0.1:{free_port()}\nTMPDIR={self.root}\n"
            f"AWS_ACCESS_KEY_ID=x\nAWS_SECRET_ACCESS_KEY={secret}\n"
        )
        ended = self.run_doctor("--json", "--env-file", str(file))
        self.assertEqual((1, ""), (ended.returncode, ended.stderr))
        document = json.loads(ended.stdout)
        verdicts = {check["check"]: check["verdict"] for check in document["checks"]}
        self.assertIs(False, document["ok"])
        self.assertEqual(
            ("bad", "note", "bad", "good"),
            tuple(
                verdicts[what] for what in ("AP_KEY", "AP_SERVE_MODE", "variant store", "ffmpeg")
            ),
        )
        self.assertIn(str(self.root), ended.stdout)
        self.assertNotIn(secret, ended.stdout)


class OutputTests(SynchronousTestCase):
    """Usage errors, output format and names of filesystems."""

    def test_misuse(self) -> None:
        """A usage error of `doctor` exits with 2."""
        for words in (("--jsn",), ("--env-file", "/nowhere")):
            self.assertEqual(2, command("doctor", *words, environment=SECRETS).status)

    def test_line(self) -> None:
        """A result is a single line, even if a path contains control characters."""
        self.assertEqual("!!  x                 a\\x1b\\nb", bad("x", "a\x1b\nb").line)

    def test_summary(self) -> None:
        """The last line counts the problems that keep the service from working."""
        for results, words in (
            ([good("a", "")], "All is well."),
            (
                [good("a", ""), note("b", "")],
                "The service can work. Check the lines marked --.",
            ),
            ([bad("a", ""), note("b", "")], "1 problem would prevent the service from working."),
            ([bad("a", ""), bad("b", "")], "2 problems would prevent the service from working."),
        ):
            self.assertEqual(words, summarize(results))

    def test_format_bytes(self) -> None:
        """Byte counts have three significant digits and decimal units.

        Other counts are followed by their noun in the singular or plural.
        """
        for count, words in (
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1 kB"),
            (1_234_567, "1.23 MB"),
            (999_600_000, "1 GB"),
            (2_000_000_000, "2 GB"),
            (5 * 10**15, "5000 TB"),
        ):
            self.assertEqual(words, format_bytes(count))
        self.assertEqual(("1 URL", "0 URLs"), (format_count(1, "URL"), format_count(0, "URL")))

    def test_filesystem(self) -> None:
        """A folder belongs to the nearest mount point above it.

        If that mount point was mounted on several times, the latest mount counts.
        """
        table = Path(self.mktemp())
        table.write_text(
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
            "23 22 0:20 / /srv rw - nfs4 nas:/ rw\n"
            "24 23 0:21 / /srv/a\\040b rw shared:1 - xfs /dev/sdb rw\n"
            "25 23 0:22 / /srv rw - tmpfs tmpfs rw\n"
        )
        self.patch(disk_space_module, "_MOUNTS", table)
        for path, kind in (
            ("/srv/a b/c", "xfs"),
            ("/srv/x", "tmpfs"),
            ("/srvx", "ext4"),
            ("/", "ext4"),
        ):
            self.assertEqual(kind, filesystem_of(path), path)
        table.unlink()
        self.assertEqual("filesystem unknown", filesystem_of("/"))
