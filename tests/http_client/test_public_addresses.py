"""A client that connects to public addresses alone (AP_SOURCE_DENY_PRIVATE, D59)."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.ssl import platformTrust
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.http_client.client import HttpClient
from audioproxy.http_client.errors import PrivateAddress, TransportError
from audioproxy.http_client.public_addresses import is_public
from tests.support.wire import ClientCase, reply

PUBLIC = "93.184.215.14 2606:4700::1111 1.1.1.1 172.32.0.1 100.128.0.1 64:ff9b::1.1.1.1"
#: Private, loopback, link-local, shared, multicast, unspecified, reserved and documentation; IPv4
#: inside IPv6 (mapped, compatible, NAT64, 6to4, Teredo); and what is no address.
PRIVATE = """
    10.0.0.1 172.16.0.1 192.168.1.1 127.0.0.1 127.255.255.254 169.254.169.254 100.64.0.1
    100.100.100.200 224.0.0.1 239.1.2.3 0.0.0.0 0.1.2.3 255.255.255.255 240.0.0.1 192.0.0.192
    192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1 192.88.99.1
    ::1 :: fe80::1 fe80::1%eth0 fec0::1 fc00::1 fd00:ec2::254 ff02::1 ff0e::1 2001:db8::1 3fff::1
    ::ffff:10.0.0.1 ::ffff:1.1.1.1 ::127.0.0.1 64:ff9b::10.0.0.1 64:ff9b::127.0.0.1 64:ff9b:1::1
    2002:a00:1::1 2002:101:101::1 2001::1 2001:20::1 100::1 5f00::1 4000::1
    localhost 1 0x7f.1
""".split()


class AddressTests(SynchronousTestCase):
    """`is_public`"""

    def test_addresses(self) -> None:
        """Only addresses of hosts of the Internet are public."""
        self.assertEqual([], [each for each in PUBLIC.split() if not is_public(each)])
        self.assertEqual([], [each for each in PRIVATE if is_public(each)])


class NameResolver:
    """Resolver whose names have the addresses that a test sets, one list for each look-up."""

    def __init__(self, *answers: str) -> None:
        self.answers = [answer.split() for answer in answers]

    def resolveHostName(self, receiver: Any, name: str, portNumber: int) -> None:
        for address in self.answers.pop(0):
            kind = IPv6Address if ":" in address else IPv4Address
            receiver.addressResolved(kind("TCP", address, portNumber))
        receiver.resolutionComplete()


class PublicClientTests(ClientCase):
    """`HttpClient` with ``public_only``"""

    def setUp(self) -> None:
        super().setUp()
        self.client = HttpClient(self.network, platformTrust(), public_only=True)

    def resolve(self, *answers: str) -> None:
        """Set the answers to the next look-ups."""
        self.network.nameResolver = NameResolver(*answers)  # type: ignore[assignment]

    def test_connected(self) -> None:
        """A name is looked up once, and only its public addresses are connected to, in turn.

        A second answer, with a private address, is never asked for. So are names treated that IDNA
        rejects.
        """
        for host in ("two.test", "under_score.test"):
            self.network.destinations.clear()
            self.resolve("10.0.0.1 1.1.1.1 ::1 2606:4700::1111", "127.0.0.1")
            self.network.refusal = ConnectionRefusedError()
            self.exactly(self.fetch(url=f"http://{host}/a"), TransportError)
            tried = [("1.1.1.1", 80), ("2606:4700::1111", 80)]
            self.assertEqual(tried, self.network.destinations)
            self.resolve("10.0.0.1 1.1.1.1", "127.0.0.1")
            self.network.refusal = None
            self.network.scripts.append(reply(200))
            self.successResultOf(self.fetch(url=f"http://{host}/a")).discard()
            self.assertEqual(("1.1.1.1", 80), self.network.destinations[-1])

    def test_families(self) -> None:
        """IPv6 and IPv4 alternate, so three addresses of a broken family leave time for another."""
        self.resolve("2606:4700::1 2606:4700::2 2606:4700::3 1.1.1.1 1.0.0.1")
        self.network.refusal = ConnectionRefusedError()
        self.exactly(self.fetch(), TransportError)
        tried = [host for host, _ in self.network.destinations]
        expected = ["2606:4700::1", "1.1.1.1", "2606:4700::2", "1.0.0.1", "2606:4700::3"]
        self.assertEqual(expected, tried)

    def test_refused(self) -> None:
        """A host with private addresses alone is a PrivateAddress; nothing is connected to it.

        A name without addresses is unreachable.
        """
        for address in ("127.0.0.1", "10.0.0.1 ::1", "::ffff:1.1.1.1"):
            self.resolve(address)
            self.exactly(self.fetch(), PrivateAddress)
        self.resolve("")
        self.exactly(self.fetch(), TransportError)
        self.assertEqual([], self.network.destinations)
