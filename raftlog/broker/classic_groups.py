"""Members of classic groups on any node, with joins, syncs, heartbeats and leaves.

Offsets, descriptions and deletion are those of all groups (`groups`). A join and a sync may be held
by the coordinator for as long as the group rebalances.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from raftlog.broker.authorize import Authorize, Operation, Principal, group_resource
from raftlog.broker.groups import GroupService
from raftlog.broker.node import NodeServices
from raftlog.coordinator.groups.classic.messages import (
    ClassicHeartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeaveOutcome,
    LeavingMember,
    Left,
    MemberAssignment,
    MemberIdRequired,
    Protocol,
    Synced,
    SyncGroup,
)
from raftlog.coordinator.groups.kind import HELD_S_MAX
from raftlog.coordinator.groups.messages import Done

__all__ = [
    "ClassicGroupService",
    "ClassicHeartbeat",
    "JoinGroup",
    "Joined",
    "LeaveGroup",
    "LeaveOutcome",
    "LeavingMember",
    "MemberAssignment",
    "MemberIdRequired",
    "Protocol",
    "SyncGroup",
    "Synced",
]

MEMBER_ID_BYTES: Final = 16
NAME_CHARACTERS_MAX: Final = 200
"""Characters of the client's or instance's name in a member id of at most 255."""


class ClassicGroupService:
    """The members of the cluster's classic groups."""

    def __init__(self, services: NodeServices, groups: GroupService, authorize: Authorize) -> None:
        self._services = services
        self._groups = groups
        self._authorize = authorize

    async def join(self, principal: Principal, request: JoinGroup) -> Joined | MemberIdRequired:
        """Join, or join again. The response is held until the group's next generation starts.

        A member without an id gets a new id. Raises LogError as the coordinator decides, and
        NOT_READY when the listeners close.
        """
        self._authorize(principal, Operation.READ, group_resource(request.group_id))
        if not request.member_id:
            # Operators see the client's name, which helps more than a random number.
            name = (request.instance_id or request.client_id)[:NAME_CHARACTERS_MAX]
            token = self._services.randomness.token(MEMBER_ID_BYTES).hex()
            request = replace(request, new_member_id=f"{name}-{token}" if name else token)
        wait_ms = max(request.rebalance_timeout_ms, request.session_timeout_ms, 0)
        joined: Joined | MemberIdRequired = await self._groups.call_held(
            request.group_id, request, Joined | MemberIdRequired, wait_ms / 1000
        )
        return joined

    async def sync(self, principal: Principal, request: SyncGroup) -> Synced:
        """Get the assignment of a generation, held until its leader has sent all assignments.

        Raises LogError as `join`.
        """
        self._authorize(principal, Operation.READ, group_resource(request.group_id))
        # The group's own deadline ends the wait, because the request has no rebalance timeout.
        return await self._groups.call_held(request.group_id, request, Synced, HELD_S_MAX)

    async def heartbeat(self, principal: Principal, request: ClassicHeartbeat) -> None:
        """Keep a session. Raises LogError, with REBALANCE_IN_PROGRESS to join again."""
        self._authorize(principal, Operation.READ, group_resource(request.group_id))
        await self._groups.call(request.group_id, request, Done)

    async def leave(self, principal: Principal, request: LeaveGroup) -> tuple[LeaveOutcome, ...]:
        """End memberships. Returns an outcome for each, in their order. Raises LogError."""
        self._authorize(principal, Operation.READ, group_resource(request.group_id))
        return (await self._groups.call(request.group_id, request, Left)).outcomes
