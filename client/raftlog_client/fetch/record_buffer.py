"""Buffers fetched records, decoded batch by batch and fair over the partitions.

The application takes records from the present *unit*, which is a list of one partition's records
and an iterator over it. The iterator knows the application's progress, so a record costs no
bookkeeping. The position is computed on request.

`RecordDecoder` has the only loops over received records.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from operator import length_hint
from typing import Any, Final

from raftlog.record.batch import RecordBatch
from raftlog.record.codec import decode
from raftlog.record.errors import RECORD_TOO_LARGE, LogError
from raftlog_client.errors import (
    CorruptDataError,
    RaftlogClientError,
    RecordTooLargeError,
    SerializationError,
)
from raftlog_client.fetch.subscription import PartitionState
from raftlog_client.types import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    Record,
    TopicPartition,
    require_at_least,
)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause automatic collection during synchronous work of a few milliseconds.

    Decoding a batch makes thousands of codec objects, which the collector tracks and which soon die
    by reference count. Their number triggers collections of the whole process. Measured with a few
    libraries loaded, these took three times as long as the decoding.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class RecordDecoder:
    """Decodes batches and deserializes their keys and values."""

    __slots__ = ("_decompressed_bytes_max", "_key_deserializer", "_value_deserializer")

    def __init__(
        self,
        key_deserializer: Callable[[bytes], Any] | None,
        value_deserializer: Callable[[bytes], Any] | None,
        decompressed_bytes_max: int,
    ) -> None:
        require_at_least(1, decompressed_bytes_max=decompressed_bytes_max)
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._decompressed_bytes_max = decompressed_bytes_max

    def records(
        self, batch: RecordBatch, source: TopicPartition, start: int
    ) -> list[Record[Any, Any]]:
        """Return the batch's records from offset `start`. Its CRC is checked already.

        Raises CorruptDataError, RecordTooLargeError, or `Unreadable` if a deserializer raised.
        """
        with gc_paused():
            return self._records(batch, source, start)

    def _records(
        self, batch: RecordBatch, source: TopicPartition, start: int
    ) -> list[Record[Any, Any]]:
        try:
            decoded = decode(batch, decompressed_bytes_max=self._decompressed_bytes_max)
        except LogError as error:
            raise record_decoding_error(error, source, batch.header.base_offset) from error
        if batch.header.base_offset < start:
            # A fetch starts with the batch around its offset. Skipped records are not deserialized,
            # because a skipped record may lack a valid value.
            decoded = [record for record in decoded if record.offset >= start]
        topic, partition = source
        timestamp_type = LOG_APPEND_TIME if batch.header.is_log_append_time else CREATE_TIME
        to_key, to_value = self._key_deserializer, self._value_deserializer
        # Each variant is one comprehension. A call or a branch per record would cost a fifth of it.
        if to_key is None and to_value is None:
            return [
                Record(
                    topic,
                    partition,
                    record.offset,
                    record.timestamp,
                    timestamp_type,
                    record.key,
                    record.value,
                    record.headers or (),
                )
                for record in decoded
            ]
        records: list[Record[Any, Any]] = []
        add = records.append
        record = None
        try:
            for record in decoded:
                key, value = record.key, record.value
                add(
                    Record(
                        topic,
                        partition,
                        record.offset,
                        record.timestamp,
                        timestamp_type,
                        key if key is None or to_key is None else to_key(key),
                        value if value is None or to_value is None else to_value(value),
                        record.headers or (),
                    )
                )
        except Exception as error:
            assert record is not None
            refusal = SerializationError(
                f"{topic}-{partition}: a deserializer refused the record at offset "
                f"{record.offset}: {error!r}. Seek past it to continue."
            )
            refusal.__cause__ = error
            raise Unreadable(refusal, records, record.offset) from error
        return records


class Unreadable(Exception):  # noqa: N818 (its caller catches it, no user sees it)
    """A deserializer rejected a record. Has the good records before."""

    def __init__(
        self, error: SerializationError, records: list[Record[Any, Any]], offset: int
    ) -> None:
        super().__init__(error)
        self.error = error
        self.records = records
        self.offset = offset


def record_decoding_error(
    error: LogError, source: TopicPartition, offset: int
) -> RaftlogClientError:
    """Return the reader's exception for a rejected batch."""
    topic, partition = source
    if error.entry is RECORD_TOO_LARGE:
        return RecordTooLargeError(
            f"{topic}-{partition}, offset {offset}: {error.message} (decompressed_bytes_max)"
        )
    return CorruptDataError(
        f"{topic}-{partition}: damaged data at offset {offset}: {error.message}",
        topic=topic,
        partition=partition,
        offset=offset,
    )


UNIT_RECORDS_MIN: Final = 1_000
"""Records to gather for a unit. Small batches are served together up to about this many."""

AnyRecord = Record[Any, Any]


class Unit:
    """Records of one partition that are taken individually."""

    __slots__ = ("iterator", "processed_count", "records", "state")

    def __init__(self, state: PartitionState, records: list[AnyRecord]) -> None:
        self.state = state
        self.records = records
        self.iterator: Iterator[AnyRecord] = iter(records)
        self.processed_count = 0
        """Records certainly processed, given out before the application's present call."""

    @property
    def remaining(self) -> int:
        """Return the number of records not taken yet."""
        return length_hint(self.iterator)

    @property
    def in_process(self) -> int:
        """Offset of the record that the application may still process, or -1."""
        given_count = len(self.records) - self.remaining
        # The application takes one record after the other.
        return self.records[given_count - 1].offset if given_count > self.processed_count else -1


class RecordBuffer:
    """Fetched data of all partitions."""

    def __init__(
        self, unpacker: RecordDecoder, *, on_taken: Callable[[PartitionState], None]
    ) -> None:
        self.buffered_bytes = 0
        self._unpacker = unpacker
        self._on_taken = on_taken
        """Called when a partition has given data away, which may make room to fetch."""
        self._ready: deque[PartitionState] = deque()
        self._unit: Unit | None = None
        self._given: list[PartitionState] = []
        """Partitions with a `given_from`."""
        self._call_count = 0

    @property
    def progress(self) -> tuple[int, int]:
        """Return a value that changes whenever the application takes or requests records."""
        return self._call_count, 0 if self._unit is None else self._unit.remaining

    def begin_call(self) -> None:
        """Note a new call of the application. All records given out before are processed."""
        self._call_count += 1
        for state in self._given:
            state.given_from = -1
        self._given.clear()
        unit = self._unit
        if unit is not None:
            unit.processed_count = len(unit.records) - unit.remaining

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to serve."""
        return not self._ready and (self._unit is None or not self._unit.remaining)

    def refresh(self, state: PartitionState) -> None:
        """Serve the partition if it is ready. It got data, got an error, or resumed."""
        if state.has_data and not state.is_ready and not state.is_stopped:
            state.is_ready = True
            self._ready.append(state)

    def next_unit(self) -> Unit | None:
        """Return the unit to take records from, or None. Raises a partition's error."""
        unit = self._unit
        if unit is not None and unit.remaining:
            return unit
        self._unit = None
        while self._ready:
            state = self._ready[0]
            records = self._take(state)
            if records:
                self._unit = Unit(state, records)
                return self._unit
        return None

    def take_many(
        self, records_max: int | None, only: Collection[TopicPartition]
    ) -> dict[TopicPartition, list[AnyRecord]]:
        """Return one unit of every ready partition, or up to `records_max` records in all.

        Raises a partition's error if there are no records, otherwise next time.
        """
        self._put_back_unit()
        taken: dict[TopicPartition, list[AnyRecord]] = {}
        room = records_max
        for _ in range(len(self._ready)):
            state = self._ready[0]
            if (only and state.source not in only) or (taken and not state.has_records):
                self._ready.rotate(-1)
                continue
            records = self._take(state)
            if not records:
                continue
            if room is not None:
                if len(records) > room:
                    state.decoded = records[room:]
                    del records[room:]
                    self.refresh(state)
                room -= len(records)
            taken[state.source] = records
            self._give(state, records[0].offset)
            if room == 0:
                break
        return taken

    def position(self, state: PartitionState) -> int:
        """Return the application's next offset, or -1 while unknown."""
        unit = self._unit
        if unit is not None and unit.state is state and (remaining := unit.remaining):
            return unit.records[-remaining].offset
        return state.decoded[0].offset if state.decoded else state.position

    def processed_position(self, state: PartitionState) -> int:
        """Return the offset up to which all records are processed, or -1 while unknown."""
        if state.given_from >= 0:
            return state.given_from
        unit = self._unit
        if unit is not None and unit.state is state and (offset := unit.in_process) >= 0:
            return offset
        return self.position(state)

    def set_aside(self, state: PartitionState) -> None:
        """Serve nothing more of the partition for now, and lose nothing."""
        if self._unit is not None and self._unit.state is state:
            self._put_back_unit()
        self._unlist(state)

    def drop(self, state: PartitionState) -> None:
        """Forget all data of the partition, including the present unit's."""
        if self._unit is not None and self._unit.state is state:
            # An iteration under way finds the list at its end, and requests the next unit.
            self._unit.records.clear()
            self._unit = None
        self._unlist(state)
        self.buffered_bytes -= state.buffered_bytes
        state.forget()

    def _give(self, state: PartitionState, offset: int) -> None:
        state.given_from = offset
        self._given.append(state)

    def _unlist(self, state: PartitionState) -> None:
        if state.is_ready:
            state.is_ready = False
            self._ready.remove(state)

    def _put_back_unit(self) -> None:
        """Return the rest of the present unit to its partition, to be served first."""
        unit, self._unit = self._unit, None
        if unit is None:
            return
        if (offset := unit.in_process) >= 0:
            self._give(unit.state, offset)
        if rest := list(unit.iterator):
            unit.state.decoded = rest + unit.state.decoded
            if not unit.state.is_ready and not unit.state.is_stopped:
                unit.state.is_ready = True
                self._ready.appendleft(unit.state)

    def _take(self, state: PartitionState) -> list[AnyRecord]:
        """Return records of the first partition in line, which then goes to the end.

        Empty if the buffered batches held none. Raises the partition's error.
        """
        assert self._ready[0] is state
        self._ready.popleft()
        state.is_ready = False
        records, state.decoded = state.decoded, []
        try:
            if not records and state.chunks:
                records = self._decode(state)
            elif not records and state.error is not None:
                error, state.error = state.error, None
                raise error
        finally:
            self.refresh(state)
            self._on_taken(state)
        return records

    def _decode(self, state: PartitionState) -> list[AnyRecord]:
        """Decode batches until there are enough records, or no more data.

        An error waits in `state.error` until the records before it are served.
        """
        records: list[AnyRecord] = []
        while state.chunks and len(records) < UNIT_RECORDS_MIN:
            chunk = state.chunks[0]
            try:
                batch = next(chunk.batches, None)
                if batch is None:
                    state.chunks.popleft()
                    state.buffered_bytes -= chunk.size_bytes
                    self.buffered_bytes -= chunk.size_bytes
                    state.position = max(state.position, chunk.next_offset)
                    continue
                if batch.header.next_offset <= state.position:
                    continue
                found = self._unpacker.records(batch, state.source, state.position)
            except LogError as error:
                self._fail(state, record_decoding_error(error, state.source, state.position))
                break
            except RaftlogClientError as error:
                self._fail(state, error)
                break
            except Unreadable as unreadable:
                records += unreadable.records
                state.position = max(state.position, unreadable.offset)
                self._fail(state, unreadable.error)
                break
            records = records + found if records else found
            state.position = batch.header.next_offset
        return records

    def _fail(self, state: PartitionState, error: RaftlogClientError) -> None:
        """Keep the error for its turn. Reading restarts where the good data ended."""
        self.buffered_bytes -= state.buffered_bytes
        state.forget()
        state.fetch_offset = state.position
        state.error = error
