"""Work due by changes of the metadata, and its execution by the active controller."""

from __future__ import annotations

import pytest

from raftlog.controller import partition_work
from raftlog.controller.partition_work import PartitionWork
from raftlog.metadata.commands import (
    AlterBroker,
    AlterClusterSettings,
    AlterIsr,
    AlterTopicConfigs,
    ChangePartitions,
    Command,
    PartitionChange,
    encode_command,
)
from raftlog.metadata.configs.broker import REBALANCE_DELAY
from raftlog.metadata.decisions.admin_plans import plan_cluster_settings
from raftlog.metadata.decisions.elections import LogEnd, plan_elections
from raftlog.metadata.decisions.liveness import plan_replica_failures
from raftlog.metadata.decisions.reassignment import plan_reassignment
from raftlog.metadata.delta import MetadataDelta
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage
from raftlog.record.types import BrokerId, LeaderEpoch, Offset, PartitionId
from tests.controller.clock import settle
from tests.controller.cluster import Cluster
from tests.controller.running import past_grace, running
from tests.metadata.strategies import (
    carry_out,
    create,
    fence,
    ids,
    register,
    set_row,
    unfence,
)


def brokers() -> MetadataImage:
    image = MetadataImage()
    for number in (1, 2, 3):
        register(image, number)
    return image


def take(work: PartitionWork, image: MetadataImage, now: float = 0.0) -> list[Command]:
    """The commands of all due plans, applied one after the other."""
    commands: list[Command] = []
    for plan in work.due(image, now):
        for command in plan(image):
            carry_out(image, command)
            commands.append(command)
    return commands


def tell(work: PartitionWork, image: MetadataImage, command: Command, now: float = 0.0) -> bool:
    return work.applied(carry_out(image, command).delta, image, now)


# -- Pure


def test_all_partitions_are_examined_when_a_term_begins_and_never_again_without_cause() -> None:
    image = brokers()
    create(image, "t", 1, (1, 2), (1, 2))
    set_row(image, "t", leader=NO_LEADER_ID)
    set_row(image, "t", 1, removing=ids(2))
    work = PartitionWork(image, 0.0)
    assert len(take(work, image)) == 2
    assert image.partition("t", 0).leader == 1
    assert image.partition("t", 1).replicas == (1,)
    set_row(image, "t", leader=NO_LEADER_ID)
    assert list(work.due(image, 0.0)) == []
    work.mark_all_due()
    assert len(take(work, image)) == 1


def test_partition_left_without_a_leader_is_looked_at() -> None:
    image = brokers()
    create(image, "t", 1, (1, 2), (1, 2))
    work = PartitionWork(image, 0.0)
    take(work, image)
    set_row(image, "t", 0, leader=NO_LEADER_ID)
    # No delta named this partition, so a plan with it examines more than is due.
    row = image.partition("t", 1)
    left = PartitionChange(
        topic_id=image.topic("t").topic_id,
        partition=row.partition,
        partition_epoch=row.partition_epoch,
        leader=NO_LEADER_ID,
    )
    assert tell(work, image, ChangePartitions(changes=(left,)))
    take(work, image)
    assert [each.leader for each in image.topic("t").partitions] == [NO_LEADER_ID, 1]


@pytest.mark.parametrize("scope", ["topic", "cluster"])
def test_elections_are_due_when_losing_records_is_allowed(scope: str) -> None:
    image = brokers()
    create(image, "t", 1, (1, 2))
    set_row(image, "t", isr=(), leader=NO_LEADER_ID)
    work = PartitionWork(image, 0.0)
    assert take(work, image) == []
    values = {"unclean.leader.election.enable": "true"}
    command: Command = AlterClusterSettings(values=values)
    if scope == "topic":
        command = AlterTopicConfigs(topic_id=image.topic("t").topic_id, values=values)
    assert tell(work, image, command)
    take(work, image)
    assert image.partition("t", 0).leader == NO_LEADER_ID, "the longest log is not known"
    key = image.topic("t").topic_id, PartitionId(0)
    assert work.undecided(image) == [key]
    assert not work.undecided(image), "once is enough"
    ends = {key: {BrokerId(2): LogEnd(LeaderEpoch(0), Offset(3))}}
    for command in plan_elections(image, keys=[key], ends=ends):
        carry_out(image, command)
    assert image.partition("t", 0).leader == 2
    assert not tell(work, image, AlterClusterSettings(values={"retention.ms": "1"}))


def test_returned_broker_makes_elections_due() -> None:
    image = brokers()
    create(image, "t", 1, (1,))
    fence(image, 1)
    set_row(image, "t", isr=(), elr=ids(1), leader=NO_LEADER_ID)
    work = PartitionWork(image, 0.0)
    assert take(work, image) == []
    before = image.brokers[BrokerId(1)]
    assert before.fenced
    unfence(image, 1)
    work.applied(MetadataDelta(brokers=(BrokerId(1),)), image, 0.0)
    take(work, image)
    assert image.partition("t", 0).leader == 1


def test_so_many_partitions_that_all_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_work, "KEYS_MAX", 2)
    image = brokers()
    create(image, "t", 1, *[(1, 2)] * 4)
    work = PartitionWork(image, 0.0)
    take(work, image)
    for number in range(4):
        command = plan_reassignment(image, name="t", partition=number, replicas=ids(1))
        assert tell(work, image, command)
    take(work, image)
    assert all(row.replicas == (1,) for row in image.topic("t").partitions)


def test_broker_must_have_been_back_for_long_before_it_is_preferred() -> None:
    image = brokers()
    create(image, "t", 1, (2, 1), (3, 1))
    set_row(image, "t", 0, leader=1)
    set_row(image, "t", 1, leader=1)
    work = PartitionWork(image, 0.0)
    alter = AlterBroker(broker_id=BrokerId(3), maintenance=True)
    tell(work, image, alter, 5.0)
    tell(work, image, AlterBroker(broker_id=BrokerId(3), maintenance=False), 15.0)
    leaders = {}
    for now in (9.0, 29.0, 39.0, 44.0, 49.0):
        take(work, image, now)
        leaders[now] = [row.leader for row in image.topic("t").partitions]
    assert leaders == {9.0: [1, 1], 29.0: [1, 1], 39.0: [2, 1], 44.0: [2, 1], 49.0: [2, 3]}


def test_interrupted_return_of_leaders_goes_on_at_once() -> None:
    image = brokers()
    work = PartitionWork(image, 0.0)
    take(work, image)
    assert work.next_at() == 10.0
    for _ in work.due(image, 12.0):
        break
    assert work.next_at() == 10.0
    take(work, image, 12.0)
    assert work.next_at() == 22.0


# -- Carried out


def propose(cluster: Cluster, command: Command) -> None:
    result = cluster.commit(encode_command(command))
    result.check()


def alter_isr(cluster: Cluster, *members: int, topic: int = 1, partition: int = 0) -> None:
    """The leader of the topic's partition proposes an ISR."""
    row = cluster.row(topic, partition)
    epochs = {b: broker.broker_epoch for b, broker in cluster.image.brokers.items()}
    propose(
        cluster,
        AlterIsr(
            broker_id=row.leader,
            broker_epoch=epochs[row.leader],
            topic_id=cluster.image.topic(f"t{topic}").topic_id,
            partition=row.partition,
            leader_epoch=row.leader_epoch,
            partition_epoch=row.partition_epoch,
            isr=tuple((BrokerId(b), epochs[BrokerId(b)]) for b in members),
            min_isr_default=1,
        ),
    )


async def test_reassignment_ends_as_soon_as_the_new_replicas_are_in_sync() -> None:
    async with running(3, 4) as cluster:
        cluster.create_topic(1, (1, 2))
        await settle()
        propose(
            cluster, plan_reassignment(cluster.image, name="t1", partition=0, replicas=ids(3, 4))
        )
        await settle()
        assert cluster.row(1).adding == (3, 4)
        alter_isr(cluster, 1, 2, 3)
        await settle()
        assert cluster.row(1).removing == (1, 2), "one is missing"
        alter_isr(cluster, 1, 2, 3, 4)
        await settle()
        row = cluster.row(1)
        assert (row.replicas, row.isr, row.leader) == ((3, 4), (3, 4), 3)


async def test_reassignment_is_ended_by_the_next_controller() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (1, 2))
        propose(
            cluster, plan_reassignment(cluster.image, name="t1", partition=0, replicas=ids(1, 3))
        )
        await settle()
        cluster.outcomes.extend(["lost"] * 100)
        alter_isr(cluster, 1, 2, 3)
        await settle()
        assert cluster.row(1).adding == (3,)
        await cluster.depose()
        cluster.outcomes.clear()
        await cluster.elect(2)
        assert (cluster.row(1).replicas, cluster.row(1).isr) == ((1, 3), (1, 3))


async def test_partition_that_lost_its_leader_to_another_command_gets_one() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        alter_isr(cluster, 2)
        await settle()
        row = cluster.row(1)
        assert row.isr == (2,)
        # The last member of the ISR loses records.
        key = (cluster.image.topic("t1").topic_id, row.partition)
        (failure,) = plan_replica_failures(cluster.image, BrokerId(2), [key], lost=True)
        propose(cluster, failure)
        await settle()
        assert cluster.leaders(1) == [NO_LEADER_ID]
        propose(
            cluster,
            AlterTopicConfigs(topic_id=key[0], values={"unclean.leader.election.enable": "true"}),
        )
        await settle()
        row = cluster.row(1)
        assert row.leader in (2, 3) and row.unclean_epoch == row.leader_epoch


async def test_maintenance_moves_leaders_away_and_back_when_it_ends() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3), (3, 2), (2, 1))
        await past_grace(cluster)
        propose(cluster, AlterBroker(broker_id=BrokerId(2), maintenance=True))
        await settle()
        assert 2 not in cluster.leaders(1)
        assert all(2 in row.isr for row in cluster.image.topic("t1").partitions)
        await cluster.clock.advance(60.0)
        assert 2 not in cluster.leaders(1)
        propose(cluster, AlterBroker(broker_id=BrokerId(2), maintenance=False))
        await cluster.clock.advance(29.0)
        assert 2 not in cluster.leaders(1)
        await cluster.clock.advance(12.0)
        assert cluster.leaders(1) == [2, 3, 2]


async def test_broker_in_maintenance_is_relieved_when_another_joins() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        alter_isr(cluster, 2)
        propose(cluster, AlterBroker(broker_id=BrokerId(2), maintenance=True))
        await settle()
        assert cluster.leaders(1) == [2], "nobody else can"
        alter_isr(cluster, 2, 3)
        await settle()
        assert cluster.leaders(1) == [3]


async def test_decommissioned_broker_is_emptied_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftlog.metadata.decisions.decommission.MOVES_AT_ONCE_MAX", 1)
    async with running() as cluster:
        cluster.create_topic(1, (2, 1))
        cluster.create_topic(2, (2, 1))
        await settle()
        propose(cluster, AlterBroker(broker_id=BrokerId(2), decommissioning=True))
        await settle()
        assert cluster.row(1).adding == (3,)
        assert cluster.row(2).adding == ()
        alter_isr(cluster, 1, 2, 3, topic=1)
        await settle()
        assert {*cluster.row(1).replicas} == {1, 3}
        assert cluster.row(2).adding == (3,), "the next one"
        alter_isr(cluster, 1, 2, 3, topic=2)
        await settle()
        assert all(2 not in cluster.row(number).replicas for number in (1, 2))


async def test_failed_work_is_repeated() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (1, 2))
        propose(
            cluster, plan_reassignment(cluster.image, name="t1", partition=0, replicas=ids(1, 3))
        )
        await settle()
        cluster.outcomes.extend(["refused"] * 3)
        alter_isr(cluster, 1, 2, 3)
        await cluster.clock.advance(3.0)
        assert cluster.row(1).replicas == (1, 3)


def test_change_of_the_rebalance_delay_counts_at_once() -> None:
    image = brokers()
    create(image, "t", 1, (1, 2))
    set_row(image, "t", leader=BrokerId(2))
    work = PartitionWork(image, 0.0)
    take(work, image)
    assert work.next_at() == 10.0
    change = plan_cluster_settings(image, values={REBALANCE_DELAY: "1000"})
    tell(work, image, change, 2.0)
    assert work.next_at() == 3.0
    take(work, image, 3.0)
    assert image.partition("t", 0).leader == 1
    assert work.next_at() == 4.0


def test_negative_rebalance_delay_leaves_leaders_where_they_are() -> None:
    image = brokers()
    create(image, "t", 1, (1, 2))
    set_row(image, "t", leader=BrokerId(2))
    carry_out(image, plan_cluster_settings(image, values={REBALANCE_DELAY: "-1"}))
    work = PartitionWork(image, 0.0)
    take(work, image)
    take(work, image, 1000.0)
    assert image.partition("t", 0).leader == 2
    assert work.next_at() == 1010.0
