"""Admin APIs of topics and offsets: oldest and newest versions, an error for each item."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from raftlog.broker.authorize import Operation
from raftlog.kafka.handlers import configs, names, topics
from raftlog.kafka.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from raftlog.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from raftlog.kafka.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeTopicPartitionsRequest,
    RequestCursor,
    TopicRequest,
)
from raftlog.record.errors import NO_CONTROLLER, LogError
from raftlog.record.types import LeaderEpoch, Offset
from tests.kafka.peers import KafkaNode, RawClient, batch, kafka_node, refusing

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


def created(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    replicas: tuple[tuple[int, ...], ...] = (),
    **values: str | None,
) -> CreatableTopic:
    return CreatableTopic(
        name,
        partitions,
        factor,
        tuple(CreatableReplicaAssignment(n, ids) for n, ids in enumerate(replicas)),
        tuple(CreatableTopicConfig(key.replace("_", "."), value) for key, value in values.items()),
    )


@pytest.mark.parametrize("version", [2, 4, 5, 7])
async def test_topics_are_created_with_an_outcome_each(
    one: KafkaNode, client: RawClient, version: int
) -> None:
    request = CreateTopicsRequest(
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
            created("col.umn_a"),
            created("col_umn.a"),
            created("__debezium-heartbeat.s"),
            created("__consumer_offsets"),
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
        "col.umn_a": 0,
        "col_umn.a": 17,
        "__debezium-heartbeat.s": 0,
        "__consumer_offsets": 29,
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
    request = CreateTopicsRequest(
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
        answer = await client.ask(CreateTopicsRequest((created("new"),)), 7)
        [topic] = answer.topics
        assert (topic.error_code, topic.topic_config_error_code, topic.configs) == (0, 29, ())


async def test_a_request_whose_time_is_over_says_so(
    one: KafkaNode, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    forever = asyncio.Event()

    async def create_topic(*_: object, **__: object) -> None:
        await forever.wait()

    monkeypatch.setattr(one.node.metadata, "create_topic", create_topic)
    answer = await client.ask(CreateTopicsRequest((created("a"), created("b")), timeout_ms=20), 2)
    assert [topic.error_code for topic in answer.topics] == [7, 7]


async def test_a_change_waits_for_the_next_controller(
    one: KafkaNode, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka's admin client gives up at NOT_CONTROLLER (41)."""
    create, refusals = one.node.metadata.create_topic, 2

    async def create_topic(*arguments: Any, **named: Any) -> Any:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise LogError(NO_CONTROLLER)
        return await create(*arguments, **named)

    monkeypatch.setattr(names, "CONTROLLER_PAUSE_S", 0.01)
    monkeypatch.setattr(one.node.metadata, "create_topic", create_topic)
    answer = await client.ask(CreateTopicsRequest((created("a"),)), 2)
    assert [topic.error_code for topic in answer.topics] == [0]
    refusals = 1 << 30
    answer = await client.ask(CreateTopicsRequest((created("b"),), timeout_ms=50), 2)
    assert [topic.error_code for topic in answer.topics] == [41]
    assert refusals < (1 << 30) - 1


@pytest.mark.parametrize("version", [1, 5])
async def test_topics_are_deleted_by_name(one: KafkaNode, client: RawClient, version: int) -> None:
    request = DeleteTopicsRequest(
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
        DeleteTopicState(None, topic_id),
        DeleteTopicState(None, msgspec.convert("f" * 32, type(topic_id))),
        DeleteTopicState("one", topic_id),
    )
    answer = await client.ask(DeleteTopicsRequest(wanted, (), TIMEOUT_MS), 6)
    assert [(row.name, row.error_code) for row in answer.responses] == [
        ("six", 0),
        (None, 100),
        ("one", 42),
    ]


@pytest.mark.parametrize("version", [0, 3])
async def test_topics_grow(three: KafkaNode, version: int) -> None:
    def grown(name: str, count: int, *replicas: tuple[int, ...]) -> CreatePartitionsTopic:
        rows = tuple(CreatePartitionsAssignment(ids) for ids in replicas)
        return CreatePartitionsTopic(name, count, rows or None)

    await three.node.metadata.create_topic("wide", partitions=1, replication_factor=2)
    async with three.client() as client:
        request = CreatePartitionsRequest(
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
            wrong = CreatePartitionsRequest((grown("wide", 3, *replicas),), TIMEOUT_MS)
            [row] = (await client.ask(wrong, version)).results
            assert row.error_code == 39
        twice = CreatePartitionsRequest((grown("one", 4), grown("one", 5)), TIMEOUT_MS)
        assert [row.error_code for row in (await client.ask(twice, version)).results] == [42]
        dry = CreatePartitionsRequest((grown("one", 9),), TIMEOUT_MS, validate_only=True)
        assert [row.error_code for row in (await client.ask(dry, version)).results] == [0]
        assert len(three.node.metadata.image.topic("one").partitions) == 3


async def test_partitions_are_described_page_by_page(one: KafkaNode, client: RawClient) -> None:
    seen = []
    cursor = None
    while True:
        request = DescribeTopicPartitionsRequest((), 2, cursor)
        answer = await client.ask(request, 0)
        seen += [
            (topic.name, row.partition_index) for topic in answer.topics for row in topic.partitions
        ]
        if answer.next_cursor is None:
            break
        following = answer.next_cursor
        cursor = RequestCursor(following.topic_name, following.partition_index)
    assert seen == [("one", 0), *(("six", number) for number in range(6))]


async def test_unknown_topics_are_described_by_their_errors(
    one: KafkaNode, client: RawClient
) -> None:
    names = tuple(map(TopicRequest, ("six", "no/name", "missing")))
    answer = await client.ask(DescribeTopicPartitionsRequest(names, 2_000), 0)
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
    answer = await client.ask(DescribeTopicPartitionsRequest((), 1_000_000), 0)
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("six", 2)


# Records and offsets


async def append(client: RawClient, *values: bytes) -> None:
    data = (PartitionProduceData(0, batch(*values)),)
    request = ProduceRequest(None, -1, TIMEOUT_MS, (TopicProduceData("one", None, data),))
    answer = await client.ask(request, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("version", [0, 2])
async def test_records_are_deleted(client: RawClient, version: int) -> None:
    def deletion(*offsets: tuple[str, int, int]) -> DeleteRecordsRequest:
        return DeleteRecordsRequest(
            tuple(
                DeleteRecordsTopic(name, (DeleteRecordsPartition(number, offset),))
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
        row = OffsetForLeaderPartition(number, current, epoch)
        request = OffsetForLeaderEpochRequest(-1, (OffsetForLeaderTopic(topic, (row,)),))
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


@pytest.mark.parametrize("version", [3, 4, 7])
async def test_offsets_have_leader_epochs_and_other_epochs_are_refused(
    one: KafkaNode, client: RawClient, version: int
) -> None:
    async def listed(timestamp: int, current: int = -1) -> tuple[int, int, int]:
        row = ListOffsetsPartition(0, current, timestamp)
        request = ListOffsetsRequest(topics=(ListOffsetsTopic("one", (row,)),))
        found = (await client.ask(request, version)).topics[0].partitions[0]
        return found.error_code, found.offset, found.leader_epoch

    known = one.node.metadata.image.partition("one", 0).leader_epoch
    await append(client, b"a", b"b")
    history = one.node.log().leader_epochs
    history.assign(LeaderEpoch(known + 3), Offset(1))
    has_epochs = version >= 4
    older, newer, none = (known, known + 3, -1) if has_epochs else (-1, -1, -1)
    assert await listed(-1) == (0, 2, known if has_epochs else -1)
    assert await listed(-2) == (0, 0, older)
    assert await listed(-3) == (0, 1, newer)
    assert await listed(1_700_000_000_001) == (0, 1, newer)
    assert await listed(1_700_000_000_002) == (0, -1, none)
    if has_epochs:
        for timestamp in (-1, -2, -3, 0):
            assert await listed(timestamp, known) == await listed(timestamp)
            assert await listed(timestamp, known + 1) == (75, -1, -1)
            if known:
                assert await listed(timestamp, known - 1) == (74, -1, -1)


async def test_the_newest_record_is_that_of_the_largest_timestamp(client: RawClient) -> None:
    async def newest(topic: str) -> Any:
        row = ListOffsetsPartition(0, timestamp=-3)
        request = ListOffsetsRequest(topics=(ListOffsetsTopic(topic, (row,)),))
        found = (await client.ask(request, 7)).topics[0].partitions[0]
        return found.error_code, found.offset, found.timestamp

    await append(client, b"a", b"b", b"c")
    # Of older records.
    await append(client, b"d")
    assert await newest("one") == (0, 2, 1_700_000_000_002)
    assert await newest("six") == (0, -1, -1)
    assert await newest("missing") == (3, -1, -1)
