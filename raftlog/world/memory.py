"""How the C library hands out large blocks of memory.

Record batches come and go as blocks of 100 kB to some MB. By default each of them is mapped from
the system, cleared page by page as it is touched, and unmapped again: a third of a busy node's
processor time. Kept in the heap they are used again as they are.
"""

from __future__ import annotations

import ctypes
from typing import Final

MMAP_THRESHOLD_BYTES: Final = 32 << 20
"""Larger blocks are mapped, and returned at once: the most that glibc takes."""
TRIM_THRESHOLD_BYTES: Final = 128 << 20
"""Free memory at the end of the heap beyond that is returned to the system."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_large_blocks() -> bool:
    """Have freed blocks kept for the next use, for this process. False where it is not possible.

    Source: mallopt(3) of glibc. To be called once, at the start.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        and mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
    )
