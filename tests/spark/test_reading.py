"""Ranges read as raw bytes: always the same records, whatever happens to leaders and topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from raftlog_spark.cluster import Cluster
from raftlog_spark.errors import (
    ClusterUnavailable,
    OffsetOutOfRange,
    RaftlogSparkError,
    TopicGone,
    TopicRecreated,
)
from raftlog_spark.options import Isolation, SourceOptions, Subscription
from raftlog_spark.source.planning import Range
from raftlog_spark.source.readers import read_task

from raftlog.record.batch import RecordBatch, split_batches
from raftlog.record.codec import BatchBuilder
from raftlog.record.errors import NO_LEADER, STORAGE_FAILED
from raftlog.record.header import parse_header
from raftlog.record.types import ProducerEpoch, ProducerId
from tests.client.fake_node import FakeCluster, Fault
from tests.client.fake_partition import FakePartition
from tests.spark.query_parts import blocking, encoded, values_in
from tests.waiting import until

FETCH = "/v1/fetch"
COUNT = 40
"""Records in the partition, two to a batch."""


def values(start: int = 0, end: int = COUNT) -> list[bytes]:
    return [b"%03d" % number for number in range(start, end)]


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    """Two nodes that both hold `t-0`, with the first as leader."""
    async with FakeCluster(2) as cluster:
        fill(cluster)
        yield cluster


def fill(cluster: FakeCluster) -> None:
    cluster.create_topic("t", 1)
    partition = partition_of(cluster)
    partition.replicas = [node.broker_id for node in cluster.nodes]
    for number in range(0, COUNT, 2):
        for batch in split_batches(
            bytes(encoded(*values(number, number + 2))), max_message_bytes=1 << 20
        ):
            partition.append(batch)


def partition_of(cluster: FakeCluster) -> FakePartition:
    return cluster.topics["t"].partitions[0]


def topic_id(cluster: FakeCluster) -> str:
    return cluster.topics["t"].topic_id


@pytest.fixture
def cluster(fake: FakeCluster) -> Iterator[Cluster]:
    with Cluster(fake.bootstrap, request_timeout_s=5.0) as one:
        yield one


async def read(
    fake: FakeCluster,
    cluster: Cluster,
    start: int = 0,
    end: int = COUNT,
    *,
    fetch_bytes: int = 400,
    of_id: str | None = None,
) -> list[bytes]:
    def all_of_it() -> list[bytes]:
        chunks = cluster.read(
            "t",
            of_id or topic_id(fake),
            0,
            start,
            end,
            fetch_bytes=fetch_bytes,
            isolation="read_committed",
        )
        return values_in(chunks, start, end)

    return await blocking(all_of_it)


@pytest.mark.parametrize(("start", "end"), [(0, COUNT), (3, 17), (4, 6), (5, 6), (39, 40), (7, 7)])
@pytest.mark.parametrize("fetch_bytes", [1, 400, 1 << 20])
async def test_a_range_is_read_exactly(
    fake: FakeCluster, cluster: Cluster, start: int, end: int, fetch_bytes: int
) -> None:
    assert await read(fake, cluster, start, end, fetch_bytes=fetch_bytes) == values(start, end)


async def test_no_more_is_fetched_than_the_range_needs(fake: FakeCluster, cluster: Cluster) -> None:
    def size() -> int:
        chunks = cluster.read("t", topic_id(fake), 0, 5, 9, fetch_bytes=1 << 20)
        return sum(len(chunk.data) for chunk in chunks)

    # Offsets 4 to 9: three batches, of which the first and the last are straddled.
    assert await blocking(size) == sum(len(data) for data in partition_of(fake).batches[2:5])
    assert fake.requests[FETCH] == 1


async def test_the_next_fetch_is_under_way_while_the_caller_works(
    fake: FakeCluster, cluster: Cluster
) -> None:
    chunks = cluster.read("t", topic_id(fake), 0, 0, COUNT, fetch_bytes=400)
    first = await blocking(lambda: next(chunks))
    await asyncio.wait_for(fake.wait_for_requests(FETCH, 2), 5.0)
    await asyncio.sleep(0.05)
    assert fake.requests[FETCH] == 2, "one ahead, no more"
    rest = await blocking(lambda: list(chunks))
    assert values_in([first, *rest]) == values()


async def test_a_reader_that_is_left_asks_for_nothing_more(
    fake: FakeCluster, cluster: Cluster
) -> None:
    def first_only() -> None:
        for _ in cluster.read("t", topic_id(fake), 0, 0, COUNT, fetch_bytes=400):
            break

    await blocking(first_only)
    assert fake.requests[FETCH] <= 2
    assert len(await read(fake, cluster)) == COUNT


async def test_a_reader_that_is_left_gives_up_what_it_waits_for(fake: FakeCluster) -> None:
    cluster = Cluster(fake.bootstrap, request_timeout_s=60.0)
    chunks = cluster.read("t", topic_id(fake), 0, 0, COUNT, fetch_bytes=100)
    fake.fail(FETCH, Fault(), *[Fault(delay_s=60.0)] * 10)
    await blocking(lambda: next(chunks))
    await asyncio.wait_for(fake.wait_for_requests(FETCH, 2), 5.0)
    assert cluster._parts is not None
    loop = cluster._parts.background._loop
    assert asyncio.all_tasks(loop)
    await blocking(chunks.close)  # type: ignore[attr-defined]
    await until(lambda: not asyncio.all_tasks(loop))
    await blocking(cluster.close)


async def test_a_new_leader_is_followed_without_gap_or_repeat(
    fake: FakeCluster, cluster: Cluster
) -> None:
    chunks = cluster.read("t", topic_id(fake), 0, 0, COUNT, fetch_bytes=400)
    first = await blocking(lambda: next(chunks))
    await fake.nodes[0].stop()
    partition_of(fake).lead(fake.nodes[1].broker_id)
    rest = await blocking(lambda: list(chunks))
    assert values_in([first, *rest]) == values()


async def test_a_leader_that_hangs_is_left_once_there_is_another(
    fake: FakeCluster, cluster: Cluster
) -> None:
    chunks = cluster.read("t", topic_id(fake), 0, 0, COUNT, fetch_bytes=100)
    first = await blocking(lambda: next(chunks))
    fake.nodes[0].stopped = stopped = asyncio.Event()
    reading = asyncio.create_task(blocking(lambda: list(chunks)))
    await asyncio.sleep(0.2)
    partition_of(fake).lead(fake.nodes[1].broker_id)
    # Well before the request timeout.
    rest = await asyncio.wait_for(reading, 4.0)
    stopped.set()
    assert values_in([first, *rest]) == values()


async def test_an_answer_that_breaks_off_counts_as_far_as_it_came(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.is_framing_batches = True
    # No answer ever comes whole: the reader advances only by each answer's whole frames.
    fake.fail(FETCH, *[Fault(frames_max=2)] * 100)
    assert await read(fake, cluster, 0, 21, fetch_bytes=1 << 20) == values(0, 21)
    assert fake.requests[FETCH] == 6


async def test_an_answer_without_a_whole_frame_is_asked_for_again(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.fail(FETCH, *[Fault(frames_max=0)] * 2)
    assert await read(fake, cluster, fetch_bytes=1 << 20) == values()
    assert fake.requests[FETCH] == 3


async def test_refusals_that_pass_are_tried_again(fake: FakeCluster, cluster: Cluster) -> None:
    fake.fail(
        FETCH,
        Fault(error=NO_LEADER),
        Fault(drop_before=True),
        Fault(error=STORAGE_FAILED),
        Fault(drop_after=True),
    )
    assert await read(fake, cluster) == values()


async def test_records_that_retention_took_are_told_with_what_is_left(
    fake: FakeCluster, cluster: Cluster
) -> None:
    partition_of(fake).log_start_offset = 12
    with pytest.raises(OffsetOutOfRange) as caught:
        await read(fake, cluster, 3, 30)
    error = caught.value
    assert (error.topic, error.partition, error.offset, error.lowest) == ("t", 0, 3, 12)
    assert await read(fake, cluster, 12, 30) == values(12, 30)


async def test_what_was_read_comes_before_the_news_that_the_rest_is_gone(
    fake: FakeCluster, cluster: Cluster
) -> None:
    chunks = cluster.read("t", topic_id(fake), 0, 0, COUNT, fetch_bytes=100)
    first = await blocking(lambda: next(chunks))
    assert values_in([first]) == values(0, 2)
    await asyncio.wait_for(fake.wait_for_requests(FETCH, 2), 5.0)
    partition_of(fake).log_start_offset = 20
    taken = [first]

    def rest() -> None:
        for chunk in chunks:
            taken.append(chunk)

    with pytest.raises(OffsetOutOfRange) as caught:
        await blocking(rest)
    assert caught.value.lowest == 20
    assert values_in(taken) == values(0, 4)


async def test_an_end_that_is_not_there_is_waited_for_and_then_told(fake: FakeCluster) -> None:
    with Cluster(fake.bootstrap, request_timeout_s=0.8) as cluster:
        with pytest.raises(ClusterUnavailable, match="offset 40"):
            await read(fake, cluster, 30, COUNT + 5)
        with pytest.raises(RaftlogSparkError):
            await read(fake, cluster, COUNT + 3, COUNT + 5)


async def test_a_topic_that_was_deleted_is_told(fake: FakeCluster, cluster: Cluster) -> None:
    before = topic_id(fake)
    assert await read(fake, cluster, 0, 4) == values(0, 4)
    del fake.topics["t"]
    with pytest.raises(TopicGone) as caught:
        await read(fake, cluster, of_id=before)
    assert (caught.value.topic, caught.value.topic_id) == ("t", before)


async def test_a_topic_recreated_is_not_read_for_the_old_one(
    fake: FakeCluster, cluster: Cluster
) -> None:
    before = topic_id(fake)
    assert await read(fake, cluster, 0, 4) == values(0, 4)
    del fake.topics["t"]
    fill(fake)
    with pytest.raises(TopicRecreated) as caught:
        await read(fake, cluster, of_id=before)
    assert (caught.value.topic_id, caught.value.found_id) == (before, topic_id(fake))
    assert await read(fake, cluster) == values()


async def test_nobody_there_is_told_in_time(fake: FakeCluster) -> None:
    with Cluster(fake.bootstrap, request_timeout_s=0.5) as cluster:
        await read(fake, cluster, 0, 2)
        partition_of(fake).lead(-1)
        with pytest.raises(ClusterUnavailable, match="'t'"):
            await read(fake, cluster)


def transactions(partition: FakePartition) -> None:
    """Two producers' transactions in turn after what is there, a third one's is open."""
    sequences = [0, 0, 0]

    def append(producer: int, name: bytes) -> None:
        builder = BatchBuilder(transactional=True)
        builder.append(0, None, name)
        builder.set_producer_state(ProducerId(producer), ProducerEpoch(0), sequences[producer])
        sequences[producer] += 1
        data = builder.build()
        partition.append(RecordBatch(parse_header(data), memoryview(data)))

    def end(producer: int, *, is_commit: bool) -> None:
        partition.write_marker(producer, 0, is_commit=is_commit)
        sequences[producer] = 0

    for number in range(12):
        append(0, b"0:%d" % number)
        append(1, b"1:%d" % number)
        append(0, b"0:%d+" % number)
        end(0, is_commit=number % 3 == 0)
        if number % 4 == 3:
            end(1, is_commit=number == 7)
    append(2, b"open")
    append(0, b"later")
    end(0, is_commit=True)


@pytest.mark.parametrize("fetch_bytes", [1, 400, 1 << 20])
@pytest.mark.parametrize("is_framing_batches", [False, True])
@pytest.mark.parametrize("columns", [("offset",), ("offset", "value")])
async def test_tasks_read_what_is_committed_whatever_the_ranges_and_chunks(
    fake: FakeCluster,
    cluster: Cluster,
    fetch_bytes: int,
    is_framing_batches: bool,
    columns: tuple[str, ...],
) -> None:
    fake.is_framing_batches = is_framing_batches
    partition = partition_of(fake)
    transactions(partition)
    bounds = await blocking(lambda: cluster.bounds(["t"], isolation="read_committed"))
    end = bounds["t", 0].end
    assert end == partition.last_stable_offset < partition.end_offset
    expected = [value for value in partition.committed_values() if value is not None]
    assert len(expected) == COUNT + 8 + 4
    assert b"open" not in expected
    by_offset = {offset: value for offset, _, value in partition.records()}

    def task(first: int, last: int, isolation: Isolation) -> list[bytes | None]:
        subscription = Subscription(topics=("t",))
        options = SourceOptions(
            fake.bootstrap, subscription, isolation=isolation, fetch_bytes=fetch_bytes
        )
        found = read_task(
            options, columns, Range("t", topic_id(fake), 0, first, last), connect=lambda _: cluster
        )
        offsets = [offset for rows in found for offset in rows.column("offset").to_pylist()]
        assert all(first <= offset < last for offset in offsets)
        return [by_offset[offset] for offset in offsets]

    # Cuts in the middle of transactions, and ranges without any record that may be read.
    for step in (1, 7, end):
        read: list[bytes | None] = []
        for first in range(COUNT - 4 if step == 1 else 0, end, step):
            read += await blocking(
                lambda: task(first, min(first + step, end), "read_committed")  # noqa: B023
            )
        assert read == (expected[COUNT - 4 :] if step == 1 else expected)
    dirty = await blocking(lambda: task(0, partition.end_offset, "read_uncommitted"))
    assert dirty == list(by_offset.values())


async def test_settings_without_sense_are_refused(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="isolation"):
        cluster.read("t", "x", 0, 0, 1, fetch_bytes=1, isolation="serializable")
    with pytest.raises(ValueError, match="fetch_bytes"):
        cluster.read("t", "x", 0, 0, 1, fetch_bytes=0)
