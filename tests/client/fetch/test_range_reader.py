"""Answers to a range reader: gaps, losses, and views of stable content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest
from raftlog_client.errors import ConnectionLostError, RecordsGoneError
from raftlog_client.fetch.protocol import FetchConnectionPool, FrameSink
from raftlog_client.fetch.range_reader import BUFFERS_KEPT_MAX, RangeChunk, RangeReader
from raftlog_client.metadata import Backoff, ClusterMetadata, ClusterView
from raftlog_client.transport import NodeAddress
from raftlog_client.types import TopicDescription, TopicPartition

from raftlog.record.batch import RecordBatch
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.record.frames import FetchFrame
from raftlog.record.header import parse_header
from raftlog.record.types import AbortedTransaction, LeaderEpoch, Offset, PartitionId, ProducerId
from tests.record.batches import stamped

SOURCE = TopicPartition("t", 0)
TOPIC_ID = "f" * 32


def batch(base_offset: int, size: int = 1) -> bytes:
    """One record at this offset."""
    builder = BatchBuilder(Compression.NONE, 1 << 30)
    builder.append(0, None, b"%d" % base_offset * size)
    data = bytes(builder.build())
    one = RecordBatch(parse_header(data), data)
    return b"".join(map(bytes, stamped(one, Offset(base_offset), LeaderEpoch(0))))


def frame(data: bytes, next_offset: int, log_start: int = 0) -> FetchFrame:
    marks = (Offset(1_000), Offset(log_start), Offset(next_offset))
    return FetchFrame("t", PartitionId(0), 0, *marks, data)


class Script:
    """Gives these answers, one after the other, in the place of nodes."""

    request_timeout_s = 0.2
    backoff = Backoff(1, 1)

    def __init__(self, *answers: Sequence[FetchFrame]) -> None:
        self.answers = list(answers)
        self.requests: list[Any] = []
        topic = TopicDescription("t", TOPIC_ID, ())
        self.view = ClusterView(topics={"t": topic})

    async def fetch(
        self, address: NodeAddress, body: bytes, sink: FrameSink, timeout_s: float
    ) -> None:
        self.requests.append(msgspec.json.decode(body))
        for one in self.answers.pop(0):
            room = sink.begin(one._replace(data=b""), len(one.data))
            room[:] = one.data
            sink.end(one._replace(data=b""), room)

    def leader_address(self, topic: str, partition: int) -> NodeAddress:
        return NodeAddress("h:1")

    def leadership(self, topic: str, partition: int) -> Any:
        return None

    async def refresh(self, topics: Sequence[str]) -> ClusterView:
        return self.view

    def suspect(self, address: NodeAddress) -> None:
        """All answers are of one node."""


def reader(script: Script, start: int, end: int, **options: Any) -> RangeReader:
    return RangeReader(
        cast(FetchConnectionPool, script),
        cast(ClusterMetadata, script),
        SOURCE,
        topic_id=TOPIC_ID,
        start=start,
        end=end,
        **{"chunk_bytes": 1 << 20, **options},
    )


async def all_of(one: RangeReader) -> list[RangeChunk]:
    chunks = []
    while (chunk := await one.next()) is not None:
        chunks.append(chunk)
    return chunks


async def test_what_compaction_has_taken_is_a_gap_and_no_loss() -> None:
    script = Script([frame(batch(5), 6)], [frame(b"", 9)], [frame(batch(9), 10)])
    chunks = await all_of(reader(script, 3, 10))
    assert [(bytes(chunk.data), chunk.next_offset) for chunk in chunks] == [
        (batch(5), 6),
        (b"", 9),
        (batch(9), 10),
    ]


@pytest.mark.parametrize("data", [batch(5), b""])
async def test_what_retention_took_between_two_looks_is_a_loss(data: bytes) -> None:
    with pytest.raises(RecordsGoneError) as caught:
        await reader(Script([frame(data, 6, log_start=5)]), 3, 10).next()
    assert (caught.value.offset, caught.value.log_start_offset) == (3, 5)


async def test_what_was_read_in_time_is_no_loss() -> None:
    chunk = await reader(Script([frame(batch(3), 4, log_start=5)]), 3, 10).next()
    assert chunk is not None
    assert bytes(chunk.data) == batch(3)


async def test_frames_are_one_chunk() -> None:
    script = Script([frame(batch(0), 1), frame(batch(1, 100_000), 2), frame(batch(2), 3)])
    (chunk,) = await all_of(reader(script, 0, 3))
    assert bytes(chunk.data) == batch(0) + batch(1, 100_000) + batch(2)


async def test_a_chunk_names_the_aborted_transactions_of_all_its_frames_and_of_no_other() -> None:
    one, two, three = (AbortedTransaction(ProducerId(n), Offset(n)) for n in range(3))
    frames = [
        frame(batch(at), at + 1)._replace(last_stable_offset=Offset(9), aborted=aborted)
        for at, aborted in enumerate([[one, two], [two], [three]])
    ]
    script = Script(frames[:2], frames[2:])
    reading = reader(script, 0, 3, isolation="read_committed")
    assert [chunk.aborted for chunk in await all_of(reading)] == [(one, two), (three,)]
    assert {request["isolation"] for request in script.requests} == {"read_committed"}


async def test_what_is_no_batch_is_not_given_to_anybody() -> None:
    script = Script(*[[frame(b"x" * 100, 4)]] * 1_000)
    with pytest.raises(ConnectionLostError, match="no record batch"):
        await reader(script, 3, 10).next()


async def test_an_answer_without_progress_is_no_endless_loop() -> None:
    script = Script(*[[frame(batch(3), 3)]] * 1_000)
    with pytest.raises(ConnectionLostError, match="nothing of t-0 from offset 3"):
        await reader(script, 3, 10).next()


async def test_memory_is_used_again_only_when_nobody_looks_at_it() -> None:
    script = Script(*[[frame(batch(number), number + 1)] for number in range(20)])
    one = reader(script, 0, 20, chunk_bytes=1_000)
    held = [await one.next() for _ in range(10)]
    for number, chunk in enumerate(held):
        assert chunk is not None
        assert bytes(chunk.data) == batch(number)
    del held, chunk
    seen = set()
    for _ in range(10):
        chunk = await one.next()
        assert chunk is not None
        seen.add(id(chunk.data.obj))
    assert len(seen) <= BUFFERS_KEPT_MAX
