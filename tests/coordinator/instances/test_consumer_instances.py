"""REST consumer instances in a group shard: states, membership, positions, reloads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raftlog.coordinator.groups.assignors import Pair, assignment_of, pairs
from raftlog.coordinator.groups.messages import (
    DescribeGroupRequest,
    GroupRequest,
    GroupResponse,
    OffsetOutcomes,
)
from raftlog.coordinator.groups.offset_messages import CommitOffsets, FetchOffsets, OffsetToCommit
from raftlog.coordinator.instances.messages import (
    UNKNOWN_OFFSET,
    AssignInstance,
    BeginRead,
    CommitInstance,
    CreateInstance,
    DeleteInstance,
    DescribeInstance,
    EndRead,
    InstanceDescription,
    PartitionMove,
    PartitionOffset,
    ReadOutcome,
    ReadPlan,
    SeekInstance,
    SubscribeInstance,
)
from raftlog.coordinator.shard.records import ConsumerInstanceKey, TopicPartitions
from raftlog.record.errors import (
    BAD_REQUEST,
    ILLEGAL_STATE,
    INSTANCE_EXISTS,
    INVALID_BODY,
    TOO_MANY_INSTANCES,
    UNKNOWN_GROUP,
    UNKNOWN_INSTANCE,
    UNKNOWN_MEMBER,
    UNSUPPORTED_FORMAT,
    ErrorEntry,
    LogError,
)
from tests.coordinator.group_harness import GROUP, Member, ShardHarness, one_topic, settle
from tests.coordinator.images import id_of, image_of, put_topic
from tests.examples import examples

A = id_of("a")
INTERVAL_MS = 5_000
IDLE_MS = 5 * 60 * 1000


class Instance:
    """An instance and its client's requests."""

    def __init__(self, harness: ShardHarness, name: str = "i", **options: Any) -> None:
        self.harness = harness
        self.name = name
        values = {
            "format": "json",
            "auto_offset_reset": "earliest",
            "auto_commit_interval_ms": 0,
            "fetch_min_bytes": 0,
            "request_timeout_ms": 1_000,
        }
        self.ask(CreateInstance, member_id=f"member-{name}", **{**values, **options})

    def ask(self, kind: Any, *values: Any, **fields: Any) -> Any:
        response = self.harness.decide(kind(GROUP, self.name, *values, **fields))
        self.harness.advance(0)  # steps of members are due at once
        return response

    def subscribe(self, *names: str, pattern: str | None = None) -> None:
        self.ask(SubscribeInstance, names, pattern)

    def plan(self, *, is_first: bool = True) -> dict[Pair, int]:
        plan = self.ask(BeginRead, ("json",), is_first=is_first)
        assert isinstance(plan, ReadPlan)
        return {(one.topic_id, one.partition): one.offset for one in plan.partitions}

    def move(self, *moves: tuple[Pair, int, int], reset_to: int = UNKNOWN_OFFSET) -> set[Pair]:
        """End a read; the pairs that did not move."""
        outcome = self.ask(
            EndRead,
            tuple(PartitionMove(*pair, old, new, reset_to) for pair, old, new in moves),
            assignment_of(pair for pair, _, _ in moves),
        )
        assert isinstance(outcome, ReadOutcome)
        return set(pairs(outcome.lost))

    def read(self, count: int, partition: int = 0) -> None:
        """Read so many records of one partition."""
        pair = (A, partition)
        planned = self.plan()[pair]
        start = max(planned, 0)
        assert not self.move((pair, planned, start + count))

    def commit(self, *offsets: OffsetToCommit) -> list[int]:
        response = self.ask(CommitInstance, offsets or None)
        assert isinstance(response, OffsetOutcomes)
        return [one.error_code for one in response.outcomes]

    @property
    def partitions(self) -> list[Pair]:
        found = self.ask(DescribeInstance)
        assert isinstance(found, InstanceDescription)
        return pairs(found.partitions)


def committed(harness: ShardHarness) -> dict[int, int]:
    """Committed offsets of topic `a`."""
    found = harness.shard.read(FetchOffsets(GROUP, None))
    return {one.partition: one.offset for one in found.offsets}  # type: ignore[union-attr]


def refused(harness: ShardHarness, request: GroupRequest) -> ErrorEntry:
    before = len(harness.log)
    with pytest.raises(LogError) as raised:
        harness.decide(request)
    assert len(harness.log) == before
    return raised.value.entry


def members(harness: ShardHarness) -> list[str]:
    found: GroupResponse = harness.shard.read(DescribeGroupRequest(GROUP))
    return [one.client_id for one in found.members]  # type: ignore[union-attr]


def reload(harness: ShardHarness, *, compacted: bool = True) -> None:
    harness.reload(len(harness.log) if compacted else 0, keep_tombstones=False)
    harness.advance(0)


def test_an_instance_is_created_once_and_deleted() -> None:
    one = Instance(harness := one_topic())
    create = CreateInstance(GROUP, "i", "other", "json", "latest", 0, 0, 0)
    assert refused(harness, create) is INSTANCE_EXISTS
    assert one.partitions == []
    one.ask(DeleteInstance)
    for kind in (DeleteInstance, DescribeInstance, CommitInstance):
        assert refused(harness, kind(GROUP, "i")) is UNKNOWN_INSTANCE
    Instance(harness)


def test_a_shard_has_a_bound_of_instances_and_their_names() -> None:
    Instance(harness := one_topic(instances_max=1))
    create = CreateInstance(GROUP, "j", "m", "json", "latest", 0, 0, 0)
    assert refused(harness, create) is TOO_MANY_INSTANCES
    create = CreateInstance(GROUP, "j" * 256, "m", "json", "latest", 0, 0, 0)
    assert refused(harness, create) is BAD_REQUEST


def test_two_subscribed_instances_and_a_member_share_the_topic() -> None:
    harness = one_topic(6)
    one, two = Instance(harness), Instance(harness, "j")
    one.subscribe("a")
    assert len(one.partitions) == 6
    two.subscribe("a")
    assert len(one.partitions) == len(two.partitions) == 3
    other = Member(harness, "m")
    settle([other])
    harness.advance(0)
    settle([other])
    assert len(one.partitions) == len(two.partitions) == len(other.owned) == 2
    assert {*one.partitions, *two.partitions, *other.owned} == {(A, n) for n in range(6)}
    assert harness.group.state == "Stable"
    two.ask(DeleteInstance)
    settle([other])
    harness.advance(0)
    settle([other])
    assert len(one.partitions) == len(other.owned) == 3


def test_new_partitions_are_taken_without_a_request() -> None:
    harness = one_topic(2)
    one = Instance(harness)
    one.subscribe("a")
    put_topic(harness.image, "a", 5)
    harness.topics_changed(["a"])
    harness.advance(0)
    assert len(one.partitions) == 5


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("names",), ("pattern",)),
        (("names",), ("assign",)),
        (("pattern",), ("names",)),
        (("pattern",), ("assign",)),
        (("assign",), ("names",)),
        (("assign",), ("pattern",)),
        ((), ("both",)),
    ],
)
def test_an_instance_has_one_way_to_its_partitions(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    ways = {
        "names": SubscribeInstance(GROUP, "i", ("a",)),
        "pattern": SubscribeInstance(GROUP, "i", (), "a.*"),
        "assign": AssignInstance(GROUP, "i", (TopicPartitions(A, (1,)),)),
        "both": SubscribeInstance(GROUP, "i", ("a",), "a.*"),
    }
    Instance(harness := one_topic())
    for way in first:
        harness.decide(ways[way])
    for way in second:
        assert refused(harness, ways[way]) is ILLEGAL_STATE
    harness.decide(SubscribeInstance(GROUP, "i"))
    harness.advance(0)
    for way in second:
        if way != "both":
            harness.decide(ways[way])


def test_a_subscription_changes_and_ends() -> None:
    harness = ShardHarness(image_of(a=2, ab=1, c=1))
    one = Instance(harness)
    one.subscribe("c", "a")
    found = one.ask(DescribeInstance)
    assert found.names == ("c", "a")
    one.subscribe("ab")
    assert one.partitions == [(id_of("ab"), 0)]
    one.subscribe()
    assert one.partitions == []
    assert members(harness) == []
    one.subscribe(pattern="a.*")
    found = one.ask(DescribeInstance)
    assert (found.names, found.pattern) == (("a", "ab"), "a.*")
    assert members(harness) == ["i"]


def test_a_manual_assignment_is_bounded_and_needs_no_membership() -> None:
    harness = ShardHarness(image_of(a=2_000))
    one = Instance(harness)
    too_many = (TopicPartitions(A, tuple(range(1_001))),)
    assert refused(harness, AssignInstance(GROUP, "i", too_many)) is INVALID_BODY
    one.ask(AssignInstance, (TopicPartitions(A, (3, 1)), TopicPartitions(A, (1,))))
    assert one.partitions == [(A, 1), (A, 3)]
    one.read(4, partition=3)
    one.commit()
    assert committed(harness) == {3: 4}
    assert refused(harness, DescribeGroupRequest("other")) is UNKNOWN_GROUP
    one.subscribe()
    one.subscribe("a")
    assert refused(harness, BeginRead(GROUP, "i", ("json",))) is ILLEGAL_STATE


def test_only_the_format_of_the_instance_is_read() -> None:
    Instance(harness := one_topic())
    assert refused(harness, BeginRead(GROUP, "i", ("binary",))) is UNSUPPORTED_FORMAT


def test_positions_begin_at_the_commit_and_move_from_where_they_were_planned() -> None:
    harness = one_topic(2)
    harness.decide(CommitOffsets(GROUP, (OffsetToCommit("a", 0, 5, topic_id=A),)))
    one = Instance(harness)
    one.subscribe("a")
    assert one.plan() == {(A, 0): 5, (A, 1): UNKNOWN_OFFSET}
    assert one.move(((A, 0), 5, 8), ((A, 1), -1, 2)) == set()
    # The same read again, as by a second client: nothing moves.
    assert one.move(((A, 0), 5, 7), ((A, 1), -1, 9)) == {(A, 0), (A, 1)}
    assert one.plan() == {(A, 0): 8, (A, 1): 2}
    assert committed(harness) == {0: 5}
    assert one.commit() == [0, 0]
    assert committed(harness) == {0: 8, 1: 2}


def test_the_partitions_of_a_read_take_turns() -> None:
    one = Instance(one_topic(3))
    one.subscribe("a")
    assert list(one.plan()) == [(A, 0), (A, 1), (A, 2)]
    one.move(((A, 0), -1, 2))
    assert list(one.plan()) == [(A, 1), (A, 2), (A, 0)]


def test_a_seek_holds_across_coordinators_until_a_commit() -> None:
    harness = one_topic(2)
    one = Instance(harness)
    seek = SeekInstance(GROUP, "i", (PartitionOffset(A, 0, 3),))
    assert refused(harness, seek) is ILLEGAL_STATE
    one.subscribe("a")
    one.read(9)
    one.commit()
    one.ask(SeekInstance, (PartitionOffset(A, 0, 3),))
    assert one.plan()[A, 0] == 3
    reload(harness)
    assert one.plan()[A, 0] == 3
    one.read(2)
    reload(harness)
    assert one.plan()[A, 0] == 3
    one.read(2)
    one.commit()
    assert committed(harness)[0] == 5
    table = harness.shard.instances.table
    assert not table.starts(table.by_id[GROUP, "i"])
    reload(harness)
    assert one.plan()[A, 0] == 5


def test_a_start_may_stand_before_its_instance_in_a_compacted_log() -> None:
    harness = one_topic(2)
    one = Instance(harness)
    one.ask(AssignInstance, (TopicPartitions(A, (0,)),))
    one.ask(SeekInstance, (PartitionOffset(A, 0, 3),))
    one.ask(AssignInstance, (TopicPartitions(A, (0, 1)),))
    reload(harness)
    assert isinstance(harness.log[-1].key, ConsumerInstanceKey)
    assert one.plan() == {(A, 0): 3, (A, 1): UNKNOWN_OFFSET}
    one.ask(AssignInstance, (TopicPartitions(A, (1,)),))
    reload(harness)
    one.ask(AssignInstance, (TopicPartitions(A, (0,)),))
    assert one.plan() == {(A, 0): UNKNOWN_OFFSET}


def test_latest_is_resolved_once() -> None:
    harness = one_topic(1)
    one = Instance(harness, auto_offset_reset="latest")
    one.subscribe("a")
    assert one.plan() == {(A, 0): UNKNOWN_OFFSET}
    one.move(((A, 0), -1, 40), reset_to=40)
    one.read(2)
    reload(harness)
    assert one.plan() == {(A, 0): 40}


def test_a_new_coordinator_has_instance_membership_and_commits_but_no_positions() -> None:
    harness = one_topic(4)
    one, two = Instance(harness), Instance(harness, "j")
    one.subscribe("a")
    two.subscribe(pattern="a")
    number = one.partitions[0][1]
    one.read(3, number)
    one.commit()
    one.read(3, number)
    before = one.partitions
    for compacted in (True, False):
        reload(harness, compacted=compacted)
        assert one.partitions == before
        assert members(harness) == ["i", "j"]
        assert one.plan()[A, number] == 3


def test_auto_commit_covers_what_a_later_read_followed() -> None:
    harness = one_topic(1)
    one = Instance(harness, auto_commit_interval_ms=INTERVAL_MS)
    one.subscribe("a")
    harness.now_ms = INTERVAL_MS
    one.read(3)
    one.read(2)
    assert committed(harness) == {0: 3} or committed(harness) == {}
    harness.now_ms += INTERVAL_MS
    one.read(1)
    assert committed(harness) == {0: 5}
    harness.advance(IDLE_MS)
    assert refused(harness, DescribeInstance(GROUP, "i")) is UNKNOWN_INSTANCE
    assert committed(harness) == {0: 5}, "nobody may have seen the newest answer"


def test_a_delete_commits_all_that_was_read_unless_the_client_commits() -> None:
    harness = one_topic(1)
    one = Instance(harness, auto_commit_interval_ms=INTERVAL_MS)
    one.subscribe("a")
    one.read(3)
    one.ask(DeleteInstance)
    assert committed(harness) == {0: 3}
    two = Instance(harness)
    two.subscribe("a")
    two.read(3)
    two.ask(DeleteInstance)
    assert committed(harness) == {0: 3}
    assert members(harness) == []


def test_a_revoked_partition_is_committed_and_read_by_its_next_owner_from_there() -> None:
    harness = one_topic(2)
    one = Instance(harness, auto_commit_interval_ms=INTERVAL_MS)
    one.subscribe("a")
    harness.now_ms += 1
    for partition in (0, 1, 0, 1):
        one.read(2, partition)
    two = Instance(harness, "j")
    two.subscribe("a")
    [(_, moved)] = two.partitions
    planned = two.plan()[A, moved]
    assert planned == committed(harness)[moved] == (4 if moved == 0 else 2)
    # A read of the old owner that was under way.
    assert one.move(((A, moved), 4, 6)) == {(A, moved)}


def test_a_partition_that_comes_back_is_read_from_the_commit_of_its_owner_between() -> None:
    harness = one_topic(2)
    one, two = Instance(harness), Instance(harness, "j")
    one.subscribe("a")
    for partition in (0, 1):
        one.read(5, partition)
    one.ask(SeekInstance, (PartitionOffset(A, 0, 1), PartitionOffset(A, 1, 1)))
    two.subscribe("a")
    [(_, moved)] = two.partitions
    two.read(3, moved)
    two.commit()
    two.ask(DeleteInstance)
    assert one.plan() == {(A, moved): 3, (A, 1 - moved): 1}
    reload(harness)
    assert one.plan() == {(A, moved): 3, (A, 1 - moved): 1}


def test_an_idle_instance_ends_and_others_take_over() -> None:
    harness = one_topic(2)
    one, two = Instance(harness), Instance(harness, "j")
    one.subscribe("a")
    two.subscribe("a")
    harness.advance(IDLE_MS - 1)
    assert len(two.partitions) == 1
    harness.advance(1)
    assert members(harness) == ["j"]
    assert len(two.partitions) == 2
    reload(harness)
    harness.advance(IDLE_MS - 1)
    assert members(harness) == ["j"]
    harness.advance(1)
    assert members(harness) == []
    reload(harness)
    assert not harness.shard.instances.table.by_id


def test_the_idle_time_is_the_cluster_s_from_the_next_request_on() -> None:
    harness = one_topic(2)
    one = Instance(harness)
    one.subscribe("a")
    harness.shard.follow_settings({"consumer.instance.timeout.ms": "20000"})
    one.ask(DescribeInstance)
    harness.advance(19_999)
    assert members(harness) == ["i"]
    harness.advance(1)
    assert members(harness) == []


def test_a_commit_without_membership_needs_an_empty_group() -> None:
    harness = one_topic(2)
    one, two = Instance(harness), Instance(harness, "j", auto_commit_interval_ms=INTERVAL_MS)
    assert one.commit(OffsetToCommit("a", 0, 1, topic_id=A)) == [0]
    two.ask(AssignInstance, (TopicPartitions(A, (0,)),))
    two.read(1)
    one.subscribe("a")
    commit = CommitInstance(GROUP, "j", (OffsetToCommit("a", 0, 9),))
    assert refused(harness, commit) is UNKNOWN_MEMBER
    two.ask(DeleteInstance)  # cannot commit, and ends all the same
    assert committed(harness) == {0: 1}
    assert one.commit() == []


def test_an_instance_that_another_had_leave_joins_with_its_next_read() -> None:
    harness = one_topic(2)
    one = Instance(harness)
    one.subscribe("a")
    harness.heartbeat(member_id="member-i", member_epoch=-1)
    harness.advance(0)
    assert one.partitions == []
    one.plan()
    assert len(one.plan()) == 2


class InstancesMachine(RuleBasedStateMachine):
    """Clients of some instances, a member, and a coordinator that is replaced at any time.

    A client's position never goes beyond the offsets that were answered to some client of the
    group, and an offset is never committed beyond them: none is lost, however requests fall.
    """

    names = st.sampled_from("ij")
    partitions = st.integers(0, 2)

    @initialize(commits=st.booleans())
    def start(self, commits: bool) -> None:
        self.harness = one_topic(3)
        self.interval_ms = INTERVAL_MS if commits else 0
        self.ones: dict[str, Instance] = {}
        self.answered = dict.fromkeys(range(3), 0)
        self.plans: dict[str, dict[Pair, int]] = {}

    @rule(name=names)
    def create(self, name: str) -> None:
        if name not in self.ones:
            self.ones[name] = Instance(self.harness, name, auto_commit_interval_ms=self.interval_ms)

    @rule(name=names, way=st.sampled_from(["names", "pattern", "assign", "none"]))
    def choose(self, name: str, way: str) -> None:
        if name not in self.ones:
            return
        one = self.ones[name]
        one.subscribe()
        self.plans.pop(name, None)
        if way == "names":
            one.subscribe("a")
        elif way == "pattern":
            one.subscribe(pattern=".")
        elif way == "assign":
            one.ask(AssignInstance, (TopicPartitions(A, (0, 2)),))

    @rule(name=names)
    def begin(self, name: str) -> None:
        if name in self.ones:
            self.plans[name] = self.ones[name].plan()

    @rule(name=names, count=st.integers(0, 3))
    def end(self, name: str, count: int) -> None:
        plan = self.plans.pop(name, None)
        if plan is None or name not in self.ones:
            return
        moves = [(pair, old, max(old, 0) + count) for pair, old in plan.items()]
        lost = self.ones[name].move(*moves)
        for pair, old, new in moves:
            assert max(old, 0) <= self.answered[pair[1]], "records were skipped"
            if pair not in lost:
                self.answered[pair[1]] = max(self.answered[pair[1]], new)

    @rule(name=names)
    def commit(self, name: str) -> None:
        if name in self.ones:
            try:
                self.ones[name].commit()
            except LogError as error:
                assert error.entry is UNKNOWN_MEMBER, error

    @rule(name=names)
    def delete(self, name: str) -> None:
        if self.ones.pop(name, None) is not None:
            self.harness.decide(DeleteInstance(GROUP, name))
            self.harness.advance(0)

    @rule(milliseconds=st.sampled_from([1, INTERVAL_MS, 60_000]))
    def wait(self, milliseconds: int) -> None:
        self.harness.advance(milliseconds)
        kept = {
            record.key.instance
            for record in self.harness.log
            if isinstance(record.key, ConsumerInstanceKey)
        }
        for name in list(self.ones):
            if not self.is_there(name):
                assert name in kept
                del self.ones[name]

    def is_there(self, name: str) -> bool:
        return (GROUP, name) in self.harness.shard.instances.table.by_id

    @rule(compacted=st.booleans())
    def move_coordinator(self, compacted: bool) -> None:
        reload(self.harness, compacted=compacted)

    @invariant()
    def nobody_skips(self) -> None:
        if not hasattr(self, "harness"):
            return
        for partition, offset in committed(self.harness).items():
            assert offset <= self.answered[partition], "committed and never answered"
        owners: dict[Pair, str] = {}
        for name, one in self.ones.items():
            inner = self.harness.shard.instances.table.by_id[GROUP, name]
            if inner.is_subscribed:
                for pair in one.partitions:
                    assert owners.setdefault(pair, name) == name, "two owners"


InstancesMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30)
test_instances_machine = InstancesMachine.TestCase
