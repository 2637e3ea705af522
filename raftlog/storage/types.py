"""Plain values of logs (settings, states and results)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from raftlog.record.types import LeaderEpoch, Offset

UNLIMITED = -1
"""Value of a retention setting without a limit."""


class FlushMode(StrEnum):
    """Condition under which an append counts as durable (promises 1 and 2)."""

    SYNC = "sync"
    """Durable once synced to disk. Every append starts a sync."""
    ASYNC = "async"
    """Durable enough once in the operating system's cache, and synced in the background."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one log, with the names and meanings of Kafka's topic configs."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3_600_000
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3_600_000
    retention_bytes: int = UNLIMITED
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = 24 * 3_600_000
    min_compaction_lag_ms: int = 0
    min_cleanable_dirty_ratio: float = 0.5
    max_message_bytes: int = 1_048_588
    flush: FlushMode = FlushMode.SYNC
    log_append_time: bool = False

    @property
    def deletes(self) -> bool:
        """Whether old segments are dropped by age and size."""
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        """Whether only the newest record of each key is kept."""
        return "compact" in self.cleanup_policy


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Settings of a node's storage maintenance. All have working defaults."""

    recovery_bytes_max: int = 16 << 20
    """Unrecovered bytes of one log beyond which its recovery point is advanced."""
    recovery_age_max_ms: int = 10_000
    """Time after which the recovery point of any changed log is advanced."""
    retention_interval_ms: int = 30_000
    """Interval at which each log is checked for due segments, and for compaction."""
    reserve_bytes: int = 4 << 20
    """Bytes reserved for checkpoints, indexes and metadata, which appends leave free."""
    scrub_bytes_per_s: int = 8 << 20
    """Rate of reading finished segments again to find damage. 0 turns scrubbing off."""
    scrub_interval_s: int = 7 * 24 * 3600
    """Shortest time between two reads of the same segment."""


NO_TIMESTAMP = -1
NO_EPOCH = LeaderEpoch(-1)
"""Epoch of the last record of an empty log."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Offsets of one appended batch. A duplicate has the offsets of the first append."""

    base_offset: Offset
    last_offset: Offset
    log_append_time_ms: int = NO_TIMESTAMP
    """The broker's time if the topic stamps with it, else NO_TIMESTAMP."""
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Whole, checked record batches, from the batch containing the requested offset on.

    The next read starts at `next_offset`. Without data, `next_offset` may be past the requested
    offset when compaction removed the records between.
    """

    data: bytes | memoryview
    next_offset: Offset


class LogState(StrEnum):
    """Whether a log can be used."""

    ONLINE = "online"
    FAILED = "failed"
    """The content of the disk is unknown after an I/O error. Not used again until the next start.
    """
    DAMAGED = "damaged"
    """Recovery found durable bytes changed or missing. The files are kept."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """A batch on disk that fails its check. It is never served, and its bytes are kept."""

    segment_base_offset: Offset
    position: int
    offset: Offset
    """First unreadable offset."""


@dataclass(frozen=True, slots=True)
class UnreadableBatch:
    """An intact batch that cannot be decoded. Compaction stops before it."""

    offset: Offset
    reason: str


@dataclass(frozen=True, slots=True)
class PossibleLoss:
    """A power cut may have taken records from `from_offset` on (flush=async)."""

    from_offset: Offset
    torn_bytes: int


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """Result of one compaction."""

    segments_rewritten: int
    bytes_before: int
    bytes_after: int
    compacted_offset: Offset
    """Offset below which all is compacted."""
    is_partial: bool = False
    """Whether there are more keys than one pass can map. Then another pass should follow at once.
    """
