"""Batches encoded by the caller: their order, their parts, and bytes of another form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from raftlog_client import Producer, SerializationError
from raftlog_client.errors import RaftlogClientError
from raftlog_client.produce.batches import PendingBatch, RawBatchBuilder, RawBatchSend

from raftlog.record.batch import check_batch
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.record.header import parse_header
from raftlog.record.types import ProducerEpoch, ProducerId
from tests.client.fake_node import FakeCluster

PART: Any = cast(PendingBatch, object())


def encoded(*values: bytes) -> bytearray:
    builder = BatchBuilder(Compression.NONE, 1 << 30)
    for value in values:
        builder.append(0, None, value)
    return builder.build()


@pytest.fixture
async def producer(single: FakeCluster) -> AsyncIterator[Producer]:
    async with Producer(bootstrap_servers=single.bootstrap, linger_ms=1_000) as one:
        yield one


async def test_order_is_kept_with_records_that_are_still_gathered(
    single: FakeCluster, producer: Producer
) -> None:
    first = await producer.send("t", b"0", partition=0)
    second = await producer.send_batch("t", 0, encoded(b"1", b"2"))
    third = await producer.send("t", b"3", partition=0)
    await producer.flush()
    assert (first.result().offset, second.result(), third.result().offset) == (0, 1, 3)
    assert single.topics["t"].partitions[0].values() == [b"0", b"1", b"2", b"3"]


def test_stamping_makes_the_crc_right() -> None:
    data = encoded(b"a")
    data[17:21] = bytes(4)
    records = RawBatchBuilder(data)
    records.set_producer_state(ProducerId(7), ProducerEpoch(1), 9)
    header = parse_header(records.build())
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 9)
    assert check_batch(records.build(), 0, header)


def test_it_takes_no_more_records() -> None:
    records = RawBatchBuilder(encoded(b"a"))
    assert not records.append(0, None, b"b")
    assert records.append_many([(0, None, b"b", None)]) == (0, None, b"b", None)
    assert records.record_count == 1


@pytest.mark.parametrize(
    "data", [b"", b"x" * 100, encoded(b"a") + encoded(b"b"), encoded(b"a")[:-1]]
)
def test_what_is_no_batch_is_refused(data: bytes) -> None:
    with pytest.raises(SerializationError):
        RawBatchBuilder(bytearray(data))


async def test_a_batch_in_parts_is_written_when_all_of_them_are() -> None:
    send = RawBatchSend()
    send.batch_split(PART, [PART, PART])
    send.batch_acknowledged(PART, 5)
    assert not send.future.done()
    send.batch_acknowledged(PART, 8)
    assert await send.future == 5


async def test_a_part_that_failed_fails_the_batch_and_doubt_is_told_first() -> None:
    send = RawBatchSend()
    send.batch_split(PART, [PART, PART, PART])
    send.batch_failed(PART, RaftlogClientError("refused"))
    send.batch_failed(PART, RaftlogClientError("in doubt", outcome_unknown=True))
    assert not send.future.done()
    send.batch_acknowledged(PART, 8)
    with pytest.raises(RaftlogClientError, match="in doubt"):
        await send.future
