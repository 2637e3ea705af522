"""What a log answers: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from raftlog.record.types import LeaderEpoch, Offset

NO_TIMESTAMP = -1
NO_EPOCH = LeaderEpoch(-1)
"""Of the last record of a log that has none."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where one batch went. For a repeated batch: where it went the first time."""

    base_offset: Offset
    last_offset: Offset
    log_append_time_ms: int = NO_TIMESTAMP
    """The broker's time if the topic stamps with it, else NO_TIMESTAMP."""
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Whole, checked record batches. The first contains the offset asked for, if it still exists.

    `next_offset` is where to go on; with no data it may be past the offset asked for, when the
    records between were compacted away.
    """

    data: bytes | memoryview
    next_offset: Offset


class LogState(StrEnum):
    """Whether a log can be used."""

    ONLINE = "online"
    FAILED = "failed"
    """An I/O error: what the disk holds is unknown. Not used again until the next start."""
    DAMAGED = "damaged"
    """Recovery found bytes changed or missing that had been durable. The files are kept."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """A batch on disk that fails its check: it is never served, and its bytes are kept."""

    segment_base_offset: Offset
    position: int
    offset: Offset
    """First offset that cannot be read."""


@dataclass(frozen=True, slots=True)
class UnreadableBatch:
    """A batch that is whole and cannot be decoded: compaction goes no further than to it."""

    offset: Offset
    reason: str


@dataclass(frozen=True, slots=True)
class PossibleLoss:
    """After a power cut, records from `from_offset` on may have existed (flush=async)."""

    from_offset: Offset
    torn_bytes: int


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What one compaction did."""

    segments_rewritten: int
    bytes_before: int
    bytes_after: int
    compacted_offset: Offset
    """All below this offset has been compacted."""
    is_partial: bool = False
    """There were more keys than one pass can learn: another pass should follow at once."""
