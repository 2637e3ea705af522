"""Read old segments again, to find damage while another replica can repair it.

Disks lose bits in unread data. A consumer would find the damage too late, when the other replicas
have been replaced, or are damaged as well. So every finished segment of every log is read once in
`scrub_interval_s`, at no more than `scrub_bytes_per_s`, one log after the other, each from its
first segment to its last but one. The active segment was written, and checked, not long ago.

The scrubber makes all checks of a reader, on headers, CRCs, offsets, leader epochs, and the end of
a segment at the start of the next segment. Finished segments were synced, so any fault is damage,
and so is an unreadable part of the disk. Damage is reported as by a reader (`Listeners.damaged`).
The owner of the log decides whether the log goes offline for repair. A log without another replica
is better served around its damage.

Damage does not end the pass, since the rest of the log is still worth checking. The progress of a
pass is not stored. Each start begins a new pass.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

from raftlog.record.batch import check_batch
from raftlog.record.errors import LogError
from raftlog.record.header import HEADER_SIZE, parse_header
from raftlog.record.types import LeaderEpoch, Offset, PartitionId, TopicId
from raftlog.storage.files import OpenFiles
from raftlog.storage.log.core import LogContext
from raftlog.storage.log.log import Log
from raftlog.storage.segments.scan import Expectation, mismatch
from raftlog.storage.segments.segments import Segment
from raftlog.storage.types import NO_EPOCH, LogState, StorageSettings
from raftlog.world import DiskError

Key: TypeAlias = tuple[TopicId, PartitionId]

PIECE_BYTES: Final = 1 << 20
"""Bytes per read. A larger batch is read whole."""
BURST_S: Final = 1.0
"""Seconds of the rate that are made up for after a pause, at most."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of the scrubber, a batch of a segment in one generation of files."""

    segment: Segment
    generation: int
    position: int
    expected: Expectation


@dataclass(frozen=True, slots=True)
class _Piece:
    """The result of one read."""

    position: int
    expected: Expectation
    epochs: list[tuple[Offset, LeaderEpoch]] = field(default_factory=list)
    """First and last batch of each run of batches of one epoch."""
    damage: str | None = None


class Scrubber:
    """Reads the cold segments of a node's logs, a bounded piece at a time."""

    def __init__(
        self, shared: LogContext, settings: StorageSettings, logs: Mapping[Key, Log]
    ) -> None:
        self.scrubbed_bytes = 0
        self.damage_found = 0
        """Segments in which damage was found, counted again in each pass."""
        self._shared = shared
        self._bytes_per_s = settings.scrub_bytes_per_s
        self._settings = settings
        self._logs = logs
        self._began: dict[Key, float] = {}
        """Time at which the last pass over a log started."""
        self._queue: deque[Key] = deque()
        self._key: Key | None = None
        self._next_base = Offset(0)
        """Offset in the segment with which the pass continues."""
        self._place: _Place | None = None
        self._credit_bytes = 0.0
        self._credited_at = shared.clock.monotonic()

    def limit(self, bytes_per_s: int) -> None:
        """Change the rate, 0 to pause. Takes effect with the next read."""
        self._bytes_per_s = bytes_per_s

    async def scrub_some(self) -> None:
        """Read as much as the rate allows since the last call."""
        rate = self._bytes_per_s
        now = self._shared.clock.monotonic()
        credit = self._credit_bytes + (now - self._credited_at) * rate
        self._credit_bytes, self._credited_at = min(credit, rate * BURST_S), now
        while rate > 0 and self._credit_bytes > 0:
            if self._place is None and not self._next_place(now):
                return
            await self._read_on()

    def _next_place(self, now: float) -> bool:
        """Find the next due segment. False without any."""
        while True:
            if self._key is None and not self._next_log(now):
                return False
            assert self._key is not None
            log = self._logs.get(self._key)
            if log is not None and log.state is LogState.ONLINE:
                segments = log.segments
                segment = segments.holding(self._next_base)
                if segment is not segments.active:
                    expected = Expectation(segment.base_offset, NO_EPOCH, log.gaps_below)
                    self._place = _Place(segment, segments.generation, 0, expected)
                    return True
            self._key = None

    def _next_log(self, now: float) -> bool:
        interval = self._settings.scrub_interval_s
        if not self._queue:
            for gone in [key for key in self._began if key not in self._logs]:
                del self._began[gone]
            self._queue.extend(
                key
                for key in self._logs
                if key not in self._began or now - self._began[key] >= interval
            )
        if not self._queue:
            return False
        self._key = self._queue.popleft()
        self._began[self._key] = now
        self._next_base = Offset(0)
        return True

    async def _read_on(self) -> None:
        key, place = self._key, self._place
        assert key is not None
        assert place is not None
        log = self._logs.get(key)
        if log is None or log.failure is not None:
            self._key = self._place = None
            return
        segment = place.segment
        size_bytes = segment.size_bytes
        work = partial(_read_piece, self._shared.files, segment.path, size_bytes, place)
        try:
            async with self._shared.cold_reads:
                piece = await self._shared.disk.run(work)
        except DiskError as error:
            piece = _Piece(size_bytes, place.expected, damage=f"it cannot be read: {error}")
        read_bytes = piece.position - place.position
        self._credit_bytes -= max(read_bytes, HEADER_SIZE)
        self.scrubbed_bytes += read_bytes
        if log.failure is not None or log.segments.generation != place.generation:
            # Its files were cut, swapped or removed. Read the segment again, if still there.
            self._next_base, self._place = segment.base_offset, None
            return
        damage = piece.damage or _wrong_epoch(log, piece)
        if damage is None and piece.position < size_bytes:
            self._place = replace(place, position=piece.position, expected=piece.expected)
            return
        end_offset = log.segments.end_of(segment)
        if damage is None and piece.expected.next_offset != end_offset:
            damage = f"offset {piece.expected.next_offset}: records up to {end_offset} are missing"
        if damage is not None:
            self.damage_found += 1
            reason = f"{segment.path}: {damage}"
            logger.error("damage on disk: %s", reason)
            log.report_damage(reason, segment.base_offset)
        self._next_base, self._place = end_offset, None


def _wrong_epoch(log: Log, piece: _Piece) -> str | None:
    for base_offset, epoch in piece.epochs:
        known = log.leader_epochs.epoch_for(base_offset)
        if known is not None and known != epoch:
            return f"offset {base_offset}: leader epoch {epoch} instead of {known}"
    return None


def _read_piece(files: OpenFiles, path: str, size_bytes: int, place: _Place) -> _Piece:
    """Check whole batches from a place on. Blocks. Raises DiskError."""
    expected = place.expected
    with files.lease(path) as file:
        chunk = file.read(place.position, min(PIECE_BYTES, size_bytes - place.position))
        at = 0
        epochs: list[tuple[Offset, LeaderEpoch]] = []
        last: tuple[Offset, LeaderEpoch] | None = None
        damage: str | None = None
        while place.position + at < size_bytes:
            rest = size_bytes - place.position - at
            if len(chunk) - at < HEADER_SIZE <= rest and at:
                break
            try:
                header = parse_header(chunk, at)
            except LogError as error:
                damage = error.message
                break
            damage = mismatch(header, expected)
            if damage is None and header.size_bytes > rest:
                damage = f"{header.size_bytes} bytes claimed, which the segment does not have"
            if damage is not None:
                break
            if at + header.size_bytes > len(chunk):
                if at:
                    break
                chunk = file.read(place.position, header.size_bytes)
            if not check_batch(chunk, at, header):
                damage = "the CRC does not match"
                break
            if last is None or last[1] != header.partition_leader_epoch:
                epochs.extend(() if last is None else (last,))
                epochs.append((header.base_offset, header.partition_leader_epoch))
            last = header.base_offset, header.partition_leader_epoch
            # The leader epochs are compared with the log's history, which knows which epoch is
            # wrong.
            expected = expected._replace(next_offset=header.next_offset)
            at += header.size_bytes
    epochs.extend(() if last is None else (last,))
    if damage is not None:
        damage = f"offset {expected.next_offset}: {damage}"
    return _Piece(place.position + at, expected, epochs, damage)
