"""Every example on three real nodes and a real Spark, against pandas on the same flights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from raftlog_spark.examples import dead_letters, enrich, topic_to_parquet, windowed_delays

from bench.cluster_processes import ClusterProcesses

from . import flights_data
from .flights_data import airlines, assert_equal, create, flights, letters, read, send, weather

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TIMEOUT_S = 300
LATENESS = pd.Timedelta(hours=1)
HALF = 2_000
NO_FLIGHT = (b"UA1", b"UA1 is late")

Run = Callable[..., None]


@pytest.fixture
def servers(spark_cluster: ClusterProcesses) -> str:
    return ",".join(node.address for node in spark_cluster.nodes.values())


@pytest.fixture
def source(servers: str, topic_name: str) -> str:
    """A topic with all the flights, and with something else."""
    create(servers, topic_name)
    send(servers, topic_name, [NO_FLIGHT, *letters(flights(), "flight")])
    return topic_name


def ended(query: StreamingQuery) -> None:
    assert query.awaitTermination(TIMEOUT_S), "the example goes on and on"


def hourly(table: pd.DataFrame) -> pd.DataFrame:
    """Delays by hour and carrier, of the hours that are over after these flights."""
    watermark = table["scheduled"].max() - LATENESS
    hours = table.assign(hour=table["scheduled"].dt.floor("h"))
    sums = hours.groupby(["carrier", "hour"], as_index=False).agg(
        flights=("flight", "size"),
        departed=("dep_delay", "count"),
        total=("dep_delay", "sum"),
        max_delay_min=("dep_delay", "max"),
    )
    means = sums["total"].astype(float) / sums["departed"].where(sums["departed"] > 0)
    over = sums["hour"] + pd.Timedelta(hours=1) <= watermark
    return sums.drop(columns="total").assign(mean_delay_min=means)[over]


def test_enriched_flights_have_their_airline_and_weather(
    spark: SparkSession, servers: str, source: str, tmp_path: Path
) -> None:
    names, hours, target = f"{source}-airlines", f"{source}-weather", f"{source}-out"
    create(servers, names, hours, target)
    send(servers, names, letters(airlines(), "carrier"))
    send(servers, hours, letters(weather(), "origin"))
    ended(
        enrich.start(
            spark,
            servers,
            source=source,
            airlines=names,
            weather=hours,
            target=target,
            checkpoint=str(tmp_path),
        )
    )
    expected = (
        flights()
        .assign(hour=flights()["scheduled"].dt.floor("h"))
        .merge(airlines().rename(columns={"name": "airline"}), how="left", on="carrier")
        .merge(weather().rename(columns={"time_hour": "hour"}), how="left", on=["origin", "hour"])
        .drop(columns="hour")
    )
    assert expected["airline"].isna().any(), "some have no airline"
    assert expected["temp"].isna().any(), "some have no weather"
    found = read(servers, target)
    assert_equal(flights_data.table_of(found, ["scheduled"]), expected)
    assert all(record.key == json.loads(record.value or b"")["flight"].encode() for record in found)


def test_windowed_delays_are_those_of_the_hours_that_are_over(
    spark: SparkSession, servers: str, topic_name: str, tmp_path: Path
) -> None:
    target = f"{topic_name}-out"
    create(servers, topic_name, target)
    send(servers, topic_name, [NO_FLIGHT])
    table = flights()
    for known in (table[:HALF], table):
        done = 0 if len(known) == HALF else HALF
        send(servers, topic_name, letters(known[done:], "flight"))
        ended(
            windowed_delays.start(
                spark, servers, source=topic_name, target=target, checkpoint=str(tmp_path)
            )
        )
        # The second run continues at the first one's end: no hour comes twice.
        found = read(servers, target)
        assert_equal(flights_data.table_of(found, ["hour"]), hourly(known))
    assert all(
        record.key == json.loads(record.value or b"")["carrier"].encode() for record in found
    )


GOOD: dict[str, Any] = {
    "flight": "UA1",
    "scheduled": "2013-01-01T10:15:00Z",
    "carrier": "UA",
    "origin": "EWR",
    "dest": "IAH",
    "dep_delay": -3,
}
MALFORMED: list[tuple[bytes | None, str]] = [
    (None, "no value"),
    (b"", "no flight"),
    (b"\xff\xfe{}", "not UTF-8"),
    (b"UA1 is late", "not the JSON of a flight"),
    (b'{"flight": "UA1"', "not the JSON of a flight"),
    (b"[1, 2]", "not the JSON of a flight"),
    (b"17", "not the JSON of a flight"),
    (b"{}", "no flight"),
    *(
        (json.dumps({k: v for k, v in GOOD.items() if k != name}).encode(), f"no {name}")
        for name in dead_letters.NEEDED
    ),
    (json.dumps(GOOD | {"scheduled": "noon"}).encode(), "not the JSON of a flight"),
    (json.dumps(GOOD | {"dep_delay": "soon"}).encode(), "not the JSON of a flight"),
    (json.dumps(GOOD | {"dep_delay": 1441}).encode(), "dep_delay is 1441"),
    (json.dumps(GOOD | {"dep_delay": -1441}).encode(), "dep_delay is -1441"),
]


def test_malformed_records_go_to_the_dead_letters_with_the_reason(
    spark: SparkSession, servers: str, topic_name: str, tmp_path: Path
) -> None:
    good, bad = f"{topic_name}-good", f"{topic_name}-bad"
    create(servers, topic_name, good, bad)
    proper = letters(flights(), "flight")
    send(servers, topic_name, proper[:HALF])
    send(servers, topic_name, [(b"key %d" % at, value) for at, (value, _) in enumerate(MALFORMED)])
    send(servers, topic_name, proper[HALF:])
    places = {record.key: (record.partition, record.offset) for record in read(servers, topic_name)}
    ended(
        dead_letters.start(
            spark,
            servers,
            source=topic_name,
            good=good,
            bad=bad,
            checkpoint=str(tmp_path),
        )
    )
    found = read(servers, good)
    assert sorted((record.key, record.value) for record in found) == sorted(proper)
    assert not any(record.headers for record in found)
    dead = {record.key: record for record in read(servers, bad)}
    assert len(dead) == len(MALFORMED)
    for at, (value, reason) in enumerate(MALFORMED):
        record = dead[b"key %d" % at]
        partition, offset = places[record.key]
        assert record.value == (value or b""), reason
        assert dict(record.headers) == {
            "reason": reason.encode(),
            "topic": topic_name.encode(),
            "partition": b"%d" % partition,
            "offset": b"%d" % offset,
        }, value


def test_parquet_files_hold_every_flight_once_however_many_runs(
    spark: SparkSession, servers: str, topic_name: str, tmp_path: Path
) -> None:
    create(servers, topic_name)
    send(servers, topic_name, [NO_FLIGHT])
    table = flights()
    directory = tmp_path / "files"
    for part in (table[:HALF], table[HALF:], table[:0]):
        send(servers, topic_name, letters(part, "flight"))
        ended(
            topic_to_parquet.start(
                spark,
                servers,
                source=topic_name,
                directory=str(directory),
                checkpoint=str(tmp_path / "checkpoint"),
            )
        )
    found = pd.read_parquet(directory)
    found["scheduled"] = pd.to_datetime(found["scheduled"], utc=True)
    day = found["day"].astype(str)
    assert (day == found["scheduled"].dt.strftime("%Y-%m-%d")).all()
    places = found[["partition", "offset"]]
    assert len(places.drop_duplicates()) == len(table)
    assert_equal(found.drop(columns=["day", "partition", "offset"]), table)
