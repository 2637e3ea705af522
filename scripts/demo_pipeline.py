"""The results of the pipeline of scripts/demo: checked, printed and drawn.

show TOPIC FILE    read hourly delays from TOPIC, compare with the data set, print a table of
                   carriers by the time of day, and draw a plot into FILE (PNG)
"""

from __future__ import annotations

import asyncio
import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import orjson
from demo_flights import data_directory, flights
from demo_topic import records_of

from raftlog.cli.common.output import write_table

LATENESS = timedelta(hours=1)  # as in raftlog_spark.examples.windowed_delays
NEW_YORK = ZoneInfo("America/New_York")
TIMES_OF_DAY = range(5, 24)
TABLE_TIMES = (6, 9, 12, 15, 18, 21)
FEW = 30


class Delays(NamedTuple):
    """Departures of one carrier: how many were scheduled, how many left, how late in all."""

    flights: int = 0
    departed: int = 0
    delay_min_sum: int = 0

    def plus(self, other: Delays) -> Delays:
        """Both together."""
        return Delays(*(a + b for a, b in zip(self, other, strict=True)))


async def read(topic: str) -> dict[tuple[str, datetime], Delays]:
    """By carrier and hour."""
    found: dict[tuple[str, datetime], Delays] = {}
    async for record in records_of(topic):
        row = orjson.loads(record.value)
        place = row["carrier"], datetime.fromisoformat(row["hour"])
        if place in found:
            sys.exit(f"the pipeline has written {place[0]}, {row['hour']} twice")
        total = round(row.get("mean_delay_min", 0) * row["departed"])
        found[place] = Delays(row["flights"], row["departed"], total)
    return found


def expected() -> tuple[dict[tuple[str, datetime], Delays], int]:
    """The data set's delays of the closed hours, and the number of flights in later hours."""
    sums: defaultdict[tuple[str, datetime], Delays] = defaultdict(Delays)
    latest = None
    for flight in flights():
        scheduled = datetime.fromisoformat(flight["scheduled"])
        latest = max(latest or scheduled, scheduled)
        delay = flight["dep_delay"]
        place = flight["carrier"], scheduled.replace(minute=0)
        sums[place] = sums[place].plus(Delays(1, delay is not None, delay or 0))
    assert latest is not None
    over = {
        place: delays
        for place, delays in sums.items()
        if place[1] + timedelta(hours=1) <= latest - LATENESS
    }
    count = sum(delays.flights for delays in sums.values())
    return over, count - sum(delays.flights for delays in over.values())


def by_time_of_day(
    found: Iterable[tuple[tuple[str, datetime], Delays]],
) -> dict[tuple[str, int], Delays]:
    """By carrier and hour of the day in New York."""
    sums: defaultdict[tuple[str, int], Delays] = defaultdict(Delays)
    for (carrier, hour), delays in found:
        place = carrier, hour.astimezone(NEW_YORK).hour
        sums[place] = sums[place].plus(delays)
    return dict(sums)


def mean(delays: Delays | None) -> float | None:
    """Minutes; None for too few departures."""
    if delays is None or delays.departed < FEW:
        return None
    return round(delays.delay_min_sum / delays.departed, 1)


def draw(
    path: str, carriers: list[str], names: dict[str, str], daily: dict[tuple[str, int], Delays]
) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and only this function needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the backend is chosen

    means = [[mean(daily.get((carrier, time))) for time in TIMES_OF_DAY] for carrier in carriers]
    # Matplotlib leaves a blank for NaN.
    rows = [[math.nan if one is None else one for one in row] for row in means]
    figure, axes = plt.subplots(figsize=(11, 6), layout="constrained")
    image = axes.imshow(rows, aspect="auto", cmap="YlOrRd", vmin=0)
    axes.set_xticks(range(len(TIMES_OF_DAY)), [f"{time}" for time in TIMES_OF_DAY])
    axes.set_yticks(range(len(carriers)), [names[carrier] for carrier in carriers])
    axes.set_xlabel("scheduled hour, New York")
    axes.set_title("Mean departure delay from New York City in 2013, minutes")
    figure.colorbar(image)
    figure.savefig(path, dpi=120)


def show(topic: str, path: str) -> None:
    found = asyncio.run(read(topic))
    over, waiting = expected()
    if found != over:
        wrong = sum(found.get(place) != over.get(place) for place in found.keys() | over.keys())
        sys.exit(f"{wrong} of {len(over)} hours differ from the data set")
    print(f"   {len(found):,} hours of carriers, each once, all as in the data set;")
    print(f"   {waiting} flights of the last hours wait for the watermark")
    daily = by_time_of_day(found.items())
    with (data_directory() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        names = {row["carrier"]: row["name"] for row in csv.DictReader(file)}
    totals: defaultdict[str, Delays] = defaultdict(Delays)
    for (carrier, _), delays in daily.items():
        totals[carrier] = totals[carrier].plus(delays)
    carriers = sorted(totals, key=lambda carrier: -totals[carrier].flights)
    print("   mean delay of departures in minutes, by the scheduled hour in New York:")
    write_table(
        ("airline", "flights", *(f"{time}:00" for time in TABLE_TIMES), "all"),
        [
            (
                names[carrier],
                totals[carrier].flights,
                *(mean(daily.get((carrier, time))) for time in TABLE_TIMES),
                mean(totals[carrier]),
            )
            for carrier in carriers
        ],
    )
    draw(path, carriers, names, daily)
    print(f"   drawn: {path}")


def main(command: str, *arguments: str) -> None:
    match command, arguments:
        case "show", (topic, path):
            show(topic, path)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [""]))
