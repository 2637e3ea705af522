"""Repair the files of an offline log from good copies of other replicas.

This is for the last replica of an ISR, which nothing can replace. All segments are scanned, also
below the recovery point, and the end of the log is judged as at a start. A damaged stretch takes
batches of the same length, since replicas hold identical bytes, so no position, index or checkpoint
changes. A log without a start has no leader epochs and no high watermark, so a copy needs another
proof. One of these is enough, where base offsets continue, epochs do not go back, and CRCs match.
*The same batch* has the same offset, epoch and CRC, also where no more of its header is left.

- The same batch stands at the place of the copy's first batch.
- After these batches copy and log continue with the same batch. Logs that share a batch share all
  batches before (KIP-101, KIP-279).
- The copy ends, the log continues at this place, and the epochs before and after are the same. In a
  compacted log this holds only at the end of a segment. Elsewhere, another batch may fit.

A segment is written again, synced, and renamed over the old segment, so a crash leaves the old or
the new, and the mark of the damage (`ReplicaCheckpoint.damage`) stays until the log has been opened
again (`LogManager.reopen_replica`). A start that finds the mark has all segments scanned again.
"""

from __future__ import annotations

import logging

from raftlog.record.errors import NOT_READY, LogError
from raftlog.record.header import HEADER, HEADER_SIZE, BatchHeader
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.checksummed import Damaged
from raftlog.storage.log.core import LogCore
from raftlog.storage.log.derived_state import read_marks
from raftlog.storage.log.recovery import Damage, SegmentFacts, judge, plan_recovery
from raftlog.storage.repair.batch_repair import CHUNK_BYTES, KEPT_BYTES_MAX, Copies, keep_stretch
from raftlog.storage.segments.scan import Expectation, Stop, find_later_batch, next_batch, scan
from raftlog.storage.segments.segments import (
    CLEANED_SUFFIX,
    base_offset_of,
    finish_swaps,
    segment_name,
)
from raftlog.storage.types import NO_EPOCH, LogState
from raftlog.world import DiskError, DiskFullError, File

logger = logging.getLogger(__name__)


class OfflineRepair:
    """The repair of one log. Each call continues, as files of an offline log do not change.

    Lives in the event loop.
    """

    def __init__(self, core: LogCore) -> None:
        self._core = core
        self._bases: list[Offset] = []
        """Base offsets of segments not known to be whole, oldest first. The next fields describe
        the first."""
        self._position = 0
        """Position before which all batches are intact, or have copies."""
        self._expected = Expectation(Offset(0), NO_EPOCH, Offset(0))
        """Expectation of the batch at this position."""
        self._before: tuple[Offset, int, Expectation] | None = None
        """Segment, place and expectation of the intact batch before, if known."""
        self._copied: list[tuple[int, bytes]] = []
        """Positions, and the batches of copies that belong there."""
        self._has_failed = False
        """Whether an error cut the replacement of a segment short. Then the content of the disk is
        unknown."""

    async def run(self, copies: Copies) -> bool:
        """Repair all segments. Returns whether a start would find the log whole now.

        False if a segment with a damaged batch that has no good copy stays as it is, or more than
        batches is missing. Raises LogError, after which the caller tries again later.
        """
        core = self._core
        async with core.arrange_lock:
            self._require_offline()
            if not self._bases and not await core.run(self._begin):
                return False
            while self._bases and not self._has_failed:
                self._require_offline()
                if await core.run(self._scan_on):
                    if not await core.run(self._finish_segment):
                        return False
                # Offset and epoch lie outside a batch's CRC. If damaged, they may make the next
                # batch look wrong, and not their own.
                elif not await self._take_copy(copies) and not (
                    self._step_back() and await self._take_copy(copies)
                ):
                    return False
        return not self._bases

    def _require_offline(self) -> None:
        core = self._core
        if core.state is not LogState.DAMAGED or core.is_discarded or core.pending_rearrangements:
            raise LogError(NOT_READY, f"{core.directory}: not to be repaired offline.")

    async def _take_copy(self, copies: Copies) -> bool:
        # Other replicas respond from the log start on, with the whole batch that holds it.
        start = max(self._expected.next_offset, self._core.segments.log_start_offset)
        async for data in copies(start):
            if await self._core.run(self._take, memoryview(data)):
                return True
        return False

    def _step_back(self) -> bool:
        if self._before is None:
            return False
        base, self._position, self._expected = self._before
        self._before = None
        if base != self._bases[0]:
            self._bases.insert(0, base)
        return True

    # In a thread

    def _begin(self) -> bool:
        """Find the segments. False if the log lacks more than batches."""
        core = self._core
        disk, checkpoint = core.shared.disk, core.undamaged_checkpoint
        if checkpoint is None and isinstance(read_marks(disk, core.directory), Damaged):
            return False
        # A start rejects a log of known damage before it does so.
        finish_swaps(disk, core.directory)
        names = disk.list_directory(core.directory)
        bases = sorted(base for name in names if (base := base_offset_of(name)) is not None)
        if not bases:
            return False
        facts = []
        for base in bases:
            with core.shared.files.lease(self._path(base)) as file:
                facts.append(SegmentFacts(base, file.size, None))
        plan = plan_recovery(facts, checkpoint, core.start)
        if isinstance(plan, Damage):
            return False
        self._bases, self._before = bases[plan.dropped :], None
        # Without a checkpoint this is as at a start, see `opening`.
        gaps_below = bases[-1] if checkpoint is None else checkpoint.gaps_below
        self._begin_segment(Expectation(self._bases[0], NO_EPOCH, gaps_below))
        return True

    def _begin_segment(self, expected: Expectation) -> None:
        self._position, self._expected = 0, expected
        self._copied = []

    def _path(self, base: Offset) -> str:
        return f"{self._core.directory}/{segment_name(base)}"

    @property
    def _following(self) -> Offset | None:
        """Base offset of the next segment, or None for the last segment."""
        return self._bases[1] if len(self._bases) > 1 else None

    def _scan_on(self) -> bool:
        """Continue to the next damage. Returns whether the segment is whole.

        A torn end of the log does not count.
        """
        core, base, following = self._core, self._bases[0], self._following

        def visit(position: int, header: BatchHeader) -> None:
            self._before = base, position, self._expected
            self._expected = self._expected._replace(
                next_offset=header.next_offset, leader_epoch=header.partition_leader_epoch
            )

        later_batch = None
        with core.shared.files.lease(self._path(base)) as file:
            end = scan(file, self._position, file.size, self._expected, visit)
            if following is None and end.stop is not Stop.END:
                later_batch = find_later_batch(file, end.position, file.size, end.next_offset)
        self._position = end.position
        checkpoint = core.undamaged_checkpoint
        verdict = judge(
            end.stop,
            end.reason,
            end.next_offset,
            next_base_offset=following,
            start=core.start,
            flushed_offset=None if checkpoint is None else checkpoint.flushed_offset,
            later_batch=later_batch,
        )
        return not isinstance(verdict, Damage)

    def _take(self, copy: memoryview) -> bool:
        """Take the batches of a copy that are proven to be the damaged batches.

        Returns whether there are any.
        """
        with self._core.shared.files.lease(self._path(self._bases[0])) as file:
            size_bytes, expected = self._proven(file, copy)
            # Equal bytes would be no repair.
            if copy[:size_bytes] == file.read(self._position, size_bytes):
                return False
        begin, data = self._position, bytes(copy[:size_bytes])
        if sum(len(taken) for _, taken in self._copied) + size_bytes > KEPT_BYTES_MAX:
            return False
        if self._copied and self._copied[-1][0] + len(self._copied[-1][1]) == begin:
            begin, before = self._copied.pop()
            data = before + data
        self._copied.append((begin, data))
        self._position += size_bytes
        self._expected, self._before = expected, None
        return True

    def _proven(self, file: File, copy: memoryview) -> tuple[int, Expectation]:
        """Bytes of a copy that belong at the present place, and the next expectation."""
        following, expected = self._following, self._expected
        at, no_batch = 0, (0, expected)
        while True:
            place = self._position + at
            there = self._header_at(file, place)
            header = next_batch(copy, at, expected)
            if header is None:
                break
            is_same = there is not None and _identity(there) == _identity(header)
            if is_same and at:
                return at, expected
            at += header.size_bytes
            expected = expected._replace(
                next_offset=header.next_offset, leader_epoch=header.partition_leader_epoch
            )
            is_beyond = following is not None and expected.next_offset > following
            if is_beyond or place + header.size_bytes > file.size:
                return no_batch
            if is_same:
                return at, expected
        if there is None or not at or at < copy.nbytes:
            return no_batch
        is_end = place == file.size
        is_compacted = self._core.config.compacts or expected.gaps_below > self._bases[0]
        goes_on_at = following if is_end else there.base_offset
        is_one_epoch = self._expected.leader_epoch == there.partition_leader_epoch
        is_proven = expected.next_offset == goes_on_at and is_one_epoch
        return (at, expected) if is_proven and (is_end or not is_compacted) else no_batch

    def _header_at(self, file: File, position: int) -> BatchHeader | None:
        """Remains of the header at a position of the segment, or after its end."""
        if position < file.size:
            data = file.read(position, HEADER_SIZE)
        elif self._following is None:
            return None
        else:
            with self._core.shared.files.lease(self._path(self._following)) as next_file:
                data = next_file.read(0, HEADER_SIZE)
        return BatchHeader._make(HEADER.unpack(data)) if len(data) == HEADER_SIZE else None

    def _finish_segment(self) -> bool:
        """Continue with the next segment. False if too many damaged bytes are kept already."""
        try:
            if self._copied and not self._replace():
                return False
        except DiskFullError:
            raise
        except DiskError:
            self._has_failed = True
            raise
        del self._bases[0]
        self._begin_segment(self._expected)
        return True

    def _replace(self) -> bool:
        """Write the segment again, with the copies, and replace the old file."""
        core, base = self._core, self._bases[0]
        disk, path = core.shared.disk, self._path(base)
        cleaned = path + CLEANED_SUFFIX
        with core.shared.files.lease(path) as old:
            if not all(
                keep_stretch(core, old, base, position, len(data))
                for position, data in self._copied
            ):
                return False
            disk.remove(cleaned)
            new = disk.open(cleaned, create=True)
            try:
                self._write(old, new)
                new.sync()
            except BaseException:
                disk.remove(cleaned)
                raise
            finally:
                new.close()
        disk.rename(cleaned, path)
        core.shared.files.forget(path)
        disk.sync_directory(core.directory)
        logger.warning(
            "%s: repaired offline from other replicas: %d damaged bytes at %s replaced, and kept",
            path,
            sum(len(data) for _, data in self._copied),
            ", ".join(str(position) for position, _ in self._copied),
        )
        return True

    def _write(self, old: File, new: File) -> None:
        done = 0
        for position, data in (*self._copied, (old.size, b"")):
            while done < position:
                done += len(chunk := old.read(done, min(CHUNK_BYTES, position - done)))
                new.append([chunk])
            if data:
                new.append([data])
                done += len(data)


def _identity(header: BatchHeader) -> tuple[Offset, LeaderEpoch, int]:
    return header.base_offset, header.partition_leader_epoch, header.crc
