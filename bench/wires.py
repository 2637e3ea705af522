"""Network namespaces: each node has a wire of its own to a bridge, and wires can be cut.

It needs root and `ip`. Names carry the id of this process, and closing removes all of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack
from typing import Final

from bench.cluster import Place

COMMAND_TIMEOUT_S: Final = 10.0
NETWORK: Final = "198.18"
"""Reserved for benchmarks (RFC 2544): never the address of a real host."""
DEVICE: Final = "eth0"


class NoWiresError(Exception):
    """Network namespaces are not available on this machine."""


class Wires:
    """`count` namespaces on one bridge. Use it as a context manager. Raises NoWiresError."""

    def __init__(self, count: int) -> None:
        self._name = f"rlb{os.getpid()}"
        self._subnet = f"{NETWORK}.{os.getpid() % 250}"
        self._count = count
        self._undo = ExitStack()

    @property
    def places(self) -> list[Place]:
        """The places of the nodes, by number."""
        return [
            Place(f"{self._subnet}.{number + 1}", ("ip", "netns", "exec", self._namespace(number)))
            for number in range(1, self._count + 1)
        ]

    def cut(self, number: int) -> None:
        """Take a node off the network: packets from and to the node vanish silently."""
        _ip("link", "set", self._wire(number), "down")

    def mend(self, number: int) -> None:
        """Reconnect a node after `cut`."""
        _ip("link", "set", self._wire(number), "up")

    def __enter__(self) -> Wires:
        if os.geteuid() != 0:
            raise NoWiresError("network namespaces need root")
        if shutil.which("ip") is None:
            raise NoWiresError("there is no `ip` here")
        with ExitStack() as stack:
            self._build(stack)
            self._undo = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _build(self, stack: ExitStack) -> None:
        _ip("link", "add", self._name, "type", "bridge", "forward_delay", "0")
        stack.callback(_ip, "link", "del", self._name)
        _ip("addr", "add", f"{self._subnet}.1/24", "dev", self._name)
        _ip("link", "set", self._name, "up")
        for number in range(1, self._count + 1):
            namespace, wire = self._namespace(number), self._wire(number)
            _ip("netns", "add", namespace)
            stack.callback(_ip, "netns", "del", namespace)
            _ip("link", "add", wire, "type", "veth", "peer", "name", DEVICE, "netns", namespace)
            # The namespace would keep its end for as long as a dead node's sockets linger.
            stack.callback(_ip, "link", "del", wire)
            _ip("link", "set", wire, "master", self._name, "up")
            inside = ("-n", namespace)
            _ip(*inside, "addr", "add", f"{self._subnet}.{number + 1}/24", "dev", DEVICE)
            _ip(*inside, "link", "set", DEVICE, "up")
            _ip(*inside, "link", "set", "lo", "up")

    def _namespace(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _wire(self, number: int) -> str:
        return f"{self._name}w{number}"


def _ip(*arguments: str) -> None:
    done = subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise NoWiresError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
