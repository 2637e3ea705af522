"""Routes good flights to one topic, malformed flights to another with reason and origin.

Both in one query: the sink reads each record's topic from a column. Bytes, key and headers of a
record are copied unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)
from pyspark.sql.streaming.query import StreamingQuery

from raftlog_spark.examples.flights import FLIGHT, run, stream_of, write

NEEDED = ("flight", "scheduled", "carrier", "origin", "dest")
DELAY_MIN_MAX = 24 * 60
"""A flight more than a day off its time is another flight, or a mistake."""

_HEADERS = "array<struct<key string, value binary>>"
# Spark's column for the whole text of a value that does not fit the schema.
_MISFIT = "_misfit"


def with_reason(letters: DataFrame) -> DataFrame:
    """Add a column `reason` why a record is no flight, null for a flight."""
    text = F.col("value").cast("string")
    schema = f"{FLIGHT}, {_MISFIT} string"
    flight = F.from_json(text, schema, {"columnNameOfCorruptRecord": _MISFIT})
    return letters.withColumn("_row", flight).withColumn("reason", _reason(text)).drop("_row")


def _reason(text: Column) -> Column:
    delay = F.col("_row.dep_delay")
    found = (
        F.when(F.col("value").isNull(), "no value")
        .when(~F.is_valid_utf8(text), "not UTF-8")
        .when(F.col(f"_row.{_MISFIT}").isNotNull(), "not the JSON of a flight")
    )
    for name in NEEDED:
        found = found.when(F.col(f"_row.{name}").isNull(), f"no {name}")
    return found.when(
        F.abs(delay) > DELAY_MIN_MAX, F.concat(F.lit("dep_delay is "), delay.cast("string"))
    )


def routed(letters: DataFrame, *, good: str, bad: str) -> DataFrame:
    """Records with their topics. The headers of a bad record name its reason and origin."""
    judged = with_reason(letters)
    is_good = F.col("reason").isNull()
    origin = [
        F.struct(F.lit(name).alias("key"), F.col(name).cast("string").alias("value"))
        for name in ("reason", "topic", "partition", "offset")
    ]
    headers = F.concat(
        F.coalesce("headers", F.array().cast(_HEADERS)), F.array(*origin).cast(_HEADERS)
    )
    return judged.select(
        "key",
        # The sink requires a value.
        F.coalesce("value", F.lit(b"")).alias("value"),
        F.when(is_good, F.col("headers")).otherwise(headers).alias("headers"),
        F.when(is_good, good).otherwise(bad).alias("topic"),
    )


def start(
    spark: SparkSession, servers: str, *, source: str, good: str, bad: str, checkpoint: str
) -> StreamingQuery:
    """Start routing the records of the topic `source`."""
    letters = stream_of(spark, servers, source, includeHeaders="true")
    return write(routed(letters, good=good, bad=bad), servers, checkpoint=checkpoint)


def main(given: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    run(
        start,
        "dead letters",
        __doc__,
        given,
        source="topic of what may be flights",
        good="topic for flights",
        bad="topic for all else",
    )


if __name__ == "__main__":
    main()
