"""A shard under joins, lost answers, expiries, new topics, reloads, against simple invariants."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace

from raftlog.coordinator.groups.assignors import Assignment, Pair, pairs
from raftlog.coordinator.groups.classic.messages import (
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Protocol,
)
from raftlog.coordinator.groups.messages import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from raftlog.coordinator.groups.reconciliation import MemberState
from raftlog.coordinator.groups.settings import MemberTimer, ShardTimer, TimerKind
from raftlog.coordinator.groups.subscriptions import matched_topics
from raftlog.record.errors import (
    BAD_REQUEST,
    FENCED_MEMBER_EPOCH,
    INCONSISTENT_PROTOCOL,
    UNKNOWN_MEMBER,
    UNRELEASED_INSTANCE_ID,
    LogError,
)
from tests.coordinator.group_harness import GROUP, Member, ShardHarness, settle
from tests.coordinator.images import image_of, put_topic, remove_topic
from tests.examples import examples

SESSION_MS = 9_000
REBALANCE_MS = 5_000
NAMES = ["a", "ab", "b"]
subscriptions = st.one_of(
    st.just({"subscribed_names": ("a",)}),
    st.fixed_dictionaries({"subscribed_names": st.sets(st.sampled_from(NAMES)).map(tuple)}),
    st.fixed_dictionaries({"subscribed_pattern": st.sampled_from(["a.*", "[ab]", ".*"])}),
)
TIMEOUTS = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS}


class GroupMachine(RuleBasedStateMachine):
    """Members in every state: alive, stuck (no heartbeats any more), absent for a restart."""

    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.harness = ShardHarness(image_of(a=4), initial_rebalance_delay_ms=0)
        self.members: list[Member] = []
        self.instances = 0
        self.joins = 0
        self.assigned: dict[str, set[Pair]] = {}
        """Of each member in the group, after the last step."""

    # Rules

    @initialize(target=live)
    def first(self) -> Member:
        return self.new_member({"subscribed_names": ("a",)}, None)

    def new_member(self, subscription: dict[str, Any], instance_id: str | None) -> Member:
        self.joins += 1
        member = Member(self.harness, f"m{self.joins}", instance_id, **subscription, **TIMEOUTS)
        self.members.append(member)
        member.beat()
        return member

    @precondition(lambda self: len(self.members) < 7)
    @rule(target=live, subscription=subscriptions, is_static=st.booleans())
    def join(self, subscription: dict[str, Any], is_static: bool) -> Member:
        group = self.harness.shard.consumer_groups.get(GROUP)
        before = dict(group.targets) if group is not None else {}
        instance_id = None
        if is_static:
            self.instances += 1
            instance_id = f"i{self.instances}"
        member = self.new_member(subscription, instance_id)
        self.check_stickiness(before, member)
        return member

    @rule(member=live, is_lost=st.booleans(), does_work=st.booleans())
    def beat(self, member: Member, is_lost: bool, does_work: bool) -> None:
        if member in self.members:
            member.beat(is_lost=is_lost)
            if does_work:
                member.work()

    @rule(member=live)
    def beat_twice(self, member: Member) -> None:
        """The network repeats a request; the second answer is dropped."""
        if member in self.members:
            request = member.request()
            member.beat()
            try:
                self.harness.decide(request)
            except LogError as error:
                assert error.entry in (FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER), error

    @rule(member=live, age=st.integers(1, 3))
    def late_copy(self, member: Member, age: int) -> None:
        """A copy of an earlier report: the coordinator knows a newer one, also after a reload."""
        group = self.harness.shard.consumer_groups.get(GROUP)
        if len(member.reports) <= age or group is None or member.member_id not in group.current:
            return
        late, records = member.reports[-1 - age], len(self.harness.log)
        if late.sequence >= group.current[member.member_id].sequence:
            return
        with pytest.raises(LogError) as caught:
            self.harness.decide(late)
        assert caught.value.entry is FENCED_MEMBER_EPOCH
        assert len(self.harness.log) == records

    @rule(member=live)
    def work(self, member: Member) -> None:
        if member in self.members:
            member.work()

    @rule(member=live, subscription=subscriptions)
    def subscribe(self, member: Member, subscription: dict[str, Any]) -> None:
        if member in self.members and member.may_commit:
            none = {"subscribed_names": (), "subscribed_pattern": ""}
            member.subscribe(**{**none, **subscription, **TIMEOUTS})

    @rule(member=consumes(live))
    def leave(self, member: Member) -> None:
        if member in self.members:
            self.members.remove(member)
            try:
                member.leave(LEAVE_EPOCH)
            except LogError as error:
                assert error.entry is UNKNOWN_MEMBER

    @rule(member=consumes(live))
    def hang(self, member: Member) -> None:
        """The member sends no heartbeats any more: its session ends."""
        if member in self.members:
            self.members.remove(member)

    @rule(target=live, member=consumes(live), goes_first=st.booleans())
    def restart(self, member: Member, goes_first: bool) -> Member:
        """A static member ends, with or without its last heartbeat, and comes back."""
        if member not in self.members or member.instance_id is None:
            return member
        self.members.remove(member)
        successor = Member(
            self.harness,
            f"{member.member_id}'",
            member.instance_id,
            **{**member.subscription, **TIMEOUTS},
        )
        group = self.harness.shard.consumer_groups.get(GROUP)
        is_known = group is not None and member.member_id in group.members
        if not goes_first and is_known:
            with pytest.raises(LogError) as caught:
                self.harness.decide(successor.request())
            assert caught.value.entry is UNRELEASED_INSTANCE_ID
        if is_known:
            assert group is not None
            epoch = group.epoch
            held = set(pairs(group.current[member.member_id].assigned_partitions))
            wanted = set(pairs(group.targets.get(member.member_id, ())))
            is_same = group.members[member.member_id].subscribed_topic_names == tuple(
                sorted(set(member.subscription.get("subscribed_names", ())))
            ) and group.members[member.member_id].subscribed_topic_regex == (
                member.subscription.get("subscribed_pattern") or None
            )
            member.leave(STATIC_LEAVE_EPOCH)
            assert group.epoch == epoch
            successor.beat()
            if is_same:
                assert group.epoch == epoch, "a restart is no rebalance"
                assert held & wanted <= successor.assigned
        self.assigned.pop(member.member_id, None)
        self.members.append(successor)
        return successor

    @rule()
    def classic_member_joins(self) -> None:
        """A member of the other kind: it comes in only while there are no members of this one."""
        group = self.harness.shard.consumer_groups.get(GROUP)
        is_empty = group is None or not group.members
        request = JoinGroup(
            GROUP,
            "consumer",
            (Protocol("range", b""),),
            SESSION_MS,
            REBALANCE_MS,
            new_member_id="classic",
            requires_member_id=False,
        )
        try:
            answer = self.harness.decide(request)
        except LogError as error:
            assert error.entry is INCONSISTENT_PROTOCOL
            assert not is_empty
            return
        assert is_empty
        assert isinstance(answer, Joined)
        assert self.harness.shard.consumer_groups.get(GROUP) is None
        self.assigned = {}
        if self.members:
            with pytest.raises(LogError) as caught:
                self.harness.decide(replace(self.members[0].request(), member_epoch=JOIN_EPOCH))
            assert caught.value.entry in (INCONSISTENT_PROTOCOL, BAD_REQUEST)
        self.harness.decide(LeaveGroup(GROUP, (LeavingMember("classic"),)))

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 5))
    def change_topic(self, name: str, count: int) -> None:
        image = self.harness.image
        known = image.topics_by_name.get(name)
        if known is None and count:
            put_topic(image, name, count)
        elif known is not None and not count:
            remove_topic(image, name)
        elif known is not None and len(known.partitions) < 8:
            put_topic(image, name, len(known.partitions) + 1)
        self.harness.topics_changed([name])

    @rule(part=st.floats(0.1, 1.2))
    def advance(self, part: float) -> None:
        self.harness.advance(int(SESSION_MS * part))

    @rule(part=st.floats(0, 1), keep_tombstones=st.booleans())
    def reload(self, part: float, keep_tombstones: bool) -> None:
        before = self.harness.state()
        self.harness.reload(int(len(self.harness.log) * part), keep_tombstones=keep_tombstones)
        assert self.harness.state() == before

    @rule()
    def converge(self) -> None:
        """Members gone without a leave are removed; the others reach the target soon."""
        for _ in range(4):
            for member in self.members * 2:  # The second heartbeat acknowledges.
                member.beat()
                member.work()
            self.harness.expired.clear()
            self.harness.advance(SESSION_MS // 3)
            alive = {member.member_id for member in self.members}
            assert alive.isdisjoint(self.harness.expired), "heartbeats keep the session"
        settle(self.members)
        if not self.members:
            assert GROUP not in self.harness.state() or not self.harness.group.members
            return
        group = self.harness.group
        assert group.state == "Stable"
        assert group.members.keys() == {member.member_id for member in self.members}
        owners = Counter(pair for member in self.members for pair in member.owned)
        assert owners == Counter(self.subscribed())
        for member in self.members:
            assert member.epoch == group.epoch == group.assignment_epoch
            assert member.owned == set(pairs(group.targets.get(member.member_id, ())))
            assert not group.has_news(member.member_id)
        if self.is_homogeneous():
            loads = [len(member.owned) for member in self.members]
            assert max(loads) - min(loads) <= 1

    # Invariants

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        if GROUP not in self.harness.state():
            return
        held = Counter(
            pair
            for current in self.harness.group.current.values()
            for part in (current.assigned_partitions, current.partitions_pending_revocation)
            for pair in pairs(part)
        )
        assert not held or max(held.values()) == 1
        working = Counter(
            pair for member in self.members if member.may_commit for pair in member.owned
        )
        assert not working or max(working.values()) == 1, "two members may commit one partition"

    @invariant()
    def a_partition_that_need_not_move_never_stops(self) -> None:
        group = self.harness.shard.consumer_groups.get(GROUP)
        assigned: dict[str, set[Pair]] = {}
        for member_id, current in group.current.items() if group is not None else ():
            assert group is not None
            if current.member_epoch == STATIC_LEAVE_EPOCH:
                continue
            assigned[member_id] = set(pairs(current.assigned_partitions))
            target = set(pairs(group.targets.get(member_id, ())))
            kept = self.assigned.get(member_id, set()) & target
            assert kept <= assigned[member_id]
        self.assigned = assigned

    @invariant()
    def every_member_has_its_timers(self) -> None:
        group = self.harness.shard.consumer_groups.get(GROUP)
        expected: set[MemberTimer] = set()
        for member_id, current in group.current.items() if group is not None else ():
            expected.add(MemberTimer(TimerKind.SESSION, GROUP, member_id))
            if current.state == MemberState.UNREVOKED_PARTITIONS:
                expected.add(MemberTimer(TimerKind.REBALANCE, GROUP, member_id))
        timers = self.harness.shard.timers
        shard_timers = sum(timers.deadline_ms(timer) is not None for timer in ShardTimer)
        assert len(timers) == len(expected) + shard_timers
        assert all(timers.deadline_ms(timer) is not None for timer in expected)

    @invariant()
    def target_is_complete(self) -> None:
        group = self.harness.shard.consumer_groups.get(GROUP)
        if group is not None:
            assert group.assignment_epoch == group.epoch
            targets = Counter(pair for target in group.targets.values() for pair in pairs(target))
            assert targets == Counter(self.subscribed())

    # Parts

    def subscribed(self) -> list[Pair]:
        """All partitions of topics to which a member of the group subscribes."""
        image = self.harness.image
        names: set[str] = set()
        for member in self.harness.group.members.values():
            names.update(member.subscribed_topic_names)
            if member.subscribed_topic_regex:
                names.update(matched_topics(member.subscribed_topic_regex, image.topics_by_name))
        return [
            (topic.topic_id, partition)
            for name in names
            if (topic := image.topics_by_name.get(name)) is not None
            for partition in range(len(topic.partitions))
        ]

    def is_homogeneous(self) -> bool:
        subscribed = {
            (member.subscribed_topic_names, member.subscribed_topic_regex)
            for member in self.harness.group.members.values()
        }
        return len(subscribed) == 1

    def check_stickiness(self, before: dict[str, Assignment], joined: Member) -> None:
        """With equal subscriptions, a join moves partitions to the new member only."""
        group = self.harness.group
        if not self.is_homogeneous() or joined.member_id not in group.members:
            return
        for member_id, target in group.targets.items():
            if member_id != joined.member_id:
                assert set(pairs(target)) <= set(pairs(before.get(member_id, ())))

    def teardown(self) -> None:
        self.converge()


TestGroupModel = GroupMachine.TestCase
TestGroupModel.settings = settings(
    max_examples=examples(300), stateful_step_count=40, deadline=None
)
