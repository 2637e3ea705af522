"""Groups: where their coordinators are, modern members (KIP-848), descriptions, deletion.

Groups of the kind `offsets`, with commits and no member ever, are empty classic groups to Kafka's
clients. Clients ask each node for its groups, and so get only those that the node coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from raftlog.broker.groups import (
    ConsumerGroupDescription,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    DescribedGroup,
    MemberDescription,
    TopicPartitions,
)
from raftlog.kafka.call import Call
from raftlog.kafka.handlers.brokers import endpoint
from raftlog.kafka.handlers.names import (
    COORDINATOR_NOT_AVAILABLE,
    GROUP_AUTHORIZATION_FAILED,
    NONE,
    UNKNOWN_OPERATIONS,
    code,
    coordinator_code,
    each,
    group_operations,
)
from raftlog.kafka.messages.groups import ConsumerGroupDescribeAssignment as DescribedAssignment
from raftlog.kafka.messages.groups import (
    ConsumerGroupDescribeDescribedGroup as DescribedConsumerGroup,
)
from raftlog.kafka.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    Coordinator,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    Member,
    RequestTopicPartitions,
    ResponseTopicPartitions,
)
from raftlog.kafka.messages.groups import ConsumerGroupHeartbeatAssignment as Assignment
from raftlog.kafka.messages.groups import DescribeGroupsDescribedGroup as DescribedClassicGroup
from raftlog.kafka.messages.groups import TopicPartitions as NamedPartitions
from raftlog.metadata.image import BrokerImage
from raftlog.record.errors import (
    BAD_REQUEST,
    FORBIDDEN,
    INVALID_GROUP,
    UNKNOWN_GROUP,
    LogError,
    quoted,
)

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
FORBIDDEN_KEYS: Final = {GROUP_KEY: GROUP_AUTHORIZATION_FAILED, TRANSACTION_KEY: 53}
"""The codes of keys without the right to them, by their type."""
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
NO_NODE: Final = -1
KEYS_SINCE: Final = 4
"""The first version of FindCoordinator for several keys."""
MISSING_SINCE: Final = 6
"""The first version of DescribeGroups with an error for a missing group, and with messages."""
CONSUMER: Final = "consumer"
"""Type of a modern group, and protocol type of its members."""
CLASSIC: Final = "classic"
EMPTY: Final = "Empty"
DEAD: Final = "Dead"
CONSUMER_MEMBER: Final = 1
"""Type of a member of the consumer protocol, in its description."""


async def find_coordinator(call: Call, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """10: the nodes that coordinate groups or transactional ids."""
    if call.version >= KEYS_SINCE:
        find = partial(_coordinator, call, request.key_type)
        found = await each(call, find, request.coordinator_keys)
        return FindCoordinatorResponse(coordinators=tuple(found))
    one = await _coordinator(call, request.key_type, request.key)
    return FindCoordinatorResponse(
        0, one.error_code, one.error_message, one.node_id, one.host, one.port
    )


async def _coordinator(call: Call, key_type: int, key: str) -> Coordinator:
    try:
        node = await _coordinating_node(call, key_type, key)
    except LogError as error:
        if error.entry is FORBIDDEN:
            return _no_coordinator(key, FORBIDDEN_KEYS[key_type], error.message)
        is_final = error.entry in {BAD_REQUEST, INVALID_GROUP}
        error_code = code(error) if is_final else COORDINATOR_NOT_AVAILABLE
        return _no_coordinator(key, error_code, error.message)
    found = None if node is None or node.fenced else endpoint(call, node)
    if found is None:
        return _no_coordinator(key, COORDINATOR_NOT_AVAILABLE, "No coordinator is available.")
    return Coordinator(key, found.broker_id, found.host, found.port)


async def _coordinating_node(call: Call, key_type: int, key: str) -> BrokerImage | None:
    lookup = call.broker.coordinators
    if key_type == GROUP_KEY:
        return await lookup.of_group(call.principal, key)
    if key_type == TRANSACTION_KEY:
        return await lookup.of_transactional_id(call.principal, key)
    raise LogError(BAD_REQUEST, f"There are no coordinators of type {key_type}.")


def _no_coordinator(key: str, error_code: int, message: str) -> Coordinator:
    return Coordinator(key, NO_NODE, "", NO_NODE, error_code, message)


# Modern members


async def heartbeat(
    call: Call, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """68: join, stay in, or leave a consumer group. Answered at once: clients do not wait."""
    try:
        answer = await call.broker.groups.heartbeat(
            call.principal,
            ConsumerHeartbeatRequest(
                request.group_id,
                request.member_id,
                request.member_epoch,
                request.instance_id,
                request.rack_id,
                call.client_id,
                call.address,
                request.subscribed_topic_names,
                request.subscribed_topic_regex,
                request.server_assignor,
                None if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms,
                owned=_owned(request.topic_partitions),
            ),
        )
    except LogError as error:
        return ConsumerGroupHeartbeatResponse(0, coordinator_code(error), error.message)
    return ConsumerGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=_assignment(answer),
    )


def _owned(topics: Iterable[RequestTopicPartitions] | None) -> tuple[TopicPartitions, ...] | None:
    """The owned partitions; None: unchanged. Raises LogError(BAD_REQUEST)."""
    if topics is None:
        return None
    owned = []
    for one in topics:
        if one.topic_id is None:
            raise LogError(BAD_REQUEST, "Owned partitions are named by topic ids.")
        owned.append(TopicPartitions(one.topic_id, one.partitions))
    return tuple(owned)


def _assignment(answer: ConsumerHeartbeatResponse) -> Assignment | None:
    if answer.assignment is None:
        return None
    return Assignment(
        tuple(ResponseTopicPartitions(one.topic_id, one.partitions) for one in answer.assignment)
    )


async def describe_consumer_groups(
    call: Call, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """69: modern groups with their members."""
    describe = partial(
        _described_consumer, call, wants_operations=request.include_authorized_operations
    )
    found = await each(call, describe, request.group_ids)
    return ConsumerGroupDescribeResponse(groups=tuple(found))


async def _described_consumer(
    call: Call, group_id: str, *, wants_operations: bool
) -> DescribedConsumerGroup:
    try:
        found = await _consumer_group(call, group_id)
    except LogError as error:
        return DescribedConsumerGroup(coordinator_code(error), error.message, group_id)
    return DescribedConsumerGroup(
        NONE,
        None,
        group_id,
        found.state,
        found.epoch,
        found.assignment_epoch,
        found.assignor,
        tuple(_member(call, one) for one in found.members),
        _operations(call, group_id, wants_operations),
    )


def _operations(call: Call, group_id: str, wants_operations: bool) -> int:
    return group_operations(call, group_id) if wants_operations else UNKNOWN_OPERATIONS


async def _consumer_group(call: Call, group_id: str) -> ConsumerGroupDescription:
    found = await call.broker.groups.description(call.principal, group_id)
    if isinstance(found, DescribedGroup) or found.kind != CONSUMER:
        raise LogError(UNKNOWN_GROUP, f"Group {quoted(group_id)} is not a consumer group.")
    return found


def _member(call: Call, one: MemberDescription) -> Member:
    return Member(
        one.member_id,
        one.instance_id,
        one.rack_id,
        one.member_epoch,
        one.client_id,
        one.client_host,
        one.subscribed_names,
        one.subscribed_pattern,
        _named(call, one.assignment),
        _named(call, one.target),
        CONSUMER_MEMBER,
    )


def _named(call: Call, topics: Iterable[TopicPartitions]) -> DescribedAssignment:
    """Partitions with the names of their topics, without deleted ones."""
    by_id = call.broker.services.metadata.image.topics_by_id
    return DescribedAssignment(
        tuple(
            NamedPartitions(one.topic_id, by_id[one.topic_id].name, one.partitions)
            for one in topics
            if one.topic_id in by_id
        )
    )


# All groups


async def describe_groups(call: Call, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """15: classic groups with their members. Others are missing here."""
    describe = partial(
        _described_classic, call, wants_operations=request.include_authorized_operations
    )
    found = await each(call, describe, request.groups)
    return DescribeGroupsResponse(groups=tuple(found))


async def _described_classic(
    call: Call, group_id: str, *, wants_operations: bool
) -> DescribedClassicGroup:
    try:
        found = await _classic_group(call, group_id)
    except LogError as error:
        if call.version >= MISSING_SINCE:
            return DescribedClassicGroup(
                coordinator_code(error), error.message, group_id, group_state=DEAD
            )
        error_code = NONE if error.entry is UNKNOWN_GROUP else coordinator_code(error)
        return DescribedClassicGroup(error_code, group_id=group_id, group_state=DEAD)
    operations = _operations(call, group_id, wants_operations)
    if found is None:
        return DescribedClassicGroup(
            group_id=group_id, group_state=EMPTY, authorized_operations=operations
        )
    return DescribedClassicGroup(
        group_id=group_id,
        group_state=found.state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol or "",
        members=tuple(
            DescribedGroupMember(
                one.member_id,
                one.instance_id,
                one.client_id,
                one.client_host,
                one.metadata,
                one.assignment,
            )
            for one in found.members
        ),
        authorized_operations=operations,
    )


async def _classic_group(call: Call, group_id: str) -> DescribedGroup | None:
    """The group; None: committed offsets alone. Raises LogError."""
    found = await call.broker.groups.description(call.principal, group_id)
    if isinstance(found, DescribedGroup):
        return found
    if found.kind == CONSUMER:
        raise LogError(UNKNOWN_GROUP, f"Group {quoted(group_id)} is not a classic group.")
    return None


async def list_groups(call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
    """16: the groups that this node coordinates, as clients ask each node; a gateway's: all."""
    states = {one.strip().lower() for one in request.states_filter}
    types = {one.strip().lower() for one in request.types_filter}
    try:
        found, incomplete = await call.broker.groups.groups(
            call.principal, of_this_node=not call.any_node
        )
    except LogError as error:
        return ListGroupsResponse(error_code=coordinator_code(error))
    if incomplete:
        return ListGroupsResponse(error_code=COORDINATOR_LOAD_IN_PROGRESS)
    rows = (
        ListedGroup(
            one.group,
            CONSUMER if one.kind == CONSUMER else one.protocol_type,
            one.state,
            CONSUMER if one.kind == CONSUMER else CLASSIC,
        )
        for one, _ in found
    )
    return ListGroupsResponse(
        groups=tuple(
            row
            for row in rows
            if (not states or row.group_state.lower() in states)
            and (not types or row.group_type in types)
        )
    )


async def delete_groups(call: Call, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """42: delete empty groups with their offsets."""
    results = await each(call, partial(_deleted, call), request.groups_names)
    return DeleteGroupsResponse(results=tuple(results))


async def _deleted(call: Call, group_id: str) -> DeletableGroupResult:
    try:
        await call.broker.groups.delete(call.principal, group_id)
    except LogError as error:
        return DeletableGroupResult(group_id, coordinator_code(error))
    return DeletableGroupResult(group_id)
