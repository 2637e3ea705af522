"""A member's decisions, against an honest coordinator, through lost answers and lost sessions."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from raftlog_client.groups.member import (
    GroupMember,
    GroupPartition,
    MemberSettings,
    MemberState,
    Refusal,
    from_topics,
)

from raftlog.api.groups import (
    AssignedPartitions,
    CommitRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetCommit,
)
from raftlog.record.errors import (
    FENCED_MEMBER_EPOCH,
    NO_LEADER,
    UNKNOWN_MEMBER,
    UNRELEASED_INSTANCE_ID,
    LogError,
)
from raftlog.record.types import Offset
from tests.client.fake_groups import FakeGroup
from tests.examples import examples

SESSION_S = 10.0


def new_member(name: str = "m", instance_id: str | None = None) -> GroupMember:
    member = GroupMember(MemberSettings(name, instance_id, "client", None, 10_000, 60_000))
    member.subscribe(["t"], None)
    return member


def answer(epoch: int, *numbers: int, unchanged: bool = False) -> HeartbeatResponse:
    assignment = None if unchanged else [AssignedPartitions("t", "id", list(numbers))]
    return HeartbeatResponse("m", epoch, 5_000, 10_000, assignment)


def exchange(member: GroupMember, response: HeartbeatResponse) -> HeartbeatRequest:
    request = member.request()
    member.answered(request, response)
    return request


def joined(*numbers: int) -> GroupMember:
    member = new_member()
    exchange(member, answer(1, *numbers))
    member.took(member.to_add)
    exchange(member, answer(1, unchanged=True))
    return member


def partition(number: int) -> GroupPartition:
    return GroupPartition("t", "id", number)


def test_a_join_says_everything_and_a_quiet_heartbeat_next_to_nothing() -> None:
    member = new_member(instance_id="i")
    join = exchange(member, answer(1, 0, 1))
    assert (join.member_epoch, join.topics, join.owned, join.max_wait_ms) == (0, ["t"], [], 0)
    assert (join.session_timeout_ms, join.rebalance_timeout_ms) == (10_000, 60_000)
    member.took(member.to_add)
    report = exchange(member, answer(1, unchanged=True))
    assert report.owned is not None
    assert report.owned[0].partitions == [0, 1]
    quiet = member.request()
    assert quiet == HeartbeatRequest("m", 1, "i", max_wait_ms=3_333)


def test_a_revoked_partition_is_not_readable_and_stays_owned_until_it_is_given_up() -> None:
    member = joined(0, 1)
    exchange(member, answer(1, 0))
    assert member.readable == {partition(0)}
    assert member.to_revoke == {partition(1)}
    assert member.request().owned is None
    member.gave_up(member.to_revoke)
    request = member.request()
    assert request.owned is not None
    assert request.owned[0].partitions == [0]
    assert request.max_wait_ms == 0


def test_a_report_lists_what_is_not_given_up_yet() -> None:
    member = joined(0, 1)
    exchange(member, answer(1, 0, 2))
    member.took(member.to_add)
    for request in (member.request(), (member.unanswered(), member.request())[1]):
        assert request.owned is not None
        assert request.owned[0].partitions == [0, 1, 2]


def test_a_partition_taken_back_before_it_was_begun_with_is_acknowledged() -> None:
    member = joined(0)
    exchange(member, answer(2, 0, 1))
    exchange(member, answer(2, 0))
    request = exchange(member, answer(3, unchanged=True))
    assert request.owned is not None
    assert request.owned[0].partitions == [0]
    assert member.request().owned is None


def test_all_state_is_repeated_after_a_lost_answer() -> None:
    member = joined(0)
    member.request()
    member.unanswered()
    request = member.request()
    assert (request.member_epoch, request.topics) == (1, ["t"])
    assert request.owned is not None


def test_a_subscription_that_changed_while_a_heartbeat_was_under_way_is_reported_after() -> None:
    member = new_member()
    request = member.request()
    member.subscribe(["t", "u"], None)
    member.answered(request, answer(1, 0))
    assert member.request().topics == ["t", "u"]
    # Also while a report of owned partitions alone was under way.
    member = new_member()
    exchange(member, answer(1, 0))
    member.took(member.to_add)
    request = member.request()
    assert request.topics is None
    member.subscribe(["t", "u"], None)
    member.answered(request, answer(1, unchanged=True))
    assert member.request().topics == ["t", "u"]


def test_each_report_has_a_larger_sequence_and_a_repeated_one_too() -> None:
    member = new_member()
    join = member.request()
    member.unanswered()
    repeated = member.request()
    assert repeated.sequence > join.sequence > 0
    member.answered(repeated, answer(1, 0))
    member.took(member.to_add)
    report = exchange(member, answer(1, unchanged=True))
    assert report.sequence > repeated.sequence
    assert member.request().sequence == 0
    assert member.leave()[0].sequence > report.sequence


@pytest.mark.parametrize("entry", [UNKNOWN_MEMBER, FENCED_MEMBER_EPOCH])
def test_a_fenced_member_loses_everything_and_joins_again(entry: object) -> None:
    member = joined(0, 1)
    identity = member.identity()
    assert identity is not None
    assert member.refused(entry) is Refusal.LOST  # type: ignore[arg-type]  # of the table
    assert member.lose() == {partition(0), partition(1)}
    assert not member.readable
    assert member.identity() is None
    exchange(member, answer(7, 0, 1))
    member.took(member.to_add)
    # Back with the same partitions; the commit of the former incarnation still does not count.
    assert member.committable(identity.incarnation) == set()
    assert len(member.committable(member.incarnation)) == 2


def test_a_report_counts_what_may_be_taken_before_its_answer() -> None:
    """Else the coordinator gives a partition away that the member takes meanwhile."""
    member = joined(0)
    member.answered(member.request(), answer(2, 0, 1))
    member.unanswered()
    request = member.request()
    assert [one.partitions for one in request.owned or ()] == [[0, 1]]


def test_a_member_fenced_while_idle_shows_its_state_first() -> None:
    """A late copy of an earlier heartbeat may have moved the epoch on, without an answer."""
    member = joined(0, 1)
    assert member.request().owned is None
    assert member.refused(FENCED_MEMBER_EPOCH) is Refusal.RETRY
    request = member.request()
    assert request.member_epoch == 1
    assert [one.partitions for one in request.owned or ()] == [[0, 1]]
    assert request.max_wait_ms == 0
    assert member.readable == {partition(0), partition(1)}
    assert member.refused(FENCED_MEMBER_EPOCH) is Refusal.LOST


def test_errors_that_pass_are_retried_and_others_are_final() -> None:
    member = new_member()
    assert member.refused(UNRELEASED_INSTANCE_ID) is Refusal.WAIT_FOR_INSTANCE
    assert member.refused(NO_LEADER) is Refusal.RETRY
    exchange(member, answer(1, 0))
    assert member.refused(UNRELEASED_INSTANCE_ID) is Refusal.FATAL


def test_leaving_says_whether_the_member_comes_back() -> None:
    assert joined(0).leave()[0].member_epoch == -1
    member = new_member(instance_id="i")
    exchange(member, answer(1, 0))
    assert member.leave()[0].member_epoch == -2
    assert member.state is MemberState.LEFT
    member.rejoin()
    assert member.request().member_epoch == 0


class Members(RuleBasedStateMachine):
    """Members and a coordinator; answers are lost, sessions end, requests are slow."""

    names = st.sampled_from(["a", "b", "c"])

    @initialize(counts=st.tuples(st.integers(1, 4), st.integers(0, 2)))
    def begin(self, counts: tuple[int, int]) -> None:
        self.now = 0.0
        self.topics = {"t": ("id-t", counts[0]), "u": ("id-u", counts[1])}
        self.group = FakeGroup(self.topics)
        self.members = {name: new_member(name) for name in ("a", "b", "c")}
        self.taken_away: dict[str, set[GroupPartition]] = {name: set() for name in self.members}
        """Partitions that a member was to give up, by the last answer that it got."""

    def heartbeat(self, name: str, *, is_lost: bool) -> None:
        member = self.members[name]
        if member.state is MemberState.LEFT:
            return
        request = member.request()
        try:
            response = self.group.heartbeat(request, self.now)
        except LogError as error:
            if is_lost:
                member.unanswered()
            elif member.refused(error.entry) is Refusal.LOST:
                member.lose()
                self.taken_away[name] = set()
                assert not member.readable
            return
        if is_lost:
            member.unanswered()
            return
        before = member.owned
        member.answered(request, response)
        if response.assignment is not None:
            self.taken_away[name] = set(before - from_topics(response.assignment))

    @rule(name=names, is_lost=st.booleans())
    def beat(self, name: str, is_lost: bool) -> None:
        self.heartbeat(name, is_lost=is_lost)

    @rule(name=names)
    def read_call(self, name: str) -> None:
        """As inside of a read call: first give up, then take."""
        member = self.members[name]
        member.gave_up(member.to_revoke)
        member.took(member.to_add)
        self.taken_away[name] = set()

    @rule(name=names)
    def take(self, name: str) -> None:
        """As a read call that has not given up yet."""
        self.members[name].took(self.members[name].to_add)

    @rule(name=names)
    def give_up(self, name: str) -> None:
        self.members[name].gave_up(self.members[name].to_revoke)
        self.taken_away[name] = set()

    @rule(name=names)
    def commit(self, name: str) -> None:
        """A commit of all that may be committed: the coordinator refuses it, or the member owns."""
        member = self.members[name]
        identity = member.identity()
        if identity is None:
            assert member.committable(member.incarnation) == set()
            return
        offsets = [
            OffsetCommit(one.topic, one.partition, Offset(1))
            for one in member.committable(identity.incarnation)
        ]
        request = CommitRequest(offsets, identity.member_id, identity.member_epoch)
        try:
            self.group.commit(request, self.now)
        except LogError:
            return
        row = self.group.members[name]
        names = {topic_id: topic for topic, (topic_id, _) in self.topics.items()}
        held = {(names[topic_id], number) for topic_id, number in row.assigned | row.pending}
        assert {(one.topic, one.partition) for one in offsets} <= held

    @rule(name=names)
    def leave(self, name: str) -> None:
        member = self.members[name]
        if member.state is not MemberState.JOINED:
            return
        request, _ = member.leave()
        self.taken_away[name] = set()
        try:
            self.group.heartbeat(request, self.now)
        except LogError as error:
            assert error.entry is UNKNOWN_MEMBER

    @rule(name=names)
    def come_back(self, name: str) -> None:
        self.members[name].rejoin()

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(count=st.integers(0, 6))
    def more_partitions(self, count: int) -> None:
        topic_id, before = self.topics["u"]
        self.topics["u"] = topic_id, max(before, count)

    @invariant()
    def no_member_reads_what_it_was_to_give_up(self) -> None:
        for name, member in getattr(self, "members", {}).items():
            assert not member.readable & self.taken_away[name]
            assert member.readable <= member.assigned
            if member.state is not MemberState.JOINED:
                assert not member.owned

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        """Among members with a live session, as the coordinator sees it."""
        if not hasattr(self, "members"):
            return
        self.group.expire(self.now)
        owners: dict[GroupPartition, str] = {}
        for name, member in self.members.items():
            row = self.group.members.get(name)
            if row is None or member.epoch not in (row.epoch, row.previous_epoch):
                continue
            for one in member.owned:
                assert one not in owners, f"{owners[one]} and {name}"
                owners[one] = name

    @precondition(lambda self: hasattr(self, "members"))
    @rule()
    def settle(self) -> None:
        """Without faults every partition finds one reader, in a few rounds."""
        for member in self.members.values():
            member.rejoin()
        for _ in range(12):
            for name, member in self.members.items():
                self.heartbeat(name, is_lost=False)
                member.gave_up(member.to_revoke)
                member.took(member.to_add)
                self.taken_away[name] = set()
        wanted = self.topics["t"][1]
        found = [one for member in self.members.values() for one in member.readable]
        assert len(found) == len(set(found)) == wanted


Members.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=30, deadline=None
)
TestMembers = Members.TestCase
