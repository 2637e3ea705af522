"""Records of the internal topics `__consumer_offsets` and `__transaction_state`.

Keys and values have Kafka's fields, numbers and versions (coordinator records of Kafka 4), so that
Kafka's own tools read these topics. A key and a value start with a version (int16). A key's version
is the number of its type. `record_codec` encodes and decodes.

| key | number | value |
|---|---|---|
| OffsetCommitKey | 1 | OffsetCommitValue |
| GroupMetadataKey | 2 | GroupMetadataValue (classic kind) |
| ConsumerGroupMetadataKey | 3 | ConsumerGroupMetadataValue |
| ConsumerGroupMemberMetadataKey | 5 | ConsumerGroupMemberMetadataValue |
| ConsumerGroupTargetAssignmentMetadataKey | 6 | ConsumerGroupTargetAssignmentMetadataValue |
| ConsumerGroupTargetAssignmentMemberKey | 7 | ConsumerGroupTargetAssignmentMemberValue |
| ConsumerGroupCurrentMemberAssignmentKey | 8 | ConsumerGroupCurrentMemberAssignmentValue |
| ConsumerGroupRegularExpressionKey | 16 | ConsumerGroupRegularExpressionValue |
| TransactionLogKey | 0 of `__transaction_state` | TransactionLogValue |
| SinkEpochKey | 100 of `__transaction_state`, not Kafka's | SinkEpochValue |
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, TypeAlias

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, Int64, OptionalUuid, Uuid, Versions

NO_TIMESTAMP: Final = -1


class _Struct(msgspec.Struct, frozen=True, gc=False):
    """Fields in the order of the wire."""


class _Key(_Struct, frozen=True, gc=False):
    """A key. All keys are simple, and have one form."""

    VERSIONS: ClassVar = Versions(0, 0)


class _Nested(msgspec.Struct, frozen=True):
    """The same, for values that contain others."""


class TopicPartitions(_Nested, frozen=True):
    """Partitions of one topic, by its id."""

    topic_id: Uuid
    partitions: tuple[Int32, ...]


# Offsets


class OffsetCommitKey(_Key, frozen=True):
    """A group's offset of one partition."""

    group: str
    topic: str
    partition: Int32


class OffsetCommitValue(_Struct, frozen=True):
    """The next offset to read, with the committer's leader epoch and metadata."""

    VERSIONS: ClassVar = Versions(0, 4, flexible=4)

    offset: Int64
    leader_epoch: Annotated[Int32, Field(since=3, default=-1)]
    """Leader epoch, or -1 if unknown."""
    metadata: str
    commit_timestamp_ms: Int64
    expire_timestamp_ms: Annotated[Int64, Field(since=1, until=1)] = NO_TIMESTAMP
    """Expiry of old clients' offsets, or -1 for the group's retention."""
    topic_id: Annotated[OptionalUuid, Field(since=4, tag=0)] = None
    """None: the committer named the topic only (Kafka's zero uuid)."""


# Classic groups


class GroupMetadataKey(_Key, frozen=True):
    """A classic group."""

    group: str


class ClassicMember(_Struct, frozen=True):
    """A member of a classic group."""

    member_id: str
    group_instance_id: Annotated[str | None, Field(since=3, default=None)]
    client_id: str
    client_host: str
    rebalance_timeout_ms: Annotated[Int32, Field(since=1, default=0)]
    session_timeout_ms: Int32
    subscription: bytes
    assignment: bytes


class GroupMetadataValue(_Nested, frozen=True):
    """A classic group's stable generation."""

    VERSIONS: ClassVar = Versions(0, 4, flexible=4)

    protocol_type: str
    generation: Int32
    protocol: str | None
    leader: str | None
    current_state_timestamp_ms: Annotated[Int64, Field(since=2, default=NO_TIMESTAMP)]
    members: tuple[ClassicMember, ...]


# Consumer groups (KIP-848)


class ConsumerGroupMetadataKey(_Key, frozen=True):
    """A consumer group."""

    group: str


class ConsumerGroupMetadataValue(_Struct, frozen=True):
    """The group epoch, which counts changes of members, subscriptions and their topics."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    epoch: Int32
    metadata_hash: Annotated[Int64, Field(tag=0)] = 0
    """Hash of the partitions of all subscribed topics, or 0 without partitions."""
    empty_since_ms: Annotated[Int64, Field(tag=1_000)] = NO_TIMESTAMP
    """Wall time at which the last member left. -1 if the group has members, or the writer was
    Kafka. Kafka's tools skip the unknown tag."""


class ConsumerGroupMemberMetadataKey(_Key, frozen=True):
    """A member's own properties."""

    group: str
    member_id: str


class ConsumerGroupMemberMetadataValue(_Struct, frozen=True):
    """A member's subscription and identity."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: Int32
    server_assignor: str | None
    session_timeout_ms: Annotated[Int32, Field(tag=1_000)] = 0
    """Session timeout, or 0 for the default. Kafka's tools skip the unknown tag."""


class ConsumerGroupTargetAssignmentMetadataKey(_Key, frozen=True):
    """A group's target assignment."""

    group: str


class ConsumerGroupTargetAssignmentMetadataValue(_Struct, frozen=True):
    """The group epoch for which the target assignment was computed."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    assignment_epoch: Int32


class ConsumerGroupTargetAssignmentMemberKey(_Key, frozen=True):
    """A member's part of the target assignment."""

    group: str
    member_id: str


class ConsumerGroupTargetAssignmentMemberValue(_Nested, frozen=True):
    """Partitions assigned to the member."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    topic_partitions: tuple[TopicPartitions, ...]


class ConsumerGroupCurrentMemberAssignmentKey(_Key, frozen=True):
    """A member's present assignment."""

    group: str
    member_id: str


class ConsumerGroupCurrentMemberAssignmentValue(_Nested, frozen=True):
    """Owned partitions, and partitions under revocation."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    """0 stable, 1 unrevoked partitions, 2 unreleased partitions."""
    assigned_partitions: tuple[TopicPartitions, ...]
    partitions_pending_revocation: tuple[TopicPartitions, ...]
    sequence: Annotated[Int64, Field(tag=1_000)] = 0
    """Number of the member's newest report. Not Kafka's, like the session timeout."""


class ConsumerGroupRegularExpressionKey(_Key, frozen=True):
    """A subscribed pattern."""

    group: str
    regular_expression: str


class ConsumerGroupRegularExpressionValue(_Struct, frozen=True):
    """Topics matched at the last resolution."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    topics: tuple[str, ...]
    version: Int64
    """Index of the metadata last applied at the resolution."""
    timestamp_ms: Int64


# REST consumer instances (not Kafka's, whose tools skip unknown key types)


class ConsumerInstanceKey(_Key, frozen=True):
    """A REST consumer instance."""

    group: str
    instance: str


class ConsumerInstanceValue(_Nested, frozen=True):
    """What an instance is. Of names, pattern and assigned partitions at most one is given."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    member_id: str
    """Id of the group member that the instance is while it is subscribed."""
    format: str
    auto_offset_reset: str
    auto_commit_interval_ms: Int32
    """0: the client commits."""
    fetch_min_bytes: Int32
    request_timeout_ms: Int32
    subscribed_topic_names: tuple[str, ...] = ()
    """Subscribed topics in the client's order."""
    subscribed_topic_regex: str | None = None
    assigned_partitions: tuple[TopicPartitions, ...] = ()


class ConsumerInstancePositionKey(_Key, frozen=True):
    """The start of an instance in one partition, where no commit shows it."""

    group: str
    instance: str
    topic_id: Uuid
    partition: Int32


class ConsumerInstancePositionValue(_Struct, frozen=True):
    """The next offset to read, until the instance commits."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    offset: Int64


# Transactions


class TransactionLogKey(_Key, frozen=True):
    """A transactional id."""

    transactional_id: str


class TransactionPartitions(_Struct, frozen=True):
    """Partitions of one topic in a transaction."""

    topic: str
    partitions: tuple[Int32, ...]


class TransactionLogValue(_Nested, frozen=True):
    """The state of a transactional id after one transition (KIP-98, 890, 939)."""

    VERSIONS: ClassVar = Versions(0, 1, flexible=1)

    producer_id: Int64
    previous_producer_id: Annotated[Int64, Field(tag=0, default=-1)]
    next_producer_id: Annotated[Int64, Field(tag=1, default=-1)]
    producer_epoch: Int16
    next_producer_epoch: Annotated[Int16, Field(tag=3, default=-1)]
    transaction_timeout_ms: Int32
    transaction_status: Int8
    """Number of a transaction's state. 0 Empty, 1 Ongoing, 2 PrepareCommit, 3 PrepareAbort, 4
    CompleteCommit, 5 CompleteAbort, 6 Dead, 7 PrepareEpochFence, 8 Prepared (two-phase, not
    Kafka's)."""
    transaction_partitions: tuple[TransactionPartitions, ...] | None
    transaction_last_update_timestamp_ms: Int64
    transaction_start_timestamp_ms: Int64
    client_transaction_version: Annotated[Int16, Field(tag=2, default=0)]


class SinkEpochKey(_Key, frozen=True):
    """A sink that commits in epochs."""

    sink_id: str


class SinkEpochValue(_Struct, frozen=True):
    """The newest committed epoch of a sink. In one batch with the decisions of its transactions."""

    VERSIONS: ClassVar = Versions(0, 0, flexible=0)

    committed_epoch: Int64
    commit_timestamp_ms: Int64
    owner: Annotated[str, Field(tag=0)] = ""


OffsetsKey: TypeAlias = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
    | ConsumerInstanceKey
    | ConsumerInstancePositionKey
)
OffsetsValue: TypeAlias = (
    OffsetCommitValue
    | GroupMetadataValue
    | ConsumerGroupMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
    | ConsumerInstanceValue
    | ConsumerInstancePositionValue
)
Key: TypeAlias = OffsetsKey | TransactionLogKey | SinkEpochKey
Value: TypeAlias = OffsetsValue | TransactionLogValue | SinkEpochValue
