"""Keeps the garbage collector of Spark's Python workers away from what imports have made.

A worker collects all generations after every task. With Spark, Arrow and numpy loaded that is a
walk over many objects which live as long as the process, and costs more than a small task itself
(DESIGN.md). So what survives such a collection is taken out of the next ones (`gc.freeze`), again
only when more modules have been imported. Objects that are taken out are still
freed when nothing refers to them; only cycles among them are not, once for each such time.
"""

from __future__ import annotations

import gc
import sys
from typing import Any, Final

WORKERS_MODULE: Final = "pyspark.daemon"
"""The main module of the processes that Spark forks its workers from, and so theirs."""
OLDEST_GENERATION: Final = 2


class _Survivors:
    """A callback of the collector, see `gc.callbacks`."""

    def __init__(self) -> None:
        self._modules = 0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        modules = len(sys.modules)
        if phase == "stop" and info["generation"] == OLDEST_GENERATION and modules > self._modules:
            self._modules = modules
            gc.freeze()


def is_worker(module: str = WORKERS_MODULE) -> bool:
    """Whether this process runs that module of Spark's as its program."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == module


def spare_survivors() -> None:
    """From now on, what survives a full collection is spared the next ones. Once in a process."""
    if not any(isinstance(callback, _Survivors) for callback in gc.callbacks):
        gc.callbacks.append(_Survivors())
