"""The readers of a soak of Kafka's clients, and its final reads: one log behind every door.

The readers follow all topics while the nemesis strikes, in threads of the soak's own process: a
consumer of confluent-kafka for each isolation level, and the Python client. At the end, every door
reads every topic from its beginning (`read_doors`), and every replica is read (verdict.py).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, TopicPartition
from raftlog_client import Consumer, RaftlogClientError
from raftlog_client import TopicPartition as LogPartition

from raftlog.api.records import Isolation
from tests.soak.chain_clients import read_topic
from tests.soak.kafka_topics import COMMON, PARTITIONS, TOPICS
from tests.soak.recording import Recorder, partition_name
from tests.verification.log_history import FinalRead, Poll

ISOLATIONS: Final[tuple[Isolation, ...]] = ("read_committed", "read_uncommitted")
CONSUME_MAX: Final = 2_000
CONSUME_S: Final = 0.5
FINAL_TIMEOUT_S: Final = 120.0
PAUSE_S: Final = 0.1

Records = list[tuple[int, str]]
"""Offsets and values."""


class DoorError(Exception):
    """A door does not show the whole log in time."""


def _consumer(servers: str, isolation: Isolation, **settings: Any) -> Any:
    consumer = KafkaConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": "kafka-reader",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 10,
            # Lost connections are the plan: not a line for each on the soak's own output.
            "log_level": 2,
            **COMMON,
            **settings,
        }
    )
    consumer.assign(
        [TopicPartition(topic, number, 0) for topic in TOPICS for number in range(PARTITIONS)]
    )
    return consumer


class KafkaReader:
    """A thread that reads all topics by confluent-kafka, until `stop`."""

    def __init__(self, servers: str, isolation: Isolation, directory: Path) -> None:
        self._servers = servers
        self._isolation = isolation
        self._recorder = Recorder(directory, f"reader-kafka-{isolation}")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name=f"reader {isolation}")
        self.positions: Counter[tuple[str, int]] = Counter()
        self.errors: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and write the history."""
        self._stop.set()
        self._thread.join()
        self._recorder.close()

    def _read(self) -> None:
        try:
            consumer = _consumer(
                self._servers, self._isolation, error_cb=lambda error: self._count(error.name())
            )
            try:
                while not self._stop.is_set():
                    self._poll(consumer)
            finally:
                consumer.close()
        except BaseException as error:
            self.failure = error
            raise

    def _count(self, name: str) -> None:
        self.errors[name] += 1

    def _poll(self, consumer: Any) -> None:
        step = self._recorder.step
        invoked = step()
        found: dict[tuple[str, int], Records] = defaultdict(list)
        for row in consumer.consume(CONSUME_MAX, timeout=CONSUME_S):
            if row.error() is not None:
                self._count(f"{row.error().name()} in {row.topic()}-{row.partition()}")
            else:
                found[row.topic(), row.partition()].append((row.offset(), row.value().decode()))
        for lane, records in found.items():
            self._recorder.add(
                Poll(
                    partition=partition_name(*lane),
                    consumer=f"kafka {self._isolation}",
                    invoked=invoked,
                    completed=step(),
                    start=self.positions[lane],
                    next_offset=records[-1][0] + 1,
                    records=tuple(records),
                    is_committed=self._isolation == "read_committed",
                )
            )
            self.positions[lane] = records[-1][0] + 1


async def follow_by_python(servers: str, directory: Path) -> None:
    """Read all topics by the Python client, committed records only, until cancelled."""
    recorder = Recorder(directory, "reader-python")
    lanes = [LogPartition(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
    positions = dict.fromkeys(lanes, 0)
    try:
        async with Consumer(bootstrap_servers=servers, auto_offset_reset="none") as consumer:
            consumer.assign(lanes)
            for lane in lanes:
                consumer.seek(lane, 0)
            while True:
                invoked = recorder.step()
                try:
                    taken = await consumer.getmany(timeout_ms=500)
                except RaftlogClientError as error:
                    if not error.retriable:
                        raise
                    await asyncio.sleep(PAUSE_S)
                    continue
                for lane, records in taken.items():
                    rows = tuple((one.offset, (one.value or b"").decode()) for one in records)
                    recorder.add(
                        Poll(
                            partition=partition_name(lane.topic, lane.partition),
                            consumer="python",
                            invoked=invoked,
                            completed=recorder.step(),
                            start=positions[lane],
                            next_offset=rows[-1][0] + 1,
                            records=rows,
                            is_committed=True,
                        )
                    )
                    positions[lane] = rows[-1][0] + 1
    finally:
        recorder.close()


# Final reads


async def read_doors(servers: str, kafka_servers: str, directory: Path) -> None:
    """Read all topics by all doors into the history; no writer is left. Raises DoorError."""
    for isolation in ISOLATIONS:
        found = await asyncio.to_thread(_read_by_kafka, kafka_servers, isolation)
        _record(directory, f"kafka {isolation}", isolation, found)
        try:
            async with asyncio.timeout(FINAL_TIMEOUT_S):
                for topic in TOPICS:
                    by_partition = await read_topic(servers, topic, isolation=isolation)
                    rows = {
                        (topic, number): [(offset, value.decode()) for offset, value in records]
                        for number, records in by_partition.items()
                    }
                    _record(directory, f"python {isolation}", isolation, rows)
        except TimeoutError:
            raise DoorError(f"the Python client did not reach the ends by {isolation}") from None


def _read_by_kafka(servers: str, isolation: Isolation) -> dict[tuple[str, int], Records]:
    consumer = _consumer(servers, isolation, **{"enable.partition.eof": True})
    found: dict[tuple[str, int], Records] = {
        (topic, number): [] for topic in TOPICS for number in range(PARTITIONS)
    }
    remaining = set(found)
    deadline = time.monotonic() + FINAL_TIMEOUT_S
    try:
        while remaining:
            if time.monotonic() > deadline:
                raise DoorError(f"confluent-kafka read {sorted(remaining)} to no end")
            for row in consumer.consume(CONSUME_MAX, timeout=CONSUME_S):
                lane = row.topic(), row.partition()
                if row.error() is None:
                    found[lane].append((row.offset(), row.value().decode()))
                elif row.error().code() == KafkaError._PARTITION_EOF:
                    remaining.discard(lane)
                else:
                    raise DoorError(f"confluent-kafka read {lane}: {row.error()}")
    finally:
        consumer.close()
    return found


def _record(
    directory: Path,
    door: str,
    isolation: Isolation,
    found: Mapping[tuple[str, int], Sequence[tuple[int, str]]],
) -> None:
    recorder = Recorder(directory, f"final-{door.replace(' ', '-')}")
    for lane, records in found.items():
        recorder.add(
            FinalRead(
                partition=partition_name(*lane),
                node=door,
                start=0,
                end=records[-1][0] + 1 if records else 0,
                records=tuple(records),
                is_committed=isolation == "read_committed",
            )
        )
    recorder.close()
