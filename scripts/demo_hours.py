"""Totals of the flights by hour, exactly once, for scripts/demo.

work TOPIC TARGET NAME FILE   as one of two members of a group, add up the flights of TOPIC by hour,
                              write the totals of each batch to TARGET, in the transaction that
                              commits its offsets, and the count of transactions to FILE
check TARGET                  compare the sums over TARGET with those of pandas over the data set
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
from demo_flights import data_directory
from demo_topic import records_of
from raftlog_client import Admin, Consumer, Producer, Record, TransactionAbortableError

GROUP = "hours"
MEMBERS = 2
BATCH_RECORDS = 5_000
SESSION_MS = 2_000
"""Also the timeout of transactions: what a killed member left open ends with its session."""
POLL_MS = 100


async def work(topic: str, target: str, name: str, progress: str) -> None:
    servers = os.environ["RAFTLOG_SERVERS"]
    count = 0
    async with (
        Admin(bootstrap_servers=servers) as admin,
        Consumer[bytes, bytes](
            topic,
            bootstrap_servers=servers,
            group_id=GROUP,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=None,
            session_timeout_ms=SESSION_MS,
        ) as consumer,
        Producer(
            bootstrap_servers=servers,
            transactional_id=f"{GROUP}-{name}",
            transaction_timeout_ms=SESSION_MS,
        ) as producer,
    ):
        await wait_members(admin)
        while not await is_done(admin, topic):
            batch = await consumer.getmany(timeout_ms=POLL_MS, max_records=BATCH_RECORDS)
            if not batch:
                continue
            try:
                async with producer.transaction() as tx:
                    for hour, total in totals(batch.values()):
                        await producer.send(target, orjson.dumps(total), key=hour)
                    await tx.commit_offsets(consumer)
            except TransactionAbortableError:
                await consumer.seek_to_committed()
                continue
            count += 1
            note(progress, count)


async def wait_members(admin: Admin) -> None:
    while (present := len((await admin.describe_group(GROUP)).members)) != MEMBERS:
        assert present < MEMBERS
        await asyncio.sleep(POLL_MS / 1000)


def note(progress: str, count: int) -> None:
    Path(progress).write_text(f"{count}\n")


async def is_done(admin: Admin, topic: str) -> bool:
    """Whether the group has committed all records."""
    found = [one for one in (await admin.describe_group(GROUP)).offsets if one.topic == topic]
    return bool(found) and all(one.lag == 0 for one in found)


def totals(batches: Iterable[Iterable[Record[bytes, bytes]]]) -> Iterable[tuple[bytes, Any]]:
    """Flights, departures and minutes of delay by hour."""
    flights: Counter[str] = Counter()
    departed: Counter[str] = Counter()
    delays: Counter[str] = Counter()
    for record in (one for records in batches for one in records):
        flight = orjson.loads(record.value)
        hour = flight["scheduled"][:13]
        flights[hour] += 1
        if flight["dep_delay"] is not None:
            departed[hour] += 1
            delays[hour] += flight["dep_delay"]
    for hour, count in flights.items():
        yield (
            hour.encode(),
            {"flights": count, "departed": departed[hour], "delay_min_sum": delays[hour]},
        )


async def summed(target: str) -> dict[str, list[int]]:
    """The totals by hour, over the records of committed transactions."""
    found: dict[str, list[int]] = {}
    async for record in records_of(target):
        assert record.key is not None
        row = orjson.loads(record.value)
        sums = found.setdefault(record.key.decode(), [0, 0, 0])
        for place, name in enumerate(("flights", "departed", "delay_min_sum")):
            sums[place] += row[name]
    return found


def by_pandas() -> dict[str, list[int]]:
    import pandas as pd  # noqa: PLC0415 - slow to import, and only this function needs it

    table = pd.read_csv(data_directory() / "flights.csv.zip", usecols=["time_hour", "dep_delay"])
    hours = table.groupby(table["time_hour"].str[:13])["dep_delay"].agg(["size", "count", "sum"])
    return {hour: [int(number) for number in row] for hour, *row in hours.itertuples()}


def check(target: str) -> None:
    found, wanted = asyncio.run(summed(target)), by_pandas()
    if found != wanted:
        wrong = sum(found.get(hour) != wanted.get(hour) for hour in found.keys() | wanted.keys())
        sys.exit(f"{wrong} of {len(wanted)} hours differ from pandas'")
    flights, departed, delay = (sum(column) for column in zip(*found.values(), strict=True))
    print(
        f"   {flights:,} flights in {len(found):,} hours, {departed:,} departed, "
        f"{delay:,} min late: every hour as pandas has it"
    )


def main(command: str, *arguments: str) -> None:
    match command, arguments:
        case "work", (topic, target, name, progress):
            asyncio.run(work(topic, target, name, progress))
        case "check", (target,):
            check(target)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [""]))
