"""The garbage collector of a test process scans only what the present test has made."""

from __future__ import annotations

import gc
import itertools
from typing import Final

CALLS_PER_FULL_COLLECTION: Final = 100

_calls = itertools.count()


def exempt_existing() -> None:
    """Free the garbage, and exempt all other objects of this process from later collections.

    Modules and collected tests are half a million objects. A collection would traverse them each
    time and free none. So most calls traverse only objects made since the last call.
    """
    if next(_calls) % CALLS_PER_FULL_COLLECTION == 0:
        # Objects that were in use at an earlier call may be garbage now.
        gc.unfreeze()
    gc.collect()
    gc.freeze()
