"""Times and bounds of the streams between followers and leaders."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.replication.stream_protocol import HEADER_BYTES
from raftlog.world.network import MESSAGE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """All nodes of a cluster should be given the same. The defaults are right for all but tests."""

    window_bytes: int = 16 << 20
    """Sent to one follower and not yet durable there. Above it the leader waits for
    acknowledgements; one batch that is longer than a chunk may go over it."""
    chunk_bytes: int = 1 << 20
    """Read at once for a follower that is behind."""
    live_bytes_max: int = 4 << 20
    """A longer append is read back from the log instead of being sent from memory."""
    piece_bytes: int = 4 << 20
    """A batch that is longer goes in several messages."""
    queued_bytes_max: int = 8 << 20
    """What was read from the log waits while more than that waits in the connection."""
    pace_s: float = 0.005
    """How long they wait before they look again."""
    batch_bytes_max: int = 288 << 20
    """Longest run of pieces that a follower puts together; above any `max.message.bytes`."""
    marks_s: float = 0.005
    """Moved high watermarks are gathered for so long."""
    ping_s: float = 0.5
    """Each side says something that often."""
    silent_pings_max: int = 4
    """A connection ends when the other side has been silent for so many of these intervals."""
    redial_s_min: float = 0.02
    redial_s_max: float = 1.0
    retry_s_min: float = 0.02
    retry_s_max: float = 1.0
    """Before a partition is asked for again that was refused, or could not be taken."""
    linger_s: float = 5.0
    """A connection that nothing is followed on stays open for so long."""

    def __post_init__(self) -> None:
        assert 0 < self.chunk_bytes <= self.window_bytes
        assert 0 < self.piece_bytes <= MESSAGE_BYTES_MAX - HEADER_BYTES
        assert 0 < self.live_bytes_max <= self.piece_bytes
        assert self.chunk_bytes <= self.piece_bytes
        assert 0 < self.redial_s_min <= self.redial_s_max
        assert 0 < self.retry_s_min <= self.retry_s_max
        assert self.silent_pings_max >= 2
