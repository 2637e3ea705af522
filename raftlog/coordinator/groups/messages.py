"""Requests to the coordinator of a group, and their responses: free of any protocol.

The Python client's face, REST and the Kafka protocol translate from and to these; between nodes
the same structs travel as msgpack. The coordinator validates requests (`group_shard`), so that no
face has rules of its own.
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
"""Epoch of the heartbeat by which a static member leaves for the time of a restart."""

CLASSIC_KIND: Final = "classic"
OFFSETS_KIND: Final = "offsets"
"""The kind of a group that never had a member."""


class _Message(msgspec.Struct, frozen=True, array_like=True):
    """Arrays: the tag first, then the fields in order."""


class MemberReport(msgspec.Struct, frozen=True, array_like=True):
    """The state of a member's service, for the assignor `primary`. Never in a record."""

    position: int
    """Entries of its log that the member has applied."""
    primaries: int = 0
    """Of how many other groups the member's process is the primary."""
    endpoint: str | None = None
    """HOST:PORT of the service."""
    disconnect_timeout_ms: int | None = None
    """Silence after which the member is removed if the connection of its held heartbeat has ended,
    in place of the session timeout."""


class ConsumerHeartbeatRequest(_Message, frozen=True, tag=1):
    """A member is alive; a change of its subscription; an acknowledgement (KIP-848).

    None leaves a value as the coordinator knows it. A member sends `owned` when joining, once it
    has followed an assignment (the acknowledgement, also without any change), and after a heartbeat
    without an answer: only then can the coordinator repeat a lost assignment.
    """

    group: str
    member_id: str
    """Made by the member at its start, and kept until its end (KIP-1082)."""
    member_epoch: int
    """Of the last answer; JOIN_EPOCH, LEAVE_EPOCH or STATIC_LEAVE_EPOCH."""
    instance_id: str | None = None
    """Makes the member static (KIP-345); sent with every heartbeat."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_names: tuple[str, ...] | None = None
    """Topics by name. When joining, None means none."""
    subscribed_pattern: str | None = None
    """Topics with a name that RE2 matches whole, without internal ones; "" means none. When
    joining, None means none."""
    assignor: str | None = None
    """`uniform` or `range`. The group takes the choice of most members."""
    rebalance_timeout_ms: int | None = None
    """The longest time to give up partitions in."""
    session_timeout_ms: int | None = None
    """Silence after which the member is removed."""
    owned: tuple[TopicPartitions, ...] | None = None
    """Partitions the member has, and those of its newest assignment that it is about to take over:
    the coordinator gives any other one to the next owner at once."""
    max_wait_ms: int = 0
    """How long the answer may be held back while there is no news."""
    sequence: int = 0
    """Grows with each report of the member, so that a late copy is known; 0: not numbered."""
    report: MemberReport | None = None
    """In each heartbeat of a member with a report: a coordinator keeps the newest one."""
    hand_over_to: str | None = None
    """Assignor `primary`: the instance id that is to have this member's partitions."""


class ConsumerHeartbeatResponse(_Message, frozen=True, tag=1):
    """The member's epoch, and its partitions if those have changed."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    """Longest time until the next heartbeat."""
    assignment: tuple[TopicPartitions, ...] | None = None
    """All partitions of the member, by topic id: give up every other one first, acknowledge by a
    heartbeat with `owned`. None: unchanged."""
    session_timeout_ms: int = 0
    """In force; 0 in the answer to a leave."""


class DescribeGroupRequest(_Message, frozen=True, tag=2):
    """Describe one group."""

    group: str


class MemberDescription(msgspec.Struct, frozen=True, array_like=True):
    """A member of a consumer group."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    member_epoch: int
    """STATIC_LEAVE_EPOCH: it left, and may come back."""
    subscribed_names: tuple[str, ...]
    subscribed_pattern: str | None
    assignment: tuple[TopicPartitions, ...]
    """Partitions the member may own now, those to be given up among them."""
    target: tuple[TopicPartitions, ...]
    report: MemberReport | None = None
    """The newest one that this coordinator has seen."""


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
    """A classic group in the same words. What its members subscribe to and own is opaque."""
    return ConsumerGroupDescription(
        group=group.group,
        state=group.state,
        epoch=group.generation,
        assignment_epoch=group.generation,
        assignor=group.protocol or "",
        members=tuple(
            MemberDescription(
                member_id=one.member_id,
                instance_id=one.instance_id,
                rack_id=None,
                client_id=one.client_id,
                client_host=one.client_host,
                member_epoch=group.generation,
                subscribed_names=(),
                subscribed_pattern=None,
                assignment=(),
                target=(),
            )
            for one in group.members
        ),
        kind=CLASSIC_KIND,
    )


class ListGroupsRequest(_Message, frozen=True, tag=3):
    """List all groups of one shard."""


class GroupListing(msgspec.Struct, frozen=True, array_like=True):
    """One group of a list."""

    group: str
    kind: str
    """`consumer`, `classic`, or `offsets`: committed offsets, and no member ever."""
    state: str
    members: int = 0
    assignor: str = ""
    protocol_type: str = ""
    """As the members of a classic group name it; empty before the first one joins."""


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
    """Done; also the answer to a heartbeat of the classic kind."""

    is_complete: bool = True
    """False: one step of several. Ask again."""


class OffsetOutcomes(_Message, frozen=True, tag=20):
    """The answer to a commit or a deletion: an outcome for each partition, in its order."""

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
