"""Look up the aborted transactions of a log, for readers and compaction.

A damaged index is replaced in memory, for the time until the next start, which writes it again.
"""

from __future__ import annotations

import logging
from functools import partial

from raftlog.storage.log.core import LogCore
from raftlog.storage.segments.segments import Segment
from raftlog.storage.transactions.aborted_index import DamagedIndexError, Wanted, take
from raftlog.storage.transactions.scan import aborted_in_last
from raftlog.storage.transactions.transactions import AbortedEntry

logger = logging.getLogger(__name__)


async def find_aborted(core: LogCore, wanted: Wanted) -> list[AbortedEntry]:
    """Return the wanted aborted transactions (see `take`), by their markers' offsets.

    The files may change during the lookup. The result holds if `Segments.generation` has not
    changed. Raises DiskError.
    """
    found: list[AbortedEntry] = []
    if not core.segments.has_aborted:
        return found
    for segment in core.segments.all[core.segments.number(wanted.start) :]:
        if len(segment.aborted):
            left = wanted._replace(count_max=wanted.count_max - len(found))
            some, is_done = await _entries(core, segment, left)
            found += some
            if is_done:
                break
    return found


async def aborted_of(core: LogCore, segment: Segment) -> list[AbortedEntry]:
    """All entries of one segment. Raises DiskError."""
    entries, _ = await _entries(core, segment, Wanted())
    return entries


async def _entries(
    core: LogCore, segment: Segment, wanted: Wanted
) -> tuple[list[AbortedEntry], bool]:
    index = segment.aborted
    saved, unsaved = index.saved, tuple(index.unsaved)
    found: list[AbortedEntry] = []
    is_done = False
    if saved:
        generation = core.segments.generation
        try:
            async with core.shared.cold_reads:
                found, is_done = await core.shared.disk.run(
                    partial(index.read_saved, saved, wanted)
                )
        except DamagedIndexError as error:
            if generation == core.segments.generation:
                await _restore(core, segment, error)
            unsaved = tuple(index.unsaved)
    return found, is_done or take(unsaved, wanted, found)


async def _restore(core: LogCore, segment: Segment, error: DamagedIndexError) -> None:
    """Rebuild the entries of a segment, in memory."""
    async with core.derived_lock:
        segments = core.segments.all
        if segment not in segments or not segment.aborted.saved:
            return
        logger.error("%s: reading the aborted transactions from the log", error)
        known = segments[: segments.index(segment) + 1]
        sizes = [known_segment.size_bytes for known_segment in known]
        entries = await core.shared.disk.run(partial(aborted_in_last, known, sizes))
        segment.aborted.restore(entries)
