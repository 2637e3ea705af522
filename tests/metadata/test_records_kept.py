"""No command removes the last living member of ISR and ELR, but for a reported loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from raftlog.metadata.apply.apply import apply
from raftlog.metadata.apply.rules import Reason, has_living_member
from raftlog.metadata.commands import (
    AlterClusterSettings,
    AlterTopicConfigs,
    ChangePartitions,
    Command,
    FenceBroker,
    PartitionChange,
    UnfenceBroker,
)
from raftlog.metadata.decisions.elections import (
    LogEnd,
    change_command,
    plan_elections,
    plan_preferred_leaders,
    plan_relief,
    plan_unclean_election,
    undecided_elections,
)
from raftlog.metadata.decisions.liveness import (
    may_retire_replica,
    plan_controlled_shutdown,
    plan_fencing,
    plan_replica_failures,
    plan_unfencing,
)
from raftlog.metadata.decisions.reassignment import (
    plan_cancellation,
    plan_completions,
    plan_reassignment,
)
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage, PartitionImage
from raftlog.metadata.state_machine import check_invariants
from raftlog.record.errors import LogError
from raftlog.record.types import BrokerId, LeaderEpoch, Offset, PartitionId, TopicId
from tests.examples import examples
from tests.metadata.strategies import (
    BROKER_IDS,
    TOPIC_IDS,
    about,
    aimed,
    carry_out_plan,
    commands,
    create,
    fence,
    ids,
    register,
    set_row,
    shut_down,
)

Key = tuple[TopicId, PartitionId]


def three(*, isr: tuple[int, ...], elr: tuple[int, ...] = ()) -> MetadataImage:
    """One partition on the brokers 1, 2 and 3, led by the first of its ISR."""
    image = MetadataImage()
    for number in (1, 2, 3):
        register(image, number)
    create(image, "t", 0, (1, 2, 3))
    set_row(image, "t", isr=ids(*isr), elr=ids(*elr), leader=isr[0] if isr else NO_LEADER_ID)
    return image


def keys_of(image: MetadataImage) -> list[Key]:
    return [
        (t.topic_id, row.partition) for t in image.topics_by_id.values() for row in t.partitions
    ]


def decided(plan: Iterator[Command]) -> list[Command]:
    """The commands of a plan, all decided by the image of this moment."""
    return list(plan)


def test_two_members_that_leave_at_once_are_not_both_right() -> None:
    image = three(isr=(1, 2))
    (key,) = keys_of(image)
    assert may_retire_replica(image, key, BrokerId(1))
    assert may_retire_replica(image, key, BrokerId(2))
    (first,) = decided(plan_replica_failures(image, BrokerId(1), [key], lost=False))
    carry_out_plan(image, [first])
    (second,) = decided(plan_replica_failures(image, BrokerId(2), [key], lost=False))
    result = apply(image, image.applied_index + 1, second)
    (stale,) = result.partitions().stale
    assert stale.refusal.reason is Reason.LAST_REPLICA
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.elr) == (2, (2,), ())
    assert not may_retire_replica(image, key, BrokerId(2))


def test_fenced_or_stopping_members_do_not_count() -> None:
    for isr, elr, take_away, may in [
        ((1, 2), (), fence, False),
        ((1, 2), (), shut_down, True),
        ((1,), (2,), fence, False),
        ((1,), (2,), shut_down, False),
    ]:
        image = three(isr=isr, elr=elr)
        take_away(image, 2)
        (key,) = keys_of(image)
        (command,) = decided(plan_replica_failures(image, BrokerId(1), [key], lost=False))
        result = apply(image, image.applied_index + 1, command)
        assert bool(result.partitions().applied) is may
        row = image.partition("t", 0)
        assert (1 in {*row.isr, *row.elr}) is not may


def test_unclean_election_spares_no_refused_proposal() -> None:
    """A repair asks again and again: what the apply would refuse must not enter the log."""
    for others, may in [((), True), ((2,), True), ((2, 3), False)]:
        image = MetadataImage()
        for number in (1, 2, 3):
            register(image, number)
        unclean = {"unclean.leader.election.enable": "true"}
        create(image, "t", 0, (1, 2, 3), configs=unclean)
        set_row(image, "t", isr=ids(1), elr=(), leader=1)
        for number in others:
            fence(image, number)
        (key,) = keys_of(image)
        assert may_retire_replica(image, key, BrokerId(1)) is may
        undecided = list(undecided_elections(image, excluding={BrokerId(1)}))
        assert undecided == ([key] if not others else []), "of several logs the longest one leads"
        ends = {each: {BrokerId(3): LogEnd(LeaderEpoch(0), Offset(1))} for each in undecided}
        plan = plan_replica_failures(image, BrokerId(1), [key], lost=False, ends=ends)
        (command,) = decided(plan)
        result = apply(image, image.applied_index + 1, command)
        assert bool(result.partitions().applied) is may


def test_reported_loss_leaves_even_as_the_last_but_takes_no_other_along() -> None:
    image = three(isr=(1, 2))
    fence(image, 2)
    (key,) = keys_of(image)
    carry_out_plan(image, plan_replica_failures(image, BrokerId(1), [key], lost=True))
    assert image.partition("t", 0).isr == (2,)
    row = image.partition("t", 0)
    both_leave = PartitionChange(
        topic_id=key[0],
        partition=key[1],
        partition_epoch=row.partition_epoch,
        isr=(),
        leader=NO_LEADER_ID,
        not_eligible=ids(1),
        lost=True,
    )
    image = three(isr=(1, 2))
    change = replace(both_leave, partition_epoch=image.partition("t", 0).partition_epoch)
    carry_out_plan(image, [change_command(image, [change])])
    row = image.partition("t", 0)
    assert (row.isr, row.elr) == ((), (2,)), "the other one left the ISR and stays eligible"


def test_older_brokers_get_the_older_command() -> None:
    image = three(isr=(1, 2))
    assert change_command(image, []).v == 3
    image.brokers[BrokerId(3)] = replace(image.brokers[BrokerId(3)], command_version=2)
    assert change_command(image, []).v == 1
    (key,) = keys_of(image)
    for number in (1, 2):
        plan = plan_replica_failures(image, BrokerId(number), [key], lost=False)
        carry_out_plan(image, plan)
    row = image.partition("t", 0)
    assert (row.isr, row.elr) == ((), ()), "as in the log of an older release"


def test_cancelled_reassignment_keeps_a_living_member() -> None:
    image = three(isr=(1, 2))
    topic = image.topic("t")
    set_row(image, "t", isr=ids(1, 2), leader=NO_LEADER_ID, adding=ids(2))
    fence(image, 1)
    try:
        plan_cancellation(image, name=topic.name, partition=0)
    except LogError as error:
        assert "in sync" in error.message
    else:
        raise AssertionError("only a fenced member would have been left")


Plan = Callable[[MetadataImage, BrokerId], Iterator[Command]]
PLANS: list[Plan] = [
    plan_fencing,
    plan_unfencing,
    plan_controlled_shutdown,
    lambda image, _: plan_elections(image, ends={key: {} for key in undecided_elections(image)}),
    lambda image, _: plan_preferred_leaders(image),
    lambda image, broker_id: plan_relief(image, unwritable={broker_id}),
    lambda image, _: plan_completions(image),
    lambda image, broker_id: plan_replica_failures(image, broker_id, keys_of(image), lost=False),
    lambda image, broker_id: plan_replica_failures(image, broker_id, keys_of(image), lost=True),
]


class RecordsKept(RuleBasedStateMachine):
    """Random commands, and plans decided by images of any age, as several deciders make them."""

    def __init__(self) -> None:
        super().__init__()
        self.image = MetadataImage()
        for number in BROKER_IDS:
            register(self.image, number)
        create(self.image, "a", 0, (1, 2, 3), (2, 3), (3,))
        create(self.image, "b", 1, (3, 1, 2), configs={"min.insync.replicas": "1"})
        unclean = {"unclean.leader.election.enable": "true"}
        create(self.image, "c", 2, (2, 3, 1), configs=unclean)
        self.waiting: list[Command] = []

    def put(self, command: Command) -> None:
        """Apply a command, and hold the rows before and after against the rule."""
        if isinstance(command, ChangePartitions):
            # The rule is of version 3; older ones are replayed as they were applied.
            command = replace(command, v=3)
        before = self.image.copy()
        apply(self.image, self.image.applied_index + 1, command)
        check_invariants(self.image)
        for topic_id, topic in self.image.topics_by_id.items():
            was = before.topics_by_id.get(topic_id)
            for row in () if was is None else topic.partitions[: len(was.partitions)]:
                self.check(command, (topic_id, row.partition), was.partitions[row.partition], row)

    def check(
        self, command: Command, key: Key, before: PartitionImage, after: PartitionImage
    ) -> None:
        left = {*before.isr, *before.elr}.difference(after.isr, after.elr)
        retired: set[BrokerId] = set()
        # A change that retires members begins a leader epoch; one that does not was refused.
        if isinstance(command, ChangePartitions) and after.leader_epoch > before.leader_epoch:
            for change in command.changes:
                if (change.topic_id, change.partition) == key:
                    retired.update(change.not_eligible)
                    if change.lost:
                        left.difference_update(change.not_eligible)
        if set(before.isr) <= set(after.isr) and set(before.elr) <= set(after.replicas) - retired:
            # Enough are in sync, even if fenced by now: the ELR is void (KIP-966).
            assert not left or after.isr
            return
        if isinstance(command, AlterTopicConfigs | AlterClusterSettings):
            # Another minimum makes the ELR void where there is an ISR.
            assert set(before.isr) == set(after.isr)
            assert not left or after.isr
            return
        assert not left or has_living_member(self.image, isr=after.isr, elr=after.elr), (
            f"{command}: {before} became {after}"
        )

    @rule(data=st.data())
    def command(self, data: st.DataObject) -> None:
        self.put(data.draw(st.one_of(aimed(self.image), aimed(self.image), commands)))

    @rule(data=st.data(), plan=st.sampled_from(PLANS), broker_id=st.sampled_from(BROKER_IDS))
    def decide(self, data: st.DataObject, plan: Plan, broker_id: BrokerId) -> None:
        """Decide now, propose later: the image may change in between."""
        if broker_id in self.image.brokers:
            self.waiting += decided(plan(self.image, broker_id))

    @rule(topic=st.sampled_from(TOPIC_IDS[:3]), replicas=st.permutations(BROKER_IDS))
    def operate(self, topic: TopicId, replicas: list[BrokerId]) -> None:
        known = self.image.topics_by_id.get(topic)
        for plan in (
            lambda name: plan_unclean_election(self.image, name=name, partition=0),
            lambda name: plan_cancellation(self.image, name=name, partition=0),
            lambda name: plan_reassignment(
                self.image, name=name, partition=0, replicas=tuple(replicas[:2])
            ),
        ):
            try:
                if known is not None:
                    self.waiting.append(plan(known.name))
            except LogError:
                continue

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def propose(self, data: st.DataObject) -> None:
        self.put(self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1))))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def propose_anew(self, data: st.DataObject) -> None:
        """With the partition epochs of now, as after a stale change without another look."""
        command = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        if isinstance(command, ChangePartitions):
            changes = []
            for change in command.changes:
                topic = self.image.topics_by_id.get(change.topic_id)
                if topic is not None:
                    epoch = topic.partitions[change.partition].partition_epoch
                    changes.append(replace(change, partition_epoch=epoch))
            if not changes:
                return
            command = replace(command, changes=tuple(changes))
        self.put(command)

    @rule(broker_id=st.sampled_from(BROKER_IDS))
    def restart(self, broker_id: BrokerId) -> None:
        index = self.image.applied_index
        register(self.image, broker_id, incarnation=f"i{index}", fenced=True)

    @rule(broker_id=st.sampled_from(BROKER_IDS), data=st.data())
    def liveness(self, broker_id: BrokerId, data: st.DataObject) -> None:
        broker = self.image.brokers.get(broker_id)
        if broker is not None:
            self.put(about(data.draw(st.sampled_from([FenceBroker, UnfenceBroker])), broker))

    @invariant()
    def waits_for_few(self) -> None:
        del self.waiting[:-20]


RecordsKept.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)
test_random_commands_keep_a_living_member = RecordsKept.TestCase
