"""Plain, immutable values of the client's public interface.

Values made once per record are `msgspec.Struct(gc=False)`. They hold only bytes, text and numbers
and are in no cycle. Without tracking by the garbage collector, millions of records cost no pauses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple

import msgspec
from typing_extensions import TypeVar

from raftlog.api.common import offset_before_end
from raftlog.api.records import Isolation

K = TypeVar("K", default=bytes | None)
V = TypeVar("V", default=bytes | None)
"""Types of a record's key and value when read, the deserializers' results."""

Headers = Sequence[tuple[str, bytes | None]]
"""Record headers as names, which may repeat, with values, in order."""

CREATE_TIME = 0
LOG_APPEND_TIME = 1


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class Record(msgspec.Struct, Generic[K, V], frozen=True, gc=False):
    """One record as it is read.

    `timestamp` is in milliseconds since the Unix epoch. `timestamp_type` is 0 for the producer's
    time, 1 for the leader's time of the append. A `value` of None is a tombstone.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: K
    value: V
    headers: Headers = ()

    @property
    def topic_partition(self) -> TopicPartition:
        """The record's partition."""
        return TopicPartition(self.topic, self.partition)


class RecordMetadata(msgspec.Struct, frozen=True, gc=False):
    """Place of an acknowledged record. `offset` is -1 (unknown) with acks=0."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int = CREATE_TIME

    @property
    def topic_partition(self) -> TopicPartition:
        """The record's partition."""
        return TopicPartition(self.topic, self.partition)


class ProducerRecord(msgspec.Struct, Generic[K, V], frozen=True, gc=False):
    """One record for `Producer.send_many`, with more than a value or a (key, value) pair."""

    value: V
    key: K
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Records of one `send_many` in one partition.

    Other producers' records may stand between the first and the last offset.
    """

    first_offset: int
    last_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class SendSummary:
    """The acknowledged records of a `send_many`."""

    count: int = 0
    partitions: Mapping[TopicPartition, PartitionRange] = field(default_factory=dict)


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a timestamp, by its offset and its timestamp (ms)."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Readable offsets from `beginning_offset` up to the exclusive `end_offset`."""

    beginning_offset: int
    end_offset: int
    high_watermark: int
    topic_id: str = ""
    """Id of the topic with these offsets. A topic created again under the name has another id."""
    last_stable_offset: int = -1
    """First offset possibly in an open transaction, the end for readers of committed records."""

    def end_for(self, isolation: Isolation) -> int:
        """Return the offset after the last record for a reader of this isolation."""
        return self.last_stable_offset if isolation == "read_committed" else self.end_offset

    def before_end(self, count: int, isolation: Isolation) -> int:
        """Return the offset `count` before that end, or the first. See `offset_before_end`."""
        return offset_before_end(self.beginning_offset, self.end_for(isolation), count)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition in the cluster's metadata. `leader` is None without a leader."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A node of the cluster and its address."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster's name, its active controller (None if unknown) and its nodes."""

    cluster_id: str
    controller_id: int | None
    brokers: tuple[BrokerInfo, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with its partitions in order, from 0."""

    name: str
    topic_id: str
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. The cluster's defaults replace None."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration value of a topic.

    `source` names its origin in the words of Kafka's admin interface (DYNAMIC_TOPIC_CONFIG,
    STATIC_BROKER_CONFIG, DEFAULT_CONFIG). `is_default` is true if no setting overrides the default.
    `note` is not empty for a config of Kafka that the nodes keep without effect.
    """

    name: str
    value: str | None
    is_default: bool
    source: str
    is_read_only: bool = False
    is_sensitive: bool = False
    note: str = ""


class RebalanceListener:
    """Called inside the consumer's read calls when partitions change. Override any method.

    A method may be sync or async. An exception reaches the read call after the change is done.
    """

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> Awaitable[None] | None:
        """Commit offsets of partitions about to go to other members, at the last moment."""

    def on_partitions_assigned(
        self, assigned: Collection[TopicPartition]
    ) -> Awaitable[None] | None:
        """Handle new partitions. `seek` here takes the place of the committed offset."""

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> Awaitable[None] | None:
        """Handle partitions of an ended session. Others may read them, so commits are too late."""


class OffsetAndMetadata(NamedTuple):
    """A committed offset, which is the next to read. `metadata` is the application's text."""

    offset: int
    metadata: str = ""


class GroupMetadata(NamedTuple):
    """A consumer's membership, for offsets committed in a producer's transaction."""

    group_id: str
    member_id: str
    member_epoch: int


def require_at_least(minimum: float, **settings: float) -> None:
    """Raise ValueError for a setting below the minimum."""
    for name, value in settings.items():
        if value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, not {value}")
