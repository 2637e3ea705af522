"""A topic's flights as Parquet files, by day; every run adds what is new, each record once.

Spark's file sink notes in the directory (`_spark_metadata`) which files count. Spark heeds that;
other readers see the files of a run that was cut off, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody imports it)
from pyspark.sql.streaming.query import StreamingQuery

from raftlog_spark.examples.flights import FLIGHT, run, stream_of


def table(letters: DataFrame) -> DataFrame:
    """Flights with the place of their record, and the day (UTC) that they are filed under."""
    flight = F.from_json(F.col("value").cast("string"), FLIGHT)
    return (
        letters.select("partition", "offset", flight.alias("row"))
        .where(F.col("row.flight").isNotNull())
        .select("row.*", "partition", "offset", F.to_date("row.scheduled").alias("day"))
    )


def start(
    spark: SparkSession, servers: str, *, source: str, directory: str, checkpoint: str
) -> StreamingQuery:
    """Write what the topic `source` holds below `directory`."""
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
    """Run it from the command line."""
    run(
        start,
        "topic to Parquet",
        __doc__,
        given,
        source="topic of flights",
        directory="where the files go",
        checkpoint="directory that remembers how far it came",
    )


if __name__ == "__main__":
    main()
