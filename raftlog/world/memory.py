"""Keep large blocks of memory in the only heap of the C library.

Record batches come and go as blocks of 100 kB to some MB. By default each block is mapped from the
system, cleared page by page on first use, and unmapped again, which takes a third of a busy node's
processor time. Blocks kept in the heap are reused as they are.

By default each thread has its heap, which never returns what it keeps. After an attack of
decompression bombs these heaps were half of a node's memory.
"""

from __future__ import annotations

import ctypes
from typing import Final

MMAP_THRESHOLD_BYTES: Final = 32 << 20
"""Bound above which blocks are mapped, and returned at once. It is the maximum of glibc."""
TRIM_THRESHOLD_BYTES: Final = 128 << 20
"""Bytes of free memory kept at the end of the heap. More is returned to the system."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def keep_large_blocks() -> bool:
    """Keep freed blocks for the next use, in this process. False where not possible.

    Source: mallopt(3) of glibc. To be called once, at the start.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        and mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
        and mallopt(_M_ARENA_MAX, 1)
    )
