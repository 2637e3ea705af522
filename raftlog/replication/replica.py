"""What a replica is in either role: its log, its metadata, how far it is known to be committed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from raftlog.metadata.image import BrokerImage, PartitionImage
from raftlog.record.errors import NO_LEADER, NOT_READY, LogError
from raftlog.record.types import BrokerId, Offset, PartitionId, TopicId
from raftlog.replication.waiters import CommittedBytes, ReadWaiters
from raftlog.storage.log import Log
from raftlog.storage.types import FlushMode
from raftlog.world import Clock

CONFIRM_S: Final = 1.0
"""How long a leader may take to make sure that it still leads, before it tells where the end is."""


class Acks(IntEnum):
    """How far a batch must have come before its writer is answered."""

    NONE = 0
    LEADER = 1
    ALL = -1


@dataclass(frozen=True, slots=True)
class Fetched:
    """Committed record batches, whole, the first of them holding the offset asked for."""

    data: bytes | memoryview
    next_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset


async def _know_all() -> None:
    """For replicas without a cluster."""


@dataclass(frozen=True, slots=True)
class Host:
    """What the replicas of one node share."""

    broker_id: BrokerId
    clock: Clock
    brokers: Callable[[], Mapping[BrokerId, BrokerImage]]
    """As of the applied metadata."""
    may_act: Callable[[], bool] = lambda: True
    """Whether this node may act as a leader, at the moment of asking."""
    on_isr_wish: Callable[[TopicId, PartitionId], None] = lambda _topic, _partition: None
    """Told that a partition led here may want another in-sync set: see `Partition.isr_wish`."""
    confirm: Callable[[], Awaitable[object]] = _know_all
    """Returns once this node has applied all metadata that was committed before the call. Raises
    LogError."""


class Replica:
    """One replica, whatever its role. Lives in the event loop."""

    def __init__(
        self,
        *,
        topic: str,
        topic_id: TopicId,
        log: Log,
        image: PartitionImage,
        min_insync_replicas: int,
        host: Host,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.log = log
        self.image = image
        self.min_insync_replicas = min_insync_replicas
        self.host = host
        self.name = f"{topic}-{image.partition}"
        self.high_watermark = min(log.high_watermark, log.log_end_offset)
        """First offset that is not known here to be committed."""
        self.readers = ReadWaiters(self.name)
        self.bytes = CommittedBytes()
        if self.high_watermark < log.log_end_offset:
            # Too many rather than too few: who waits for them is woken early.
            self.bytes.appended(log.log_end_offset, log.size_bytes)
        self.closed: LogError | None = log.failure
        """Why it serves nobody any more."""

    @property
    def durable_end(self) -> Offset:
        """Everything below is durable on this node, as the flush mode has it."""
        if self.log.flush_mode is FlushMode.ASYNC:
            return self.log.log_end_offset
        return self.log.flushed_offset

    def move_high_watermark(self, end: Offset) -> None:
        """Everything below `end` is committed."""
        self.high_watermark = self.log.high_watermark = end
        self.bytes.committed(end)
        self.readers.committed(end)

    def require_open(self) -> None:
        """Raise LogError if it serves nobody any more."""
        if self.closed is not None:
            raise LogError(self.closed.entry, self.closed.message)

    async def confirm(self) -> None:
        """Return once this node has applied all metadata that was committed before the call.

        Whoever leads then as far as it knows, led when it was asked. Raises LogError NO_LEADER.
        """
        if not self.may_be_led_elsewhere:
            return
        try:
            async with asyncio.timeout(CONFIRM_S):
                await self.host.confirm()
        except (LogError, TimeoutError) as error:
            # Without the partition's name: what is found out once is told of many.
            why = error.message if isinstance(error, LogError) else "The quorum does not answer."
            raise LogError(
                NO_LEADER, f"Whether this node still leads is not known at the moment. {why}"
            ) from None

    @property
    def may_be_led_elsewhere(self) -> bool:
        """Whether another node could be elected without this one's knowledge."""
        return len(self.image.replicas) > 1

    def not_led_here(self) -> LogError:
        """What to tell who wants the leader."""
        if self.image.leader == self.host.broker_id and self.closed is None:
            return LogError(NOT_READY, f"{self.name} is about to be led by this node.")
        leader = self.host.brokers().get(self.image.leader)
        return not_led_here(self.topic, self.image.partition, leader)


def not_led_here(topic: str, partition: int, leader: BrokerImage | None) -> LogError:
    """The error for a partition that another broker leads, or none: with where to ask instead."""
    if leader is None:
        where = "no broker leads it at the moment"
    else:
        host = f"[{leader.host}]" if ":" in leader.host else leader.host
        where = f"broker {leader.broker_id} leads it, ask there: {host}:{leader.port}"
    return LogError(NO_LEADER, f"{topic}-{partition} is not led by this node; {where}.")
