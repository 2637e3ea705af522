"""Loading: batches of all kinds, in turns of the event loop, served only once committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence

import pytest

from raftlog.coordinator.shard import load
from raftlog.coordinator.shard.decision import CoordinatorRecord, Producer
from raftlog.coordinator.shard.load import load_shard, replay
from raftlog.coordinator.shard.records import OffsetCommitKey
from raftlog.record.batch import RecordBatch, split_batches
from raftlog.record.codec import BatchBuilder, Record
from raftlog.record.compression import Compression
from raftlog.record.errors import MALFORMED_BATCH, NOT_COORDINATOR, STORAGE_FAILED, LogError
from raftlog.record.types import ProducerEpoch, ProducerId
from raftlog.replication.partition import Acks
from tests.controller.clock import settle
from tests.coordinator.harness import ShardHarness, marker
from tests.coordinator.registers import (
    KIND,
    REGISTER,
    RegisterKind,
    Registers,
    encode_record,
    record,
)


@pytest.fixture
async def one() -> AsyncIterator[ShardHarness]:
    harness = await ShardHarness.start()
    yield harness
    await harness.close()


def batch(*records: CoordinatorRecord, compression: Compression = Compression.NONE) -> RecordBatch:
    builder = BatchBuilder(compression, 1 << 30)
    for each in records:
        builder.append(0, *encode_record(each))
    (built,) = split_batches(bytes(builder.build()), max_message_bytes=1 << 30)
    return built


async def append(one: ShardHarness, *batches: RecordBatch) -> None:
    await one.partition.append(batches, acks=Acks.LEADER, timeout_s=1.0)


async def test_markers_and_unknown_records_take_their_offsets(one: ShardHarness) -> None:
    producer = Producer(ProducerId(4), ProducerEpoch(2))
    builder = BatchBuilder(Compression.NONE, 1 << 20)
    builder.append(0, b"unknown type", b"")
    (unknown,) = split_batches(bytes(builder.build()), max_message_bytes=1 << 20)
    await append(one, batch(record(REGISTER, "r", 1, "a")), marker(producer, committed=True))
    await append(one, unknown, marker(producer, committed=False))
    await append(one, batch(record(REGISTER, "r", 2, "b")))
    shard = await one.load()
    assert shard.state.markers == [(4, 2, True, 1), (4, 2, False, 3)]
    assert shard.state.values == {"r": (2, "b", 4)}
    assert (await one.increment(shard)).value == 3
    assert shard.state.values["r"][2] == 5


def log_of(counts: Sequence[int], compressed: Collection[int] = ()) -> tuple[bytes, dict[str, int]]:
    """Batches with so many registers each, every other offset compacted away; the registers'
    offsets. Batches at an index in `compressed` are compressed."""
    data, offsets, base = bytearray(), {}, 0
    for at, count in enumerate(counts):
        compression = Compression.ZSTD if at in compressed else Compression.NONE
        built = batch(
            *(record(REGISTER, f"{at}-{n}", 1, "o") for n in range(count)), compression=compression
        )
        plain = bytearray(built.data)
        plain[:8] = base.to_bytes(8)
        data += plain
        offsets |= {f"{at}-{n}": base + n for n in range(count)}
        base += 2 * count
    return bytes(data), offsets


@pytest.mark.parametrize("compressed", [(), (0, 4), (3,)])
@pytest.mark.parametrize(
    "counts",
    [(1,), (1, 1, 1), (3, 1, 2, 5, 1, 1), (1, 2_000, 1, 1, 2_000), (300, 300, 300, 1, 300)],
)
async def test_records_keep_their_offsets_whatever_batches_are_decoded_together(
    counts: tuple[int, ...], compressed: tuple[int, ...]
) -> None:
    data, offsets = log_of(counts, compressed)
    state = Registers()
    assert await replay(KIND, state, data) == sum(counts)
    assert {name: value[2] for name, value in state.values.items()} == offsets


async def test_a_usual_record_is_replayed_once_wherever_it_is() -> None:
    data, offsets = log_of((1, 3, 1, 1, 700, 2))
    state, seen = Registers(), []

    class QuickKind(RegisterKind):
        def replay_usual(self, state: Registers, records: Sequence[Record], start: int) -> int:
            """Take every run of records up to an odd number."""
            index = start
            while index < len(records) and (name := name_of(records[index]))[-1] in "02468":
                seen.append(name)
                index += 1
            return index

    def name_of(one: Record) -> str:
        decoded = KIND.decode_record(one.key or b"", one.value)
        assert decoded is not None
        assert isinstance(decoded.key, OffsetCommitKey)
        return decoded.key.group

    assert await replay(QuickKind(), state, data) == len(offsets)
    assert {name: value[2] for name, value in state.values.items()} == {
        name: offset for name, offset in offsets.items() if name[-1] in "13579"
    }
    assert len(seen) == len(set(seen)) == len(offsets) - len(state.values)


async def test_a_damaged_batch_among_small_ones_is_refused() -> None:
    data, _ = log_of((1, 1, 1))
    damaged = bytearray(data)
    # The second batch claims two records.
    second = len(data) // 3
    damaged[second + 57 : second + 61] = (2).to_bytes(4)
    with pytest.raises(LogError) as refused:
        await replay(KIND, Registers(), bytes(damaged))
    assert refused.value.entry is MALFORMED_BATCH


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
async def test_a_large_batch_does_not_hold_the_event_loop(
    one: ShardHarness, compression: Compression
) -> None:
    records = [record(REGISTER, f"r{n}", n + 1, f"o{n}") for n in range(20_000)]
    data = batch(*records, compression=compression).data
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.ensure_future(count_turns())
    state = Registers()
    assert await replay(KIND, state, data) == 20_000
    counting.cancel()
    assert len(state.values) == 20_000
    assert turns >= 5


async def test_a_shard_serves_only_once_the_loaded_records_are_committed(
    one: ShardHarness,
) -> None:
    one.log.hold_flush = True
    await append(one, batch(record(REGISTER, "r", 1, "a")))
    loading = asyncio.ensure_future(one.load())
    await settle()
    assert not loading.done()
    # The log grows meanwhile.
    await append(one, batch(record(REGISTER, "r", 2, "b")))
    one.log.flush_now()
    shard = await loading
    assert shard.state.values["r"][0] == 2


async def test_load_ends_with_the_lead(one: ShardHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "COMMIT_CHECK_S", 60.0)
    one.log.hold_flush = True
    await append(one, batch(record(REGISTER, "r", 1, "a")))
    loading = asyncio.ensure_future(one.load())
    await settle()
    one.lead(2)
    with pytest.raises(LogError) as ended:
        await loading
    assert ended.value.entry is NOT_COORDINATOR


async def test_an_unreadable_log_is_not_served(one: ShardHarness) -> None:
    await append(one, batch(record(REGISTER, "r", 1, "a")))
    one.log.read_error = LogError(STORAGE_FAILED, "damaged")
    with pytest.raises(LogError) as failed:
        await load_shard(one.empty(), one.clock.monotonic)
    assert failed.value.entry is STORAGE_FAILED
