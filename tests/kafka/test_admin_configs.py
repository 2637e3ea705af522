"""Admin APIs of configs, and rights: oldest and newest versions, an error for each item."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftlog.broker.authorize import Operation
from raftlog.kafka.handlers import configs
from raftlog.kafka.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    TopicPartitions,
)
from raftlog.kafka.messages.configs import (
    AlterConfigsAlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResource,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from tests.kafka.peers import KafkaNode, RawClient, kafka_node, refusing

TIMEOUT_MS = 30_000
TOPIC, BROKER = 2, 4


@pytest.fixture
async def one() -> AsyncIterator[KafkaNode]:
    async with kafka_node() as node:
        yield node


@pytest.fixture
async def client(one: KafkaNode) -> AsyncIterator[RawClient]:
    async with one.client() as client:
        yield client


@pytest.fixture
async def three() -> AsyncIterator[KafkaNode]:
    async with kafka_node(brokers=3) as node:
        yield node


def described(*resources: tuple[int, str], keys: Any = None, **options: bool) -> Any:
    return DescribeConfigsRequest(
        tuple(DescribeConfigsResource(kind, name, keys) for kind, name in resources),
        **options,
    )


@pytest.mark.parametrize("version", [1, 4])
async def test_configs_are_described(one: KafkaNode, client: RawClient, version: int) -> None:
    await one.node.metadata.alter_configs("one", {"retention.ms": "5"})
    await one.node.metadata.alter_cluster_settings({"retention.ms": "6", "segment.ms": "7"})
    details = {"include_documentation": True} if version >= 3 else {}
    request = described((TOPIC, "one"), include_synonyms=True, **details)
    [topic] = (await client.ask(request, version)).results
    by_name = {config.name: config for config in topic.configs}
    retention = by_name["retention.ms"]
    assert (retention.value, retention.config_source) == ("5", configs.DYNAMIC_TOPIC)
    assert [(one.value, one.source) for one in retention.synonyms][:2] == [
        ("5", configs.DYNAMIC_TOPIC),
        ("6", configs.DYNAMIC_DEFAULT_BROKER),
    ]
    assert by_name["segment.ms"].config_source == configs.DYNAMIC_DEFAULT_BROKER
    assert not retention.read_only and not retention.is_sensitive
    if version >= 3:
        assert (retention.config_type, by_name["cleanup.policy"].config_type) == (5, 7)
        assert retention.documentation


@pytest.mark.parametrize("version", [1, 4])
async def test_each_resource_has_an_outcome(
    one: KafkaNode, client: RawClient, version: int
) -> None:
    await one.node.metadata.alter_cluster_settings({"retention.ms": "6", "group.max.size": "7"})
    request = described(
        (TOPIC, "one"),
        (TOPIC, "missing"),
        (TOPIC, "no/name"),
        (BROKER, "1"),
        (BROKER, ""),
        (BROKER, "x"),
        (8, "1"),
        keys=("retention.ms", "group.max.size", "no.such"),
    )
    results = (await client.ask(request, version)).results
    assert [row.error_code for row in results] == [0, 3, 17, 0, 0, 42, 42]
    found = [{config.name: config.value for config in row.configs} for row in results]
    both = {"group.max.size": "7", "retention.ms": "6"}
    assert found == [{"retention.ms": "6"}, {}, {}, both, both, {}, {}]
    assert not results[0].configs[0].synonyms


async def test_an_answer_of_configs_is_bounded(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "DESCRIBED_MAX", 1)
    results = (await client.ask(described((TOPIC, "one"), (TOPIC, "six")), 4)).results
    assert [row.error_code for row in results] == [0, 42]


def changed(kind: int, name: str, *changes: tuple[str, int, str | None]) -> Any:
    return IncrementalAlterConfigsAlterConfigsResource(
        kind,
        name,
        tuple(IncrementalAlterConfigsAlterableConfig(*change) for change in changes),
    )


def incremental(*resources: Any, validate_only: bool = False) -> Any:
    return IncrementalAlterConfigsRequest(resources, validate_only)


class ComparedName(str):
    """A name of a config that counts the comparisons with others."""

    __slots__ = ()
    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        ComparedName.comparisons += 1
        return str.__eq__(self, other)


async def test_a_removal_is_not_compared_with_all_others(one: KafkaNode) -> None:
    """9,900 removals held the event loop for 1.2 s."""
    removals = [
        IncrementalAlterConfigsAlterableConfig(ComparedName(number), configs.DELETE)
        for number in range(900)
    ]
    call: Any = SimpleNamespace(broker=one.broker)
    change = configs._change_of(call, TOPIC, "one", removals)
    assert list(change.removals) == [str(number) for number in range(900)]
    assert ComparedName.comparisons < 10_000


@pytest.mark.parametrize("version", [0, 1])
async def test_configs_are_changed_one_by_one(
    one: KafkaNode, client: RawClient, version: int
) -> None:
    async def change(*changes: tuple[str, int, str | None], **options: bool) -> int:
        answer = await client.ask(incremental(changed(TOPIC, "one", *changes), **options), version)
        code: int = answer.responses[0].error_code
        return code

    def own() -> dict[str, str]:
        return dict(one.node.metadata.image.topic("one").configs)

    assert await change(("retention.ms", 0, "5"), ("segment.ms", 0, "6")) == 0
    assert await change(("retention.ms", 1, None), ("cleanup.policy", 2, "compact")) == 0
    assert own() == {"segment.ms": "6", "cleanup.policy": "compact,delete"}
    assert await change(("cleanup.policy", 3, "delete")) == 0
    assert own() == {"segment.ms": "6", "cleanup.policy": "compact"}
    assert await change(("segment.ms", 0, "7"), validate_only=True) == 0
    assert await change(("segment.ms", 0, "x"), validate_only=True) == 40
    assert await change(("segment.ms", 2, "7")) == 40
    assert await change(("segment.ms", 0, None)) == 42
    assert await change(("segment.ms", 9, "7")) == 42
    assert await change(("segment.ms", 0, "7"), ("segment.ms", 1, None)) == 42
    assert await change(("cleanup.policy", 3, "compact")) == 40
    assert own() == {"segment.ms": "6", "cleanup.policy": "compact"}


@pytest.mark.parametrize("version", [0, 1])
async def test_broker_configs_are_changed_for_all_brokers(
    one: KafkaNode, client: RawClient, version: int
) -> None:
    setting = ("group.max.size", 0, "7")
    request = incremental(
        changed(BROKER, "", setting, ("cleanup.policy", 2, "compact")),
        changed(BROKER, "1", setting),
        changed(BROKER, "9", setting),
        changed(8, "1", setting),
        changed(TOPIC, "missing", ("retention.ms", 0, "5")),
        changed(TOPIC, "six", ("retention.ms", 0, "5")),
        changed(TOPIC, "six", ("retention.ms", 0, "6")),
    )
    responses = (await client.ask(request, version)).responses
    assert [row.error_code for row in responses] == [0, 42, 42, 42, 3, 42]
    assert one.node.metadata.image.cluster_settings == {
        "group.max.size": "7",
        "cleanup.policy": "compact,delete",
    }


async def test_configs_that_one_broker_never_had_are_removed(
    one: KafkaNode, client: RawClient
) -> None:
    """`kafka-reassign-partitions.sh --verify` clears throttles of each broker, set or not."""
    await one.node.metadata.alter_cluster_settings({"group.max.size": "7"})
    throttle = ("leader.replication.throttled.rate", 1, None)
    request = incremental(
        changed(BROKER, "1", throttle, ("group.max.size", 1, None)),
        changed(BROKER, "9", throttle),
    )
    responses = (await client.ask(request, 1)).responses
    assert [row.error_code for row in responses] == [0, 42]
    one_set = incremental(changed(BROKER, "1", throttle, ("group.max.size", 0, "8")))
    assert [row.error_code for row in (await client.ask(one_set, 1)).responses] == [42]
    assert one.node.metadata.image.cluster_settings == {"group.max.size": "7"}


@pytest.mark.parametrize("version", [0, 2])
async def test_configs_are_replaced_as_a_whole(
    one: KafkaNode, client: RawClient, version: int
) -> None:
    def whole(kind: int, name: str, *values: tuple[str, str | None]) -> Any:
        return AlterConfigsResource(
            kind, name, tuple(AlterConfigsAlterableConfig(*value) for value in values)
        )

    metadata = one.node.metadata
    await metadata.alter_configs("one", {"retention.ms": "5", "segment.ms": "6"})
    await metadata.alter_cluster_settings({"retention.ms": "6", "group.max.size": "7"})
    request = AlterConfigsRequest(
        (
            whole(TOPIC, "one", ("segment.ms", "7"), ("flush", "async")),
            whole(TOPIC, "six", ("segment.ms", None)),
            whole(TOPIC, "missing"),
            whole(BROKER, "", ("group.max.size", "8")),
            whole(BROKER, "1"),
        )
    )
    for validate_only in (True, False):
        asked = msgspec.structs.replace(request, validate_only=validate_only)
        responses = (await client.ask(asked, version)).responses
        assert [row.error_code for row in responses] == [0, 42, 3, 0, 42]
        is_done = "flush" in metadata.image.topic("one").configs
        assert is_done is not validate_only
    assert metadata.image.topic("one").configs == {"segment.ms": "7", "flush": "async"}
    assert metadata.image.cluster_settings == {"group.max.size": "8"}


async def test_config_resources_are_listed(client: RawClient) -> None:
    request = ListConfigResourcesRequest()
    assert (await client.ask(request, 0)).config_resources == ()
    found = (await client.ask(request, 1)).config_resources
    assert [(row.resource_type, row.resource_name) for row in found] == [
        (TOPIC, "one"),
        (TOPIC, "six"),
        (BROKER, "1"),
    ]
    of_brokers = ListConfigResourcesRequest((BROKER,))
    assert len((await client.ask(of_brokers, 1)).config_resources) == 1
    unknown = ListConfigResourcesRequest((99,))
    assert (await client.ask(unknown, 1)).error_code == 35


async def test_what_needs_a_right_of_the_cluster_is_refused_with_its_code() -> None:
    refused = refusing(
        Operation.ALTER, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
    )
    wanted = (TopicPartitions("one", (0,)),)
    async with kafka_node(authorize=refused) as one, one.client() as client:
        answer = await client.ask(ElectLeadersRequest(0, wanted), 0)
        assert answer.replica_election_results[0].partition_result[0].error_code == 31
        for request, version in (
            (ElectLeadersRequest(0, None), 2),
            (AlterPartitionReassignmentsRequest(), 1),
            (ListPartitionReassignmentsRequest(), 0),
            (DescribeLogDirsRequest(), 3),
            (DescribeQuorumRequest(), 2),
            (ListConfigResourcesRequest(), 1),
        ):
            assert (await client.ask(request, version)).error_code == 31, request
        changes = incremental(
            changed(TOPIC, "one", ("segment.ms", 0, "5")),
            changed(BROKER, "", ("segment.ms", 0, "5")),
        )
        assert [row.error_code for row in (await client.ask(changes, 1)).responses] == [29, 31]
        assert [
            row.error_code
            for row in (await client.ask(described((TOPIC, "one"), (BROKER, "1")), 4)).results
        ] == [29, 31]
