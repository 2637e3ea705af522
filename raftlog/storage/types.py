"""Settings, states and results of logs: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from raftlog.record.types import LeaderEpoch, Offset

UNLIMITED = -1
"""Value of a retention setting that deletes nothing."""


class FlushMode(StrEnum):
    """What an append's durability means (promises 1 and 2)."""

    SYNC = "sync"
    """Durable once synced to disk: every append starts a sync."""
    ASYNC = "async"
    """Durable enough once the operating system has it: synced in the background."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one log. Names and meanings are Kafka's topic configs, where it has them."""

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
    flush_interval_ms: int = 1000
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
    """How a node looks after its logs. All of it has working defaults."""

    tick_interval_ms: int = 250
    """How often maintenance looks."""
    checkpoint_interval_ms: int = 1000
    """How old the checkpoint file may get while logs change."""
    recovery_bytes_max: int = 16 << 20
    """Bytes of one log behind its recovery point, beyond which it is advanced."""
    recovery_batches_max: int = 16_384
    """Batches behind it, beyond which it is advanced: small ones cost a scan more than bytes."""
    recovery_age_max_ms: int = 10_000
    """Time after which the recovery point of a log that changed is advanced all the same."""
    checkpoints_per_tick_max: int = 16
    retention_interval_ms: int = 30_000
    """How often each log is looked at for segments that are due, and for compaction."""
    retentions_per_tick_max: int = 64
    removals_per_tick_max: int = 16
    """Files of deleted topics that one tick removes."""
    reserve_bytes: int = 4 << 20
    """Room that appends leave for checkpoints, indexes and metadata."""
    open_files_max: int = 512
    """Open files of old segments and indexes that nobody uses at the moment."""
    opens_at_once_max: int = 4
    """Logs that are opened, or closed, at the same time."""
    scrub_bytes_per_s: int = 8 << 20
    """How fast finished segments are read again to find damage; 0: they are not."""
    scrub_interval_s: int = 7 * 24 * 3600
    """Each segment is read again once in this time at most."""


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
