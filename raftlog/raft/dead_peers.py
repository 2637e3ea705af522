"""Peers that were lost: has their process ended, or only the connection?

A process that was killed leaves a machine that refuses connections where it listened. That is known
within milliseconds, and is proof, where silence takes a timeout and proves nothing. It holds for
the process that was connected: so it counts only while nobody has connected as that node since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from raftlog.raft.identity import KNOWN_PEERS_MAX
from raftlog.raft.peer_link import Link, PeersLimits
from raftlog.world import Clock
from raftlog.world.network import Network

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]
"""Starts a task that its owner ends."""


class DeadPeerProbe:
    """The peers whose end was reported, until they are back or known to be dead."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        limits: PeersLimits,
        spawn: Spawn,
        on_dead: Callable[[int], None],
    ) -> None:
        self._network = network
        self._clock = clock
        self._limits = limits
        self._spawn = spawn
        self._on_dead = on_dead
        self._lost: dict[int, Link] = {}
        """By their last connection."""
        self._probes: dict[int, asyncio.Task[None]] = {}

    def find(self, node_id: int) -> Link | None:
        """The last connection of a lost peer."""
        return self._lost.get(node_id)

    def add(self, link: Link) -> None:
        """Note that the end of a peer's connection was reported."""
        self._lost[link.node_id] = link
        if len(self._lost) > KNOWN_PEERS_MAX:
            del self._lost[next(iter(self._lost))]

    def discard(self, node_id: int) -> None:
        """The peer is back."""
        self._lost.pop(node_id, None)

    def start_probe(self, node_id: int, address: str) -> None:
        """Find out about a lost peer; it has no connection now."""
        lost = self._lost.get(node_id)
        if lost is not None:
            assert node_id not in self._probes
            self._probes[node_id] = self._spawn(
                self._probe(lost, address), f"quorum-probe-{node_id}"
            )

    def stop_probe(self, node_id: int) -> None:
        """A connection of that node opens: what listened before does not matter any more."""
        probe = self._probes.pop(node_id, None)
        if probe is not None:
            probe.cancel()

    def refused(self, lost: Link) -> None:
        """Nobody listens where the peer did after `lost` had ended, and it is not connected."""
        node_id = lost.node_id
        # If it was up in between, nobody knows whether this was before or after that.
        if self._lost.get(node_id) is lost:
            del self._lost[node_id]
            self._on_dead(node_id)

    async def _probe(self, lost: Link, address: str) -> None:
        deadline = self._clock.monotonic() + self._limits.probes_s
        pause_s = self._limits.probe_pause_s
        while self._clock.monotonic() < deadline:
            if await self._network.is_refused(address, timeout_s=self._limits.probe_timeout_s):
                self.refused(lost)
                break
            await self._clock.sleep(pause_s)
            pause_s *= 2
        # A probe that was stopped has been taken out already.
        del self._probes[lost.node_id]
