"""Spark's daemon of Python workers, with the imports of its workers made before the forks.

A failed task ends its worker. Without this module, the next worker imports everything again, at
0.6 s of processor time.
"""

from __future__ import annotations

import importlib
import runpy
import sys

_module = sys.argv[1]
"""The module whose `main` the workers call."""
importlib.import_module(_module)
# The workers that only list or create sources need neither Arrow nor the client.
if not _module.endswith((".lookup_data_sources", ".create_data_source")):
    for _name in ("sink.writers", "source.batch_reader", "source.stream_reader"):
        importlib.import_module(f"raftlog_spark.{_name}")
# `raftlog_spark.data_source` is imported later: it looks at the program of the worker, which is
# Spark's module as in every other session.
runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
