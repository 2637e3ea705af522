"""The six test cases of the Kafka Lite proposal, by its names: producers and consumers of a group
on one node and on three, while nothing fails, a follower fails, a leader fails, all nodes fail.

Its guarantees hold in each: a producer's records of a partition are in the order of their sends,
consumers see the order of the log, no acknowledged record is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from raftlog_client import (
    Admin,
    ConnectionLostError,
    Consumer,
    DeliveryTimeoutError,
    Producer,
    RaftlogClientError,
    Record,
    TopicPartition,
)

from bench.cluster_processes import ClusterProcesses
from bench.node import LoneNode

TOPIC = "messages"
GROUP = "readers"
PARTITIONS = 2
"""So of three nodes at least one leads none."""
RECORDS = 400
"""Of one producer, per stage of a scenario."""
TIMEOUT_S = 60.0
REQUEST_TIMEOUT_MS = 1_000
REFUSED = b"refused"
"""Sent while all nodes are gone: may be written, or not."""
DELIVERY_TIMEOUT_MS = 3_000
"""Short, to see the errors of the last scenario; all others stay below."""


@pytest.fixture
def one_broker(tmp_path: Path) -> Iterator[LoneNode]:
    node = LoneNode(tmp_path / "data", flush="sync")
    node.start()
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture
def three_brokers(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path / "cluster", 3) as processes:
        processes.start()
        yield processes


@dataclass
class Reading:
    """Records and errors of one consumer of the group."""

    records: list[Record[bytes, bytes]] = field(default_factory=list)
    errors: list[RaftlogClientError] = field(default_factory=list)


@dataclass
class Scenario:
    """Producers that send numbered records, and consumers that share them."""

    producers: list[Producer]
    readings: list[Reading]
    admin: Admin
    sent: int = 0
    """Records of each producer so far, all acknowledged."""

    async def produce(self, count: int = RECORDS) -> None:
        """Each producer sends `count` more records, and gets them acknowledged."""

        async def send(number: int, producer: Producer) -> None:
            for value in range(self.sent, self.sent + count):
                await producer.send(TOPIC, b"%d-%d" % (number, value), partition=value % PARTITIONS)
            await producer.flush()

        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*(send(*one) for one in enumerate(self.producers)))
        self.sent += count

    def values(self) -> set[bytes]:
        """All that any consumer has read."""
        values = {record.value for reading in self.readings for record in reading.records}
        return values - {REFUSED}

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 - the readers do not wait for it
                await asyncio.sleep(0.02)

    async def check(self) -> None:
        """All records are read by the group, and every consumer has seen the log's order."""
        numbers = range(len(self.producers))
        wanted = {b"%d-%d" % (one, value) for one in numbers for value in range(self.sent)}
        await self.until(lambda: self.values() == wanted)
        for reading in self.readings:
            last: dict[tuple[int, int], int] = {}
            offsets: dict[int, int] = {}
            for record in reading.records:
                if record.value == REFUSED:
                    continue
                number, value = (int(part) for part in record.value.split(b"-"))
                # Sessions outlive the scenarios, so no partition moves back to its last commit.
                assert record.offset > offsets.get(record.partition, -1)
                assert value > last.get((record.partition, number), -1)
                offsets[record.partition] = record.offset
                last[record.partition, number] = value
            assert reading.records, "each consumer has its share"

    async def leader(self) -> int:
        """The node that leads partition 0."""
        return (await self.rows())[0][0]

    async def rows(self) -> list[tuple[int, tuple[int, ...]]]:
        """The leader and in-sync replicas of each partition."""
        described = await self.admin.describe_topic(TOPIC)
        return [(row.leader or 0, tuple(row.isr)) for row in described.partitions]

    async def until_rows(self, condition: Callable[[int, tuple[int, ...]], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not all(condition(*row) for row in await self.rows()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@asynccontextmanager
async def scenario(servers: str, *, producers: int, consumers: int) -> AsyncIterator[Scenario]:
    async with contextlib.AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(bootstrap_servers=servers))
        await admin.create_topic(TOPIC, partitions=PARTITIONS)
        writers = [
            await stack.enter_async_context(
                Producer(
                    bootstrap_servers=servers,
                    request_timeout_ms=REQUEST_TIMEOUT_MS,
                    delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
                )
            )
            for _ in range(producers)
        ]
        readers = [
            await stack.enter_async_context(
                Consumer(
                    TOPIC,
                    bootstrap_servers=servers,
                    group_id=GROUP,
                    auto_offset_reset="earliest",
                    session_timeout_ms=30_000,
                    request_timeout_ms=REQUEST_TIMEOUT_MS,
                )
            )
            for _ in range(consumers)
        ]
        found = Scenario(writers, [Reading() for _ in readers], admin)
        shares = PARTITIONS // consumers
        await share_out(readers, shares)
        tasks = [
            asyncio.ensure_future(read(*one)) for one in zip(readers, found.readings, strict=True)
        ]
        try:
            yield found
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results


async def share_out(readers: list[Consumer[bytes, bytes]], shares: int) -> None:
    """Wait until the consumers own as many partitions each, and no two the same."""
    async with asyncio.timeout(TIMEOUT_S):
        while any(len(reader.assignment()) != shares for reader in readers):
            for reader in readers:
                await reader.getmany(timeout_ms=20)
    owned: list[TopicPartition] = [one for reader in readers for one in reader.assignment()]
    assert len(set(owned)) == PARTITIONS


async def read(reader: Consumer[bytes, bytes], reading: Reading) -> None:
    while True:
        try:
            reading.records.append(await reader.getone())
        except RaftlogClientError as error:
            # All nodes are gone, or on their way back.
            if not error.retriable:
                raise
            reading.errors.append(error)


async def undisturbed(servers: str, *, producers: int, consumers: int) -> None:
    async with scenario(servers, producers=producers, consumers=consumers) as running:
        await running.produce()
        await running.check()
        assert not any(reading.errors for reading in running.readings)


def addresses(cluster: ClusterProcesses) -> str:
    return ",".join(node.address for node in cluster.nodes.values())


def test_1_producer_1_consumer_1_broker(one_broker: LoneNode) -> None:
    asyncio.run(undisturbed(one_broker.address, producers=1, consumers=1))


def test_1_producer_1_consumer_3_brokers(three_brokers: ClusterProcesses) -> None:
    asyncio.run(undisturbed(addresses(three_brokers), producers=1, consumers=1))


def test_2_producers_2_consumers_3_brokers(three_brokers: ClusterProcesses) -> None:
    asyncio.run(undisturbed(addresses(three_brokers), producers=2, consumers=2))


def test_2_producers_2_consumers_3_brokers_1_follower_fails(
    three_brokers: ClusterProcesses,
) -> None:
    async def run() -> None:
        async with scenario(addresses(three_brokers), producers=2, consumers=2) as running:
            await running.produce()
            leads = {leader for leader, _ in await running.rows()}
            follower = min(three_brokers.nodes.keys() - leads)
            await asyncio.to_thread(three_brokers.kill, follower)
            await running.produce()
            await running.check()
            assert not any(reading.errors for reading in running.readings)
            await running.until_rows(lambda _, isr: len(isr) == 2)

    asyncio.run(run())


def test_2_producers_2_consumers_3_brokers_leader_fails(three_brokers: ClusterProcesses) -> None:
    async def run() -> None:
        async with scenario(addresses(three_brokers), producers=2, consumers=2) as running:
            await running.produce()
            leader = await running.leader()
            await asyncio.to_thread(three_brokers.kill, leader)
            await running.produce()
            await running.check()
            await running.until_rows(lambda now, isr: now not in (0, leader) and leader not in isr)

    asyncio.run(run())


def test_2_producers_2_consumers_3_brokers_all_nodes_fail(
    three_brokers: ClusterProcesses,
) -> None:
    async def run() -> None:
        async with scenario(addresses(three_brokers), producers=2, consumers=2) as running:
            await running.produce()
            await running.check()
            await asyncio.to_thread(three_brokers.kill, *three_brokers.nodes)
            for producer in running.producers:
                with pytest.raises(DeliveryTimeoutError):
                    await producer.send_and_wait(TOPIC, REFUSED, partition=0)
            await running.until(
                lambda: all(
                    any(isinstance(error, ConnectionLostError) for error in reading.errors)
                    for reading in running.readings
                )
            )
            await asyncio.to_thread(three_brokers.restart, *three_brokers.nodes)
            await asyncio.to_thread(three_brokers.wait_active)
            await running.until_rows(lambda now, isr: now != 0 and len(isr) == 3)
            await running.produce()
            await running.check()

    asyncio.run(run())
