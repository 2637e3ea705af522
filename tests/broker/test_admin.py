"""Administration without a protocol: each operation's right, and its refusal before any effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftlog.broker.admin import AdminService
from raftlog.metadata.decisions.reassignment import Move
from raftlog.record.errors import FORBIDDEN, INVALID_BODY, UNKNOWN_TOPIC, LogError
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
