"""The transaction coordinator over a log: requests, producer ids, refusals with records, loads."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest

from raftlog.coordinator.transactions import kind as transaction_kind
from raftlog.coordinator.transactions.messages import (
    AddPartitions,
    CommitSinkEpoch,
    DescribeTransaction,
    Done,
    Initialized,
    InitProducer,
    PrepareTransaction,
    SinkEpoch,
    TransactionDescription,
    Verification,
    Verified,
    VerifyOrAdd,
)
from raftlog.record.batch import split_batches
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.record.errors import (
    CONCURRENT_TRANSACTIONS,
    UNKNOWN_TRANSACTION,
    UNSUPPORTED_FORMAT,
    LogError,
)
from raftlog.replication.partition import Acks
from tests.controller.clock import settle
from tests.coordinator.transaction_partition import A, B, TransactionPartition


@pytest.fixture
async def one() -> AsyncIterator[TransactionPartition]:
    partition = await TransactionPartition.start()
    yield partition
    await partition.close()


async def test_each_transactional_id_has_a_producer_id_of_its_own(
    one: TransactionPartition,
) -> None:
    shard = await one.load()
    first, second = await one.init(shard, "t"), await one.init(shard, "u")
    assert first.producer_id != second.producer_id
    assert (first.producer_epoch, second.producer_epoch) == (0, 0)
    again = await one.init(shard, "t")
    assert (again.producer_id, again.producer_epoch) == (first.producer_id, 1)


async def test_a_load_has_the_state_of_the_shard_before(one: TransactionPartition) -> None:
    shard = await one.load(writes_markers=False)
    await one.begin(shard, A, B)
    before = await one.call(shard, DescribeTransaction("t"), TransactionDescription)
    assert before.partitions == (A, B)
    loaded = await one.load(writes_markers=False)
    assert await one.call(loaded, DescribeTransaction("t"), TransactionDescription) == before


async def test_an_init_that_aborts_first_is_refused_and_has_records(
    one: TransactionPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_kind, "HELD_S", 0.0)
    shard = await one.load(writes_markers=False)
    await one.begin(shard, A)
    batches = len(one.log.batches)
    with pytest.raises(LogError) as refused:
        await one.init(shard)
    assert refused.value.entry is CONCURRENT_TRANSACTIONS
    assert len(one.log.batches) == batches + 1
    assert await one.state(shard) == "prepare-abort"


async def test_an_init_and_an_end_wait_for_the_markers_of_the_transaction_before(
    one: TransactionPartition,
) -> None:
    shard = await one.load()
    producer = await one.begin(shard, A, B)
    again = await one.init(shard)
    assert again.producer_epoch > producer.producer_epoch
    assert len(one.leaders.written) == 2
    producer = await one.begin(shard, A)
    ended = await one.end(shard, producer)
    assert await one.end(shard, producer) == ended


async def test_questions_wait_until_one_of_their_producers_may_begin(
    one: TransactionPartition,
) -> None:
    shard = await one.load()
    followings = []
    for name in ("t", "u"):
        producer = await one.begin(shard, A, transactional_id=name)
        released = one.leaders.held[producer.producer_id] = asyncio.Event()
        followings.append(await one.end(shard, producer, transactional_id=name))
    questions = tuple(
        Verification(name, following, (B,), is_addition=True)
        for name, following in zip(("t", "u"), followings, strict=True)
    )
    asking = asyncio.ensure_future(one.call(shard, VerifyOrAdd(questions), Verified))
    await settle()
    assert not asking.done()
    batches = len(one.log.batches)
    released.set()
    answer = await asking
    codes = [None if outcome is None else outcome.code for outcome in answer.outcomes]
    assert codes == [CONCURRENT_TRANSACTIONS.code, None]
    # The end of the transaction before and the begin of the next are one batch.
    assert len(one.log.batches) == batches + 1


async def test_partitions_join_once_the_transaction_before_has_its_markers(
    one: TransactionPartition,
) -> None:
    shard = await one.load()
    producer = await one.begin(shard, A)
    released = one.leaders.held[producer.producer_id] = asyncio.Event()
    following = await one.end(shard, producer)
    joining = asyncio.ensure_future(one.call(shard, AddPartitions("t", following, (B,)), Done))
    await settle()
    assert not joining.done()
    released.set()
    await joining
    assert await one.state(shard) == "ongoing"


async def test_a_sink_epoch_is_answered_once_it_is_readable(one: TransactionPartition) -> None:
    shard = await one.load()
    names = ("sink/s/1", "sink/s/2")
    releases = []
    for name in names:
        producer = await one.begin(shard, A, B, transactional_id=name)
        await one.call(shard, PrepareTransaction(name, producer), Done)
        releases.append(one.leaders.held.setdefault(producer.producer_id, asyncio.Event()))
    commit = CommitSinkEpoch("s", 0, names)
    committing = asyncio.ensure_future(one.call(shard, commit, SinkEpoch))
    for released in releases:
        await settle()
        assert not committing.done()
        released.set()
    assert (await committing).epoch == 0
    assert len(one.leaders.written) == 4


async def test_a_committed_sink_epoch_is_no_error_for_want_of_a_place_to_wait(
    one: TransactionPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog.coordinator.shard.shard.WAITERS_MAX", 0)
    shard = await one.load(writes_markers=False)
    producer = await one.begin(shard, A, transactional_id="sink/s/1")
    await one.call(shard, PrepareTransaction("sink/s/1", producer), Done)
    commit = CommitSinkEpoch("s", 0, ("sink/s/1",))
    assert (await one.call(shard, commit, SinkEpoch)).epoch == 0


async def test_a_sink_epoch_is_not_held_for_ever(
    one: TransactionPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_kind, "SINK_HELD_S", 0.01)
    shard = await one.load(writes_markers=False)
    producer = await one.begin(shard, A, transactional_id="sink/s/1")
    await one.call(shard, PrepareTransaction("sink/s/1", producer), Done)
    commit = CommitSinkEpoch("s", 0, ("sink/s/1",))
    assert (await one.call(shard, commit, SinkEpoch)).epoch == 0


async def test_questions_are_not_held_for_ever(
    one: TransactionPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_kind, "VERIFICATION_HELD_S", 0.01)
    shard = await one.load(writes_markers=False)
    following = await one.end(shard, await one.begin(shard, A))
    question = Verification("t", following, (A,), is_addition=True)
    answer = await one.call(shard, VerifyOrAdd((question,)), Verified)
    assert [outcome and outcome.code for outcome in answer.outcomes] == [
        CONCURRENT_TRANSACTIONS.code
    ]


async def test_refusals_without_records_are_errors_too(one: TransactionPartition) -> None:
    shard = await one.load()
    with pytest.raises(LogError) as unknown:
        await one.state(shard)
    assert unknown.value.entry is UNKNOWN_TRANSACTION
    with pytest.raises(LogError):
        await one.call(shard, InitProducer("t", 0), Initialized)


@pytest.mark.parametrize("value", [struct.pack(">h", 0) + b"whatever", None])
async def test_a_record_of_a_newer_release_keeps_the_shard_from_serving(
    one: TransactionPartition, value: bytes | None
) -> None:
    builder = BatchBuilder(Compression.NONE, 1 << 20)
    builder.append(0, struct.pack(">h", 77) + b"key", value)
    batches = split_batches(bytes(builder.build()), max_message_bytes=1 << 20)
    await one.partition.append(batches, acks=Acks.LEADER, timeout_s=1.0)
    with pytest.raises(LogError) as refused:
        await one.load()
    assert refused.value.entry is UNSUPPORTED_FORMAT
