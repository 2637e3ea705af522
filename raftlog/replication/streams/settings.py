"""Times and bounds of the streams between followers and leaders.

`Throttle` bounds the bytes per second sent to replicas that a reassignment adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from raftlog.peer.channel import ChannelSettings
from raftlog.replication.streams.protocol import HEADER_BYTES
from raftlog.world import Clock
from raftlog.world.network import MESSAGE_BYTES_MAX

BURST_S: Final = 0.1
"""Unused tokens are kept for this time."""
WAIT_S_MIN: Final = 0.001
WAIT_S_MAX: Final = 0.5
"""Longest wait before the next check, as the rate may have been raised."""


@dataclass(frozen=True, slots=True)
class StreamSettings(ChannelSettings):
    """Settings of both sides, the same on all nodes. The defaults are right for all but tests."""

    window_bytes: int = 16 << 20
    """Bound of bytes sent to one follower and not yet durable there. Above, the leader waits for
    acknowledgements. A batch longer than a chunk may exceed the bound."""
    chunk_bytes: int = 1 << 20
    """Bytes of one read for a follower that catches up."""
    live_bytes_max: int = 4 << 20
    """Longer appends are read back from the log instead of being sent from memory."""
    piece_bytes: int = 4 << 20
    """Longer batches go in several messages."""
    queued_bytes_max: int = 8 << 20
    """Bytes waiting in the connection above which the bytes read from the log also wait."""
    pace_s: float = 0.005
    """Interval of checks by a waiting read."""
    batch_bytes_max: int = 288 << 20
    """Longest body in pieces for a follower, above any `max.message.bytes`."""
    marks_s: float = 0.005
    """Time for which moved high watermarks are gathered."""
    ping_s: float = 0.5
    redial_s_min: float = 0.02
    retry_s_min: float = 0.02
    retry_s_max: float = 1.0
    """Back-off of a partition after a refusal, or after a failed append."""
    linger_s: float = 5.0
    """Time for which a connection without partitions stays open."""

    def __post_init__(self) -> None:
        ChannelSettings.__post_init__(self)
        assert 0 < self.chunk_bytes <= self.window_bytes
        assert 0 < self.piece_bytes <= MESSAGE_BYTES_MAX - HEADER_BYTES
        assert 0 < self.live_bytes_max <= self.piece_bytes
        assert self.chunk_bytes <= self.piece_bytes
        assert 0 < self.retry_s_min <= self.retry_s_max


class Throttle:
    """A token bucket. A chunk may overdraw it, as its length is known only after the read."""

    def __init__(self, clock: Clock, bytes_per_s: Callable[[], int]) -> None:
        """`bytes_per_s` is called each time. 0 is no bound."""
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._tokens = 0.0
        self._as_of_s = clock.monotonic()

    def wait_s(self) -> float:
        """Seconds until the next check. 0 if the next chunk may be sent now."""
        rate = self._bytes_per_s()
        if rate <= 0:
            return 0.0
        now_s = self._clock.monotonic()
        earned = (now_s - self._as_of_s) * rate
        self._tokens = min(self._tokens + earned, rate * BURST_S)
        self._as_of_s = now_s
        if self._tokens >= 0:
            return 0.0
        return min(max(-self._tokens / rate, WAIT_S_MIN), WAIT_S_MAX)

    def took(self, size_bytes: int) -> None:
        """Take the tokens of sent bytes."""
        if self._bytes_per_s() > 0:
            self._tokens -= size_bytes
