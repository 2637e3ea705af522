"""A consumer's subscription, and the state of each assigned partition.

Three offsets count. `fetch_offset` is the next to fetch, `position` the next to leave the buffer.
The application's position may be behind by records of its present unit (fetch/record_buffer.py).

A subscription is a set of topic names, or a pattern that names match.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from raftlog.record.batch import iterate_batches
from raftlog.record.isolation import readable_batches
from raftlog.record.types import AbortedTransaction, Buffer
from raftlog_client.errors import RaftlogClientError
from raftlog_client.metadata import ClusterView
from raftlog_client.types import Record, TopicPartition


class OffsetReset(Enum):
    """Start of a partition without a position, or with a position out of range."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"

    @classmethod
    def of(cls, name: str) -> OffsetReset:
        """Return the start by its name. Raises ValueError."""
        try:
            return cls(name)
        except ValueError:
            raise ValueError(
                f"auto_offset_reset must be latest, earliest or none, not {name!r}"
            ) from None


class Chunk:
    """Fetched batches, before decoding."""

    __slots__ = ("batches", "next_offset", "size_bytes")

    def __init__(
        self,
        data: Buffer,
        next_offset: int,
        *,
        check_crc: bool,
        aborted: Sequence[AbortedTransaction] = (),
    ) -> None:
        self.batches = readable_batches(iterate_batches(data, check_crc=check_crc), aborted)
        self.next_offset = next_offset
        """First offset after the chunk. Compaction may have left a gap before."""
        self.size_bytes = len(data)


@dataclass(eq=False, repr=False, slots=True)
class PartitionState:
    """Positions and buffered data of one partition. Bounded by the fetcher's limits."""

    source: TopicPartition
    reset: OffsetReset | None
    """Method to find the position, or None once there is a position."""
    topic_id: str | None = None
    """Id of the topic with the position's records, or None before the first fetch. A topic
    created again under the name has another id."""
    is_replaced: bool = False
    """Whether a TopicChangedError was raised since the last jump."""
    position: int = -1
    fetch_offset: int = -1
    generation: int = 0
    """Count of jumps. Data requested before a jump is dropped after."""
    chunks: deque[Chunk] = field(default_factory=deque)
    buffered_bytes: int = 0
    decoded: list[Record[Any, Any]] = field(default_factory=list)
    """Decoded records, not handed out yet."""
    error: RaftlogClientError | None = None
    """Error that is raised when it is next in order."""
    high_watermark: int | None = None
    log_start_offset: int | None = None
    is_paused: bool = False
    is_revoked: bool = False
    """Whether the group takes the partition away, so it must be committed and dropped."""
    awaits_commit: bool = False
    """Whether the position is the group's committed offset, which is not known yet."""
    committed: int = -1
    """The group's committed offset as this consumer knows it."""
    given_from: int = -1
    """First offset of the records that the application has and may not have processed."""
    is_ready: bool = False
    """Whether the partition is in the buffer's list to serve."""
    is_wanted: bool = False
    """Whether the partition is in the fetcher's list to request."""
    is_waiting: bool = False
    """Whether the partition pauses after a failure."""
    in_flight: object | None = None
    """The partition's fetch request under way."""
    attempts: int = 0
    """Consecutive failures."""

    @property
    def has_data(self) -> bool:
        """Whether there are records, or an error, to serve."""
        return self.has_records or self.error is not None

    @property
    def has_records(self) -> bool:
        """Whether there are records, or chunks, to serve."""
        return bool(self.decoded or self.chunks)

    @property
    def is_stopped(self) -> bool:
        """Whether nothing of the partition is fetched or served for now."""
        return self.is_paused or self.is_revoked

    def jump(self, offset: int) -> None:
        """Continue from `offset` and drop data fetched before.

        A jump after a TopicChangedError is within the new topic.
        """
        if self.is_replaced:
            self.topic_id = None
            self.is_replaced = False
        self.forget()
        self.position = self.fetch_offset = offset
        self.reset = None
        self.awaits_commit = False
        self.given_from = -1

    def jump_by(self, reset: OffsetReset) -> None:
        """Find a new position and drop data fetched before."""
        self.forget()
        self.topic_id = None
        self.position = self.fetch_offset = -1
        self.reset = reset

    def forget(self) -> None:
        """Drop buffered data and requests under way."""
        self.generation += 1
        self.chunks.clear()
        self.buffered_bytes = 0
        self.decoded = []
        self.error = None


class Subscription:
    """Names or a pattern, never both. Raises ValueError for both, or a malformed pattern."""

    def __init__(self, names: Sequence[str], pattern: str | re.Pattern[str] | None = None) -> None:
        if names and pattern is not None:
            raise ValueError("subscribe to topics or to a pattern, not to both")
        self.names = tuple(dict.fromkeys(names))
        try:
            self._pattern = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise ValueError(f"malformed pattern {pattern!r}: {error}") from error

    @property
    def pattern(self) -> str | None:
        """Text of the pattern, if any."""
        return None if self._pattern is None else self._pattern.pattern

    @property
    def is_active(self) -> bool:
        """Whether anything is subscribed."""
        return bool(self.names) or self._pattern is not None

    @property
    def names_to_ask(self) -> Sequence[str] | None:
        """Return the topics to refresh metadata of, or None for all."""
        return self.names if self._pattern is None else None

    def topics(self, view: ClusterView) -> set[str]:
        """Return the subscribed topics, or a pattern's matches in the view."""
        if self._pattern is None:
            return set(self.names)
        return {name for name in view.topics if self._pattern.fullmatch(name)}

    def partitions(self, view: ClusterView) -> list[TopicPartition]:
        """Return all existing partitions of the subscribed topics."""
        return [
            TopicPartition(name, info.partition)
            for name in sorted(self.topics(view))
            if name in view.topics
            for info in view.topics[name].partitions
        ]
