"""The commands of docs/upgrading.md for a host, with a running service and two versions."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

from tests.support.service import (
    PROJECT,
    TWISTD,
    Process,
    ServiceCase,
    fetch,
    short_flac,
    signed,
    until_hit,
)
from tests.test_install_live import build_wheel
from tests.test_pages_live import SYSTEM_ROOT, commands

UPGRADE, ROLLBACK, *_ = (block for page, block in commands() if page == "docs/upgrading.md")
PATH = signed("/f:opus/plain/local://short.flac")

#: Programs in place of those that need root or the package index. The dependencies are those of
#: this test's environment. systemctl waits until the service is ready, as for Type=notify.
SUBSTITUTES = {
    "python3": f"""#!/bin/bash -e
        [ "$1 $2" = "-m venv" ] || exec {sys.executable} "$@"
        {sys.executable} -m venv --without-pip "$3"
        echo {sysconfig.get_path("purelib")} > "$(echo "$3"/lib/python*/site-packages)/others.pth"
        printf '#!%s\\n%s\\n' "$3/bin/python" '{TWISTD}' > "$3/bin/twistd"
        chmod +x "$3/bin/twistd"
        ln -s "$HOME/bin/pip" "$3/bin/pip"
    """,
    "pip": f"""#!/bin/bash -e
        [ "$1 $2" = "install --constraint" ] && [ -s "$3" ] && [ "$4" = . ]
        exec {sys.executable} -m pip --quiet --python "${{0%/*}}/python" \\
            install --no-index --no-deps --no-compile wheels/*.whl
    """,
    "systemctl": f"""#!{sys.executable}
import os, select, signal, socket, subprocess, sys
assert sys.argv[1:] == ["restart", "audioproxy"]
home = os.environ["HOME"]
if os.path.exists(home + "/pid"):
    pid = int(open(home + "/pid").read())
    ended = os.pidfd_open(pid)
    os.kill(pid, signal.SIGTERM)
    select.select([ended], [], [])
lines = open(home + "/etc/audioproxy/audioproxy.env").read().splitlines()
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
    notified.bind("")
    name = notified.getsockname().decode().replace(chr(0), "@")
    subprocess.Popen(
        [home + "/opt/audioproxy/bin/twistd", "--pidfile=" + home + "/pid", "audioproxy"],
        env=dict(line.split("=", 1) for line in lines) | {{"NOTIFY_SOCKET": name}},
        cwd=home,
    )
    while b"READY=1" not in notified.recv(4096):
        pass
""",
}


def change_version(wheel: Path, old: str, new: str, source: Path) -> None:
    """Create a checkout of another version, with its wheel: pip takes seconds to build one."""
    (source / "wheels").mkdir(parents=True)
    changed = source / "wheels" / wheel.name.replace(old, new)
    with ZipFile(wheel) as before, ZipFile(changed, "w") as after:
        for name in before.namelist():
            content = before.read(name)
            if name.endswith(
                (".dist-info/METADATA", ".dist-info/RECORD", "audioproxy/__init__.py")
            ):
                content = content.replace(old.encode(), new.encode())
            after.writestr(name.replace(old, new), content)
    with ZipFile(changed) as after:
        for name in ("audioproxy/__init__.py", "audioproxy/process/cell.c"):
            after.extract(name, source)


class UpgradeTests(ServiceCase):
    """An upgrade of a host, and a rollback."""

    def setUp(self) -> None:
        """Create the folders of a system, with settings and an older version."""
        super().setUp()
        self.home = self.root.parent
        for folder in ("bin", "etc/audioproxy", "opt/audioproxy-0.9"):
            (self.home / folder).mkdir(parents=True)
        (self.home / "opt/audioproxy").symlink_to("audioproxy-0.9")
        for name, program in SUBSTITUTES.items():
            (self.home / "bin" / name).write_text(program)
            (self.home / "bin" / name).chmod(0o755)
        self.port = self.reserve_port()
        settings = self.environment(AP_PORT=str(self.port), PYTHONPATH="", HOME="")
        file = self.home / "etc/audioproxy/audioproxy.env"
        file.touch(0o600)
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    async def run_block(self, block: str, path: Path) -> Process:
        """Run a block of the page as if it was pasted: each line, also after one that fails."""
        text = SYSTEM_ROOT.sub(f"{self.home}/", block.replace(":4000", f":{self.port}"))
        environ = {"HOME": str(self.home), "PATH": f"{self.home}/bin:{self.environment()['PATH']}"}
        process = self.spawn("/bin/bash", "-c", text, path=str(path), **environ)
        await process.end()
        return process

    async def version_after(self, block: str, path: Path) -> str:
        """Run a block of the page, and return the version that runs then."""
        process = await self.run_block(block, path)
        self.assertEqual(0, process.code, process.stdout + process.stderr)
        version: str = json.loads(process.stdout.splitlines()[-1])["version"]
        return version

    async def assert_refused(self, version: str, reason: str) -> None:
        """Assert that an upgrade fails, and that 1.0 runs on and is the version to be started."""
        process = await self.run_block(UPGRADE, self.home / version)
        self.assertNotEqual(0, process.code)
        self.assertIn(reason, process.stdout + process.stderr)
        self.assertEqual("1.0", json.loads((await fetch(self.port, b"/health")).body)["version"])
        for link, target in (("", "1.0"), ("-previous", "0.9")):
            folder = os.readlink(self.home / f"opt/audioproxy{link}")
            self.assertEqual(f"audioproxy-{target}", os.path.basename(folder))

    def stop(self) -> None:
        """Stop the service that the last block started."""
        with contextlib.suppress(FileNotFoundError):
            os.kill(int((self.home / "pid").read_text()), signal.SIGKILL)

    async def test_host(self) -> None:
        """The commands of docs/upgrading.md replace a version that runs, and return to it.

        The settings stay, and variants stay hits. A version that is installed already, or that
        refuses the settings, replaces nothing.
        """
        self.add("short.flac", short_flac())
        self.addCleanup(self.stop)
        change_version(build_wheel(self.home / "1.0", "1.0"), "1.0", "2.0", self.home / "2.0")
        for version in ("1.0", "2.0"):
            (self.home / version / "deploy").symlink_to(PROJECT / "deploy")
        self.assertEqual("1.0", await self.version_after(UPGRADE, self.home / "1.0"))
        self.assertEqual(200, (await fetch(self.port, PATH)).status)
        await until_hit(self.port, PATH)
        await self.assert_refused("1.0", "File exists")
        settings = self.home / "etc/audioproxy/audioproxy.env"
        right = settings.read_text()
        settings.write_text(right + "AP_QUEUE_SIZE=many\n")
        await self.assert_refused("2.0", "AP_QUEUE_SIZE")
        settings.write_text(right)
        shutil.rmtree(self.home / "opt/audioproxy-2.0")
        self.assertEqual("2.0", await self.version_after(UPGRADE, self.home / "2.0"))
        self.assertEqual(b"HIT", (await fetch(self.port, PATH))["x-audio-proxy"])
        self.assertEqual("1.0", await self.version_after(ROLLBACK, self.home))
        self.assertEqual(b"HIT", (await fetch(self.port, PATH))["x-audio-proxy"])
