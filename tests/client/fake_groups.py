"""An honest coordinator of consumer groups, without I/O: epochs, revocation before reassignment,
sessions, fencing of commits, offsets pending in transactions.

Written against the shapes of `raftlog.api.groups` and KIP-848, not against the node's code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from raftlog.api.groups import (
    ANY_OFFSET,
    AssignedPartitions,
    CommitRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    MemberReport,
    OffsetCommit,
)
from raftlog.record.errors import (
    FENCED_MEMBER_EPOCH,
    GROUP_NOT_EMPTY,
    ILLEGAL_STATE,
    STALE_MEMBER_EPOCH,
    UNKNOWN_MEMBER,
    UNRELEASED_INSTANCE_ID,
    ErrorEntry,
    LogError,
)

UNSTABLE = ErrorEntry(
    50399, "UNSTABLE", "An open transaction may change it.", kafka_code=88, retriable=True
)
"""A code unknown to the client, which judges it by its status: any retriable error will do."""

Pair = tuple[str, int]
"""Topic id and partition."""


@dataclass
class FakeMember:
    member_id: str
    session_s: float
    rebalance_s: float
    seen_at: float
    instance_id: str | None = None
    epoch: int = 0
    previous_epoch: int = -1
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: set[Pair] = field(default_factory=set)
    pending: set[Pair] = field(default_factory=set)
    """To be given up, and not acknowledged yet."""
    pending_since: float = 0.0
    sent: set[Pair] | None = None
    """The assignment of the last answer."""
    has_left: bool = False
    """A static member that is away for a restart."""
    report: MemberReport | None = None
    """Of the newest heartbeat."""


@dataclass(frozen=True)
class FakeOffset:
    offset: int
    metadata: str = ""
    topic_id: str | None = None


class FakeGroup:
    """One group. `topics` gives id and partition count of each topic."""

    def __init__(self, topics: Mapping[str, tuple[str, int]]) -> None:
        self.topics = topics
        self.members: dict[str, FakeMember] = {}
        self.epoch = 0
        self.target: dict[str, set[Pair]] = {}
        self.offsets: dict[tuple[str, int], FakeOffset] = {}
        self.pending: dict[int, dict[tuple[str, int], FakeOffset]] = {}
        """By producer id: offsets of open transactions."""
        self.commits: list[tuple[str, tuple[str, int], int]] = []
        """Member, partition and offset of every accepted commit."""
        self._basis: object = None

    # Membership

    def heartbeat(self, request: HeartbeatRequest, now: float) -> HeartbeatResponse:
        self.expire(now)
        if request.member_epoch < 0:
            return self._leave(request)
        member = self._member(request, now)
        member.seen_at = now
        member.report = request.report
        if request.topics is not None:
            member.topics = tuple(request.topics)
        if request.pattern is not None:
            member.pattern = request.pattern or None
        owned = None
        if request.owned is not None:
            owned = {(one.topic_id, number) for one in request.owned for number in one.partitions}
            if not owned & member.pending:
                member.pending = set()
        self.refresh()
        if request.hand_over_to is not None:
            self._hand_over(request.member_id, request.hand_over_to)
        self._reconcile(member, owned, now)
        is_changed = owned is not None or member.sent != member.assigned
        member.sent = set(member.assigned)
        return HeartbeatResponse(
            member.member_id,
            member.epoch,
            int(member.session_s * 500),
            int(member.session_s * 1000),
            self._named(member.assigned) if is_changed else None,
        )

    def has_news(self, member_id: str, now: float) -> bool:
        """Whether a heartbeat held open is to be answered."""
        self.expire(now)
        self.refresh()
        member = self.members.get(member_id)
        if member is None:
            return True
        target = self.target.get(member_id, set())
        return (
            bool(member.assigned - target)
            or (not member.pending and bool(self._free(member) - member.assigned))
            or (not member.pending and member.epoch != self.epoch)
        )

    def expire(self, now: float) -> None:
        for member in list(self.members.values()):
            if now - member.seen_at > member.session_s or (
                member.pending and now - member.pending_since > member.rebalance_s
            ):
                del self.members[member.member_id]

    def refresh(self) -> None:
        """Compute the target again, if members, subscriptions or topics changed."""
        wanted = {
            member.member_id: frozenset(self._subscribed(member))
            for member in self.members.values()
        }
        if wanted == self._basis:
            return
        self._basis = wanted
        self.epoch += 1
        before = {pair: name for name, pairs in self.target.items() for pair in pairs}
        self.target = {name: set() for name in wanted}
        pairs = sorted(set().union(*wanted.values()))
        for is_sticky in (True, False):
            for pair in pairs:
                eligible = sorted(name for name in wanted if pair in wanted[name])
                if any(pair in self.target[name] for name in wanted) or not eligible:
                    continue
                share = -(-len(pairs) // len(wanted))
                owner = before.get(pair)
                if is_sticky:
                    if owner in eligible and len(self.target[owner]) < share:
                        self.target[owner].add(pair)
                else:
                    chosen = min(eligible, key=lambda name: (len(self.target[name]), name))
                    self.target[chosen].add(pair)

    def _member(self, request: HeartbeatRequest, now: float) -> FakeMember:
        member = self.members.get(request.member_id)
        if request.member_epoch == 0:
            if member is None:
                member = self._join(request, now)
            member.sent = None
            return member
        if member is None:
            raise LogError(UNKNOWN_MEMBER)
        owned = {(one.topic_id, n) for one in request.owned or () for n in one.partitions}
        is_repeat = (
            request.member_epoch == member.previous_epoch
            and request.owned is not None
            and owned <= member.assigned
        )
        if request.member_epoch != member.epoch and not is_repeat:
            raise LogError(FENCED_MEMBER_EPOCH)
        return member

    def _join(self, request: HeartbeatRequest, now: float) -> FakeMember:
        member = FakeMember(
            request.member_id,
            (request.session_timeout_ms or 10_000) / 1000,
            (request.rebalance_timeout_ms or 60_000) / 1000,
            now,
            request.instance_id,
        )
        for other in list(self.members.values()):
            if request.instance_id is not None and other.instance_id == request.instance_id:
                if not other.has_left:
                    raise LogError(UNRELEASED_INSTANCE_ID)
                del self.members[other.member_id]
                member.assigned, member.pending = other.assigned, other.pending
                self.target[member.member_id] = self.target.pop(other.member_id, set())
        self.members[member.member_id] = member
        return member

    def _hand_over(self, member_id: str, instance_id: str) -> None:
        heirs = [one for one in self.members.values() if one.instance_id == instance_id]
        if not heirs or heirs[0].has_left:
            raise LogError(ILLEGAL_STATE)
        heir = heirs[0].member_id
        if not self.target[heir]:
            self.epoch += 1
            self.target[heir], self.target[member_id] = self.target[member_id], set()

    def _leave(self, request: HeartbeatRequest) -> HeartbeatResponse:
        member = self.members.get(request.member_id)
        if member is None:
            raise LogError(UNKNOWN_MEMBER)
        if request.member_epoch == -2:
            member.has_left = True
            member.pending = set()
        else:
            del self.members[request.member_id]
        return HeartbeatResponse(request.member_id, request.member_epoch, 0, 1)

    def _reconcile(self, member: FakeMember, owned: set[Pair] | None, now: float) -> None:
        target = self.target[member.member_id]
        if revoked := member.assigned - target:
            member.assigned -= revoked
            if owned is None or owned & revoked:
                member.pending |= revoked
                member.pending_since = now
        if member.pending:
            return
        member.assigned |= self._free(member)
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch

    def _free(self, member: FakeMember) -> set[Pair]:
        """Partitions of the member's target that no other member holds."""
        held: set[Pair] = set()
        for other in self.members.values():
            if other is not member:
                held |= other.assigned | other.pending
        return self.target.get(member.member_id, set()) - held

    def _subscribed(self, member: FakeMember) -> Iterable[Pair]:
        for name, (topic_id, count) in self.topics.items():
            if name in member.topics or (member.pattern and re.fullmatch(member.pattern, name)):
                yield from ((topic_id, number) for number in range(count))

    def _named(self, pairs: Iterable[Pair]) -> list[AssignedPartitions]:
        names = {topic_id: name for name, (topic_id, _) in self.topics.items()}
        found: dict[str, list[int]] = {}
        for topic_id, number in sorted(pairs):
            found.setdefault(topic_id, []).append(number)
        return [
            AssignedPartitions(names[topic_id], topic_id, numbers)
            for topic_id, numbers in found.items()
            if topic_id in names
        ]

    # Offsets

    def check_commit(self, member_id: str, member_epoch: int, now: float) -> None:
        self.expire(now)
        if member_epoch < 0:
            if self.members:
                raise LogError(UNKNOWN_MEMBER)
            return
        member = self.members.get(member_id)
        if member is None:
            raise LogError(UNKNOWN_MEMBER)
        if member_epoch != member.epoch:
            raise LogError(STALE_MEMBER_EPOCH)

    def commit(self, request: CommitRequest, now: float) -> set[tuple[str, int]]:
        """Returns the partitions where another offset is than the member expects."""
        self.check_commit(request.member_id, request.member_epoch, now)
        superseded = set()
        for one in request.offsets:
            place = (one.topic, one.partition)
            known = self.offsets.get(place)
            if known is None or one.expected in (ANY_OFFSET, known.offset):
                self._put(request.member_id, one)
            else:
                superseded.add(place)
        return superseded

    def add_to_transaction(self, producer_id: int, offsets: Iterable[OffsetCommit]) -> None:
        pending = self.pending.setdefault(producer_id, {})
        for one in offsets:
            pending[one.topic, one.partition] = FakeOffset(one.offset, one.metadata, one.topic_id)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        pending = self.pending.pop(producer_id, {})
        if is_commit:
            self.offsets.update(pending)

    def committed(self, topic: str, partition: int) -> FakeOffset | None:
        """Raises LogError while an open transaction may change the offset."""
        if any((topic, partition) in pending for pending in self.pending.values()):
            raise LogError(UNSTABLE)
        return self.offsets.get((topic, partition))

    def delete(self) -> None:
        if self.members:
            raise LogError(GROUP_NOT_EMPTY)

    def _put(self, member_id: str, one: OffsetCommit) -> None:
        self.offsets[one.topic, one.partition] = FakeOffset(one.offset, one.metadata, one.topic_id)
        self.commits.append((member_id, (one.topic, one.partition), one.offset))
