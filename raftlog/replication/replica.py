"""A replica in either role has a log, metadata, a high watermark and topic configs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from raftlog.controller.lead_permit import LeadPermit
from raftlog.metadata.apply.cluster import PRODUCER_ID_MAX
from raftlog.metadata.configs.topic import TopicConfig, validate_defaults
from raftlog.metadata.image import BrokerImage, PartitionImage, TopicImage
from raftlog.record.errors import NO_LEADER, NOT_READY, LogError
from raftlog.record.types import (
    LEADER_EPOCH_MAX,
    AbortedTransaction,
    BrokerId,
    Offset,
    PartitionId,
    TopicId,
)
from raftlog.replication.waiters import CommittedBytes, ReadWaiters
from raftlog.storage.log.log import Log
from raftlog.storage.types import FlushMode, LogConfig
from raftlog.world import Clock
from raftlog.world.cluster_clock import ClusterClock

PARTITIONS_DEFAULT = 1
CONFIRM_S: Final = 1.0
"""Longest wait for a quorum confirmation before the leader reports its end offset."""

_NONE: Final[Mapping[str, str]] = {}


class Acks(IntEnum):
    """When an append is acknowledged."""

    NONE = 0
    LEADER = 1
    ALL = -1


class Origin(IntEnum):
    """The writer of an append."""

    CLIENT = 0
    COORDINATOR = 1
    """A coordinator, on behalf of a producer. Its batches have no sequence, and need no
    verification."""


class Isolation(IntEnum):
    """Which committed records a reader gets. The values are Kafka's."""

    READ_UNCOMMITTED = 0
    """All up to the high watermark."""
    READ_COMMITTED = 1
    """Records up to the last stable offset, with the aborted transactions, whose records to skip.
    """


@dataclass(frozen=True, slots=True)
class Fetched:
    """Committed record batches, whole. The first batch holds the requested offset."""

    data: bytes | memoryview
    next_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    last_stable_offset: Offset
    aborted: tuple[AbortedTransaction, ...] = ()
    """The aborted transactions in the range of the data, by first offset, for READ_COMMITTED."""


async def _no_barrier() -> None:
    """The barrier of replicas without a cluster."""


class WriteGate:
    """The node's refusal of all appends, or none, for all its partitions."""

    def __init__(self) -> None:
        self.refusal: LogError | None = None
        """Why the node takes no appends. None while the node takes appends."""

    def refuse(self, error: LogError | None) -> None:
        """Refuse all appends with `error`, an error of the node. None accepts appends again."""
        self.refusal = error


@dataclass(frozen=True, slots=True)
class Host:
    """The node, as its replicas see it."""

    broker_id: BrokerId
    clock: Clock
    cluster_clock: ClusterClock
    permit: LeadPermit
    """Whether this node may act as a leader, and the registration of this start. Before the
    registration the applied metadata may lag behind what this node knew at its last end (a start
    with a full disk)."""
    brokers: Callable[[], Mapping[BrokerId, BrokerImage]]
    """The brokers of the applied metadata."""
    on_isr_change_due: Callable[[TopicId, PartitionId], None] = lambda _topic, _partition: None
    """Called when a partition led here may need another ISR (`LeaderRole.desired_isr`)."""
    lead_listeners: list[Callable[[TopicId, PartitionId], None]] = field(default_factory=list)
    """Called when a partition begins to be led here, before its next append. Must not raise."""
    confirm: Callable[[], Awaitable[object]] = _no_barrier
    """Returns once this node has applied all metadata that was committed before the call. Raises
    LogError."""
    write_gate: WriteGate = field(default_factory=WriteGate)
    next_producer_id: Callable[[], int] = lambda: PRODUCER_ID_MAX
    """The first producer id that the applied metadata has not issued."""
    newest_coordinator: Callable[[PartitionId | None], int] = lambda _partition: LEADER_EPOCH_MAX
    """Leader epoch of a partition of `__transaction_state` in the applied metadata.

    The highest of all its partitions, with None."""


class Replica:
    """The part of a replica that both roles share. Lives in the event loop."""

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
        self.partition: Final = image.partition
        """The partition's number in its topic."""
        self.name = f"{topic}-{image.partition}"
        self.log = log
        self.image = image
        """The partition's row of the applied metadata."""
        self.min_insync_replicas = min_insync_replicas
        """In-sync replicas that `acks=all` needs."""
        self.host = host
        self.high_watermark = min(log.high_watermark, log.log_end_offset)
        """First offset that is not known here to be committed."""
        self.readers = ReadWaiters(self.name)
        """Long polls. They also wake when the replica closes or its role ends, and their next read
        raises the reason. Compare with `high_watermark` before adding a reader."""
        self.stable_readers = ReadWaiters(self.name)
        """Long polls of READ_COMMITTED, like `readers`, but by the last stable offset."""
        self.committed_bytes = CommittedBytes()
        if self.high_watermark < log.log_end_offset:
            # Too many rather than too few, so a long poll that waits for bytes may wake early.
            self.committed_bytes.appended(log.log_end_offset, log.size_bytes)
        self.close_error: LogError | None = log.failure
        """Why the replica is closed. None while it is open."""

    @property
    def is_closed(self) -> bool:
        """Whether the replica has stopped serving, for good."""
        return self.close_error is not None

    @property
    def log_start_offset(self) -> Offset:
        """First offset that can still be read."""
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Offset that the next record gets."""
        return self.log.log_end_offset

    @property
    def durable_end(self) -> Offset:
        """Everything below is durable on this node, by the flush mode."""
        if self.log.flush_mode is FlushMode.ASYNC:
            return self.log.log_end_offset
        return self.log.flushed_offset

    @property
    def last_stable_offset(self) -> Offset:
        """First offset that is not known here to be committed, and free of open transactions. Never
        falls within a leader epoch (`storage.transactions`)."""
        return self.log.last_stable_offset(self.high_watermark)

    def readable_end(self, isolation: Isolation) -> Offset:
        """First offset that readers of this isolation do not get yet."""
        if isolation is Isolation.READ_UNCOMMITTED:
            return self.high_watermark
        return self.last_stable_offset

    def waiters(self, isolation: Isolation) -> ReadWaiters:
        """The long polls that wait for `readable_end` to move."""
        return self.readers if isolation is Isolation.READ_UNCOMMITTED else self.stable_readers

    def wake_stable_readers(self) -> None:
        """Wake the readers whose offset the last stable offset has passed."""
        if len(self.stable_readers):
            self.stable_readers.committed(self.last_stable_offset)

    def wake_all_readers(self) -> None:
        """Wake all long polls. The next read of each raises the reason."""
        self.readers.wake_all()
        self.stable_readers.wake_all()

    def move_high_watermark(self, end: Offset) -> None:
        """Mark everything below `end` as committed, and wake the readers that waited for it."""
        self.high_watermark = end
        self.log.note_high_watermark(end)
        self.committed_bytes.committed(end)
        self.readers.committed(end)
        self.wake_stable_readers()

    def fit_high_watermark(self) -> None:
        """Bound the high watermark by the ends of the log, which a rearrangement has moved."""
        end = max(min(self.high_watermark, self.log.log_end_offset), self.log.log_start_offset)
        self.high_watermark = end
        self.log.note_high_watermark(end)

    def require_open(self) -> None:
        """Raise LogError if the replica is closed."""
        if self.close_error is not None:
            raise LogError(self.close_error.entry, self.close_error.message)

    async def confirm(self) -> None:
        """Return once this node has applied all metadata that was committed before the call.

        A replica that leads afterwards, by the applied metadata, led at the time of the call. One
        call serves all partitions of the node. Returns at once for the only replica, which no other
        node can lead. Raises LogError NO_LEADER.
        """
        if self.may_be_led_elsewhere:
            await self.confirm_metadata()

    async def confirm_metadata(self) -> None:
        """Confirm as `confirm`, also for the only replica."""
        try:
            async with asyncio.timeout(CONFIRM_S):
                await self.host.confirm()
        except (LogError, TimeoutError) as error:
            # Without the partition's name, because one confirmation serves many partitions.
            why = error.message if isinstance(error, LogError) else "The quorum does not answer."
            raise LogError(
                NO_LEADER, f"Whether this node still leads is not known at the moment. {why}"
            ) from None

    @property
    def may_be_led_elsewhere(self) -> bool:
        """Whether another node could be elected without the knowledge of this node."""
        return len(self.image.replicas) > 1

    def not_led_here(self) -> LogError:
        """The error for a request that needs the leader."""
        if self.image.leader == self.host.broker_id and self.close_error is None:
            return LogError(NOT_READY, f"{self.name} is about to be led by this node.")
        return not_led_here(self.topic, self.image, self.host.brokers())


def not_led_here(
    topic: str, row: PartitionImage, brokers: Mapping[BrokerId, BrokerImage]
) -> LogError:
    """The error for a partition led by another broker or by none. Names the next step."""
    partition, leader = row.partition, brokers.get(row.leader)
    if leader is None and not row.isr and not row.elr:
        where = (
            "no broker leads it, as each replica may lack acknowledged records; `raftlog cluster "
            f"transfer-leadership --topic {topic} --partition {partition} --unclean` accepts that"
        )
    elif leader is None:
        where = "no broker leads it at the moment"
    else:
        host = f"[{leader.host}]" if ":" in leader.host else leader.host
        where = f"broker {leader.broker_id} leads it, ask there: {host}:{leader.port}"
    return LogError(NO_LEADER, f"{topic}-{partition} is not led by this node; {where}.")


class TopicSettings:
    """Topic configs in force here. The topic's override the cluster's, the cluster's the node's."""

    def __init__(
        self,
        defaults: Mapping[str, str] | None = None,
        partitions: int = PARTITIONS_DEFAULT,
        *,
        cluster: Callable[[], Mapping[str, str]] = lambda: _NONE,
    ) -> None:
        """`defaults` are the node's topic configs. `cluster` returns the cluster's present configs.
        Raises LogError(INVALID_CONFIG)."""
        self.defaults: Mapping[str, str] = validate_defaults(defaults or {})
        self.partitions_default = partitions
        self._cluster = cluster
        self._last: tuple[Mapping[str, str], Mapping[str, str], int, TopicConfig] | None = None
        """Configs of topic and cluster, replication factor, and the outcome of the last call. A
        topic's partitions call one after the other, by the thousand."""

    def topic_config(self, topic: TopicImage) -> TopicConfig:
        """All configs in force for the topic. Raises LogError(INVALID_CONFIG)."""
        cluster, factor = self._cluster(), topic.replication_factor
        last = self._last
        if last is not None and (topic.configs, cluster, factor) == last[:3]:
            return last[3]
        config = TopicConfig.from_configs(
            topic.configs, self.defaults, replication_factor=factor, cluster=cluster
        )
        self._last = (dict(topic.configs), dict(cluster), factor, config)
        return config

    def min_insync_replicas(self, topic: TopicImage) -> int:
        """In-sync replicas that `acks=all` needs."""
        return self.topic_config(topic).min_insync_replicas

    def log_config(self, topic: TopicImage) -> LogConfig:
        """Configuration of the topic's logs. Raises LogError(INVALID_CONFIG)."""
        config = self.topic_config(topic)
        return LogConfig(
            segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms,
            index_interval_bytes=config.index_interval_bytes,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            cleanup_policy=config.cleanup_policy,
            delete_retention_ms=config.delete_retention_ms,
            min_compaction_lag_ms=config.min_compaction_lag_ms,
            min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
            max_message_bytes=config.max_message_bytes,
            flush=FlushMode(config.flush),
            log_append_time=config.message_timestamp_type == "LogAppendTime",
        )
