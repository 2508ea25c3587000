"""The systemd units and the settings file."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from audioproxy import tap
from audioproxy.cli.main import build_parser
from audioproxy.config import VARIABLES, Config, FileStore, load
from tests.deploy.balancer import installed, shipped
from tests.support.http import KEY, SALT
from tests.support.programs import write_script
from tests.support.runs import run_program
from tests.support.service import PROJECT

FOLDER = PROJECT / "deploy/systemd"

#: Variables that the file has under another name: `AWS_REGION`.
ALIASES = {"AWS_DEFAULT_REGION"}

#: Variables that modules other than `audioproxy.config` read.
OTHERS = {"SSL_CERT_FILE", "TMPDIR"}


def unit(name: str) -> dict[str, list[str]]:
    """Return the settings of a unit, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / name).read_text().splitlines():
        if line and line[0] not in "#[":
            setting, _, value = line.partition("=")
            found.setdefault(setting, []).append(value)
    return found


def environment(text: str) -> dict[str, str]:
    """Return the variables that systemd reads from a settings file without quotes."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


class UnitTests(SynchronousTestCase):
    """The service and its socket"""

    def setUp(self) -> None:
        """Copy the units, with a program that exists here in ExecStart."""
        self.folder = Path(self.mktemp())
        self.folder.mkdir()
        command = "ExecStart=/opt/audioproxy/bin/twistd --nodaemon --pidfile= audioproxy"
        text = shipped("systemd/audioproxy.service", {command: "ExecStart=/bin/sh"})
        (self.folder / "audioproxy.service").write_text(text)
        for name in ("audioproxy.socket", "audioproxy-metrics.socket", "audioproxy-idle@.service"):
            shutil.copy(FOLDER / name, self.folder)

    def analyze(self, *words: str) -> tuple[int, str]:
        """Return the exit status of systemd-analyze, and its output."""
        ended = run_program(installed("systemd-analyze"), *words, cwd=self.folder)
        return ended.status, ended.out + ended.err

    def test_verified(self) -> None:
        """systemd accepts the units: every setting is known and well formed."""
        words = ("verify", "--man=no", "--recursive-errors=no")
        units = ("./audioproxy.service", "./audioproxy.socket")
        self.assertEqual((0, ""), self.analyze(*words, *units))

    def test_two_instances(self) -> None:
        """systemd accepts the units of two instances that share their sockets and their store."""
        drop_in = self.folder / "audioproxy@.service.d/handover.conf"
        drop_in.parent.mkdir()
        shutil.copy(FOLDER / "handover.conf", drop_in)
        os.rename(self.folder / "audioproxy.service", self.folder / "audioproxy@.service")
        names = ("audioproxy.socket", "audioproxy-metrics.socket")
        units = ("./audioproxy@blue.service", "./audioproxy@green.service", *names)
        self.assertEqual((0, ""), self.analyze("verify", "--man=no", *units))
        units_of_sockets = *unit("audioproxy.service")["Sockets"], *unit("handover.conf")["Sockets"]
        self.assertEqual(names, units_of_sockets)
        # The instance that runs would block in accept(2) while the other one starts.
        self.assertEqual(["yes"], unit("audioproxy.service")["NonBlocking"])
        for name in names:
            # A client starts no service that was stopped, or that refuses its settings.
            idle = f"audioproxy-idle@{Path(name).stem}.service"
            self.assertEqual([idle], unit(name)["Service"])
        self.assertEqual([tap.METRICS_NAME], unit(names[1])["FileDescriptorName"])
        config = load({"AP_KEY": "0" * 64, "AP_SALT": "00", **environment(self.drop_in())})[0]
        self.assertGreaterEqual(config.drain_timeout, config.render_timeout)
        (stop,) = unit("handover.conf")["TimeoutStopSec"]
        self.assertGreaterEqual(int(stop), config.drain_timeout + 10)

    def drop_in(self) -> str:
        """Return the variables that the drop-in of two instances sets, as a settings file."""
        return "\n".join(unit("handover.conf")["Environment"])

    def test_check_of_variants(self) -> None:
        """The weekly check has the rights of the service and its store, and a valid command."""
        (command,) = unit("audioproxy-verify.service")["ExecStart"]
        program, *words = command.split()
        self.assertEqual("/opt/audioproxy/bin/audioproxy", program)
        self.assertTrue(build_parser(words[:1]).parse_args(words).delete)
        changes = {f"ExecStart={command}": "ExecStart=/bin/sh"}
        text = shipped("systemd/audioproxy-verify.service", changes)
        (self.folder / "audioproxy-verify.service").write_text(text)
        shutil.copy(FOLDER / "audioproxy-verify.timer", self.folder)
        words = ["verify", "--man=no", "--recursive-errors=no", "./audioproxy-verify.timer"]
        self.assertEqual((0, ""), self.analyze(*words, "./audioproxy-verify.service"))
        service, check = unit("audioproxy.service"), unit("audioproxy-verify.service")
        settings = list(service)
        rights = settings[settings.index("NoNewPrivileges") : settings.index("WantedBy")]
        shared = (*rights, "User", "DynamicUser", "UMask", "StateDirectory", "EnvironmentFile")
        self.assertEqual({each: service[each] for each in shared}, {e: check[e] for e in shared})

    def test_numbers(self) -> None:
        """The units agree with the service about its port, descriptors, exit status and drain.

        A stop may take 10 seconds longer than the drain, for children and the store, and SIGTERM is
        for the service alone (D39). Any number of restarts is allowed, except with wrong settings.
        """
        service, defaults = unit("audioproxy.service"), Config(allow_insecure=True)
        self.assertEqual([str(defaults.port)], unit("audioproxy.socket")["ListenStream"])
        for setting, value in (
            ("LimitNOFILE", tap.MAX_DESCRIPTORS),
            ("RestartPreventExitStatus", tap.WRONG_SETTINGS),
            ("Restart", "on-failure"),
            ("StartLimitIntervalSec", 0),
            ("KillMode", "mixed"),
        ):
            self.assertEqual([str(value)], service[setting])
        (seconds,) = service["TimeoutStopSec"]
        self.assertGreaterEqual(int(seconds), defaults.drain_timeout + 10)

    def test_store_elsewhere(self) -> None:
        """The unit is valid with its commented-out setting for a store in another folder.

        A permanent user of the unit's name replaces the dynamic one. With a dynamic user, stored
        variants would lose their owner after a stop.
        """
        text = (self.folder / "audioproxy.service").read_text()
        setting = "\n{}ReadWritePaths=/srv/variants\n"
        self.assertIn(setting.format("#"), text)
        text = text.replace(setting.format("#"), setting.format(""))
        self.assertEqual(["audioproxy"], unit("audioproxy.service")["User"])
        (self.folder / "audioproxy.service").write_text(text)
        words = ("verify", "--man=no", "--recursive-errors=no", "./audioproxy.service")
        self.assertEqual((0, ""), self.analyze(*words))

    def test_exposure(self) -> None:
        """systemd rates the exposure of the service as at most 2 of 10.

        With the systemd version that the unit names, the rating is exactly the number in the unit.
        """
        words = ("security", "--no-pager", "--offline=yes", "--threshold=20")
        status, output = self.analyze(*words, "./audioproxy.service")
        self.assertEqual(0, status, output)
        found = re.search(r"Overall exposure level for audioproxy.service: ([012]\.\d) ", output)
        assert found is not None, output
        documented = re.search(
            r"of systemd (\d+) gives this an exposure of (\d\.\d) of 10",
            (FOLDER / "audioproxy.service").read_text(),
        )
        assert documented is not None
        if self.analyze("--version")[1].startswith(f"systemd {documented[1]} "):
            self.assertEqual(documented[2], found[1])


#: A systemctl that runs no unit. The files in its folder are units with their states, and `broken`
#: makes every start fail.
SYSTEMCTL = """\
#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> calls
for unit; do :; done
case "$*" in
"--quiet is-active "*) grep -qs '^active' "$unit" ;;
is-active*) cat "$unit" 2>/dev/null || echo inactive ;;
start*) [ ! -e broken ] && echo active > "$unit" ;;
*stop*) rm -f "$unit" ;;
esac
"""


class ReplacementTests(SynchronousTestCase):
    """The program that replaces one instance by the other"""

    def replace(self, *active: str, **states: str) -> tuple[int, str, list[str]]:
        """Run the program; return its exit status, its errors, and what it had systemd do.

        :param active: units that are active.
        :param states: other states of instances.
        """
        folder = Path(self.mktemp()).absolute()
        write_script(folder / "systemctl", SYSTEMCTL)
        for name in active:
            (folder / name).write_text("active\n")
        for name, state in states.items():
            (folder / f"audioproxy@{name}").write_text(f"{state}\n")
        path = f"{folder}:{os.environ['PATH']}"
        ended = run_program(FOLDER / "audioproxy-replace", environment={"PATH": path})
        calls = (folder / "calls").read_text().splitlines()
        return ended.status, ended.err, [call for call in calls if "is-active" not in call]

    def test_replaced(self) -> None:
        """The new instance is started first; the old one is stopped last."""
        for old, new in (("blue", "green"), ("green", "blue")):
            expected = [
                f"start audioproxy@{new}",
                f"--quiet enable audioproxy@{new}",
                f"--quiet disable audioproxy@{old}",
                f"--quiet stop audioproxy@{old}",
            ]
            self.assertEqual((0, "", expected), self.replace(f"audioproxy@{old}"))

    def test_refused(self) -> None:
        """If the new instance does not start, the old one is left alone."""
        status, errors, calls = self.replace("audioproxy@blue", "broken")
        self.assertEqual(["start audioproxy@green", "--quiet stop audioproxy@green"], calls)
        self.assertEqual(1, status)
        words = r"audioproxy@green did not start: .*\naudioproxy@blue runs on\. Its next start will"
        self.assertRegex(errors, words)
        status, errors, _ = self.replace("broken")
        self.assertEqual(1, status)
        self.assertNotIn("runs on", errors)

    def test_both(self) -> None:
        """If both instances run, neither is touched."""
        status, errors, calls = self.replace("audioproxy@blue", "audioproxy@green")
        self.assertEqual((1, []), (status, calls))
        self.assertIn("both run", errors)

    def test_under_way(self) -> None:
        """An instance that still starts or ends is left alone; one that has failed starts again."""
        for state in ("activating", "deactivating"):
            status, errors, calls = self.replace("audioproxy@blue", green=state)
            self.assertEqual((1, []), (status, calls))
            self.assertIn("audioproxy@green still starts or ends", errors)
        self.assertEqual(0, self.replace("audioproxy@blue", green="failed")[0])


class SettingsTests(SynchronousTestCase):
    """`audioproxy.env`"""

    def setUp(self) -> None:
        """Read the file, with a key, a salt, and a store folder that exists here."""
        self.store = Path(self.mktemp()).resolve()
        self.store.mkdir()
        (directory,) = unit("audioproxy.service")["StateDirectory"]
        store = f"AP_VARIANT_STORE=file:///var/lib/{directory}"
        changes = {store: f"AP_VARIANT_STORE=file://{self.store}"}
        changes |= {"AP_KEY=": f"AP_KEY={KEY.hex()}", "AP_SALT=": f"AP_SALT={SALT.hex()}"}
        self.text = shipped("systemd/audioproxy.env", changes)

    def test_complete(self) -> None:
        """The file has every variable exactly once, and no other."""
        named = re.findall(r"^#?([A-Z0-9_]+)=", self.text, re.MULTILINE)
        self.assertEqual(sorted({*VARIABLES, *OTHERS} - ALIASES), sorted(named))

    def test_filled_in(self) -> None:
        """With a key and a salt the file is complete; other settings are optional."""
        config, warnings = load(environment(self.text))
        self.assertEqual((), warnings)
        wanted = Config(
            key=KEY,
            salt=SALT,
            variant_store=FileStore(str(self.store)),
            serve_mode="proxy",
            presign_ttl=21_600,
        )
        self.assertEqual(wanted, config)

    def test_temporary_folder(self) -> None:
        """`doctor --env-file` checks the unit's folder of scratch files, which is not changed."""
        folder = environment(self.text)["TMPDIR"]
        self.assertIn(f"TMPDIR={folder}", unit("audioproxy.service")["Environment"])

    def test_defaults(self) -> None:
        """Every commented-out value is the default: removing its # changes nothing."""
        everything = environment(re.sub(r"^#(?=[A-Z])", "", self.text, flags=re.MULTILINE))
        # An allowlist that is set and empty is refused (D49).
        settings = everything | {"AP_SOURCE_ALLOWLIST": "*"}
        config, warnings = load(environment(self.text))
        self.assertEqual((replace(config, source_allowlist=("*",)), warnings), load(settings))
        # No line of prose was taken for a commented-out setting.
        self.assertEqual(sorted({*VARIABLES, *OTHERS} - ALIASES), sorted(everything))

    def test_lines_of_systemd(self) -> None:
        """No value has blanks, quotes or trailing comments, so systemd reads it unchanged."""
        for line in self.text.splitlines():
            self.assertRegex(line, r"\A(|#|# .*|#?[A-Z0-9_]+=[^\s\"'\\#]*)\Z")
