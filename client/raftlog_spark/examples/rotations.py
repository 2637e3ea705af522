"""Rotations of aircraft: flights of one aircraft, with less than `GAP` between their departures.

Sessions with separate state. An open rotation is the state of its aircraft, and a timer in event
time ends it once no flight can belong to it any more. Flights without a tail number have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from raftlog_spark.examples.flights import flights_in, records, run, stream_of, write

GAP = pd.Timedelta(hours=10)
GAP_MS = GAP // pd.Timedelta(milliseconds=1)
LATENESS = "1 hour"
STATE = "first_ms long, last_ms long, flights int, miles long"
ROTATION = f"tailnum string, {STATE}"
COLUMNS = ["tailnum", "first_ms", "last_ms", "flights", "miles"]


class Rotations(StatefulProcessor):
    """The state of one aircraft: its open rotation."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark's call, before all others."""
        self._handle = handle
        self._open = handle.getValueState("open", STATE)

    def handleInputRows(self, key: Any, rows: Any, _times: Any) -> Iterator[Any]:  # noqa: N802
        """Add flights. Yield each rotation that ends before the next flight."""
        state = self._open.get() if self._open.exists() else None
        for timer in self._handle.listTimers():
            self._handle.deleteTimer(timer)
        table = pd.concat(rows).sort_values("scheduled")
        times_ms = table["scheduled"].dt.as_unit("ms").astype("int64")
        for at_ms, distance in zip(times_ms.tolist(), table["distance"].tolist(), strict=True):
            if state is not None and at_ms - state[1] > GAP_MS:
                yield _row(key, state)
                state = None
            first, last, flights, miles = state or (at_ms, at_ms, 0, 0)
            state = min(first, at_ms), max(last, at_ms), flights + 1, miles + distance
        assert state is not None
        self._open.update(state)
        self._handle.registerTimer(state[1] + GAP_MS)

    def handleExpiredTimer(self, key: Any, *_times: Any, **_named: Any) -> Iterator[Any]:  # noqa: N802
        """Yield the rotation that is over."""
        yield _row(key, self._open.get())
        self._open.clear()


def _row(key: Any, state: Any) -> pd.DataFrame:
    return pd.DataFrame([(*key, *state)], columns=COLUMNS)


def rotations(flights: DataFrame) -> DataFrame:
    """One row for each rotation that is over, with its first and last departure."""
    found = (
        flights.where("tailnum IS NOT NULL")
        .select("tailnum", "scheduled", "distance")
        .withWatermark("scheduled", LATENESS)
        .groupBy("tailnum")
        .transformWithStateInPandas(Rotations(), ROTATION, "Append", "EventTime")
    )
    times = [F.timestamp_millis(f"{name}_ms").alias(name) for name in ("first", "last")]
    return found.select("tailnum", *times, "flights", "miles")


def start(
    spark: SparkSession, servers: str, *, source: str, target: str, checkpoint: str
) -> StreamingQuery:
    """Start finding the rotations of the topic `source`. The tail number is the key in `target`."""
    found = rotations(flights_in(stream_of(spark, servers, source)))
    return write(records(found, key="tailnum"), servers, topic=target, checkpoint=checkpoint)


def main(given: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    run(start, "rotations", __doc__, given, source="topic of flights", target="topic for rotations")


if __name__ == "__main__":
    main()
