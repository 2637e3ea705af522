"""Fetch without a protocol: many partitions in turn, bounds, waits, and rights."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.broker.fetch import (
    FETCH_CHUNK_BYTES,
    FETCH_FRAME_BYTES,
    Fetched,
    MultiFetch,
    ReadProgress,
)
from raftlog.record.batch import iterate_batches
from raftlog.record.errors import (
    FORBIDDEN,
    INVALID_BODY,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC,
    UNKNOWN_TOPIC_ID,
    LogError,
)
from raftlog.record.frames import ProduceFrame
from raftlog.record.types import Offset, PartitionId
from tests.broker.data_fakes import waiting_readers
from tests.broker.harness import ALICE, DEFAULTS, TOPIC, BrokerHarness, Operation, encoded
from tests.waiting import DEADLINE_S, until

START = Offset(0)


async def put(one: BrokerHarness, topic: str, number: int, *values: bytes) -> None:
    frame = ProduceFrame(topic, PartitionId(number), encoded(values))
    (outcome,) = await one.broker.produce.append_batches(ALICE, [frame], DEFAULTS)
    assert not isinstance(outcome, LogError)
    one.authorizer.calls.clear()


def fetch_of(one: BrokerHarness, *wanted: tuple[str, int, int]) -> MultiFetch:
    fetch = one.broker.fetch.fetch(ALICE, len(wanted), any_replica=False)
    for topic, number, offset in wanted:
        fetch.add(topic, PartitionId(number), Offset(offset), max_bytes=10 << 20)
    return fetch


async def chunks(
    fetch: MultiFetch, max_bytes: int | None = None
) -> list[tuple[str, int, int, int]]:
    """Topic, partition, next offset and error code of each chunk."""
    return [
        (part.topic, part.number, fetched.next_offset, part.error.entry.code if part.error else 0)
        async for part, fetched in fetch.chunks(max_bytes)
    ]


async def test_every_partition_has_a_chunk_or_its_error() -> None:
    one = await BrokerHarness.start()
    await put(one, "six", 1, b"a", b"b")
    found = await chunks(fetch_of(one, ("six", 1, 0), ("six", 2, 0), ("none", 0, 0), ("one", 0, 9)))
    assert found == [
        ("six", 1, 2, 0),
        ("six", 2, 0, 0),
        ("none", 0, 0, UNKNOWN_TOPIC.code),
        ("one", 0, 9, OFFSET_OUT_OF_RANGE.code),
    ]
    counters = one.broker.topics.topic("one")
    assert (counters.fetch_requests, counters.failed_fetch_requests) == (1, 1)


async def test_partitions_take_turns_by_chunks() -> None:
    one = await BrokerHarness.start(response_bytes_max=10 << 20)
    half = bytes(FETCH_FRAME_BYTES // 2)
    for number in (0, 1):
        for _ in range(3):
            await put(one, "six", number, half)
    found = await chunks(fetch_of(one, ("six", 0, 0), ("six", 1, 0)))
    assert [(number, offset) for _, number, offset, _ in found] == [
        (0, 1),
        (1, 1),
        (0, 2),
        (1, 2),
        (0, 3),
        (1, 3),
    ]


async def test_answer_ends_with_the_batch_that_exceeds_its_bound() -> None:
    one = await BrokerHarness.start(response_bytes_max=1000)
    for number in (0, 1):
        await put(one, "six", number, bytes(900))
    fetch = fetch_of(one, ("six", 0, 0), ("six", 1, 0))
    sizes = [len(fetched.data) async for _, fetched in fetch.chunks(1 << 30)]
    assert sizes[0] > 900
    assert sizes[1] > 900, "a bound of some bytes takes one batch at least"
    small = [len(f.data) async for _, f in fetch_of(one, ("six", 0, 0), ("six", 1, 0)).chunks(500)]
    assert small[0] > 900
    assert small[1] == 0, "the partition has its marks, and no data"


async def test_fetch_is_authorized_once_for_each_topic_and_refused_by_partition() -> None:
    one = await BrokerHarness.start()
    await put(one, "six", 0, b"a")
    one.refuse(Operation.READ, "one")
    found = await chunks(fetch_of(one, ("six", 0, 0), ("six", 1, 0), ("one", 0, 0)))
    assert [code for _, _, _, code in found] == [0, 0, FORBIDDEN.code]
    assert one.authorizer.taken() == [
        (Operation.READ, TOPIC, "six"),
        (Operation.READ, TOPIC, "one"),
    ]
    assert one.broker.topics.topic("one").fetch_requests == 0


async def test_fetch_names_a_bounded_number_of_partitions() -> None:
    one = await BrokerHarness.start(partitions_per_request_max=1)
    with pytest.raises(LogError) as caught:
        one.broker.fetch.fetch(ALICE, 2, any_replica=False)
    assert caught.value.entry is INVALID_BODY


async def test_wait_ends_with_a_record_and_with_closing() -> None:
    one = await BrokerHarness.start()
    partition = one.node.replicas.here("one", 0)
    for end in (lambda: put(one, "one", 0, b"a"), None):
        fetch = fetch_of(one, ("one", 0, partition.log_end_offset))
        assert fetch.is_at_end()
        wait = asyncio.create_task(fetch.wait(min_bytes=1, timeout_s=60))
        await until(lambda: waiting_readers(partition))
        if end is None:
            one.broker.closing.set()
        else:
            await end()
        async with asyncio.timeout(DEADLINE_S):
            await wait


async def test_wait_is_bounded_by_the_settings() -> None:
    one = await BrokerHarness.start(long_poll_s_max=0.01)
    async with asyncio.timeout(DEADLINE_S):
        await fetch_of(one, ("one", 0, 0)).wait(min_bytes=1, timeout_s=60)


async def test_topic_id_of_an_earlier_topic_is_unknown() -> None:
    one = await BrokerHarness.start()
    fetch = one.broker.fetch.fetch(ALICE, 1, any_replica=False)
    fetch.add("one", PartitionId(0), START, max_bytes=100, topic_id="gone")
    assert [code for *_, code in await chunks(fetch)] == [UNKNOWN_TOPIC_ID.code]


async def test_read_takes_chunks_until_it_needs_no_more() -> None:
    one = await BrokerHarness.start()
    for _ in range(3):
        await put(one, "one", 0, bytes(FETCH_CHUNK_BYTES - 1000))
    partition = one.broker.fetch.partition(ALICE, "one", 0)
    assert one.authorizer.taken() == [(Operation.READ, TOPIC, "one")]
    progress = ReadProgress(START, None)
    taken: list[int] = []

    async def take(fetched: Fetched) -> bool:
        taken.extend(batch.header.base_offset for batch in iterate_batches(fetched.data))
        progress.count += 1
        progress.skip_to(Offset(taken[-1] + 1))
        return len(taken) == 2

    last = await one.broker.fetch.read(partition, progress, take, max_bytes=1 << 20, timeout_s=0)
    assert (taken, progress.offset, last.high_watermark) == ([0, 1], 2, 3)


async def test_handles_of_a_topic_need_the_right_to_read() -> None:
    one = await BrokerHarness.start()
    assert [each.partition for each in one.broker.fetch.partitions(ALICE, "six", None)] == [
        *range(6)
    ]
    assert one.authorizer.taken() == [(Operation.READ, TOPIC, "six")]
    one.refuse(Operation.READ, "six")
    with pytest.raises(LogError) as caught:
        one.broker.fetch.partitions(ALICE, "six", [1])
    assert caught.value.entry is FORBIDDEN
