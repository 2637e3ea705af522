"""A member of a consumer group: what to send, what an answer means. Pure (KIP-848).

Two sets decide: `assigned`, the partitions of the newest answer, and `owned`, the ones that this
member has taken and not given up yet.

| set | partitions |
|---|---|
| `readable` = owned ∩ assigned | to read |
| `to_revoke` = owned - assigned | to commit and give up; no record of these is handed out |
| `to_add` = assigned - owned | to begin with |

The rules:

1. A partition goes to its next owner only once a heartbeat of this member no longer lists it as
   owned, so the member gives it up first and reports `owned` after.
2. An answer that takes partitions away is acknowledged by a report even if none of them was owned:
   the coordinator cannot know.
3. An answer may be lost. The next heartbeat then repeats the whole state, and the coordinator
   answers with the whole assignment.
4. A fenced member repeats its whole state, unless it just has: an answer may be lost that moved its
   epoch on. Fenced again, it gives up everything and joins again with the same id. Each time is
   another *incarnation*: a commit begun in one never counts for a later one.
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
from raftlog.record.errors import (
    FENCED_MEMBER_EPOCH,
    UNKNOWN_MEMBER,
    UNRELEASED_INSTANCE_ID,
    ErrorEntry,
)
from raftlog_client.types import TopicPartition

HOLD_SHARE: Final = 3
"""A heartbeat is held open for a third of the session."""


class GroupPartition(NamedTuple):
    """A partition of a topic that is known by its id."""

    topic: str
    topic_id: str
    partition: int

    @property
    def source(self) -> TopicPartition:
        """The partition by its topic's name."""
        return TopicPartition(self.topic, self.partition)


class Identity(NamedTuple):
    """What a commit names. Valid for its incarnation only."""

    member_id: str
    member_epoch: int
    incarnation: int


class MemberState(Enum):
    """Membership as this side knows it."""

    JOINING = auto()
    """The next heartbeat joins."""
    JOINED = auto()
    LEFT = auto()
    """Not a member; `rejoin` makes it one again."""


class Refusal(Enum):
    """Meaning of a heartbeat's error."""

    RETRY = auto()
    """The same heartbeat may succeed later."""
    LOST = auto()
    """The session is lost: all partitions are, and the member joins again."""
    WAIT_FOR_INSTANCE = auto()
    """The session of an earlier process with the same instance id has not ended yet."""
    FATAL = auto()
    """No repeat helps."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What a member says about itself when it joins."""

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
        """Grows whenever the member loses or leaves its membership."""
        self.assigned: frozenset[GroupPartition] = frozenset()
        self.owned: frozenset[GroupPartition] = frozenset()
        self._member_id = settings.member_id
        self._session_timeout_ms = settings.session_timeout_ms
        self._topics: tuple[str, ...] = ()
        self._pattern: str | None = None
        self._reported: frozenset[GroupPartition] | None = None
        """The owned partitions of the last answered heartbeat; None: to report all state."""
        self._reporting: frozenset[GroupPartition] = frozenset()
        """The owned partitions when the present heartbeat was made."""
        self._is_idle = False
        """Whether the present heartbeat only keeps the session alive, and reports nothing."""
        self._must_acknowledge = False
        """Whether the coordinator waits for a report of unchanged owned partitions."""
        self._sequence = 0
        """Of the newest report: the coordinator tells late copies by it."""

    @property
    def member_id(self) -> str:
        """The member's id, kept for its life."""
        return self._member_id

    @property
    def session_timeout_s(self) -> float:
        """Silence after which the coordinator removes this member."""
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
        """Partitions to begin with."""
        return self.assigned - self.owned

    @property
    def has_report(self) -> bool:
        """Whether the next heartbeat tells the coordinator something, and cannot wait."""
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
        """Join again after a `leave`."""
        if self.state is MemberState.LEFT:
            self.state = MemberState.JOINING

    def request(self) -> HeartbeatRequest:
        """The next heartbeat. One that only keeps the session alive is held open by the node."""
        settings = self.settings
        # Assigned partitions may be taken before the answer comes: they count as owned, or the
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
        """Apply the answer to `request`, the newest one."""
        self.state = MemberState.JOINED
        self._member_id = response.member_id
        self.epoch = response.member_epoch
        self._session_timeout_ms = response.session_timeout_ms
        if request.topics is not None:
            # A subscription changed meanwhile stays to be reported.
            is_present = (tuple(request.topics), request.pattern or None) == (
                self._topics,
                self._pattern or None,
            )
            self._reported = self._reporting if is_present else None
        elif request.owned is not None and self._reported is not None:
            # Else all state became due meanwhile: a subscription changed, perhaps.
            self._reported = self._reporting
        if request.owned is not None:
            self._must_acknowledge = False
        if response.assignment is not None:
            before, self.assigned = self.assigned, from_topics(response.assignment)
            self._must_acknowledge = bool(before - self.assigned - self.owned)

    def unanswered(self) -> None:
        """The answer to a heartbeat is lost: the next one repeats all state."""
        self._reported = None

    def refused(self, entry: ErrorEntry) -> Refusal:
        """The coordinator refused a heartbeat. After LOST call `lose`."""
        if entry is FENCED_MEMBER_EPOCH and self._is_idle:
            # A late copy of an earlier heartbeat may have moved the epoch on, unanswered: the
            # coordinator can only tell from the whole state, which the next heartbeat has.
            self.unanswered()
            return Refusal.RETRY
        if entry in (UNKNOWN_MEMBER, FENCED_MEMBER_EPOCH):
            return Refusal.LOST
        if entry is UNRELEASED_INSTANCE_ID and self.state is MemberState.JOINING:
            return Refusal.WAIT_FOR_INSTANCE
        self.unanswered()
        may_pass = entry.retriable or entry.refresh_metadata
        return Refusal.RETRY if may_pass else Refusal.FATAL

    def lose(self) -> frozenset[GroupPartition]:
        """The membership is lost: give up all partitions and join again. Returns these."""
        lost = self._end()
        self.state = MemberState.JOINING
        return lost

    def leave(self) -> tuple[HeartbeatRequest, frozenset[GroupPartition]]:
        """Leave the group; returns the last heartbeat, and the partitions that were owned.

        A static member leaves for the time of a restart: its partitions wait for its session.
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
        """These are committed and no longer read: the next heartbeat says so."""
        self.owned -= frozenset(partitions)

    def took(self, partitions: Iterable[GroupPartition]) -> None:
        """These are read from now on, as far as they are still assigned."""
        self.owned |= self.assigned.intersection(partitions)

    def identity(self) -> Identity | None:
        """The identity for commits; None without membership."""
        if self.state is not MemberState.JOINED:
            return None
        return Identity(self._member_id, self.epoch, self.incarnation)

    def committable(self, incarnation: int) -> set[TopicPartition]:
        """Partitions for which a commit that began in that incarnation may still be sent."""
        if self.state is not MemberState.JOINED or incarnation != self.incarnation:
            return set()
        return {one.source for one in self.owned}

    def _end(self) -> frozenset[GroupPartition]:
        owned = self.owned
        self.owned = self.assigned = frozenset()
        self.epoch = JOIN_EPOCH
        self.incarnation += 1
        self._reported = None
        return owned


def by_topic(partitions: Collection[GroupPartition]) -> list[MemberPartitions]:
    """Partitions as a heartbeat reports them."""
    topics: dict[str, list[int]] = {}
    for one in sorted(partitions):
        topics.setdefault(one.topic_id, []).append(one.partition)
    return [MemberPartitions(topic_id, numbers) for topic_id, numbers in topics.items()]


def from_topics(assignment: Iterable[AssignedPartitions]) -> frozenset[GroupPartition]:
    """Partitions as a heartbeat's answer names them."""
    return frozenset(
        GroupPartition(one.topic, one.topic_id, number)
        for one in assignment
        for number in one.partitions
    )
