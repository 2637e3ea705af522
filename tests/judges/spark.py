"""Spark's own Kafka source and sink, batch and streaming, in PySpark."""

from __future__ import annotations

import json
import sys
from typing import Final

from tests.judges import jars
from tests.judges.programs import Program
from tests.judges.trial import Trial, check_values

DEADLINE_S: Final = 300.0
PARTS: Final = 2


def spark_source_and_sink(trial: Trial) -> str:
    """Batches written and read with headers, a stream from topic to topic, in two runs of it."""
    found = ",".join(map(str, jars.class_path("spark")))
    name = trial.new_name("spark")
    source, target = f"{name}-source", f"{name}-target"
    for topic in (source, target):
        trial.create(topic)
    count = trial.effort.records
    directory = trial.directory / name
    directory.mkdir()
    command = [sys.executable, "-m", "tests.judges.spark_program", trial.servers, name, str(count)]
    root = str(jars.HERE.parent.parent)
    with Program(
        [*command, str(directory), found],
        trial.directory,
        f"{name}-program",
        environment={"PYTHONPATH": f"{root}:{root}/client"},
        deadline_s=DEADLINE_S,
    ) as spark:
        spark.wait()
        [counts] = [json.loads(line) for line in spark.lines() if line.startswith("{")]
    for part in range(PARTS):
        wanted = [count * (part + 1)] * 3
        assert counts[f"batch {part}"] == wanted, counts
        assert counts[f"stream {part}"] == wanted, counts
    values = [b"v%d" % number for number in range(PARTS * count)]
    rows = trial.read(source)
    check_values(values, rows)
    check_values(values, trial.read(target))
    in_partition = [sum(row.partition == number for row in rows) for number in range(3)]
    in_partition[0] -= 1  # the last read began one record later there
    assert counts["partitions"] == {str(n): count for n, count in enumerate(in_partition)}, counts
    return f"{PARTS * count} records in two batches, copied by a stream in two runs"
