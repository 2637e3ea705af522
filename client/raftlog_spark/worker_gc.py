"""Exempts the objects made by imports from garbage collection in Spark's Python workers.

A worker collects all generations after every task. With Spark, Arrow and numpy loaded, a collection
visits many objects that live as long as the process, and costs more than a small task itself
(DESIGN.md). So the survivors of such a collection are exempt from the next collections
(`gc.freeze`), again only after more modules have been imported. Exempt objects are still freed by
reference counting. Only their cycles are not, once for each freeze.
"""

from __future__ import annotations

import gc
import sys
from typing import Any, Final

WORKERS_MODULE: Final = "pyspark.daemon"
"""The main module of the processes that Spark forks its workers from."""
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
    """Exempt the survivors of full collections from now on. Idempotent."""
    if not any(isinstance(callback, _Survivors) for callback in gc.callbacks):
        gc.callbacks.append(_Survivors())
