"""The pulse of scripts/demo: a record every few ms, and the longest gap between acknowledgements.

run TOPIC FILE      write to TOPIC until SIGTERM; list acknowledged records and times in FILE
pause FILE          print the longest time without an acknowledgement, in ms
check TOPIC FILE    read TOPIC, and print the counts of written, lost and doubled records
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import orjson
from demo_topic import records_of
from raftlog_client import Producer, RecordMetadata

INTERVAL_S = 0.005


async def run(topic: str) -> dict[str, float]:
    """Every send is awaited separately, so that a slow send does not delay the others."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    acknowledged: dict[str, float] = {}

    def settled(value: str, sent: asyncio.Future[RecordMetadata]) -> None:
        if not sent.cancelled() and sent.exception() is None:
            acknowledged[value] = time.monotonic()

    async with Producer(bootstrap_servers=os.environ["RAFTLOG_SERVERS"], linger_ms=0) as producer:
        number = 0
        while not stop.is_set():
            value = f"pulse {number}"
            sent = await producer.send(topic, value.encode())
            sent.add_done_callback(lambda done, value=value: settled(value, done))
            number += 1
            await asyncio.sleep(INTERVAL_S)
        await producer.flush()
    return acknowledged


def pause(report: str) -> None:
    times = sorted(orjson.loads(Path(report).read_bytes()).values())
    gaps = [later - earlier for earlier, later in pairwise(times)]
    print(round(max(gaps) * 1000))


async def read(topic: str) -> Counter[str]:
    return Counter([record.value.decode() async for record in records_of(topic)])


def check(topic: str, report: str) -> None:
    acknowledged = set(orjson.loads(Path(report).read_bytes()))
    found = asyncio.run(read(topic))
    lost = len(acknowledged - found.keys())
    doubled = sum(count - 1 for count in found.values())
    print(f"{len(acknowledged)} acknowledged, {lost} lost, {doubled} doubled")


def main(command: str, *arguments: str) -> None:
    match command, arguments:
        case "run", (topic, report):
            Path(report).write_bytes(orjson.dumps(asyncio.run(run(topic))))
        case "pause", (report,):
            pause(report)
        case "check", (topic, report):
            check(topic, report)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [""]))
