"""Metadata, produce, fetch and offsets: outcomes of partitions, and clients that others wrote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from msgspec.structs import replace

from raftlog.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from raftlog.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from raftlog.kafka.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from raftlog.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from raftlog.kafka.settings import KafkaSettings
from raftlog.record.types import BrokerId, LeaderEpoch, Offset
from tests.kafka.peers import KafkaNode, RawClient, batch, kafka_node

UNKNOWN_ID = "0" * 31 + "1"


@pytest.fixture
async def one() -> AsyncIterator[KafkaNode]:
    async with kafka_node() as node:
        yield node


@pytest.fixture
async def client(one: KafkaNode) -> AsyncIterator[RawClient]:
    async with one.client() as client:
        yield client


def data(topic: str, *partitions: tuple[int, bytes], topic_id: Any = None) -> TopicProduceData:
    rows = tuple(PartitionProduceData(number, records) for number, records in partitions)
    return TopicProduceData(topic, topic_id, rows)


def parts(topic: str, *numbers: int, epoch: int = -1, topic_id: Any = None) -> FetchTopic:
    rows = tuple(FetchPartition(n, epoch, 0, partition_max_bytes=1 << 20) for n in numbers)
    return FetchTopic(topic, topic_id, rows)


def move_leader(one: KafkaNode, leader: int) -> None:
    """Another node leads topic `one`."""
    image = one.node.metadata.image
    topic = image.topics_by_name["one"]
    row = topic.partitions[0]
    row = replace(row, leader=BrokerId(leader), leader_epoch=LeaderEpoch(row.leader_epoch + 1))
    changed = replace(topic, partitions=(row,))
    image.topics_by_name["one"] = image.topics_by_id[topic.topic_id] = changed
    one.node.replicas.here("one", 0)


# Metadata


@pytest.mark.parametrize("version", [0, 1, 4, 8, 9, 13])
async def test_metadata_names_brokers_topics_and_leaders(
    one: KafkaNode, client: RawClient, version: int
) -> None:
    answer = await client.ask(MetadataRequest(None if version else ()), version)
    [broker] = answer.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "127.0.0.1", one.listener.port)
    topics = {topic.name: topic for topic in answer.topics}
    assert sorted(topics) == ["one", "six"]
    assert [row.leader_id for row in topics["six"].partitions] == [1] * 6
    if version:
        assert answer.controller_id == 1


async def test_metadata_of_some_topics_by_name_and_id(one: KafkaNode, client: RawClient) -> None:
    topic_id = one.node.metadata.image.topics_by_name["one"].topic_id
    wanted = (
        MetadataRequestTopic(topic_id, None),
        MetadataRequestTopic(UNKNOWN_ID, None),  # type: ignore[arg-type]
        MetadataRequestTopic(None, "six"),
        MetadataRequestTopic(None, "none"),
    )
    answer = await client.ask(MetadataRequest(wanted, allow_auto_topic_creation=False), 12)
    found = [(topic.error_code, topic.name) for topic in answer.topics]
    assert found == [(0, "one"), (100, None), (0, "six"), (3, "none")]
    for name in ("no such name!", "..", "x" * 250, "m\ufffdl"):
        for may_create in (False, True):
            request = MetadataRequest((MetadataRequestTopic(None, name),), may_create)
            assert [topic.error_code for topic in (await client.ask(request, 12)).topics] == [17]
    assert (await client.ask(MetadataRequest(()), 12)).topics == ()


async def test_metadata_of_an_unknown_id_in_a_version_without_null_names(
    client: RawClient,
) -> None:
    wanted = (MetadataRequestTopic(UNKNOWN_ID, ""),)  # type: ignore[arg-type]
    answer = await client.ask(MetadataRequest(wanted), 10)
    assert [(topic.error_code, topic.name) for topic in answer.topics] == [(100, "")]


async def test_metadata_tells_the_authorized_operations_on_request(client: RawClient) -> None:
    plain = await client.ask(MetadataRequest(None), 8)
    unknown = plain.topics[0].topic_authorized_operations
    assert unknown == plain.cluster_authorized_operations == -(2**31)
    answer = await client.ask(
        MetadataRequest(
            None,
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        ),
        8,
    )
    read, write, describe = 1 << 3, 1 << 4, 1 << 8
    wanted = read | write | describe
    assert all(topic.topic_authorized_operations & wanted == wanted for topic in answer.topics)
    assert answer.cluster_authorized_operations & describe


async def test_a_leader_without_kafka_listener_is_not_there_for_kafka_clients(
    one: KafkaNode, client: RawClient
) -> None:
    brokers = one.node.metadata.image.brokers
    brokers[BrokerId(1)] = replace(brokers[BrokerId(1)], kafka_host=None, kafka_port=None)
    answer = await client.ask(MetadataRequest(None), 12)
    assert answer.brokers == ()
    assert {row.error_code for topic in answer.topics for row in topic.partitions} == {72}


# Produce


async def test_each_partition_of_a_produce_request_has_its_own_outcome(
    one: KafkaNode, client: RawClient
) -> None:
    good, bad = batch(b"x"), bytearray(batch(b"y"))
    bad[-1] ^= 1
    topics = (
        data("six", (0, good), (1, bytes(bad)), (9, good), (2, b""), (3, b"\0" * 70)),
        data("none", (0, good)),
    )
    answer = await client.ask(ProduceRequest(None, -1, 10_000, topics), 9)
    codes = [[row.error_code for row in topic.partition_responses] for topic in answer.responses]
    assert codes == [[0, 2, 3, 87, 87], [3]]
    assert one.node.record_count() == 1


@pytest.mark.parametrize(
    "request_",
    [
        ProduceRequest(None, 7, 10_000, (data("one", (0, batch(b"x"))),)),
        ProduceRequest(None, -1, 10_000, (data("one", (0, batch(b"x")), (0, batch(b"y"))),)),
    ],
    ids=["acks", "twice"],
)
async def test_a_request_that_is_wrong_as_a_whole_writes_nothing(
    one: KafkaNode, client: RawClient, request_: ProduceRequest
) -> None:
    answer = await client.ask(request_, 9)
    assert {row.error_code for row in answer.responses[0].partition_responses} == {42}
    assert not one.node.record_count()


async def test_a_moved_leader_is_named_in_the_answer(one: KafkaNode, client: RawClient) -> None:
    one.node.metadata.register(2)
    brokers = one.node.metadata.image.brokers
    brokers[BrokerId(2)] = replace(brokers[BrokerId(2)], kafka_host="two", kafka_port=9092)
    move_leader(one, 2)
    request = ProduceRequest(None, -1, 10_000, (data("one", (0, batch(b"x"))),))
    answer = await client.ask(request, 10)
    [row] = answer.responses[0].partition_responses
    assert (row.error_code, row.current_leader.leader_id) == (6, 2)
    assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == [
        (2, "two", 9092)
    ]
    assert (await client.ask(request, 9)).responses[0].partition_responses[0].error_code == 6
    topic_id = one.node.metadata.image.topics_by_name["one"].topic_id
    fetched = await client.ask(FetchRequest(topics=(parts("", 0, topic_id=topic_id),)), 16)
    [part] = fetched.responses[0].partitions
    assert (part.error_code, part.current_leader.leader_id) == (6, 2)
    assert [node.host for node in fetched.node_endpoints] == ["two"]


# Fetch


async def test_a_fetch_answers_in_the_order_of_its_request(
    one: KafkaNode, client: RawClient
) -> None:
    topics = (data("six", *((number, batch(b"%d" % number)) for number in range(6))),)
    await client.ask(ProduceRequest(None, -1, 10_000, topics), 9)
    wanted = (parts("six", 5, 0, 9, 3), parts("none", 0), parts("six", 1))
    answer = await client.ask(FetchRequest(topics=wanted), 12)
    assert [topic.topic for topic in answer.responses] == ["six", "none", "six"]
    rows = [row for topic in answer.responses for row in topic.partitions]
    assert [row.partition_index for row in rows] == [5, 0, 9, 3, 0, 1]
    assert [row.error_code for row in rows] == [0, 0, 3, 0, 3, 0]
    assert [bytes(row.records)[-2:-1] for row in rows if not row.error_code] == [
        b"5",
        b"0",
        b"3",
        b"1",
    ]


async def test_a_fetch_by_topic_id_and_without_sessions(one: KafkaNode, client: RawClient) -> None:
    topic_id = one.node.metadata.image.topics_by_name["one"].topic_id
    wanted = (parts("", 0, topic_id=topic_id), parts("", 0, topic_id=UNKNOWN_ID))
    answer = await client.ask(FetchRequest(topics=wanted, session_epoch=0), 13)
    assert answer.session_id == 0
    assert [topic.partitions[0].error_code for topic in answer.responses] == [0, 100]
    assert (await client.ask(FetchRequest(session_id=5, session_epoch=1), 13)).error_code == 70


@pytest.mark.parametrize(("shift", "error_code"), [(-1, 74), (0, 0), (1, 75)])
async def test_a_fetch_names_the_leader_epoch_it_knows(
    one: KafkaNode, client: RawClient, shift: int, error_code: int
) -> None:
    move_leader(one, 1)
    epoch = one.node.metadata.image.topics_by_name["one"].partitions[0].leader_epoch
    answer = await client.ask(FetchRequest(topics=(parts("one", 0, epoch=epoch + shift),)), 12)
    assert answer.responses[0].partitions[0].error_code == error_code


async def test_a_fetch_waits_for_the_first_record(one: KafkaNode, client: RawClient) -> None:
    await client.send(FetchRequest(max_wait_ms=10_000, min_bytes=1, topics=(parts("one", 0),)), 12)
    async with one.client() as other:
        request = ProduceRequest(None, -1, 10_000, (data("one", (0, batch(b"x"))),))
        await other.ask(request, 9)
    _, answer = await client.receive()
    assert answer.responses[0].partitions[0].records


async def test_a_first_batch_comes_whole_though_larger_than_the_bounds(
    one: KafkaNode, client: RawClient
) -> None:
    large = batch(bytes(300_000))
    topics = (data("one", (0, large)), data("six", (0, large)))
    await client.ask(ProduceRequest(None, -1, 10_000, topics), 9)
    answer = await client.ask(
        FetchRequest(max_bytes=10, topics=(parts("one", 0), parts("six", 0))), 12
    )
    sizes = [len(topic.partitions[0].records) for topic in answer.responses]
    assert sizes == [len(large), 0]


@pytest.mark.parametrize("settings", [None, KafkaSettings(gateway=("127.0.0.1", 1))])
@pytest.mark.parametrize("partition_max_bytes", [0, 1])
async def test_a_first_batch_comes_whole_without_bytes_for_the_partition(
    partition_max_bytes: int, settings: KafkaSettings | None
) -> None:
    async with kafka_node(settings) as one, one.client() as client:
        await client.ask(ProduceRequest(None, -1, 10_000, (data("one", (0, batch(b"x"))),)), 9)
        part = FetchPartition(0, fetch_offset=0, partition_max_bytes=partition_max_bytes)
        request = FetchRequest(
            max_wait_ms=0, max_bytes=0, topics=(FetchTopic("one", None, (part,)),)
        )
        answer = await client.ask(request, 12)
        assert len(answer.responses[0].partitions[0].records) == len(batch(b"x"))


# Offsets


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [(-1, 2), (-2, 0), (-4, 0), (0, 0), (1_700_000_000_001, 1), (1_700_000_000_002, -1)],
)
async def test_offsets_by_time_and_at_the_ends(
    client: RawClient, timestamp: int, offset: int
) -> None:
    request = ProduceRequest(None, -1, 10_000, (data("one", (0, batch(b"x", b"y"))),))
    await client.ask(request, 9)
    wanted = (
        ListOffsetsTopic("one", (ListOffsetsPartition(0, timestamp=timestamp),)),
        ListOffsetsTopic("none", (ListOffsetsPartition(0, timestamp=timestamp),)),
    )
    answer = await client.ask(ListOffsetsRequest(topics=wanted), 7)
    rows = [topic.partitions[0] for topic in answer.topics]
    assert [(row.error_code, row.offset) for row in rows] == [(0, offset), (3, -1)]


@pytest.mark.parametrize("gateway", [None, ("127.0.0.1", 1)])
async def test_offsets_of_committed_readers_end_at_the_last_stable_offset(
    gateway: tuple[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kafka_node(KafkaSettings(gateway=gateway)) as one, one.client() as client:
        request = ProduceRequest(None, -1, 10_000, (data("one", (0, batch(b"x", b"y", b"z"))),))
        await client.ask(request, 9)
        # An open transaction begins at offset 1.
        monkeypatch.setattr(one.node.log(), "last_stable_offset", lambda _: Offset(1))

        async def listed(isolation: int) -> list[int]:
            found = []
            for timestamp in (0, 1_700_000_000_001, -3, -1):
                row = ListOffsetsPartition(0, timestamp=timestamp)
                request = ListOffsetsRequest(-1, isolation, (ListOffsetsTopic("one", (row,)),))
                answer = await client.ask(request, 7)
                found.append(answer.topics[0].partitions[0].offset)
            return found

        assert await listed(0) == [0, 1, 2, 3]
        assert await listed(1) == [0, -1, 0, 1]


# Clients that others wrote


@pytest.mark.parametrize("compression", [None, "gzip", "lz4"])
async def test_aiokafka_writes_and_reads(one: KafkaNode, compression: str | None) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=one.address, enable_idempotence=False, compression_type=compression
    )
    await producer.start()
    try:
        sent = [
            await producer.send_and_wait(
                "six", b"v%d" % n, key=b"k%d" % n, headers=[("h", b"1")], partition=n % 6
            )
            for n in range(30)
        ]
    finally:
        await producer.stop()
    assert [one.offset for one in sent] == [n // 6 for n in range(30)]
    consumer = AIOKafkaConsumer(bootstrap_servers=one.address, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition("six", number) for number in range(6)])
        await consumer.seek_to_beginning()
        found: list[Any] = []
        async with asyncio.timeout(30):
            while len(found) < 30:
                for rows in (await consumer.getmany(timeout_ms=1_000)).values():
                    found += rows
    finally:
        await consumer.stop()
    assert sorted(row.value for row in found) == sorted(b"v%d" % n for n in range(30))
    assert {row.headers for row in found} == {(("h", b"1"),)}
