"""Kafka's clients before three nodes behind one address, and a leader that dies under them."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.node import LoneNode, free_port
from raftlog.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from raftlog.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
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
from raftlog.kafka.messages.transactions import (
    DescribeProducersRequest,
    ListTransactionsRequest,
    TopicRequest,
)
from tests.integration.balancer import Balancer
from tests.kafka.peers import RawClient

DEADLINE_S = 60.0
PARTITIONS = 3
AFTER_KILL_S = 3.0
"""The clients go on for so long after the death of a leader."""
TOPICS = ("apis", "idempotent", "transactional", "aiokafka")


@dataclass
class Gateway:
    nodes: dict[int, LoneNode]
    balancer: Balancer

    @property
    def address(self) -> str:
        return self.balancer.address

    def leader(self, topic: str, partition: int) -> int:
        """By the REST API: Kafka's clients learn the gateway alone."""
        for node in self.nodes.values():
            if not node.has_ended and node._process is not None:
                return int(node.request("GET", f"/topics/{topic}/partitions/{partition}")["leader"])
        raise AssertionError("no node runs")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    ports = {number: (free_port(), free_port()) for number in (1, 2, 3)}
    secret = secrets.token_hex(32)
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, (port, _) in ports.items())
    backends = [f"127.0.0.1:{port}" for _, port in ports.values()]
    directory = tmp_path_factory.mktemp("gateway")
    with ExitStack() as stack:
        balancer = stack.enter_context(Balancer(backends))
        nodes: dict[int, LoneNode] = {}
        for number, (port, _) in ports.items():
            nodes[number] = LoneNode(
                directory / f"n{number}",
                "sync",
                port,
                arguments=(
                    *("--node-id", str(number), "--voters", voters),
                    *("--kafka-listen", backends[number - 1]),
                    *("--kafka-advertise", f"gateway={balancer.address}"),
                ),
                environment={"RAFTLOG_CLUSTER_SECRET": secret},
            )
            nodes[number].launch()
            stack.callback(nodes[number].kill)
        for node in nodes.values():
            node.wait_ready()
        admin = AdminClient({"bootstrap.servers": balancer.address})
        # The records' timestamps are years old.
        configs = {"retention.ms": "-1"}
        new = [NewTopic(name, PARTITIONS, 3, config=configs) for name in TOPICS]
        for one in admin.create_topics(new).values():
            one.result(DEADLINE_S)
        yield Gateway(nodes, balancer)


async def test_every_node_serves_every_partition(gateway: Gateway) -> None:
    """Raw requests to each node, of which each leads a part."""
    producer = Producer({"bootstrap.servers": gateway.address, "transactional.id": "apis"})
    producer.init_transactions(DEADLINE_S)
    numbers = tuple(range(PARTITIONS))
    for is_commit in (False, True):
        producer.begin_transaction()
        for number in numbers:
            producer.produce("apis", b"v", partition=number, timestamp=1_000 + is_commit)
        assert producer.flush(DEADLINE_S) == 0
        end = producer.commit_transaction if is_commit else producer.abort_transaction
        end(DEADLINE_S)
    producer.begin_transaction()
    producer.produce("apis", b"open", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    # Of each partition: aborted record, marker, committed record, marker; of 0: an open one.
    assert {gateway.leader("apis", number) for number in numbers} == {1, 2, 3}
    async with AsyncExitStack() as stack:
        clients = []
        for address in gateway.balancer.connections:
            host, _, port = address.partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            clients.append(RawClient(reader, writer))
        for client in clients:
            await check_node(client, numbers)
        for start, client in enumerate(clients):
            deletions = tuple(DeleteRecordsPartition(n, start) for n in numbers)
            request = DeleteRecordsRequest((DeleteRecordsTopic("apis", deletions),), 10_000)
            [topic] = (await client.ask(request, 2)).topics
            marks = [(row.error_code, row.low_watermark) for row in topic.partitions]
            assert marks == [(0, start)] * 3
    producer.abort_transaction(DEADLINE_S)


async def check_node(client: RawClient, numbers: tuple[int, ...]) -> None:
    for timestamp, wanted in ((-1, 4), (1_001, 2)):
        rows = tuple(ListOffsetsPartition(n, timestamp=timestamp) for n in numbers)
        request = ListOffsetsRequest(isolation_level=1, topics=(ListOffsetsTopic("apis", rows),))
        [topic] = (await client.ask(request, 7)).topics
        assert {(row.error_code, row.offset) for row in topic.partitions} == {(0, wanted)}
    rows = tuple(ListOffsetsPartition(n, timestamp=-3) for n in (1, 2))
    [topic] = (
        await client.ask(ListOffsetsRequest(topics=(ListOffsetsTopic("apis", rows),)), 7)
    ).topics
    assert {row.error_code for row in topic.partitions} == {0}

    metadata = await client.ask(MetadataRequest((MetadataRequestTopic(None, "apis"),)), 12)
    epochs = tuple(
        OffsetForLeaderPartition(row.partition_index, row.leader_epoch, row.leader_epoch)
        for row in metadata.topics[0].partitions
    )
    request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic("apis", epochs),))
    [topic] = (await client.ask(request, 4)).topics
    assert [row.error_code for row in topic.partitions] == [0, 0, 0]
    assert {row.partition: row.end_offset for row in topic.partitions} == {0: 5, 1: 4, 2: 4}

    parts = tuple(FetchPartition(n, -1, 0, partition_max_bytes=1 << 20) for n in numbers)
    for isolation in (0, 1):
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            isolation_level=isolation,
            topics=(FetchTopic("apis", None, parts),),
        )
        found: dict[int, Any] = {}
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < PARTITIONS:
                [topic] = (await client.ask(request, 11)).responses
                found.update((one.partition_index, one) for one in topic.partitions if one.records)
        ends = {
            n: (one.error_code, one.high_watermark, one.last_stable_offset)
            for n, one in found.items()
        }
        assert ends == {0: (0, 5, 4), 1: (0, 4, 4), 2: (0, 4, 4)}
        for one in found.values():
            aborted = one.aborted_transactions
            assert (len(aborted) if isolation else aborted) == (1 if isolation else None)

    described = DescribeProducersRequest((TopicRequest("apis", numbers),))
    [topic] = (await client.ask(described, 0)).topics
    starts = [
        [one.current_txn_start_offset for one in row.active_producers] for row in topic.partitions
    ]
    assert starts == [[4], [-1], [-1]]

    transactions = await client.ask(ListTransactionsRequest(), 2)
    assert "apis" in {one.transactional_id for one in transactions.transaction_states}


@dataclass
class Load:
    """One client that runs in a thread until `stop`, and what it wrote or read."""

    run: Callable[[Load], None]
    values: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By partition, in order; of a writer: acknowledged ones."""
    stop: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None

    def start(self) -> None:
        def work() -> None:
            try:
                self.run(self)
            except BaseException as error:
                self.failure = error

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    def join(self) -> None:
        self.stop.set()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        if self.failure is not None:
            raise self.failure

    @property
    def count(self) -> int:
        return sum(map(len, self.values.values()))


def write_idempotent(address: str, load: Load) -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 1})

    def done(error: object, message: Any) -> None:
        assert error is None, error
        load.values[message.partition()].append(int(message.value()))

    number = 0
    while not load.stop.is_set():
        for _ in range(20):
            producer.produce("idempotent", b"%d" % number, partition=number % 3, on_delivery=done)
            number += 1
        producer.poll(0.005)
    assert producer.flush(DEADLINE_S) == 0


def write_transactions(address: str, load: Load) -> None:
    producer = Producer({"bootstrap.servers": address, "transactional.id": "g"})
    producer.init_transactions(DEADLINE_S)
    number = 0
    while not load.stop.is_set():
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce("transactional", b"%d" % number, partition=partition)
        is_commit = number % 5 != 4
        try:
            if is_commit:
                producer.commit_transaction(DEADLINE_S)
            else:
                producer.abort_transaction(DEADLINE_S)
        except KafkaException as error:
            assert error.args[0].txn_requires_abort(), error
            producer.abort_transaction(DEADLINE_S)
            is_commit = False
        if is_commit:
            for partition in range(PARTITIONS):
                load.values[partition].append(number)
        number += 1


def write_aiokafka(address: str, load: Load) -> None:
    async def write() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True)
        await producer.start()
        try:
            number = 0
            while not load.stop.is_set():
                sent = {n: await producer.send("aiokafka", b"%d" % n, partition=n % PARTITIONS)
                        for n in range(number, number + 20)}  # fmt: skip
                number += len(sent)
                for n, one in sent.items():
                    load.values[(await one).partition].append(n)
        finally:
            await producer.stop()

    asyncio.run(write())


def read_as_group(address: str, load: Load) -> None:
    """Read all that is written to `idempotent`, until `stop`, in one group."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.subscribe(["idempotent"])
    while not load.stop.is_set():
        for row in consumer.consume(500, timeout=0.1):
            assert row.error() is None, row.error()
            load.values[row.partition()].append(int(row.value()))
    consumer.close()


def read_all(address: str, topic: str, ends: dict[int, int]) -> dict[int, list[int]]:
    """All committed records of a topic, up to the last value of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "none",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in ends])
    found: dict[int, list[int]] = {number: [] for number in ends}
    deadline = time.monotonic() + DEADLINE_S
    while any(not rows or rows[-1] < ends[number] for number, rows in found.items()):
        assert time.monotonic() < deadline, {n: len(rows) for n, rows in found.items()}
        for row in consumer.consume(1_000, timeout=0.2):
            assert row.error() is None, row.error()
            found[row.partition()].append(int(row.value()))
    consumer.close()
    return found


async def read_by_aiokafka(address: str, topic: str, ends: dict[int, int]) -> dict[int, list[int]]:
    consumer = AIOKafkaConsumer(bootstrap_servers=address, isolation_level="read_committed")
    await consumer.start()
    found: dict[int, list[int]] = {number: [] for number in ends}
    try:
        consumer.assign([AioPartition(topic, number) for number in ends])
        await consumer.seek_to_beginning()
        async with asyncio.timeout(DEADLINE_S):
            while any(not rows or rows[-1] < ends[number] for number, rows in found.items()):
                for rows in (await consumer.getmany(timeout_ms=200)).values():
                    for row in rows:
                        found[row.partition].append(int(row.value or b""))
    finally:
        await consumer.stop()
    return found


def test_no_client_loses_or_repeats_a_record_when_a_leader_dies(gateway: Gateway) -> None:
    address = gateway.address
    writers = {
        "idempotent": Load(lambda load: write_idempotent(address, load)),
        "transactional": Load(lambda load: write_transactions(address, load)),
        "aiokafka": Load(lambda load: write_aiokafka(address, load)),
    }
    group = Load(lambda load: read_as_group(address, load))
    loads = [*writers.values(), group]
    try:
        _kill_a_leader(gateway, writers, group)
        _check(address, writers, group)
    finally:
        for load in loads:
            load.stop.set()


def _kill_a_leader(gateway: Gateway, writers: dict[str, Load], group: Load) -> None:
    """Kill one while all clients work, and let them go on for a while."""
    loads = [*writers.values(), group]
    for load in loads:
        load.start()
    deadline = time.monotonic() + DEADLINE_S
    while any(load.count < 60 for load in loads):
        assert all(load.failure is None for load in loads), [load.failure for load in loads]
        assert time.monotonic() < deadline, [load.count for load in loads]
        time.sleep(0.05)
    gateway.nodes[gateway.leader("idempotent", 0)].kill()
    killed_at = time.monotonic()
    before = {name: load.count for name, load in writers.items()}
    while time.monotonic() < killed_at + AFTER_KILL_S or any(
        load.count < before[name] + 60 for name, load in writers.items()
    ):
        assert all(load.failure is None for load in loads), [load.failure for load in loads]
        assert time.monotonic() < deadline, [load.count for load in loads]
        time.sleep(0.05)
    for load in writers.values():
        load.join()
    assert all(gateway.balancer.connections.values()), gateway.balancer.connections


def _check(address: str, writers: dict[str, Load], group: Load) -> None:
    """Every reader gets what was acknowledged, in its order, each record once."""
    for name, load in writers.items():
        ends = {number: values[-1] for number, values in load.values.items()}
        assert len(ends) == PARTITIONS
        assert read_all(address, name, ends) == dict(load.values), name
    transactional = dict(writers["transactional"].values)
    ends = {number: values[-1] for number, values in transactional.items()}
    assert asyncio.run(read_by_aiokafka(address, "transactional", ends)) == transactional
    written = writers["idempotent"]
    deadline = time.monotonic() + DEADLINE_S
    while group.count < written.count:
        assert group.failure is None and time.monotonic() < deadline
        time.sleep(0.05)
    group.join()
    assert {n: sorted(set(rows)) for n, rows in group.values.items()} == dict(written.values)
