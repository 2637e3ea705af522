"""Two streams joined: each flight with the weather reported at its airport in that hour.

Both sides have watermarks, so that Spark knows when a flight or a report has no partner to come,
and forgets it. `enrich` joins with a table instead, which each run reads again.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)
from pyspark.sql.streaming.query import StreamingQuery

from raftlog_spark.examples.enrich import WEATHER
from raftlog_spark.examples.flights import flights_in, records, rows, run, stream_of, write

LATENESS = "1 hour"


def with_weather(flights: DataFrame, reports: DataFrame) -> DataFrame:
    """Flights that have a report, with it."""
    left = flights.withWatermark("scheduled", LATENESS)
    right = reports.withColumnRenamed("origin", "at").withWatermark("time_hour", LATENESS)
    is_its_hour = (
        (F.col("origin") == F.col("at"))
        & (F.col("scheduled") >= F.col("time_hour"))
        & (F.col("scheduled") < F.col("time_hour") + F.expr("INTERVAL 1 HOUR"))
    )
    return left.join(right, is_its_hour).drop("at", "time_hour")


def start(
    spark: SparkSession, servers: str, *, source: str, weather: str, target: str, checkpoint: str
) -> StreamingQuery:
    """Start joining the flights of `source` with the reports of `weather`."""
    flights = flights_in(stream_of(spark, servers, source))
    reports = rows(stream_of(spark, servers, weather), WEATHER)
    found = records(with_weather(flights, reports), key="flight")
    return write(found, servers, topic=target, checkpoint=checkpoint)


def main(given: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    run(
        start,
        "weather join",
        __doc__,
        given,
        source="topic of flights",
        weather="topic of weather reports",
        target="topic for flights with their weather",
    )


if __name__ == "__main__":
    main()
