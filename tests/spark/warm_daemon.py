"""Spark's daemon of Python workers, with the imports of its workers made before the forks.

A failed task ends its worker. Without this module, the next worker imports everything again, at
0.6 s of processor time.
"""

from __future__ import annotations

import importlib
import runpy
import sys

for _name in (
    # The module whose `main` the workers call.
    sys.argv[1],
    "raftlog_spark.sink.writers",
    "raftlog_spark.source.readers",
):
    importlib.import_module(_name)
# `raftlog_spark.data_source` is imported later: it looks at the program of the worker, which is
# Spark's module as in every other session.
runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
