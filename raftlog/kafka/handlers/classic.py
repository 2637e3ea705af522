"""Members of classic groups use JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

The members' leader assigns. Subscriptions and assignments are bytes that only clients understand.
"""

from __future__ import annotations

from raftlog.broker.classic_groups import (
    ClassicHeartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    MemberAssignment,
    MemberIdRequired,
    Protocol,
    SyncGroup,
)
from raftlog.kafka.call import Call
from raftlog.kafka.handlers.names import (
    NONE,
    ROWS_PER_TURN,
    code_of,
    coordinator_code,
    in_turns,
)
from raftlog.kafka.messages import classic as messages
from raftlog.record.errors import MEMBER_ID_REQUIRED, LogError


async def join(call: Call, request: messages.JoinGroupRequest) -> messages.JoinGroupResponse:
    """11. Responds when the group's next generation begins."""
    wanted = JoinGroup(
        group_id=request.group_id,
        protocol_type=request.protocol_type,
        protocols=tuple(
            Protocol(protocol.name, protocol.metadata) for protocol in request.protocols
        ),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=call.client_id,
        client_host=call.address,
        requires_member_id=call.version >= 4,
        can_skip_assignment=call.version >= 9,
    )
    try:
        joined = await call.broker.classic_groups.join(call.principal, wanted)
    except LogError as error:
        return _not_joined(call, coordinator_code(error), request.member_id)
    if isinstance(joined, MemberIdRequired):
        return _not_joined(call, MEMBER_ID_REQUIRED.kafka_code, joined.member_id)
    return _joined(joined)


def _not_joined(call: Call, error_code: int, member_id: str) -> messages.JoinGroupResponse:
    return messages.JoinGroupResponse(
        error_code=error_code, protocol_name=None if call.version >= 7 else "", member_id=member_id
    )


def _joined(joined: Joined) -> messages.JoinGroupResponse:
    return messages.JoinGroupResponse(
        throttle_time_ms=0,
        error_code=NONE,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=tuple(
            messages.JoinGroupResponseMember(member.member_id, member.instance_id, member.metadata)
            for member in joined.members
        ),
    )


async def sync(call: Call, request: messages.SyncGroupRequest) -> messages.SyncGroupResponse:
    """14. Responds when the leader has brought the assignments."""
    wanted = SyncGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments=tuple(
            MemberAssignment(assignment.member_id, assignment.assignment)
            for assignment in request.assignments
        ),
    )
    try:
        synced = await call.broker.classic_groups.sync(call.principal, wanted)
    except LogError as error:
        return messages.SyncGroupResponse(error_code=coordinator_code(error))
    return messages.SyncGroupResponse(
        throttle_time_ms=0,
        error_code=NONE,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )


async def heartbeat(call: Call, request: messages.HeartbeatRequest) -> messages.HeartbeatResponse:
    """12. Keeps the session, and reports a rebalance."""
    beat = ClassicHeartbeat(
        request.group_id, request.member_id, request.generation_id, request.group_instance_id
    )
    try:
        await call.broker.classic_groups.heartbeat(call.principal, beat)
    except LogError as error:
        return messages.HeartbeatResponse(error_code=coordinator_code(error))
    return messages.HeartbeatResponse()


async def leave(call: Call, request: messages.LeaveGroupRequest) -> messages.LeaveGroupResponse:
    """13. Ends one membership, or from version 3 on several."""
    is_one = call.version < 3
    leaving = tuple(
        LeavingMember(member.member_id, member.group_instance_id) for member in request.members
    )
    if is_one:
        leaving = (LeavingMember(request.member_id),)
    try:
        outcomes = await call.broker.classic_groups.leave(
            call.principal, LeaveGroup(request.group_id, leaving)
        )
    except LogError as error:
        return messages.LeaveGroupResponse(error_code=coordinator_code(error))
    if is_one:
        return messages.LeaveGroupResponse(error_code=code_of(outcomes[0].error_code))
    members = [
        messages.MemberResponse(outcome.member_id, outcome.instance_id, code_of(outcome.error_code))
        async for outcome in in_turns(call, outcomes, ROWS_PER_TURN)
    ]
    return messages.LeaveGroupResponse(members=tuple(members))
