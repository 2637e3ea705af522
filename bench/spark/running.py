"""The Spark session under measurement, topics to read, and processor time by process."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil
from raftlog_spark.cluster import Cluster
from raftlog_spark.session import session

from bench.node import MeasuredNode
from bench.report import Result
from raftlog.record.codec import BatchBuilder, RecordTuple
from raftlog.record.compression import Compression

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 8
BATCH_BYTES: Final = 512 * 1024
PATTERN_BYTES: Final = 10_000_000
"""So much is different before the records are the same again."""
CONFIG: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
SMALL_BYTES: Final = 100
LARGE_BYTES: Final = 1_000
PROCESSES: Final = ("node", "java", "python")


def spark() -> SparkSession:
    """The session of all parts, `local[*]` as users have; its start is measured elsewhere."""
    running = session("bench", config=CONFIG)
    running.sparkContext.setLogLevel("ERROR")
    return running


def stop() -> None:
    """End the session, if there is one."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow to import

    running = SparkSession.getActiveSession()
    if running is not None:
        running.stop()


def source(servers: str, topic: str, **options: str) -> dict[str, str]:
    """Options of a source."""
    return {"bootstrap.servers": servers, "subscribe": topic, **options}


def values_of(size: int, count: int) -> list[bytes]:
    """Random bytes of lengths around `size`: the hardest lengths to predict."""
    chance = random.Random(size)
    return [
        chance.randbytes(chance.randrange(size * 9 // 10, size * 11 // 10)) for _ in range(count)
    ]


def fill(servers: str, topic: str, record_bytes: int, count: int) -> int:
    """Write about `count` records of random lengths around `record_bytes`; return their number.

    Evenly over all partitions, uncompressed, in batches as the sink makes them.
    """
    now_ms = int(time.time() * 1000)  # retention uses the records' timestamps
    stamped = (
        (now_ms + number // 7, None, value, None)
        for number, value in enumerate(values_of(record_bytes, PATTERN_BYTES // record_bytes))
    )
    batches: list[tuple[bytes, int]] = []
    rest: RecordTuple | None = None
    while not batches or rest is not None:
        builder = BatchBuilder(Compression.NONE, BATCH_BYTES)
        if rest is not None:
            builder.append(*rest)
        rest = builder.append_many(stamped)
        batches.append((bytes(builder.build()), builder.record_count))
    written = 0
    with Cluster(servers) as cluster, cluster.writer(topic) as writer:
        number = 0
        while written < count:
            data, records = batches[number % len(batches)]
            writer.write(number % PARTITIONS, bytearray(data), records)
            written += records
            number += 1
    return written


def records_in(servers: str, topic: str) -> int:
    """How many offsets the topic has."""
    with Cluster(servers) as cluster:
        found = cluster.bounds([topic], isolation="read_committed")
    return sum(at.end - at.start for at in found.values())


class Used(NamedTuple):
    """The cost of a run: seconds by the clock, and processor seconds of all nodes, Java, Python."""

    seconds: float
    processor: dict[str, float]

    def details(self, rows: int) -> dict[str, float]:
        """For the report: nanoseconds of processor time for each row."""
        return {
            "seconds": self.seconds,
            **{f"{who} ns/row": used / rows * 1e9 for who, used in self.processor.items()},
        }


def note(result: Result, used: Used, rows: int) -> None:
    """Add a run to a figure in rows a second, and print it."""
    result.runs.append(rows / used.seconds)
    result.details[f"run {len(result.runs)}"] = used.details(rows)
    shares = ", ".join(f"{who} {taken / rows * 1e9:.0f}" for who, taken in used.processor.items())
    print(f"   {result.name}: {result.runs[-1]:,.0f} rows/s; CPU ns/row: {shares}", flush=True)


class Meter:
    """From its making on. Python is Spark's workers; this process, which only waits, is not."""

    def __init__(self, *nodes: MeasuredNode) -> None:
        self._nodes = nodes
        self._before = self._now()
        self._began = time.perf_counter()

    def used(self) -> Used:
        """Until now."""
        seconds = time.perf_counter() - self._began
        now = self._now()
        return Used(seconds, {who: now[who] - self._before[who] for who in PROCESSES})

    def _now(self) -> dict[str, float]:
        found = dict.fromkeys(PROCESSES, 0.0)
        found["node"] = sum(node.cpu_seconds() for node in self._nodes)
        nodes = {node.pid for node in self._nodes}
        for process in psutil.Process().children(recursive=True):
            if process.pid in nodes:
                continue
            try:
                times, is_java = process.cpu_times(), process.name() == "java"
            except psutil.NoSuchProcess:
                continue
            own = times.user + times.system
            # The time of a worker that ended counts for its parent.
            ended = 0.0 if is_java else times.children_user + times.children_system
            found["java" if is_java else "python"] += own + ended
        return found


def sum_of_lengths(frame: DataFrame) -> tuple[int, int]:
    """Rows, and the sum of their values' lengths."""
    from pyspark.sql import functions  # noqa: PLC0415 - slow to import

    row = frame.agg(functions.count("*"), functions.sum(functions.length("value"))).first()
    assert row is not None
    return int(row[0]), int(row[1] or 0)


@contextmanager
def checkpoint() -> Iterator[str]:
    """A place for one query's checkpoint."""
    with TemporaryDirectory(prefix="raftlog-bench-checkpoint-") as directory:
        yield str(Path(directory) / "checkpoint")
