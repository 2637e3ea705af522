"""One-way and partial cuts between nodes that have wires of their own (bench/replication/wires.py).

A node is given a wrong hardware address of another: what it sends there is lost without a word, as
on a broken network, and what comes from there still arrives. Neither nft nor tc is needed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from typing import Final

from bench.cluster_processes import Place

NOBODY: Final = "02:00:00:00:00:01"
"""A hardware address that no interface has."""
DEVICE: Final = "eth0"
COMMAND_TIMEOUT_S: Final = 10.0


class Cuts:
    """Which node cannot send to which, in a cluster of these places (by node)."""

    def __init__(self, places: Mapping[int, Place]) -> None:
        self._places = dict(places)
        self._lost: set[tuple[int, int]] = set()

    def lose(self, sources: Iterable[int], targets: Iterable[int]) -> None:
        """From now on, lose what any of the sources sends to any of the targets."""
        wanted = list(targets)
        for source in sources:
            for target in wanted:
                if source != target:
                    self._lost.add((source, target))
                    self._neighbour(source, "replace", target, "lladdr", NOBODY, "nud", "permanent")

    def mend(self) -> None:
        """Lose nothing any more."""
        for source, target in sorted(self._lost):
            self._neighbour(source, "del", target)
        self._lost.clear()

    def others(self, node_id: int) -> list[int]:
        """All but this one."""
        return [other for other in sorted(self._places) if other != node_id]

    def _neighbour(self, source: int, act: str, target: int, *arguments: str) -> None:
        place = self._places[source]
        to = self._places[target].host
        subprocess.run(
            [*place.prefix, "ip", "neigh", act, to, *arguments, "dev", DEVICE],
            check=True,
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
        )
