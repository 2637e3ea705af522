"""Names that begin with `__` are the cluster's: clients read and describe such topics, no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftlog.broker.service import Broker
from raftlog.record.errors import FORBIDDEN, UNKNOWN_TOPIC, LogError
from raftlog.record.types import Offset
from tests.broker.harness import ALICE, BrokerHarness

INTERNAL = "__consumer_offsets"
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
async def test_client_does_not_change_an_internal_topic(what: str, exists: bool) -> None:
    one = await BrokerHarness.start(auto_create_topics=True)
    if exists:
        # Nodes make them by the metadata itself.
        await one.node.metadata.create_topic(INTERNAL, partitions=1)
    index = one.node.metadata.image.applied_index
    with pytest.raises(LogError, match="internal") as refused:
        await REFUSED[what](one.broker, INTERNAL)
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


async def test_one_underscore_is_a_name_like_any_other() -> None:
    one = await BrokerHarness.start(auto_create_topics=True)
    assert (await one.broker.produce.topic(ALICE, "_schemas")).name == "_schemas"
    await one.broker.admin.create_topic(ALICE, "a__b", **NEW)
    with pytest.raises(LogError) as unknown:
        one.broker.admin.topic(ALICE, INTERNAL)
    assert unknown.value.entry is UNKNOWN_TOPIC
