"""Checks whether the process of a lost peer has ended, or only its connection.

A killed process leaves a machine that refuses connections at the process' address. A refusal comes
within milliseconds, and is proof, where silence takes a timeout and proves nothing. The proof holds
for the process of the lost connection. A refusal counts only while no process has connected as the
same node since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic

from raftlog.peer.channel import PEERS_MAX, SessionT
from raftlog.peer.tasks import TaskGroup
from raftlog.world import Backoff, Clock
from raftlog.world.network import Network

PROBE_TIMEOUT_S: Final = 1.0
PROBES_S: Final = 0.5
"""Latest start of a probe after the loss."""
PROBE_PAUSES: Final = Backoff(0.005, PROBES_S)
"""Pauses between probes. The kernel closes a killed process' connections a moment before or after
its listening socket."""


class DeadPeerProbe(Generic[SessionT]):
    """Peers reported as lost, until connected again or proven dead."""

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
        """Last session of each lost peer."""
        self._probes: dict[int, asyncio.Task[None]] = {}

    def find(self, node_id: int) -> SessionT | None:
        """The last session of a lost peer."""
        return self._lost.get(node_id)

    def add(self, session: SessionT) -> None:
        """Note a lost peer, by its last session."""
        self._lost[session.peer_id] = session
        if len(self._lost) > PEERS_MAX:
            del self._lost[next(iter(self._lost))]

    def discard(self, node_id: int) -> None:
        """Forget a peer that is connected again."""
        self._lost.pop(node_id, None)

    def start_probe(self, node_id: int, address: str) -> None:
        """Probe the address of a lost peer without a connection."""
        lost = self._lost.get(node_id)
        if lost is not None:
            assert node_id not in self._probes
            self._probes[node_id] = self._tasks.spawn(
                self._probe(lost, address), f"quorum-probe-{node_id}"
            )

    def stop_probe(self, node_id: int) -> None:
        """Stop the probe. A connection of the node opens, so the old process no longer matters."""
        probe = self._probes.pop(node_id, None)
        if probe is not None:
            probe.cancel()

    def refused(self, lost: SessionT) -> None:
        """The peer's address refuses connections since the end of `lost`.

        The peer is not connected.
        """
        node_id = lost.peer_id
        # If the node was up in between, the refusal may be older than its newer process.
        if self._lost.get(node_id) is lost:
            del self._lost[node_id]
            self._on_dead(node_id)

    async def _probe(self, lost: SessionT, address: str) -> None:
        deadline = self._clock.monotonic() + PROBES_S
        probes = 0
        while self._clock.monotonic() < deadline:
            if await self._network.is_refused(address, timeout_s=PROBE_TIMEOUT_S):
                self.refused(lost)
                break
            await self._clock.sleep(PROBE_PAUSES.delay_s(probes))
            probes += 1
        # `stop_probe` has removed a stopped probe already.
        del self._probes[lost.peer_id]
