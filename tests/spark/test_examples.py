"""Every example on three real nodes and a real Spark, against pandas on the same flights.

The fast suite runs a replay here and an aggregation with state in test_pipelines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from raftlog_spark.examples import (
    copy,
    current_table,
    dead_letters,
    enrich,
    replay,
    rotations,
    topic_to_parquet,
    weather_join,
    windowed_delays,
)

from . import flights_data
from .flights_data import (
    Letter,
    airlines,
    assert_equal,
    create,
    flights,
    letters,
    read,
    send,
    weather,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TIMEOUT_S = 300
LATENESS = pd.Timedelta(hours=1)
HALF = 2_000
NO_FLIGHT = (b"UA1", b"UA1 is late")

Run = Callable[..., None]


@pytest.fixture
def servers(cluster_servers: str) -> str:
    """All examples run on three nodes."""
    return cluster_servers


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


@pytest.mark.full  # an example
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


@pytest.mark.full  # an example; test_pipelines aggregates the same delays
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


@pytest.mark.full  # an example
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


@pytest.mark.full  # an example
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


@pytest.mark.full  # an example
def test_a_copy_is_the_topic_however_many_runs(
    spark: SparkSession,
    servers: str,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copy, "BATCH_ROWS", 1_000)
    target = f"{topic_name}-copy"
    create(servers, topic_name, target)
    table = flights()
    for part in (table[:HALF], table[HALF:], table[:0]):
        send(servers, topic_name, letters(part, "flight"))
        ended(
            copy.start(spark, servers, source=topic_name, target=target, checkpoint=str(tmp_path))
        )
    found = [(record.key, record.value) for record in read(servers, target)]
    assert sorted(found) == sorted(letters(table, "flight"))


def test_a_replayed_window_has_its_records_alone(
    spark: SparkSession, servers: str, topic_name: str
) -> None:
    target = f"{topic_name}-again"
    create(servers, topic_name, target)
    moments = []
    for number in range(3):
        # Later than all records before, and not later than all behind it.
        moments.append(after(read(servers, topic_name)))
        send(servers, topic_name, [(b"%d" % at, b"%d" % number) for at in range(20)])
    replay.replay(
        spark, servers, source=topic_name, target=target, begin=moments[1], end=moments[2]
    )
    found = read(servers, target)
    assert {record.value for record in found} == {b"1"}
    assert len(found) == 20
    origin = {record.key: record.partition for record in read(servers, topic_name)}
    assert all(record.partition == origin[record.key] for record in found)


def after(records: list[Letter]) -> datetime:
    """A moment that is later than these records, and has passed."""
    newest_ms = max((record.timestamp for record in records), default=0)
    while (now_ms := time.time_ns() // 1_000_000) <= newest_ms + 1:
        time.sleep(0.001)
    return datetime.fromtimestamp(now_ms / 1000, UTC)


CHANGES: list[tuple[bytes, dict[str, str | None]]] = [
    (b"a", {"op": "c", "after": '{"n": 1}'}),
    (b"b", {"op": "r", "after": '{"n": 2}'}),
    (b"c", {"op": "c", "after": '{"n": 3}'}),
    (b"a", {"op": "u", "before": '{"n": 1}', "after": '{"n": 4}'}),
    (b"b", {"op": "d", "before": '{"n": 2}', "after": None}),
    (b"b", {"op": "nonsense"}),
    (b"c", {"op": "d", "before": '{"n": 3}'}),
    (b"c", {"op": "c", "after": '{"n": 5}'}),
]


@pytest.mark.full  # an example
def test_the_current_table_is_that_of_the_newest_changes(
    spark: SparkSession, servers: str, topic_name: str, tmp_path: Path
) -> None:
    target = f"{topic_name}-table"
    create(servers, topic_name, target)
    send(servers, topic_name, [NO_FLIGHT])
    expected: dict[bytes, str] = {}
    for changes in (CHANGES[:4], CHANGES[4:]):
        send(servers, topic_name, [(key, json.dumps(row).encode()) for key, row in changes])
        ended(
            current_table.start(
                spark, servers, source=topic_name, target=target, checkpoint=str(tmp_path)
            )
        )
        for key, row in changes:
            if row["op"] == "d":
                del expected[key]
            elif row["op"] != "nonsense":
                expected[key] = str(row["after"])
        found = current_table.table(spark, servers, target).collect()
        assert {bytes(row.key): row.value for row in found} == expected
    assert expected == {b"a": '{"n": 4}', b"c": '{"n": 5}'}


@pytest.mark.full  # an example
def test_rotations_are_those_that_are_over(
    spark: SparkSession, servers: str, source: str, tmp_path: Path
) -> None:
    target = f"{source}-out"
    create(servers, target)
    ended(rotations.start(spark, servers, source=source, target=target, checkpoint=str(tmp_path)))
    table = flights().dropna(subset=["tailnum"]).sort_values(["tailnum", "scheduled"])
    gaps = table.groupby("tailnum")["scheduled"].diff()
    number = (gaps > rotations.GAP).groupby(table["tailnum"]).cumsum()
    whole = (
        table.assign(number=number)
        .groupby(["tailnum", "number"], as_index=False)
        .agg(
            first=("scheduled", "min"),
            last=("scheduled", "max"),
            flights=("flight", "size"),
            miles=("distance", "sum"),
        )
    )
    watermark = flights()["scheduled"].max() - LATENESS
    newest = whole["last"] == whole.groupby("tailnum")["last"].transform("max")
    over = ~newest | (whole["last"] + rotations.GAP <= watermark)
    columns = ["tailnum", "first", "last", "flights", "miles"]
    assert_equal(
        flights_data.table_of(read(servers, target), ["first", "last"]), whole[over][columns]
    )


@pytest.mark.full  # an example
def test_flights_and_reports_find_each_other(
    spark: SparkSession, servers: str, source: str, tmp_path: Path
) -> None:
    hours, target = f"{source}-weather", f"{source}-out"
    create(servers, hours, target)
    send(servers, hours, letters(weather(), "origin"))
    ended(
        weather_join.start(
            spark,
            servers,
            source=source,
            weather=hours,
            target=target,
            checkpoint=str(tmp_path),
        )
    )
    expected = (
        flights()
        .assign(hour=flights()["scheduled"].dt.floor("h"))
        .merge(weather().rename(columns={"time_hour": "hour"}), on=["origin", "hour"])
        .drop(columns="hour")
    )
    assert len(expected) > 1_000
    assert_equal(flights_data.table_of(read(servers, target), ["scheduled"]), expected)
