"""Shared by the fault tests: topics that grow, shrink and vanish, streams that run in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from raftlog_client import Admin, TopicPartition
from raftlog_spark.cluster import Cluster

from bench import cluster as bench_cluster
from tests.spark.query_parts import encoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

TIMEOUT_S = 120.0
LIST = "value string"
ROOT = Path(__file__).parents[2]
"""Where `python -m tests.…` finds its program."""

Act = Callable[[int], None]


class Topic:
    """A topic whose records name their origin: life of the topic, partition, offset.

    Records have the timestamp 0, and are kept until the test deletes them: a deletion moves the
    log's start as retention does, at a moment of the test's own choice.
    """

    def __init__(
        self, servers: str, name: str, *, partitions: int = 2, replicas: int | None = None
    ) -> None:
        self.servers = servers
        self.name = name
        self.life = 0
        self._partitions = partitions
        self._replicas = replicas
        self._ends: dict[int, int] = {}
        self.create()

    @property
    def options(self) -> dict[str, str]:
        return {"bootstrap.servers": self.servers, "subscribe": self.name}

    def create(self) -> None:
        """Make the topic, or another one of the same name."""
        self.life += 1
        self._ends = dict.fromkeys(range(self._partitions), 0)
        self._admin(
            lambda admin: admin.create_topic(
                self.name,
                partitions=self._partitions,
                replication_factor=self._replicas,
                configs={"retention.ms": "-1"},
            )
        )

    def delete(self) -> None:
        self._admin(lambda admin: admin.delete_topic(self.name))

    def grow(self, partitions: int) -> None:
        """Give the topic more partitions."""
        for number in range(self._partitions, partitions):
            self._ends[number] = 0
        self._partitions = partitions
        self._admin(lambda admin: admin.create_partitions(self.name, partitions))

    def delete_before(self, offset: int) -> None:
        """Let every partition begin there."""
        starts = {TopicPartition(self.name, number): offset for number in self._ends}
        assert self._admin(lambda admin: admin.delete_records(starts)) == starts

    def send(self, count: int, *, partition: int | None = None, record_bytes: int = 0) -> None:
        """Append so many records, to one partition or to each; in batches of up to 50."""
        wanted = self._ends if partition is None else [partition]
        with Cluster(self.servers) as cluster, cluster.writer(self.name) as writer:
            for number in sorted(wanted):
                first = self._ends[number]
                values = self.values(number, first, first + count)
                padded = [value.encode().ljust(record_bytes, b".") for value in values]
                for at in range(0, count, 50):
                    some = padded[at : at + 50]
                    writer.write(number, encoded(*some), len(some))
                self._ends[number] = first + count

    def values(self, partition: int, first: int, end: int) -> list[str]:
        """The values of these offsets, without filler."""
        return [f"{self.life}:{partition}:{offset:06}" for offset in range(first, end)]

    def everything(self, first: int = 0) -> list[str]:
        """All values from an offset on, sorted."""
        return [
            value
            for number, end in sorted(self._ends.items())
            for value in self.values(number, first, end)
        ]

    def leader(self, partition: int = 0) -> int:
        """The leader's node id."""
        found = self._admin(lambda admin: admin.describe_topic(self.name))
        leader = found.partitions[partition].leader
        assert leader is not None
        return leader

    def _admin(self, ask: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            async with Admin(bootstrap_servers=self.servers) as admin:
                return await ask(admin)

        return asyncio.run(run())


def batch(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return values_of(spark.read.format("raftlog").options(**topic.options, **options).load())


def stream(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return values_of(spark.readStream.format("raftlog").options(**topic.options, **options).load())


def values_of(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("trim(TRAILING '.' FROM cast(value AS string)) AS value")


def listed(frame: DataFrame) -> list[str]:
    """All values, sorted: a duplicate row shows."""
    return sorted(row.value for row in frame.collect())


def merged(*lists: list[str]) -> list[str]:
    """All of them, sorted."""
    return sorted(chain.from_iterable(lists))


def failing_once(frame: DataFrame) -> DataFrame:
    """The same rows, by tasks that yield all rows and then fail, on the first attempt."""

    def fail_first(batches: Any) -> Any:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")

    return frame.mapInArrow(fail_first, LIST)


def make_whole(cluster: bench_cluster.Cluster) -> None:
    """Start every node that is down and wait until all replicas are in sync."""
    cluster.heal()
    cluster.wait_answering()
    cluster.wait_quiet()
    for node in cluster.nodes.values():
        node.wait_ready()


class Batches:
    """A streaming query, and the rows of each of its batches.

    `act` is called with a batch's number after its plan and before its rows are read, `after` when
    they are read, and the next batch is not planned yet.
    """

    def __init__(
        self,
        frame: DataFrame,
        checkpoint: Path,
        *,
        act: Act | None = None,
        after: Act | None = None,
        available_now: bool = False,
    ) -> None:
        self.rows: dict[int, list[str]] = {}
        self._act = act
        self._after = after
        writer = frame.writeStream.foreachBatch(self._take).option(
            "checkpointLocation", str(checkpoint)
        )
        if available_now:
            writer = writer.trigger(availableNow=True)
        self._query = writer.start()

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()

    @property
    def all(self) -> list[str]:
        """All rows of all batches, sorted."""
        return merged(*self.rows.values())

    def drain(self) -> None:
        """Wait until all earlier records are read. Raises the query's error."""
        self._query.processAllAvailable()

    def join(self) -> None:
        """Wait until the query has ended by itself. Raises the query's error."""
        assert self._query.awaitTermination(int(TIMEOUT_S)), "the query goes on and on"

    def _take(self, frame: DataFrame, number: int) -> None:
        if self._act is not None:
            self._act(number)
        self.rows[number] = listed(frame)
        if self._after is not None:
            self._after(number)


def run_available(
    frame: DataFrame, checkpoint: Path, act: Act | None = None
) -> dict[int, list[str]]:
    """The rows of all batches of a run over the existing records."""
    with Batches(frame, checkpoint, act=act, available_now=True) as batches:
        batches.join()
        return batches.rows
