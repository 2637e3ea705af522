"""Producers with a fencing id: one at a time writes, and no batch follows a missing one."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from raftlog_client import (
    ClientClosedError,
    DeliveryTimeoutError,
    FencedError,
    IllegalStateError,
    Producer,
    ProducerBrokenError,
    RaftlogClientError,
    SendManyError,
    ServerError,
)

from raftlog.record.errors import (
    CORRUPT_BATCH,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER_SEQUENCE,
    OVERLOADED,
    RETRIABLE,
    UNKNOWN_PRODUCER_ID,
    ErrorEntry,
)
from raftlog.record.header import parse_header
from tests.client.fake_node import FakeCluster, Fault
from tests.client.fake_partition import FakePartition
from tests.client.test_end_to_end import read
from tests.waiting import DEADLINE_S

INIT = "/v1/transactions/{id}/init"
PRODUCE = "/v1/produce"


def producer(cluster: FakeCluster, **settings: Any) -> Producer:
    defaults = {"fencing_id": "x", "retry_backoff_ms": 1, "retry_backoff_max_ms": 5}
    return Producer(bootstrap_servers=cluster.bootstrap, **(defaults | settings))


def log(cluster: FakeCluster, partition: int = 0) -> FakePartition:
    return cluster.topics["t"].partitions[partition]


def identities(partition: FakePartition) -> list[tuple[int, int, int]]:
    """Producer id, epoch and base sequence of each batch in the log."""
    headers = [parse_header(data) for data in partition.batches]
    assert not any(header.is_transactional for header in headers)
    return [(one.producer_id, one.producer_epoch, one.base_sequence) for one in headers]


async def test_each_start_takes_the_next_epoch_of_the_same_producer_id(
    single: FakeCluster,
) -> None:
    for number in range(3):
        async with producer(single) as sending:
            await sending.send_and_wait("t", b"%d" % number)
            await sending.send_and_wait("t", b"%d" % number)
    [known] = {producer_id for producer_id, _, _ in identities(log(single))}
    assert identities(log(single)) == [
        (known, epoch, sequence) for epoch in range(3) for sequence in range(2)
    ]
    assert single.requests["/v1/producer-ids"] == 0


async def test_a_newer_producer_fences_the_older_one_for_good(bootstrap: str, topic: str) -> None:
    """Against the fake cluster, and a real node."""
    first = Producer(bootstrap_servers=bootstrap, fencing_id=topic)
    second = Producer(bootstrap_servers=bootstrap, fencing_id=topic)
    async with first, second:
        await first.send_and_wait(topic, b"1", partition=0)
        # A fence of partition 0, where the second one has written; not of partition 1.
        await second.send_and_wait(topic, b"2", partition=0)
        with pytest.raises(FencedError, match=rf"fencing id '{topic}' has taken over") as fenced:
            await first.send_and_wait(topic, b"late", partition=0)
        assert not fenced.value.outcome_unknown
        for _ in range(2):
            with pytest.raises(FencedError, match="taken over"):
                await first.send(topic, b"late", partition=1)
            with pytest.raises(FencedError, match="taken over"):
                await first.send_many(topic, [b"late"])
            with pytest.raises(FencedError, match="taken over"):
                await first.send_batch(topic, 1, bytearray())
        await second.send_and_wait(topic, b"3", partition=0)
    assert [one.value for one in await read(bootstrap, topic, 3)] == [b"1", b"2", b"3"]


async def test_a_partition_without_a_record_of_the_newer_producer_is_not_fenced(
    cluster: FakeCluster,
) -> None:
    """The contract: the newer producer writes to a partition before it relies on the fence."""
    async with producer(cluster) as first, producer(cluster) as second:
        await first.send_and_wait("t", b"before", partition=0)
        await second.send_and_wait("t", b"fence", partition=1)
        await first.send_and_wait("t", b"not fenced", partition=0)
        with pytest.raises(FencedError):
            await first.send_and_wait("t", b"late", partition=1)
    assert log(cluster, 1).values() == [b"fence"]


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(drop_before=True), Fault(drop_after=True), Fault(drop_after=True)],
        [Fault(error=OVERLOADED), Fault(error=RETRIABLE)],
        [Fault(frame_errors={0: NOT_ENOUGH_REPLICAS})],
    ],
)
async def test_faults_that_pass_neither_lose_nor_duplicate_nor_break_the_producer(
    single: FakeCluster, faults: list[Fault]
) -> None:
    single.fail(PRODUCE, *faults)
    async with producer(single, batch_bytes_max=1024) as sending:
        futures = [await sending.send("t", b"%03d" % number) for number in range(300)]
        await asyncio.gather(*futures)
        sent = await sending.send_many("t", [b"%03d" % number for number in range(300, 400)])
    assert sent.count == 100
    assert log(single).values() == [b"%03d" % number for number in range(400)]


@pytest.mark.parametrize("entry", [CORRUPT_BATCH, UNKNOWN_PRODUCER_ID, OUT_OF_ORDER_SEQUENCE])
async def test_no_batch_follows_one_that_failed(single: FakeCluster, entry: ErrorEntry) -> None:
    async with producer(single, batch_bytes_max=1024) as sending, asyncio.timeout(DEADLINE_S):
        await sending.send_and_wait("t", b"0")
        single.fail(PRODUCE, Fault(frame_errors={0: entry}))
        refused = await sending.send("t", b"refused")
        await asyncio.sleep(0)
        behind = [await sending.send("t", bytes(300)) for _ in range(20)]
        with pytest.raises(RaftlogClientError, match=entry.message[:20]) as failed:
            await refused
        assert not failed.value.outcome_unknown
        for future in behind:
            with pytest.raises(ProducerBrokenError, match="start another one"):
                await future
        for _ in range(2):
            with pytest.raises(ProducerBrokenError, match="'x' is broken by an earlier batch"):
                await sending.send("t", b"later")
    assert log(single).values() == [b"0"]
    assert single.requests["/v1/producer-ids"] == 0
    async with producer(single) as following:
        await following.send_and_wait("t", b"1")
    assert log(single).values() == [b"0", b"1"]


async def test_a_batch_of_unknown_outcome_breaks_the_producer(single: FakeCluster) -> None:
    single.fail(PRODUCE, *[Fault(drop_after=True)] * 1_000)
    async with producer(single, delivery_timeout_ms=100) as sending:
        with pytest.raises(DeliveryTimeoutError) as unknown:
            await sending.send_and_wait("t", b"perhaps")
        assert unknown.value.outcome_unknown
        with pytest.raises(ProducerBrokenError) as broken:
            await sending.send("t", b"later")
        assert not broken.value.outcome_unknown
    single.faults.clear()
    assert log(single).values() == [b"perhaps"]


async def test_a_fenced_batch_of_unknown_outcome_says_so(single: FakeCluster) -> None:
    slow = {"retry_backoff_ms": 200, "retry_backoff_max_ms": 200}
    async with producer(single, **slow) as first, producer(single) as second:
        single.fail(PRODUCE, Fault(drop_after=True))
        future = await first.send("t", b"1")
        await single.wait_for_requests(PRODUCE, 1)
        await second.send_and_wait("t", b"2")
        with pytest.raises(DeliveryTimeoutError, match="may have written it") as unknown:
            await future
        assert unknown.value.outcome_unknown
        assert isinstance(unknown.value.__cause__, FencedError)
        with pytest.raises(FencedError):
            await first.send("t", b"3")
    assert log(single).values() == [b"1", b"2"]


async def test_a_bulk_send_ends_at_the_failure_of_another_batch(cluster: FakeCluster) -> None:
    async with producer(cluster) as sending:
        await sending.send_and_wait("t", b"0", partition=0)

        async def endless() -> Any:
            while True:
                yield b"bulk"
                await asyncio.sleep(0)

        bulk = asyncio.ensure_future(sending.send_many("t", endless(), partition=1))
        await cluster.wait_for_requests(PRODUCE, 3)
        log(cluster).producers[next(iter(log(cluster).producers))].producer_epoch += 1
        with pytest.raises(FencedError):
            await sending.send_and_wait("t", b"late", partition=0)
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(SendManyError) as failed:
                await bulk
        assert isinstance(failed.value.__cause__, FencedError)
        assert log(cluster, 1).values() == [b"bulk"] * failed.value.summary.count


async def test_batches_of_other_partitions_in_flight_get_their_outcome(
    cluster: FakeCluster,
) -> None:
    async with producer(cluster) as sending:
        for partition in (0, 1):
            await sending.send_and_wait("t", b"0", partition=partition)
        cluster.fail(PRODUCE, Fault(delay_s=0.2), Fault(frame_errors={0: CORRUPT_BATCH}))
        slow = await sending.send("t", b"slow", partition=0)
        await cluster.wait_for_requests(PRODUCE, 3)
        with pytest.raises(ServerError):
            await sending.send_and_wait("t", b"refused", partition=1)
        assert (await slow).offset == 1


async def test_the_epoch_is_renewed_unless_another_producer_has_it(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A coordinator forgets an id without changes, and then gives the next producer another id."""
    monkeypatch.setattr("raftlog_client.transactions.fencing.RENEWAL_S", 0.01)
    monkeypatch.setattr("raftlog_client.transactions.fencing.RENEWAL_RETRY_S", 0.001)
    async with producer(single) as sending:
        single.fail(INIT, Fault(error=CORRUPT_BATCH))
        await single.wait_for_requests(INIT, 4)
        [warning] = [one for one in caplog.messages if "could not be renewed" in one]
        assert "fencing id x" in warning
        for number in range(10):
            await sending.send_and_wait("t", b"%d" % number)
            # A batch in flight when the epoch is renewed keeps its partition in the epoch before.
            await single.wait_for_requests(INIT, single.requests[INIT] + 1)
            await asyncio.sleep(number / 1_000)
        assert log(single).values() == [b"%d" % number for number in range(10)]
        assert len({epoch for _, epoch, _ in identities(log(single))}) > 1
        assert len({producer_id for producer_id, _, _ in identities(log(single))}) == 1
        caplog.clear()
        async with producer(single), asyncio.timeout(DEADLINE_S):
            with pytest.raises(FencedError):
                while True:
                    await sending.send_and_wait("t", b"until the renewal is refused")
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


async def test_settings_that_do_not_go_together_are_refused(single: FakeCluster) -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        producer(single, transactional_id="x")
    with pytest.raises(ValueError, match="fencing_id must have acks='all' and idempotent=True"):
        producer(single, acks=1)
    with pytest.raises(ValueError, match="fencing_id must have acks='all' and idempotent=True"):
        producer(single, idempotent=False)
    with pytest.raises(ValueError, match="fencing_id must have 1 to 255"):
        producer(single, fencing_id="")
    sending = producer(single)
    with pytest.raises(IllegalStateError):
        sending.transaction()
    with pytest.raises(ClientClosedError):
        await sending.send("t", b"1")


async def test_a_quiet_life_logs_nothing(
    single: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with producer(single) as sending:
        await sending.send_and_wait("t", b"1")
    async with producer(single) as sending:
        await sending.send("t", b"2")
    assert [one for one in caplog.records if one.name == "raftlog_client"] == []
