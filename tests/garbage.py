"""The garbage collector of a test process: it scans only what a test has made."""

from __future__ import annotations

import functools
import gc


@functools.cache
def exempt_existing() -> None:
    """Exempt the modules and tests of this process from garbage collection, at the first call.

    They are half a million objects. A collection would traverse them each time and free none.
    """
    gc.collect()
    gc.freeze()
