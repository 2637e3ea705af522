from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from raftlog.metadata.decisions import decommission
from raftlog.metadata.decisions.decommission import (
    evacuation_progress,
    plan_decommission,
    plan_evacuation,
    plan_maintenance,
    plan_recommission,
)
from raftlog.metadata.decisions.reassignment import plan_completions, plan_reassignment, target_of
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage
from raftlog.record.errors import ILLEGAL_STATE, NOT_FOUND, LogError
from raftlog.record.types import BrokerId
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
)

TWO = BrokerId(2)


def brokers(count: int = 4) -> MetadataImage:
    image = MetadataImage()
    for number in range(1, count + 1):
        register(image, number)
    return image


def catch_up(image: MetadataImage) -> None:
    """All joining replicas have caught up."""
    for topic in list(image.topics_by_id.values()):
        for row in topic.partitions:
            if row.adding:
                set_row(image, topic.name, row.partition, isr=row.replicas, elr=())


def test_decommissioned_broker_is_emptied_and_holds_nothing_at_the_end() -> None:
    image = brokers()
    create(image, "t", 1, (1, 2, 3), (2, 3, 4), (4, 1, 3), (2, 1, 4))
    carry_out(image, plan_decommission(image, TWO))
    assert image.brokers[TWO].decommissioning
    carry_out_plan(image, plan_evacuation(image))
    assert evacuation_progress(image, TWO) == decommission.EvacuationProgress(left=3, moving=3)
    assert not list(plan_evacuation(image)), "all that can move is on its way"
    catch_up(image)
    carry_out_plan(image, plan_completions(image))
    assert evacuation_progress(image, TWO) == decommission.EvacuationProgress(left=0, moving=0)
    rows = image.topic("t").partitions
    assert all(len(row.replicas) == 3 and row.leader in row.isr for row in rows)
    assert len({row.replicas[0] for row in rows}) == 3, "leaders are spread"


def test_decommission_is_refused_if_too_few_would_be_left() -> None:
    image = brokers(3)
    create(image, "t", 1, (1, 2, 3), (1, 3, 2))
    with pytest.raises(LogError, match="3 replicas, and only 2 brokers would be left") as raised:
        plan_decommission(image, TWO)
    assert raised.value.entry is ILLEGAL_STATE
    with pytest.raises(LogError) as raised:
        plan_decommission(image, BrokerId(9))
    assert raised.value.entry is NOT_FOUND
    register(image, 4, fenced=True)
    plan_decommission(image, TWO)
    alter_broker(image, 4, decommissioning=True)
    with pytest.raises(LogError, match="only 2 brokers"):
        plan_decommission(image, TWO)


def test_broker_that_will_hold_nothing_anyway_can_be_decommissioned() -> None:
    image = brokers(3)
    create(image, "t", 1, (1, 2, 3))
    set_row(image, "t", removing=ids(2))
    alter_broker(image, 3, decommissioning=True)
    carry_out(image, plan_decommission(image, TWO))
    carry_out(image, plan_decommission(image, TWO))


def test_evacuation_waits_until_others_are_available() -> None:
    image = brokers(3)
    create(image, "t", 1, (1, 2))
    fence(image, 3)
    carry_out(image, plan_decommission(image, TWO))
    assert not list(plan_evacuation(image))
    register(image, 3, incarnation="second")
    carry_out_plan(image, plan_evacuation(image))
    assert image.partition("t", 0).replicas == (1, 3, 2)


def test_some_partitions_move_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decommission, "MOVES_AT_ONCE_MAX", 3)
    image = brokers()
    create(image, "t", 1, *[(2, 1)] * 4)
    create(image, "u", 2, *[(1, 2)] * 4)
    alter_broker(image, 2, decommissioning=True)
    left = [8]
    while left[-1]:
        carry_out_plan(image, plan_evacuation(image))
        assert evacuation_progress(image, TWO).moving <= 3
        catch_up(image)
        carry_out_plan(image, plan_completions(image))
        left.append(evacuation_progress(image, TWO).left)
    assert left == [8, 5, 2, 0]


def test_reassignment_to_a_broker_that_is_to_leave_is_redirected() -> None:
    image = brokers()
    create(image, "t", 1, (1, 3))
    carry_out(image, plan_reassignment(image, name="t", partition=0, replicas=ids(1, 2)))
    alter_broker(image, 2, decommissioning=True)
    carry_out_plan(image, plan_evacuation(image))
    row = image.partition("t", 0)
    assert 2 not in target_of(row) and 2 in row.removing
    assert len(target_of(row)) == 2


def test_cancelled_decommission_leaves_what_has_not_moved() -> None:
    image = brokers()
    create(image, "t", 1, (2, 1), (1, 2), (2, 3))
    alter_broker(image, 2, decommissioning=True)
    carry_out_plan(image, plan_evacuation(image))
    row = image.partition("t", 0)
    set_row(image, "t", 0, isr=row.replicas, elr=())
    carry_out_plan(image, plan_completions(image))
    moved = image.partition("t", 0)
    assert 2 not in moved.replicas
    carry_out_plan(image, plan_recommission(image, TWO))
    assert not image.brokers[TWO].decommissioning
    assert image.partition("t", 0) == moved
    assert [{*row.replicas} for row in image.topic("t").partitions[1:]] == [{1, 2}, {2, 3}]
    assert all(not row.adding and not row.removing for row in image.topic("t").partitions)
    assert not list(plan_recommission(image, TWO)), "it may be asked for twice"
    with pytest.raises(LogError):
        plan_recommission(image, BrokerId(9))


def test_requests_outlast_starts_and_end_with_the_registration() -> None:
    image = brokers()
    for wanted in (True, True):
        carry_out(image, plan_maintenance(image, TWO, wanted=wanted))
    alter_broker(image, 2, decommissioning=True)
    register(image, 2, incarnation="second")
    broker = image.brokers[TWO]
    assert broker.maintenance and broker.decommissioning
    assert broker.is_available and not broker.may_hold
    carry_out(image, plan_maintenance(image, TWO, wanted=False))
    assert not image.brokers[TWO].maintenance and image.brokers[TWO].decommissioning
    with pytest.raises(LogError) as raised:
        plan_maintenance(image, BrokerId(9), wanted=True)
    assert raised.value.entry is NOT_FOUND


def test_command_that_an_older_node_does_not_know_is_not_proposed() -> None:
    image = brokers()
    image.brokers[BrokerId(3)] = replace(image.brokers[BrokerId(3)], command_version=1)
    with pytest.raises(LogError, match="Node 3 runs an older release") as raised:
        plan_maintenance(image, TWO, wanted=True)
    assert raised.value.entry is ILLEGAL_STATE


@settings(max_examples=examples(150), deadline=None)
@given(cluster_images(), st.data())
def test_evacuation_from_any_state_ends_with_empty_brokers_or_too_few_others(
    image: MetadataImage, data: st.DataObject
) -> None:
    leaving = {b for b, broker in image.brokers.items() if broker.decommissioning}
    factors = {
        (topic.topic_id, row.partition): len(target_of(row))
        for topic in image.topics_by_id.values()
        for row in topic.partitions
    }
    carry_out_plan(image, plan_evacuation(image))
    assert not list(plan_evacuation(image)), "settles in one round"
    able = {b for b, broker in image.brokers.items() if broker.may_hold}
    for topic in image.topics_by_id.values():
        for row in topic.partitions:
            target = target_of(row)
            assert len(target) == factors[topic.topic_id, row.partition]
            if leaving & {*target}:
                assert len(able - {*target}) < len(leaving & {*target})
    cancelled = BrokerId(data.draw(st.sampled_from(BROKER_NUMBERS)))
    before = {
        topic.topic_id: [row.leader for row in topic.partitions]
        for topic in image.topics_by_id.values()
    }
    carry_out_plan(image, plan_recommission(image, cancelled))
    for topic in image.topics_by_id.values():
        for row, leader in zip(topic.partitions, before[topic.topic_id], strict=True):
            assert row.leader != NO_LEADER_ID or leader == NO_LEADER_ID
