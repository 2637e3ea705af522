"""One workload of one of Kafka's Python clients, in a process of its own.

    python -m bench.kafka.programs confluent produce '{"servers": "…", "topic": "t", …}'

Prints seconds as JSON. All producers are idempotent with `acks=all`. Each record's report is taken.
The settings here are the same for all systems. Other settings are the clients' defaults.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import repeat
from typing import Any, Final

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from raftlog.workloads.load import payload

WINDOW: Final = 20_000
"""Futures outstanding at most, where each record's own is awaited."""
CONSUMED_AT_ONCE: Final = 10_000
POLL_S: Final = 1.0
FULL_POLL_S: Final = 0.01
"""While the producer's queue is full."""


def confluent_produce(servers: str, topic: str, count: int, size: int) -> float:
    """librdkafka from Python, with a delivery report for each record."""
    producer = Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "acks": "all", "log_level": 0}
    )
    delivered = 0

    def report(error: Any, _message: Any) -> None:
        nonlocal delivered
        if error is not None:
            raise RuntimeError(str(error))
        delivered += 1

    producer.produce(topic, b"", on_delivery=report)
    producer.flush()
    started = time.perf_counter()
    for value in repeat(payload(size), count):
        while True:
            try:
                producer.produce(topic, value, on_delivery=report)
                break
            except BufferError:
                producer.poll(FULL_POLL_S)
        producer.poll(0)
    producer.flush()
    elapsed = time.perf_counter() - started
    if delivered != count + 1:
        raise RuntimeError(f"{delivered} of {count + 1} records were delivered")
    return elapsed


def confluent_consume(servers: str, topic: str, count: int, partitions: int) -> float:
    """librdkafka from Python, by `consume`."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # The default of a second waits while the queue is full: it would be all that counts.
            "fetch.queue.backoff.ms": 1,
            "log_level": 0,
        }
    )
    consumer.assign([Place(topic, number, 0) for number in range(partitions)])
    seen, started = 0, time.perf_counter()
    while seen < count:
        messages = consumer.consume(CONSUMED_AT_ONCE, POLL_S)
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
        seen += len(messages)
    elapsed = time.perf_counter() - started
    consumer.close()
    return elapsed


async def aiokafka_produce(servers: str, topic: str, count: int, size: int) -> float:
    """aiokafka, every record's future awaited."""
    value = payload(size)
    async with AIOKafkaProducer(
        bootstrap_servers=servers, acks="all", enable_idempotence=True
    ) as producer:
        await producer.send_and_wait(topic, b"")
        started = time.perf_counter()
        outstanding: list[Awaitable[Any]] = []
        for start in range(0, count, WINDOW):
            wanted = min(WINDOW, count - start)
            previous, outstanding = (
                outstanding,
                [await producer.send(topic, value) for _ in range(wanted)],
            )
            for future in previous:
                await future
        for future in outstanding:
            await future
        return time.perf_counter() - started


async def aiokafka_consume(servers: str, topic: str, count: int, partitions: int) -> float:
    """aiokafka, by `getmany`."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
    async with consumer:
        seen, started = 0, time.perf_counter()
        while seen < count:
            for records in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).values():
                seen += len(records)
        return time.perf_counter() - started


def main(client: str, workload: str, given: dict[str, Any]) -> None:
    """See the module."""
    programs: dict[tuple[str, str], Callable[..., Any]] = {
        ("confluent", "produce"): confluent_produce,
        ("confluent", "consume"): confluent_consume,
        ("aiokafka", "produce"): aiokafka_produce,
        ("aiokafka", "consume"): aiokafka_consume,
    }
    found = programs[client, workload](**given)
    seconds = found if client == "confluent" else uvloop.run(found)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
