"""Records of the internal topics `__consumer_offsets` and `__transaction_state`.

Keys and values have Kafka's fields, numbers and versions (coordinator records of Kafka 4), so that
Kafka's own tools read these topics: a key and a value begin with a version (int16); a key's version
is the number of its type.

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
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from raftlog.record.types import TopicId

NO_TIMESTAMP: Final = -1


class _Struct(msgspec.Struct, frozen=True, gc=False):
    """Fields in the order of the wire."""


class _Nested(msgspec.Struct, frozen=True):
    """The same, for values that contain others."""


class TopicPartitions(_Nested, frozen=True):
    """Partitions of one topic, by its id."""

    topic_id: TopicId
    partitions: tuple[int, ...]


# Offsets


class OffsetCommitKey(_Struct, frozen=True):
    """A group's offset of one partition."""

    group: str
    topic: str
    partition: int


class OffsetCommitValue(_Struct, frozen=True):
    """The next offset to read, with the committer's leader epoch and metadata."""

    offset: int
    leader_epoch: int
    """-1: unknown."""
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    """Of old clients only; -1: by the group's retention."""
    topic_id: TopicId | None = None
    """None: the committer named the topic only (Kafka's zero uuid)."""


# Classic groups


class GroupMetadataKey(_Struct, frozen=True):
    """A classic group."""

    group: str


class ClassicMember(_Struct, frozen=True):
    """A member of a classic group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadataValue(_Nested, frozen=True):
    """A classic group's stable generation."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp_ms: int
    members: tuple[ClassicMember, ...]


# Consumer groups (KIP-848)


class ConsumerGroupMetadataKey(_Struct, frozen=True):
    """A consumer group."""

    group: str


class ConsumerGroupMetadataValue(_Struct, frozen=True):
    """The group epoch: it counts changes of members, subscriptions and their topics."""

    epoch: int
    metadata_hash: int = 0
    """Of the partitions of all subscribed topics; 0: none."""


class ConsumerGroupMemberMetadataKey(_Struct, frozen=True):
    """A member's own properties."""

    group: str
    member_id: str


class ConsumerGroupMemberMetadataValue(_Struct, frozen=True):
    """A member's subscription and identity."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    session_timeout_ms: int = 0
    """Ours: a tagged field, which Kafka's tools pass over. 0: the default."""


class ConsumerGroupTargetAssignmentMetadataKey(_Struct, frozen=True):
    """A group's target assignment."""

    group: str


class ConsumerGroupTargetAssignmentMetadataValue(_Struct, frozen=True):
    """The group epoch for which the target assignment was computed."""

    assignment_epoch: int


class ConsumerGroupTargetAssignmentMemberKey(_Struct, frozen=True):
    """A member's part of the target assignment."""

    group: str
    member_id: str


class ConsumerGroupTargetAssignmentMemberValue(_Nested, frozen=True):
    """Partitions assigned to the member."""

    topic_partitions: tuple[TopicPartitions, ...]


class ConsumerGroupCurrentMemberAssignmentKey(_Struct, frozen=True):
    """A member's present assignment."""

    group: str
    member_id: str


class ConsumerGroupCurrentMemberAssignmentValue(_Nested, frozen=True):
    """Owned partitions, and partitions under revocation."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    """0 stable, 1 unrevoked partitions, 2 unreleased partitions."""
    assigned_partitions: tuple[TopicPartitions, ...]
    partitions_pending_revocation: tuple[TopicPartitions, ...]


class ConsumerGroupRegularExpressionKey(_Struct, frozen=True):
    """A subscribed pattern."""

    group: str
    regular_expression: str


class ConsumerGroupRegularExpressionValue(_Struct, frozen=True):
    """Topics matched at the last resolution."""

    topics: tuple[str, ...]
    version: int
    """Of the metadata: the last index applied at the resolution."""
    timestamp_ms: int


# Transactions


class TransactionLogKey(_Struct, frozen=True):
    """A transactional id."""

    transactional_id: str


class TransactionPartitions(_Struct, frozen=True):
    """Partitions of one topic in a transaction."""

    topic: str
    partitions: tuple[int, ...]


class TransactionLogValue(_Nested, frozen=True):
    """The state of a transactional id after one transition (KIP-98, 890, 939)."""

    producer_id: int
    previous_producer_id: int
    next_producer_id: int
    producer_epoch: int
    next_producer_epoch: int
    transaction_timeout_ms: int
    transaction_status: int
    """0 Empty, 1 Ongoing, 2 PrepareCommit, 3 PrepareAbort, 4 CompleteCommit, 5 CompleteAbort,
    6 Dead, 7 PrepareEpochFence; 8 Prepared (two-phase; ours)."""
    transaction_partitions: tuple[TransactionPartitions, ...] | None
    transaction_last_update_timestamp_ms: int
    transaction_start_timestamp_ms: int
    client_transaction_version: int


OffsetsKey: TypeAlias = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
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
)
Key: TypeAlias = OffsetsKey | TransactionLogKey
Value: TypeAlias = OffsetsValue | TransactionLogValue
