"""Consumers of Kafka's clients in groups, against a listener in this process."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Message, TopicPartition

from raftlog.broker.authorize import ANONYMOUS
from tests.kafka.peers import KafkaNode, group_node
from tests.waiting import until

RECORDS: Final = 60
CLIENTS_S: Final = 60.0


async def fill(address: str) -> None:
    """Write records to all partitions of `six`."""
    producer = AIOKafkaProducer(bootstrap_servers=address)
    await producer.start()
    try:
        for number in range(RECORDS):
            await producer.send("six", b"%d" % number, partition=number % 6)
        await producer.flush()
    finally:
        await producer.stop()


@asynccontextmanager
async def consumer(address: str) -> AsyncIterator[Any]:
    one = AIOKafkaConsumer(
        "six",
        bootstrap_servers=address,
        group_id="g",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=100,
        enable_auto_commit=False,
    )
    await one.start()
    try:
        yield one
    finally:
        await one.stop()


def address_of(one: KafkaNode) -> str:
    return f"127.0.0.1:{one.listener.port}"


async def test_consumers_of_the_classic_protocol_share_a_topic_and_go_on_from_commits() -> None:
    async with group_node() as one:
        address = address_of(one)
        await fill(address)
        values: Counter[bytes] = Counter()
        async with asyncio.timeout(CLIENTS_S), consumer(address) as first:
            async with consumer(address) as second:
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 3)
                for member in (first, second):
                    for _ in range(RECORDS // 2):
                        values[(await member.getone()).value] += 1
                    await member.commit()
            await until(lambda: len(first.assignment()) == 6)
            assert {await first.committed(part) for part in first.assignment()} == {RECORDS // 6}
        assert set(values) == {b"%d" % number for number in range(RECORDS)}
        assert values.total() == RECORDS


def consumer_config(address: str, protocol: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "group.id": "g",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_consumer_of_librdkafka_reads_commits_and_comes_back(protocol: str) -> None:
    async with group_node() as one:
        address = address_of(one)
        await fill(address)
        config = consumer_config(address, protocol)

        def read(count: int) -> list[bytes]:
            reader = Consumer(config)
            reader.subscribe(["six"])
            found: list[bytes] = []
            deadline = time.monotonic() + CLIENTS_S
            try:
                while len(found) < count and time.monotonic() < deadline:
                    message: Message | None = reader.poll(1.0)
                    if message is not None:
                        assert message.error() is None, message.error()
                        found.append(message.value() or b"")
                        reader.commit(message, asynchronous=False)
            finally:
                reader.close()
            return found

        first = await asyncio.to_thread(read, RECORDS // 2)
        second = await asyncio.to_thread(read, RECORDS - RECORDS // 2)
        [(group, _)], _ = await one.broker.groups.groups(ANONYMOUS)
        assert (group.group, group.kind, group.members) == ("g", protocol, 0)
        assert sorted(first + second) == sorted(b"%d" % number for number in range(RECORDS))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_consumer_of_assigned_partitions_commits_and_comes_back(protocol: str) -> None:
    async with group_node() as one:
        address = address_of(one)
        await fill(address)
        config = consumer_config(address, protocol)

        def first_offset() -> int | None:
            """Read the next record of a partition, and commit it."""
            reader = Consumer(config)
            reader.assign([TopicPartition("six", 0)])
            try:
                message: Message | None = reader.poll(CLIENTS_S)
                assert message is not None
                assert message.error() is None, message.error()
                reader.commit(message, asynchronous=False)
                return message.offset()
            finally:
                reader.close()

        assert [await asyncio.to_thread(first_offset) for _ in range(3)] == [0, 1, 2]
