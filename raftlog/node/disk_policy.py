"""Whether this node may write and lead, by the state of its disk and of its lease.

A disk that is full or hangs takes no writes: heartbeats report the trouble, and the controller
moves leaderships to other brokers. A node kept by its disk from applying the metadata must also
stop to lead by itself, because it cannot learn of the next leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from raftlog.controller.service import ControllerService
from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.configs.broker import (
    DISK_RESERVE,
    SCRUB_RATE,
    disk_reserve_bytes,
    scrub_bytes_per_s,
)
from raftlog.metadata.delta import MetadataDelta
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.raft import RaftMember
from raftlog.record.errors import DISK_FULL, NO_LEADER, LogError
from raftlog.record.types import BrokerId
from raftlog.storage.disk_health import OBSERVE_INTERVAL_S, DiskHealth, DiskTrouble
from raftlog.storage.manager import LogManager
from raftlog.world import Clock

LISTENERS_MAX: Final = 8

logger = logging.getLogger(__name__)


class DiskWatch:
    """Observes the disk of one node. Lives in the event loop."""

    def __init__(self, *, quorum: RaftMember[ApplyResult], logs: LogManager, clock: Clock) -> None:
        self._quorum = quorum
        self._logs = logs
        self._clock = clock
        self._health = DiskHealth()
        self._known_index = -1
        """The controller's applied index, as of the previous observation."""
        self.stall: DiskTrouble | None = None
        """The disk trouble that keeps this node from applying the metadata, if any."""
        self.registration_error: LogError | None = None
        """Set while a full disk keeps this node from registering its new incarnation."""

    def can_write(self) -> bool:
        """Whether the disk takes writes, and has for a while: see storage/disk_health.py."""
        return self.registration_error is None and self._health.can_write

    def may_lead(self, known_index: int) -> bool:
        """Whether the disk allows this node to act as a leader at this moment.

        `known_index` is the newest known applied index of the controller.
        """
        if self.stall is not None:
            return False
        # Not left to the next observation: a stopped process may have missed some.
        return self._health.trouble is None or not self._is_behind(known_index)

    def observe(self, known_index: int) -> bool:
        """Observe the disk; return whether `stall` has changed. The next heartbeat reports the
        state."""
        health, logs = self._health, self._logs
        before, could_write = health.trouble, health.can_write
        health.observe(
            self._clock.monotonic(),
            room_bytes=logs.room_bytes,
            oldest_sync_at=logs.oldest_sync_at,
            lacks_room=self._quorum.lacks_room,
        )
        # By the index of the previous observation: an entry is on its way to the disk for a moment.
        is_behind = self._is_behind(self._known_index)
        self._known_index = known_index
        stall_before = self.stall
        self.stall = (stall_before or health.trouble) if is_behind else None
        if health.trouble is not None and health.trouble is not before:
            logger.error(
                "the disk %s: the controller moves leaderships to other brokers",
                health.trouble.value,
            )
        elif health.can_write and not could_write:
            logger.info("the disk accepts writes again")
        return self.stall is not stall_before

    def _is_behind(self, known_index: int) -> bool:
        return self._quorum.applied_index < known_index


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
        self, *, node_id: BrokerId, disk: DiskWatch, controller: ControllerService, clock: Clock
    ) -> None:
        self._node_id = node_id
        self._disk = disk
        self._controller = controller
        self._clock = clock
        self._listeners: list[Callable[[LogError | None], None]] = []
        self._has_withheld = False
        """Whether `may_act` was False since the listeners were called last."""

    def on_changed(self, listener: Callable[[LogError | None], None]) -> None:
        """Call `listener` with the error for writes from now on, or None to accept writes."""
        assert len(self._listeners) < LISTENERS_MAX
        self._listeners.append(listener)

    def may_act(self) -> bool:
        """Whether this node may act as the leader of its led partitions at this moment."""
        controller = self._controller
        may_act = not controller.is_cut_off and self._disk.may_lead(controller.known_index)
        self._has_withheld |= not may_act
        return may_act

    def observe_disk(self) -> None:
        """Look at the disk, and reject or accept writes accordingly.

        A moment in which this node might not act passes without another event. The listeners are
        called again after it: a commit withheld in that moment would wait for the next append.
        """
        has_changed = self._disk.observe(self._controller.known_index)
        if has_changed or (self._has_withheld and self.may_act()):
            self.update()

    async def watch_disk(self) -> None:
        """Observe the disk at regular intervals, without end."""
        while True:
            await self._clock.sleep(OBSERVE_INTERVAL_S)
            self.observe_disk()

    def update(self) -> None:
        """Call the listeners with the present rejection, after each change of its cause."""
        self._has_withheld = False
        rejection = self._rejection()
        for listener in self._listeners:
            listener(rejection)

    def _rejection(self) -> LogError | None:
        disk = self._disk
        if disk.registration_error is not None:
            return disk.registration_error
        if self._controller.is_cut_off:
            # Another may have been elected without this node's knowledge (promise 7).
            return LogError(NO_LEADER, f"Node {self._node_id} is cut off from the controller.")
        if disk.stall is None:
            return None
        # Others may lead by now, and commit once this node has been silent for long enough.
        return LogError(
            DISK_FULL if disk.stall is DiskTrouble.FULL else NO_LEADER,
            f"The disk of node {self._node_id} {disk.stall.value}: it cannot follow the metadata.",
        )
