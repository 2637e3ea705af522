"""One partition of the fake cluster: its batches, its producers, its leader."""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from raftlog.record.batch import RecordBatch, sealed
from raftlog.record.codec import BatchBuilder, decode
from raftlog.record.errors import (
    OFFSET_OUT_OF_RANGE,
    OUT_OF_ORDER_SEQUENCE,
    PRODUCER_FENCED,
    UNKNOWN_PRODUCER_ID,
    LogError,
)
from raftlog.record.header import CONTROL_BIT, parse_header
from raftlog.record.types import NO_SEQUENCE, LeaderEpoch, Offset, ProducerEpoch, ProducerId
from tests.record.batches import stamped

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
BATCHES_REMEMBERED = 5


@dataclass
class ProducerState:
    producer_epoch: int
    next_sequence: int
    recent: deque[tuple[int, int, int]]
    """Base sequence, base offset, last offset of the last batches."""


@dataclass
class FakePartition:
    topic: str
    partition: int
    leader: int
    leader_epoch: int = 1
    log_start_offset: int = 0
    end_offset: int = 0
    base_offsets: list[int] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    producers: dict[int, ProducerState] = field(default_factory=dict)
    appended: asyncio.Event = field(default_factory=asyncio.Event)
    append_count: int = 0
    unstable_count: int = 0
    """Records at the end, of an open transaction."""
    replicas: list[int] = field(default_factory=list)
    """Its replicas; only the leader if empty."""
    isr: list[int] | None = None
    """Those in sync; None: all replicas."""
    follower_ends: dict[int, int] = field(default_factory=dict)
    """The ends of followers' logs that are behind, by node."""
    open_transactions: dict[int, int] = field(default_factory=dict)
    """First offset by producer id."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, first offset and marker's offset of each aborted transaction."""

    @property
    def last_stable_offset(self) -> int:
        first = min(self.open_transactions.values(), default=self.end_offset)
        return min(first, self.end_offset - self.unstable_count)

    def write_marker(self, producer_id: int, producer_epoch: int, *, is_commit: bool) -> None:
        """End the producer's transaction. Repeated markers write nothing."""
        first = self.open_transactions.pop(producer_id, None)
        if first is None:
            return
        if not is_commit:
            self.aborted.append((producer_id, first, self.end_offset))
        self.producers[producer_id] = ProducerState(
            producer_epoch, 0, deque(maxlen=BATCHES_REMEMBERED)
        )
        builder = BatchBuilder(transactional=True)
        builder.append(0, b"\0\0\0\1" if is_commit else b"\0\0\0\0", b"\0\0\0\0\0\0")
        builder.set_producer_state(
            ProducerId(producer_id), ProducerEpoch(producer_epoch), NO_SEQUENCE
        )
        data = builder.build()
        header = parse_header(data)
        sealed(data, header._replace(attributes=header.attributes | CONTROL_BIT))
        self._write(RecordBatch(parse_header(data), memoryview(data)))

    def lead(self, leader: int) -> None:
        """Another node leads from now on, or (-1) none."""
        self.leader = leader
        self.leader_epoch += 1
        # Wakes long polls.
        self.appended.set()
        self.appended = asyncio.Event()

    def append_frame(self, batches: Sequence[RecordBatch]) -> tuple[int, int]:
        """Append all batches or none; first and last offset."""
        before = deepcopy(self.producers), self.end_offset, len(self.batches), self.append_count
        open_before = dict(self.open_transactions)
        try:
            offsets = [self.append(batch) for batch in batches]
        except LogError:
            self.producers, self.end_offset, count, self.append_count = before
            del self.batches[count:], self.base_offsets[count:]
            self.open_transactions = open_before
            raise
        return offsets[0][0], offsets[-1][1]

    def append(self, batch: RecordBatch) -> tuple[int, int]:
        """Base and last offset, of the first writing for a repeat."""
        header = batch.header
        if header.is_idempotent:
            state = self.producers.get(header.producer_id)
            if state is not None and header.producer_epoch < state.producer_epoch:
                raise LogError(PRODUCER_FENCED, f"epoch {header.producer_epoch} is old")
            refusal = UNKNOWN_PRODUCER_ID if state is None else OUT_OF_ORDER_SEQUENCE
            if state is not None and header.producer_epoch > state.producer_epoch:
                state = self.producers.pop(header.producer_id) and None
            if state is not None:
                for sequence, base_offset, last_offset in state.recent:
                    if sequence == header.base_sequence:
                        return base_offset, last_offset
            expected = 0 if state is None else state.next_sequence
            if header.base_sequence != expected:
                raise LogError(refusal, f"sequence {header.base_sequence}, not {expected}")
            if state is None:
                state = self.producers[header.producer_id] = ProducerState(
                    header.producer_epoch, 0, deque(maxlen=BATCHES_REMEMBERED)
                )
            state.next_sequence = (header.base_sequence + header.record_count) & (2**31 - 1)
            state.recent.append(
                (header.base_sequence, self.end_offset, self.end_offset + header.record_count - 1)
            )
        if header.is_transactional:
            self.open_transactions.setdefault(header.producer_id, self.end_offset)
        return self._write(batch)

    def _write(self, batch: RecordBatch) -> tuple[int, int]:
        header = batch.header
        base_offset = self.end_offset
        prefix, rest = stamped(batch, Offset(base_offset), LeaderEpoch(self.leader_epoch))
        self.base_offsets.append(base_offset)
        self.batches.append(prefix + rest)
        self.end_offset += header.record_count
        self.append_count += 1
        self.appended.set()
        self.appended = asyncio.Event()
        return base_offset, self.end_offset - 1

    def read(self, offset: int, max_bytes: int, end_offset: int = 1 << 62) -> tuple[bytes, int]:
        """Whole batches from the one with `offset`, at least one, and the next offset.

        No batch from `end_offset` on.
        """
        if not self.log_start_offset <= offset <= self.end_offset:
            raise LogError(
                OFFSET_OUT_OF_RANGE,
                f"{offset} is not in {self.log_start_offset} to {self.end_offset}",
            )
        if offset == self.end_offset:
            return b"", offset
        first = bisect.bisect_right(self.base_offsets, offset) - 1
        last, size = first, 0
        while last < len(self.batches) and (
            last == first
            or (
                size + len(self.batches[last]) <= max_bytes and self.base_offsets[last] < end_offset
            )
        ):
            size += len(self.batches[last])
            last += 1
        next_offset = self.base_offsets[last] if last < len(self.batches) else self.end_offset
        return b"".join(self.batches[first:last]), next_offset

    def records(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """Offset, key, value of everything in the log."""
        return [
            (record.offset, record.key, record.value)
            for data in self.batches
            if not parse_header(data).is_control
            for record in decode(
                RecordBatch(parse_header(data), data), decompressed_bytes_max=1 << 28
            )
        ]

    def committed_values(self) -> list[bytes | None]:
        """Values of records that a reader of committed transactions may have."""
        aborted = {
            offset
            for data in self.batches
            if parse_header(data).is_transactional
            for offset in (parse_header(data).base_offset,)
            for producer_id, first, marker in self.aborted
            if parse_header(data).producer_id == producer_id and first <= offset < marker
        }
        return [
            value
            for data in self.batches
            if (base := parse_header(data).base_offset) not in aborted
            and base < self.last_stable_offset
            and not parse_header(data).is_control
            for value in (
                record.value
                for record in decode(
                    RecordBatch(parse_header(data), data), decompressed_bytes_max=1 << 28
                )
            )
        ]

    def values(self) -> list[bytes | None]:
        return [value for _, _, value in self.records()]
