"""The admin APIs: each at its oldest and its newest version, with an error for each item."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from raftlog.broker.authorize import Operation, Principal, Resource
from raftlog.kafka.handlers import configs, topics
from raftlog.kafka.messages import (
    alter_configs,
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
    incremental_alter_configs,
    list_config_resources,
    list_offsets,
    list_partition_reassignments,
    offset_for_leader_epoch,
    produce,
)
from raftlog.metadata.commands import ChangePartitions, PartitionChange
from raftlog.record.errors import FORBIDDEN, LogError
from raftlog.record.types import BrokerId, LeaderEpoch, Offset
from tests.kafka.peers import KafkaNode, RawClient, batch, kafka_node

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


def refusing(*refused: Operation) -> Any:
    def authorize(_principal: Principal, operation: Operation, _resource: Resource) -> None:
        if operation in refused:
            raise LogError(FORBIDDEN)

    return authorize


# Topics


def created(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    replicas: tuple[tuple[int, ...], ...] = (),
    **values: str | None,
) -> create_topics.CreatableTopic:
    return create_topics.CreatableTopic(
        name,
        partitions,
        factor,
        tuple(create_topics.CreatableReplicaAssignment(n, ids) for n, ids in enumerate(replicas)),
        tuple(
            create_topics.CreatableTopicConfig(key.replace("_", "."), value)
            for key, value in values.items()
        ),
    )


@pytest.mark.parametrize("version", [2, 4, 5, 7])
async def test_topics_are_created_with_an_outcome_each(
    one: KafkaNode, client: RawClient, version: int
) -> None:
    request = create_topics.CreateTopicsRequest(
        (
            created("new", 3, retention_ms="1000"),
            created("defaults", -1, -1),
            created("chosen", -1, -1, ((1,), (1,))),
            created("one"),
            created("no/name"),
            created("none", 0),
            created("wide", 1, 5),
            created("unknown", -1, -1, ((9,),)),
            created("both", 1, 1, ((1,),)),
            created("bad", retention_ms="soon"),
            created("null", retention_ms=None),
            created("twice"),
            created("twice"),
        ),
        TIMEOUT_MS,
    )
    answer = await client.ask(request, version)
    codes = {topic.name: topic.error_code for topic in answer.topics}
    assert codes == {
        "new": 0,
        "defaults": 0,
        "chosen": 0,
        "one": 36,
        "no/name": 17,
        "none": 37,
        "wide": 38,
        "unknown": 39,
        "both": 42,
        "bad": 40,
        "null": 40,
        "twice": 42,
    }
    image = one.node.metadata.image
    assert len(image.topic("new").partitions) == 3
    assert image.topic("new").configs == {"retention.ms": "1000"}
    assert len(image.topic("chosen").partitions) == 2
    new = answer.topics[0]
    if version >= 5:
        assert (new.num_partitions, new.replication_factor) == (3, 1)
        described = {config.name: config for config in new.configs}
        assert (described["retention.ms"].value, described["retention.ms"].config_source) == (
            "1000",
            configs.DYNAMIC_TOPIC,
        )
        assert described["retention.bytes"].config_source == configs.DEFAULT
    if version >= 7:
        assert new.topic_id == image.topic("new").topic_id


async def test_a_topic_is_only_validated_on_request(one: KafkaNode, client: RawClient) -> None:
    request = create_topics.CreateTopicsRequest(
        (created("new", 3), created("one")), TIMEOUT_MS, validate_only=True
    )
    answer = await client.ask(request, 7)
    assert [(topic.error_code, topic.num_partitions) for topic in answer.topics] == [
        (0, 3),
        (36, -1),
    ]
    assert "new" not in one.node.metadata.image.topics_by_name


async def test_a_creator_that_may_not_describe_configs_sees_none() -> None:
    async with (
        kafka_node(authorize=refusing(Operation.DESCRIBE_CONFIGS)) as one,
        one.client() as client,
    ):
        answer = await client.ask(create_topics.CreateTopicsRequest((created("new"),)), 7)
        [topic] = answer.topics
        assert (topic.error_code, topic.topic_config_error_code, topic.configs) == (0, 29, ())


async def test_a_request_whose_time_is_over_says_so(
    one: KafkaNode, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    forever = asyncio.Event()

    async def create_topic(*_: object, **__: object) -> None:
        await forever.wait()

    monkeypatch.setattr(one.node.metadata, "create_topic", create_topic)
    answer = await client.ask(
        create_topics.CreateTopicsRequest((created("a"), created("b")), timeout_ms=20), 2
    )
    assert [topic.error_code for topic in answer.topics] == [7, 7]


@pytest.mark.parametrize("version", [1, 5])
async def test_topics_are_deleted_by_name(one: KafkaNode, client: RawClient, version: int) -> None:
    request = delete_topics.DeleteTopicsRequest(
        topic_names=("six", "missing", "one", "one"), timeout_ms=TIMEOUT_MS
    )
    answer = await client.ask(request, version)
    assert {row.name: row.error_code for row in answer.responses} == {
        "six": 0,
        "missing": 3,
        "one": 42,
    }
    assert list(one.node.metadata.image.topics_by_name) == ["one"]


async def test_topics_are_deleted_by_id(one: KafkaNode, client: RawClient) -> None:
    topic_id = one.node.metadata.image.topic("six").topic_id
    wanted = (
        delete_topics.DeleteTopicState(None, topic_id),
        delete_topics.DeleteTopicState(None, msgspec.convert("f" * 32, type(topic_id))),
        delete_topics.DeleteTopicState("one", topic_id),
    )
    answer = await client.ask(delete_topics.DeleteTopicsRequest(wanted, (), TIMEOUT_MS), 6)
    assert [(row.name, row.error_code) for row in answer.responses] == [
        ("six", 0),
        (None, 100),
        ("one", 42),
    ]


@pytest.mark.parametrize("version", [0, 3])
async def test_topics_grow(three: KafkaNode, version: int) -> None:
    def grown(
        name: str, count: int, *replicas: tuple[int, ...]
    ) -> create_partitions.CreatePartitionsTopic:
        rows = tuple(create_partitions.CreatePartitionsAssignment(ids) for ids in replicas)
        return create_partitions.CreatePartitionsTopic(name, count, rows or None)

    await three.node.metadata.create_topic("wide", partitions=1, replication_factor=2)
    async with three.client() as client:
        request = create_partitions.CreatePartitionsRequest(
            (grown("one", 3), grown("six", 6), grown("missing", 2), grown("wide", 2, (3, 1))),
            TIMEOUT_MS,
        )
        answer = await client.ask(request, version)
        assert {row.name: row.error_code for row in answer.results} == {
            "one": 0,
            "six": 37,
            "missing": 3,
            "wide": 0,
        }
        image = three.node.metadata.image
        assert len(image.topic("one").partitions) == 3
        assert image.topic("wide").partitions[1].replicas == (3, 1)
        for replicas in ((1,),), ((1, 1),), ((1, 9),), ((1, 2), (2, 3)):
            wrong = create_partitions.CreatePartitionsRequest((grown("wide", 3, *replicas),))
            [row] = (await client.ask(wrong, version)).results
            assert row.error_code == 39
        twice = create_partitions.CreatePartitionsRequest((grown("one", 4), grown("one", 5)))
        assert [row.error_code for row in (await client.ask(twice, version)).results] == [42]
        dry = create_partitions.CreatePartitionsRequest(
            (grown("one", 9),), TIMEOUT_MS, validate_only=True
        )
        assert [row.error_code for row in (await client.ask(dry, version)).results] == [0]
        assert len(three.node.metadata.image.topic("one").partitions) == 3


async def test_partitions_are_described_page_by_page(one: KafkaNode, client: RawClient) -> None:
    seen = []
    cursor = None
    while True:
        request = describe_topic_partitions.DescribeTopicPartitionsRequest((), 2, cursor)
        answer = await client.ask(request, 0)
        seen += [
            (topic.name, row.partition_index) for topic in answer.topics for row in topic.partitions
        ]
        if answer.next_cursor is None:
            break
        following = answer.next_cursor
        cursor = describe_topic_partitions.RequestCursor(
            following.topic_name, following.partition_index
        )
    assert seen == [("one", 0), *(("six", number) for number in range(6))]


async def test_unknown_topics_are_described_by_their_errors(
    one: KafkaNode, client: RawClient
) -> None:
    names = tuple(map(describe_topic_partitions.TopicRequest, ("six", "no/name", "missing")))
    answer = await client.ask(
        describe_topic_partitions.DescribeTopicPartitionsRequest(names, 2_000), 0
    )
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("missing", 3),
        ("no/name", 17),
        ("six", 0),
    ]
    six = answer.topics[-1]
    assert (six.topic_id, len(six.partitions)) == (one.node.metadata.image.topic("six").topic_id, 6)
    assert six.topic_authorized_operations == sum(1 << n for n in (3, 4, 5, 6, 7, 8, 10, 11))
    assert (six.partitions[0].leader_id, six.partitions[0].eligible_leader_replicas) == (1, ())


async def test_a_page_of_partitions_is_bounded(
    one: KafkaNode, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "DESCRIBED_PARTITIONS_MAX", 3)
    answer = await client.ask(
        describe_topic_partitions.DescribeTopicPartitionsRequest((), 1_000_000), 0
    )
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("six", 2)


# Records and offsets


async def append(client: RawClient, *values: bytes) -> None:
    data = (produce.PartitionProduceData(0, batch(*values)),)
    request = produce.ProduceRequest(
        None, -1, TIMEOUT_MS, (produce.TopicProduceData("one", None, data),)
    )
    answer = await client.ask(request, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("version", [0, 2])
async def test_records_are_deleted(client: RawClient, version: int) -> None:
    def deletion(*offsets: tuple[str, int, int]) -> delete_records.DeleteRecordsRequest:
        return delete_records.DeleteRecordsRequest(
            tuple(
                delete_records.DeleteRecordsTopic(
                    name, (delete_records.DeleteRecordsPartition(number, offset),)
                )
                for name, number, offset in offsets
            ),
            TIMEOUT_MS,
        )

    await append(client, b"a", b"b", b"c")
    answer = await client.ask(
        deletion(("one", 0, 2), ("one", 7, 0), ("missing", 0, 0), ("six", 0, 5)), version
    )
    rows = [topic.partitions[0] for topic in answer.topics]
    assert [(row.error_code, row.low_watermark) for row in rows] == [
        (0, 2),
        (3, -1),
        (3, -1),
        (1, -1),
    ]
    [topic] = (await client.ask(deletion(("one", 0, -1)), version)).topics
    assert topic.partitions[0].low_watermark == 3


@pytest.mark.parametrize("version", [2, 4])
async def test_leader_epochs_end_where_the_next_begins(
    one: KafkaNode, client: RawClient, version: int
) -> None:
    async def end_of(
        epoch: int, current: int = -1, topic: str = "one", number: int = 0
    ) -> tuple[int, int, int]:
        row = offset_for_leader_epoch.OffsetForLeaderPartition(number, current, epoch)
        request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            -1, (offset_for_leader_epoch.OffsetForLeaderTopic(topic, (row,)),)
        )
        found = (await client.ask(request, version)).topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    known = one.node.metadata.image.partition("one", 0).leader_epoch
    await append(client, b"a", b"b")
    history = one.node.log().leader_epochs
    history.assign(LeaderEpoch(known + 3), Offset(2))
    end = one.node.log().log_end_offset
    assert await end_of(known) == (0, known, 2)
    assert await end_of(known + 2) == (0, known, 2)
    assert await end_of(known + 3) == (0, known + 3, end)
    assert await end_of(known + 9) == (0, -1, -1)
    assert await end_of(known, known) == (0, known, 2)
    assert await end_of(known, known + 1) == (75, -1, -1)
    if known:
        assert await end_of(known, known - 1) == (74, -1, -1)
    assert await end_of(0, topic="missing") == (3, -1, -1)
    assert await end_of(0, number=4) == (3, -1, -1)


async def test_the_newest_record_is_that_of_the_largest_timestamp(client: RawClient) -> None:
    async def newest(topic: str) -> Any:
        row = list_offsets.ListOffsetsPartition(0, timestamp=-3)
        request = list_offsets.ListOffsetsRequest(
            topics=(list_offsets.ListOffsetsTopic(topic, (row,)),)
        )
        found = (await client.ask(request, 7)).topics[0].partitions[0]
        return found.error_code, found.offset, found.timestamp

    await append(client, b"a", b"b", b"c")
    # Of older records.
    await append(client, b"d")
    assert await newest("one") == (0, 2, 1_700_000_000_002)
    assert await newest("six") == (0, -1, -1)
    assert await newest("missing") == (3, -1, -1)


# Configs


def described(*resources: tuple[int, str], keys: Any = None, **options: bool) -> Any:
    return describe_configs.DescribeConfigsRequest(
        tuple(
            describe_configs.DescribeConfigsResource(kind, name, keys) for kind, name in resources
        ),
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
        (BROKER, "1"),
        (BROKER, ""),
        (BROKER, "x"),
        (8, "1"),
        keys=("retention.ms", "group.max.size", "no.such"),
    )
    results = (await client.ask(request, version)).results
    assert [row.error_code for row in results] == [0, 3, 0, 0, 42, 42]
    found = [{config.name: config.value for config in row.configs} for row in results]
    both = {"group.max.size": "7", "retention.ms": "6"}
    assert found == [{"retention.ms": "6"}, {}, both, both, {}, {}]
    assert not results[0].configs[0].synonyms


async def test_an_answer_of_configs_is_bounded(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "DESCRIBED_MAX", 1)
    monkeypatch.setattr(configs, "CONFIGS_PER_TURN", 1)
    results = (await client.ask(described((TOPIC, "one"), (TOPIC, "six")), 4)).results
    assert [row.error_code for row in results] == [0, 42]


def changed(kind: int, name: str, *changes: tuple[str, int, str | None]) -> Any:
    return incremental_alter_configs.AlterConfigsResource(
        kind,
        name,
        tuple(incremental_alter_configs.AlterableConfig(*change) for change in changes),
    )


def incremental(*resources: Any, validate_only: bool = False) -> Any:
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources, validate_only)


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


@pytest.mark.parametrize("version", [0, 2])
async def test_configs_are_replaced_as_a_whole(
    one: KafkaNode, client: RawClient, version: int
) -> None:
    def whole(kind: int, name: str, *values: tuple[str, str | None]) -> Any:
        return alter_configs.AlterConfigsResource(
            kind, name, tuple(alter_configs.AlterableConfig(*value) for value in values)
        )

    metadata = one.node.metadata
    await metadata.alter_configs("one", {"retention.ms": "5", "segment.ms": "6"})
    await metadata.alter_cluster_settings({"retention.ms": "6", "group.max.size": "7"})
    request = alter_configs.AlterConfigsRequest(
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
    request = list_config_resources.ListConfigResourcesRequest()
    assert (await client.ask(request, 0)).config_resources == ()
    found = (await client.ask(request, 1)).config_resources
    assert [(row.resource_type, row.resource_name) for row in found] == [
        (TOPIC, "one"),
        (TOPIC, "six"),
        (BROKER, "1"),
    ]
    of_brokers = list_config_resources.ListConfigResourcesRequest((BROKER,))
    assert len((await client.ask(of_brokers, 1)).config_resources) == 1
    unknown = list_config_resources.ListConfigResourcesRequest((99,))
    assert (await client.ask(unknown, 1)).error_code == 35


# The cluster


@pytest.mark.parametrize("version", [0, 2])
async def test_the_cluster_is_described(three: KafkaNode, version: int) -> None:
    three.node.metadata.register(4, kafka_port=4)
    three.node.metadata.register(5)
    three.node.metadata.unfence(5)
    details = {"include_fenced_brokers": True} if version else {}
    async with three.client() as client:
        answer = await client.ask(
            describe_cluster.DescribeClusterRequest(
                include_cluster_authorized_operations=True, **details
            ),
            version,
        )
        assert (answer.cluster_id, answer.controller_id) == ("fake-cluster", 1)
        ids = [row.broker_id for row in answer.brokers]
        assert ids == ([1, 2, 3, 4] if version else [1, 2, 3])
        assert answer.brokers[0].port == three.listener.port
        assert answer.cluster_authorized_operations & (1 << 8)
        if version:
            assert [row.is_fenced for row in answer.brokers] == [False, False, False, True]
            wrong = describe_cluster.DescribeClusterRequest(endpoint_type=2)
            assert (await client.ask(wrong, 1)).error_code == 114


async def moved_away(three: KafkaNode) -> None:
    """Topic `led`: its partition 0 is led by broker 2, its partition 1 by no broker."""
    metadata = three.node.metadata
    rows = tuple(tuple(map(BrokerId, ids)) for ids in ((1, 2), (2, 1), (3, 1)))
    await metadata.create_topic("led", assignments=rows)
    await metadata.operations.transfer_leader("led", 0, BrokerId(2))
    topic = metadata.image.topic("led")
    row = topic.partitions[1]
    metadata.run(
        ChangePartitions(
            changes=(
                PartitionChange(
                    topic_id=topic.topic_id,
                    partition=row.partition,
                    partition_epoch=row.partition_epoch,
                    leader=BrokerId(-1),
                ),
            )
        )
    )


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_preferred_leaders_are_elected(three: KafkaNode, version: int) -> None:
    await moved_away(three)
    async with three.client() as client:
        wanted = (
            elect_leaders.TopicPartitions("led", (0, 1, 2, 9)),
            elect_leaders.TopicPartitions("missing", (0,)),
        )
        answer = await client.ask(elect_leaders.ElectLeadersRequest(0, wanted, TIMEOUT_MS), version)
        codes = {
            (topic.topic, row.partition_id): row.error_code
            for topic in answer.replica_election_results
            for row in topic.partition_result
        }
        assert codes == {
            ("led", 0): 0,
            ("led", 1): 80,
            ("led", 2): 84,
            ("led", 9): 3,
            ("missing", 0): 3,
        }
        assert three.node.metadata.image.partition("led", 0).leader == 1


@pytest.mark.parametrize("version", [1, 2])
async def test_leaders_are_elected_unclean_only_where_there_is_none(
    three: KafkaNode, version: int
) -> None:
    await moved_away(three)
    async with three.client() as client:
        wanted = (elect_leaders.TopicPartitions("led", (0, 1)),)
        answer = await client.ask(elect_leaders.ElectLeadersRequest(1, wanted), version)
        [topic] = answer.replica_election_results
        assert [row.error_code for row in topic.partition_result] == [84, 0]
        unknown = elect_leaders.ElectLeadersRequest(7, wanted)
        assert (await client.ask(unknown, version)).error_code == 42


async def test_all_leaders_are_elected(three: KafkaNode) -> None:
    await moved_away(three)
    async with three.client() as client:
        request = elect_leaders.ElectLeadersRequest(0, None, TIMEOUT_MS)
        [topic] = (await client.ask(request, 2)).replica_election_results
        assert [(row.partition_id, row.error_code) for row in topic.partition_result] == [
            (0, 0),
            (1, 80),
        ]


async def test_what_needs_a_right_of_the_cluster_is_refused_with_its_code() -> None:
    refused = refusing(
        Operation.ALTER, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
    )
    wanted = (elect_leaders.TopicPartitions("one", (0,)),)
    async with kafka_node(authorize=refused) as one, one.client() as client:
        answer = await client.ask(elect_leaders.ElectLeadersRequest(0, wanted), 0)
        assert answer.replica_election_results[0].partition_result[0].error_code == 31
        for request, version in (
            (elect_leaders.ElectLeadersRequest(0, None), 2),
            (alter_partition_reassignments.AlterPartitionReassignmentsRequest(), 1),
            (list_partition_reassignments.ListPartitionReassignmentsRequest(), 0),
            (describe_log_dirs.DescribeLogDirsRequest(), 3),
            (describe_quorum.DescribeQuorumRequest(), 2),
            (list_config_resources.ListConfigResourcesRequest(), 1),
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


def moved(name: str, *partitions: tuple[int, tuple[int, ...] | None]) -> Any:
    return alter_partition_reassignments.ReassignableTopic(
        name,
        tuple(alter_partition_reassignments.ReassignablePartition(*one) for one in partitions),
    )


@pytest.mark.parametrize("version", [0, 1])
async def test_partitions_are_moved_listed_and_kept(three: KafkaNode, version: int) -> None:
    rows = tuple((BrokerId(1), BrokerId(2)) for _ in range(4))
    await three.node.metadata.create_topic("m", assignments=rows)
    message = alter_partition_reassignments.AlterPartitionReassignmentsRequest
    async with three.client() as client:

        async def alter(*topics: Any, **options: bool) -> dict[tuple[str, int], int]:
            answer = await client.ask(
                message(timeout_ms=TIMEOUT_MS, topics=topics, **options), version
            )
            assert answer.error_code == 0
            return {
                (topic.name, row.partition_index): row.error_code
                for topic in answer.responses
                for row in topic.partitions
            }

        async def listed(topics: Any = None) -> list[tuple[str, int, tuple[int, ...]]]:
            request = list_partition_reassignments.ListPartitionReassignmentsRequest(
                TIMEOUT_MS, topics
            )
            answer = await client.ask(request, 0)
            return [
                (topic.name, row.partition_index, row.adding_replicas)
                for topic in answer.topics
                for row in topic.partitions
            ]

        codes = await alter(
            moved("m", (0, (2, 3)), (1, (1, 9)), (2, None), (3, (1, 1)), (8, (1,))),
            moved("missing", (0, (1,)), (1, None)),
            moved("six", (0, (2,)), (0, (3,))),
        )
        assert codes == {
            ("m", 0): 0,
            ("m", 1): 39,
            ("m", 2): 85,
            ("m", 3): 39,
            ("m", 8): 3,
            ("missing", 0): 3,
            ("missing", 1): 3,
            ("six", 0): 42,
        }
        assert await listed() == [("m", 0, (3,))]
        some = list_partition_reassignments.ListPartitionReassignmentsTopics
        assert await listed((some("m", (0, 1)), some("missing", (0,)))) == [("m", 0, (3,))]
        assert await listed((some("m", (1,)),)) == []
        assert await alter(moved("m", (0, None))) == {("m", 0): 0}
        assert await listed() == []
        if version == 1:
            fewer = await alter(moved("m", (1, (1,))), allow_replication_factor_change=False)
            assert fewer == {("m", 1): 38}


async def test_more_partitions_than_a_request_may_name_are_refused() -> None:
    async with kafka_node(partitions_per_request_max=2) as one, one.client() as client:
        wanted = (elect_leaders.TopicPartitions("six", (0, 1, 2)),)
        answer = await client.ask(elect_leaders.ElectLeadersRequest(0, wanted), 2)
        assert answer.error_code == 42
        deletion = delete_records.DeleteRecordsRequest(
            (
                delete_records.DeleteRecordsTopic(
                    "six", tuple(delete_records.DeleteRecordsPartition(n, 0) for n in range(3))
                ),
            ),
            TIMEOUT_MS,
        )
        [topic] = (await client.ask(deletion, 2)).topics
        assert {row.error_code for row in topic.partitions} == {42}


@pytest.mark.parametrize("version", [1, 2, 5])
async def test_replicas_have_sizes(one: KafkaNode, client: RawClient, version: int) -> None:
    six = one.node.metadata.image.topic("six").topic_id
    one.node.services.logs.sizes = {(six, 0): 100, (six, 4): 300, ("gone", 0): 9}
    for topics_wanted, expected in (
        (None, [(0, 100), (4, 300)]),
        ((describe_log_dirs.DescribableLogDirTopic("six", (4, 5)),), [(4, 300)]),
    ):
        answer = await client.ask(describe_log_dirs.DescribeLogDirsRequest(topics_wanted), version)
        [directory] = answer.results
        [topic] = directory.topics
        assert topic.name == "six"
        assert [(row.partition_index, row.partition_size) for row in topic.partitions] == expected
        if version >= 4:
            assert (directory.total_bytes, directory.usable_bytes) == (-1, 1 << 30)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_quorum_is_described(three: KafkaNode, version: int) -> None:
    quorum = three.node.services.quorum
    three.node.services.replicas.opening_count = three.node.services.replicas.open_count = 0
    three.node.services.logs.clock_skew_ms = 0
    quorum.connect(2, match_index=119)
    quorum.connect(9, match_index=3)
    topic = describe_quorum.RequestTopicData
    rows = (describe_quorum.RequestPartitionData(0),)
    request = describe_quorum.DescribeQuorumRequest(
        (topic("__cluster_metadata", rows), topic("one", rows))
    )
    async with three.client() as client:
        answer = await client.ask(request, version)
        metadata, other = (topic.partitions[0] for topic in answer.topics)
        assert other.error_code == 3
        assert (metadata.leader_id, metadata.leader_epoch, metadata.high_watermark) == (1, 7, 120)
        assert [(row.replica_id, row.log_end_offset) for row in metadata.current_voters] == [
            (1, 121),
            (2, 120),
            (3, -1),
        ]
        assert [(row.replica_id, row.log_end_offset) for row in metadata.observers] == [(9, 4)]
        if version >= 1:
            here, near, absent = metadata.current_voters
            assert here.last_caught_up_timestamp >= near.last_caught_up_timestamp > 0
            assert absent.last_fetch_timestamp == -1
            assert metadata.observers[0].last_caught_up_timestamp == -1
        if version >= 2:
            [listener] = answer.nodes[1].listeners
            assert (listener.host, listener.port) == ("10.0.0.2", 8082)
