"""Serving fetched records: fair over the partitions, lazily decoded, nothing lost on the way."""

from __future__ import annotations

from raftlog_client.fetch.record_buffer import UNIT_RECORDS_MIN, RecordBuffer, RecordDecoder
from raftlog_client.fetch.subscription import Chunk, OffsetReset, PartitionState
from raftlog_client.types import TopicPartition

from raftlog.record.codec import BatchBuilder
from raftlog.record.header import HEADER


def new_buffer() -> RecordBuffer:
    unpacker = RecordDecoder(
        key_deserializer=None, value_deserializer=None, decompressed_bytes_max=1 << 20
    )
    return RecordBuffer(unpacker, on_taken=lambda _: None)


def new_state(partition: int) -> PartitionState:
    state = PartitionState(TopicPartition("t", partition), OffsetReset.EARLIEST)
    state.jump(0)
    return state


def add(buffer: RecordBuffer, state: PartitionState, *counts: int) -> None:
    """Add a chunk of batches of so many records."""
    data = b""
    for count in counts:
        builder = BatchBuilder()
        for _ in range(count):
            builder.append(0, None, b"x")
        batch = builder.build()
        HEADER.pack_into(batch, 0, state.fetch_offset, *HEADER.unpack_from(batch)[1:])
        data += batch
        state.fetch_offset += count
    state.chunks.append(Chunk(data, state.fetch_offset, check_crc=True))
    state.buffered_bytes += len(data)
    buffer.buffered_bytes += len(data)
    buffer.refresh(state)


def test_partitions_take_turns() -> None:
    buffer, states = new_buffer(), [new_state(0), new_state(1), new_state(2)]
    for state in states:
        for _ in range(3):
            add(buffer, state, UNIT_RECORDS_MIN)
    served = []
    while (unit := buffer.next_unit()) is not None:
        served.append(unit.state.source.partition)
        list(unit.iterator)
    assert served == [0, 1, 2] * 3
    assert buffer.buffered_bytes == 0


def test_small_batches_are_served_together_and_large_ones_alone() -> None:
    buffer, state = new_buffer(), new_state(0)
    add(buffer, state, *[1] * 50)
    unit = buffer.next_unit()
    assert unit is not None
    assert len(unit.records) == 50
    add(buffer, state, UNIT_RECORDS_MIN, UNIT_RECORDS_MIN)
    list(unit.iterator)
    unit = buffer.next_unit()
    assert unit is not None
    assert [unit.records[0].offset, len(unit.records)] == [50, UNIT_RECORDS_MIN]


def test_the_position_follows_an_iteration_without_being_told() -> None:
    buffer, state = new_buffer(), new_state(0)
    add(buffer, state, 5)
    assert buffer.position(state) == 0
    unit = buffer.next_unit()
    assert unit is not None
    for taken in range(1, 6):
        next(unit.iterator)
        assert buffer.position(state) == taken
    assert buffer.next_unit() is None


def test_a_chunk_without_records_moves_the_position() -> None:
    buffer, state = new_buffer(), new_state(0)
    state.chunks.append(Chunk(b"", 17, check_crc=True))
    buffer.refresh(state)
    assert buffer.next_unit() is None
    assert buffer.position(state) == 17


def test_what_an_iteration_left_is_served_by_take_many_first() -> None:
    buffer, state, other = new_buffer(), new_state(0), new_state(1)
    add(buffer, state, 5)
    add(buffer, other, 2)
    unit = buffer.next_unit()
    assert unit is not None
    next(unit.iterator)
    taken = buffer.take_many(5, ())
    assert {place.partition: [r.offset for r in records] for place, records in taken.items()} == {
        0: [1, 2, 3, 4],
        1: [0],
    }
    assert list(unit.iterator) == []
    assert buffer.position(other) == 1
    assert [r.offset for r in buffer.take_many(None, ())[other.source]] == [1]


def test_a_dropped_partition_leaves_nothing_behind() -> None:
    buffer, state = new_buffer(), new_state(0)
    add(buffer, state, 5)
    add(buffer, state, 5)
    unit = buffer.next_unit()
    assert unit is not None
    next(unit.iterator)
    buffer.drop(state)
    assert list(unit.iterator) == []
    assert buffer.is_empty
    assert buffer.buffered_bytes == 0
