"""How one log behaves: the part of a topic's configuration that storage acts on.

Bounds of a node's storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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

    recovery_bytes_max: int = 16 << 20
    """Bytes of one log behind its recovery point, beyond which it is advanced."""
    recovery_age_max_ms: int = 10_000
    """Time after which the recovery point of a log that changed is advanced all the same."""
    retention_interval_ms: int = 30_000
    """How often each log is looked at for segments that are due, and for compaction."""
    reserve_bytes: int = 4 << 20
    """Room that appends leave for checkpoints, indexes and metadata."""
    scrub_bytes_per_s: int = 8 << 20
    """How fast finished segments are read again to find damage; 0: they are not."""
    scrub_interval_s: int = 7 * 24 * 3600
    """Each segment is read again once in this time at most."""
