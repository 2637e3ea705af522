"""A member of a consumer group, with its requests and the meaning of responses.

Pure (KIP-848). Two sets decide. `assigned` has the partitions of the newest response, and `owned`
those that this member has taken and not given up yet.

| set | partitions |
|---|---|
| `readable` = owned ∩ assigned | to read |
| `to_revoke` = owned - assigned | to commit and give up, no longer handed out |
| `to_add` = assigned - owned | to start |

The rules:

1. A partition goes to its next owner only once a heartbeat of this member no longer lists it as
   owned, so the member gives it up first and reports `owned` after.
2. A response that takes partitions away is acknowledged by a report even if none of them was owned,
   because the coordinator cannot know.
3. A response may be lost. The next heartbeat then repeats the whole state, and the coordinator
   responds with the whole assignment.
4. A fenced member repeats its whole state, unless it just has. A lost response may have moved its
   epoch on. Fenced again, it gives up everything and rejoins with the same id. Each time is another
   *incarnation*. A commit started in an incarnation never counts for a later incarnation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from raftlog.api.groups import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    AssignedPartitions,
    HeartbeatRequest,
    HeartbeatResponse,
    MemberPartitions,
)
from raftlog.record import errors
from raftlog.record.errors import ErrorEntry
from raftlog_client.types import TopicPartition

HOLD_SHARE: Final = 3
"""Divisor of the session for the hold of a heartbeat."""


class GroupPartition(NamedTuple):
    """A partition of a topic that is known by its id."""

    topic: str
    topic_id: str
    partition: int

    @property
    def source(self) -> TopicPartition:
        """Return the partition by its topic's name."""
        return TopicPartition(self.topic, self.partition)


class Identity(NamedTuple):
    """Identity in a commit. Valid only for its incarnation."""

    member_id: str
    member_epoch: int
    incarnation: int


class MemberState(Enum):
    """Membership as this side knows it."""

    JOINING = auto()
    """The next heartbeat joins."""
    JOINED = auto()
    LEFT = auto()
    """Not a member. `rejoin` makes it a member again."""


class Refusal(Enum):
    """Meaning of a heartbeat's error."""

    RETRY = auto()
    """The same heartbeat may succeed later."""
    LOST = auto()
    """The session and all partitions are lost, and the member rejoins."""
    WAIT_FOR_INSTANCE = auto()
    """The session of an earlier process with the same instance id has not ended yet."""
    FATAL = auto()
    """No repeat helps."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Settings that a member reports when it joins."""

    member_id: str
    instance_id: str | None
    client_id: str
    assignor: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int


class GroupMember:
    """The state of one member."""

    def __init__(self, settings: MemberSettings) -> None:
        self.settings = settings
        self.state = MemberState.LEFT
        self.epoch = JOIN_EPOCH
        self.incarnation = 0
        """Count of memberships that the member lost or left."""
        self.assigned: frozenset[GroupPartition] = frozenset()
        self.owned: frozenset[GroupPartition] = frozenset()
        self._member_id = settings.member_id
        self._session_timeout_ms = settings.session_timeout_ms
        self._topics: tuple[str, ...] = ()
        self._pattern: str | None = None
        self._reported: frozenset[GroupPartition] | None = None
        """Owned partitions of the last answered heartbeat, or None to report all state."""
        self._reporting: frozenset[GroupPartition] = frozenset()
        """Owned partitions when the present heartbeat was made."""
        self._is_idle = False
        """Whether the present heartbeat only keeps the session alive and reports nothing."""
        self._must_acknowledge = False
        """Whether the coordinator waits for a report of unchanged owned partitions."""
        self._sequence = 0
        """Number of the newest report, by which the coordinator detects late copies."""

    @property
    def member_id(self) -> str:
        """The member's id, kept for its life."""
        return self._member_id

    @property
    def session_timeout_s(self) -> float:
        """Seconds of silence after which the coordinator removes this member."""
        return self._session_timeout_ms / 1000

    @property
    def readable(self) -> frozenset[GroupPartition]:
        """Partitions to read."""
        return self.owned & self.assigned

    @property
    def to_revoke(self) -> frozenset[GroupPartition]:
        """Partitions to give up."""
        return self.owned - self.assigned

    @property
    def to_add(self) -> frozenset[GroupPartition]:
        """Partitions to start."""
        return self.assigned - self.owned

    @property
    def has_report(self) -> bool:
        """Whether the next heartbeat has something to report and cannot wait."""
        return (
            self.state is MemberState.JOINING
            or self._reported != self.owned
            or (self._must_acknowledge and not self.to_revoke)
        )

    def subscribe(self, topics: Sequence[str], pattern: str | None) -> None:
        """Subscribe to topics by name or by an RE2 pattern. Joins the group if not a member."""
        self._topics, self._pattern = tuple(topics), pattern
        self._reported = None
        self.rejoin()

    def rejoin(self) -> None:
        """Rejoin after a `leave`."""
        if self.state is MemberState.LEFT:
            self.state = MemberState.JOINING

    def request(self) -> HeartbeatRequest:
        """Return the next heartbeat. The node holds an idle heartbeat open."""
        settings = self.settings
        # Assigned partitions may be taken before the response arrives. They count as owned, or the
        # coordinator could give them to others, and the member would commit them in its next epoch.
        self._reporting = self.owned
        is_joining = self.state is MemberState.JOINING
        self._is_idle = not self.has_report
        if self._is_idle:
            return HeartbeatRequest(
                self._member_id,
                self.epoch,
                settings.instance_id,
                max_wait_ms=self._session_timeout_ms // HOLD_SHARE,
            )
        self._sequence += 1
        if self._reported is not None and not is_joining:
            return HeartbeatRequest(
                self._member_id,
                self.epoch,
                settings.instance_id,
                owned=by_topic(self.owned | self.assigned),
                sequence=self._sequence,
            )
        return HeartbeatRequest(
            self._member_id,
            self.epoch,
            settings.instance_id,
            client_id=settings.client_id,
            topics=list(self._topics),
            pattern=self._pattern or "",
            assignor=settings.assignor,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.rebalance_timeout_ms,
            owned=by_topic(self.owned | self.assigned),
            sequence=self._sequence,
        )

    def answered(self, request: HeartbeatRequest, response: HeartbeatResponse) -> None:
        """Apply the response to `request`, the newest request."""
        self.state = MemberState.JOINED
        self._member_id = response.member_id
        self.epoch = response.member_epoch
        self._session_timeout_ms = response.session_timeout_ms
        if request.topics is not None:
            # A subscription that changed in the meantime must still be reported.
            is_present = (tuple(request.topics), request.pattern or None) == (
                self._topics,
                self._pattern or None,
            )
            self._reported = self._reporting if is_present else None
        elif request.owned is not None and self._reported is not None:
            # Otherwise all state became due in the meantime, perhaps by a new subscription.
            self._reported = self._reporting
        if request.owned is not None:
            self._must_acknowledge = False
        if response.assignment is not None:
            before, self.assigned = self.assigned, from_topics(response.assignment)
            self._must_acknowledge = bool(before - self.assigned - self.owned)

    def unanswered(self) -> None:
        """Repeat all state in the next heartbeat, because a response is lost."""
        self._reported = None

    def refused(self, entry: ErrorEntry) -> Refusal:
        """Classify the coordinator's refusal of a heartbeat. After LOST call `lose`."""
        if entry is errors.FENCED_MEMBER_EPOCH and self._is_idle:
            # A late copy of an earlier heartbeat may have moved the epoch on without a response.
            # The coordinator needs the whole state to decide, which the next heartbeat has.
            self.unanswered()
            return Refusal.RETRY
        if entry in (errors.UNKNOWN_MEMBER, errors.FENCED_MEMBER_EPOCH):
            return Refusal.LOST
        if entry is errors.UNRELEASED_INSTANCE_ID and self.state is MemberState.JOINING:
            return Refusal.WAIT_FOR_INSTANCE
        self.unanswered()
        may_pass = entry.retriable or entry.refresh_metadata
        return Refusal.RETRY if may_pass else Refusal.FATAL

    def lose(self) -> frozenset[GroupPartition]:
        """Give up all partitions, which are returned, and rejoin after a lost membership."""
        lost = self._end()
        self.state = MemberState.JOINING
        return lost

    def leave(self) -> tuple[HeartbeatRequest, frozenset[GroupPartition]]:
        """Leave the group. Returns the last heartbeat and the partitions that were owned.

        A static member leaves for the time of a restart. Its partitions wait for its session.
        """
        epoch = LEAVE_EPOCH if self.settings.instance_id is None else LEAVE_STATIC_EPOCH
        self._sequence += 1
        request = HeartbeatRequest(
            self._member_id, epoch, self.settings.instance_id, sequence=self._sequence
        )
        owned = self._end()
        self.state = MemberState.LEFT
        return request, owned

    def gave_up(self, partitions: Iterable[GroupPartition]) -> None:
        """Note that these are committed and no longer read. The next heartbeat reports it."""
        self.owned -= frozenset(partitions)

    def took(self, partitions: Iterable[GroupPartition]) -> None:
        """Note that these are read from now on, if they are still assigned."""
        self.owned |= self.assigned.intersection(partitions)

    def identity(self) -> Identity | None:
        """Return the identity for commits, or None without membership."""
        if self.state is not MemberState.JOINED:
            return None
        return Identity(self._member_id, self.epoch, self.incarnation)

    def committable(self, incarnation: int) -> set[TopicPartition]:
        """Return partitions for which a commit of that incarnation may still be sent."""
        if self.state is not MemberState.JOINED or incarnation != self.incarnation:
            return set()
        return {partition.source for partition in self.owned}

    def _end(self) -> frozenset[GroupPartition]:
        owned = self.owned
        self.owned = self.assigned = frozenset()
        self.epoch = JOIN_EPOCH
        self.incarnation += 1
        self._reported = None
        return owned


def by_topic(partitions: Collection[GroupPartition]) -> list[MemberPartitions]:
    """Return partitions as a heartbeat reports them."""
    topics: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic_id, []).append(partition.partition)
    return [MemberPartitions(topic_id, numbers) for topic_id, numbers in topics.items()]


def from_topics(assignment: Iterable[AssignedPartitions]) -> frozenset[GroupPartition]:
    """Return the partitions of a heartbeat's response."""
    return frozenset(
        GroupPartition(partition.topic, partition.topic_id, number)
        for partition in assignment
        for number in partition.partitions
    )
