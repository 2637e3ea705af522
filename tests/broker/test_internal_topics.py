"""Internal topics are the cluster's: clients read and describe them, no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftlog.broker.service import Broker
from raftlog.record.coordinators import INTERNAL_TOPICS
from raftlog.record.errors import FORBIDDEN, UNKNOWN_TOPIC, LogError
from raftlog.record.types import Offset
from tests.broker.harness import ALICE, BrokerHarness

INTERNAL = "__consumer_offsets"
ALL = sorted(INTERNAL_TOPICS)
NEW: dict[str, Any] = {"partitions": None, "replication_factor": None, "configs": {}}

REFUSED: dict[str, Callable[[Broker, str], Any]] = {
    "create": lambda broker, name: broker.admin.create_topic(ALICE, name, **NEW),
    "validate": lambda broker, name: broker.admin.create_topic(
        ALICE, name, **NEW, validate_only=True
    ),
    "delete": lambda broker, name: broker.admin.delete_topic(ALICE, name),
    "add partitions": lambda broker, name: broker.admin.add_partitions(ALICE, name, 9),
    "alter configs": lambda broker, name: broker.admin.alter_configs(
        ALICE, name, {"retention.ms": "1"}
    ),
    "produce": lambda broker, name: broker.produce.topic(ALICE, name),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("internal", ALL)
async def test_client_does_not_change_an_internal_topic(
    what: str, exists: bool, internal: str
) -> None:
    one = await BrokerHarness.start(auto_create_topics=True)
    if exists:
        # Nodes make them by the metadata itself.
        await one.node.metadata.create_topic(internal, partitions=1)
    index = one.node.metadata.image.applied_index
    with pytest.raises(LogError, match="internal") as refused:
        await REFUSED[what](one.broker, internal)
    assert refused.value.entry is FORBIDDEN
    assert one.node.metadata.image.applied_index == index


async def test_client_does_not_delete_records_of_an_internal_topic() -> None:
    one = await BrokerHarness.start()
    await one.node.metadata.create_topic(INTERNAL, partitions=1)
    (refused,) = await one.broker.admin.delete_records(ALICE, [(INTERNAL, 0, Offset(0))])
    assert isinstance(refused, LogError)
    assert refused.entry is FORBIDDEN


async def test_client_describes_an_internal_topic() -> None:
    one = await BrokerHarness.start()
    await one.node.metadata.create_topic(INTERNAL, partitions=1)
    assert one.broker.admin.topic(ALICE, INTERNAL).name == INTERNAL
    assert INTERNAL in [topic.name for topic in one.broker.admin.topics(ALICE)]
    topic, _ = one.broker.admin.describe_configs(ALICE, INTERNAL)
    assert topic.name == INTERNAL


@pytest.mark.parametrize(
    "name",
    [
        "_schemas",
        "a__b",
        "__debezium-heartbeat.server1",
        "__CruiseControlMetrics",
        "__strimzi_store_topic",
        "__consumer_offsets2",
    ],
)
async def test_other_names_with_underscores_are_names_like_any_other(name: str) -> None:
    one = await BrokerHarness.start(auto_create_topics=True)
    assert (await one.broker.produce.topic(ALICE, name)).name == name
    await one.broker.admin.alter_configs(ALICE, name, {"retention.ms": "1"})
    await one.broker.admin.delete_topic(ALICE, name)


async def test_an_internal_topic_that_does_not_exist_is_unknown() -> None:
    one = await BrokerHarness.start(auto_create_topics=True)
    with pytest.raises(LogError) as unknown:
        one.broker.admin.topic(ALICE, INTERNAL)
    assert unknown.value.entry is UNKNOWN_TOPIC
