"""Peers that were lost: has their process ended, or only the connection?

A process that was killed leaves a machine that refuses connections where it listened. That is known
within milliseconds, and is proof, where silence takes a timeout and proves nothing. It holds for
the process that was connected: so it counts only while nobody has connected as that node since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic

from raftlog.peer.channel import PEERS_MAX, SessionT
from raftlog.peer.tasks import TaskGroup
from raftlog.world import Clock
from raftlog.world.network import Network

PROBE_TIMEOUT_S: Final = 1.0
PROBE_PAUSE_S: Final = 0.005
"""Before the second probe; doubles. The kernel closes a killed process' connections a moment
before or after the socket that it listened on."""
PROBES_S: Final = 0.5
"""No probe begins later than that after the loss."""


class DeadPeerProbe(Generic[SessionT]):
    """The peers whose end was reported, until they are back or known to be dead."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        tasks: TaskGroup,
        on_dead: Callable[[int], None],
    ) -> None:
        self._network = network
        self._clock = clock
        self._tasks = tasks
        self._on_dead = on_dead
        self._lost: dict[int, SessionT] = {}
        """By their last connection."""
        self._probes: dict[int, asyncio.Task[None]] = {}

    def find(self, node_id: int) -> SessionT | None:
        """The last connection of a lost peer."""
        return self._lost.get(node_id)

    def add(self, session: SessionT) -> None:
        """Note that the end of a peer's connection was reported."""
        self._lost[session.peer_id] = session
        if len(self._lost) > PEERS_MAX:
            del self._lost[next(iter(self._lost))]

    def discard(self, node_id: int) -> None:
        """The peer is back."""
        self._lost.pop(node_id, None)

    def start_probe(self, node_id: int, address: str) -> None:
        """Find out about a lost peer; it has no connection now."""
        lost = self._lost.get(node_id)
        if lost is not None:
            assert node_id not in self._probes
            self._probes[node_id] = self._tasks.spawn(
                self._probe(lost, address), f"quorum-probe-{node_id}"
            )

    def stop_probe(self, node_id: int) -> None:
        """A connection of that node opens: what listened before does not matter any more."""
        probe = self._probes.pop(node_id, None)
        if probe is not None:
            probe.cancel()

    def refused(self, lost: SessionT) -> None:
        """Nobody listens where the peer did after `lost` had ended, and it is not connected."""
        node_id = lost.peer_id
        # If it was up in between, nobody knows whether this was before or after that.
        if self._lost.get(node_id) is lost:
            del self._lost[node_id]
            self._on_dead(node_id)

    async def _probe(self, lost: SessionT, address: str) -> None:
        deadline = self._clock.monotonic() + PROBES_S
        pause_s = PROBE_PAUSE_S
        while self._clock.monotonic() < deadline:
            if await self._network.is_refused(address, timeout_s=PROBE_TIMEOUT_S):
                self.refused(lost)
                break
            await self._clock.sleep(pause_s)
            pause_s *= 2
        # A probe that was stopped has been taken out already.
        del self._probes[lost.peer_id]
