"""The classic groups of a shard, with their held requests and records. Pure.

A group exists from its first join. Until its first generation it is in no record. It ends with the
tombstone of its record, or once neither members nor ids that may join are left.

**Held requests.** A decision that holds a request gives its ticket. A later decision of the group
gives the response, which waits here until the caller takes it. The caller takes it in a separate
decision, so that it leaves once the records that it depends on are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from raftlog.coordinator.groups.classic.group import ClassicGroup
from raftlog.coordinator.groups.classic.messages import (
    ClassicHeartbeat,
    Held,
    Joined,
    JoinGroup,
    JoinResponse,
    LeaveGroup,
    Left,
    Released,
    Step,
    Synced,
    SyncGroup,
    SyncResponse,
)
from raftlog.coordinator.groups.settings import MemberTimer, Shared
from raftlog.coordinator.shard.decision import CoordinatorRecord, Decision
from raftlog.coordinator.shard.records import GroupMetadataKey, GroupMetadataValue
from raftlog.record.errors import RECORD_TOO_LARGE, UNKNOWN_MEMBER, LogError, quoted

R = TypeVar("R")


class _Last(NamedTuple):
    """The last decision."""

    group: ClassicGroup
    released: tuple[Released, ...]
    records: tuple[CoordinatorRecord, ...]


class ClassicGroups:
    """The groups by id. Decisions change soft state, which a load forgets (`classic_group`)."""

    def __init__(self, shared: Shared, on_changed: Callable[[str], None]) -> None:
        """`on_changed` gets the id of a group that responds to a held request."""
        self._shared = shared
        self._on_changed = on_changed
        self._groups: dict[str, ClassicGroup] = {}
        self._responses: dict[int, Joined | Synced | LogError | None] = {}
        """Response by ticket of a held request that a caller awaits, or None before it."""
        self._last: _Last | None = None

    # Queries

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[ClassicGroup]:
        return iter(tuple(self._groups.values()))

    def get(self, group_id: str) -> ClassicGroup | None:
        """The group of the id, or None."""
        return self._groups.get(group_id)

    def is_answered(self, ticket: int) -> bool:
        """Whether the held request has a response."""
        return self._responses.get(ticket) is not None

    def take(self, ticket: int) -> Joined | Synced:
        """The response of a held request that has it. Raises the LogError of a rejection."""
        response = self._responses[ticket]
        assert response is not None
        if isinstance(response, LogError):
            raise response
        return response

    def forget(self, ticket: int) -> None:
        """Forget the held request, since no caller waits for it any more."""
        self._responses.pop(ticket, None)

    # Decisions

    def join(self, request: JoinGroup, now_ms: int, time_ms: int) -> Decision[JoinResponse]:
        """Decide about a join, which makes the group. Raises LogError.

        The caller has checked that there may be a group of this kind.
        """
        group = self._groups.get(request.group_id)
        if group is None:
            group = ClassicGroup(request.group_id, self._shared)
        decision = group.join(request, now_ms=now_ms, wall_ms=time_ms)
        self._groups[group.group_id] = group
        return self._decided(group, decision)

    def sync(self, request: SyncGroup, now_ms: int, time_ms: int) -> Decision[SyncResponse]:
        """Decide about a sync. Raises LogError."""
        group = self._known(request.group_id)
        return self._decided(group, group.sync(request, now_ms=now_ms, wall_ms=time_ms))

    def heartbeat(self, request: ClassicHeartbeat, now_ms: int) -> Decision[None]:
        """Decide about a heartbeat. Raises LogError."""
        return self._known(request.group_id).heartbeat(request, now_ms=now_ms)

    def leave(self, request: LeaveGroup, now_ms: int, time_ms: int) -> Decision[Left]:
        """Decide about members that leave. Raises LogError."""
        group = self._groups.get(request.group_id)
        if group is None:
            # Each member has its own error in the response.
            group = ClassicGroup(request.group_id, self._shared)
        return self._decided(group, group.leave(request, now_ms=now_ms, wall_ms=time_ms))

    def on_timer(self, timer: MemberTimer, now_ms: int, time_ms: int) -> Decision[None]:
        """Act on a timer that is due."""
        group = self._groups.get(timer.group)
        if group is None:
            return Decision(None)
        return self._decided(group, group.on_timer(timer, now_ms=now_ms, wall_ms=time_ms))

    def end(self, group: ClassicGroup) -> tuple[CoordinatorRecord, ...]:
        """Records that end an empty group."""
        assert group.is_empty
        if not group.is_recorded:
            self._drop(group)
        return group.tombstones()

    def refused(self, records: tuple[CoordinatorRecord, ...], now_ms: int, time_ms: int) -> None:
        """Fail the last decision if these are its records, which are too large.

        If a group of this kind decided, it has changed soft state and gives up its members. The
        requests that the decision released fail, since no record has the content of their
        responses.
        """
        last = self._last
        if last is not None and last.records is records:
            others = last.group.dissolve(now_ms=now_ms, wall_ms=time_ms)
            error = LogError(RECORD_TOO_LARGE)
            failed = (Released(held.ticket, error) for held in (*last.released, *others))
            self._respond(last.group, tuple(failed))

    def _known(self, group_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise LogError(
                UNKNOWN_MEMBER,
                f"There is no classic group {quoted(group_id)}: join it as a new member.",
            )
        return group

    def _decided(self, group: ClassicGroup, decision: Decision[Step[R]]) -> Decision[R]:
        response, released = decision.response
        if isinstance(response, Held):
            self._responses[response.ticket] = None
        self._respond(group, released)
        self._last = _Last(group, released, decision.records)
        if group.is_vacant:
            self._drop(group)
        return Decision(response, decision.records)

    def _respond(self, group: ClassicGroup, released: tuple[Released, ...]) -> None:
        for ticket, response in released:
            if ticket in self._responses:
                self._responses[ticket] = response
        if released:
            self._on_changed(group.group_id)

    def _drop(self, group: ClassicGroup) -> None:
        group.replay(None)
        self._groups.pop(group.group_id, None)

    # Replay

    def replay(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        """Apply a record of a generation, or of the end of a group."""
        group = self._groups.get(key.group)
        if value is None:
            if group is not None:
                self._drop(group)
            return
        if group is None:
            group = self._groups[key.group] = ClassicGroup(key.group, self._shared)
        group.replay(value)

    def replaced(self, group_id: str) -> None:
        """Drop the group, since it is of the other kind by now."""
        group = self._groups.get(group_id)
        if group is not None:
            assert group.is_empty
            self._drop(group)

    def restart_timers(self, now_ms: int) -> None:
        """Restart all timers with their full length, after a load or a time without writes."""
        for group in self:
            group.restart_timers(now_ms)
