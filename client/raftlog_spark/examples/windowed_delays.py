"""Delays by hour and carrier, into another topic, each hour once it is over.

An hour is over once a flight is read that was scheduled `LATENESS` or more after the end of the
hour (the watermark). Only then the hour is written, once. So the last hours of a topic wait, in the
checkpoint, for the flights of a later run. Later flights of a closed hour are dropped.

Partitions are read in parallel: one trigger over a long history may get further in one partition
than in another. Here a run reads all in one batch; with a limit (`maxOffsetsPerTrigger`), the
lateness must exceed the distance between partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)
from pyspark.sql.streaming.query import StreamingQuery

from raftlog_spark.examples.flights import flights_in, records, run, stream_of, write

LATENESS = "1 hour"


def hourly_delays(flights: DataFrame) -> DataFrame:
    """One row for each hour (UTC) and carrier. `flights` were scheduled, `departed` of them have
    left, `mean_delay_min` and `max_delay_min` late (null: none has left)."""
    return (
        flights.withWatermark("scheduled", LATENESS)
        .groupBy(F.window("scheduled", "1 hour"), "carrier")
        .agg(
            F.count(F.lit(1)).alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.avg("dep_delay").alias("mean_delay_min"),
            F.max("dep_delay").alias("max_delay_min"),
        )
        .select(
            "carrier",
            F.col("window.start").alias("hour"),
            *("flights", "departed", "mean_delay_min", "max_delay_min"),
        )
    )


def start(
    spark: SparkSession, servers: str, *, source: str, target: str, checkpoint: str
) -> StreamingQuery:
    """Start summing up the flights of the topic `source`. The carrier is the key in `target`."""
    delays = hourly_delays(flights_in(stream_of(spark, servers, source)))
    return write(records(delays, key="carrier"), servers, topic=target, checkpoint=checkpoint)


def main(given: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    run(
        start,
        "windowed delays",
        __doc__,
        given,
        source="topic of flights",
        target="topic for delays",
    )


if __name__ == "__main__":
    main()
