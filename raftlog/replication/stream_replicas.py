"""What the streams need of a replica: as its leader, and as its follower. Partition has both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from raftlog.metadata.image import PartitionImage
from raftlog.record.types import Buffer, LeaderEpoch, Offset, PartitionId, TopicId
from raftlog.replication.divergence import BelowStart, Diverging, Feed, FetchPosition
from raftlog.storage.types import ReadResult


class Replica(Protocol):
    """One replica on this node. Every call may raise LogError: NO_LEADER if the node is not, or
    not in that epoch, what it was taken for."""

    @property
    def topic(self) -> str:
        """The topic's name, for logs."""
        ...

    @property
    def topic_id(self) -> TopicId:
        """The topic."""
        ...

    @property
    def partition(self) -> PartitionId:
        """Its number in the topic."""
        ...

    @property
    def log_end_offset(self) -> Offset:
        """Offset that the next record gets."""
        ...

    @property
    def log_start_offset(self) -> Offset:
        """First offset that can be read."""
        ...


class LedReplica(Replica, Protocol):
    """A replica that leads."""

    @property
    def image(self) -> PartitionImage:
        """Its applied metadata."""
        ...

    @property
    def high_watermark(self) -> Offset:
        """First offset that is not committed."""
        ...

    def attach(self, feed: Feed, position: FetchPosition) -> Diverging | BelowStart | None:
        """Have the feed told of what is appended from now on. None: accepted."""
        ...

    def detach(self, feed: Feed) -> None:
        """Forget the feed. Harmless if it is not attached."""
        ...

    def acked(self, feed: Feed, durable_end: Offset, log_start_offset: Offset) -> None:
        """Everything below `durable_end` is durable at the feed's follower."""
        ...

    def producers_below(self, offset: Offset, *, leader_epoch: LeaderEpoch) -> bytes:
        """What a follower that begins anew at `offset` is to know of producers."""
        ...

    async def read_uncommitted(self, offset: Offset, *, max_bytes: int) -> ReadResult:
        """Batches from `offset` up to the log end."""
        ...


class FollowingReplica(Replica, Protocol):
    """A replica that follows."""

    on_durable: Callable[[], None] | None
    """Called when `durable_end` has moved."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The leader's epoch, as of the applied metadata."""
        ...

    @property
    def durable_end(self) -> Offset:
        """Everything below is durable here, as the topic's flush mode has it."""
        ...

    @property
    def durable_start(self) -> Offset:
        """Its log start offset, as far as that is written down: see `Log.durable_log_start`."""
        ...

    def position(self) -> FetchPosition:
        """From where on it needs data, and in which leader epoch it asks."""
        ...

    def append_fetched_now(
        self,
        data: Buffer,
        *,
        leader_epoch: LeaderEpoch,
        high_watermark: Offset,
        log_start_offset: Offset,
    ) -> bool:
        """Append at once, or nothing and False: then it takes the awaiting one."""
        ...

    async def append_fetched(
        self,
        data: Buffer,
        *,
        leader_epoch: LeaderEpoch,
        high_watermark: Offset,
        log_start_offset: Offset,
    ) -> None:
        """Append, waiting for what must be done first."""
        ...

    async def truncate_for(self, diverging: Diverging, *, leader_epoch: LeaderEpoch) -> None:
        """Cut what the leader does not have, as far as its answer tells."""
        ...

    async def restart_at(
        self, offset: Offset, *, producers: bytes, leader_epoch: LeaderEpoch
    ) -> None:
        """Empty the log; it begins at `offset`, with what `producers` tells of those below."""
        ...

    def learned(
        self, *, leader_epoch: LeaderEpoch, high_watermark: Offset, log_start_offset: Offset
    ) -> None:
        """The leader's high watermark and log start have moved."""
        ...
