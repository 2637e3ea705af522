"""Appends to a log of a leader's batches, and of batches fetched by a follower.

Both check everything, then make one gathered write, and only then change state, with no await in
between. No state moves unless the write succeeded, and all state moves together. Appends wait, in
order of arrival, only where a segment must be started first.

A leader stamps offsets and its epoch. A follower keeps its leader's stamps. So sequences of
producers are judged in a leader's append and only recorded in a follower's, since the leader has
judged already.

A follower writes the leader's bytes unchanged. Before the write it checks everything that would
make its log differ from the leader's, or unreadable at its next start. These are whole batches,
their CRCs, offsets that continue the log, and epochs that do not go back. Offsets may jump ahead,
since compaction takes batches out of a leader's log.

The cost is a header and a CRC per batch, and nothing per record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from crc32c import crc32c

from raftlog.record.batch import RecordBatch, stamp, with_log_append_time
from raftlog.record.codec import with_max_timestamp
from raftlog.record.control import Marker, parse_marker
from raftlog.record.errors import (
    CORRUPT_BATCH,
    DISK_FULL,
    MALFORMED_BATCH,
    NO_LEADER,
    OVERLOADED,
    QUOTA_EXCEEDED,
    RECORD_TOO_LARGE,
    ErrorEntry,
    LogError,
)
from raftlog.record.header import CONTROL_BIT, CRC_START, PREFIX_SIZE, BatchHeader, parse_header
from raftlog.record.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from raftlog.storage.compaction.rewrite import refuse_keyless
from raftlog.storage.log.core import LogCore, disk_full
from raftlog.storage.log.operations import LogOperations
from raftlog.storage.producers.entry import NO_TIME, NO_TRANSACTIONS, Duplicate, MayBegin, Terms
from raftlog.storage.producers.state import AppendPlan
from raftlog.storage.segments.index import POSITION_MAX, RELATIVE_OFFSET_MAX
from raftlog.storage.segments.segments import Segment
from raftlog.storage.types import AppendResult
from raftlog.world import Buffer, DiskError, DiskFullError

WRITERS_WAITING_MAX: Final = 10_000
"""Most appends of one log waiting while a segment is started. More are rejected."""
DECODED_BATCH_BYTES_MAX: Final = 16 << 20
"""Most bytes of a decompressed batch for a compacted topic, or without its max timestamp.
Compaction can read four times as much."""
DECODED_INLINE_BYTES_MAX: Final = 128 << 10
DECODED_INLINE_BATCHES_MAX: Final = 2
"""Bounds for decoding in the event loop. A thread decodes larger batches, or more batches, since
37,000 records take 10 ms."""
GAPS_NOTED_AHEAD: Final = 1 << 20
"""Offsets beyond a leader's gap below which later gaps are also allowed. Otherwise a follower of a
compacted log would write the checkpoint file for almost every chunk."""

Guard = Callable[[], None]


class Appender:
    """Appends to one log. Lives in the event loop."""

    def __init__(self, core: LogCore, operations: LogOperations) -> None:
        self._core = core
        self._operations = operations
        self._writers_waiting = 0
        self._decodes = asyncio.Lock()
        """Lock held while a thread decodes an append's batches, taken in order of arrival."""
        self._decodes_waiting = 0
        """Appends that hold `_decodes`, or wait for it."""

    # As leader

    async def append(
        self,
        batches: Sequence[RecordBatch],
        leader_epoch: LeaderEpoch,
        *,
        guard: Guard | None = None,
        terms: Terms = NO_TRANSACTIONS,
    ) -> list[AppendResult]:
        """Append batches, all or none, and start their way to durability.

        `guard` is called right before the append is judged, at each attempt (the append may have
        waited for a segment), and may raise. Returns when the batches are written, not when
        durable. Raises LogError. Nothing was written then, except for STORAGE_FAILED, whose outcome
        is unknown.
        """
        needs_decode = self._core.config.compacts
        for batch in batches:
            needs_decode = needs_decode or batch.header.lacks_max_timestamp
        # Appends wait for earlier appends even if they need no decode.
        if needs_decode or self._decodes_waiting:
            decoded = None if self._decodes_waiting else self._decode_now(batches)
            if decoded is None:
                return await self._append_decoded(batches, leader_epoch, guard, terms)
            batches = decoded
        if self._is_free:
            results = self._append_now(batches, leader_epoch, guard, terms)
            if results is not None:
                return results
        return await self._append_in_line(batches, leader_epoch, guard, terms)

    def _decode_now(self, batches: Sequence[RecordBatch]) -> list[RecordBatch] | None:
        """Decode a small append here. None if it is too large. Raises LogError."""
        if len(batches) > DECODED_INLINE_BATCHES_MAX:
            return None
        try:
            return _decoded(
                batches,
                compacts=self._core.config.compacts,
                decompressed_bytes_max=DECODED_INLINE_BYTES_MAX,
            )
        except LogError as error:
            if error.entry is not RECORD_TOO_LARGE:
                raise
            return None

    async def _append_decoded(
        self,
        batches: Sequence[RecordBatch],
        leader_epoch: LeaderEpoch,
        guard: Guard | None,
        terms: Terms,
    ) -> list[AppendResult]:
        """Decode in a thread. Later appends wait, so that the order of appends holds."""
        if self._decodes_waiting >= WRITERS_WAITING_MAX:
            raise LogError(
                OVERLOADED, f"{self._core.directory}: too many appends wait for a decode."
            )
        shared = self._core.shared
        self._decodes_waiting += 1
        try:
            async with self._decodes:
                compacts = self._core.config.compacts
                if compacts or any(batch.header.lacks_max_timestamp for batch in batches):
                    async with shared.decodes:
                        batches = await shared.disk.run(
                            partial(
                                _decoded,
                                batches,
                                compacts=compacts,
                                decompressed_bytes_max=DECODED_BATCH_BYTES_MAX,
                            )
                        )
                if self._is_free:
                    results = self._append_now(batches, leader_epoch, guard, terms)
                    if results is not None:
                        return results
                return await self._append_in_line(batches, leader_epoch, guard, terms)
        finally:
            self._decodes_waiting -= 1

    async def _append_in_line(
        self,
        batches: Sequence[RecordBatch],
        leader_epoch: LeaderEpoch,
        guard: Guard | None,
        terms: Terms,
    ) -> list[AppendResult]:
        """Append once the log is free, or a segment is begun."""
        self._enter_queue()
        queued = self._append_queued(batches, leader_epoch, guard, terms)
        return await self._core.run_shielded(queued)

    @property
    def _is_free(self) -> bool:
        return not self._writers_waiting and not self._core.write_lock.locked()

    def _enter_queue(self) -> None:
        if self._writers_waiting >= WRITERS_WAITING_MAX:
            raise LogError(
                OVERLOADED, f"{self._core.directory}: too many appends wait for a segment."
            )
        self._writers_waiting += 1

    async def _lock_writes(self) -> None:
        try:
            await self._core.write_lock.acquire()
        finally:
            self._writers_waiting -= 1

    async def _append_queued(
        self,
        batches: Sequence[RecordBatch],
        leader_epoch: LeaderEpoch,
        guard: Guard | None,
        terms: Terms,
    ) -> list[AppendResult]:
        """Wait for the log to be free, start a segment if needed, and append."""
        await self._lock_writes()
        try:
            results = self._append_now(batches, leader_epoch, guard, terms)
            if results is None:
                await self._operations.roll()
                results = self._append_now(batches, leader_epoch, guard, terms)
            assert results is not None, "a new segment takes any append"
            return results
        finally:
            self._core.write_lock.release()

    def _append_now(
        self,
        batches: Sequence[RecordBatch],
        leader_epoch: LeaderEpoch,
        guard: Guard | None,
        terms: Terms,
    ) -> list[AppendResult] | None:
        """Check, write, and only then remember. None if a new segment must be started first."""
        core = self._core
        core.require_online()
        if guard is not None:
            guard()
        end_offset = core.segments.end_offset
        size_bytes, following = self._extent(batches, end_offset)
        now_ms = core.shared.clock.time_ms()
        active = self._segment_for(size_bytes, following, now_ms)
        if active is None:
            return None
        if not core.leader_epochs.accepts(leader_epoch, end_offset):
            raise _replaced(core, leader_epoch)
        stamp_ms = NO_TIME
        if core.config.log_append_time:
            stamp_ms = core.shared.cluster_clock.estimate_ms()
        try:
            plan = self._prepare(batches, end_offset, stamp_ms, terms)
        except LogError as error:
            if error.entry is QUOTA_EXCEEDED:
                core.shared.note_refused_producers(core.directory, error)
            raise
        results, placed = _place(batches, plan, end_offset, stamp_ms)
        if not placed:
            return results
        buffers: list[Buffer] = []
        for batch, base_offset in placed:
            buffers.append(stamp(batch.header, base_offset, leader_epoch))
            buffers.append(memoryview(batch.data)[PREFIX_SIZE:])
        position = self._write(active, buffers)
        # From here on nothing can fail, because the batches are in the log.
        core.leader_epochs.assign(leader_epoch, end_offset)
        aborted = core.producers.apply(plan)
        if aborted is not None:
            core.segments.add_aborted(aborted)
        if active.first_append_ms is None:
            active.first_append_ms = core.shared.date_ms()
        interval = core.config.index_interval_bytes
        written = position
        for batch, base_offset in placed:
            active.note(batch.header, written, base_offset, interval)
            written += batch.header.size_bytes
        core.note_append(written - position, len(placed))
        for callback in core.listeners.appended:
            callback(end_offset, active.next_offset, buffers, written - position)
        return results

    def _prepare(
        self, batches: Sequence[RecordBatch], end_offset: Offset, stamp_ms: int, terms: Terms
    ) -> AppendPlan:
        producers, now_ms = self._core.producers, self._core.shared.monotonic_ms()
        if terms.marker is not None:
            (batch,) = batches
            return producers.prepare_marker(
                batch.header,
                terms.marker,
                end_offset,
                newest_coordinator=terms.newest_coordinator(),
                now_ms=now_ms,
            )
        return producers.prepare(
            [batch.header for batch in batches],
            end_offset,
            now_ms=now_ms,
            log_append_time_ms=stamp_ms,
            terms=terms,
        )

    def check_coordinator(
        self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        *,
        new_producers: int,
        may_begin: MayBegin,
    ) -> None:
        """Check as `ProducerStates.check_coordinator`. Raises LogError."""
        self._core.producers.check_coordinator(
            producer_id,
            epoch,
            new_producers=new_producers,
            now_ms=self._core.shared.monotonic_ms(),
            may_begin=may_begin,
        )

    def needs_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        marker: Marker,
        *,
        newest_coordinator: int,
        new_producers: int,
    ) -> bool:
        """Check as `ProducerStates.needs_marker`. Raises LogError."""
        return self._core.producers.needs_marker(
            producer_id,
            producer_epoch,
            marker,
            newest_coordinator=newest_coordinator,
            new_producers=new_producers,
            now_ms=self._core.shared.monotonic_ms(),
        )

    def _segment_for(self, size_bytes: int, following: Offset, now_ms: int) -> Segment | None:
        """The active segment, or None if a new segment must be started first."""
        core = self._core
        if size_bytes > core.shared.room_bytes:
            raise disk_full(core.directory)
        active = core.segments.active
        if not active.fits(size_bytes, following, core.config.segment_bytes) or active.is_due(
            now_ms, core.config.segment_ms
        ):
            return None
        return active

    def _write(self, active: Segment, buffers: Sequence[Buffer]) -> int:
        try:
            position = active.file.append(buffers)
        except DiskFullError as error:
            raise disk_full(self._core.directory) from error
        except DiskError as error:
            raise self._core.fail(error) from error
        assert position == active.size_bytes, f"{active.path}: written behind foreign bytes"
        return position

    def _extent(self, batches: Sequence[RecordBatch], end_offset: Offset) -> tuple[int, Offset]:
        """The size of the batches in bytes, and the log end offset after them."""
        size_bytes_max = self._core.config.max_message_bytes
        size_bytes = 0
        following = end_offset
        for batch in batches:
            header = batch.header
            if header.size_bytes > size_bytes_max and not header.is_control:
                raise LogError(
                    RECORD_TOO_LARGE,
                    f"A record batch has {header.size_bytes} bytes; max.message.bytes is "
                    f"{size_bytes_max}.",
                )
            size_bytes += header.size_bytes
            following = Offset(following + header.last_offset_delta + 1)
        if following - end_offset > RELATIVE_OFFSET_MAX or size_bytes > POSITION_MAX:
            raise LogError(MALFORMED_BATCH, "The batches are more than one segment can hold.")
        return size_bytes, following

    def become_leader(self, leader_epoch: LeaderEpoch) -> None:
        """Start `leader_epoch` at the log end in the epoch history, before its first append.

        Raises LogError NO_LEADER if the history has a newer epoch.
        """
        core = self._core
        core.require_online()
        end_offset = core.segments.end_offset
        if not core.leader_epochs.accepts(leader_epoch, end_offset):
            raise _replaced(core, leader_epoch)
        core.leader_epochs.assign(leader_epoch, end_offset)

    # As follower

    def append_fetched_now(self, data: Buffer, leader_epoch: LeaderEpoch) -> bool:
        """Append batches of the leader of `leader_epoch`, whole and unchanged.

        False, with nothing done, if a change must become durable first or other writers wait. Call
        `append_fetched` then. The fetch must have started at the log's end. A later first offset
        counts as a gap of compaction, an earlier offset is rejected. Raises LogError.
        CORRUPT_BATCH, MALFORMED_BATCH and DISK_FULL mean that nothing was written. STORAGE_FAILED
        does not.
        """
        self._core.require_online()
        return self._is_free and self._append_fetched(data, leader_epoch)

    async def append_fetched(self, data: Buffer, leader_epoch: LeaderEpoch) -> None:
        """Append as `append_fetched_now`, after other writers and durable changes where needed."""
        if self.append_fetched_now(data, leader_epoch):
            return
        await self._core.run_shielded(self._append_fetched_queued(data, leader_epoch))

    async def _append_fetched_queued(self, data: Buffer, leader_epoch: LeaderEpoch) -> None:
        core = self._core
        core.require_online()
        segment_base = self._base_below_start(data)
        if segment_base is not None:
            await self._operations.restart_empty(
                core.segments.end_offset, core.producers, core.compaction.horizon, segment_base
            )
        self._enter_queue()
        await self._lock_writes()
        try:
            if self._append_fetched(data, leader_epoch):
                return
            core.require_online()
            fetched = self._check(data, leader_epoch)
            if fetched.gap_to is not None:
                await self._note_gaps(fetched.gap_to)
            now_ms = core.shared.clock.time_ms()
            if self._segment_for(fetched.size_bytes, fetched.next_offset, now_ms) is None:
                await self._operations.roll()
            appended = self._append_fetched(data, leader_epoch)
            assert appended, "a new segment takes any append"
        finally:
            core.write_lock.release()

    def _append_fetched(self, data: Buffer, leader_epoch: LeaderEpoch) -> bool:
        """Check, write, and only then remember. False if something must be made durable first."""
        core = self._core
        core.require_online()
        if self._base_below_start(data) is not None:
            return False
        fetched = self._check(data, leader_epoch)
        if fetched.gap_to is not None and fetched.gap_to >= core.gaps_below:
            return False
        now_ms = core.shared.clock.time_ms()
        active = self._segment_for(fetched.size_bytes, fetched.next_offset, now_ms)
        if active is None:
            return False
        begin = position = self._write(active, (data,))
        view = memoryview(data)
        # From here on nothing can fail, because the batches are in the log.
        epochs, producers = core.leader_epochs, core.producers
        latest = epochs.latest
        if latest is not None and latest.start_offset >= core.segments.end_offset:
            # This replica led in the latest epoch and wrote nothing. Its leader may have older
            # records.
            epochs.truncate_from_end(core.segments.end_offset)
        if active.first_append_ms is None:
            active.first_append_ms = core.shared.date_ms()
        interval = core.config.index_interval_bytes
        monotonic_ms = core.shared.monotonic_ms()
        epoch: LeaderEpoch | None = None
        for header in fetched.headers:
            base_offset = header.base_offset
            if header.partition_leader_epoch != epoch:
                epoch = header.partition_leader_epoch
                epochs.assign(epoch, base_offset)
            marker = None
            if header.attributes & CONTROL_BIT:
                at = position - begin
                marker = parse_marker(header, view[at : at + header.size_bytes])
            aborted = producers.update(header, now_ms=monotonic_ms, marker=marker)
            if aborted is not None:
                core.segments.add_aborted(aborted)
            active.note(header, position, base_offset, interval)
            position += header.size_bytes
        core.note_append(fetched.size_bytes, len(fetched.headers))
        return True

    def _check(self, data: Buffer, leader_epoch: LeaderEpoch) -> FetchedBatches:
        core = self._core
        last_epoch = LeaderEpoch(max(core.last_epoch, 0))
        return check_fetched(data, core.segments.end_offset, last_epoch, leader_epoch)

    def _base_below_start(self, data: Buffer) -> Offset | None:
        """Base offset of the first batch if an empty log starts inside that batch.

        delete-records can move a leader's log start offset into a batch. A follower restarting at
        that offset gets the whole batch. The first segment must then start at the batch's base
        offset.
        """
        segments = self._core.segments
        end_offset = segments.end_offset
        if (
            len(segments) > 1
            or segments.active.size_bytes
            or (segments.log_start_offset != end_offset)
        ):
            return None
        header = parse_header(data)
        if header.base_offset < end_offset < header.next_offset:
            return header.base_offset
        return None

    async def _note_gaps(self, gap_to: Offset) -> None:
        """Record durably that the log has gaps. Otherwise the next start takes gaps for damage."""
        core = self._core
        if gap_to < core.gaps_below:
            return
        before, core.gaps_below = core.gaps_below, Offset(gap_to + GAPS_NOTED_AHEAD)
        noted = core.gaps_below
        try:
            await core.publish()
        except LogError as error:
            if error.entry is DISK_FULL and core.gaps_below == noted:
                core.gaps_below = before
            raise


def _decoded(
    batches: Sequence[RecordBatch], *, compacts: bool, decompressed_bytes_max: int
) -> list[RecordBatch]:
    """The batches, with their max timestamps, and with keys if the topic compacts.

    Raises LogError.
    """
    if compacts:
        for batch in batches:
            refuse_keyless(batch, decompressed_bytes_max=decompressed_bytes_max)
    return [
        with_max_timestamp(batch, decompressed_bytes_max=decompressed_bytes_max)
        for batch in batches
    ]


def _replaced(core: LogCore, leader_epoch: LeaderEpoch) -> LogError:
    return LogError(NO_LEADER, f"{core.directory}: leader epoch {leader_epoch} has been replaced.")


def _place(
    batches: Sequence[RecordBatch], plan: AppendPlan, end_offset: Offset, stamp_ms: int
) -> tuple[list[AppendResult], list[tuple[RecordBatch, Offset]]]:
    """The result of each batch, and the new batches with their offsets."""
    results: list[AppendResult] = []
    placed: list[tuple[RecordBatch, Offset]] = []
    offset = end_offset
    for batch, outcome in zip(batches, plan.outcomes, strict=True):
        if isinstance(outcome, Duplicate):
            base_offset, last_offset = outcome.base_offset, outcome.last_offset
            time_ms = outcome.log_append_time_ms
            results.append(AppendResult(base_offset, last_offset, time_ms, duplicate=True))
            continue
        new = batch if stamp_ms == NO_TIME else with_log_append_time(batch, stamp_ms)
        placed.append((new, offset))
        last_offset = Offset(offset + batch.header.last_offset_delta)
        results.append(AppendResult(offset, last_offset, stamp_ms))
        offset = Offset(last_offset + 1)
    return results, placed


class FetchedBatches(NamedTuple):
    """Checked batches, ready to be written at the end of the log."""

    headers: list[BatchHeader]
    size_bytes: int
    next_offset: Offset
    """The log end offset after the batches."""
    gap_to: Offset | None
    """Base offset of the last batch with a gap before it, or None."""


def check_fetched(
    data: Buffer, end_offset: Offset, last_epoch: LeaderEpoch, leader_epoch: LeaderEpoch
) -> FetchedBatches:
    """Check a leader's batches for a log ending at `end_offset`, and reject all or none.

    `last_epoch` is the epoch of the log's last record, `leader_epoch` the sender's. Epochs of the
    batches lie between them, and do not go back. Raises LogError (CORRUPT_BATCH, MALFORMED_BATCH).
    """
    view = memoryview(data)
    size_bytes = view.nbytes
    headers: list[BatchHeader] = []
    expected, epoch = end_offset, last_epoch
    gap_to: Offset | None = None
    position = 0
    while position < size_bytes:
        header = parse_header(view, position)
        following = position + header.size_bytes
        if following > size_bytes:
            raise _refused(
                header, f"it is cut off: {size_bytes - position} of {header.size_bytes} bytes"
            )
        if header.base_offset != expected:
            if header.base_offset < expected:
                raise _refused(header, f"the log goes on at {expected}")
            gap_to = header.base_offset
        if not epoch <= header.partition_leader_epoch <= leader_epoch:
            raise _refused(
                header,
                f"leader epoch {header.partition_leader_epoch} after {epoch}, from a leader of "
                f"epoch {leader_epoch}",
            )
        if crc32c(view[position + CRC_START : following]) != header.crc:
            raise _refused(header, "its CRC does not match", CORRUPT_BATCH)
        headers.append(header)
        expected, epoch = header.next_offset, header.partition_leader_epoch
        position = following
    if not headers:
        raise LogError(MALFORMED_BATCH, "The leader sent no record batch.")
    if expected - end_offset > RELATIVE_OFFSET_MAX or size_bytes > POSITION_MAX:
        raise LogError(MALFORMED_BATCH, "The leader sent more than one segment can hold.")
    return FetchedBatches(headers, size_bytes, expected, gap_to)


def _refused(header: BatchHeader, reason: str, entry: ErrorEntry = MALFORMED_BATCH) -> LogError:
    return LogError(
        entry, f"The leader's batch at offset {header.base_offset} is refused: {reason}."
    )
