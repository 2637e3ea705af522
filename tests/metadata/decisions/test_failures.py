"""A replica with lost records does not count any more, whatever comes later."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.metadata.apply.apply import apply
from raftlog.metadata.apply.rules import Reason
from raftlog.metadata.commands import AlterIsr, Command
from raftlog.metadata.decisions import elections
from raftlog.metadata.decisions.elections import (
    PartitionKey,
    plan_elections,
    plan_preferred_leaders,
    plan_relief,
    plan_unclean_election,
)
from raftlog.metadata.decisions.liveness import (
    plan_controlled_shutdown,
    plan_fencing,
    plan_replica_failures,
    plan_unfencing,
)
from raftlog.metadata.decisions.reassignment import plan_completions
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage
from raftlog.record.types import BrokerId, PartitionId, TopicId
from tests.examples import examples
from tests.metadata.strategies import (
    BROKER_NUMBERS,
    carry_out,
    carry_out_plan,
    cluster_images,
    create,
    fence,
    ids,
    register,
    set_row,
)


def three(*replicas: tuple[int, ...]) -> MetadataImage:
    image = MetadataImage()
    for number in (1, 2, 3):
        register(image, number)
    create(image, "t", 1, *replicas)
    return image


def key(image: MetadataImage, partition: int = 0) -> PartitionKey:
    return (image.topic("t").topic_id, PartitionId(partition))


def fail(image: MetadataImage, broker_id: int, *keys: PartitionKey) -> list[Command]:
    return carry_out_plan(image, plan_replica_failures(image, BrokerId(broker_id), keys, lost=True))


def test_failed_follower_leaves_and_is_not_eligible_below_the_minimum() -> None:
    image = three((1, 2, 3))
    set_row(image, "t", isr=ids(1, 2), elr=())
    fail(image, 2, key(image))
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.elr, row.leader_epoch) == (1, (1,), (), 1)


def test_failed_leader_is_succeeded_from_isr_or_elr() -> None:
    image = three((1, 2, 3), (1, 2, 3))
    set_row(image, "t", 1, isr=ids(1), elr=ids(3))
    fail(image, 1, key(image), key(image, 1))
    first, second = image.topic("t").partitions
    assert (first.leader, first.isr, first.elr, first.leader_epoch) == (2, (2, 3), (), 1)
    assert (second.leader, second.isr, second.elr) == (3, (3,), ())


@pytest.mark.parametrize("leads", [True, False])
def test_last_replica_that_fails_waits_for_an_operator(leads: bool) -> None:
    image = three((1, 2, 3))
    isr, elr = (ids(1), ()) if leads else ((), ids(1))
    set_row(image, "t", isr=isr, elr=elr, leader=1 if leads else NO_LEADER_ID)
    fail(image, 1, key(image))
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.elr, row.unclean_epoch) == (NO_LEADER_ID, (), (), -1)
    assert not list(plan_elections(image))
    carry_out(image, plan_unclean_election(image, name="t", partition=0, broker_id=BrokerId(1)))
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.unclean_epoch) == (1, (1,), row.leader_epoch)


def test_failure_makes_proposals_stale_that_rest_on_what_was_acknowledged_before() -> None:
    image = three((1, 2, 3))
    row = set_row(image, "t", isr=ids(1, 3))
    late = AlterIsr(
        broker_id=row.leader,
        broker_epoch=image.brokers[row.leader].broker_epoch,
        topic_id=image.topic("t").topic_id,
        partition=row.partition,
        leader_epoch=row.leader_epoch,
        partition_epoch=row.partition_epoch,
        isr=tuple((b, image.brokers[b].broker_epoch) for b in row.replicas),
        min_isr_default=2,
    )
    # By the metadata the replica is out of sync already.
    fail(image, 2, key(image))
    result = apply(image, image.applied_index + 1, late)
    assert result.refusal is not None
    assert result.refusal.reason is Reason.STALE_LEADER_EPOCH
    assert image.partition("t", 0).isr == (1, 3)


def test_partitions_that_are_not_held_or_gone_are_passed_over() -> None:
    image = three((1, 2), (2, 3))
    gone = (TopicId("f" * 32), PartitionId(0))
    before = image.partition("t", 1)
    (command,) = fail(image, 1, gone, key(image, 7), key(image, 1), key(image), key(image))
    assert len(command.changes) == 1  # type: ignore[union-attr]  # the plan gives no others
    assert image.partition("t", 1) == before


def test_many_failures_come_in_commands_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections, "PLANNED_CHANGES_MAX", 3)
    image = three(*[(1, 2)] * 7)
    assert len(fail(image, 1, *(key(image, number) for number in range(7)))) == 3
    assert {row.leader for row in image.topic("t").partitions} == {2}


def test_unclean_topic_is_led_by_another_and_says_since_when() -> None:
    image = MetadataImage()
    for number in (1, 2):
        register(image, number)
    create(image, "t", 1, (1, 2), configs={"unclean.leader.election.enable": "true"})
    set_row(image, "t", isr=ids(1))
    fail(image, 1, key(image))
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.leader_epoch, row.unclean_epoch) == (2, (2,), 1, 1)


@settings(max_examples=examples(150), deadline=None)
@given(cluster_images(), st.data())
def test_failed_replica_never_becomes_eligible_by_itself(
    image: MetadataImage, data: st.DataObject
) -> None:
    rows = {
        (topic.topic_id, row.partition): row
        for topic in image.topics_by_id.values()
        for row in topic.partitions
    }
    keys = data.draw(st.lists(st.sampled_from(list(rows)), unique=True, min_size=1))
    broker_id = BrokerId(data.draw(st.sampled_from(BROKER_NUMBERS)))
    untouched = [row for key, row in rows.items() if key not in keys]
    carry_out_plan(image, plan_replica_failures(image, broker_id, keys, lost=True))
    after = [
        row
        for topic in image.topics_by_id.values()
        for row in topic.partitions
        if (topic.topic_id, row.partition) not in keys
    ]
    assert after == untouched

    failed_in = {
        (topic_id, number): image.topics_by_id[topic_id].partitions[number].leader_epoch
        for topic_id, number in keys
    }

    def stays_out() -> None:
        for topic_id, number in keys:
            row = image.topics_by_id[topic_id].partitions[number]
            # Where losing records is allowed, the replica may be elected like any other; from then
            # on it counts, in whatever set and leader epoch.
            if row.unclean_epoch <= failed_in[topic_id, number]:
                assert broker_id not in row.isr and broker_id not in row.elr
                assert row.leader != broker_id

    stays_out()
    everybody = [BrokerId(number) for number in BROKER_NUMBERS]
    steps = [
        lambda b: plan_fencing(image, b),
        lambda b: plan_unfencing(image, b),
        lambda b: plan_controlled_shutdown(image, b),
        lambda _: plan_elections(image),
        lambda _: plan_preferred_leaders(image),
        lambda _: plan_relief(image),
        lambda _: plan_completions(image),
    ]
    for _ in range(data.draw(st.integers(1, 6))):
        step = data.draw(st.sampled_from(steps))
        carry_out_plan(image, step(data.draw(st.sampled_from(everybody))))
        stays_out()


def test_fenced_broker_can_fail_its_replicas() -> None:
    image = three((1, 2))
    fence(image, 1)
    fail(image, 1, key(image))
    assert image.partition("t", 0).isr == (2,)
