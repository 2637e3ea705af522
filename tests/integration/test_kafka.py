"""Kafka's clients on real nodes: one log behind every door, and a leader that dies under them."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import ElectionType, KafkaException
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from raftlog_client import Admin, Consumer, Producer, TopicPartition

from bench.node import LoneNode
from raftlog.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeProducersRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TopicRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.attack import kafka_inputs
from tests.kafka.peers import RawClient

DEADLINE_S = 60.0
RECORDS = 300
PARTITIONS = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LoneNode, str]]:
    """A running node, and the address of its Kafka listener."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    data_dir: Path = tmp_path_factory.mktemp("kafka") / "data"
    process = LoneNode(data_dir, flush="sync", arguments=("--kafka-listen", address))
    process.start()
    try:
        yield process, address
    finally:
        process.stop()


async def create(node: LoneNode, topic: str) -> None:
    async with Admin(bootstrap_servers=node.address) as admin:
        # The records' timestamps are years old.
        await admin.create_topic(topic, partitions=PARTITIONS, configs={"retention.ms": "-1"})


def write_by_kafka(address: str, topic: str, **settings: Any) -> list[tuple[int, int]]:
    """Partition and offset of each record."""
    places: dict[int, tuple[int, int]] = {}
    failures: list[object] = []
    producer = KafkaProducer({"bootstrap.servers": address, **settings})

    for number in range(RECORDS):

        def done(error: object, message: Any, number: int = number) -> None:
            if error is not None:
                failures.append(error)
            else:
                places[number] = message.partition(), message.offset()

        producer.produce(
            topic,
            b"v%d" % number,
            key=b"k%d" % number,
            partition=number % PARTITIONS,
            headers=[("h", b"x")],
            timestamp=1_700_000_000_000 + number,
            on_delivery=done,
        )
    assert producer.flush(DEADLINE_S) == 0
    assert not failures
    return [places[number] for number in range(RECORDS)]


def read_by_kafka(address: str, topic: str, count: int) -> list[Any]:
    consumer = KafkaConsumer(
        {
            "bootstrap.servers": address,
            "group.id": "none",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.assign([KafkaPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        for message in consumer.consume(1_000, timeout=1.0):
            assert message.error() is None, message.error()
            found.append(message)
    consumer.close()
    return found


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_what_a_kafka_client_writes_every_door_reads(
    node: tuple[LoneNode, str], compression: str
) -> None:
    process, address = node
    topic = f"by-kafka-{compression}"
    await create(process, topic)
    settings = {"enable.idempotence": True, "compression.type": compression, "linger.ms": 5}
    places = write_by_kafka(address, topic, **settings)
    wanted = {
        place: (b"k%d" % number, b"v%d" % number, 1_700_000_000_000 + number)
        for number, place in enumerate(places)
    }
    assert len(wanted) == RECORDS
    async with Consumer(bootstrap_servers=process.address) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        await consumer.seek_to_beginning()
        found: dict[tuple[int, int], tuple[Any, Any, int]] = {}
        while len(found) < RECORDS:
            for rows in (await consumer.getmany(timeout_ms=1_000)).values():
                for row in rows:
                    found[row.partition, row.offset] = row.key, row.value, row.timestamp
                    assert [(name, bytes(value)) for name, value in row.headers] == [("h", b"x")]
    assert found == wanted
    rows = read_by_kafka(address, topic, RECORDS)
    assert {
        (row.partition(), row.offset()): (row.key(), row.value(), row.timestamp()[1])
        for row in rows
    } == wanted


async def test_what_the_python_client_writes_kafka_clients_read(
    node: tuple[LoneNode, str],
) -> None:
    process, address = node
    await create(process, "by-python")
    async with Producer(bootstrap_servers=process.address) as producer:
        for number in range(RECORDS):
            await producer.send(
                "by-python",
                b"v%d" % number,
                key=b"k%d" % number,
                partition=number % PARTITIONS,
                headers=[("h", b"x")],
            )
    rows = read_by_kafka(address, "by-python", RECORDS)
    assert {(row.key(), row.value()) for row in rows} == {
        (b"k%d" % number, b"v%d" % number) for number in range(RECORDS)
    }
    assert all(row.headers() == [("h", b"x")] for row in rows)


async def test_a_running_producer_survives_a_topic_made_anew(node: tuple[LoneNode, str]) -> None:
    """Its sequence goes on, unknown to the new topic: only the code 59 lets it begin again."""
    process, address = node
    await create(process, "anew")
    producer = KafkaProducer({"bootstrap.servers": address, "enable.idempotence": True})
    failures: list[object] = []

    def produce(count: int) -> None:
        for number in range(count):
            producer.produce(
                "anew",
                b"%d" % number,
                partition=0,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(DEADLINE_S) == 0

    produce(10)
    async with Admin(bootstrap_servers=process.address) as admin:
        await admin.delete_topic("anew")
        await admin.create_topic("anew", partitions=PARTITIONS)
    produce(10)
    assert not failures
    assert len(read_by_kafka(address, "anew", 10)) == 10


async def test_requests_of_random_values_break_no_handler(node: tuple[LoneNode, str]) -> None:
    """Each sound request is answered, or held back; only errors without an answer end it."""
    process, address = node
    host, _, port = address.partition(":")
    chance = random.Random(1)
    answered = 0
    for api, version in kafka_inputs.versions():
        for body in kafka_inputs.samples(chance, api, version, 5):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(kafka_inputs.sized(kafka_inputs.head(api, version) + body))
            with suppress(TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(0.2):
                    await reader.readexactly(8)
                    answered += 1
            writer.transport.abort()
    assert answered > 500
    assert "Traceback" not in process.log.read_text()


def offsets_of(admin: AdminClient, topic: str, spec: OffsetSpec) -> tuple[int, int]:
    """Offset and timestamp of partition 0."""
    partition = KafkaPartition(topic, 0)
    found = admin.list_offsets({partition: spec})[partition].result(DEADLINE_S)
    return found.offset, found.timestamp


async def test_kafka_admin_clients_manage_a_node(node: tuple[LoneNode, str]) -> None:
    _, address = node
    admin = AdminClient({"bootstrap.servers": address})
    topic = "by-kafka-admin"
    configs = {"retention.ms": "100000000000000", "cleanup.policy": "compact"}
    admin.create_topics([NewTopic(topic, 1, 1, config=configs)])[topic].result(DEADLINE_S)
    admin.create_partitions([NewPartitions(topic, PARTITIONS)])[topic].result(DEADLINE_S)
    write_by_kafka(address, topic, **{"linger.ms": 5})
    in_partition = RECORDS // PARTITIONS
    newest = 1_700_000_000_000 + RECORDS - PARTITIONS
    assert offsets_of(admin, topic, OffsetSpec.max_timestamp()) == (in_partition - 1, newest)
    assert offsets_of(admin, topic, OffsetSpec.latest())[0] == in_partition
    end = KafkaPartition(topic, 0, 40)
    assert admin.delete_records([end])[end].result(DEADLINE_S).low_watermark == 40
    assert offsets_of(admin, topic, OffsetSpec.earliest())[0] == 40

    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.APPEND),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ],
    )
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    described = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)])
    [configs_now] = [one.result(DEADLINE_S) for one in described.values()]
    assert configs_now["cleanup.policy"].value == "compact,delete"
    assert configs_now["retention.ms"].is_default
    assert not admin.elect_leaders(ElectionType.PREFERRED, None).result(DEADLINE_S)
    cluster = admin.describe_cluster().result(DEADLINE_S)
    assert [one.id for one in cluster.nodes] == [cluster.controller.id]
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    assert topic not in admin.list_topics(timeout=DEADLINE_S).topics


def transactional(address: str, name: str) -> KafkaProducer:
    producer = KafkaProducer({"bootstrap.servers": address, "transactional.id": name})
    producer.init_transactions(DEADLINE_S)
    return producer


def write_transaction(producer: KafkaProducer, topic: str, word: bytes, *, is_commit: bool) -> None:
    """One record to each partition."""
    producer.begin_transaction()
    for number in range(PARTITIONS):
        producer.produce(topic, word, partition=number)
    assert producer.flush(DEADLINE_S) == 0
    end = producer.commit_transaction if is_commit else producer.abort_transaction
    end(DEADLINE_S)


async def test_transactions_of_kafka_clients_are_whole_for_every_reader(
    node: tuple[LoneNode, str],
) -> None:
    process, address = node
    await create(process, "whole")
    producer = transactional(address, "whole")
    for word, is_commit in ((b"a", True), (b"b", False), (b"c", True)):
        write_transaction(producer, "whole", word, is_commit=is_commit)
    # Fenced by a second one of the same id, in the middle of its transaction.
    producer.begin_transaction()
    producer.produce("whole", b"d", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    other = transactional(address, "whole")
    with pytest.raises(KafkaException):
        producer.commit_transaction(DEADLINE_S)
    write_transaction(other, "whole", b"e", is_commit=True)
    wanted = sorted([b"a", b"c", b"e"] * PARTITIONS)
    rows = read_by_kafka(address, "whole", len(wanted))
    assert sorted(row.value() for row in rows) == wanted
    async with Consumer(bootstrap_servers=process.address, isolation="read_committed") as consumer:
        consumer.assign([TopicPartition("whole", number) for number in range(PARTITIONS)])
        await consumer.seek_to_beginning()
        found: list[bytes] = []
        while len(found) < len(wanted):
            for some in (await consumer.getmany(timeout_ms=1_000)).values():
                found += (row.value for row in some)
    assert sorted(found) == wanted


async def test_an_abort_may_follow_its_first_partition_and_a_commit_at_once(
    node: tuple[LoneNode, str],
) -> None:
    """librdkafka's abort does not wait for its first partition, which waits for markers.

    An abort that comes before this partition is refused, which ends the client (its issue 4849).
    """
    process, address = node
    await create(process, "at-once")
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    client = RawClient(reader, writer)
    try:
        name = {"transactional_id": "at-once"}
        made = await client.ask(InitProducerIdRequest(transaction_timeout_ms=60_000, **name), 4)
        identity = made.producer_id, made.producer_epoch
        joining = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="at-once",
            v3_and_below_producer_id=identity[0],
            v3_and_below_producer_epoch=identity[1],
            v3_and_below_topics=(AddPartitionsToTxnTopic("at-once", tuple(range(PARTITIONS))),),
        )
        commit, abort = (
            EndTxnRequest("at-once", *identity, is_commit) for is_commit in (True, False)
        )
        requests = [(joining, 3), (commit, 3), (joining, 3), (abort, 3)] * 5
        for request, version in requests:
            writer.write(client.frame(request, version))
        for request, _ in requests:
            _, answer = await client.receive()
            if request is joining:
                (topic,) = answer.results_by_topic_v3_and_below
                codes = {one.partition_error_code for one in topic.results_by_partition}
            else:
                codes = {answer.error_code}
            assert codes == {0}, request
    finally:
        writer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_reads_processes_and_writes_exactly_once(
    node: tuple[LoneNode, str], protocol: str
) -> None:
    process, address = node
    source, target, group = f"source-{protocol}", f"target-{protocol}", f"group-{protocol}"
    for topic in (source, target):
        await create(process, topic)
    write_by_kafka(address, source)
    producer = transactional(address, f"copy-{protocol}")
    seen = 0
    while seen < RECORDS:
        # A member for each hundred records: the next one begins where the offsets say.
        consumer = KafkaConsumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 10,
            }
        )
        consumer.subscribe([source])
        copied = 0
        deadline = time.monotonic() + DEADLINE_S
        while copied < 100 and seen + copied < RECORDS:
            assert time.monotonic() < deadline
            rows = consumer.consume(50, timeout=1.0)
            if not rows:
                continue
            producer.begin_transaction()
            for row in rows:
                assert row.error() is None, row.error()
                producer.produce(target, row.value(), key=row.key(), partition=row.partition())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()),
                consumer.consumer_group_metadata(),
                DEADLINE_S,
            )
            producer.commit_transaction(DEADLINE_S)
            copied += len(rows)
        seen += copied
        consumer.close()
    rows = read_by_kafka(address, target, RECORDS)
    assert sorted(row.value() for row in rows) == sorted(b"v%d" % n for n in range(RECORDS))
    async with Admin(bootstrap_servers=process.address) as admin:
        groups = {one.group for one in (await admin.list_groups()).groups}
    assert group in groups


async def ask(address: str, request: Any, version: int) -> Any:
    """One request as raw frames, for APIs that no Python client has."""
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        return await RawClient(reader, writer).ask(request, version)
    finally:
        writer.close()


async def test_an_open_transaction_is_found_and_ended_in_its_partition(
    node: tuple[LoneNode, str],
) -> None:
    """As `kafka-transactions.sh` does it: describe producers, then write a marker."""
    process, address = node
    await create(process, "hanging")
    producer = transactional(address, "hanging")
    producer.begin_transaction()
    producer.produce("hanging", b"x", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    described = DescribeProducersRequest((TopicRequest("hanging", (0, 1, 9)),))
    rows = (await ask(address, described, 0)).topics[0].partitions
    assert [row.error_code for row in rows] == [0, 0, 3]
    [state] = rows[0].active_producers
    assert (state.last_sequence, state.current_txn_start_offset) == (0, 0)
    assert abs(state.last_timestamp / 1000 - time.time()) < DEADLINE_S
    assert not rows[1].active_producers
    marker = WritableTxnMarker(
        state.producer_id,
        state.producer_epoch,
        transaction_result=False,
        topics=(WritableTxnMarkerTopic("hanging", (0,)),),
        coordinator_epoch=max(state.coordinator_epoch, 0),
    )
    [result] = (await ask(address, WriteTxnMarkersRequest((marker,)), 1)).markers
    assert result.topics[0].partitions[0].error_code == 0
    rows = (await ask(address, described, 0)).topics[0].partitions
    assert rows[0].active_producers[0].current_txn_start_offset == -1
