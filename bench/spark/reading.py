"""Speed of Spark reads from topics: batch queries, and streams over existing records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from bench.node import LoneNode, running_node
from bench.report import Options, Result, ratio
from bench.spark.running import (
    LARGE_BYTES,
    PARTITIONS,
    SMALL_BYTES,
    Meter,
    checkpoint,
    fill,
    note,
    records_in,
    source,
    spark,
    sum_of_lengths,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader

SMALL_RECORDS: Final = 10_000_000
LARGE_RECORDS: Final = 2_000_000
RECORDS_MIN: Final = 10_000
SHARE: Final = 0.85
"""Of what Spark reads from a source in Python with its rows ready."""
TIMEOUT_S: Final = 600
VALUES: Final = "value binary"
READ_LIMIT: Final = 5_000_000
"""Records a batch of the limited stream."""

Read = Callable[[str, str], tuple[int, int]]


@dataclass(slots=True)
class Workload:
    """One way to read a topic, and its figures. `read` returns rows and the sum of lengths."""

    name: str
    topic: str
    read: Read
    goal: float | None = None
    rate: Result = field(init=False)

    def __post_init__(self) -> None:
        parameters = {"partitions": PARTITIONS, "topic": self.topic, "master": "local[*]"}
        name = f"spark: {self.name}"
        self.rate = Result(name, "rows/s", goal=self.goal, parameters=parameters)

    def run(self, node: LoneNode, expected: int) -> None:
        """One run; all rows must come."""
        meter = Meter(node)
        rows, _ = self.read(node.address, self.topic)
        used = meter.used()
        if rows != expected:
            raise RuntimeError(f"{self.name}: {rows} rows of {expected}")
        note(self.rate, used, rows)


def batch(options: Options) -> list[Result]:
    """Batch queries over the values alone, and over all columns; and the share of the ceiling."""
    rates = _measured(
        options,
        [
            Workload("batch read 100 B", "small", read_values, 3_000_000),
            Workload("batch read 1 KB", "large", read_values, 1_000_000),
            Workload("batch read 100 B, all columns", "small", read_all),
            Workload("Spark alone, 100 B", "small", _ready(SMALL_BYTES)),
            Workload("Spark alone, 1 KB", "large", _ready(LARGE_BYTES)),
        ],
    )
    small, large, _, *alone = rates
    shares = [
        ratio(f"{read.name} by Spark alone", read, ready, SHARE)
        for read, ready in zip((small, large), alone, strict=True)
    ]
    return [*rates, *shares]


def stream(options: Options) -> list[Result]:
    """Streams over the existing records, from `start()` until they end."""
    limited = partial(streamed, maxOffsetsPerTrigger=str(READ_LIMIT))
    return _measured(
        options,
        [
            Workload("stream read 100 B", "small", streamed, 1_500_000),
            Workload(f"stream read 100 B, {READ_LIMIT:,} a batch", "small", limited),
        ],
    )


def _measured(options: Options, workloads: list[Workload]) -> list[Result]:
    counts = {"small": (SMALL_BYTES, SMALL_RECORDS), "large": (LARGE_BYTES, LARGE_RECORDS)}
    with running_node(options.flush) as node:
        written: dict[str, int] = {}
        for topic in sorted({workload.topic for workload in workloads}):
            node.create_topic(topic, PARTITIONS)
            record_bytes, records = counts[topic]
            count = max(RECORDS_MIN, int(records * options.scale))
            written[topic] = fill(node.address, topic, record_bytes, count)
            # Java compiles hot code, and the log is in the page cache then.
            read_values(node.address, topic)
        for _ in range(options.runs):
            for workload in workloads:
                workload.run(node, written[workload.topic])
    return [workload.rate for workload in workloads]


def _ready(record_bytes: int) -> Read:
    def read(servers: str, topic: str) -> tuple[int, int]:
        from bench.spark.ceiling import ready_rows  # noqa: PLC0415 - Spark is slow to import

        # As many rows, but none from the topic.
        return sum_of_lengths(ready_rows(spark(), record_bytes, records_in(servers, topic)))

    return read


def read_all(servers: str, topic: str) -> tuple[int, int]:
    """A batch query over all columns, using one."""
    return sum_of_lengths(_reader(servers, topic).load())


def read_values(servers: str, topic: str) -> tuple[int, int]:
    """A batch query over values alone."""
    return sum_of_lengths(_reader(servers, topic).schema(VALUES).load())


def _reader(servers: str, topic: str) -> DataFrameReader:
    return spark().read.format("raftlog").options(**source(servers, topic))


def streamed(servers: str, topic: str, **limit: str) -> tuple[int, int]:
    """A stream over the whole topic, in one batch without a limit."""
    options = source(servers, topic, startingOffsets="earliest", **limit)
    found: list[tuple[int, int]] = []

    def take(frame: DataFrame, number: int) -> None:
        found.append(sum_of_lengths(frame))

    with checkpoint() as directory:
        query = (
            spark()
            .readStream.format("raftlog")
            .options(**options)
            .schema(VALUES)
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", directory)
            .trigger(availableNow=True)
            .start()
        )
        try:
            if not query.awaitTermination(TIMEOUT_S):
                raise RuntimeError(f"the stream did not end within {TIMEOUT_S} s")
        finally:
            query.stop()
    return sum(rows for rows, _ in found), sum(size for _, size in found)
