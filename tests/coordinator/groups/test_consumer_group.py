"""Consumer groups: the table of heartbeats (KIP-848), timers, topics, fencing of commits."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from raftlog.coordinator.groups.assignors import assignment_of, pairs
from raftlog.coordinator.groups.messages import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupDescription,
    ConsumerHeartbeatRequest,
    DeleteGroupRequest,
    DescribeGroupRequest,
    GroupList,
    GroupRequest,
    GroupResponse,
    ListGroupsRequest,
)
from raftlog.coordinator.groups.settings import GroupSettings
from raftlog.coordinator.groups.shard import GroupShard
from raftlog.coordinator.transactions.shard import TransactionShard
from raftlog.coordinator.transactions.transaction import TransactionSettings
from raftlog.record.errors import (
    BAD_REQUEST,
    FENCED_INSTANCE_ID,
    FENCED_MEMBER_EPOCH,
    GROUP_FULL,
    GROUP_NOT_EMPTY,
    INVALID_GROUP,
    INVALID_PATTERN,
    INVALID_SESSION_TIMEOUT,
    STALE_MEMBER_EPOCH,
    TOO_MANY_GROUPS,
    UNKNOWN_GROUP,
    UNKNOWN_MEMBER,
    UNRELEASED_INSTANCE_ID,
    UNSUPPORTED_ASSIGNOR,
    ErrorEntry,
    LogError,
)
from tests.coordinator.group_harness import (
    GROUP,
    Member,
    ShardHarness,
    joined,
    one_topic,
    settle,
)
from tests.coordinator.images import id_of, image_of, put_topic, remove_topic

A = id_of("a")


def refusal(harness: ShardHarness, request: GroupRequest) -> ErrorEntry:
    """The error of a request, which must leave records, state and timers as they are."""
    log, state = list(harness.log), harness.state()
    timers = {timer for _, _, timer in harness.shard.timers._heap}
    deadlines = {timer: harness.shard.timers.deadline_ms(timer) for timer in timers}
    with pytest.raises(LogError) as caught:
        harness.decide(request)
    assert (harness.log, harness.state()) == (log, state)
    assert deadlines == {timer: harness.shard.timers.deadline_ms(timer) for timer in timers}
    return caught.value.entry


def beat(member_id: str, member_epoch: int, **fields: Any) -> ConsumerHeartbeatRequest:
    return ConsumerHeartbeatRequest(GROUP, member_id, member_epoch, **fields)


# Joining, and moving partitions


def test_first_member_gets_every_partition_at_once() -> None:
    harness = one_topic(4)
    answer = harness.heartbeat(member_id="m", member_epoch=0, subscribed_names=("a",))
    assert answer.member_epoch == 1
    assert answer.assignment is not None
    assert pairs(answer.assignment) == [(A, partition) for partition in range(4)]
    assert harness.group.state == "Stable"


def test_partition_goes_to_its_next_owner_after_the_acknowledgement() -> None:
    harness = one_topic(2)
    (first,) = joined(harness, "m1")
    second = Member(harness, "m2")
    second.beat()
    assert (second.epoch, second.assigned) == (2, set())
    assert harness.group.has_news("m1")

    first.beat()
    assert (first.epoch, len(first.assigned)) == (1, 1)
    assert not harness.group.has_news("m1"), "the member knows already"
    assert not harness.group.has_news("m2"), "nothing is free yet"

    first.beat()  # An idle heartbeat acknowledges nothing.
    assert (first.epoch, harness.group.state) == (1, "Reconciling")
    first.work()
    first.beat()
    assert first.epoch == 2
    assert harness.group.has_news("m2")
    second.beat()
    assert len(second.assigned) == 1
    assert second.assigned.isdisjoint(first.owned)
    assert harness.group.state == "Stable"


def test_rejoin_with_a_known_member_id_answers_the_full_state() -> None:
    harness = one_topic(2)
    (member,) = joined(harness, "m")
    records = len(harness.log)
    answer = harness.heartbeat(member_id="m", member_epoch=0, subscribed_names=("a",))
    assert answer.assignment == assignment_of(member.owned)
    assert answer.member_epoch == member.epoch
    assert len(harness.log) == records


def test_rejoin_replaces_the_subscription() -> None:
    harness = ShardHarness(image_of(a=1, b=1))
    joined(harness, "m", subscribed_names=("a",))
    answer = harness.heartbeat(member_id="m", member_epoch=0, subscribed_pattern="b")
    assert answer.assignment == assignment_of({(id_of("b"), 0)})


def test_idle_heartbeat_makes_no_record_and_answers_no_assignment() -> None:
    harness = one_topic()
    (member,) = joined(harness, "m")
    records = len(harness.log)
    answer = harness.decide(beat("m", member.epoch))
    assert answer == type(answer)("m", member.epoch, 5_000, None, 45_000)
    assert len(harness.log) == records


def test_lost_answer_is_repeated_to_a_member_that_sends_what_it_owns() -> None:
    harness = one_topic(2)
    first, second = joined(harness, "m1", "m2")
    harness.heartbeat(member_id="m2", member_epoch=LEAVE_EPOCH)
    first.beat(is_lost=True)
    assert harness.group.current["m1"].member_epoch == first.epoch + 1
    # Once more: the epoch goes on, and both answers are lost.
    second.forget()
    second.beat()
    first.beat(is_lost=True)
    first.beat()
    settle([first, second])
    assert first.owned | second.owned == {(A, 0), (A, 1)}
    assert not harness.expired


def test_previous_epoch_without_a_subset_of_the_assignment_is_fenced() -> None:
    harness = one_topic(2)
    first, second = joined(harness, "m1", "m2")
    first.epoch -= 1
    assert refusal(harness, beat("m1", first.epoch)) is FENCED_MEMBER_EPOCH
    foreign = assignment_of(first.owned | second.owned)
    assert refusal(harness, beat("m1", first.epoch, owned=foreign)) is FENCED_MEMBER_EPOCH


def test_member_told_in_vain_to_give_up_partitions_is_told_again() -> None:
    harness = one_topic(4)
    (first,) = joined(harness, "m1")
    put_topic(harness.image, "a", 5)
    harness.topics_changed(["a"])
    first.beat(is_lost=True)  # A new epoch, with one more partition.
    Member(harness, "m2").beat()
    first.beat(is_lost=True)  # Partitions to give up: the epoch stays.
    assert first.epoch == harness.group.current["m1"].member_epoch - 1
    first.beat()
    assert first.assigned == {(A, 0), (A, 1), (A, 2)}


@pytest.mark.parametrize("shift", [-1, 1])
def test_another_epoch_is_fenced(shift: int) -> None:
    harness = one_topic()
    members = joined(harness, "m1", "m2", "m3")
    assert harness.group.current["m1"].previous_member_epoch == members[0].epoch - 2
    request = beat("m1", members[0].epoch + shift, owned=())
    assert refusal(harness, request) is FENCED_MEMBER_EPOCH


def test_late_copy_of_a_report_never_undoes_a_later_one() -> None:
    harness = ShardHarness(image_of(a=2, b=2))
    (member,) = joined(harness, "m")
    member.subscribe(subscribed_names=("b",))
    settle([member])
    join, *_ = member.reports
    newest = harness.group.current["m"].sequence
    assert newest > join.sequence
    harness.reload(0, keep_tombstones=True)
    for late in (join, *member.reports[:-1], beat("m", LEAVE_EPOCH, sequence=newest - 1)):
        assert refusal(harness, late) is FENCED_MEMBER_EPOCH
    # The newest one may be repeated; one without a number counts as before.
    assert harness.heartbeat(member_id="m", member_epoch=member.epoch).assignment is None
    answer = harness.decide(member.reports[-1])
    assert answer == harness.decide(replace(member.reports[-1], sequence=0))
    assert harness.group.current["m"].sequence == newest


def test_unknown_member_must_join() -> None:
    harness = one_topic()
    assert refusal(harness, beat("m", 1)) is UNKNOWN_MEMBER
    joined(harness, "m1")
    assert refusal(harness, beat("m", 1)) is UNKNOWN_MEMBER
    assert refusal(harness, beat("m", LEAVE_EPOCH)) is UNKNOWN_MEMBER


def test_subscription_change_moves_partitions_of_that_topic_only() -> None:
    harness = ShardHarness(image_of(a=2, b=2))
    first, second = joined(harness, "m1", "m2", subscribed_names=("a", "b"))
    kept = {pair for pair in first.owned if pair[0] == A}
    first.subscribe(subscribed_names=("a",))
    settle([first, second])
    assert kept <= first.owned
    assert {topic for topic, _ in first.owned} == {A}
    assert first.owned | second.owned == {(A, 0), (A, 1), (id_of("b"), 0), (id_of("b"), 1)}


def test_members_choose_the_assignor() -> None:
    harness = one_topic(4)
    members = joined(harness, "m1", "m2", subscribed_names=("a",), assignor="range")
    assert [sorted(partition for _, partition in member.owned) for member in members] == [
        [0, 1],
        [2, 3],
    ]
    assert harness.group.describe().assignor == "range"


# Leaving, and static members


def test_leaving_frees_the_partitions_in_the_same_decision() -> None:
    harness = one_topic(2)
    first, second = joined(harness, "m1", "m2")
    first.leave(LEAVE_EPOCH)
    assert harness.group.has_news("m2")
    second.beat()
    assert second.assigned == {(A, 0), (A, 1)}
    second.leave(LEAVE_EPOCH)
    assert harness.group.state == "Empty"
    assert len(harness.shard.timers) == 0


def test_static_member_comes_back_to_its_partitions_without_a_rebalance() -> None:
    harness = one_topic(6)
    first, second = (Member(harness, name, f"i-{name}") for name in ("m1", "m2"))
    settle([first, second])
    epoch, owned = harness.group.epoch, set(first.owned)
    first.leave(STATIC_LEAVE_EPOCH)
    assert not harness.group.has_news("m2"), "the target keeps the partitions"
    successor = Member(harness, "m1-again", "i-m1")
    successor.beat()
    assert successor.assigned == owned
    assert harness.group.epoch == epoch == successor.epoch
    assert "m1" not in harness.group.members
    second.beat()
    assert harness.group.state == "Stable"
    assert refusal(harness, beat("m1", epoch)) is UNKNOWN_MEMBER
    fenced = beat("m2", epoch, instance_id="i-m1")
    assert refusal(harness, fenced) is FENCED_INSTANCE_ID


def test_partitions_of_an_absent_member_that_move_to_others_need_no_waiting() -> None:
    harness = one_topic(6)
    first, second = Member(harness, "m1", "i1"), Member(harness, "m2")
    settle([first, second])
    had = set(first.owned)
    first.leave(STATIC_LEAVE_EPOCH)
    third = Member(harness, "m3")
    third.beat()
    assert len(third.assigned) == 1
    assert third.assigned < had
    successor = Member(harness, "m1-again", "i1")
    successor.beat()
    assert successor.assigned == had - third.assigned


def test_static_member_that_stays_away_is_removed_at_its_sessions_end() -> None:
    harness = one_topic(2)
    first, second = Member(harness, "m1", "i1"), Member(harness, "m2")
    settle([first, second])
    first.leave(STATIC_LEAVE_EPOCH)
    harness.advance(40_000)
    second.beat()
    harness.advance(5_000)
    assert harness.expired == ["m1"]
    settle([second])
    assert len(second.owned) == 2


def test_instance_id_of_a_live_member_is_not_released() -> None:
    harness = one_topic()
    member = Member(harness, "m1", "i")
    settle([member])
    request = beat("m2", 0, instance_id="i", subscribed_names=("a",))
    assert refusal(harness, request) is UNRELEASED_INSTANCE_ID
    # The member itself joins again: fenced, or its answer was lost.
    member.epoch = 0
    member.beat()
    assert member.epoch == 1
    assert refusal(harness, beat("m1", 1, instance_id="other")) is UNKNOWN_MEMBER


def test_only_a_static_member_leaves_for_a_restart() -> None:
    harness = one_topic()
    joined(harness, "m")
    assert refusal(harness, beat("m", STATIC_LEAVE_EPOCH)) is BAD_REQUEST


# Timers


def test_silent_member_is_removed_at_the_end_of_its_own_session() -> None:
    harness = one_topic(2)
    fast, slow = (
        Member(harness, f"m{session}", subscribed_names=("a",), session_timeout_ms=session)
        for session in (6_000, 60_000)
    )
    settle([fast, slow])
    answer = harness.heartbeat(member_id="m6000", member_epoch=fast.epoch)
    assert answer.heartbeat_interval_ms == 2_000
    harness.advance(5_999)
    assert not harness.expired
    harness.advance(1)
    assert harness.expired == ["m6000"]
    settle([slow])
    assert len(slow.owned) == 2


def test_heartbeats_do_not_save_a_member_that_gives_nothing_up() -> None:
    harness = one_topic(2)
    subscription: dict[str, Any] = {"subscribed_names": ("a",), "rebalance_timeout_ms": 20_000}
    (stuck,) = joined(harness, "m1", **subscription)
    second = Member(harness, "m2", **subscription)
    second.beat()
    for _ in range(5):
        stuck.beat()
        second.beat()
        harness.advance(4_000)
    assert harness.expired == ["m1"]
    assert refusal(harness, stuck.request()) is UNKNOWN_MEMBER
    settle([second])
    assert len(second.owned) == 2


def test_new_coordinator_gives_every_session_its_full_length() -> None:
    harness = one_topic()
    member = Member(harness, "m", subscribed_names=("a",), session_timeout_ms=300_000)
    settle([member])
    harness.now_ms += 299_999
    harness.reload(len(harness.log), keep_tombstones=False)
    harness.advance(299_999)
    assert not harness.expired
    harness.advance(1)
    assert harness.expired == ["m"]


# Topics


def test_new_partitions_and_topics_are_assigned_without_a_request() -> None:
    harness = one_topic(1)
    (member,) = joined(harness, "m", subscribed_names=("a", "later"))
    put_topic(harness.image, "a", 3)
    harness.topics_changed(["a"])
    put_topic(harness.image, "later", 1)
    harness.topics_changed(["later"])
    put_topic(harness.image, "other", 1)
    records = len(harness.log)
    harness.topics_changed(["other"])
    assert len(harness.log) == records
    assert harness.group.epoch == 3
    settle([member])
    assert member.owned == {(A, 0), (A, 1), (A, 2), (id_of("later"), 0)}


def test_deleted_topic_is_given_up_and_its_successor_is_another_topic() -> None:
    harness = one_topic(2)
    (member,) = joined(harness, "m")
    remove_topic(harness.image, "a")
    put_topic(harness.image, "a", 1, topic_id=id_of("successor"))
    harness.topics_changed(["a"])
    settle([member])
    assert member.owned == {(id_of("successor"), 0)}


def test_pattern_follows_created_and_deleted_topics() -> None:
    harness = ShardHarness(image_of(logs1=1, other=1, __consumer_offsets=1))
    (member,) = joined(harness, "m", subscribed_pattern=".*(logs|offsets).*")
    assert member.owned == {(id_of("logs1"), 0)}
    put_topic(harness.image, "logs2", 1)
    harness.topics_changed(["logs2"])
    remove_topic(harness.image, "logs1")
    harness.topics_changed(["logs1"])
    settle([member])
    assert member.owned == {(id_of("logs2"), 0)}
    member.subscribe(subscribed_pattern="")
    assert not harness.group.patterns, "an unused pattern is forgotten"


def test_change_of_topics_while_no_coordinator_was_there_is_found_after_the_load() -> None:
    harness = one_topic(1)
    (member,) = joined(harness, "m")
    put_topic(harness.image, "a", 2)
    harness.reload(0, keep_tombstones=True)
    settle([member])
    assert len(member.owned) == 2


# Commits


def test_commit_names_a_member_and_its_present_epoch() -> None:
    harness = one_topic(2)
    (member,) = joined(harness, "m")
    group = harness.group
    group.check_commit("m", member.epoch)
    for member_id, epoch, entry in (
        ("m", member.epoch - 1, STALE_MEMBER_EPOCH),
        ("m", member.epoch + 1, STALE_MEMBER_EPOCH),
        ("other", member.epoch, UNKNOWN_MEMBER),
        ("", -1, UNKNOWN_MEMBER),
    ):
        with pytest.raises(LogError) as caught:
            group.check_commit(member_id, epoch)
        assert caught.value.entry is entry
    member.leave(LEAVE_EPOCH)
    group.check_commit("", -1)


def test_absent_static_member_cannot_commit() -> None:
    harness = one_topic(2)
    member = Member(harness, "m", "i")
    settle([member])
    epoch = member.epoch
    member.leave(STATIC_LEAVE_EPOCH)
    for shown in (epoch, STATIC_LEAVE_EPOCH):
        with pytest.raises(LogError):
            harness.group.check_commit("m", shown)


# The shard


def test_the_parts_of_a_state_make_no_circle() -> None:
    """So a state goes with its shard, not with the next full collection, which is rare."""
    gc.collect()
    gc.disable()
    try:
        states = GroupShard(GroupSettings()), TransactionShard(TransactionSettings())
        weak = [weakref.ref(state) for state in states]
        del states
        assert [state() for state in weak] == [None, None]
    finally:
        gc.enable()


def test_describe_list_and_delete() -> None:
    harness = one_topic(2)
    (member,) = joined(harness, "m", subscribed_pattern="a")
    described = harness.decide(DescribeGroupRequest(GROUP))
    assert isinstance(described, ConsumerGroupDescription)
    assert described.state == "Stable"
    assert described.members[0].assignment == described.members[0].target
    assert described.members[0].subscribed_pattern == "a"
    groups = harness.decide(ListGroupsRequest())
    assert isinstance(groups, GroupList)
    assert [(one.group, one.kind, one.state) for one in groups.groups] == [
        (GROUP, "consumer", "Stable")
    ]
    assert refusal(harness, DeleteGroupRequest(GROUP)) is GROUP_NOT_EMPTY
    member.leave(LEAVE_EPOCH)
    harness.decide(DeleteGroupRequest(GROUP))
    assert harness.state() == {}
    harness.reload(len(harness.log), keep_tombstones=False)
    assert harness.log == []
    for request in (DescribeGroupRequest(GROUP), DeleteGroupRequest(GROUP)):
        assert refusal(harness, request) is UNKNOWN_GROUP


def test_groups_and_members_are_bounded() -> None:
    harness = one_topic(members_max=2, groups_max=1)
    joined(harness, "m1", "m2")
    assert refusal(harness, beat("m3", 0)) is GROUP_FULL
    harness.heartbeat(member_id="m1", member_epoch=0, subscribed_names=("a",))
    assert refusal(harness, ConsumerHeartbeatRequest("other", "m", 0)) is TOO_MANY_GROUPS


@pytest.mark.parametrize(
    ("fields", "entry"),
    [
        ({"group": ""}, INVALID_GROUP),
        ({"group": " "}, INVALID_GROUP),
        ({"group": "g" * 256}, INVALID_GROUP),
        ({"member_id": ""}, BAD_REQUEST),
        ({"member_id": "m" * 256}, BAD_REQUEST),
        ({"instance_id": ""}, BAD_REQUEST),
        ({"client_host": "h" * 256}, BAD_REQUEST),
        ({"member_epoch": -3}, BAD_REQUEST),
        ({"subscribed_names": ("",)}, BAD_REQUEST),
        ({"subscribed_names": ("a",) * 10_001}, BAD_REQUEST),
        ({"subscribed_pattern": "("}, INVALID_PATTERN),
        ({"assignor": "best"}, UNSUPPORTED_ASSIGNOR),
        ({"session_timeout_ms": 499}, INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 300_001}, INVALID_SESSION_TIMEOUT),
        ({"rebalance_timeout_ms": 0}, BAD_REQUEST),
        ({"owned": assignment_of({(A, 0)})}, BAD_REQUEST),
    ],
)
def test_values_out_of_bounds_are_refused(fields: dict[str, Any], entry: ErrorEntry) -> None:
    harness = one_topic()
    joined(harness, "m1")
    request = {"group": GROUP, "member_id": "m", "member_epoch": 0, **fields}
    assert refusal(harness, ConsumerHeartbeatRequest(**request)) is entry


def test_messages_travel_as_msgpack() -> None:
    harness = one_topic()
    requests: list[GroupRequest] = [
        beat("m", 0, subscribed_names=("a",), instance_id="i", owned=()),
        DescribeGroupRequest(GROUP),
        ListGroupsRequest(),
        beat("m", LEAVE_EPOCH),
        DeleteGroupRequest(GROUP),
    ]
    for request in requests:
        encoded = msgspec.msgpack.encode(request)
        assert msgspec.msgpack.decode(encoded, type=GroupRequest) == request
        response = harness.decide(request)
        encoded = msgspec.msgpack.encode(response)
        assert msgspec.msgpack.decode(encoded, type=GroupResponse) == response
