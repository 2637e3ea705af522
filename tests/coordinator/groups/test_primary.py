"""Groups with the assignor `primary`: reports, the choice, disconnects, hand-overs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.coordinator.groups.assignors import Assignment, assignment_of, pairs
from raftlog.coordinator.groups.consumer_decisions import DISCONNECT_GRACE_MS
from raftlog.coordinator.groups.messages import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    MemberReport,
)
from raftlog.coordinator.groups.settings import MemberTimer, TimerKind
from raftlog.record.errors import (
    BAD_REQUEST,
    FENCED_MEMBER_EPOCH,
    ILLEGAL_STATE,
    UNKNOWN_MEMBER,
    UNRELEASED_INSTANCE_ID,
    ErrorEntry,
    LogError,
)
from tests.coordinator.group_harness import GROUP, ShardHarness
from tests.coordinator.images import id_of, image_of, put_topic
from tests.examples import examples

SESSION_MS = 1_500
DISCONNECT_MS = 300
REBALANCE_MS = 3_000
P0 = (id_of("log"), 0)


class Replica:
    """A static member that reports its position in each heartbeat."""

    def __init__(self, harness: ShardHarness, name: str, **subscription: Any) -> None:
        self.harness = harness
        self.name = name
        self.life = 1
        self.epoch = 0
        self.sequence = 0
        self.position = 0
        self.primaries = 0
        self.assigned: Assignment = ()
        self.is_primary = False
        """Whether the newest answer made it the primary."""
        self.must_say = False
        """Whether the next heartbeat acknowledges, or an answer was lost."""
        self.newest: ConsumerHeartbeatRequest | None = None
        self.newest_ms = self.answered_ms = 0
        """When its newest heartbeat was sent, and the newest one with an answer."""
        self.subscription = {"subscribed_names": ("log",), **subscription}

    @property
    def member_id(self) -> str:
        return f"{self.name}{self.life}"

    def request(self, *, is_report: bool, **fields: Any) -> ConsumerHeartbeatRequest:
        if self.epoch == 0:
            fields |= self.subscription | {
                "assignor": "primary",
                "session_timeout_ms": SESSION_MS,
                "rebalance_timeout_ms": REBALANCE_MS,
            }
        if is_report:
            self.sequence += 1
            fields = {"owned": self.assigned, "sequence": self.sequence} | fields
        return ConsumerHeartbeatRequest(
            GROUP,
            self.member_id,
            self.epoch,
            self.name,
            report=MemberReport(self.position, self.primaries, f"{self.name}:1", DISCONNECT_MS),
            **fields,
        )

    def beat(self, *, is_lost: bool = False, **fields: Any) -> None:
        """A heartbeat; a report if there is something to say."""
        is_report = self.epoch == 0 or bool(fields) or self.must_say
        self.newest = self.request(is_report=is_report, **fields)
        self.newest_ms = self.harness.now_ms
        response = self.harness.decide(self.newest)
        assert isinstance(response, ConsumerHeartbeatResponse)
        if is_lost:
            self.must_say = True
            return
        self.must_say = False
        self.answered_ms = self.newest_ms
        self.epoch = response.member_epoch
        assignment = response.assignment
        if assignment is not None:
            self.must_say = set(pairs(self.assigned)) != set(pairs(assignment))
            self.assigned = assignment
            self.is_primary = P0 in pairs(assignment)

    def disconnect(self) -> None:
        """The connection of the newest heartbeat ends."""
        assert self.newest is not None
        self.harness.shard.disconnected(self.newest, self.newest_ms, self.harness.now_ms)

    def leave(self, epoch: int = LEAVE_EPOCH) -> None:
        self.sequence += 1
        self.is_primary = False
        self.harness.decide(
            ConsumerHeartbeatRequest(
                GROUP, self.member_id, epoch, self.name, sequence=self.sequence
            )
        )

    def start_again(self) -> None:
        """Another process of the same replica."""
        self.life += 1
        self.epoch, self.assigned, self.must_say, self.is_primary = 0, (), False, False


def group_of(*positions: int, **subscription: Any) -> tuple[ShardHarness, list[Replica]]:
    """Replicas `a`, `b`, … at these positions; `a` is the first one."""
    harness = ShardHarness(image_of(log=2))
    replicas = [Replica(harness, name, **subscription) for name in "abcd"[: len(positions)]]
    for replica, position in zip(replicas, positions, strict=True):
        replica.position = position
        replica.beat()
    for _ in range(3):
        for replica in replicas:
            replica.beat()
    return harness, replicas


def primaries(replicas: list[Replica]) -> list[str]:
    for _ in range(3):
        for replica in replicas:
            replica.beat()
    return [replica.name for replica in replicas if replica.is_primary]


def refusal(harness: ShardHarness, request: ConsumerHeartbeatRequest) -> ErrorEntry:
    count = len(harness.log)
    with pytest.raises(LogError) as caught:
        harness.decide(request)
    assert len(harness.log) == count
    return caught.value.entry


def test_one_member_has_all_partitions_whoever_joins_after() -> None:
    harness, replicas = group_of(0, 9, 9)
    assert primaries(replicas) == ["a"]
    assert replicas[0].assigned == assignment_of([P0, (P0[0], 1)])
    put_topic(harness.image, "log", 3)
    harness.topics_changed(["log"])
    assert primaries(replicas) == ["a"]
    assert len(pairs(replicas[0].assigned)) == 3


def test_positions_are_in_no_record_and_raise_no_epoch() -> None:
    harness, (first, second) = group_of(0, 0)
    count, epoch = len(harness.log), harness.group.epoch
    for position in range(10):
        first.position = second.position = position
        first.beat()
        second.beat()
    assert (len(harness.log), harness.group.epoch) == (count, epoch)
    described = {one.instance_id: one.report for one in harness.group.describe().members}
    assert described == {name: MemberReport(9, 0, f"{name}:1", DISCONNECT_MS) for name in "ab"}


def test_reports_end_with_their_members_and_with_a_load() -> None:
    harness, (first, second) = group_of(0, 0)
    second.leave()
    assert harness.group.reports.keys() == {"a1"}
    harness.reload(len(harness.log), keep_tombstones=False)
    assert not harness.group.reports
    assert harness.group.describe().members[0].report is None
    first.beat()
    assert harness.group.reports.keys() == {"a1"}
    harness.decide(ConsumerHeartbeatRequest(GROUP, "a1", first.epoch, "a"))
    assert not harness.group.reports, "of the newest heartbeat, which had none"


def test_the_furthest_member_follows_a_silent_primary() -> None:
    harness, (first, second, third) = group_of(9, 3, 5)
    second.position, third.position = 6, 8
    harness.advance(SESSION_MS - 1)
    assert first.name in primaries([second, third]) or not harness.expired
    harness.advance(1)
    assert harness.expired == ["a1"]
    assert primaries([second, third]) == ["c"]
    assert refusal(harness, first.request(is_report=False)) is UNKNOWN_MEMBER


def test_the_process_with_the_fewest_primaries_follows_at_equal_positions() -> None:
    _, (first, second, third) = group_of(9, 9, 9)
    second.primaries = 1
    assert primaries([second, third]) == []
    first.leave()
    assert primaries([second, third]) == ["c"]


def test_a_static_member_that_leaves_for_good_is_followed_at_once() -> None:
    harness, (first, second) = group_of(1, 1)
    first.leave(LEAVE_EPOCH)
    assert harness.group.has_news("b1"), "its held heartbeat wakes"
    second.beat()
    assert second.is_primary
    first.start_again()
    assert primaries([first, second]) == ["b"]


def test_a_member_absent_for_a_restart_is_not_the_furthest() -> None:
    harness, (first, second, third) = group_of(9, 9, 0)
    second.leave(STATIC_LEAVE_EPOCH)
    assert "b1" not in harness.group.reports
    first.leave()
    assert primaries([third]) == ["c"]


# Disconnects


def test_a_member_without_connection_is_removed_after_its_disconnect_timeout() -> None:
    harness, (first, second) = group_of(0, 0)
    harness.advance(1_000)
    second.beat()
    first.beat()
    harness.advance(50)
    first.disconnect()
    harness.advance(DISCONNECT_MS - 50)
    assert not harness.expired, "never before: the member relies on it"
    harness.advance(1)
    assert harness.expired == ["a1"]
    assert primaries([second]) == ["b"]


def test_a_member_that_gives_up_on_a_slow_answer_has_time_for_its_next_heartbeat() -> None:
    harness, (first, second) = group_of(0, 0)
    harness.advance(DISCONNECT_MS + 200)
    second.beat()
    first.disconnect()
    harness.advance(DISCONNECT_GRACE_MS - 1)
    assert not harness.expired
    first.beat()
    harness.advance(DISCONNECT_MS)
    assert not harness.expired
    first.disconnect()
    harness.advance(DISCONNECT_GRACE_MS)
    assert harness.expired == ["a1"]


def test_a_disconnect_never_lengthens_a_session() -> None:
    harness, (first, _) = group_of(0, 0)
    timer = MemberTimer(TimerKind.SESSION, GROUP, "a1")
    harness.advance(SESSION_MS - 100)
    deadline_ms = harness.shard.timers.deadline_ms(timer)
    assert first.newest is not None
    harness.shard.disconnected(first.newest, harness.now_ms, harness.now_ms)
    assert harness.shard.timers.deadline_ms(timer) == deadline_ms


def test_the_next_heartbeat_begins_a_whole_session() -> None:
    harness, (first, second) = group_of(0, 0)
    first.disconnect()
    first.beat()
    second.beat()
    harness.advance(SESSION_MS - 1)
    assert not harness.expired


def test_the_connection_of_an_older_heartbeat_does_not_count() -> None:
    """Of equal content, and received in the same millisecond."""
    harness, (first, _) = group_of(0, 0)
    first.beat()
    older, received_ms = first.newest, first.newest_ms
    first.beat()
    assert older is not None
    assert first.newest == older
    assert harness.shard.is_newest(first.newest)
    assert not harness.shard.is_newest(older)
    harness.shard.disconnected(older, received_ms, harness.now_ms)
    harness.advance(DISCONNECT_MS + 1)
    assert not harness.expired


def test_members_without_a_disconnect_timeout_keep_their_session() -> None:
    harness = ShardHarness(image_of(log=2))
    for report in (None, MemberReport(0)):
        request = ConsumerHeartbeatRequest(
            GROUP, "m", 0, subscribed_names=("log",), session_timeout_ms=SESSION_MS, report=report
        )
        harness.decide(request)
        harness.shard.disconnected(request, harness.now_ms, harness.now_ms)
        harness.advance(SESSION_MS - 1)
        assert not harness.expired
    harness.shard.disconnected(ConsumerHeartbeatRequest("none", "m", 1), 0, 0)


# Hand-overs


def test_a_primary_hands_over_to_a_live_member() -> None:
    harness, (first, second, third) = group_of(9, 3, 5)
    epoch = harness.group.epoch
    first.beat(hand_over_to="b")
    assert harness.group.epoch == epoch + 1
    assert not first.is_primary, "its own answer takes the partitions away"
    assert not harness.group.has_news("b1"), "not before the acknowledgement"
    first.beat()
    assert harness.group.has_news("b1")
    assert primaries([first, second, third]) == ["b"]
    second.beat(hand_over_to="a")
    assert primaries([first, second, third]) == ["a"]


def test_a_hand_over_that_is_repeated_changes_nothing_more() -> None:
    harness, (first, second) = group_of(1, 1)
    first.beat(is_lost=True, hand_over_to="b")
    late = first.newest
    assert late is not None
    epoch = harness.group.epoch
    first.beat(hand_over_to="b")
    assert (harness.group.epoch, first.is_primary) == (epoch, False)
    assert primaries([first, second]) == ["b"]
    second.beat(hand_over_to="a")
    assert primaries([first, second]) == ["a"]
    assert refusal(harness, late) is FENCED_MEMBER_EPOCH, "a late copy takes nothing back"
    assert primaries([first, second]) == ["a"]


def test_a_hand_over_needs_a_holder_and_a_live_member() -> None:
    harness, (first, second, third) = group_of(9, 9, 9)
    third.leave(STATIC_LEAVE_EPOCH)
    for other in ("none", "c"):
        assert refusal(harness, first.request(is_report=True, hand_over_to=other)) is ILLEGAL_STATE
    other = Replica(harness, "d")
    other.beat()
    for heir in ("b", "d"):
        request = second.request(is_report=True, hand_over_to=heir)
        assert refusal(harness, request) is ILLEGAL_STATE
    assert primaries([first, second, other]) == ["a"]


def test_a_hand_over_is_a_report_of_a_member() -> None:
    harness, (first, _) = group_of(9, 9)
    request = first.request(is_report=False, hand_over_to="b")
    assert refusal(harness, request) is BAD_REQUEST
    first.start_again()
    assert refusal(harness, first.request(is_report=True, hand_over_to="b")) is BAD_REQUEST


def test_a_hand_over_to_a_member_of_other_topics_is_refused() -> None:
    harness, (first, _) = group_of(9, 9)
    put_topic(harness.image, "other", 1)
    other = Replica(harness, "d", subscribed_names=("other",))
    other.beat()
    assert primaries([other]) == []
    assert refusal(harness, first.request(is_report=True, hand_over_to="d")) is ILLEGAL_STATE


def test_other_assignors_hand_nothing_over() -> None:
    harness, (first, _) = group_of(1, 9)
    first.beat(hand_over_to="a")
    assert first.is_primary, "to itself: nothing to do"
    for member in "xyz":
        harness.heartbeat(member_id=member, member_epoch=0, assignor="range", owned=())
    assert harness.group.assignor == "range"
    assert refusal(harness, first.request(is_report=True, hand_over_to="b")) is ILLEGAL_STATE


@pytest.mark.parametrize(
    "report",
    [
        MemberReport(0, 0, "e" * 256),
        MemberReport(0, 0, None, 0),
        MemberReport(0, 0, None, 300_001),
        MemberReport(-1),
        MemberReport(0, -1),
    ],
)
def test_reports_out_of_bounds_are_refused(report: MemberReport) -> None:
    harness, (first, _) = group_of(9, 9)
    request = ConsumerHeartbeatRequest(GROUP, "a1", first.epoch, "a", report=report)
    assert refusal(harness, request) is BAD_REQUEST


# What the clients rely on

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["beat", "lost", "disconnect", "leave", "restart", "hand over", "late"]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from([0, 1, 50, 100, 299, 400, 1_000]),
    ),
    max_size=60,
)


@settings(max_examples=examples(300))
@given(EVENTS)
def test_no_other_member_is_chosen_while_the_primary_may_rely_on_it(
    events: list[tuple[str, int, int, int]],
) -> None:
    """Until `disconnect_timeout_ms` after a heartbeat, unless it has given up."""
    harness, replicas = group_of(0, 0, 0)
    reports: list[ConsumerHeartbeatRequest] = []
    for event, number, other, pause_ms in events:
        replica = replicas[number]
        replica.position += number
        try:
            match event:
                case "beat" | "lost":
                    replica.beat(is_lost=event == "lost")
                case "disconnect":
                    replica.disconnect()
                case "leave":
                    replica.leave()
                    replica.start_again()
                case "restart":
                    replica.start_again()
                case "hand over":
                    replica.beat(hand_over_to=replicas[other].name)
                case "late" if reports:
                    harness.decide(reports[other % len(reports)])
        except LogError as error:
            if error.entry is UNRELEASED_INSTANCE_ID or event in {"hand over", "late"}:
                pass
            else:
                assert error.entry in {UNKNOWN_MEMBER, FENCED_MEMBER_EPOCH}, error
                replica.start_again()
        if replica.newest is not None and replica.newest.sequence:
            reports.append(replica.newest)
        for one in replicas:
            relies = one.is_primary and harness.now_ms < one.answered_ms + DISCONNECT_MS
            holder = harness.group.holder(P0) if harness.shard.consumer_groups.get(GROUP) else None
            assert not relies or holder == one.member_id, (event, one.member_id, holder)
        harness.advance(pause_ms)
