"""Network namespaces: every node on a wire of its own to a bridge, which can be cut and mended.

Needs root and `ip`. Names carry this process's id, and all of it goes again when it is closed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack
from types import TracebackType
from typing import Final

from bench.cluster_processes import Place

COMMAND_TIMEOUT_S: Final = 10.0
NETWORK: Final = "198.18"
"""Set aside for benchmarks (RFC 2544): nobody's real addresses."""


class NoWiresError(Exception):
    """This machine has no network namespaces for us."""


class Wires:
    """`count` namespaces on one bridge. Use it as a context manager. Raises NoWiresError."""

    def __init__(self, count: int) -> None:
        self._name = f"rlb{os.getpid()}"
        self._subnet = f"{NETWORK}.{os.getpid() % 250}"
        self._count = count
        self._undo = ExitStack()

    @property
    def places(self) -> list[Place]:
        """Where the nodes run, by number."""
        return [
            Place(f"{self._subnet}.{number + 1}", ("ip", "netns", "exec", self._namespace(number)))
            for number in range(1, self._count + 1)
        ]

    def cut(self, number: int) -> None:
        """Take a node off the network: what it sends and is sent vanishes without a word."""
        _ip("link", "set", self._wire(number), "down")

    def mend(self, number: int) -> None:
        """Put it back."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
            _ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            # The namespace would keep its end for as long as a dead node's sockets linger.
            stack.callback(_ip, "link", "del", wire)
            _ip("link", "set", wire, "master", self._name, "up")
            inside = ("-n", namespace)
            _ip(*inside, "addr", "add", f"{self._subnet}.{number + 1}/24", "dev", "eth0")
            _ip(*inside, "link", "set", "eth0", "up")
            _ip(*inside, "link", "set", "lo", "up")

    def _namespace(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _wire(self, number: int) -> str:
        return f"{self._name}w{number}"


def _ip(*arguments: str) -> None:
    done = subprocess.run(
        ["ip", *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise NoWiresError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
