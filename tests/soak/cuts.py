"""Packets lost in one direction between chosen nodes in network namespaces."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from typing import Final

from bench.cluster import Place
from bench.wires import COMMAND_TIMEOUT_S, DEVICE

UNUSED_MAC: Final = "02:00:00:00:00:01"
"""A hardware address without an interface."""


class Cuts:
    """The directed links between nodes in these places on which all packets are lost.

    The source gets a wrong hardware address for the target: packets to the target are lost
    silently, as on a broken network, while packets from the target still arrive.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = dict(enumerate(places, start=1))
        self._lost: set[tuple[int, int]] = set()

    def lose(self, sources: Iterable[int], targets: Iterable[int]) -> None:
        """Start to lose all packets from any source to any target."""
        wanted = list(targets)
        for source in sources:
            for target in wanted:
                if source != target:
                    self._lost.add((source, target))
                    address = ("lladdr", UNUSED_MAC, "nud", "permanent")
                    self._neighbour(source, "replace", target, *address)

    def mend(self) -> None:
        """Stop losing packets on all links."""
        for source, target in sorted(self._lost):
            self._neighbour(source, "del", target)
        self._lost.clear()

    def others(self, node_id: int) -> list[int]:
        """All other nodes."""
        return [other for other in sorted(self._places) if other != node_id]

    def _neighbour(self, source: int, action: str, target: int, *arguments: str) -> None:
        host = self._places[target].host
        command = ("ip", "neigh", action, host, *arguments, "dev", DEVICE)
        subprocess.run(
            [*self._places[source].prefix, *command],
            check=True,
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
        )
