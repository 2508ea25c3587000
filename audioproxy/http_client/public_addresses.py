"""Connections to public addresses alone (AP_SOURCE_DENY_PRIVATE)."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.interfaces import (
    IAddress,
    IProtocol,
    IProtocolFactory,
    IResolutionReceiver,
    IStreamClientEndpoint,
)
from zope.interface import implementer

from audioproxy.http_client.errors import PrivateAddress

# What IANA has assigned to hosts of the Internet (RFC 4291, 2.4), and in it: IETF protocols with
# Teredo, documentation, and 6to4, whose addresses contain one of IPv4. Mapped addresses, and all
# others that contain one of IPv4, are outside of it.
_UNICAST = ipaddress.IPv6Network("2000::/3")
_RESERVED = tuple(
    map(ipaddress.ip_network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
)
# A network without IPv4 reaches all hosts of IPv4 there (RFC 6052): the last 32 bits decide.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# IETF protocols with metadata servers of clouds, and relays of 6to4, which Python counts as global.
_RESERVED_IPV4 = tuple(map(ipaddress.IPv4Network, ("192.0.0.0/24", "192.88.99.0/24")))


def is_public(text: str) -> bool:
    """Return whether an address is one of the Internet; text that is no address is not.

    Nor are private, shared (RFC 6598), loopback, link-local, multicast and reserved addresses.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address in _NAT64:
        address = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if isinstance(address, ipaddress.IPv6Address):
        return address in _UNICAST and not any(address in network for network in _RESERVED)
    is_reserved = address.is_multicast or any(address in network for network in _RESERVED_IPV4)
    return address.is_global and not is_reserved


def _alternate(addresses: list[Any]) -> list[Any]:
    """Return addresses in an order that alternates IPv4 and IPv6 (RFC 8305, 4).

    The first remains. So a family that does not work here costs one timeout before the other.
    """
    first = [address for address in addresses if type(address) is type(addresses[0])]
    others = [address for address in addresses if type(address) is not type(addresses[0])]
    pairs = zip_longest(first, others)
    return [address for address in chain.from_iterable(pairs) if address is not None]


@implementer(IStreamClientEndpoint)
@dataclass(frozen=True, slots=True)
class PublicEndpoint:
    """Endpoint that looks up a name once for a connection, and tries its public addresses in turn.

    No other look-up follows, so an answer cannot change between the check and the connection.

    :ivar timeout: seconds for each address.
    """

    reactor: Any
    host: str
    port: int
    timeout: float

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: IProtocolFactory) -> IProtocol:
        receiver = _Receiver()
        resolver = self.reactor.nameResolver
        resolver.resolveHostName(receiver, self.host, portNumber=self.port)
        found = await receiver.complete
        if not found:
            raise DNSLookupError(f"no address of {self.host} was found")
        public = _alternate([address for address in found if is_public(address.host)])
        for number, address in enumerate(public, 1):
            kind = TCP6ClientEndpoint if ":" in address.host else TCP4ClientEndpoint
            endpoint = kind(self.reactor, address.host, self.port, self.timeout)
            try:
                return await endpoint.connect(factory)
            except ConnectError:
                if number == len(public):
                    raise
        raise PrivateAddress("no address of it is public")


@implementer(IResolutionReceiver)
class _Receiver:
    def __init__(self) -> None:
        self.complete: Deferred[list[Any]] = Deferred()
        self._found: list[IAddress] = []

    def resolutionBegan(self, resolutionInProgress: object) -> None:
        pass

    def addressResolved(self, address: IAddress) -> None:
        self._found.append(address)

    def resolutionComplete(self) -> None:
        self.complete.callback(self._found)
