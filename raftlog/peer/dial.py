"""TCP connections to other nodes, by addresses as text.

Every address of a name is dialled. The event loops' `create_connection` merges the errors of
several addresses. A refused connection (no process listens) must be distinguished from every other
failure.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any, Final

ADDRESSES_MAX: Final = 8
"""Most addresses of a name that are tried."""


def parse_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`. Raises ValueError."""
    host, colon, digits = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if bare == host and ":" in host:
        raise ValueError(f"{address!r} is not an address: write IPv6 as [host]:port")
    if (
        not colon
        or not bare
        or not bare.isascii()
        or not bare.isprintable()
        or any(character in " /?#@[]" for character in bare)
        or not digits.isascii()
        or not digits.isdigit()
        or len(digits) > 5
        or not 0 < int(digits) <= 65_535
    ):
        raise ValueError(f"{address!r} is not an address of the form host:port")
    return bare, int(digits)


def join_address(host: str, port: int) -> str:
    """Return `host:port`, the inverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_group(address: str) -> str:
    """Return the address as limits count it.

    IPv6 counts by its /64 network, because a client commonly owns a whole /64 and may use any
    address of it. IPv4 within IPv6 counts as IPv4.
    """
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(parsed) >> 64 << 64)}/64"


async def dial(host: str, port: int) -> socket.socket:
    """Return a connected socket, without delay of small writes. The caller bounds the time.

    Raises ConnectionRefusedError if every address of `host` refuses, else OSError.
    """
    failure: OSError | None = None
    for family, address in (await _resolve(host, port))[:ADDRESSES_MAX]:
        try:
            return await _connect(family, address)
        except OSError as error:
            if failure is None or isinstance(failure, ConnectionRefusedError):
                # One refusal proves nothing while another address may still accept.
                failure = error
    assert failure is not None
    raise failure


async def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    try:
        # Numeric addresses need no resolver, whose threads may all wait for a name server.
        version = ipaddress.ip_address(host).version if "%" not in host else 0
    except ValueError:
        version = 0
    if version == 4:
        return [(socket.AF_INET, (host, port))]
    if version == 6:
        return [(socket.AF_INET6, (host, port))]
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not found:
        raise OSError(f"{host} has no address")
    return [(socket.AddressFamily(family), address) for family, _, _, _, address in found]


async def _connect(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connected, address)
        is_own = connected.getsockname() == connected.getpeername()
    except BaseException:
        connected.close()
        raise
    if is_own:
        # TCP may connect a loopback socket to itself if its local port is the dialled port.
        connected.close()
        raise ConnectionRefusedError(f"connection refused at port {address[1]}")
    return connected
