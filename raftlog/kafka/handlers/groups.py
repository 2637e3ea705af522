"""Groups have coordinators, modern members (KIP-848), descriptions and deletion.

For Kafka's clients, groups of the kind `offsets`, with commits and no member ever, are empty
classic groups. Clients query each node for its groups, so a node returns only the groups that it
coordinates.
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
    ROWS_PER_TURN,
    UNKNOWN_OPERATIONS,
    code,
    coordinator_code,
    each,
    group_operations,
    in_turns,
)
from raftlog.kafka.messages import groups as messages
from raftlog.metadata.image import BrokerImage
from raftlog.record import errors
from raftlog.record.errors import LogError, quoted

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
FORBIDDEN_KEYS: Final = {GROUP_KEY: GROUP_AUTHORIZATION_FAILED, TRANSACTION_KEY: 53}
"""Codes of keys without the right to them, by type of the key."""
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
NUMBER_BYTES: Final = 4
"""Bytes of a partition's number."""
CONSUMER_MEMBER: Final = 1
"""Type of a member of the consumer protocol, in its description."""


async def find_coordinator(
    call: Call, request: messages.FindCoordinatorRequest
) -> messages.FindCoordinatorResponse:
    """10. Returns the nodes that coordinate groups or transactional ids."""
    if call.version >= KEYS_SINCE:
        find = partial(_coordinator, call, request.key_type)
        found = await each(call, find, request.coordinator_keys)
        return messages.FindCoordinatorResponse(coordinators=tuple(found))
    node = await _coordinator(call, request.key_type, request.key)
    return messages.FindCoordinatorResponse(
        throttle_time_ms=0,
        error_code=node.error_code,
        error_message=node.error_message,
        node_id=node.node_id,
        host=node.host,
        port=node.port,
    )


async def _coordinator(call: Call, key_type: int, key: str) -> messages.Coordinator:
    try:
        node = await _coordinating_node(call, key_type, key)
    except LogError as error:
        if error.entry is errors.FORBIDDEN:
            return _no_coordinator(key, FORBIDDEN_KEYS[key_type], error.message)
        is_final = error.entry in {errors.BAD_REQUEST, errors.INVALID_GROUP}
        error_code = code(error) if is_final else COORDINATOR_NOT_AVAILABLE
        return _no_coordinator(key, error_code, error.message)
    found = None if node is None or node.fenced else endpoint(call, node)
    if found is None:
        return _no_coordinator(key, COORDINATOR_NOT_AVAILABLE, "No coordinator is available.")
    return messages.Coordinator(key, found.broker_id, found.host, found.port)


async def _coordinating_node(call: Call, key_type: int, key: str) -> BrokerImage | None:
    lookup = call.broker.coordinators
    if key_type == GROUP_KEY:
        return await lookup.of_group(call.principal, key)
    if key_type == TRANSACTION_KEY:
        return await lookup.of_transactional_id(call.principal, key)
    raise LogError(errors.BAD_REQUEST, f"There are no coordinators of type {key_type}.")


def _no_coordinator(key: str, error_code: int, message: str) -> messages.Coordinator:
    return messages.Coordinator(
        key=key,
        node_id=NO_NODE,
        host="",
        port=NO_NODE,
        error_code=error_code,
        error_message=message,
    )


# Modern members


async def heartbeat(
    call: Call, request: messages.ConsumerGroupHeartbeatRequest
) -> messages.ConsumerGroupHeartbeatResponse:
    """68. Joins, stays in, or leaves a consumer group. Responds at once, as clients do not wait."""
    try:
        answer = await call.broker.groups.heartbeat(
            call.principal,
            ConsumerHeartbeatRequest(
                group=request.group_id,
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                instance_id=request.instance_id,
                rack_id=request.rack_id,
                client_id=call.client_id,
                client_host=call.address,
                subscribed_names=request.subscribed_topic_names,
                subscribed_pattern=request.subscribed_topic_regex,
                assignor=request.server_assignor,
                rebalance_timeout_ms=None
                if request.rebalance_timeout_ms < 0
                else request.rebalance_timeout_ms,
                owned=_owned(request.topic_partitions),
            ),
        )
    except LogError as error:
        return messages.ConsumerGroupHeartbeatResponse(0, coordinator_code(error), error.message)
    return messages.ConsumerGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=_assignment(answer),
    )


def _owned(
    topics: Iterable[messages.RequestTopicPartitions] | None,
) -> tuple[TopicPartitions, ...] | None:
    """The owned partitions, or None if unchanged. Raises LogError(BAD_REQUEST)."""
    if topics is None:
        return None
    owned = []
    for topic in topics:
        if topic.topic_id is None:
            raise LogError(errors.BAD_REQUEST, "Owned partitions are named by topic ids.")
        owned.append(TopicPartitions(topic.topic_id, topic.partitions))
    return tuple(owned)


def _assignment(
    answer: ConsumerHeartbeatResponse,
) -> messages.ConsumerGroupHeartbeatAssignment | None:
    if answer.assignment is None:
        return None
    return messages.ConsumerGroupHeartbeatAssignment(
        tuple(
            messages.ResponseTopicPartitions(topic.topic_id, topic.partitions)
            for topic in answer.assignment
        )
    )


async def describe_consumer_groups(
    call: Call, request: messages.ConsumerGroupDescribeRequest
) -> messages.ConsumerGroupDescribeResponse:
    """69. Returns modern groups with their members."""
    describe = partial(
        _described_consumer, call, wants_operations=request.include_authorized_operations
    )
    found = await each(call, describe, request.group_ids)
    return messages.ConsumerGroupDescribeResponse(groups=tuple(found))


async def _described_consumer(
    call: Call, group_id: str, *, wants_operations: bool
) -> messages.ConsumerGroupDescribeDescribedGroup:
    try:
        found = await _consumer_group(call, group_id)
    except LogError as error:
        return messages.ConsumerGroupDescribeDescribedGroup(
            coordinator_code(error), error.message, group_id
        )
    return messages.ConsumerGroupDescribeDescribedGroup(
        error_code=NONE,
        error_message=None,
        group_id=group_id,
        group_state=found.state,
        group_epoch=found.epoch,
        assignment_epoch=found.assignment_epoch,
        assignor_name=found.assignor,
        members=tuple(_member(call, member) for member in found.members),
        authorized_operations=_operations(call, group_id, wants_operations),
    )


def _operations(call: Call, group_id: str, wants_operations: bool) -> int:
    return group_operations(call, group_id) if wants_operations else UNKNOWN_OPERATIONS


async def _consumer_group(call: Call, group_id: str) -> ConsumerGroupDescription:
    await call.budget.reserve(1)
    found = await call.broker.groups.description(call.principal, group_id)
    if isinstance(found, DescribedGroup) or found.kind != CONSUMER:
        raise LogError(errors.UNKNOWN_GROUP, f"Group {quoted(group_id)} is not a consumer group.")
    topics = [topic for member in found.members for topic in (*member.assignment, *member.target)]
    names = sum(len(member.subscribed_names) for member in found.members)
    await call.budget.reserve(
        len(found.members) + len(topics) + names,
        sum(len(member.client_id) for member in found.members)
        + sum(len(member.subscribed_pattern or "") for member in found.members)
        + sum(NUMBER_BYTES * len(topic.partitions) for topic in topics),
    )
    return found


def _member(call: Call, member: MemberDescription) -> messages.Member:
    return messages.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_names,
        subscribed_topic_regex=member.subscribed_pattern,
        assignment=_named(call, member.assignment),
        target_assignment=_named(call, member.target),
        member_type=CONSUMER_MEMBER,
    )


def _named(
    call: Call, topics: Iterable[TopicPartitions]
) -> messages.ConsumerGroupDescribeAssignment:
    """Partitions with the names of their topics, without deleted topics."""
    by_id = call.broker.services.metadata.image.topics_by_id
    return messages.ConsumerGroupDescribeAssignment(
        tuple(
            messages.TopicPartitions(topic.topic_id, by_id[topic.topic_id].name, topic.partitions)
            for topic in topics
            if topic.topic_id in by_id
        )
    )


# All groups


async def describe_groups(
    call: Call, request: messages.DescribeGroupsRequest
) -> messages.DescribeGroupsResponse:
    """15. Returns classic groups with their members, and no others."""
    describe = partial(
        _described_classic, call, wants_operations=request.include_authorized_operations
    )
    found = await each(call, describe, request.groups)
    return messages.DescribeGroupsResponse(groups=tuple(found))


async def _described_classic(
    call: Call, group_id: str, *, wants_operations: bool
) -> messages.DescribeGroupsDescribedGroup:
    try:
        found = await _classic_group(call, group_id)
    except LogError as error:
        if call.version >= MISSING_SINCE:
            return messages.DescribeGroupsDescribedGroup(
                coordinator_code(error), error.message, group_id, group_state=DEAD
            )
        error_code = NONE if error.entry is errors.UNKNOWN_GROUP else coordinator_code(error)
        return messages.DescribeGroupsDescribedGroup(
            error_code, group_id=group_id, group_state=DEAD
        )
    operations = _operations(call, group_id, wants_operations)
    if found is None:
        return messages.DescribeGroupsDescribedGroup(
            group_id=group_id, group_state=EMPTY, authorized_operations=operations
        )
    return messages.DescribeGroupsDescribedGroup(
        group_id=group_id,
        group_state=found.state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol or "",
        members=tuple(
            messages.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in found.members
        ),
        authorized_operations=operations,
    )


async def _classic_group(call: Call, group_id: str) -> DescribedGroup | None:
    """The group, or None if it has only committed offsets. Raises LogError."""
    await call.budget.reserve(1)
    found = await call.broker.groups.description(call.principal, group_id)
    if isinstance(found, DescribedGroup):
        await call.budget.reserve(
            len(found.members),
            sum(
                len(member.client_id) + len(member.metadata) + len(member.assignment)
                for member in found.members
            ),
        )
        return found
    if found.kind == CONSUMER:
        raise LogError(errors.UNKNOWN_GROUP, f"Group {quoted(group_id)} is not a classic group.")
    return None


async def list_groups(
    call: Call, request: messages.ListGroupsRequest
) -> messages.ListGroupsResponse:
    """16. Returns the groups that this node coordinates. A gateway returns all groups.

    Clients query each node.
    """
    states = {state.strip().lower() for state in request.states_filter}
    types = {kind.strip().lower() for kind in request.types_filter}
    try:
        found, incomplete = await call.broker.groups.groups(
            call.principal, of_this_node=not call.any_node
        )
        await call.budget.reserve(len(found))
    except LogError as error:
        return messages.ListGroupsResponse(error_code=coordinator_code(error))
    if incomplete:
        return messages.ListGroupsResponse(error_code=COORDINATOR_LOAD_IN_PROGRESS)
    rows: list[messages.ListedGroup] = []
    async for group, _ in in_turns(call, found, ROWS_PER_TURN):
        kind = CONSUMER if group.kind == CONSUMER else CLASSIC
        protocol_type = CONSUMER if group.kind == CONSUMER else group.protocol_type
        if (not states or group.state.lower() in states) and (not types or kind in types):
            rows.append(messages.ListedGroup(group.group, protocol_type, group.state, kind))
    return messages.ListGroupsResponse(groups=tuple(rows))


async def delete_groups(
    call: Call, request: messages.DeleteGroupsRequest
) -> messages.DeleteGroupsResponse:
    """42. Deletes empty groups with their offsets."""
    results = await each(call, partial(_deleted, call), request.groups_names)
    return messages.DeleteGroupsResponse(results=tuple(results))


async def _deleted(call: Call, group_id: str) -> messages.DeletableGroupResult:
    try:
        await call.broker.groups.delete(call.principal, group_id)
    except LogError as error:
        return messages.DeletableGroupResult(group_id, coordinator_code(error))
    return messages.DeletableGroupResult(group_id)
