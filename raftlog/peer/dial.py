"""TCP connections to other nodes: addresses as text, and connecting to all that a name stands for.

The loops' own `create_connection` hides in one error which of several addresses was refused; that
nobody listens must be told apart from everything else.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any, Final

ADDRESSES_MAX: Final = 8
"""Of what a name resolves to, as many are tried."""


def parse_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as a pair. Raises ValueError."""
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
    """`host:port`, the inverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def dial(host: str, port: int) -> socket.socket:
    """A connected socket, without delay of small writes. The caller bounds the time.

    Raises ConnectionRefusedError if nobody listens at any address of `host`, OSError else.
    """
    failure: OSError | None = None
    for family, address in (await _resolve(host, port))[:ADDRESSES_MAX]:
        try:
            return await _connect(family, address)
        except OSError as error:
            if failure is None or isinstance(failure, ConnectionRefusedError):
                # That one address is refused proves nothing while another one might not be.
                failure = error
    assert failure is not None
    raise failure


async def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    try:
        # Numbers need no resolver, whose threads may all be waiting for a name server.
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
        # On loopback, TCP may join a socket to itself if its port is the one that is called.
        connected.close()
        raise ConnectionRefusedError(f"nobody listens at port {address[1]}")
    return connected
