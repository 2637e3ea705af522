"""Requests to the coordinator of a group, and their responses, free of any protocol.

The native API, REST and the Kafka listener translate from and to these structs. Between nodes the
same structs are msgpack. Only the coordinator validates requests (`shard`).
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec

from raftlog.coordinator.groups.classic.messages import (
    ClassicRequest,
    ClassicResponse,
    DescribedGroup,
)
from raftlog.coordinator.groups.offset_messages import (
    CommitOffsets,
    DeleteOffsets,
    FetchedOffset,
    FetchOffsets,
    PartitionOutcome,
)
from raftlog.coordinator.instances.messages import InstanceRequest, InstanceResponse
from raftlog.coordinator.shard.records import TopicPartitions

JOIN_EPOCH: Final = 0
"""Epoch of a heartbeat by which a member joins, or joins again."""
LEAVE_EPOCH: Final = -1
"""Epoch of the heartbeat by which a member leaves."""
STATIC_LEAVE_EPOCH: Final = -2
"""Epoch of the heartbeat by which a static member leaves for a restart."""

CLASSIC_KIND: Final = "classic"
OFFSETS_KIND: Final = "offsets"
"""Kind of a group that never had a member."""


class _Message(msgspec.Struct, frozen=True, array_like=True):
    """An array of the tag and the fields in order."""


class MemberReport(msgspec.Struct, frozen=True, array_like=True):
    """The state of a member's service, for the assignor `primary`. Never in a record."""

    position: int
    """Entries of its log that the member has applied."""
    primaries: int = 0
    """Number of other groups whose primary is the member's process."""
    endpoint: str | None = None
    """HOST:PORT of the service."""
    disconnect_timeout_ms: int | None = None
    """Milliseconds of silence after which a disconnected member is removed. They replace the
    session timeout once the connection of its held heartbeat has ended."""


class ConsumerHeartbeatRequest(_Message, frozen=True, tag=1):
    """A heartbeat keeps the session, changes a subscription, or acknowledges partitions (KIP-848).

    None leaves a value as the coordinator knows it. A member sends `owned` when it joins, once it
    has followed an assignment (the acknowledgement, also without any change), and after a heartbeat
    without a response. Only then can the coordinator repeat a lost assignment.
    """

    group: str
    member_id: str
    """Id that the member makes at its start and keeps until its end (KIP-1082)."""
    member_epoch: int
    """Epoch of the last response, or JOIN_EPOCH, LEAVE_EPOCH or STATIC_LEAVE_EPOCH."""
    instance_id: str | None = None
    """Instance id of a static member (KIP-345), sent with every heartbeat."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_names: tuple[str, ...] | None = None
    """Topics by name. In a join None means no names."""
    subscribed_pattern: str | None = None
    """Pattern that RE2 matches with whole names of topics, except internal topics. "" means no
    pattern. In a join None means no pattern."""
    assignor: str | None = None
    """`uniform` or `range`. The group takes the choice of most members."""
    rebalance_timeout_ms: int | None = None
    """Longest milliseconds to give up partitions in."""
    session_timeout_ms: int | None = None
    """Milliseconds of silence after which the member is removed."""
    owned: tuple[TopicPartitions, ...] | None = None
    """Partitions that the member has or is about to take over. The latter are of its newest
    assignment. The coordinator gives any other partition to the next owner at once."""
    max_wait_ms: int = 0
    """Longest milliseconds to hold the response while nothing has changed."""
    sequence: int = 0
    """Number that grows with each report and exposes a late copy, or 0 for none."""
    report: MemberReport | None = None
    """Report of the member. Each of its heartbeats has it, and a coordinator keeps the newest."""
    hand_over_to: str | None = None
    """Instance id that is to have this member's partitions, for the assignor `primary`."""


class ConsumerHeartbeatResponse(_Message, frozen=True, tag=1):
    """The member's epoch, and its partitions if those have changed."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    """Longest milliseconds until the next heartbeat."""
    assignment: tuple[TopicPartitions, ...] | None = None
    """All partitions of the member, by topic id, or None if unchanged. The member first gives up
    every other partition, then acknowledges by a heartbeat with `owned`."""
    session_timeout_ms: int = 0
    """Session timeout in force, or 0 in the response to a leave."""


class DescribeGroupRequest(_Message, frozen=True, tag=2):
    """Describe a group."""

    group: str


class MemberDescription(msgspec.Struct, frozen=True, array_like=True):
    """A member of a consumer group."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    member_epoch: int
    """Epoch of the member. STATIC_LEAVE_EPOCH marks a member that left and may come back."""
    subscribed_names: tuple[str, ...]
    subscribed_pattern: str | None
    assignment: tuple[TopicPartitions, ...]
    """Partitions the member may own now, with those to be given up."""
    target: tuple[TopicPartitions, ...]
    report: MemberReport | None = None
    """Newest report that this coordinator has seen."""


class ConsumerGroupDescription(_Message, frozen=True, tag=2):
    """A consumer group with its members, in the order of their ids."""

    group: str
    state: str
    """`Empty`, `Reconciling` or `Stable`, as in Kafka."""
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[MemberDescription, ...]
    kind: str = "consumer"
    """`consumer`, `classic`, or `offsets`: committed offsets, and no member ever."""


def classic_description(group: DescribedGroup) -> ConsumerGroupDescription:
    """A classic group as a description. The subscriptions and assignments of members are opaque."""
    return ConsumerGroupDescription(
        group=group.group,
        state=group.state,
        epoch=group.generation,
        assignment_epoch=group.generation,
        assignor=group.protocol or "",
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=None,
                client_id=member.client_id,
                client_host=member.client_host,
                member_epoch=group.generation,
                subscribed_names=(),
                subscribed_pattern=None,
                assignment=(),
                target=(),
            )
            for member in group.members
        ),
        kind=CLASSIC_KIND,
    )


class ListGroupsRequest(_Message, frozen=True, tag=3):
    """List all groups of a shard."""


class GroupListing(msgspec.Struct, frozen=True, array_like=True):
    """One group of a list."""

    group: str
    kind: str
    """`consumer`, `classic`, or `offsets`: committed offsets, and no member ever."""
    state: str
    members: int = 0
    assignor: str = ""
    protocol_type: str = ""
    """Protocol type of a classic group, empty before a member joins."""


class GroupList(_Message, frozen=True, tag=3):
    """Groups in the order of their ids."""

    groups: tuple[GroupListing, ...]


_WORD_BEGIN: Final = re.compile("(?<!^)(?=[A-Z])")


def state_words(name: str) -> str:
    """Kafka's name of a state, for users: `preparing-rebalance`."""
    return _WORD_BEGIN.sub("-", name).lower()


class DeleteGroupRequest(_Message, frozen=True, tag=4):
    """Delete an empty group with its offsets, in bounded steps."""

    group: str


class Done(_Message, frozen=True, tag=4):
    """The request is done. A heartbeat of the classic kind has this response as well."""

    is_complete: bool = True
    """Whether all steps are done. Otherwise the caller repeats the request."""


class OffsetOutcomes(_Message, frozen=True, tag=20):
    """The outcome of a commit or a deletion for each partition, in their order."""

    outcomes: tuple[PartitionOutcome, ...]


class FetchedOffsets(_Message, frozen=True, tag=21):
    """Committed offsets."""

    offsets: tuple[FetchedOffset, ...]


GroupRequest: TypeAlias = (
    ConsumerHeartbeatRequest
    | DescribeGroupRequest
    | ListGroupsRequest
    | DeleteGroupRequest
    | CommitOffsets
    | FetchOffsets
    | DeleteOffsets
    | ClassicRequest
    | InstanceRequest
)
GroupResponse: TypeAlias = (
    ConsumerHeartbeatResponse
    | ConsumerGroupDescription
    | GroupList
    | Done
    | OffsetOutcomes
    | FetchedOffsets
    | DescribedGroup
    | ClassicResponse
    | InstanceResponse
)
