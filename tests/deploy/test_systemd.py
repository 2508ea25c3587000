"""The units of systemd and the file of settings."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from audioproxy import service, tap
from audioproxy.config import VARIABLES, Config, FileStore, load
from tests.support.balancer import installed, shipped
from tests.support.http import KEY, SALT
from tests.support.service import PROJECT

FOLDER = PROJECT / "deploy/systemd"

#: Other names for what is there already.
ALIASES = {"AWS_DEFAULT_REGION"}

#: What is read by others than `audioproxy.config`.
OTHERS = {"SSL_CERT_FILE"}


def unit(name: str) -> dict[str, list[str]]:
    """Return the settings of a unit, each with all that it is set to."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / name).read_text().splitlines():
        if line and line[0] not in "#[":
            setting, _, value = line.partition("=")
            found.setdefault(setting, []).append(value)
    return found


def environment(text: str) -> dict[str, str]:
    """Return what systemd reads in a file of settings that quotes nothing."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


class UnitTests(SynchronousTestCase):
    """The service and its socket"""

    def setUp(self) -> None:
        """Put the units where the program that they start exists."""
        self.folder = Path(self.mktemp())
        self.folder.mkdir()
        command = "ExecStart=/opt/audioproxy/bin/twistd --nodaemon --pidfile= audioproxy"
        text = shipped("systemd/audioproxy.service", {command: "ExecStart=/bin/sh"})
        (self.folder / "audioproxy.service").write_text(text)
        (self.folder / "audioproxy.socket").write_text(shipped("systemd/audioproxy.socket", {}))

    def analyze(self, *words: str) -> tuple[int, str]:
        """Return the status of systemd-analyze, and all that it says."""
        command = [installed("systemd-analyze"), *words]
        ended = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=30
        )
        return ended.returncode, ended.stdout + ended.stderr

    def test_verified(self) -> None:
        """systemd finds nothing to complain about: every setting is known and well spelled."""
        words = ("verify", "--man=no", "--recursive-errors=no")
        units = ("./audioproxy.service", "./audioproxy.socket")
        self.assertEqual((0, ""), self.analyze(*words, *units))

    def test_store_elsewhere(self) -> None:
        """What the unit says for a store elsewhere has a user who lasts, and can be loaded.

        What is stored would belong to nobody after a stop otherwise.
        """
        text = (self.folder / "audioproxy.service").read_text()
        for setting in ("User=audioproxy", "ReadWritePaths=/srv/variants"):
            self.assertIn(f"\n#{setting}\n", text)
            text = text.replace(f"\n#{setting}\n", f"\n{setting}\n")
        (self.folder / "audioproxy.service").write_text(text)
        words = ("verify", "--man=no", "--recursive-errors=no", "./audioproxy.service")
        self.assertEqual((0, ""), self.analyze(*words))

    def test_exposure(self) -> None:
        """systemd's own judgement of what code in the service could reach is low: 2 of 10.

        Where it is the systemd that the unit names, it is the number that the unit names, too.
        """
        words = ("security", "--no-pager", "--offline=yes", "--threshold=20")
        status, said = self.analyze(*words, "./audioproxy.service")
        self.assertEqual(0, status, said)
        found = re.search(r"Overall exposure level for audioproxy.service: ([012]\.\d) ", said)
        assert found is not None, said
        told = re.search(
            r"of systemd (\d+) gives this an exposure of (\d\.\d) of 10",
            (FOLDER / "audioproxy.service").read_text(),
        )
        assert told is not None
        if self.analyze("--version")[1].startswith(f"systemd {told[1]} "):
            self.assertEqual(told[2], found[1])

    def test_stop_outlasts_the_drain(self) -> None:
        """Renders have their time to end, and children and the store theirs (D39)."""
        (seconds,) = unit("audioproxy.service")["TimeoutStopSec"]
        self.assertGreaterEqual(int(seconds), service._DRAIN + 10)
        self.assertEqual(["mixed"], unit("audioproxy.service")["KillMode"])

    def test_descriptors(self) -> None:
        """The service may have as many as it asks for."""
        self.assertEqual([str(tap._DESCRIPTORS)], unit("audioproxy.service")["LimitNOFILE"])

    def test_port(self) -> None:
        """With the socket, the service is where it is without."""
        self.assertEqual(
            [str(Config(allow_insecure=True).port)], unit("audioproxy.socket")["ListenStream"]
        )


class SettingsTests(SynchronousTestCase):
    """`audioproxy.env`"""

    def setUp(self) -> None:
        """Read it, and put a store that exists here in the place of the unit's."""
        self.store = Path(self.mktemp()).resolve()
        self.store.mkdir()
        (directory,) = unit("audioproxy.service")["StateDirectory"]
        store = f"AP_VARIANT_STORE=file:///var/lib/{directory}"
        changes = {store: f"AP_VARIANT_STORE=file://{self.store}"}
        changes |= {"AP_KEY=": f"AP_KEY={KEY.hex()}", "AP_SALT=": f"AP_SALT={SALT.hex()}"}
        self.text = shipped("systemd/audioproxy.env", changes)

    def test_complete(self) -> None:
        """Every variable is there, once, and no other."""
        named = re.findall(r"^#?([A-Z0-9_]+)=", self.text, re.MULTILINE)
        self.assertEqual(sorted({*VARIABLES, *OTHERS} - ALIASES), sorted(named))

    def test_filled_in(self) -> None:
        """With a key and a salt it works; nothing else has to be set."""
        config, warnings = load(environment(self.text))
        self.assertEqual((), warnings)
        wanted = Config(
            key=KEY, salt=SALT, variant_store=FileStore(str(self.store)), serve_mode="proxy"
        )
        self.assertEqual(wanted, config)

    def test_defaults(self) -> None:
        """What is commented out is the default: it changes nothing to take the # away."""
        everything = environment(re.sub(r"^#(?=[A-Z])", "", self.text, flags=re.MULTILINE))
        # A list of sources that is set and empty is refused (D49).
        settings = everything | {"AP_SOURCE_ALLOWLIST": "*"}
        config, warnings = load(environment(self.text))
        self.assertEqual((replace(config, source_allowlist=("*",)), warnings), load(settings))
        # A line of prose is not a setting.
        self.assertEqual(sorted({*VARIABLES, *OTHERS} - ALIASES), sorted(everything))

    def test_lines_of_systemd(self) -> None:
        """systemd reads it as it is meant: no blanks, no quotes, no comment behind a value."""
        for line in self.text.splitlines():
            self.assertRegex(line, r"\A(|#|# .*|#?[A-Z0-9_]+=[^\s\"'\\#]*)\Z")
