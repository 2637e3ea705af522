"""The collector in workers of Spark. A process for each test: frozen objects stay frozen."""

from __future__ import annotations

import subprocess
import sys

SPARED = """
import gc
from raftlog_spark.data_source import spare_survivors
spare_survivors()
spare_survivors()
assert len(gc.callbacks) == 1
assert gc.get_freeze_count() == 0
"""


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_survives_a_full_collection_is_spared_the_next() -> None:
    run(
        SPARED
        + """
gc.collect(1)
assert gc.get_freeze_count() == 0, "the young are not yet known to live long"
gc.collect()
assert gc.get_freeze_count() > 1_000
"""
    )


def test_it_happens_again_only_after_more_imports() -> None:
    run(
        SPARED
        + """
gc.collect()
before = gc.get_freeze_count()
kept = [[] for _ in range(5_000)]
gc.collect()
assert gc.get_freeze_count() <= before, "what tasks make is not kept from the collector"
import decimal, colorsys
gc.collect()
assert gc.get_freeze_count() > before + 5_000
"""
    )


def test_garbage_in_cycles_is_collected_after_it() -> None:
    run(
        SPARED
        + """
import weakref
gc.collect()

class Node:
    pass

node = Node()
node.itself = node
seen = weakref.ref(node)
del node
gc.collect()
assert seen() is None
"""
    )


def test_only_a_worker_of_sparks_is_one() -> None:
    assert run("from raftlog_spark.data_source import is_worker; print(is_worker())") == "False\n"
    program = """
import runpy, sys
sys.modules["__main__"].__spec__ = type("Spec", (), {"name": "pyspark.daemon"})
import raftlog_spark.data_source, gc
print(len(gc.callbacks))
"""
    assert run(program) == "1\n"
