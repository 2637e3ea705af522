"""The classic groups of one shard: which there are, their held requests, their records. Pure.

A group exists from its first join: until its first generation it is in no record. It ends with the
tombstone of its record, or once neither members nor ids that may join are left.

**Held requests.** A decision that holds a request gives its ticket; a later one of the group gives
the response, which waits here until the caller takes it. Take it in a decision of its own: then it
leaves once the records that it depends on are committed.
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
        """`on_changed` is called with the id of a group that answers a held request."""
        self._shared = shared
        self._on_changed = on_changed
        self._groups: dict[str, ClassicGroup] = {}
        self._responses: dict[int, Joined | Synced | LogError | None] = {}
        """Of the held requests still waited for; None: no response yet."""
        self._last: _Last | None = None

    # Queries

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[ClassicGroup]:
        return iter(tuple(self._groups.values()))

    def get(self, group_id: str) -> ClassicGroup | None:
        """The group of the id; None without one."""
        return self._groups.get(group_id)

    def is_answered(self, ticket: int) -> bool:
        """Whether the held request has a response."""
        return self._responses.get(ticket) is not None

    def take(self, ticket: int) -> Joined | Synced:
        """The response of a held request that is answered. Raises the LogError of a refusal."""
        response = self._responses[ticket]
        assert response is not None
        if isinstance(response, LogError):
            raise response
        return response

    def forget(self, ticket: int) -> None:
        """No caller waits for the held request any more."""
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
            # Each member has its own error in the answer.
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
        """These records of a decision are too large. If it was of a group of this kind, it has
        changed soft state: the group gives up its members.

        The requests that the decision released fail: no record has what their answers say.
        """
        last = self._last
        if last is not None and last.records is records:
            others = last.group.dissolve(now_ms=now_ms, wall_ms=time_ms)
            error = LogError(RECORD_TOO_LARGE)
            failed = (Released(one.ticket, error) for one in (*last.released, *others))
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
        """Apply a record: a generation, or the end of a group."""
        group = self._groups.get(key.group)
        if value is None:
            if group is not None:
                self._drop(group)
            return
        if group is None:
            group = self._groups[key.group] = ClassicGroup(key.group, self._shared)
        group.replay(value)

    def replaced(self, group_id: str) -> None:
        """The group is of the other kind by now."""
        group = self._groups.get(group_id)
        if group is not None:
            assert group.is_empty
            self._drop(group)

    def restart_timers(self, now_ms: int) -> None:
        """Begin all timers with their full length: after a load, or a time without writes."""
        for group in self:
            group.restart_timers(now_ms)
