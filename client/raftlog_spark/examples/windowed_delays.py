"""Delays by hour and carrier, into another topic, each hour once it is over.

An hour is over when a flight has been seen that was scheduled `LATENESS` or more after its end
(the watermark); only then is it written, once. So the last hours of a topic wait, in the
checkpoint, for the flights of a later run. A flight that comes later than that is left out.

Partitions are read side by side: what one trigger reads of a long history may reach further in one
than in another. Here a run takes all in one batch; who limits it (`maxOffsetsPerTrigger`) must
allow for more lateness than the partitions are apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody imports it)
from pyspark.sql.streaming.query import StreamingQuery

from raftlog_spark.examples.flights import flights_in, records, run, stream_of, write

LATENESS = "1 hour"


def hourly_delays(flights: DataFrame) -> DataFrame:
    """One row for each hour (UTC) and carrier.

    `flights` were scheduled for it, `departed` of them have left, `mean_delay_min` and
    `max_delay_min` late (null, where none has left).
    """
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
    """Sum up what the topic `source` holds; the carrier is the key in `target`."""
    delays = hourly_delays(flights_in(stream_of(spark, servers, source)))
    return write(records(delays, key="carrier"), servers, topic=target, checkpoint=checkpoint)


def main(given: Sequence[str] | None = None) -> None:
    """Run it from the command line."""
    run(
        start,
        "windowed delays",
        __doc__,
        given,
        source="topic of flights",
        target="topic for delays",
        checkpoint="directory that remembers how far it came",
    )


if __name__ == "__main__":
    main()
