"""Replace a run of segments by one new segment, so that a crash leaves the old or the new.

1. The new log file is written as `<base>.log.cleaned` and synced. A crash: it is removed.
2. It is renamed to `<base>-<end>.swap`, and that name is made durable. From here on the new one
   counts: its name says which offsets it stands for.
3. The old segments of that range are removed, the file gets its own name, and the directory is
   synced. A crash in between: the next start does this step again.

Indexes of the old segments go with them; the new ones are written before step 3 ends, and are
rebuilt by a scan if a crash loses them.
"""

from __future__ import annotations

from typing import Final

from raftlog.record.types import Offset
from raftlog.storage.segment import (
    OFFSET_DIGITS,
    SEGMENT_SUFFIXES,
    base_offset_of,
    segment_name,
)
from raftlog.world import Disk, DiskError, DiskFullError

SWAP_SUFFIX: Final = ".swap"


def swap_name(base_offset: Offset, end_offset: Offset) -> str:
    """The name of a finished segment that stands for the offsets from base to end."""
    return f"{base_offset:0{OFFSET_DIGITS}d}-{end_offset:0{OFFSET_DIGITS}d}{SWAP_SUFFIX}"


def swap_range(name: str) -> tuple[Offset, Offset] | None:
    """The offsets in such a name; None if it is no such name."""
    base, dash, end = name.removesuffix(SWAP_SUFFIX).partition("-")
    if not name.endswith(SWAP_SUFFIX) or not dash or not (base + end).isdecimal():
        return None
    return Offset(int(base)), Offset(int(end))


def swap_segments(
    disk: Disk, directory: str, cleaned: str, base_offset: Offset, end_offset: Offset
) -> None:
    """Steps 2 and 3, for a `.cleaned` file that is synced. Blocks.

    Raises DiskFullError if nothing was changed; DiskError if it is not known which segments count.
    """
    disk.rename(f"{directory}/{cleaned}", f"{directory}/{swap_name(base_offset, end_offset)}")
    try:
        disk.sync_directory(directory)
        finish_swaps(disk, directory)
    except DiskFullError as error:
        # There is no way back: whoever goes on with the old segments would lose what they take.
        raise DiskError(f"{directory}: a swap was cut short: {error}") from error


def finish_swaps(disk: Disk, directory: str) -> int:
    """Step 3, for every swap that was committed; return how many. Blocks. Raises DiskError."""
    names = disk.list_directory(directory)
    swaps = [(name, swapped) for name in names if (swapped := swap_range(name)) is not None]
    for _, (base_offset, end_offset) in swaps:
        for old in names:
            # Each file by itself: a crash may have removed some of a segment's files already.
            if any(
                old_base is not None and base_offset <= old_base < end_offset
                for suffix in SEGMENT_SUFFIXES
                for old_base in (base_offset_of(old, suffix),)
            ):
                disk.remove(f"{directory}/{old}")
    if swaps:
        # The name that tells what has to go must not itself go before that is gone for good.
        disk.sync_directory(directory)
        for name, (base_offset, _) in swaps:
            disk.rename(f"{directory}/{name}", f"{directory}/{segment_name(base_offset)}")
        disk.sync_directory(directory)
    return len(swaps)
