"""`audioproxy doctor`: problems that keep the service from working, and what fixes them."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from stat import S_IFREG
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.cli.checks import machine as machine_module
from audioproxy.cli.checks.disk import check_temporary_files, filesystem_of
from audioproxy.cli.checks.machine import (
    check_certificates,
    check_local_sources,
    check_open_files,
    check_settings_file,
)
from audioproxy.cli.checks.results import CheckResult, Verdict, bad, good, note, summarize
from audioproxy.cli.checks.settings import UsableSettings, load_usable
from audioproxy.cli.checks.stores import check_bound, check_folder, check_lifetime
from audioproxy.cli.doctor import check_urls, report_access
from audioproxy.cli.output import format_bytes, format_count
from audioproxy.config import Config, FileStore, S3Config
from audioproxy.urls import Signer
from tests.cli.command import PIECE, SECRETS, SIGNER
from tests.support.checks import collect
from tests.support.processes import set_environment
from tests.variants.test_files import store_in

GOOD, NOTE, BAD = Verdict.GOOD, Verdict.NOTE, Verdict.BAD
PETABYTE = 10**15


class SettingsTests(SynchronousTestCase):
    """The function `load_usable`."""

    def setUp(self) -> None:
        self.folder = str(Path(self.mktemp()).resolve())
        os.mkdir(self.folder)
        self.environment = {
            **SECRETS,
            "AP_LOCAL_ROOT": self.folder,
            "AP_VARIANT_STORE": f"file://{self.folder}",
            "AP_SERVE_MODE": "proxy",
        }

    def test_common_mistakes(self) -> None:
        """Each common mistake gets one line with the setting and what is required."""
        for verdict, what, words, variables in (
            (BAD, "AP_KEY", "5 bytes; at least 32 bytes", {"AP_KEY": "0011223344"}),
            (BAD, "AP_KEY", "missing beside AP_SALT", {"AP_KEY": ""}),
            (BAD, "sources", "set AP_LOCAL_ROOT for", {"AP_LOCAL_ROOT": ""}),
            (NOTE, "AP_QEUE_SIZE", "nearest known name is AP_QUEUE_SIZE", {"AP_QEUE_SIZE": "9"}),
        ):
            results = load_usable({**self.environment, **variables}).results
            (found,) = (result for result in results if result.verdict is not GOOD)
            self.assertEqual((verdict, what), (found.verdict, found.check))
            self.assertRegex(found.text, words)
        (found,) = load_usable(self.environment).results
        self.assertEqual((GOOD, "settings"), (found.verdict, found.check))

    def test_source_headers(self) -> None:
        """The hosts with headers are counted (D59)."""
        file = Path(self.mktemp())
        file.touch(0o600)
        file.write_text("a.example X: hidden\nb.example X: hidden")
        https = {"AP_SOURCE_ALLOWLIST": "*", "AP_SOURCE_HEADERS_FILE": str(file)}
        (found,) = load_usable(self.environment | https | {"AP_SOURCE_DENY_PRIVATE": "1"}).results
        self.assertIn("https at public addresses with headers for 2 hosts", found.text)

    def test_usable_settings(self) -> None:
        """Refused settings are dropped, and all others are kept."""
        store = {"AP_VARIANT_STORE": f"file://{self.folder}"}
        place = FileStore(self.folder)
        in_folder = Config(allow_insecure=True, serve_mode="proxy", variant_store=place)
        for environment, config, refused in (
            ({}, Config(allow_insecure=True), set()),
            ({**store, "AP_PORT": "x"}, in_folder, {"AP_PORT", "AP_SERVE_MODE"}),
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


class MachineTests(SynchronousTestCase):
    """Checks of the machine on which the service runs."""

    def setUp(self) -> None:
        # The real function raises the descriptor limit of the whole test process.
        self.patch(machine_module, "raise_descriptor_limit", lambda: None)
        self.folder = Path(self.mktemp()).resolve()
        self.folder.mkdir()

    def assert_result(
        self, check: AsyncIterator[CheckResult], verdict: Verdict | None, words: str = ""
    ) -> None:
        """Require a single result with this verdict and text, or none."""
        results = self.successResultOf(Deferred.fromCoroutine(collect(check)))
        self.assertEqual([verdict] if verdict else [], [found.verdict for found in results])
        for found in results:
            self.assertRegex(found.text, words)

    def test_open_files(self) -> None:
        """A low limit of open files is a note, an unusable one bad; both say what fixes it."""
        config = Config(allow_insecure=True, max_concurrency=2)
        fix = "LimitNOFILE=16384 .*ulimit -Hn 16384"
        for limit, verdict, words in (
            (100_000, GOOD, "^100000 at most"),
            (resource.RLIM_INFINITY, GOOD, "^without limit"),
            (1000, NOTE, fix),
            (280, BAD, fix),
        ):
            self.patch(resource, "getrlimit", lambda which, limit=limit: (limit, limit))
            self.assert_result(check_open_files(config), verdict, words)
        self.assert_result(check_open_files(config, "a.env"), BAD, "shell .a unit has LimitNOFILE=")

    def test_settings_file(self) -> None:
        """A settings file that other users may read or change is a note with what fixes it."""
        for mode, owner, fix in (
            (0o600, 0, ""),
            (0o400, 1000, ""),
            (0o640, 1000, "owner 1000, mode 0640): chmod 600 '/etc/a b'"),
            (0o602, 0, "owner 0, mode 0602): chmod 600 '/etc/a b'"),
            (0o666, 7, "owner 7, mode 0666): chown root '/etc/a b' && chmod 600 '/etc/a b'"),
        ):
            status = os.stat_result((S_IFREG | mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))
            found = check_settings_file("/etc/a b", status, 1000)
            self.assertEqual((NOTE if fix else GOOD, "settings file"), (found.verdict, found.check))
            self.assertTrue(found.text.endswith(fix), found.text)

    def test_root(self) -> None:
        """Root gets a note, unless the settings are in a file, which often only root can read."""
        file = self.folder / "settings"
        file.touch(0o600)
        for env_file, uid, expected in (
            (None, 0, [(NOTE, "user")]),
            (None, 1000, []),
            (str(file), os.getuid(), [(GOOD, "settings file")]),
        ):
            results: list[CheckResult] = []
            report_access(env_file, uid, results.append)
            self.assertEqual(expected, [(found.verdict, found.check) for found in results])

    def test_urls(self) -> None:
        """URLs are verified, without their signatures in the output (D55)."""
        old = Signer(b"o" * 32, b"old")
        previous = {"AP_PREVIOUS_KEY": old.key.hex(), "AP_PREVIOUS_SALT": old.salt.hex()}
        shown = f"f:mp3/plain/{PIECE}"
        pair = "signed with pair 1 of AP_PREVIOUS_KEY"
        for url, environment, verdict, text in (
            (SIGNER.url(PIECE), {}, GOOD, f"good: {shown}"),
            (old.url(PIECE), previous, GOOD, f"good ({pair}): {shown}"),
            (old.url(PIECE), {}, BAD, f"wrong signature: {shown}"),
            ("none", {}, BAD, "not a URL"),
            (SIGNER.url(PIECE), {"AP_KEY": "00"}, BAD, "AP_KEY: 1 byte; at least 32"),
        ):
            (found,) = check_urls([url], {**SECRETS, **environment})
            self.assertEqual((verdict, "URL"), (found.verdict, found.check))
            self.assertIn(text, found.text)

    def test_local_sources(self) -> None:
        """An empty AP_LOCAL_ROOT gets a note."""
        self.assert_result(check_local_sources(Config(allow_insecure=True)), None)
        config = Config(allow_insecure=True, local_root=str(self.folder))
        self.assert_result(check_local_sources(config), NOTE, "it is empty")
        (self.folder / "a.wav").touch()
        # Some containers do not say which file system their folders are on.
        words = rf"^{self.folder} \((?:\w+|filesystem unknown)\) can be read"
        self.assert_result(check_local_sources(config), GOOD, words)

    def test_playback(self) -> None:
        """URLs of redirects that end within an hour are a note, as are temporary credentials."""
        temporary = S3Config(session_token="token")
        for settings, verdict, words in (
            ({}, NOTE, "works for 300 s, .*; set AP_PRESIGN_TTL=21600, six hours"),
            ({"presign_ttl": 3600}, GOOD, "works for 3600 s$"),
            ({"presign_ttl": 3600, "variant_s3": temporary}, NOTE, "until the session .* ends"),
        ):
            found = check_lifetime(replace(Config(allow_insecure=True), **settings))
            self.assertEqual((verdict, "playback"), (found.verdict, found.check))
            self.assertRegex(found.text, words)

    def test_disk_space(self) -> None:
        """`doctor` compares the maximum disk use of renders with the space that is free."""
        config = Config(allow_insecure=True, max_variant_bytes=PETABYTE, max_concurrency=2)
        store: Any = SimpleNamespace(check_writable=lambda: succeed(None))
        checking: Any = check_folder(config, str(self.folder), store)
        found = self.successResultOf(Deferred.fromCoroutine(checking))
        self.assertEqual((NOTE, "variant store"), (found.verdict, found.check))
        self.assertRegex(found.text, "2 renders at a time .+ may take 2000 TB; free some")
        words = "2000 TB; free some space, set TMPDIR"
        self.assert_result(check_temporary_files(config), NOTE, words)
        settings: Any = {"variant_store": FileStore("/"), "source_allowlist": ("*",)}
        config = replace(config, max_src_bytes=PETABYTE, **settings)
        words = "with https sources of AP_MAX_SRC_BYTES, may take 2000 TB"
        self.assert_result(check_temporary_files(config), NOTE, words)

    def test_bound(self) -> None:
        """`doctor` prints the bytes of a store, and compares its bound with the disk."""
        store: Any = SimpleNamespace(usage=SimpleNamespace(read=lambda: 1500))
        for most, verdict, words in (
            (2000, GOOD, r"1\.5 kB of at most 2 kB"),
            (1000 * PETABYTE, NOTE, "1.5 kB of .*, but the disk has .*; lower"),
        ):
            found = check_bound(str(self.folder), store, most)
            self.assertEqual((verdict, "store size"), (found.verdict, found.check))
            self.assertRegex(found.text, words)
        self.assertIn("unknown", check_bound("/", store_in(self.folder), 1).text)

    def test_temporary_files(self) -> None:
        """An unusable TMPDIR is an error: no other folder is used instead."""
        config = Config(allow_insecure=True, max_variant_bytes=1)
        set_environment(self, TMPDIR="/nowhere")
        words = "/nowhere.*; set TMPDIR to a writable directory"
        self.assert_result(check_temporary_files(config), BAD, words)

    def test_whose_temporary_files(self) -> None:
        """A folder that the settings of a unit do not name is called that of the shell."""
        config = Config(allow_insecure=True, max_variant_bytes=1)
        file, folder = self.folder / "a.env", str(self.folder)
        set_environment(self, TMPDIR=folder)
        for text, shown in (("", f", of this shell, since {file} has no TMPDIR"), ("TMPDIR=x", "")):
            file.write_text(text)
            words = re.escape(f"{folder} ({filesystem_of(folder)}{shown}) is writable")
            self.assert_result(check_temporary_files(config, str(file)), GOOD, words)

    def test_certificates(self) -> None:
        """The bundle that verifies https sources is named; without such sources, none is needed."""
        bundle = str(self.folder / "ca.pem")
        set_environment(self, SSL_CERT_FILE=bundle)
        without = UsableSettings(Config(allow_insecure=True), frozenset(), ())
        self.assert_result(check_certificates(None, without), None)
        config = Config(allow_insecure=True, source_allowlist=("*",))
        settings = UsableSettings(config, frozenset(), ())
        self.assert_result(check_certificates(None, settings), BAD, f"{bundle} cannot be read")
        Path(bundle).touch()
        self.assert_result(check_certificates(None, settings), GOOD, f"against {bundle}")


class OutputTests(SynchronousTestCase):
    """Output format and names of filesystems."""

    def test_line(self) -> None:
        """A result is one printable line, and the last line counts the problems."""
        self.assertEqual("!!  x                 a\\x1b\\nb", bad("x", "a\x1b\nb").line)
        ok, odd, wrong = good("a", ""), note("b", ""), bad("c", "")
        for results, words in (
            ([ok], "All is well."),
            ([ok, odd], "The service can work. Check the lines marked --."),
            ([wrong, odd], "1 problem should be solved before the service is used."),
            ([wrong, wrong], "2 problems should be solved before the service is used."),
        ):
            self.assertEqual(words, summarize(results))

    def test_format_bytes(self) -> None:
        """Bytes have three digits and decimal units; other counts have their noun."""
        counts = {0: "0 B", 999: "999 B", 1000: "1 kB", 1_234_567: "1.23 MB", 999_600_000: "1 GB"}
        counts |= {2 * 10**9: "2 GB", 5 * PETABYTE: "5000 TB"}
        self.assertEqual(counts, {count: format_bytes(count) for count in counts})
        self.assertEqual(("1 URL", "0 URLs"), (format_count(1, "URL"), format_count(0, "URL")))

    def test_filesystem(self) -> None:
        """A folder belongs to the latest mount on the nearest mount point above it."""
        table = Path(self.mktemp())
        table.write_text(
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
            "23 22 0:20 / /srv rw - nfs4 nas:/ rw\n"
            "24 23 0:21 / /srv/a\\040b rw shared:1 - xfs /dev/sdb rw\n"
            "25 23 0:22 / /srv rw - tmpfs tmpfs rw\n"
        )
        kinds = {"/srv/a b/c": "xfs", "/srv/x": "tmpfs", "/srvx": "ext4", "/": "ext4"}
        self.assertEqual(kinds, {path: filesystem_of(path, table) for path in kinds})
        table.unlink()
        self.assertEqual("filesystem unknown", filesystem_of("/", table))
