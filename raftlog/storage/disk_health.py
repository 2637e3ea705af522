"""Whether a node's disk takes writes, as its cluster is to know it. Pure.

A disk that is full or hangs takes none, and others should lead what this node leads. Leaders do not
move for a hiccup, and not back for a moment of room: trouble counts at once if it is a full disk,
after a while if it is a sync that does not return, and for a while after it was seen last.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

LOW_ROOM_BYTES: Final = 1 << 20
"""With less room for appends than this, the disk is full: a batch of the default
max.message.bytes would not fit."""
ROOM_AGAIN_BYTES: Final = 4 << 20
"""The room that a disk which was full must have to count as one with room again."""
STALLED_SYNC_S: Final = 5.0
"""A disk hangs if one sync takes longer. One that is merely slow leaves the ISR as a follower, and
delays writes as a leader; a hiccup of a second or two is no reason to move leaders."""
STEADY_S: Final = 5.0
"""For so long nothing must have been amiss before a disk counts as one that takes writes again."""
OBSERVE_INTERVAL_S: Final = 0.25
"""Between two looks."""


class DiskTrouble(Enum):
    """Why a disk takes no writes; the value is how to put it."""

    FULL = "is full"
    STALLED = "hangs"


class DiskHealth:
    """What the looks at a disk amount to. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.trouble: DiskTrouble | None = None
        """What was amiss at the last look."""
        self._observed_at: float | None = None
        self._bad_at = -math.inf
        self._sync_at: float | None = None
        self._sync_s = 0.0
        """For how long the sync that began then has been seen to last."""

    @property
    def can_write(self) -> bool:
        """Whether the node may be given leaderships, as of the last look."""
        return self._observed_at is None or self._observed_at - self._bad_at >= STEADY_S

    def observe(
        self, now: float, *, room_bytes: int, oldest_sync_at: float | None, lacks_room: bool = False
    ) -> None:
        """See what the disk is like.

        `room_bytes`: for appends. `oldest_sync_at`: since when the oldest of the present syncs is
        waited for. `lacks_room`: somebody else on this node finds the disk full.
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
            # A process that was stopped must not take its own pause for its disk's.
            self._sync_s += min(now - self._observed_at, 2 * OBSERVE_INTERVAL_S)
