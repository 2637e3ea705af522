"""Leaders and replicas of many partitions: rights, bounds, and an outcome for each partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftlog.broker.placement import PlacementService
from raftlog.metadata.decisions.reassignment import Move
from raftlog.record.errors import (
    FORBIDDEN,
    ILLEGAL_STATE,
    INVALID_BODY,
    INVALID_PARTITIONS,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.record.types import BrokerId
from tests.broker.harness import ALICE, CLUSTER, BrokerHarness, Operation
from tests.http.fakes import FakeNode

KAFKA_CLUSTER = "kafka-cluster"

OPERATIONS: list[tuple[Callable[[PlacementService], Any], Operation]] = [
    (lambda one: one.elect_leaders(ALICE, None, unclean=False), Operation.ALTER),
    (lambda one: one.elect_leaders(ALICE, [("t", 0)], unclean=True), Operation.ALTER),
    (lambda one: one.reassign_each(ALICE, [Move("t", 0, (BrokerId(3),))]), Operation.ALTER),
    (lambda one: one.cancel_each(ALICE, [("t", 0)]), Operation.ALTER),
    (lambda one: one.replica_sizes(ALICE), Operation.DESCRIBE),
]


async def node_with_topic() -> BrokerHarness:
    """Topic `t`: three partitions on brokers 1 and 2; broker 2 leads partition 0."""
    node = FakeNode(brokers=3)
    rows = tuple((BrokerId(1), BrokerId(2)) for _ in range(3))
    await node.metadata.create_topic("t", assignments=rows)
    await node.metadata.operations.transfer_leader("t", 0, BrokerId(2))
    return BrokerHarness(node, partitions_per_request_max=4)


@pytest.mark.parametrize(("call", "operation"), OPERATIONS)
async def test_operation_needs_its_right_and_a_refused_one_changes_nothing(
    call: Callable[[PlacementService], Any], operation: Operation
) -> None:
    one = await node_with_topic()
    one.refuse(operation, KAFKA_CLUSTER)
    index = one.node.metadata.image.applied_index
    with pytest.raises(LogError) as caught:
        result = call(one.broker.placement)
        if hasattr(result, "__await__"):
            await result
    assert caught.value.entry is FORBIDDEN
    assert one.authorizer.taken() == [(operation, CLUSTER, KAFKA_CLUSTER)]
    assert one.node.metadata.image.applied_index == index
    one.authorizer.refused.clear()
    result = call(one.broker.placement)
    if hasattr(result, "__await__"):
        await result


async def test_each_partition_has_the_outcome_of_its_election() -> None:
    one = await node_with_topic()
    wanted = [("t", 0), ("t", 1), ("t", 7), ("none", 0)]
    outcomes = await one.broker.placement.elect_leaders(ALICE, wanted, unclean=False)
    assert [(each.topic, each.partition) for each in outcomes] == wanted
    assert [each.is_needed for each in outcomes] == [True, False, False, False]
    entries = [each.error and each.error.entry for each in outcomes]
    assert entries == [None, None, UNKNOWN_PARTITION, UNKNOWN_TOPIC]
    assert one.node.metadata.image.partition("t", 0).leader == 1
    assert await one.broker.placement.elect_leaders(ALICE, None, unclean=False) == []


async def test_a_preferred_replica_that_cannot_lead_is_reported() -> None:
    one = await node_with_topic()
    one.node.metadata.unwritable.add(BrokerId(1))
    [outcome] = await one.broker.placement.elect_leaders(ALICE, None, unclean=False)
    assert outcome.is_needed
    assert outcome.error is not None
    assert outcome.error.entry is ILLEGAL_STATE
    assert one.node.metadata.image.partition("t", 0).leader == 2


async def test_partitions_that_cannot_move_leave_the_others_alone() -> None:
    one = await node_with_topic()
    moves = [
        Move("t", 0, (BrokerId(3),)),
        Move("t", 1, (BrokerId(9),)),
        Move("t", 9, (BrokerId(1),)),
    ]
    errors = await one.broker.placement.reassign_each(ALICE, moves)
    assert {key: error.entry for key, error in errors.items()} == {
        ("t", 1): INVALID_PARTITIONS,
        ("t", 9): UNKNOWN_PARTITION,
    }
    assert one.node.metadata.image.partition("t", 0).adding == (3,)
    errors = await one.broker.placement.cancel_each(ALICE, [("t", 0), ("t", 1)])
    assert {key: error.entry for key, error in errors.items()} == {("t", 1): ILLEGAL_STATE}
    assert not one.node.metadata.image.partition("t", 0).adding


async def test_partitions_of_one_request_are_bounded() -> None:
    one = await node_with_topic()
    placement = one.broker.placement
    for call in (
        lambda: placement.elect_leaders(ALICE, [("t", 0)] * 5, unclean=False),
        lambda: placement.reassign_each(ALICE, [Move("t", 0, ())] * 5),
        lambda: placement.cancel_each(ALICE, [("t", 0)] * 5),
    ):
        with pytest.raises(LogError) as caught:
            await call()
        assert caught.value.entry is INVALID_BODY
