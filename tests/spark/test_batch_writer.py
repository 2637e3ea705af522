"""Encoded batches written: in order, each once, and failures with their known facts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from raftlog_spark.cluster import Cluster, Written
from raftlog_spark.errors import RaftlogSparkError, TopicGone, WriteFailed

from raftlog.record.batch import iterate_batches
from raftlog.record.errors import CORRUPT_BATCH, NOT_ENOUGH_REPLICAS, NOT_READY, RECORD_TOO_LARGE
from tests.client.fake_node import FakeCluster, Fault
from tests.client.fake_partition import FakePartition
from tests.spark.query_parts import blocking, encoded

PRODUCE = "/v1/produce"


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    """Two nodes; the topic `t` of two partitions, both held by both."""
    async with FakeCluster(2) as cluster:
        cluster.create_topic("t", 2)
        for partition in cluster.topics["t"].partitions:
            partition.replicas = [node.broker_id for node in cluster.nodes]
        yield cluster


@pytest.fixture
def cluster(fake: FakeCluster) -> Iterator[Cluster]:
    with Cluster(fake.bootstrap, request_timeout_s=5.0) as one:
        yield one


def partition_of(cluster: FakeCluster, number: int = 0) -> FakePartition:
    return cluster.topics["t"].partitions[number]


def values(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]


def write_all(cluster: Cluster, count: int, *, partitions: int = 1, **settings: float) -> Written:
    with cluster.writer("t", **settings) as writer:  # type: ignore[arg-type]
        for number, value in enumerate(values(count)):
            writer.write(number % partitions, encoded(value), 1)
        return writer.flush()


async def test_batches_are_written_in_order_and_stamped(
    fake: FakeCluster, cluster: Cluster
) -> None:
    written = await blocking(lambda: write_all(cluster, 60, partitions=2))
    assert (written.batches, written.records) == (60, 60)
    assert written.size_bytes == sum(len(encoded(value)) for value in values(60))
    for number in (0, 1):
        assert partition_of(fake, number).values() == values(60)[number::2]
        headers = [
            next(iterate_batches(data)).header for data in partition_of(fake, number).batches
        ]
        assert [header.base_sequence for header in headers] == list(range(30))
        assert len({header.producer_id for header in headers}) == 1


async def test_every_writer_has_a_producer_id_of_its_own(
    fake: FakeCluster, cluster: Cluster
) -> None:
    for _ in range(2):
        await blocking(lambda: write_all(cluster, 1))
    ids = {next(iterate_batches(data)).header.producer_id for data in partition_of(fake).batches}
    assert len(ids) == 2


async def test_answers_that_are_lost_write_nothing_twice(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.fail(
        PRODUCE, Fault(drop_after=True), Fault(), Fault(drop_before=True), Fault(drop_after=True)
    )
    await blocking(lambda: write_all(cluster, 100))
    assert partition_of(fake).values() == values(100)


async def test_a_new_leader_is_followed(fake: FakeCluster, cluster: Cluster) -> None:
    writer = await blocking(lambda: cluster.writer("t"))
    await blocking(lambda: writer.write(0, encoded(b"000"), 1))
    await blocking(writer.flush)
    await fake.nodes[0].stop()
    partition_of(fake).lead(fake.nodes[1].broker_id)
    for value in values(50)[1:]:
        await blocking(lambda value=value: writer.write(0, encoded(value), 1))  # type: ignore[misc]
    assert (await blocking(writer.close)).records == 50
    assert partition_of(fake).values() == values(50)


async def test_a_full_buffer_makes_writing_wait(fake: FakeCluster, cluster: Cluster) -> None:
    big = b"x" * 600_000
    writer = await blocking(lambda: cluster.writer("t", buffer_bytes=1))
    fake.nodes[0].stopped = stopped = asyncio.Event()

    def write() -> None:
        for _ in range(4):
            writer.write(0, encoded(big), 1)

    writing = asyncio.create_task(blocking(write))
    await asyncio.wait({writing}, timeout=0.3)
    assert not writing.done()
    stopped.set()
    fake.nodes[0].stopped = None
    await writing
    assert (await blocking(writer.close)).records == 4


async def test_a_refusal_is_raised_by_flush_and_ends_the_writer(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.fail(PRODUCE, Fault(frame_errors={0: CORRUPT_BATCH}))
    writer = await blocking(lambda: cluster.writer("t"))
    await blocking(lambda: writer.write(0, encoded(b"a"), 1))
    with pytest.raises(WriteFailed, match="not written") as caught:
        await blocking(writer.flush)
    assert not caught.value.outcome_unknown
    with pytest.raises(WriteFailed):
        await blocking(lambda: writer.write(0, encoded(b"b"), 1))
    with pytest.raises(WriteFailed):
        await blocking(writer.close)
    await blocking(writer.close)
    assert partition_of(fake).values() == []


async def test_what_is_not_known_is_said_to_be_unknown(fake: FakeCluster, cluster: Cluster) -> None:
    fake.fail(PRODUCE, *[Fault(drop_after=True)] * 200)
    with pytest.raises(WriteFailed, match="twice") as caught:
        await blocking(lambda: write_all(cluster, 1, delivery_timeout_s=0.3))
    assert caught.value.outcome_unknown
    assert partition_of(fake).values() == values(1)


async def test_what_was_refused_until_the_end_is_known_not_to_be_written(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.fail(PRODUCE, *[Fault(frame_errors={0: NOT_ENOUGH_REPLICAS})] * 200)
    with pytest.raises(WriteFailed) as caught:
        await blocking(lambda: write_all(cluster, 1, delivery_timeout_s=0.3))
    assert not caught.value.outcome_unknown


async def test_refusals_that_pass_are_tried_again(fake: FakeCluster, cluster: Cluster) -> None:
    fake.fail(PRODUCE, Fault(error=NOT_READY), Fault(frame_errors={0: NOT_ENOUGH_REPLICAS}))
    await blocking(lambda: write_all(cluster, 10))
    assert partition_of(fake).values() == values(10)


async def test_a_batch_over_the_topics_limit_is_taken_apart(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.max_message_bytes = 4_000
    many = [b"%05d" % number * 20 for number in range(100)]

    def write() -> Written:
        with cluster.writer("t") as writer:
            writer.write(0, encoded(*many), len(many))
            writer.write(0, encoded(b"last"), 1)
            return writer.flush()

    assert (await blocking(write)).records == 101
    assert partition_of(fake).values() == [*many, b"last"]


async def test_a_record_over_the_topics_limit_fails(fake: FakeCluster, cluster: Cluster) -> None:
    fake.fail(PRODUCE, Fault(frame_errors={0: RECORD_TOO_LARGE}))
    with pytest.raises(WriteFailed, match=r"max.message.bytes"):
        await blocking(lambda: write_all(cluster, 1))


async def test_an_abort_sends_nothing_more(fake: FakeCluster, cluster: Cluster) -> None:
    stopped = asyncio.Event()

    def write() -> None:
        with cluster.writer("t") as writer:
            fake.nodes[0].stopped = stopped
            writer.write(0, encoded(b"a"), 1)
            raise KeyError("the task failed")

    with pytest.raises(KeyError):
        await blocking(write)
    stopped.set()
    fake.nodes[0].stopped = None
    await blocking(lambda: write_all(cluster, 1))
    with pytest.raises(RaftlogSparkError, match="closed"):
        writer = await blocking(lambda: cluster.writer("t"))
        await blocking(writer.close)
        writer.write(0, encoded(b"a"), 1)


async def test_what_is_no_batch_is_refused_at_once(fake: FakeCluster, cluster: Cluster) -> None:
    def write(data: bytearray, records: int) -> None:
        with cluster.writer("t") as writer:
            writer.write(0, data, records)

    for data in (bytearray(b"x"), encoded(b"a") + encoded(b"b"), encoded(b"a")[:-1]):
        with pytest.raises(ValueError, match="batch"):
            await blocking(lambda data=data: write(data, 1))  # type: ignore[misc]
    with pytest.raises(ValueError, match="records"):
        await blocking(lambda: write(encoded(b"a"), 2))
    assert partition_of(fake).values() == []


async def test_unknown_topics_and_partitions_are_told(fake: FakeCluster, cluster: Cluster) -> None:
    with pytest.raises(TopicGone, match="none"):
        await blocking(lambda: cluster.writer("none"))

    def write() -> None:
        with cluster.writer("t") as writer:
            writer.write(2, encoded(b"a"), 1)

    with pytest.raises(WriteFailed, match="partitions"):
        await blocking(write)


async def test_a_writer_without_a_topic_writes_to_those_that_it_is_told(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("u", 3)

    def write() -> Written:
        with cluster.writer() as writer:
            assert (writer.partitions("t"), writer.partitions("u")) == (2, 3)
            writer.write(0, encoded(b"a"), 1, topic="t")
            writer.write(0, encoded(b"b"), 1, topic="u")
            with pytest.raises(ValueError, match="topic"):
                writer.write(0, encoded(b"c"), 1)
            with pytest.raises(TopicGone, match="none"):
                writer.partitions("none")
            return writer.flush()

    assert (await blocking(write)).records == 2
    [first], [second] = partition_of(fake).batches, fake.topics["u"].partitions[0].batches
    headers = [next(iterate_batches(data)).header for data in (first, second)]
    assert len({header.producer_id for header in headers}) == 1


async def test_a_failure_names_the_topic_that_was_written_to(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.fail(PRODUCE, Fault(frame_errors={0: CORRUPT_BATCH}))

    def write() -> None:
        with cluster.writer() as writer:
            writer.write(0, encoded(b"a"), 1, topic="t")

    with pytest.raises(WriteFailed, match="writing to 't'") as caught:
        await blocking(write)
    assert caught.value.topic == "t"
