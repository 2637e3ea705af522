"""Load a shard by replay of its partition's log, and wait for the log's commit.

The records up to the end of the log belong to the state, also those that are uncommitted as far as
the leader knows. No response leaves before their commit, and nothing is decided on a state that may
be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import Any, Final, TypeVar

from raftlog.coordinator.shard.decision import Producer
from raftlog.coordinator.shard.shard import Kind, Shard, StateMachine
from raftlog.record.batch import RecordBatch, iterate_batches
from raftlog.record.codec import (
    Record,
    decode,
    decode_groups,
    decode_joined,
    decompress_batch,
)
from raftlog.record.errors import NOT_COORDINATOR, LogError
from raftlog.record.header import COMPRESSION_MASK, CONTROL_BIT, TRANSACTIONAL_BIT
from raftlog.record.types import Buffer, Offset
from raftlog.replication.leader.role import LeaderRole
from raftlog.replication.partition import Partition

READ_BYTES: Final = 1 << 20
BATCH_BYTES_MAX: Final = 64 << 20
"""Most bytes of a decompressed batch."""
SLICE_BYTES: Final = 192 << 10
"""Bytes of records, as objects, replayed in one turn of some milliseconds."""
JOINED_BYTES_MAX: Final = 64 << 10
"""Bytes of small batches, as objects, that are decoded together. The overhead of each batch costs
as much as ten records."""
RECORD_BYTES: Final = 128
"""Added for each record, as in `decode_groups`."""
COMMIT_CHECK_S: Final = 1.0
"""Longest wait for the commit of the loaded records between two looks at the log."""

_MARKER_KEY: Final = Struct(">hh")
"""Key of a control record, which is version and type (0 abort, 1 commit)."""

S = TypeVar("S", bound=StateMachine)
K = TypeVar("K", bound=Hashable)

logger = logging.getLogger(__name__)


async def load_shard(shard: Shard[S, K], monotonic: Callable[[], float]) -> None:
    """Replay the log into the shard and start it. After a LogError load another shard.

    Raises NOT_COORDINATOR if the leader epoch is over.
    """
    partition, role = shard.partition, shard.role
    begun_s, count = monotonic(), 0
    position = partition.log_start_offset
    while True:
        _require_led(partition, role)
        end = partition.log_end_offset
        if position < end:
            read = await role.read_uncommitted(position, max_bytes=READ_BYTES)
            _require_led(partition, role)
            count += await replay(shard.kind, shard.state, read.data)
            position = read.next_offset
        elif partition.high_watermark < end:
            await _wait_committed(partition, end)
        else:
            break
    shard.begin(end)
    logger.info(
        "%s: coordinator loaded %d records up to offset %d in %.3f s",
        partition.name,
        count,
        end,
        monotonic() - begun_s,
    )


async def replay(kind: Kind[S, K, Any, Any], state: S, data: Buffer) -> int:
    """Replay whole batches in turns of the event loop. Returns the number of their records."""
    apply, decode_record, replay_usual = state.replay, kind.decode_record, kind.replay_usual
    count = slice_bytes = 0
    for joined in _joined(data):
        header = joined[0].header
        if header.is_control:
            _replay_marker(state, joined[0])
            continue
        producer = (
            Producer(header.producer_id, header.producer_epoch) if header.is_transactional else None
        )
        offset_of = _Offsets(joined)
        for records, size_bytes in _groups(joined):
            index, end = 0, len(records)
            while index < end:
                if producer is None and (index := replay_usual(state, records, index)) == end:
                    break
                record = records[index]
                decoded = decode_record(record.key or b"", record.value)
                if decoded is not None:
                    apply(decoded, position=offset_of(index, record), producer=producer)
                index += 1
            count += end
            slice_bytes += size_bytes + end * RECORD_BYTES
            if slice_bytes >= SLICE_BYTES:
                slice_bytes = 0
                await asyncio.sleep(0)
    return count


def _joined(data: Buffer) -> Iterator[list[RecordBatch]]:
    """The batches in order, in lists of several plain and small batches or one batch.

    The batches of a list are decoded at once.
    """
    small: list[RecordBatch] = []
    object_bytes = 0
    for batch in iterate_batches(data, check_crc=False):
        header = batch.header
        own_bytes = header.size_bytes + header.record_count * RECORD_BYTES
        is_small = (
            own_bytes <= JOINED_BYTES_MAX
            and not header.attributes & (COMPRESSION_MASK | TRANSACTIONAL_BIT | CONTROL_BIT)
            and header.record_count
        )
        if small and (not is_small or object_bytes + own_bytes > JOINED_BYTES_MAX):
            yield small
            small, object_bytes = [], 0
        if is_small:
            small.append(batch)
            object_bytes += own_bytes
        else:
            yield [batch]
    if small:
        yield small


class _Offsets:
    """The offsets of records decoded together, which are given in ascending order."""

    def __init__(self, batches: Sequence[RecordBatch]) -> None:
        self._batches = batches
        self._at = 0
        self._end = batches[0].header.record_count
        """Index of the first record after the present batch."""

    def __call__(self, index: int, record: Record) -> Offset:
        if len(self._batches) == 1:
            return Offset(record.offset)
        while index >= self._end:
            self._at += 1
            self._end += self._batches[self._at].header.record_count
        shift = self._batches[self._at].header.base_offset - self._batches[0].header.base_offset
        return Offset(record.offset + shift)


def _groups(batches: Sequence[RecordBatch]) -> Iterator[tuple[Sequence[Record], int]]:
    """The records of the batches, with their bytes, where a large batch gives several groups."""
    batch = batches[0]
    header = batch.header
    size_bytes = header.size_bytes
    if not header.record_count:
        # Emptied by compaction.
        return iter(())
    if len(batches) > 1:
        return iter(((decode_joined(batches), sum(batch.header.size_bytes for batch in batches)),))
    if (
        size_bytes + header.record_count * RECORD_BYTES <= SLICE_BYTES
        and not header.attributes & COMPRESSION_MASK
    ):
        return iter(((decode(batch, decompressed_bytes_max=BATCH_BYTES_MAX), size_bytes),))
    plain = decompress_batch(batch, decompressed_bytes_max=BATCH_BYTES_MAX)
    return decode_groups(batch, plain, group_bytes=SLICE_BYTES // 2)


def _replay_marker(state: StateMachine, batch: RecordBatch) -> None:
    header = batch.header
    for record in decode(batch, decompressed_bytes_max=BATCH_BYTES_MAX, include_control=True):
        _, marker = _MARKER_KEY.unpack_from(record.key or b"\0\0\xff\xff")
        if marker in {0, 1}:
            state.replay_marker(
                header.producer_id,
                header.producer_epoch,
                committed=marker == 1,
                position=record.offset,
            )


def _require_led(partition: Partition, role: LeaderRole) -> None:
    if partition.leader_role is not role:
        raise LogError(NOT_COORDINATOR, f"{partition.name} is not led here any more.")


async def _wait_committed(partition: Partition, end: Offset) -> None:
    """Return when everything below `end` may be committed, or the lead may be over."""
    committed = asyncio.Event()
    handle = partition.readers.add(Offset(end - 1), committed.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(COMMIT_CHECK_S):
                await committed.wait()
    finally:
        partition.readers.remove(handle)
