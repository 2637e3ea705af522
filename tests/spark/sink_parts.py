"""Shared by the sink's tests in a real Spark."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raftlog_client import Admin
from raftlog_spark.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

TIMEOUT_S = 120


def create(servers: str, topic: str, partitions: int = 3, *, replicas: int = 1) -> str:
    """Make a topic and return its name."""

    async def run() -> None:
        async with Admin(bootstrap_servers=servers) as admin:
            # Some records' timestamps are years old.
            await admin.create_topic(
                topic,
                partitions=partitions,
                replication_factor=replicas,
                configs={"retention.ms": "-1"},
            )

    asyncio.run(run())
    return topic


def leader(servers: str, topic: str) -> int:
    """The leader of partition 0."""

    async def run() -> int:
        async with Admin(bootstrap_servers=servers) as admin:
            found = (await admin.describe_topic(topic)).partitions[0].leader
            assert found is not None
            return found

    return asyncio.run(run())


def options(servers: str, topic: str | None = None, **more: str) -> dict[str, str]:
    """Of the sink."""
    return {"kafka.bootstrap.servers": servers, **({"topic": topic} if topic else {}), **more}


def save(frame: DataFrame, servers: str, topic: str | None = None, **more: str) -> None:
    """Append a frame."""
    frame.write.format("raftlog").mode("append").options(**options(servers, topic, **more)).save()


def read(spark: SparkSession, servers: str, *topics: str) -> list[Row]:
    """All records, with their headers, by topic, partition and offset."""
    frame = (
        spark.read.format("raftlog")
        .options(subscribe=",".join(topics), includeHeaders="true")
        .option("bootstrap.servers", servers)
        .load()
    )
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def values(spark: SparkSession, servers: str, *topics: str) -> list[str]:
    """All values, sorted: a duplicate shows."""
    return sorted(bytes(row.value).decode() for row in read(spark, servers, *topics))


def start_available_now(
    frame: DataFrame, checkpoint: Path, servers: str, topic: str | None = None, **more: str
) -> Any:
    """Start to write the stream's current records and return the query."""
    return (
        frame.writeStream.format("raftlog")
        .options(**options(servers, topic, **more))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def ended(query: Any) -> Any:
    """Wait until a query has ended, and return it. Raises its error."""
    try:
        assert query.awaitTermination(TIMEOUT_S), "the query goes on and on"
    finally:
        query.stop()
    return query


def run_available_now(
    frame: DataFrame, checkpoint: Path, servers: str, topic: str | None = None, **more: str
) -> Any:
    """Write the stream's current records and return the ended query. Raises its error."""
    return ended(start_available_now(frame, checkpoint, servers, topic, **more))


def count(servers: str, topic: str, *, isolation: str = "read_committed") -> int:
    """How many offsets of records and markers there are."""
    with Cluster(servers) as cluster:
        bounds = cluster.bounds([topic], isolation=isolation)
    return sum(each.end - each.start for each in bounds.values())
