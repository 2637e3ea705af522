"""Ports for nodes: free ones found, taken ones named."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Iterable
from typing import Final

from raftlog.cluster.errors import ClusterError

FREE_PORTS: Final = range(20_000, 32_000)
"""Below what Linux gives to outgoing connections: a port whose node is down must stay free."""
SEARCH_MAX: Final = 200
PORT_MAX: Final = 65_535


def why_taken(host: str, port: int) -> str | None:
    """Why nobody can listen there; None: the port is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As servers do: a port that only waits for old connections to be forgotten is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def require_free(host: str, ports: Iterable[int], hint: str) -> None:
    """Raise ClusterError, naming the port, if one of them is taken."""
    for port in ports:
        reason = why_taken(host, port)
        if reason is not None:
            raise ClusterError(f"port {port} of {host} cannot be used: {reason}", hint)


def consecutive(base_port: int, count: int) -> list[int]:
    """So many ports from `base_port` on. Raises ClusterError."""
    if base_port + count - 1 > PORT_MAX:
        raise ClusterError(
            f"there are no {count} ports from {base_port} on: the last is {PORT_MAX}"
        )
    return list(range(base_port, base_port + count))


def free_ports(host: str, count: int) -> list[int]:
    """So many ports that were free a moment ago. Raises ClusterError."""
    found: list[int] = []
    for port in random.sample(FREE_PORTS, len(FREE_PORTS)):
        if len(found) == count:
            break
        if why_taken(host, port) is None:
            found.append(port)
    if len(found) < count:
        raise ClusterError(f"{host} has no {count} free ports")
    return found


def next_port(host: str, used: Collection[int]) -> int:
    """The first free port after those that the cluster uses. Raises ClusterError."""
    first = max(used) + 1
    for port in range(first, min(first + SEARCH_MAX, PORT_MAX + 1)):
        if why_taken(host, port) is None:
            return port
    raise ClusterError(f"{host} has no free port among the {SEARCH_MAX} from {first} on")
