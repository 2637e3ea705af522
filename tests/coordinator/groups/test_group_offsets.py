"""Committed offsets in the group shard: who may commit, deletion in steps, expiry, lost topics."""

from __future__ import annotations

import pytest

from raftlog.coordinator.groups import shard as group_shard
from raftlog.coordinator.groups.classic.messages import (
    DescribedGroup,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    MemberIdRequired,
    Protocol,
    Synced,
    SyncGroup,
)
from raftlog.coordinator.groups.messages import (
    ConsumerGroupDescription,
    ConsumerHeartbeatRequest,
    DeleteGroupRequest,
    DescribeGroupRequest,
    Done,
    FetchedOffsets,
    GroupList,
    GroupListing,
    ListGroupsRequest,
    OffsetOutcomes,
)
from raftlog.coordinator.groups.offset_messages import (
    CommitOffsets,
    Committer,
    DeleteOffsets,
    FetchOffsets,
    OffsetToCommit,
    TopicPartition,
)
from raftlog.coordinator.shard.decision import Producer
from raftlog.record.errors import (
    COORDINATOR_LOADING,
    GROUP_NOT_EMPTY,
    ILLEGAL_GENERATION,
    INCONSISTENT_PROTOCOL,
    STALE_MEMBER_EPOCH,
    TOO_MANY_GROUPS,
    UNKNOWN_GROUP,
    UNKNOWN_MEMBER,
    ErrorEntry,
    LogError,
)
from raftlog.record.types import ProducerEpoch, ProducerId
from tests.coordinator.group_harness import GROUP, ShardHarness
from tests.coordinator.images import id_of, image_of, put_topic, remove_topic

SWEEP_MS = 10 * 60 * 1000
START_MS = 1_700_000_000_000


def harness(**settings: int) -> ShardHarness:
    """A shard that was loaded from an empty log."""
    made = ShardHarness(image_of(a=4, b=1), **settings)
    made.now_ms = START_MS
    made.shard.loaded(made.now_ms)
    return made


def commit(
    one: ShardHarness,
    offsets: dict[int, int],
    member: str = "",
    epoch: int = -1,
    *,
    group: str = GROUP,
    topic: str = "a",
) -> None:
    request = CommitOffsets(
        group,
        tuple(OffsetToCommit(topic, n, at, topic_id=id_of(topic)) for n, at in offsets.items()),
        Committer(member, epoch),
    )
    answer = one.decide(request)
    assert isinstance(answer, OffsetOutcomes)
    assert [row.error_code for row in answer.outcomes] == [0] * len(offsets)


def committed(one: ShardHarness, group: str = GROUP) -> dict[tuple[str, int], int]:
    answer = one.decide(FetchOffsets(group, None))
    assert isinstance(answer, FetchedOffsets)
    return {(row.topic, row.partition): row.offset for row in answer.offsets}


def refused(one: ShardHarness, request: object, entry: ErrorEntry) -> None:
    with pytest.raises(LogError) as raised:
        one.decide(request)  # type: ignore[arg-type]
    assert raised.value.entry is entry


def join(one: ShardHarness, member: str = "m") -> int:
    return one.heartbeat(
        member_id=member, member_epoch=0, subscribed_names=("a",), session_timeout_ms=10_000
    ).member_epoch


def leave(one: ShardHarness, member: str = "m") -> None:
    one.heartbeat(member_id=member, member_epoch=-1)


def test_members_commit_with_their_epoch_and_others_while_the_group_is_empty() -> None:
    one = harness()
    commit(one, {0: 5})
    refused(one, CommitOffsets(GROUP, (), Committer("m", 1)), UNKNOWN_MEMBER)
    epoch = join(one)
    commit(one, {0: 6, 1: 7}, "m", epoch)
    refused(one, CommitOffsets(GROUP, ()), UNKNOWN_MEMBER)
    refused(one, CommitOffsets(GROUP, (), Committer("m", epoch + 1)), STALE_MEMBER_EPOCH)
    leave(one)
    refused(one, CommitOffsets(GROUP, (), Committer("m", epoch)), UNKNOWN_MEMBER)
    commit(one, {0: 3})
    assert committed(one) == {("a", 0): 3, ("a", 1): 7}
    one.reload(len(one.log), keep_tombstones=False)
    assert committed(one) == {("a", 0): 3, ("a", 1): 7}


@pytest.mark.parametrize("is_transactional", [False, True])
@pytest.mark.parametrize("past", ["none", "offsets", "consumer", "classic"])
def test_any_author_without_an_epoch_commits_while_the_group_has_no_members(
    past: str, is_transactional: bool
) -> None:
    one = harness(initial_rebalance_delay_ms=0)
    if past == "offsets":
        commit(one, {0: 5})
    elif past == "consumer":
        join(one)
        leave(one)
    elif past == "classic":
        join_classic(one)
        one.decide(LeaveGroup(GROUP, (LeavingMember("classic"),)))
    producer = Producer(ProducerId(7), ProducerEpoch(0)) if is_transactional else None
    for committer in (Committer(), Committer("m"), Committer("m", -1, "i")):
        offsets = (OffsetToCommit("a", 0, 6, topic_id=id_of("a")),)
        answer = one.decide(CommitOffsets(GROUP, offsets, committer, producer))
        assert isinstance(answer, OffsetOutcomes)
        assert [row.error_code for row in answer.outcomes] == [0]
    refused(one, CommitOffsets(GROUP, (), Committer("m", 0), producer), UNKNOWN_MEMBER)


def test_a_group_of_offsets_only_is_listed_described_and_deleted() -> None:
    one = harness()
    refused(one, DescribeGroupRequest(GROUP), UNKNOWN_GROUP)
    commit(one, {0: 1}, group="z")
    join(one)
    assert one.decide(ListGroupsRequest()) == GroupList(
        (
            GroupListing(GROUP, "consumer", "Stable", 1, "uniform"),
            GroupListing("z", "offsets", "Empty"),
        )
    )
    described = one.decide(DescribeGroupRequest("z"))
    assert isinstance(described, ConsumerGroupDescription)
    assert (described.kind, described.members) == ("offsets", ())
    assert one.decide(DeleteGroupRequest("z")) == Done()
    refused(one, DeleteGroupRequest("z"), UNKNOWN_GROUP)


def test_a_group_is_deleted_in_steps_and_only_without_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_shard, "DELETED_OFFSETS_MAX", 3)
    one = harness()
    epoch = join(one)
    commit(one, {0: 1, 1: 1, 2: 1, 3: 1}, "m", epoch)
    refused(one, DeleteGroupRequest(GROUP), GROUP_NOT_EMPTY)
    assert len(committed(one)) == 4
    leave(one)
    assert one.decide(DeleteGroupRequest(GROUP)) == Done(is_complete=False)
    assert len(committed(one)) == 1
    assert one.decide(DeleteGroupRequest(GROUP)) == Done()
    refused(one, DescribeGroupRequest(GROUP), UNKNOWN_GROUP)
    assert one.decide(ListGroupsRequest()) == GroupList(())


def test_offsets_of_topics_that_a_member_reads_are_not_deleted() -> None:
    one = harness()
    refused(one, DeleteOffsets(GROUP, ()), UNKNOWN_GROUP)
    commit(one, {0: 1})
    commit(one, {0: 2}, topic="b")
    join(one)
    refused(one, DeleteOffsets(GROUP, (TopicPartition("a", 0),)), GROUP_NOT_EMPTY)
    one.decide(DeleteOffsets(GROUP, (TopicPartition("b", 0),)))
    assert committed(one) == {("a", 0): 1}


def test_the_number_of_groups_with_offsets_is_bounded() -> None:
    one = harness(groups_max=1)
    commit(one, {0: 1})
    refused(one, CommitOffsets("z", (OffsetToCommit("a", 0, 1),)), TOO_MANY_GROUPS)
    commit(one, {1: 1})


def test_offsets_and_the_group_end_after_the_retention_and_not_while_there_are_members() -> None:
    one = harness(retention_ms=2 * SWEEP_MS, session_timeout_ms_max=100 * SWEEP_MS)
    epoch = one.heartbeat(
        member_id="m",
        member_epoch=0,
        subscribed_names=("a",),
        session_timeout_ms=100 * SWEEP_MS,
    ).member_epoch
    commit(one, {0: 1}, "m", epoch)
    one.advance(20 * SWEEP_MS)
    assert committed(one) == {("a", 0): 1}
    leave(one)
    one.advance(SWEEP_MS)
    assert committed(one) == {("a", 0): 1}
    one.advance(SWEEP_MS)
    assert committed(one) == {}
    one.advance(SWEEP_MS)
    assert one.decide(ListGroupsRequest()) == GroupList(())


@pytest.mark.parametrize("kind", ["consumer", "classic"])
def test_the_retention_goes_on_over_a_load(kind: str) -> None:
    """A group whose coordinator starts again more often than the retention expires all the same."""
    one = harness(retention_ms=3 * SWEEP_MS, initial_rebalance_delay_ms=0)
    if kind == "consumer":
        commit(one, {0: 1}, "m", join(one))
        leave(one)
    else:
        join_classic(one)
        commit(one, {0: 1}, "classic", 1)
        one.decide(LeaveGroup(GROUP, (LeavingMember("classic"),)))
    for _ in range(6):
        assert committed(one) == {("a", 0): 1}
        one.advance(SWEEP_MS // 2)
        one.reload(len(one.log), keep_tombstones=False)
    one.advance(SWEEP_MS)
    assert committed(one) == {}
    one.advance(SWEEP_MS)
    assert one.decide(ListGroupsRequest()) == GroupList(())


@pytest.mark.parametrize("kind", ["consumer", "classic", "simple"])
def test_what_was_stored_without_a_time_expires_after_a_whole_retention(kind: str) -> None:
    """It happens at a start. The next coordinator knows the time, and dates what it finds."""
    one = harness(retention_ms=3 * SWEEP_MS, initial_rebalance_delay_ms=0)
    one.is_dated = False
    if kind == "consumer":
        commit(one, {0: 1}, "m", join(one))
        leave(one)
    elif kind == "classic":
        join_classic(one)
        commit(one, {0: 1}, "classic", 1)
        one.decide(LeaveGroup(GROUP, (LeavingMember("classic"),)))
    else:
        commit(one, {0: 1})
    one.advance(20 * SWEEP_MS)
    one.is_dated = True
    one.reload(len(one.log), keep_tombstones=False)
    lengths = []
    for _ in range(3):
        one.advance(SWEEP_MS)
        assert committed(one) == {("a", 0): 1}
        lengths.append(len(one.log))
    assert len(set(lengths)) == 1, "dated once"
    one.advance(SWEEP_MS)
    assert committed(one) == {}
    one.advance(SWEEP_MS)
    assert one.decide(ListGroupsRequest()) == GroupList(())


def test_nothing_expires_while_the_cluster_time_is_unknown_but_deleted_topics_go() -> None:
    one = harness(retention_ms=SWEEP_MS)
    commit(one, {0: 1})
    commit(one, {0: 1}, topic="b")
    one.is_dated = False
    remove_topic(one.image, "b")
    one.advance(SWEEP_MS)
    one.advance(20 * SWEEP_MS)
    assert committed(one) == {("a", 0): 1}


def join_classic(one: ShardHarness) -> None:
    """The only member of a stable generation: `classic`, in generation 1."""
    request = JoinGroup(
        GROUP,
        "consumer",
        (Protocol("range", b""),),
        60_000,
        60_000,
        new_member_id="classic",
        requires_member_id=False,
    )
    assert isinstance(one.decide(request), Joined)
    assert isinstance(one.decide(SyncGroup(GROUP, "classic", 1)), Synced)


def test_a_group_changes_its_kind_while_it_is_empty_and_keeps_its_offsets() -> None:
    one = harness(initial_rebalance_delay_ms=0)
    commit(one, {0: 1}, "m", join(one))
    with pytest.raises(LogError) as raised:
        join_classic(one)
    assert raised.value.entry is INCONSISTENT_PROTOCOL
    leave(one)
    join_classic(one)
    assert listed(one) == [GroupListing(GROUP, "classic", "Stable", 1, "", "consumer")]
    description = one.decide(DescribeGroupRequest(GROUP))
    assert isinstance(description, DescribedGroup)
    assert [member.member_id for member in description.members] == ["classic"]
    with pytest.raises(LogError) as raised:
        join(one)
    assert raised.value.entry is INCONSISTENT_PROTOCOL
    refused(one, CommitOffsets(GROUP, (), Committer("m", 1)), UNKNOWN_MEMBER)
    refused(one, CommitOffsets(GROUP, (), Committer("classic", 2)), ILLEGAL_GENERATION)
    refused(one, CommitOffsets(GROUP, ()), UNKNOWN_MEMBER)
    commit(one, {1: 2}, "classic", 1)
    refused(one, DeleteGroupRequest(GROUP), GROUP_NOT_EMPTY)
    refused(one, DeleteOffsets(GROUP, (TopicPartition("a", 0),)), GROUP_NOT_EMPTY)
    one.decide(LeaveGroup(GROUP, (LeavingMember("classic"),)))
    commit(one, {2: 3}, "n", join(one, "n"))
    assert listed(one) == [GroupListing(GROUP, "consumer", "Stable", 1, "uniform")]
    one.reload(len(one.log), keep_tombstones=False)
    assert listed(one) == [GroupListing(GROUP, "consumer", "Stable", 1, "uniform")]
    assert committed(one) == {("a", 0): 1, ("a", 1): 2, ("a", 2): 3}


def listed(one: ShardHarness) -> list[GroupListing]:
    answer = one.decide(ListGroupsRequest())
    assert isinstance(answer, GroupList)
    return list(answer.groups)


def test_an_empty_classic_group_is_deleted_with_its_offsets() -> None:
    one = harness(initial_rebalance_delay_ms=0)
    join_classic(one)
    commit(one, {0: 1}, "classic", 1)
    one.decide(LeaveGroup(GROUP, (LeavingMember("classic"),)))
    assert one.decide(DeleteGroupRequest(GROUP)) == Done()
    assert listed(one) == []
    one.reload(len(one.log), keep_tombstones=True)
    assert listed(one) == []


def test_groups_of_both_kinds_share_one_bound() -> None:
    one = harness(groups_max=1, initial_rebalance_delay_ms=0)
    join_classic(one)
    with pytest.raises(LogError) as raised:
        one.decide(ConsumerHeartbeatRequest("other", "m", 0, subscribed_names=("a",)))
    assert raised.value.entry is TOO_MANY_GROUPS
    asked = JoinGroup("other", "consumer", (Protocol("range", b""),), 60_000, -1, new_member_id="x")
    refused(one, asked, TOO_MANY_GROUPS)
    one.decide(LeaveGroup(GROUP, (LeavingMember("classic"),)))
    join(one)


def test_an_id_that_was_handed_out_makes_no_group_for_long() -> None:
    one = harness()
    asked = JoinGroup(GROUP, "consumer", (Protocol("range", b""),), 60_000, -1, new_member_id="x")
    assert one.decide(asked) == MemberIdRequired("x")
    assert len(one.shard) == 1
    one.advance(60_000)
    assert len(one.shard) == 0
    assert not one.log


def test_while_a_group_is_deleted_nobody_goes_on_from_some_of_its_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_shard, "DELETED_OFFSETS_MAX", 2)
    one = harness(initial_rebalance_delay_ms=0)
    commit(one, {0: 1, 1: 1, 2: 1})
    one.shard.begin_deletion(GROUP)
    assert one.decide(DeleteGroupRequest(GROUP)) == Done(is_complete=False)
    with pytest.raises(LogError) as raised:
        join(one)
    assert raised.value.entry is COORDINATOR_LOADING
    with pytest.raises(LogError) as raised:
        join_classic(one)
    assert raised.value.entry is COORDINATOR_LOADING
    refused(one, CommitOffsets(GROUP, ()), COORDINATOR_LOADING)
    refused(one, FetchOffsets(GROUP, None), COORDINATOR_LOADING)
    assert one.decide(DeleteGroupRequest(GROUP)) == Done()
    one.shard.end_deletion(GROUP)
    join(one)
    assert committed(one) == {}


def test_offsets_go_with_their_topic_after_it_was_missed_twice() -> None:
    one = harness()
    commit(one, {0: 1})
    commit(one, {0: 2}, topic="b")
    remove_topic(one.image, "b")
    one.advance(SWEEP_MS)
    assert committed(one) == {("a", 0): 1, ("b", 0): 2}
    put_topic(one.image, "b", 1)
    one.advance(SWEEP_MS)
    assert committed(one) == {("a", 0): 1, ("b", 0): 2}
    remove_topic(one.image, "b")
    one.advance(SWEEP_MS)
    one.advance(SWEEP_MS)
    assert committed(one) == {("a", 0): 1}


def test_changed_topics_are_followed_by_a_timer() -> None:
    one = harness()
    join(one)
    one.advance(2_000)
    put_topic(one.image, "a", 6)
    one.shard.topics_changed({"b"}, one.now_ms)
    one.advance(1)
    assert not one.shard.has_news(GROUP, "m")
    one.shard.topics_changed({"a"}, one.now_ms)
    one.advance(1)
    assert one.shard.has_news(GROUP, "m")
