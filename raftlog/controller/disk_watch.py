"""The disk watch observes the node's disk, for heartbeats and the permit to lead.

A disk that is full or hangs takes no writes. Heartbeats report the trouble, and the controller
moves leaderships to other brokers. A node kept by its disk from applying the metadata must also
stop leading by itself, because it cannot find the next leader in the metadata.
"""

from __future__ import annotations

import logging

from raftlog.controller.lead_permit import LeadPermit
from raftlog.metadata.apply.apply import ApplyResult
from raftlog.raft import RaftMember
from raftlog.record.errors import LogError
from raftlog.storage.disk_health import DiskHealth
from raftlog.storage.manager import LogManager
from raftlog.world import Clock

logger = logging.getLogger(__name__)


class DiskWatch:
    """Observes the disk of one node. Lives in the event loop."""

    def __init__(
        self,
        *,
        permit: LeadPermit,
        quorum: RaftMember[ApplyResult],
        logs: LogManager,
        clock: Clock,
    ) -> None:
        """Each observation reaches the `permit`."""
        self._permit = permit
        self._quorum = quorum
        self._logs = logs
        self._clock = clock
        self._health = DiskHealth()
        self._known_index = -1
        """The controller's applied index, as of the previous observation."""
        self._registration_error: LogError | None = None

    @property
    def registration_error(self) -> LogError | None:
        """The full disk that keeps this node from registering its new incarnation, or None."""
        return self._registration_error

    def registration_failed(self, error: LogError) -> None:
        """Note that a full disk keeps this node from registering."""
        self._registration_error = error

    def registration_succeeded(self) -> None:
        """Note that the disk has had room for the registration."""
        self._registration_error = None

    def can_write(self) -> bool:
        """Whether the disk takes writes, and has for a while (storage/disk_health.py)."""
        return self._registration_error is None and self._health.can_write

    def observe(self) -> bool:
        """Observe the disk. Returns whether the permit's `stall` has changed. The next heartbeat
        reports the state."""
        health, logs, permit = self._health, self._logs, self._permit
        before, could_write = health.trouble, health.can_write
        health.observe(
            self._clock.monotonic(),
            room_bytes=logs.room_bytes,
            oldest_sync_at=logs.oldest_sync_at,
            lacks_room=self._quorum.lacks_room,
        )
        # By the index of the previous observation. An entry is on its way to the disk for a moment.
        is_behind = self._quorum.applied_index < self._known_index
        self._known_index = permit.known_index
        stall_before = permit.stall
        stall = (stall_before or health.trouble) if is_behind else None
        permit.disk_observed(health.trouble, stall)
        if health.trouble is not None and health.trouble is not before:
            logger.error(
                "the disk %s: the controller moves leaderships to other brokers",
                health.trouble.value,
            )
        elif health.can_write and not could_write:
            logger.info("the disk accepts writes again")
        return stall is not stall_before
