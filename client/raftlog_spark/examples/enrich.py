"""Flights joined with their airline and with the weather at their airport, into another topic.

Airlines and weather are also topics, of JSON with the columns of their CSV files:

raftlog topic produce airlines airlines.csv --input csv --key-field carrier
   raftlog topic produce weather weather.csv --input csv --key-field origin --infer-types

Every run reads both again. A flight without airline or weather stays, with nulls.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)
from pyspark.sql.streaming.query import StreamingQuery

from raftlog_spark.examples.flights import (
    flights_in,
    records,
    rows,
    run,
    stream_of,
    table_of,
    write,
)

AIRLINE = "carrier string, name string"
WEATHER = (
    "origin string, time_hour timestamp, temp double, wind_speed double, precip double,"
    " visib double"
)
"""Fahrenheit, miles an hour, inches, miles. One row for each hour and airport."""


def enriched(flights: DataFrame, airlines: DataFrame, weather: DataFrame) -> DataFrame:
    """Every flight, with its `airline` and the weather of its scheduled hour (UTC)."""
    named = airlines.withColumnRenamed("name", "airline")
    by_hour = weather.withColumnRenamed("time_hour", "hour")
    return (
        flights.withColumn("hour", F.date_trunc("hour", "scheduled"))
        # Both are small: every task gets a copy, and flights are not shuffled.
        .join(F.broadcast(named), "carrier", "left")
        .join(F.broadcast(by_hour), ["origin", "hour"], "left")
        .drop("hour")
    )


def start(
    spark: SparkSession,
    servers: str,
    *,
    source: str,
    airlines: str,
    weather: str,
    target: str,
    checkpoint: str,
) -> StreamingQuery:
    """Start enriching the flights of the topic `source`. The flight is the key in `target`."""
    found = enriched(
        flights_in(stream_of(spark, servers, source)),
        rows(table_of(spark, servers, airlines), AIRLINE),
        rows(table_of(spark, servers, weather), WEATHER),
    )
    return write(records(found, key="flight"), servers, topic=target, checkpoint=checkpoint)


def main(given: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    run(
        start,
        "enrich",
        __doc__,
        given,
        source="topic of flights",
        airlines="topic of airlines",
        weather="topic of weather",
        target="topic for flights with airline and weather",
    )


if __name__ == "__main__":
    main()
