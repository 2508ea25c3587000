"""The rsyslog configuration: lines of a running service become JSON."""

from __future__ import annotations

import json
import shutil
import socket
import stat
from typing import Any

from tests.deploy.balancer import installed
from tests.support.folders import short_folder
from tests.support.service import PROJECT, ServiceCase, fetch, short_flac, signed, until, until_hit

CONFIGURATION = PROJECT / "deploy/rsyslog/audioproxy.conf"

#: In place of Debian's /etc/rsyslog.conf.
MAIN = """\
module(load="imuxsock" SysSock.Use="off")
input(type="imuxsock" Socket="{folder}/socket")
include(file="{folder}/audioproxy.conf")
*.* action(type="omfile" file="{folder}/others")
"""


class RsyslogTests(ServiceCase):
    """The log of a service, which rsyslogd receives as from systemd's journal"""

    def start_rsyslogd(self) -> socket.socket:
        """Start rsyslogd, and return a socket to its own."""
        folder = self.folder = short_folder(self)
        text = CONFIGURATION.read_text()
        (folder / "audioproxy.conf").write_text(text.replace("/var/log/", f"{folder}/"))
        (folder / "main.conf").write_text(MAIN.format(folder=folder))
        # A copy: AppArmor may forbid this folder to the program in its own place.
        program = shutil.copy(installed("rsyslogd", "AUDIOPROXY_UTILITIES"), folder / "rsyslogd")
        self.rsyslogd = self.spawn(
            *(str(program), "-n"), *("-f", f"{folder}/main.conf", "-i", f"{folder}/pid")
        )
        client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(client.close)
        return client

    async def convert(self, lines: list[str]) -> list[dict[str, Any]]:
        """Return the objects of lines, without what rsyslog itself adds to them."""
        client = self.start_rsyslogd()
        path = f"{self.folder}/socket"
        await until(lambda: self.rsyslogd.code or not client.connect_ex(path), "rsyslogd")
        self.assertIsNone(self.rsyslogd.code, self.rsyslogd.stderr)
        for name, line in (*(("audioproxy", line) for line in lines), ("sshd", "another program")):
            client.sendall(f"<30>Nov 26 18:00:00 {name}[1]: {line}".encode())
        written, others = self.folder / "audioproxy.json", self.folder / "others"
        await until(lambda: others.exists() and "another" in others.read_text(), "the last line")
        self.assertNotIn("request_id", others.read_text())
        # As the journal: others than root and its group cannot read it.
        self.assertEqual(0o640, stat.S_IMODE(written.stat().st_mode))
        objects = [json.loads(line) for line in written.read_text().splitlines()]
        for each in objects:
            self.assertRegex(each.pop("received"), r"\A\d{4}-\d\d-\d\dT")
            self.assertTrue(each.pop("host"))
        return objects

    async def test_lines(self) -> None:
        """Every field of every line of the service is in an object, with its type (Request log)."""
        installed("rsyslogd", "AUDIOPROXY_UTILITIES")
        name = 'a 100%"\\é.flac'
        self.add(name, short_flac())
        quoted = "a%20100%25%22%5C%C3%A9.flac"
        node = self.twistd(AP_LOG_LEVEL="debug")
        port = await node.port()
        path = signed(f"/f:mp3/br:96/plain/local://{quoted}")
        await fetch(port, path, x_request_id=b'"mine"\\')
        await until_hit(port, path)
        for target in (path + b"x", signed(f"/info/plain/local://{quoted}"), b"/health"):
            await fetch(port, target)
        node.signal(15)
        await node.end()
        # A line of a traceback, and one that no request belongs to.
        lines = [*node.stdout.splitlines(), '    File "x.py", line 1', "Z [info] no time"]
        objects = await self.convert(lines)
        self.assertEqual(len(lines), len(objects))
        for line, each in zip(lines, objects, strict=True):
            self.assertEqual(line, compose(each), each)
        requests = [each for each in objects if "endpoint" in each]
        self.assertLessEqual({"render", "info", "health"}, {each["endpoint"] for each in requests})
        self.assertIn('"mine"\\', [each.get("request_id") for each in requests])
        self.assertLessEqual({200, 401}, {each["status"] for each in requests})
        self.assertLessEqual({"MISS", "HIT"}, {each.get("cache") for each in requests})
        (refused,) = (each for each in requests if each["status"] == 401)
        self.assertEqual("invalid_signature", refused["error"])
        self.assertLessEqual({"bytes", "milliseconds"}, refused.keys())


def compose(each: dict[str, Any]) -> str:
    """Return the line that an object was made of (Request log)."""
    if "time" not in each:
        return str(each["message"])
    words = [each["time"]]
    if "request_id" in each:
        words.append(f"request_id={each['request_id']}")
    words.append(f"[{each['level']}]")
    if "endpoint" not in each:
        return " ".join([*words, each["message"]])
    words += [each["endpoint"], f"{each['status']:d}"]
    for key, prefix in (
        ("error", ""),
        ("options", "opts="),
        ("source", "src="),
        ("cache", "cache="),
    ):
        if key in each:
            words.append(f"{prefix}{each[key]}")
    return " ".join([*words, f"{each['bytes']:d} bytes in {each['milliseconds']:d}ms"])
