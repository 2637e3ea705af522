"""ISR proposals: the effective ISR meanwhile, and the next step after each outcome."""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from msgspec.structs import replace

from raftlog.metadata.apply.apply import ApplyResult, apply
from raftlog.metadata.commands import AlterIsr, ChangePartitions, Command, decode_command
from raftlog.metadata.configs.broker import BROKER_CONFIG_TABLE, REPLICA_LAG
from raftlog.metadata.image import MetadataImage, TopicImage
from raftlog.raft import Applied, Outcome, Refused, Unknown
from raftlog.record.errors import ILLEGAL_STATE, NO_CONTROLLER
from raftlog.record.types import BrokerId, TopicId
from raftlog.replication.leader import isr
from raftlog.replication.leader.isr import (
    CHECK_INTERVAL_S,
    CHECKED_PER_TURN_MAX,
    STARTS_PER_TURN_MAX,
    IsrKeeper,
)
from raftlog.replication.leader.state import LeaderState
from raftlog.replication.partition import Acks, Partition
from tests.replication.one_node import JumpingClock
from tests.replication.pair import TOPIC_ID, HandFeed, Node, attach, nodes, one, row, send
from tests.waiting import until

HOUR_S = 3600.0


@dataclass
class HandQuorum:
    """Carries out a proposal when the test says so."""

    image: MetadataImage
    index: int = 0
    waiting: list[tuple[Command, asyncio.Future[Outcome[ApplyResult]]]] = field(
        default_factory=list
    )

    async def propose(self, command: bytes) -> Outcome[ApplyResult]:
        outcome: asyncio.Future[Outcome[ApplyResult]] = asyncio.get_running_loop().create_future()
        self.waiting.append((decode_command(command), outcome))
        return await outcome

    def apply(self, command: Command) -> Applied[ApplyResult]:
        self.index += 1
        return Applied(self.index, apply(self.image, self.index, command))


@dataclass
class World:
    """A leader of three replicas, of which the third is not in sync."""

    leader: Node
    others: list[Node]
    quorum: HandQuorum
    keeper: IsrKeeper
    failures: list[str]
    feeds: list[HandFeed] = field(default_factory=list)

    @property
    def partition(self) -> Partition:
        return self.leader.partition

    @property
    def state(self) -> LeaderState:
        return self.partition.require_leader().state

    async def proposed(self) -> Command:
        """The next proposal, which waits for its outcome."""
        await until(lambda: bool(self.quorum.waiting), poll_s=0)
        assert len(self.quorum.waiting) == 1
        return self.quorum.waiting[0][0]

    def end(self, outcome: Outcome[ApplyResult]) -> None:
        self.quorum.waiting.pop(0)[1].set_result(outcome)

    def carry_out(self) -> Applied[ApplyResult]:
        """Apply the waiting proposal, here too, and report the outcome."""
        applied = self.quorum.apply(self.quorum.waiting[0][0])
        self.take_over()
        self.end(applied)
        return applied

    def take_over(self) -> None:
        image = self.quorum.image.topics_by_id[TOPIC_ID].partitions[0]
        self.partition.update(image, 2)

    def ack(self, *ends: int) -> None:
        for feed, end in zip(self.feeds, ends, strict=True):
            if feed.ended_by is None:
                self.partition.require_leader().acked(feed, end, 0)  # type: ignore[arg-type]

    async def idle(self) -> None:
        await until(lambda: not self.keeper._busy, poll_s=0)


async def world(*in_sync: int) -> World:
    """Two records in the log; the test acknowledges for replicas 2 and 3."""
    leader, second, third = nodes(1, 2, 3)
    image = MetadataImage()
    image.brokers = leader.brokers
    begun = row(1, 1, isr=in_sync, replicas=(1, 2, 3))
    topic = TopicImage(TopicId(TOPIC_ID), "t", {}, (begun,))
    image.topics_by_id[topic.topic_id] = image.topics_by_name["t"] = topic
    for node in (leader, second, third):
        await node.open(begun)
    quorum = HandQuorum(image)
    failures: list[str] = []
    keeper = IsrKeeper(
        quorum=quorum,  # type: ignore[arg-type]
        image=lambda: image,
        broker_id=BrokerId(1),
        clock=JumpingClock(),
        led=lambda: [leader.partition] if leader.partition.is_leader else [],
        on_failed=failures.append,
        lag_max_s=lambda: HOUR_S,
    )
    made = World(leader, [second, third], quorum, keeper, failures)
    made.feeds = [attach(leader, node) for node in made.others]
    await leader.partition.append(one(b"a", b"b"), acks=Acks.LEADER, timeout_s=60)
    await leader.partition.log.flush()
    for node in made.others:
        await send(leader, node)
    return made


async def test_who_has_caught_up_is_proposed_and_counts_at_once() -> None:
    w = await world(1, 2)
    w.ack(1, 1)
    assert w.partition.high_watermark == 1
    w.keeper.maybe_propose(w.partition)
    command = await w.proposed()
    assert isinstance(command, AlterIsr)
    assert [member for member, _ in command.isr] == [1, 2, 3]
    # Replica 2, the whole committed ISR, has all records; but 3 may be in the ISR by now.
    w.ack(2, 1)
    assert w.partition.high_watermark == 1
    w.carry_out()
    await w.idle()
    assert w.partition.image.isr == (1, 2, 3)
    assert w.partition.high_watermark == 1
    w.ack(2, 2)
    assert w.partition.high_watermark == 2


async def test_who_is_late_counts_until_it_has_left() -> None:
    w = await world(1, 2, 3)
    w.ack(2, 1)
    w.state.followers[BrokerId(3)].caught_up_s -= 2 * HOUR_S
    w.keeper.maybe_propose(w.partition)
    command = await w.proposed()
    assert isinstance(command, AlterIsr)
    assert [member for member, _ in command.isr] == [1, 2]
    w.ack(2, 1)
    assert w.partition.high_watermark == 1
    w.carry_out()
    assert w.partition.high_watermark == 2
    await w.idle()


async def test_what_is_refused_when_it_is_applied_counts_no_more() -> None:
    w = await world(1, 2)
    w.ack(1, 1)
    w.keeper.maybe_propose(w.partition)
    await w.proposed()
    # Broker 3 was fenced by then.
    w.leader.brokers[BrokerId(3)] = replace(w.leader.brokers[BrokerId(3)], fenced=True)
    applied = w.quorum.apply(w.quorum.waiting[0][0])
    assert applied.result.refusal is not None
    assert w.state.has_pending_proposal
    w.end(applied)
    await w.idle()
    assert not w.state.has_pending_proposal
    assert not w.quorum.waiting


async def test_what_was_refused_by_the_quorum_is_withdrawn_and_tried_again() -> None:
    w = await world(1, 2)
    w.ack(1, 1)
    w.keeper.maybe_propose(w.partition)
    await w.proposed()
    w.end(Refused(NO_CONTROLLER, "nobody"))
    await until(lambda: not w.state.has_pending_proposal, poll_s=0)
    await w.proposed()
    w.carry_out()
    await w.idle()
    assert w.partition.image.isr == (1, 2, 3)


async def test_records_that_waited_for_a_withdrawn_member_are_committed_at_once() -> None:
    w = await world(1, 2)
    w.ack(1, 1)
    w.keeper.maybe_propose(w.partition)
    await w.proposed()
    w.ack(2, 1)
    assert w.partition.high_watermark == 1
    # No later acknowledgement comes: replica 3 has stopped.
    w.end(Refused(NO_CONTROLLER, "no leader"))
    await w.idle()
    assert w.partition.high_watermark == 2


class TestUnknown:
    """A proposal that may be applied at any later time."""

    async def test_it_counts_on_though_the_next_one_is_refused(self) -> None:
        w = await world(1, 2)
        w.ack(1, 1)
        w.keeper.maybe_propose(w.partition)
        lost = await w.proposed()
        w.end(Unknown("no answer"))
        await w.proposed()
        # So that 3 is no longer a candidate.
        w.leader.brokers[BrokerId(3)] = replace(w.leader.brokers[BrokerId(3)], fenced=True)
        w.end(Refused(NO_CONTROLLER, "nobody"))
        assert isinstance(await w.proposed(), ChangePartitions)
        w.leader.brokers[BrokerId(3)] = replace(w.leader.brokers[BrokerId(3)], fenced=False)
        w.ack(2, 1)
        # Without 3, the first proposal could still make it a leader that lacks records.
        assert w.partition.high_watermark == 1
        assert w.quorum.apply(lost).result.refusal is None
        w.take_over()
        assert w.partition.high_watermark == 1
        w.end(Refused(ILLEGAL_STATE, "stale"))
        await w.idle()

    async def test_who_died_over_it_does_not_hold_up_commits_for_ever(self) -> None:
        w = await world(1, 2)
        w.ack(1, 1)
        w.keeper.maybe_propose(w.partition)
        lost = await w.proposed()
        w.leader.brokers[BrokerId(3)] = replace(w.leader.brokers[BrokerId(3)], fenced=True)
        w.end(Unknown("no answer"))
        w.ack(2, 1)
        assert w.partition.high_watermark == 1
        doubt = await w.proposed()
        assert isinstance(doubt, ChangePartitions)
        w.carry_out()
        assert w.partition.image.leader_epoch == 2
        assert w.partition.image.isr == (1, 2)
        assert w.partition.is_leader
        # The lost proposal is stale now, even if 3 is back.
        w.leader.brokers[BrokerId(3)] = replace(w.leader.brokers[BrokerId(3)], fenced=False)
        assert w.quorum.apply(lost).result.refusal is not None
        second = w.others[0]
        second.partition.update(w.partition.image, 2)
        attach(w.leader, second)
        assert w.partition.high_watermark == 2
        await w.idle()

    async def test_the_doubt_is_found_by_the_next_look_too(self) -> None:
        w = await world(1, 2)
        w.leader.brokers[BrokerId(3)] = replace(w.leader.brokers[BrokerId(3)], fenced=True)
        # The proposal's task has ended: this node was fenced for a while.
        w.state.propose([BrokerId(3)])
        looks = asyncio.ensure_future(w.keeper.run())
        assert isinstance(await w.proposed(), ChangePartitions)
        looks.cancel()
        await w.keeper.close()


async def test_one_proposal_of_a_partition_is_under_way_at_a_time() -> None:
    w = await world(1, 2)
    w.ack(1, 1)
    for _ in range(3):
        w.keeper.maybe_propose(w.partition)
    await w.proposed()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(w.quorum.waiting) == 1
    w.carry_out()
    await w.idle()
    assert not w.quorum.waiting


async def test_so_many_are_under_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isr, "PROPOSALS_MAX", 1)
    first, second = await world(1, 2), await world(1, 2)
    keeper = IsrKeeper(
        quorum=first.quorum,  # type: ignore[arg-type]
        image=lambda: first.quorum.image,
        broker_id=BrokerId(1),
        clock=JumpingClock(),
        led=list,
        on_failed=first.failures.append,
        lag_max_s=lambda: HOUR_S,
    )
    second.partition.topic_id = TopicId("1" * 32)
    first.quorum.image.topics_by_id[second.partition.topic_id] = first.quorum.image.topics_by_id[
        TOPIC_ID
    ]
    for each in (first, second):
        each.ack(1, 1)
        keeper.maybe_propose(each.partition)
    # A proposal refused again and again does not hold up the other partitions.
    topics = set()
    for _ in range(20):
        command = await first.proposed()
        assert isinstance(command, AlterIsr)
        topics.add(command.topic_id)
        first.end(Refused(NO_CONTROLLER, "nobody"))
    assert topics == {TOPIC_ID, second.partition.topic_id}
    await keeper.close()


async def test_whoever_lost_the_lead_meanwhile_proposes_no_more() -> None:
    w = await world(1, 2)
    w.ack(1, 1)
    w.keeper.maybe_propose(w.partition)
    await w.proposed()
    w.partition.update(row(2, 2, isr=(1, 2), replicas=(1, 2, 3)), 2)
    w.end(Unknown("no answer"))
    await w.idle()
    assert not w.quorum.waiting


async def test_a_fenced_leader_proposes_nothing() -> None:
    w = await world(1, 2)
    w.leader.brokers[BrokerId(1)] = replace(w.leader.brokers[BrokerId(1)], fenced=True)
    w.ack(1, 1)
    w.keeper.maybe_propose(w.partition)
    await w.idle()
    assert not w.quorum.waiting


async def test_nothing_begins_once_it_is_closed() -> None:
    w = await world(1, 2)
    w.ack(1, 1)
    await w.keeper.close()
    w.keeper.maybe_propose(w.partition)
    assert not w.keeper._busy


async def test_what_it_did_not_expect_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    w = await world(1, 2)
    w.ack(1, 1)

    async def broken(_command: bytes) -> Outcome[ApplyResult]:
        raise AssertionError("broken")

    monkeypatch.setattr(w.quorum, "propose", broken)
    w.keeper.maybe_propose(w.partition)
    await w.idle()
    assert "broken" in w.failures[0]


def test_several_looks_fit_into_the_lag() -> None:
    shortest = BROKER_CONFIG_TABLE[REPLICA_LAG].lower
    assert shortest is not None
    assert shortest / 1000 >= 2 * CHECK_INTERVAL_S


async def test_many_proposals_due_at_once_begin_over_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = await world(1, 2)
    w.ack(1, 1)
    started = 0

    async def propose(_partition: Partition) -> None:
        nonlocal started
        started += 1

    monkeypatch.setattr(w.keeper, "_propose_all", propose)
    many = [copy(w.partition) for _ in range(3 * STARTS_PER_TURN_MAX)]
    for number, partition in enumerate(many):
        partition.topic_id = TopicId(f"{number:032x}")
        w.keeper.maybe_propose(partition)
    turns = []
    while not turns or turns[-1] < len(many):
        await asyncio.sleep(0)
        turns.append(started)
        assert len(turns) < 100
    steps = [later - earlier for earlier, later in pairwise([0, *turns])]
    assert max(steps) == STARTS_PER_TURN_MAX
    assert started == len(many)


async def test_proposals_that_are_due_no_more_hold_up_no_others() -> None:
    w = await world(1, 2)
    w.ack(1, 1)
    stale = [copy(w.partition) for _ in range(2 * STARTS_PER_TURN_MAX)]
    for number, partition in enumerate(stale):
        partition.topic_id = TopicId(f"{number:032x}")
        w.keeper._due[partition.topic_id, partition.partition] = partition
        partition.leader_role = None
    w.keeper._started_in_turn = STARTS_PER_TURN_MAX
    w.keeper.maybe_propose(w.partition)
    w.keeper._begin_turn()
    assert isinstance(await w.proposed(), AlterIsr)
    w.carry_out()
    await w.idle()


async def test_a_check_of_many_partitions_takes_turns_with_other_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = await world(1, 2, 3)
    many = 10 * CHECKED_PER_TURN_MAX
    checked = 0

    def check(_partition: Partition) -> None:
        nonlocal checked
        checked += 1

    monkeypatch.setattr(w.keeper, "_led", lambda: [w.partition] * many)
    monkeypatch.setattr(w.keeper, "maybe_propose", check)
    task = asyncio.create_task(w.keeper.run())
    most = 0
    while checked < many:
        before = checked
        await asyncio.sleep(0)
        most = max(most, checked - before)
    task.cancel()
    assert 0 < most <= CHECKED_PER_TURN_MAX
