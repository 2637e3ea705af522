"""Keeps the cyclic garbage collector out of short loops that make many short-lived objects.

Decoding a batch makes thousands of codec objects that the collector tracks, and that die by
reference count moments later. Their mere number sets off collections of everything the process
has: measured with a few libraries loaded, that took three times as long as the decoding itself.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """No automatic collection meanwhile. For synchronous work of a few milliseconds only."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
