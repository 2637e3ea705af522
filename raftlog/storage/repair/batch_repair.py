"""Repair damaged batches of a log in service from good copies of other replicas.

A damaged segment is written again and swapped in like compaction's segments, so a crash leaves the
old or the new. Intact batches are copied from the old segment. Only where the next batch is
damaged, copies are requested by offset, and accepted after the checks of a follower, which are CRC,
offsets that continue, and the leader epoch of this log's history. One (leader epoch, offset) is one
batch, so a copy may come from damaged files with an unknown committed end. As soon as the old
segment continues intact behind a copy, it is used again, because replicas hold identical bytes,
unless compacted apart. In a compacted log a copy must have the length of the damaged bytes, and be
followed by the same batch. Offsets may jump there, so another batch could pass for the damaged
batch, and lose it. Also, a replica that is ahead has removed tombstones, without which deleted
values would be back.

The damaged bytes are kept before the swap (quarantine). Appends do not wait. A truncation or a stop
makes the repair give way, and it is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from enum import Enum, auto
from typing import Final, TypeAlias

from raftlog.record.errors import NOT_READY, LogError
from raftlog.record.header import HEADER_SIZE, BatchHeader, parse_header
from raftlog.record.types import Offset
from raftlog.storage.log.core import LogCore
from raftlog.storage.log.operations import LogOperations
from raftlog.storage.repair.quarantine import keep_bytes
from raftlog.storage.segments.scan import Expectation, next_batch
from raftlog.storage.segments.segments import CLEANED_SUFFIX, Segment, segment_name
from raftlog.storage.transactions.aborted_lookup import aborted_of
from raftlog.storage.types import NO_EPOCH
from raftlog.world import Buffer, DiskError, File

Copies: TypeAlias = Callable[[Offset], AsyncIterator[Buffer]]
"""Copies of the batches from an offset on, from one replica after the other. Raises LogError after
the last copy if a replica was not reached. Try again later."""

CHUNK_BYTES: Final = 1 << 20
STEP_BYTES_MAX: Final = 16 << 20
"""Bytes copied by one step of a disk thread. A truncation waits no longer."""
BUFFERS_MAX: Final = 512
"""Batches of one write."""
KEPT_BYTES_MAX: Final = 64 << 20
"""Most damaged bytes of one segment that a repair keeps, and so replaces."""

logger = logging.getLogger(__name__)


async def repair_batches(core: LogCore, operations: LogOperations, copies: Copies) -> bool:
    """Repair every segment known to be damaged. Returns whether the log is whole again.

    False if the place is unknown, some batch has no good copy, or too much would have to be kept.
    Raises LogError, after which the caller tries again later.
    """
    core.require_online()
    if core.is_compacting:
        raise LogError(NOT_READY, f"{core.directory}: a compaction is running.")
    core.is_compacting = True
    try:
        while core.damaged_segments:
            base_offset = min(core.damaged_segments, key=lambda base: -1 if base is None else base)
            if base_offset is None:
                return False
            async with core.arrange_lock:
                core.require_online()
                segment = core.segments.holding(base_offset)
                if segment.base_offset == base_offset:
                    if segment is core.segments.active:
                        async with core.write_lock:
                            await operations.roll()
                    is_empty = segment is core.segments.active
                    if not is_empty and not await _Rewrite(core, operations, segment).run(copies):
                        return False
                core.forget_damage(base_offset)
    finally:
        core.is_compacting = False
    return True


class _State(Enum):
    """State in which copying stopped."""

    GOES_ON = auto()
    DAMAGED = auto()
    """The next batch is damaged or missing."""
    COMPLETE = auto()


class _Rewrite:
    """A finished segment, written again."""

    def __init__(self, core: LogCore, operations: LogOperations, old: Segment) -> None:
        self._core = core
        self._operations = operations
        self._old = old
        self._end_offset = core.segments.end_of(old)
        self._new = Segment(core.shared.files, core.directory, old.base_offset)
        self._expected = old.base_offset
        """Offset of the next batch."""
        self._position = 0
        """Position of the next batch in the old segment, if that batch is intact."""
        self._written = 0
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._chunk: bytes = b""
        self._chunk_position = 0
        self._damaged: list[tuple[int, int]] = []
        """Start and end of each stretch of the old segment that is not copied."""
        self._is_compacted = core.config.compacts or core.gaps_below > old.base_offset
        self._cleaned = segment_name(old.base_offset) + CLEANED_SUFFIX

    async def run(self, copies: Copies) -> bool:
        """Write, keep the damaged bytes, swap. False without a good copy. Raises LogError."""
        core = self._core
        # The recovery point's position must not lie in a rewritten segment, after a crash either.
        await self._operations.advance_recovery_point()
        await core.publish()
        try:
            aborted = await aborted_of(core, self._old)
        except DiskError as error:
            raise core.fail(error) from error
        path = f"{core.directory}/{self._cleaned}"
        file = await core.run(self._begin, path)
        try:
            if not await self._write(file, copies) or not await core.run(self._keep):
                core.shared.disk.remove(path)
                return False
            await core.run(file.sync)
        except BaseException:
            # Nothing has been swapped, so the old segment stays and the copy goes.
            core.shared.disk.remove(path)
            raise
        finally:
            file.close()
        new = self._new
        new.note_time()
        new.first_append_ms = self._old.first_append_ms
        for entry in aborted:
            new.aborted.add(entry)
        await self._operations.swap_in(self._cleaned, [self._old], new)
        logger.warning(
            "%s: repaired from other replicas: %d damaged bytes at %s replaced, and kept",
            self._old.path,
            sum(end - begin for begin, end in self._damaged),
            ", ".join(str(begin) for begin, _ in self._damaged) or "no position",
        )
        return True

    async def _write(self, file: File, copies: Copies) -> bool:
        core = self._core
        while True:
            if core.pending_rearrangements or core.failure is not None:
                raise LogError(NOT_READY, f"{core.directory}: another change of its files waits.")
            state = await core.run(self._copy_intact, file)
            if state is _State.COMPLETE:
                return True
            if state is _State.DAMAGED and not await self._take_copy(file, copies):
                return False

    async def _take_copy(self, file: File, copies: Copies) -> bool:
        # Other replicas respond from the log start on, with the whole batch that holds it.
        start = max(self._expected, self._core.segments.log_start_offset)
        async for data in copies(start):
            if await self._core.run(self._take, file, data):
                return True
        return False

    def _begin(self, path: str) -> File:
        self._core.shared.disk.remove(path)
        return self._core.shared.disk.open(path, create=True)

    def _copy_intact(self, file: File) -> _State:
        """Copy the intact batches of the old segment that fit one step. In a thread."""
        begun = self._written
        with self._old.files.lease(self._old.path) as old:
            while self._written - begun < STEP_BYTES_MAX:
                if self._expected >= self._end_offset:
                    self._flush(file)
                    return _State.COMPLETE
                found = self._intact(old)
                if found is None:
                    self._flush(file)
                    return _State.DAMAGED
                self._advance(found[0])
                self._append(file, *found)
        self._flush(file)
        return _State.GOES_ON

    def _take(self, file: File, data: Buffer) -> bool:
        """Take batches of a copy until the old segment continues. In a thread.

        Returns whether any batch fits.
        """
        view = memoryview(data)
        taken: list[tuple[BatchHeader, memoryview]] = []
        at = 0
        goes_on = False
        begun, expected = self._position, self._expected
        with self._old.files.lease(self._old.path) as old:
            while at < view.nbytes and not goes_on:
                header = self._acceptable(view, at)
                if header is None:
                    break
                taken.append((header, view[at : at + header.size_bytes]))
                at += header.size_bytes
                self._advance(header)
                if self._expected >= self._end_offset:
                    goes_on = self._position == self._old.size_bytes
                    break
                found = self._intact(old)
                goes_on = found is not None and (
                    not self._is_compacted or found[0] == _header_at(view, at)
                )
        if not taken or (self._is_compacted and not goes_on):
            self._position, self._expected = begun, expected
            return False
        for header, part in taken:
            self._append(file, header, part)
        end = min(self._position, self._old.size_bytes)
        if self._expected >= self._end_offset:
            end = self._old.size_bytes
        self._note_damaged(min(begun, end), end)
        self._flush(file)
        return True

    def _intact(self, old: File) -> tuple[BatchHeader, memoryview] | None:
        """The next batch at its position of the old segment, if intact."""
        at = self._position - self._chunk_position
        if at < 0 or at + HEADER_SIZE > len(self._chunk):
            at = self._read(old, CHUNK_BYTES)
        header = self._acceptable(self._chunk, at, is_whole=False)
        if header is None:
            return None
        if at + header.size_bytes > len(self._chunk):
            if self._position + header.size_bytes > self._old.size_bytes:
                return None
            at = self._read(old, max(header.size_bytes, CHUNK_BYTES))
        header = self._acceptable(self._chunk, at)
        if header is None:
            return None
        return header, memoryview(self._chunk)[at : at + header.size_bytes]

    def _read(self, old: File, size_bytes: int) -> int:
        length = min(size_bytes, self._old.size_bytes - self._position)
        try:
            self._chunk = old.read(self._position, length) if length > 0 else b""
        except DiskError as error:
            # Bytes that the disk does not return are damaged.
            logger.warning("%s at %d: %s", self._old.path, self._position, error)
            self._chunk = b""
        self._chunk_position = self._position
        return 0

    def _acceptable(self, buffer: Buffer, at: int, *, is_whole: bool = True) -> BatchHeader | None:
        """The header at `at`, or None if its batch cannot be the next.

        With `is_whole`, the batch must be complete and its CRC right.
        """
        expected = Expectation(self._expected, NO_EPOCH, self._core.gaps_below)
        header = next_batch(buffer, at, expected, is_whole=is_whole)
        if header is None or header.next_offset > self._end_offset:
            return None
        epoch = self._core.leader_epochs.epoch_for(header.base_offset)
        return header if epoch in (None, header.partition_leader_epoch) else None

    def _advance(self, header: BatchHeader) -> None:
        self._position += header.size_bytes
        self._expected = header.next_offset

    def _append(self, file: File, header: BatchHeader, data: memoryview) -> None:
        self._new.note(
            header, self._written, header.base_offset, self._core.config.index_interval_bytes
        )
        self._pending.append(data)
        self._pending_bytes += header.size_bytes
        self._written += header.size_bytes
        if self._pending_bytes >= CHUNK_BYTES or len(self._pending) >= BUFFERS_MAX:
            self._flush(file)

    def _flush(self, file: File) -> None:
        if self._pending:
            file.append(self._pending)
            self._pending, self._pending_bytes = [], 0

    def _note_damaged(self, begin: int, end: int) -> None:
        if self._damaged and self._damaged[-1][1] == begin:
            begin = self._damaged.pop()[0]
        self._damaged.append((begin, end))

    def _keep(self) -> bool:
        """Keep the damaged bytes. False if these are too many. In a thread."""
        if sum(end - begin for begin, end in self._damaged) > KEPT_BYTES_MAX:
            return False
        with self._old.files.lease(self._old.path) as old:
            return all(
                begin == end
                or keep_stretch(self._core, old, self._old.base_offset, begin, end - begin)
                for begin, end in self._damaged
            )


def keep_stretch(
    core: LogCore, file: File, base_offset: Offset, position: int, size_bytes: int
) -> bool:
    """Keep the damaged bytes at a position of a segment. In a thread.

    Returns False if too many are kept. Bytes that the disk does not return cannot be kept.
    """
    name = f"{segment_name(base_offset)}-{position}"
    try:
        content = file.read(position, size_bytes)
    except DiskError as error:
        logger.warning("%s/%s is not kept: %s", core.directory, name, error)
        return True
    return keep_bytes(core.shared.disk, core.directory, name, content)


def _header_at(view: memoryview, at: int) -> BatchHeader | None:
    try:
        return parse_header(view, at)
    except LogError:
        return None  # the copy ends here
