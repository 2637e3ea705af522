"""Judge whether a node's disk takes writes, for the node's heartbeats. Pure.

A full or stalled disk takes no writes, and other nodes should take over leadership. Leaders do not
move for a hiccup, and not back for a moment of room. A full disk counts at once, a sync without an
end after STALLED_SYNC_S, and either for STEADY_S after its last observation.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

LOW_ROOM_BYTES: Final = 1 << 20
"""Room for appends below which the disk is full, in bytes. A batch of the default max.message.bytes
would not fit."""
ROOM_AGAIN_BYTES: Final = 4 << 20
"""Room in bytes at which a full disk stops counting as full."""
STALLED_SYNC_S: Final = 5.0
"""Duration of one sync beyond which a disk is stalled. A merely slow disk leaves the ISR as a
follower, and delays writes as a leader. A hiccup of a second or two is no reason to move leaders.
"""
STEADY_S: Final = 5.0
"""Time without trouble after which a disk counts as writable again."""
OBSERVE_INTERVAL_S: Final = 0.25
"""Interval between two observations."""


class DiskTrouble(Enum):
    """Reason why a disk takes no writes. The value completes "the disk ..."."""

    FULL = "is full"
    STALLED = "hangs"


class DiskHealth:
    """Judges a disk by observations. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.trouble: DiskTrouble | None = None
        """The trouble at the last observation."""
        self._observed_at: float | None = None
        self._bad_at = -math.inf
        self._sync_at: float | None = None
        self._sync_s = 0.0
        """Observed duration of the sync started at `_sync_at`."""

    @property
    def can_write(self) -> bool:
        """Whether the node may be given leaderships, as of the last observation."""
        return self._observed_at is None or self._observed_at - self._bad_at >= STEADY_S

    def observe(
        self, now: float, *, room_bytes: int, oldest_sync_at: float | None, lacks_room: bool = False
    ) -> None:
        """Take one observation of the disk.

        `room_bytes` is the room for appends, and `oldest_sync_at` the start of the oldest running
        sync. `lacks_room` means that another component of this node found the disk full.
        """
        self._observe_sync(now, oldest_sync_at)
        self._observed_at = now
        was_full = self.trouble is DiskTrouble.FULL
        if lacks_room or room_bytes < (ROOM_AGAIN_BYTES if was_full else LOW_ROOM_BYTES):
            self.trouble = DiskTrouble.FULL
        elif self._sync_s >= STALLED_SYNC_S:
            self.trouble = DiskTrouble.STALLED
        else:
            self.trouble = None
        if self.trouble is not None:
            self._bad_at = now

    def _observe_sync(self, now: float, oldest_sync_at: float | None) -> None:
        if oldest_sync_at is None or oldest_sync_at != self._sync_at:
            self._sync_at, self._sync_s = oldest_sync_at, 0.0
        elif self._observed_at is not None:
            # A paused process must not mistake its pause for a stall of its disk.
            self._sync_s += min(now - self._observed_at, 2 * OBSERVE_INTERVAL_S)
