"""Socket activation by systemd, and notifications to it."""

from __future__ import annotations

import os
import socket

from twisted.trial.unittest import SynchronousTestCase

from audioproxy import tap
from audioproxy.config import ConfigError
from tests.support.processes import open_descriptors, opened_since


class SocketTests(SynchronousTestCase):
    """Listening socket that systemd passes to the service"""

    def find(self, given: socket.socket | None = None, **variables: str) -> socket.socket | None:
        """Find the socket in an environment with systemd's variables and ``variables``.

        The descriptor of ``given`` replaces the usual number 3, which is in use here.
        """
        first = 3 if given is None else given.detach()
        environ = {"LISTEN_PID": "7", "LISTEN_FDS": "1", **variables}
        clients, metrics = tap.find_sockets(environ, 7, first)
        self.assertIsNone(metrics)
        return clients

    def refusal(self, **variables: str) -> str:
        """Return the only problem in the error that refuses the sockets."""
        (problem,) = self.assertRaises(ConfigError, self.find, **variables).problems
        return str(problem)

    def test_found(self) -> None:
        """A listening TCP socket of IPv4 or IPv6 is used, and child processes do not inherit it."""
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
                continue
            given = socket.create_server((address, 0), family=family)
            given.set_inheritable(True)
            port = given.getsockname()[1]
            found = self.find(given)
            assert found is not None
            with found:
                self.assertEqual((family, port), (found.family, found.getsockname()[1]))
                self.assertFalse(found.get_inheritable())

    def test_nothing(self) -> None:
        """There is no socket without the variables, with a count of 0, or for another process."""
        self.assertEqual((None, None), tap.find_sockets({}, 7))
        for count in ("0", ""):
            self.assertIsNone(self.find(LISTEN_FDS=count))
        for pid in ("8", "", "70"):
            self.assertIsNone(self.find(LISTEN_PID=pid, LISTEN_FDS="many"))

    def test_metrics(self) -> None:
        """A socket with the name ``metrics`` is for the metrics, alone or in either order."""
        for names in ("metrics", "metrics:audioproxy.socket", "audioproxy.socket:metrics"):
            # Descriptors in a row, as systemd passes them. No object here owns one of these.
            first = 1 + max(map(int, os.listdir("/proc/self/fd")))
            ports = {}
            for number, name in enumerate(names.split(":"), first):
                with socket.create_server(("127.0.0.1", 0)) as given:
                    os.dup2(given.fileno(), number)
                    ports[name] = given.getsockname()[1]
            environ = {"LISTEN_PID": "7", "LISTEN_FDS": str(len(ports)), "LISTEN_FDNAMES": names}
            clients, metrics = tap.find_sockets(environ, 7, first)
            assert metrics is not None
            with metrics:
                self.assertEqual(ports["metrics"], metrics.getsockname()[1])
            self.assertEqual("audioproxy.socket" in ports, clients is not None)
            if clients is not None:
                with clients:
                    self.assertEqual(ports["audioproxy.socket"], clients.getsockname()[1])

    def test_number(self) -> None:
        """Too many sockets are refused, and the message says how to correct it."""
        for count in ("many", "-1", "1.0"):
            line = self.refusal(LISTEN_FDS=count)
            self.assertTrue(line.startswith("LISTEN_FDS: not a number; "), line)
        for count, names in (
            *(("2", ""), ("2", "a:b"), ("2", "metrics:metrics"), ("3", "metrics:a:b")),
            ("999999999999", "metrics"),
        ):
            line = self.refusal(LISTEN_FDS=count, LISTEN_FDNAMES=names)
            self.assertTrue(line.startswith(f"LISTEN_FDS: {count} sockets; one is"), line)
            self.assertIn("one ListenStream=", line)

    def test_not_listening(self) -> None:
        """A descriptor that is not a listening TCP socket is refused with advice, and closed."""
        before = open_descriptors()
        one, other = socket.socketpair()
        wrong = [one, other, socket.socket(), socket.socket(type=socket.SOCK_DGRAM)]
        wrong.append(socket.create_server(b"\0audioproxy-%d" % os.getpid(), family=socket.AF_UNIX))
        for given in wrong:
            self.assert_unusable("a listening TCP socket; ", given.detach())
        self.assertEqual(set(), opened_since(before))
        reading, writing = os.pipe()
        os.close(writing)
        self.assert_unusable("a socket ", reading)
        # A descriptor that is closed.
        os.close(reading)
        self.assert_unusable("a socket ", reading)

    def assert_unusable(self, what: str, descriptor: int) -> None:
        """Assert that a descriptor is refused for what it is not, with advice."""
        environ = {"LISTEN_PID": "7", "LISTEN_FDS": "1"}
        error = self.assertRaises(ConfigError, tap.find_sockets, environ, 7, descriptor)
        (problem,) = error.problems
        self.assertRegex(str(problem), rf"\ALISTEN_FDS: descriptor \d+ is not {what}")
        self.assertIn("ListenStream=", str(problem))


class NotifierTests(SynchronousTestCase):
    """Notifications to systemd"""

    def test_sent(self) -> None:
        """A state is one datagram to a socket in the file system, or to an abstract one (``@``)."""
        name = f"audioproxy-notify-{os.getpid()}"
        # A relative path, because the path of a socket must be short.
        for address, variable in (("notify", "notify"), (f"\0{name}", f"@{name}")):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
                listener.bind(address)
                listener.setblocking(False)
                tap.find_notifier({"NOTIFY_SOCKET": variable})("READY=1")
                self.assertEqual(b"READY=1", listener.recv(100), variable)

    def test_nobody(self) -> None:
        """Without a listening socket, a notification has no effect and raises no error."""
        for environ in ({}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/nowhere/at/all"}):
            tap.find_notifier(environ)("READY=1")
