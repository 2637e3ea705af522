"""The content of each replica, batch by batch, followed on the simulated disk.

A batch is identified by its *link*: a hash of its base offset, leader epoch and CRC, and of the
link of the batch before. Two replicas with a common link have the whole prefix in common.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from raftlog.record.errors import LogError
from raftlog.record.header import parse_header
from raftlog.record.types import Offset
from raftlog.storage.log.core import LogCore
from raftlog.storage.types import FlushMode, LogState
from tests.simulation.disk import SimulatedDisk
from tests.simulation.disk_tree import Inode

Key = tuple[str, int]
"""Topic id and partition."""
START: Final = b""
"""The link before offset 0."""
UNKNOWN: Final = b"?"
"""The unknown link before the first batch of a log with a deleted beginning."""


class Batch(NamedTuple):
    """One batch in a log."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    link: bytes


def link(before: bytes, base_offset: int, leader_epoch: int, crc: int) -> bytes:
    """The link of a batch after `before`."""
    return hashlib.blake2b(
        b"%b %d %d %d" % (before, base_offset, leader_epoch, crc), digest_size=12
    ).digest()


@dataclass
class Replica:
    """One replica, through all processes of its node."""

    node_id: int
    key: Key
    batches: list[Batch] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """Base offsets of `batches`."""
    start: int = 0
    durable_start: int = 0
    """The log start offset after a crash."""
    end: int = 0
    durable_end: int = 0
    """The durable end of the last process, by the flush mode."""
    is_sync: bool = True
    is_compacted: bool = False
    """Its batches may change: they are not followed."""
    is_lost: bool = False
    """The disk may have lost durable records: power cut with flush=async, wiped, or damaged."""
    lost_epoch: int = 0
    """The node's broker epoch at that time."""
    is_removed: bool = False
    """The metadata has taken it from its node since it was opened: its files may be gone."""
    damaged_log: LogCore | None = None
    """The log damaged on purpose, if any."""
    flips: list[tuple[Inode, int]] = field(default_factory=list)
    """Bits flipped on purpose: the content followed here is the written one."""
    disk: SimulatedDisk | None = None
    boot_id: str = ""
    """Of `disk`, when the replica was last looked at."""
    log: LogCore | None = None
    high_watermark: int = 0
    checked_to: int = 0
    """Batches below were compared with the committed ones."""
    epoch: int = -1
    """Leader epoch in which `high_watermark` was seen."""
    root: bytes = START
    """The link before its first batch."""
    link_before: Callable[[int], bytes] = lambda _offset: UNKNOWN
    """Gives the link of the committed batch that ends at an offset, if known."""
    _generation: int = -1
    _segment: int = 0
    _position: int = 0

    def opened(self, log: LogCore) -> None:
        """A process of the node has opened the replica."""
        self.log = log
        self.is_removed = False
        self.high_watermark = 0
        self.epoch = -1
        self._begin_at(log, keeps=False)

    def look_at_disk(self, disk: SimulatedDisk, broker_epoch: int) -> None:
        """Find out whether the disk has lost something since the last look."""
        if self.disk is not None:
            is_wiped = disk is not self.disk
            is_power_cut = disk.boot_id() != self.boot_id and not self.is_sync
            if is_wiped or is_power_cut:
                self.is_lost, self.lost_epoch = True, broker_epoch
        self.disk, self.boot_id = disk, disk.boot_id()

    def follow(self, disk: SimulatedDisk) -> Iterator[Batch]:
        """Follow the changes of the log, and return its new batches."""
        log = self.log
        assert log is not None
        self.start = log.segments.log_start_offset
        self.durable_start = log.durable_log_start
        self.end = log.segments.end_offset
        self.is_sync = log.config.flush is FlushMode.SYNC
        if log.state is LogState.DAMAGED:
            # The content is unknown, so no batch counts.
            self.durable_end = self.end = self.start
            return
        self.durable_end = log.flushed_offset if self.is_sync else self.end
        self.is_compacted = log.config.compacts
        if self.is_compacted:
            return
        if self._generation != log.segments.generation:
            # Files were cut, removed or swapped.
            self._begin_at(log, keeps=True)
        yield from self._read_on(disk, log)

    def _begin_at(self, log: LogCore, *, keeps: bool) -> None:
        """Read the log again from its first file; with `keeps`, the prefix before is known."""
        first = int(log.segments.all[0].base_offset)
        keep = bisect_right(self.starts, first - 1) if keeps else 0
        known = START if first == 0 else self.link_before(first)
        own = self._link_at(first)
        if keep and own is None:
            # Restarted at a later offset, behind uncommitted batches.
            keep = 0
        elif own not in (None, known) and known != UNKNOWN:
            # The same, or the files below were removed of a history that was given up since.
            keep, known = 0, UNKNOWN
        del self.batches[keep:], self.starts[keep:]
        if not keep:
            self.root = known
        self.checked_to = 0
        self._generation = log.segments.generation
        self._segment, self._position = first, 0

    def _read_on(self, disk: SimulatedDisk, log: LogCore) -> Iterator[Batch]:
        before = self._last_link()
        number = log.segments.number(Offset(self._segment))
        for segment in log.segments.all[number:]:
            if segment.base_offset != self._segment:
                self._segment, self._position = segment.base_offset, 0
            if self._position >= segment.size_bytes:
                continue
            data = self.as_written(disk._inode(segment.path))
            while self._position < segment.size_bytes:
                try:
                    header = parse_header(data, self._position)
                except LogError:
                    # Lost in a power cut: the next reader finds out.
                    self._position = segment.size_bytes
                    break
                epoch = header.partition_leader_epoch
                before = link(before, header.base_offset, epoch, header.crc)
                batch = Batch(header.base_offset, header.next_offset, epoch, header.crc, before)
                self.batches.append(batch)
                self.starts.append(batch.base_offset)
                self._position += header.size_bytes
                yield batch

    def as_written(self, inode: Inode) -> bytearray:
        """A file's content; a copy only of a file damaged on purpose."""
        flipped = [bit for owner, bit in self.flips if owner is inode]
        data = bytearray(inode.written) if flipped else inode.written
        for bit in flipped:
            if bit // 8 < len(data):
                data[bit // 8] ^= 1 << (bit % 8)
        return data

    def _link_at(self, offset: int) -> bytes | None:
        """The link before the batch at `offset`, as far as the batches followed so far tell."""
        if self.starts and self.starts[0] == offset:
            return self.root
        before = self.before(offset)
        return before.link if before is not None and before.next_offset == offset else None

    def _last_link(self) -> bytes:
        if self.batches:
            return self.batches[-1].link
        return self.root

    @property
    def is_rooted(self) -> bool:
        """Whether the links go back to offset 0, so the whole prefix is known."""
        return self.root != UNKNOWN

    def before(self, offset: int) -> Batch | None:
        """The last batch that begins below `offset`."""
        at = bisect_left(self.starts, offset)
        return self.batches[at - 1] if at else None

    def holding(self, offset: int) -> Batch | None:
        """The batch that contains `offset`."""
        at = bisect_right(self.starts, offset)
        if not at or self.batches[at - 1].next_offset <= offset:
            return None
        return self.batches[at - 1]

    def between(self, start: int, end: int) -> list[Batch]:
        """Batches that begin at or above `start` and below `end`."""
        return self.batches[bisect_left(self.starts, start) : bisect_left(self.starts, end)]
