"""The cluster's clock. Every final decision by age takes its time from here.

A deletion is final, and the wall clock of a single machine may be wrong by years. So the active
controller returns both medians of the brokers' clocks with each heartbeat, and each node carries
them on by its monotonic clock. The lower median decides what expires. The upper median dates what
is stored. With an even number of clocks, no half of them makes data look old, ahead or behind.

| this node | `expiry_ms`, decides by age | `time_ms`, is stored |
|---|---|---|
| follows a cluster, no median since its start | None, nothing expires | None |
| has the medians, also once cut off | min(lower median, steady wall clock) | upper median |
| follows no cluster (offline tools) | steady wall clock | wall clock |

**Invariants.** (1) `expiry_ms` is never ahead of the lower median. (2) It never runs faster than
twice the monotonic clock, so a jump of an hour forward takes effect over an hour. A jump that is
taken back within this hour has had hardly any effect. A jump back is followed at once. (3) It is
None before the first median. (4) `expiry_ms <= time_ms`, so nothing stored now looks older than it
is. (5) One wrong clock of three moves no median beyond a right clock. With two clocks, the earlier
decides and the later is stored.

**Limits.** If most clocks are wrong in the same way, the medians are. The only node of a cluster
has no clock to compare with. Its time starts with the wall clock at the start of the process, so a
start with a clock far ahead expires everything that seems due. A long stop and a wrong clock look
the same there. *Rejected.* The last stored time as the base of the next start. Time would stand
still during each stop, and a node that runs by day only would keep records for three times their
retention.
"""

from __future__ import annotations

import logging
from typing import Final

from raftlog.world.time import Clock

CLOCK_SKEW_MS_MAX: Final = 10 * 60_000
"""Difference from the cluster time beyond which a clock counts as wrong."""
UNKNOWN_LOGGED_MS: Final = 60_000
"""Interval between two log lines while the cluster time is unknown."""

logger = logging.getLogger(__name__)


class SteadyClock:
    """The wall clock without its jumps forward, for final decisions."""

    __slots__ = ("_last_monotonic_ms", "_steady_ms")

    SPEED_MAX: Final = 2

    def __init__(self, wall_ms: int, monotonic_ms: int) -> None:
        self._steady_ms = wall_ms
        self._last_monotonic_ms = monotonic_ms

    def now_ms(self, wall_ms: int, monotonic_ms: int) -> int:
        """The time for decisions, from the present time of both clocks."""
        elapsed_ms = monotonic_ms - self._last_monotonic_ms
        assert elapsed_ms >= 0, "the monotonic clock went back"
        self._last_monotonic_ms = monotonic_ms
        self._steady_ms = min(wall_ms, self._steady_ms + self.SPEED_MAX * elapsed_ms)
        return self._steady_ms


class ClusterClock:
    """The cluster's time on one node. A node has one cluster clock for all its decisions."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steady = SteadyClock(clock.time_ms(), self._monotonic_ms())
        self._needs_cluster_time = False
        self._cluster_ahead_ms: int | None = None
        """Cluster time minus monotonic time, or None if unknown."""
        self._latest_ahead_ms = 0
        """Upper median of the brokers' clocks minus monotonic time."""
        self._warn_at_ms = self._monotonic_ms() + UNKNOWN_LOGGED_MS
        self.skew_ms = 0
        """Lead of the wall clock over the newest cluster time."""

    def follow_cluster_time(self) -> None:
        """Follow a cluster's time. Nothing expires before the first cluster time."""
        self._needs_cluster_time = True

    @property
    def knows_cluster_time(self) -> bool:
        """Whether a cluster time has arrived since the start."""
        return self._cluster_ahead_ms is not None

    def note_cluster_time(self, cluster_ms: int, latest_ms: int) -> None:
        """Note both medians of the brokers' clocks, as the active controller computed them."""
        monotonic_ms = self._monotonic_ms()
        self._cluster_ahead_ms = cluster_ms - monotonic_ms
        self._latest_ahead_ms = latest_ms - monotonic_ms
        before, self.skew_ms = self.skew_ms, self._clock.time_ms() - cluster_ms
        was_wrong, is_wrong = (abs(ms) > CLOCK_SKEW_MS_MAX for ms in (before, self.skew_ms))
        if is_wrong and not was_wrong:
            logger.error(
                "the wall clock is %+.0f s off the cluster time, the median of the brokers' "
                "clocks: data expires on this node once it is due by both. Set the clock",
                self.skew_ms / 1000,
            )
        elif was_wrong and not is_wrong:
            logger.info("the wall clock agrees with the cluster time again")

    def time_ms(self) -> int | None:
        """The cluster's time, for times that are stored. None while it is unknown."""
        if self._cluster_ahead_ms is not None:
            return self._latest_ahead_ms + self._monotonic_ms()
        return None if self._needs_cluster_time else self._clock.time_ms()

    def estimate_ms(self) -> int:
        """The cluster's time, or the wall clock while it is unknown. Nothing expires by it."""
        time_ms = self.time_ms()
        return self._clock.time_ms() if time_ms is None else time_ms

    def expiry_ms(self) -> int | None:
        """The time for decisions by age. None while the cluster time is unknown."""
        monotonic_ms = self._monotonic_ms()
        now_ms = self._steady.now_ms(self._clock.time_ms(), monotonic_ms)
        if self._cluster_ahead_ms is not None:
            return min(now_ms, self._cluster_ahead_ms + monotonic_ms)
        if not self._needs_cluster_time:
            return now_ms
        if monotonic_ms >= self._warn_at_ms:
            self._warn_at_ms = monotonic_ms + UNKNOWN_LOGGED_MS
            logger.warning(
                "no cluster time from the controller: nothing expires by time, and compaction "
                "waits, until more brokers are heard"
            )
        return None

    def latest_ms(self) -> int:
        """The latest time that this node's clock or half of all clocks have reached.

        The cluster time does not serve here. With only two brokers heard, it is the slower clock.
        """
        wall_ms = self._clock.time_ms()
        if self._cluster_ahead_ms is None:
            return wall_ms
        return max(wall_ms, self._latest_ahead_ms + self._monotonic_ms())

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
