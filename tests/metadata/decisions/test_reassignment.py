from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.metadata.commands import AlterIsr, ChangePartitions
from raftlog.metadata.decisions.liveness import plan_fencing
from raftlog.metadata.decisions.reassignment import (
    Move,
    plan_cancellation,
    plan_completions,
    plan_reassignment,
    plan_reassignments,
)
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage, PartitionImage
from raftlog.metadata.state_machine import check_invariants
from raftlog.record.errors import ILLEGAL_STATE, INVALID_PARTITIONS, LogError
from raftlog.record.types import BrokerId, PartitionId
from tests.examples import examples
from tests.metadata.strategies import (
    BROKER_NUMBERS,
    alter_broker,
    carry_out,
    carry_out_plan,
    cluster_images,
    create,
    fence,
    ids,
    register,
    set_row,
    shut_down,
    unfence,
)


def five(*replicas: int) -> MetadataImage:
    image = MetadataImage()
    for number in BROKER_NUMBERS:
        register(image, number)
    create(image, "t", 1, replicas)
    return image


def reassign(image: MetadataImage, *replicas: int) -> PartitionImage:
    command = plan_reassignment(image, name="t", partition=0, replicas=ids(*replicas))
    result = carry_out(image, command)
    assert not result.partitions().stale
    return image.partition("t", 0)


def joins(image: MetadataImage, *isr: int) -> None:
    topic = image.topic("t")
    row = topic.partitions[0]
    carry_out(
        image,
        AlterIsr(
            broker_id=row.leader,
            broker_epoch=image.brokers[row.leader].broker_epoch,
            topic_id=topic.topic_id,
            partition=row.partition,
            leader_epoch=row.leader_epoch,
            partition_epoch=row.partition_epoch,
            isr=tuple((b, image.brokers[b].broker_epoch) for b in ids(*isr)),
            min_isr_default=1,
        ),
    )


def test_replicas_move_once_all_new_ones_are_in_sync() -> None:
    image = five(1, 2, 3)
    row = reassign(image, 4, 5, 3)
    assert (row.replicas, row.adding, row.removing) == ((4, 5, 3, 1, 2), (4, 5), (1, 2))
    assert (row.leader, row.isr) == (1, (3, 1, 2))
    assert image.topic("t").replication_factor == 3
    joins(image, 1, 2, 3, 4)
    assert not list(plan_completions(image)), "5 is not in sync yet"
    joins(image, 1, 3, 4, 5)
    carry_out_plan(image, plan_completions(image))
    row = image.partition("t", 0)
    assert (row.replicas, row.adding, row.removing) == ((4, 5, 3), (), ())
    assert (row.leader, row.isr, row.elr, row.leader_epoch) == (4, (4, 5, 3), (), 1)
    assert not list(plan_completions(image))


def test_leader_that_stays_goes_on_in_its_leader_epoch_until_a_replica_leaves() -> None:
    image = five(1, 2)
    reassign(image, 3, 1)
    joins(image, 1, 2, 3)
    row = image.partition("t", 0)
    assert (row.replicas, row.leader, row.leader_epoch) == ((3, 1, 2), 1, 0)
    carry_out_plan(image, plan_completions(image))
    row = image.partition("t", 0)
    assert (row.replicas, row.leader, row.leader_epoch) == ((3, 1), 1, 1)


def test_what_a_deleted_replica_acknowledged_lets_no_new_one_into_the_isr() -> None:
    # Broker 2 has not learned of the removal of its replica, nor of the new one: the old replica
    # still acknowledges, and the leader would count its records for the new one.
    image = five(1, 2)
    reassign(image, 1, 3)
    joins(image, 1, 2, 3)
    carry_out_plan(image, plan_completions(image))
    reassign(image, 1, 2)
    row = image.partition("t", 0)
    assert (row.replicas, row.isr) == ((1, 2, 3), (1, 3))
    assert row.leader_epoch == 1, "what was acknowledged in epoch 0 counts no more"


def test_move_waits_for_a_new_member_that_may_lead() -> None:
    image = five(1)
    reassign(image, 2)
    joins(image, 1, 2)
    shut_down(image, 2)
    assert not list(plan_completions(image))
    register(image, 2, incarnation="second")
    carry_out_plan(image, plan_completions(image))
    assert image.partition("t", 0).leader == 2


def test_move_waits_for_new_members_that_are_gone() -> None:
    # All died at once: the ISR stays unchanged, and does not mean alive.
    image = five(1, 2)
    reassign(image, 3, 4)
    joins(image, 1, 2, 3, 4)
    for number in (1, 2, 3, 4):
        fence(image, number)
    for number in (1, 2, 3, 4):
        carry_out_plan(image, plan_fencing(image, BrokerId(number)))
    assert not list(plan_completions(image)), "of 3 and 4 nobody knows what they have kept"
    for number in (3, 4):
        unfence(image, number)
    carry_out_plan(image, plan_completions(image))
    assert image.partition("t", 0).replicas == (3, 4)


def test_order_alone_changes_at_once() -> None:
    image = five(1, 2)
    row = reassign(image, 2, 1)
    assert (row.replicas, row.isr, row.adding, row.removing, row.leader) == (
        (2, 1),
        (2, 1),
        (),
        (),
        1,
    )


def test_newer_target_takes_the_place_of_the_one_before() -> None:
    image = five(1, 2)
    reassign(image, 1, 3)
    row = reassign(image, 3, 4)
    assert (row.replicas, row.adding, row.removing) == ((3, 4, 1, 2), (3, 4), (1, 2))
    row = reassign(image, 1, 5)
    # 3 and 4 were never needed, but may have begun: they leave like all others.
    assert (row.adding, row.removing) == ((5,), (3, 4, 2))


def test_cancelled_move_leaves_the_former_replicas() -> None:
    image = five(1, 2)
    with pytest.raises(LogError, match="not being reassigned") as raised:
        plan_cancellation(image, name="t", partition=0)
    assert raised.value.entry is ILLEGAL_STATE
    reassign(image, 3, 1)
    joins(image, 1, 3)
    carry_out(image, plan_cancellation(image, name="t", partition=0))
    row = image.partition("t", 0)
    assert (row.replicas, row.isr, row.adding, row.removing) == ((1, 2), (1,), (), ())


def test_move_is_not_cancelled_when_only_the_new_replicas_have_everything() -> None:
    image = five(1)
    reassign(image, 2)
    set_row(image, "t", isr=ids(2), leader=2)
    with pytest.raises(LogError, match="None of the former replicas"):
        plan_cancellation(image, name="t", partition=0)
    set_row(image, "t", isr=(), elr=ids(2), leader=NO_LEADER_ID)
    with pytest.raises(LogError, match="None of the former replicas"):
        plan_cancellation(image, name="t", partition=0)
    set_row(image, "t", isr=ids(2, 1), elr=(), leader=2)
    fence(image, 1)
    with pytest.raises(LogError, match="None of the former replicas"):
        plan_cancellation(image, name="t", partition=0)
    unfence(image, 1)
    carry_out(image, plan_cancellation(image, name="t", partition=0))
    assert (image.partition("t", 0).replicas, image.partition("t", 0).leader) == ((1,), 1)


def test_move_is_cancelled_while_everybody_is_away() -> None:
    image = five(1)
    reassign(image, 2)
    set_row(image, "t", isr=(), elr=ids(1), leader=NO_LEADER_ID)
    carry_out(image, plan_cancellation(image, name="t", partition=0))
    row = image.partition("t", 0)
    assert (row.replicas, row.elr, row.leader) == ((1,), (1,), NO_LEADER_ID)


@pytest.mark.parametrize("replicas", [(), (1, 1), (1, 9), (1, 4)])
def test_impossible_targets_are_refused(replicas: tuple[int, ...]) -> None:
    image = five(1, 2)
    fence(image, 4)
    with pytest.raises(LogError) as raised:
        plan_reassignment(image, name="t", partition=0, replicas=ids(*replicas))
    assert raised.value.entry is INVALID_PARTITIONS


def test_several_moves_are_checked_before_any_is_begun() -> None:
    image = five(1, 2)
    create(image, "u", 8, (2, 3), (3, 1))
    moves = [Move("t", 0, ids(3, 4)), Move("u", 1, ids(3, 5)), Move("u", 0, ids(2, 3))]
    with pytest.raises(LogError, match="There is no broker 9"):
        plan_reassignments(image, [*moves[:1], Move("u", 1, ids(9))])
    with pytest.raises(LogError, match="only once"):
        plan_reassignments(image, [moves[0], moves[0]])
    (command,) = carry_out_plan(image, plan_reassignments(image, moves))
    assert isinstance(command, ChangePartitions)
    assert len(command.changes) == 2, "where nothing moves, nothing is changed"
    assert image.partition("t", 0).adding == (3, 4)
    assert image.partition("u", 1).adding == (5,)
    assert not list(plan_reassignments(image, moves)), "they are on their way"


def test_broker_that_is_to_leave_is_no_target() -> None:
    image = five(1, 2)
    alter_broker(image, 3, decommissioning=True)
    with pytest.raises(LogError, match="being decommissioned"):
        plan_reassignment(image, name="t", partition=0, replicas=ids(1, 3))


def test_some_moves_can_be_ended_alone() -> None:
    image = five(1, 2)
    create(image, "u", 8, (2, 3))
    for name in ("t", "u"):
        set_row(image, name, removing=image.partition(name, 0).replicas[:1])
    key = (image.topic("u").topic_id, PartitionId(0))
    carry_out_plan(image, plan_completions(image, [key]))
    assert image.partition("u", 0).replicas == (3,)
    assert image.partition("t", 0).replicas == (1, 2)


@settings(max_examples=examples(100), deadline=None)
@given(cluster_images(), st.data())
def test_moves_from_any_state_keep_a_replica_with_all_records(
    image: MetadataImage, data: st.DataObject
) -> None:
    topic = data.draw(st.sampled_from(list(image.topics_by_id.values())))
    row = data.draw(st.sampled_from(topic.partitions))
    order = data.draw(st.permutations(ids(*BROKER_NUMBERS)))
    target = tuple(order[: data.draw(st.integers(1, 4))])
    try:
        command = plan_reassignment(
            image, name=topic.name, partition=row.partition, replicas=target
        )
    except LogError:
        assert any(b not in row.replicas and not image.brokers[b].may_hold for b in target)
        return
    assert not carry_out(image, command).partitions().stale
    check_invariants(image)
    begun = image.partition(topic.name, row.partition)
    carry_out_plan(image, plan_completions(image))
    after = image.partition(topic.name, row.partition)
    assert {*after.replicas} >= {*target}
    who_has_all = {*row.isr, *row.elr}
    assert {*after.isr, *after.elr} & who_has_all or not who_has_all
    if not begun.adding and not begun.removing:
        assert after.replicas == target
    elif {*target} <= {*row.isr}:
        ends = row.leader in {*target, NO_LEADER_ID}
        ends = ends or any(image.brokers[b].is_available for b in target)
        ends = ends and not any(image.brokers[b].fenced for b in target)
        # New replicas alone change no replica at the end, only that they are not new any more.
        assert (after.replicas == target and not after.adding) is ends
    assert not list(plan_completions(image))
