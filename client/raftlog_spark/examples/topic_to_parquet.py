"""A topic's flights as Parquet files, by day. Every run adds new records, each once.

Spark's file sink lists the committed files in the directory (`_spark_metadata`), and Spark reads
only those. Other readers also see the files of an interrupted run.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)
from pyspark.sql.streaming.query import StreamingQuery

from raftlog_spark.examples.flights import FLIGHT, run, stream_of


def table(letters: DataFrame) -> DataFrame:
    """Flights with the position of their record, and the day (UTC) of their directory."""
    flight = F.from_json(F.col("value").cast("string"), FLIGHT)
    return (
        letters.select("partition", "offset", flight.alias("row"))
        .where(F.col("row.flight").isNotNull())
        .select("row.*", "partition", "offset", F.to_date("row.scheduled").alias("day"))
    )


def start(
    spark: SparkSession, servers: str, *, source: str, directory: str, checkpoint: str
) -> StreamingQuery:
    """Start writing the flights of the topic `source` below `directory`."""
    return (
        table(stream_of(spark, servers, source))
        .writeStream.format("parquet")
        .partitionBy("day")
        .option("path", directory)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def main(given: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    run(
        start,
        "topic to Parquet",
        __doc__,
        given,
        source="topic of flights",
        directory="where the files go",
    )


if __name__ == "__main__":
    main()
