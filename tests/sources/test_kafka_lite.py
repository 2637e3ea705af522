"""The six test cases of the Kafka Lite proposal, by its names: producers and consumers of a group
on one node and on three, while nothing fails, a follower fails, a leader fails, all nodes fail.
Then its guarantees where N-1 of N die, its elections and its consumers.

The guarantees hold in each case: a producer's records of a partition are in the order of their
sends, consumers see the order of the log, no acknowledged record is lost. Two producers write to
each partition: no producer needs a lock. docs/sources.md lists all claims.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
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

from bench.cluster import Cluster
from bench.node import LoneNode, MeasuredNode
from raftlog.record.errors import NOT_ENOUGH_REPLICAS
from tests.simulation.data.data_world import DataWorld, simulate_data
from tests.sources.simulated import (
    NODES,
    REPLICAS,
    T,
    known_as_committed,
    read_values,
    refusal,
    write_numbered,
)
from tests.waiting import SLOW_POLL_S, until, wait_until

pytestmark = pytest.mark.full  # a source against real clusters; the simulator has these cases too

TOPIC = "messages"
GROUP = "readers"
PARTITIONS = 2
"""So of three nodes at least one leads none."""
RECORDS = 400
"""Of one producer, per stage of a scenario."""
TIMEOUT_S = 120.0
REQUEST_TIMEOUT_MS = 1_000
REFUSED = b"refused"
"""Sent while all nodes are gone: may be written, or not."""
DELIVERY_TIMEOUT_MS = 3_000
"""Short, to see the errors of the last scenario; all others stay below."""
DETECTION_S = 2.0
"""The proposal's timeout for the detection of a failed node."""


@pytest.fixture
def one_broker(tmp_path: Path) -> Iterator[LoneNode]:
    node = LoneNode(tmp_path / "data", flush="sync")
    node.start()
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture
def three_brokers(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", 3) as processes:
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
        await until(condition, poll_s=SLOW_POLL_S)

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
        async def holds() -> bool:
            return all(condition(*row) for row in await self.rows())

        await until(holds, poll_s=SLOW_POLL_S)


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


def test_1_producer_1_consumer_1_broker(one_broker: LoneNode) -> None:
    asyncio.run(undisturbed(one_broker.address, producers=1, consumers=1))


def test_1_producer_1_consumer_3_brokers(three_brokers: Cluster) -> None:
    asyncio.run(undisturbed(three_brokers.servers, producers=1, consumers=1))


def test_2_producers_2_consumers_3_brokers(three_brokers: Cluster) -> None:
    asyncio.run(undisturbed(three_brokers.servers, producers=2, consumers=2))


def test_2_producers_2_consumers_3_brokers_1_follower_fails(
    three_brokers: Cluster,
) -> None:
    async def run() -> None:
        async with scenario(three_brokers.servers, producers=2, consumers=2) as running:
            await running.produce()
            leads = {leader for leader, _ in await running.rows()}
            follower = min(three_brokers.nodes.keys() - leads)
            await asyncio.to_thread(three_brokers.kill, follower)
            await running.produce()
            await running.check()
            assert not any(reading.errors for reading in running.readings)
            await running.until_rows(lambda _, isr: len(isr) == 2)

    asyncio.run(run())


def test_2_producers_2_consumers_3_brokers_leader_fails(three_brokers: Cluster) -> None:
    async def run() -> None:
        async with scenario(three_brokers.servers, producers=2, consumers=2) as running:
            await running.produce()
            leader = await running.leader()
            await asyncio.to_thread(three_brokers.kill, leader)
            await running.produce()
            await running.check()
            await running.until_rows(lambda now, isr: now not in (0, leader) and leader not in isr)

    asyncio.run(run())


def test_2_producers_2_consumers_3_brokers_all_nodes_fail(
    three_brokers: Cluster,
) -> None:
    async def run() -> None:
        async with scenario(three_brokers.servers, producers=2, consumers=2) as running:
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
            await asyncio.to_thread(three_brokers.wait_active, TIMEOUT_S)
            await running.until_rows(lambda now, isr: now != 0 and len(isr) == 3)
            await running.produce()
            await running.check()

    asyncio.run(run())


# N-1 of N die


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_topic_replicated_n_times_survives_n_minus_1_failures_and_takes_writes(
    count: int,
) -> None:
    """With min.insync.replicas=1, and the voters on other nodes."""

    async def test(data: DataWorld) -> None:
        replicas = range(REPLICAS[0], REPLICAS[0] + count)
        await data.create("t", [replicas], {"min.insync.replicas": "1"})
        values = await write_numbered(data)
        await data.in_sync()
        *dead, survivor = replicas
        for node_id in dead:
            data.nodes.kill(node_id)
        await data.led(T, survivor)
        values += await write_numbered(data)
        assert await read_values(data, survivor, len(values)) == values
        for node_id in dead:
            data.nodes.start(node_id)

    simulate_data(test, node_count=REPLICAS[0] + count - 1)


def test_below_min_insync_replicas_the_survivor_refuses_writes_and_shows_committed_records() -> (
    None
):
    """The default for three replicas is 2: no record has one copy alone."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [REPLICAS])
        values = await write_numbered(data)
        await data.in_sync()
        *dead, survivor = REPLICAS
        for node_id in dead:
            data.nodes.kill(node_id)
        await data.led(T, survivor)
        assert (await refusal(data, survivor)).entry is NOT_ENOUGH_REPLICAS
        assert await read_values(data, survivor, len(values)) == values
        data.nodes.start(dead[0])
        values += await write_numbered(data)
        await known_as_committed(data, len(values), dead[0], survivor)
        data.nodes.start(dead[1])

    simulate_data(test, node_count=NODES)


def test_where_n_minus_1_of_n_nodes_are_dead_so_is_the_quorum(
    three_brokers: Cluster,
) -> None:
    """The survivor shows the committed records that it knows, and takes no write: another node
    may have been elected on the other side of a network cut. With one more node all goes on.
    """
    partitions = range(3)
    body = {"records": [{"value": value} for value in range(3)]}
    three_brokers.nodes[1].create_topic("all", len(partitions))
    for partition in partitions:
        three_brokers.nodes[1].request("POST", f"/topics/all/partitions/{partition}", body)
    survivor, *dead = three_brokers.nodes

    def read(node: MeasuredNode) -> list[list[int]]:
        """All partitions by the node's own replicas, led by it or not."""
        paths = [f"/topics/all/partitions/{one}/records?offset=0&replica=any" for one in partitions]
        return [[record["value"] for record in node.request("GET", path)] for path in paths]

    def is_read(node: MeasuredNode) -> bool:
        return read(node) == [[0, 1, 2]] * len(partitions)

    async def run() -> None:
        async with Producer(
            bootstrap_servers=three_brokers.servers,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        ) as producer:
            await asyncio.to_thread(three_brokers.kill, *dead)
            refused = await asyncio.gather(
                *(producer.send_and_wait("all", REFUSED, partition=one) for one in partitions),
                return_exceptions=True,
            )
            assert [type(one) for one in refused] == [DeliveryTimeoutError] * 3
            assert is_read(three_brokers.nodes[survivor])

    async def resume() -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            Producer(bootstrap_servers=three_brokers.servers) as producer,
        ):
            for partition in partitions:
                await producer.send_and_wait("all", b"3", partition=partition)

    for node in three_brokers.nodes.values():
        wait_until(partial(is_read, node), f"records at {node.address}", deadline_s=TIMEOUT_S)
    asyncio.run(run())
    three_brokers.restart(dead[0])
    three_brokers.wait_active(TIMEOUT_S)
    asyncio.run(resume())


# Leader election


def test_a_silent_leader_is_replaced_within_two_seconds() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [REPLICAS])
        await write_numbered(data)
        await data.in_sync()
        leader, *followers = REPLICAS
        cut_at = data.world.loop.now
        data.nodes.cut_off(leader)
        await data.led(T, *followers)
        assert data.world.loop.now - cut_at <= DETECTION_S
        data.world.network.heal()

    simulate_data(test, node_count=NODES)


def test_the_follower_with_the_most_recent_records_is_elected_and_the_others_follow_it() -> None:
    """The leader dies while one follower has a batch that the other lacks."""

    async def test(data: DataWorld) -> None:
        leader, recent, behind = REPLICAS
        await data.create("t", [REPLICAS])
        await write_numbered(data)
        await data.in_sync()
        data.nodes.cut_off(behind, [leader])
        # Acknowledged once the follower behind has left the in-sync set.
        sent = await data.producer("p").send(T, 3, within_s=10.0)
        assert sent is not None and sent.outcome == "ok"
        assert set(data.row(T).isr) == {leader, recent}
        data.nodes.kill(leader)
        await data.led(T, recent)
        await data.isr(T, recent, behind)
        assert (await read_values(data, behind, 6))[3:] == list(sent.values)
        data.nodes.start(leader)

    simulate_data(test, node_count=NODES)


# Consumers


def test_a_consumer_reads_from_an_offset_and_reads_it_again(one_broker: LoneNode) -> None:
    async def run() -> None:
        place = TopicPartition(TOPIC, 0)
        await produce_numbers(one_broker.address, 10)
        async with Consumer(bootstrap_servers=one_broker.address) as reader:
            reader.assign([place])
            for start in (7, 2, 2):
                reader.seek(place, start)
                found = [(await reader.getone()).offset for _ in range(start, 10)]
                assert found == list(range(start, 10))

    asyncio.run(run())


def test_a_consumer_that_crashes_before_its_commit_reads_at_least_once(
    one_broker: LoneNode,
) -> None:
    """Records are processed, then the offset is committed: a crash between repeats, never skips."""

    async def read_some(count: int, *, commits_after: int) -> list[int]:
        offsets: list[int] = []
        async with Consumer(
            TOPIC,
            bootstrap_servers=one_broker.address,
            group_id=GROUP,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=None,
        ) as reader:
            async with asyncio.timeout(TIMEOUT_S):
                while len(offsets) < count:
                    offsets.append((await reader.getone()).offset)
                    if len(offsets) == commits_after:
                        await reader.commit()
        return offsets

    async def run() -> None:
        await produce_numbers(one_broker.address, 10)
        assert await read_some(6, commits_after=4) == [0, 1, 2, 3, 4, 5]
        assert await read_some(6, commits_after=6) == [4, 5, 6, 7, 8, 9]

    asyncio.run(run())


async def produce_numbers(servers: str, count: int) -> None:
    """A new topic of one partition with so many records."""
    async with (
        Admin(bootstrap_servers=servers) as admin,
        Producer(bootstrap_servers=servers) as producer,
    ):
        await admin.create_topic(TOPIC, partitions=1)
        await producer.send_many(TOPIC, [b"%d" % number for number in range(count)])
