"""Leaders that die, hang, hand over or lose their disk: neither records nor much time are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from raftlog_client import (
    ConnectionLostError,
    Consumer,
    DeliveryTimeoutError,
    Producer,
    ServerError,
)

from raftlog.record.errors import (
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    NOT_READY,
    STORAGE_FAILED,
    ErrorEntry,
)
from tests.client.fake_node import FakeCluster, Fault, topic_json
from tests.client.fake_partition import FakePartition
from tests.client.test_consumer import append
from tests.waiting import DEADLINE_S

PRODUCE, FETCH, METADATA = "/v1/produce", "/v1/fetch", "/v1/metadata"


@pytest.fixture
async def three() -> AsyncIterator[FakeCluster]:
    """Three nodes; the topic `t` has one partition, held by all and led by node 1."""
    async with FakeCluster(3) as fake:
        fake.create_topic("t", 1)
        partition_of(fake).replicas = [node.broker_id for node in fake.nodes]
        yield fake
        for node in fake.nodes:
            for event in (node.stopped, node.stopped_after):
                if event is not None:
                    event.set()


def partition_of(cluster: FakeCluster) -> FakePartition:
    return cluster.topics["t"].partitions[0]


def lead(cluster: FakeCluster, number: int) -> None:
    partition_of(cluster).lead(cluster.nodes[number].broker_id)


def values(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def producing(cluster: FakeCluster, **settings: Any) -> AsyncIterator[Producer]:
    async with Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:
        await producer.send_and_wait("t", values(1)[0])
        yield producer


async def test_a_killed_leader_costs_only_the_time_until_there_is_another(
    three: FakeCluster,
) -> None:
    async with producing(three, batch_bytes_max=1024) as producer:
        await three.nodes[0].stop()
        futures = [await producer.send("t", value) for value in values(200)[1:]]
        await asyncio.sleep(0.3)
        lead(three, 2)
        began = now()
        await asyncio.gather(*futures)
        assert now() - began < 0.5
    assert partition_of(three).values() == values(200)


@pytest.mark.parametrize("has_written", [False, True])
async def test_a_hanging_leader_is_left_once_there_is_another(
    three: FakeCluster, has_written: bool
) -> None:
    async with producing(three, batch_bytes_max=1024) as producer:
        stopped = asyncio.Event()
        if has_written:
            three.nodes[0].stopped_after = stopped
        else:
            three.nodes[0].stopped = stopped
        futures = [await producer.send("t", value) for value in values(200)[1:]]
        await asyncio.sleep(0.8)
        assert not any(future.done() for future in futures)
        lead(three, 1)
        began = now()
        await asyncio.gather(*futures)
        assert now() - began < 1.2
        stopped.set()
        await asyncio.sleep(0.05)
    assert partition_of(three).values() == values(200), "in order, each once"


async def test_without_idempotence_a_hanging_leader_leaves_the_outcome_unknown(
    three: FakeCluster,
) -> None:
    async with producing(three, idempotent=False) as producer:
        three.nodes[0].stopped_after = asyncio.Event()
        future = await producer.send("t", b"001")
        await asyncio.sleep(0.1)
        lead(three, 1)
        with pytest.raises(Exception, match="other nodes lead") as caught:
            await asyncio.wait_for(future, 3.0)
        assert getattr(caught.value, "outcome_unknown", None) is True
        three.nodes[0].stopped_after.set()


async def test_a_slow_leader_that_stays_the_leader_is_waited_for(three: FakeCluster) -> None:
    async with producing(three) as producer:
        three.fail(PRODUCE, Fault(delay_s=1.5))
        await producer.send_and_wait("t", b"001")
    assert partition_of(three).append_count == 2
    assert three.requests[PRODUCE] == 2


async def test_the_delivery_timeout_bounds_it_all(three: FakeCluster) -> None:
    async with producing(three, delivery_timeout_ms=700) as producer:
        await three.nodes[0].stop()
        began = now()
        with pytest.raises(DeliveryTimeoutError):
            await producer.send_and_wait("t", b"001")
        assert 0.6 < now() - began < 1.5


@pytest.mark.parametrize("refusal", [NO_LEADER, NOT_READY, STORAGE_FAILED])
async def test_a_new_leader_ends_the_pause_after_a_failure(
    three: FakeCluster, refusal: ErrorEntry
) -> None:
    """The pause is long here: only new metadata can end it in time."""
    async with producing(three, retry_backoff_ms=20_000, retry_backoff_max_ms=20_000) as producer:
        three.fail(METADATA, Fault(delay_s=0.2))
        three.fail(PRODUCE, Fault(frame_errors={0: refusal}))
        sending = asyncio.ensure_future(producer.send_and_wait("t", b"001"))
        await three.wait_for_requests(PRODUCE, 2)
        lead(three, 1)
        await asyncio.wait_for(sending, 2.0)
    assert partition_of(three).values() == values(2)


async def test_a_node_that_starts_is_not_asked_for_ever(three: FakeCluster) -> None:
    """The whole request is refused, as by a node before the load of its metadata."""
    async with producing(three) as producer:
        three.fail(PRODUCE, *[Fault(error=NOT_READY)] * 3)
        lead(three, 1)
        await asyncio.wait_for(producer.send_and_wait("t", b"001"), 2.0)
    assert partition_of(three).values() == values(2)


async def test_too_few_replicas_are_asked_again_soon(three: FakeCluster) -> None:
    async with producing(three) as producer:
        three.fail(PRODUCE, *[Fault(frame_errors={0: NOT_ENOUGH_REPLICAS})] * 6)
        began = now()
        await producer.send_and_wait("t", b"001")
        # About 20, 40, 80, 160, 250 and 250 ms.
        assert 0.5 < now() - began < 1.5


async def test_storage_that_fails_is_told_at_once_if_nobody_else_holds_the_partition(
    three: FakeCluster,
) -> None:
    partition_of(three).replicas = []
    async with producing(three) as producer:
        three.fail(PRODUCE, Fault(frame_errors={0: STORAGE_FAILED}))
        with pytest.raises(ServerError) as caught:
            await asyncio.wait_for(producer.send_and_wait("t", b"001"), 2.0)
        assert caught.value.entry is STORAGE_FAILED


async def test_the_metadata_never_goes_back_to_an_older_leader(three: FakeCluster) -> None:
    three.nodes[1].view = {"t": topic_json(three.topics["t"])}
    three.nodes[2].view = three.nodes[1].view
    async with producing(three) as producer:
        lead(three, 1)
        three.nodes[0].view = {"t": topic_json(three.topics["t"])}
        metadata = producer._metadata
        while metadata.leader_address("t", 0) != f"127.0.0.1:{three.nodes[1].port}":
            await metadata.refresh(("t",))
        three.nodes[0].view = three.nodes[1].view
        for _ in range(4):
            await metadata.refresh(("t",))
            await metadata.refresh(None)
            assert metadata.leader_address("t", 0) == f"127.0.0.1:{three.nodes[1].port}"
        three.add_partitions("t", 2)
        for node in three.nodes[:2]:
            node.view = None
        while not metadata.has_partition("t", 1):
            await metadata.refresh(("t",))
        for _ in range(4):
            await metadata.refresh(("t",))
            assert metadata.has_partition("t", 1)


async def test_a_node_that_is_gone_or_silent_is_not_asked_first(three: FakeCluster) -> None:
    async with producing(three) as producer:
        metadata = producer._metadata
        three.nodes[1].stopped = asyncio.Event()
        for _ in range(3):
            await metadata.refresh(("t",))
        began = now()
        for _ in range(12):
            await metadata.refresh(("t",))
        assert now() - began < 0.4, "the silent one costs half a second, once"


async def test_calls_keep_their_order_while_their_topic_is_looked_up(three: FakeCluster) -> None:
    async with Producer(bootstrap_servers=three.bootstrap) as producer:
        sending: list[asyncio.Future[Any]] = []
        three.fail(METADATA, Fault(delay_s=0.05))
        for value in values(400):
            sending.append(asyncio.ensure_future(producer.send_and_wait("t", value, partition=0)))
            # New calls come in every turn of the loop, also in the turn of the topic's discovery.
            await asyncio.sleep(0 if producer._lookups or not producer._topics else 0.0001)
        await asyncio.gather(*sending)
        assert not producer._lookups
    assert partition_of(three).values() == values(400)


# Reading


@asynccontextmanager
async def consuming(cluster: FakeCluster, **settings: Any) -> AsyncIterator[Consumer[Any, Any]]:
    append(partition_of(cluster), *values(3))
    async with Consumer(
        "t", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", **settings
    ) as consumer:
        assert await take(consumer, 3) == values(3)
        yield consumer


async def take(consumer: Consumer[Any, Any], count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            found.append((await consumer.getone()).value)
    return found


async def test_reading_goes_on_when_the_leader_is_killed(three: FakeCluster) -> None:
    async with consuming(three) as consumer:
        await three.nodes[0].stop()
        await asyncio.sleep(0.2)
        lead(three, 2)
        append(partition_of(three), *values(5)[3:])
        began = now()
        assert await take(consumer, 2) == values(5)[3:]
        assert now() - began < 0.6


async def test_reading_goes_on_when_the_leader_hangs(three: FakeCluster) -> None:
    async with consuming(three, fetch_max_wait_ms=100) as consumer:
        three.nodes[0].stopped = asyncio.Event()
        await asyncio.sleep(0.2)
        lead(three, 1)
        append(partition_of(three), *values(5)[3:])
        began = now()
        assert await take(consumer, 2) == values(5)[3:]
        assert now() - began < 2.0


@pytest.mark.parametrize("refusal", [NO_LEADER, NOT_READY, STORAGE_FAILED])
async def test_a_new_leader_ends_the_readers_pause(three: FakeCluster, refusal: ErrorEntry) -> None:
    async with consuming(
        three, retry_backoff_ms=20_000, retry_backoff_max_ms=20_000, fetch_max_wait_ms=50
    ) as consumer:
        three.fail(METADATA, Fault(delay_s=0.2))
        three.fail(FETCH, Fault(error=refusal))
        await three.wait_for_requests(FETCH, three.requests[FETCH] + 1)
        lead(three, 1)
        append(partition_of(three), *values(5)[3:])
        assert await asyncio.wait_for(take(consumer, 2), 2.0) == values(5)[3:]


@pytest.mark.parametrize("timeout_ms", [None, 10.0, 5_000.0])
@pytest.mark.parametrize("are_killed", [True, False])
async def test_a_reader_whose_nodes_are_all_gone_is_told_and_goes_on_once_they_are_back(
    three: FakeCluster, are_killed: bool, timeout_ms: float | None
) -> None:
    async def read(consumer: Consumer[Any, Any]) -> list[bytes]:
        if timeout_ms is None:
            return await take(consumer, 1)
        async with asyncio.timeout(DEADLINE_S):
            while not (found := await consumer.getmany(timeout_ms=timeout_ms)):
                continue
        return [record.value for records in found.values() for record in records]

    async with consuming(three, request_timeout_ms=700, fetch_max_wait_ms=50) as consumer:
        for node in three.nodes:
            if are_killed:
                await node.stop()
            else:
                node.stopped = asyncio.Event()
        began = now()
        for _ in range(2):
            with pytest.raises(ConnectionLostError, match=r"No node has answered for 0\.7 s"):
                await read(consumer)
        assert now() - began >= 0.7
        for node in three.nodes:
            if node.stopped is None:
                await node.start()
            else:
                node.stopped.set()
                node.stopped = None
        append(partition_of(three), *values(4)[3:])
        while True:
            try:
                assert await read(consumer) == values(4)[3:]
                break
            except ConnectionLostError:
                # Found before the nodes were back.
                continue


async def test_a_reader_is_told_that_the_only_node_hangs() -> None:
    async with FakeCluster(1) as lone:
        lone.create_topic("t", 1)
        async with consuming(lone, request_timeout_ms=300, fetch_max_wait_ms=50) as consumer:
            lone.nodes[0].stopped = asyncio.Event()
            began = now()
            with pytest.raises(ConnectionLostError, match="No node has answered"):
                await asyncio.wait_for(consumer.getone(), 5)
            assert now() - began >= 0.3
            lone.nodes[0].stopped.set()
