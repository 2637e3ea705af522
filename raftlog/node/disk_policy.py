"""The disk policy rejects writes by the node's disk and lease, and sets storage limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.controller.disk_watch import DiskWatch
from raftlog.controller.lead_permit import LeadPermit
from raftlog.metadata.configs.broker import (
    DISK_RESERVE,
    SCRUB_RATE,
    disk_reserve_bytes,
    scrub_bytes_per_s,
)
from raftlog.metadata.delta import MetadataDelta
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.record.errors import DISK_FULL, NO_LEADER, LogError
from raftlog.record.types import BrokerId
from raftlog.storage.disk_health import OBSERVE_INTERVAL_S, DiskTrouble
from raftlog.storage.manager import LogManager
from raftlog.world import Clock

LISTENERS_MAX: Final = 8


def follow_storage_limits(state_machine: MetadataStateMachine, logs: LogManager) -> None:
    """Apply the cluster settings of storage to the logs, now and after each change."""

    def apply() -> None:
        settings = state_machine.image.cluster_settings
        logs.limit(
            reserve_bytes=disk_reserve_bytes(settings),
            scrub_bytes_per_s=scrub_bytes_per_s(settings),
        )

    def applied(delta: MetadataDelta) -> None:
        if not {DISK_RESERVE, SCRUB_RATE}.isdisjoint(delta.cluster_settings):
            apply()

    apply()
    state_machine.subscribe(applied)


class WritePolicy:
    """Decides which writes this node rejects, by its disk and its lease."""

    def __init__(
        self, *, node_id: BrokerId, permit: LeadPermit, disk: DiskWatch, clock: Clock
    ) -> None:
        self._node_id = node_id
        self._permit = permit
        self._disk = disk
        self._clock = clock
        self._listeners: list[Callable[[LogError | None], None]] = []

    def on_changed(self, listener: Callable[[LogError | None], None]) -> None:
        """Call `listener` with the error for writes from now on, or None to accept writes."""
        assert len(self._listeners) < LISTENERS_MAX
        self._listeners.append(listener)

    def observe_disk(self) -> None:
        """Inspect the disk, and reject or accept writes accordingly.

        A moment in which this node might not act passes without another event. The listeners are
        called again after it, as a commit withheld in that moment would wait for the next append.
        """
        permit = self._permit
        has_changed = self._disk.observe()
        if has_changed or (permit.has_withheld and permit.may_act()):
            self.update()

    async def watch_disk(self) -> None:
        """Observe the disk at regular intervals, without end."""
        while True:
            await self._clock.sleep(OBSERVE_INTERVAL_S)
            self.observe_disk()

    def update(self) -> None:
        """Call the listeners with the present rejection, after each change of its cause."""
        self._permit.withheld_notified()
        rejection = self._rejection()
        for listener in self._listeners:
            listener(rejection)

    def _rejection(self) -> LogError | None:
        error, stall = self._disk.registration_error, self._permit.stall
        if error is not None:
            return error
        if self._permit.is_cut_off:
            # Another may have been elected without this node's knowledge (promise 7).
            return LogError(NO_LEADER, f"Node {self._node_id} is cut off from the controller.")
        if stall is None:
            return None
        # Others may lead by now, and commit once this node has been silent for long enough.
        return LogError(
            DISK_FULL if stall is DiskTrouble.FULL else NO_LEADER,
            f"The disk of node {self._node_id} {stall.value}: it cannot follow the metadata.",
        )
