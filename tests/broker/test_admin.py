"""Administration without a protocol: each operation's right, and its refusal before any effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftlog.broker.admin import AdminService
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
from raftlog.record.types import BrokerId, Offset
from tests.broker.harness import ALICE, CLUSTER, TOPIC, BrokerHarness, Operation
from tests.http.fakes import FakeNode

KAFKA_CLUSTER = "kafka-cluster"
NEW: dict[str, Any] = {"partitions": None, "replication_factor": None, "configs": {}}

OPERATIONS: list[tuple[Callable[[AdminService], Any], Operation, str]] = [
    (lambda admin: admin.topic(ALICE, "t"), Operation.DESCRIBE, "t"),
    (lambda admin: admin.create_topic(ALICE, "new", **NEW), Operation.CREATE, "new"),
    (lambda admin: admin.delete_topic(ALICE, "t"), Operation.DELETE, "t"),
    (lambda admin: admin.add_partitions(ALICE, "t", 2), Operation.ALTER, "t"),
    (lambda admin: admin.describe_configs(ALICE, "t"), Operation.DESCRIBE_CONFIGS, "t"),
    (
        lambda admin: admin.add_partitions(ALICE, "t", 2, validate_only=True),
        Operation.ALTER,
        "t",
    ),
    (lambda admin: admin.config_resources(ALICE), Operation.DESCRIBE_CONFIGS, KAFKA_CLUSTER),
    (lambda admin: admin.broker_configs(ALICE), Operation.DESCRIBE_CONFIGS, KAFKA_CLUSTER),
    (lambda admin: admin.topic_defaults(ALICE), Operation.DESCRIBE_CONFIGS, KAFKA_CLUSTER),
    (
        lambda admin: admin.alter_configs(ALICE, "t", {"retention.ms": "1"}),
        Operation.ALTER_CONFIGS,
        "t",
    ),
    (
        lambda admin: admin.cluster_settings(ALICE, linearizable=True),
        Operation.DESCRIBE_CONFIGS,
        KAFKA_CLUSTER,
    ),
    (
        lambda admin: admin.alter_cluster_settings(ALICE, {"retention.ms": "1"}, []),
        Operation.ALTER_CONFIGS,
        KAFKA_CLUSTER,
    ),
    (
        lambda admin: admin.transfer_leader(ALICE, "t", 0, BrokerId(2), unclean=False),
        Operation.ALTER,
        KAFKA_CLUSTER,
    ),
    (
        lambda admin: admin.reassign(ALICE, [Move("t", 0, (BrokerId(3),))]),
        Operation.ALTER,
        KAFKA_CLUSTER,
    ),
    (lambda admin: list(admin.reassignments(ALICE, None)), Operation.DESCRIBE, KAFKA_CLUSTER),
    (lambda admin: admin.decommission(ALICE, BrokerId(3)), Operation.ALTER, KAFKA_CLUSTER),
    (
        lambda admin: admin.decommission_progress(ALICE, BrokerId(3)),
        Operation.DESCRIBE,
        KAFKA_CLUSTER,
    ),
    (lambda admin: admin.recommission(ALICE, BrokerId(3)), Operation.ALTER, KAFKA_CLUSTER),
    (
        lambda admin: admin.set_maintenance(ALICE, BrokerId(3), wanted=True),
        Operation.ALTER,
        KAFKA_CLUSTER,
    ),
    (lambda admin: admin.membership(ALICE), Operation.DESCRIBE, KAFKA_CLUSTER),
    (lambda admin: admin.add_voter(ALICE, 3), Operation.ALTER, KAFKA_CLUSTER),
    (lambda admin: admin.remove_voter(ALICE, 3), Operation.ALTER, KAFKA_CLUSTER),
    (lambda admin: admin.transfer_controller(ALICE, None), Operation.ALTER, KAFKA_CLUSTER),
    (
        lambda admin: admin.elect_leaders(ALICE, None, unclean=False),
        Operation.ALTER,
        KAFKA_CLUSTER,
    ),
    (
        lambda admin: admin.elect_leaders(ALICE, [("t", 0)], unclean=True),
        Operation.ALTER,
        KAFKA_CLUSTER,
    ),
    (
        lambda admin: admin.reassign_each(ALICE, [Move("t", 0, (BrokerId(3),))]),
        Operation.ALTER,
        KAFKA_CLUSTER,
    ),
    (lambda admin: admin.cancel_each(ALICE, [("t", 0)]), Operation.ALTER, KAFKA_CLUSTER),
    (lambda admin: admin.replica_sizes(ALICE), Operation.DESCRIBE, KAFKA_CLUSTER),
]


async def node_with_topic() -> BrokerHarness:
    node = FakeNode(brokers=3, voters=3)
    await node.metadata.create_topic("t", partitions=1, replication_factor=2)
    return BrokerHarness(node, partitions_per_request_max=2)


@pytest.mark.parametrize(("call", "operation", "name"), OPERATIONS)
async def test_operation_needs_its_right_and_a_refused_one_changes_nothing(
    call: Callable[[AdminService], Any], operation: Operation, name: str
) -> None:
    one = await node_with_topic()
    one.refuse(operation, name)
    index, quorum = one.node.metadata.image.applied_index, list(one.node.quorum.asked)
    with pytest.raises(LogError) as caught:
        result = call(one.broker.admin)
        if hasattr(result, "__await__"):
            await result
    assert caught.value.entry is FORBIDDEN
    kind = CLUSTER if name == KAFKA_CLUSTER else TOPIC
    assert one.authorizer.taken() == [(operation, kind, name)]
    assert (one.node.metadata.image.applied_index, one.node.quorum.asked) == (index, quorum)
    one.authorizer.refused.clear()
    result = call(one.broker.admin)
    if hasattr(result, "__await__"):
        await result


async def test_topics_without_the_right_to_describe_are_not_listed() -> None:
    one = await node_with_topic()
    await one.node.metadata.create_topic("secret")
    one.refuse(Operation.DESCRIBE, "secret")
    assert [topic.name for topic in one.broker.admin.topics(ALICE)] == ["t"]
    found = one.broker.admin.topics_of(ALICE, ["secret", "t", "none"])
    assert {name: topic is not None for name, topic in found.items()} == {
        "secret": False,
        "t": True,
        "none": False,
    }


async def test_records_are_deleted_partition_by_partition() -> None:
    one = await node_with_topic()
    await one.node.metadata.create_topic("kept")
    one.refuse(Operation.DELETE, "kept")
    done, refused = await one.broker.admin.delete_records(
        ALICE, [("t", 0, Offset(40)), ("kept", 0, Offset(40))]
    )
    assert done == 40
    assert isinstance(refused, LogError)
    assert refused.entry is FORBIDDEN
    (unknown,) = await one.broker.admin.delete_records(ALICE, [("none", 0, Offset(1))])
    assert isinstance(unknown, LogError)
    assert unknown.entry is UNKNOWN_TOPIC
    with pytest.raises(LogError) as caught:
        await one.broker.admin.delete_records(ALICE, [("t", 0, Offset(1))] * 3)
    assert caught.value.entry is INVALID_BODY


async def test_validated_topic_is_decided_and_not_created() -> None:
    one = await node_with_topic()
    topic = await one.broker.admin.create_topic(ALICE, "new", **NEW, validate_only=True)
    assert (topic.name, len(topic.partitions)) == ("new", 1)
    assert "new" not in one.node.metadata.image.topics_by_name
    with pytest.raises(LogError):
        await one.broker.admin.create_topic(ALICE, "t", **NEW, validate_only=True)
    await one.broker.admin.alter_configs(ALICE, "t", {"retention.ms": "1"}, validate_only=True)
    assert one.node.metadata.image.topic("t").configs == {}


async def test_brokers_and_controller_need_no_right() -> None:
    one = await node_with_topic()
    assert list(one.broker.admin.brokers()) == [1, 2, 3]
    assert one.broker.admin.controller_id() == 1
    assert one.authorizer.taken() == []


async def node_with_partitions() -> BrokerHarness:
    """Topic `t`: three partitions on brokers 1 and 2; broker 2 leads partition 0."""
    node = FakeNode(brokers=3)
    rows = tuple((BrokerId(1), BrokerId(2)) for _ in range(3))
    await node.metadata.create_topic("t", assignments=rows)
    await node.metadata.operations.transfer_leader("t", 0, BrokerId(2))
    return BrokerHarness(node, partitions_per_request_max=4)


async def test_each_partition_has_the_outcome_of_its_election() -> None:
    one = await node_with_partitions()
    wanted = [("t", 0), ("t", 1), ("t", 7), ("none", 0)]
    outcomes = await one.broker.admin.elect_leaders(ALICE, wanted, unclean=False)
    assert [(each.topic, each.partition) for each in outcomes] == wanted
    assert [each.is_needed for each in outcomes] == [True, False, False, False]
    entries = [each.error and each.error.entry for each in outcomes]
    assert entries == [None, None, UNKNOWN_PARTITION, UNKNOWN_TOPIC]
    assert one.node.metadata.image.partition("t", 0).leader == 1
    assert await one.broker.admin.elect_leaders(ALICE, None, unclean=False) == []


async def test_a_preferred_replica_that_cannot_lead_is_reported() -> None:
    one = await node_with_partitions()
    one.node.metadata.unwritable.add(BrokerId(1))
    [outcome] = await one.broker.admin.elect_leaders(ALICE, None, unclean=False)
    assert outcome.is_needed
    assert outcome.error is not None
    assert outcome.error.entry is ILLEGAL_STATE
    assert one.node.metadata.image.partition("t", 0).leader == 2


async def test_partitions_that_cannot_move_leave_the_others_alone() -> None:
    one = await node_with_partitions()
    moves = [
        Move("t", 0, (BrokerId(3),)),
        Move("t", 1, (BrokerId(9),)),
        Move("t", 9, (BrokerId(1),)),
    ]
    errors = await one.broker.admin.reassign_each(ALICE, moves)
    assert {key: error.entry for key, error in errors.items()} == {
        ("t", 1): INVALID_PARTITIONS,
        ("t", 9): UNKNOWN_PARTITION,
    }
    assert one.node.metadata.image.partition("t", 0).adding == (3,)
    errors = await one.broker.admin.cancel_each(ALICE, [("t", 0), ("t", 1)])
    assert {key: error.entry for key, error in errors.items()} == {("t", 1): ILLEGAL_STATE}
    assert not one.node.metadata.image.partition("t", 0).adding


async def test_partitions_of_one_change_are_bounded() -> None:
    one = await node_with_partitions()
    admin = one.broker.admin
    for call in (
        lambda: admin.elect_leaders(ALICE, [("t", 0)] * 5, unclean=False),
        lambda: admin.reassign_each(ALICE, [Move("t", 0, ())] * 5),
        lambda: admin.cancel_each(ALICE, [("t", 0)] * 5),
    ):
        with pytest.raises(LogError) as caught:
            await call()
        assert caught.value.entry is INVALID_BODY
