"""The image is a node's view of the cluster at an index of the log.

Rows (`TopicImage`, `PartitionImage`, `BrokerImage`) are immutable. A change replaces the row and
shares its unchanged parts. The tables of rows are changed in place, and only by
`metadata/apply/apply.py`, which never awaits. So a row stays consistent for as long as a reader
keeps it. A reader with an await between two rows, and without tolerance for a command applied in
between, makes a `copy()` first.

A partition of three replicas costs 110 to 230 bytes, so 100,000 of them fit in 25 MB.

Topic names follow Kafka's rules, so that a topic can be mirrored to and from any such cluster. A
legal name is also a harmless path segment, URL segment and metric label. Even so, no path on disk
is ever made of a name, but of the topic's id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from raftlog.record.errors import (
    INVALID_TOPIC,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    LogError,
    quoted,
)
from raftlog.record.types import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    ProducerId,
    TopicId,
)

NO_LEADER_ID: Final = BrokerId(-1)
"""The leader of a partition without a leader."""
NO_EPOCH: Final = LeaderEpoch(-1)
"""The epoch where no leader epoch is meant."""


class PartitionImage(
    msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True
):
    """One partition, with its replicas, its in-sync set and its leader.

    `isr` and `elr` are disjoint parts of `replicas`, in its order. The leader is in `isr`, or
    NO_LEADER_ID. A broker in `elr` (KIP-966) left the ISR when the ISR fell below
    min.insync.replicas. No record was committed since, so the broker may lead. `leader_epoch` grows
    with every change of leader or of its incarnation, and when a replica has lost records.
    `partition_epoch` grows with every change at all, and a proposed change names the epoch of its
    decision. While replicas are reassigned (KIP-455), `adding` and `removing` are disjoint parts of
    `replicas`, neither of them all. They are the joining replicas, and the replicas that leave
    after the joining replicas have caught up.

    `unclean_epoch` is the leader epoch started by the newest unclean election, or NO_EPOCH. Records
    committed before may be lost, and only then may a follower fall below its high watermark.
    """

    partition: PartitionId
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    unclean_epoch: LeaderEpoch = NO_EPOCH


class TopicImage(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One topic. `configs` holds only the topic's settings. `partitions[n]` is partition n."""

    topic_id: TopicId
    name: str
    configs: Mapping[str, str]
    partitions: tuple[PartitionImage, ...]

    @property
    def replication_factor(self) -> int:
        """Replicas of each partition, without those being added."""
        first = self.partitions[0]
        return len(first.replicas) - len(first.adding)

    def partition(self, partition: int) -> PartitionImage:
        """The partition of the number. Raises LogError(UNKNOWN_PARTITION)."""
        if 0 <= partition < len(self.partitions):
            return self.partitions[partition]
        raise LogError(
            UNKNOWN_PARTITION,
            f"Topic {self.name} has no partition {partition}: it has {len(self.partitions)}, "
            "numbered from 0.",
        )


class BrokerImage(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One broker, as of its last start. See `RegisterBroker` for the fields.

    A fenced broker gets no leadership and enters no ISR, since it has just started, or its session
    has expired. A broker in controlled shutdown gets no new duties either, but keeps its present
    duties.

    `maintenance` and `decommissioning` are an operator's requests, and outlast starts. A broker in
    maintenance keeps its replicas, but leads only without another choice. A decommissioned broker
    gets no more replicas, and its present replicas move to others.
    """

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    directory_id: str
    incarnation: str
    host: str
    port: int
    rack: str | None
    software_version: str
    command_version: int
    fenced: bool
    controlled_shutdown: bool = False
    maintenance: bool = False
    decommissioning: bool = False
    kafka_host: str | None = None
    kafka_port: int | None = None

    @property
    def is_available(self) -> bool:
        """Whether the broker may get leaderships, or enter an ISR."""
        return not self.fenced and not self.controlled_shutdown

    @property
    def may_hold(self) -> bool:
        """Whether the broker may get replicas."""
        return self.is_available and not self.decommissioning


class MetadataImage:
    """All rows, as of `applied_index`. Only `apply` may change the image.

    Read freely from the event loop. Two images are equal if they hold the same rows as of the same
    index.
    """

    __slots__ = (
        "applied_index",
        "brokers",
        "cluster_id",
        "cluster_settings",
        "created_ms",
        "deleted_topic_ids",
        "next_producer_id",
        "topics_by_id",
        "topics_by_name",
    )

    def __init__(self) -> None:
        self.applied_index = 0
        self.cluster_id: str | None = None
        self.created_ms = 0
        self.brokers: dict[BrokerId, BrokerImage] = {}
        self.topics_by_name: dict[str, TopicImage] = {}
        self.topics_by_id: dict[TopicId, TopicImage] = {}
        self.deleted_topic_ids: dict[TopicId, None] = {}
        """Ids of the newest deleted topics, oldest first."""
        self.next_producer_id = ProducerId(0)
        self.cluster_settings: Mapping[str, str] = {}
        """Broker configs, and topic configs for all topics without their own value. Replaced as a
        whole, like a row."""

    def topic(self, name: str) -> TopicImage:
        """The topic of the name. Raises LogError(UNKNOWN_TOPIC)."""
        topic = self.topics_by_name.get(name)
        if topic is None:
            raise LogError(UNKNOWN_TOPIC, f"Topic {quoted(name)} not found.")
        return topic

    def partition(self, name: str, partition: int) -> PartitionImage:
        """A topic's partition. Raises LogError(UNKNOWN_TOPIC or UNKNOWN_PARTITION)."""
        return self.topic(name).partition(partition)

    def newest_leader_epoch(self, name: str, partition: PartitionId | None) -> int:
        """The leader epoch of a partition, or the highest of the topic's, for None.

        -1 without such a topic or partition.
        """
        topic = self.topics_by_name.get(name)
        rows = () if topic is None else topic.partitions
        return max(
            (row.leader_epoch for row in rows if partition in {None, row.partition}), default=-1
        )

    @property
    def partition_count(self) -> int:
        """Partitions of all topics together."""
        return sum(len(topic.partitions) for topic in self.topics_by_id.values())

    def copy(self) -> MetadataImage:
        """A copy that later commands do not change. Shares the rows, so costs only the tables."""
        other = MetadataImage()
        other.applied_index = self.applied_index
        other.cluster_id = self.cluster_id
        other.created_ms = self.created_ms
        other.brokers = self.brokers.copy()
        other.topics_by_name = self.topics_by_name.copy()
        other.topics_by_id = self.topics_by_id.copy()
        other.deleted_topic_ids = self.deleted_topic_ids.copy()
        other.next_producer_id = self.next_producer_id
        other.cluster_settings = self.cluster_settings
        return other

    def _content(self) -> tuple[object, ...]:
        return (
            self.applied_index,
            self.cluster_id,
            self.created_ms,
            self.brokers,
            self.topics_by_name,
            self.topics_by_id,
            list(self.deleted_topic_ids),
            self.next_producer_id,
            self.cluster_settings,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MetadataImage):
            return NotImplemented
        return self._content() == other._content()

    __hash__ = None  # type: ignore[assignment]  # mutable: typeshed has no other way to say so


TOPIC_NAME_CHARACTERS_MAX: Final = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_fault(name: str) -> str | None:
    """The fault of a topic name, as a sentence for its author, or None."""
    if not name:
        return "A topic name must not be empty."
    if len(name) > TOPIC_NAME_CHARACTERS_MAX:
        return (
            f"A topic name has at most {TOPIC_NAME_CHARACTERS_MAX} characters; "
            f"this one has {len(name)}."
        )
    if name in {".", ".."}:
        return "A topic name must not be '.' or '..'."
    if _LEGAL.fullmatch(name) is None:
        return (
            f"Topic name {quoted(name)} is not valid: only ASCII letters and digits, "
            "'.', '_' and '-' are allowed."
        )
    return None


def check_topic_name(name: str) -> str:
    """The name itself, if legal. Raises LogError(INVALID_TOPIC)."""
    fault = topic_name_fault(name)
    if fault is not None:
        raise LogError(INVALID_TOPIC, fault)
    return name
