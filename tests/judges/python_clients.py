"""aiokafka and kafka-python: groups and transactions, while a node dies."""

from __future__ import annotations

import asyncio
import time
import warnings
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition

from tests.judges.programs import DEADLINE_S, POLL_S
from tests.judges.trial import Trial, check_values

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # at its import, in Python 3.11 and later
    import kafka

BATCH: Final = 50
BEHIND_MAX: Final = 500
"""Records that the writer is ahead of the group."""


def aiokafka_copies(trial: Trial) -> str:
    """A group of aiokafka copies a topic exactly once, while nodes die."""
    source, target = trial.new_topic("aio-source"), trial.new_topic("aio-target")
    copy = _Copy(trial, source, target)
    kills = asyncio.run(copy.run())
    values = [b"%d" % number for number in range(copy.written)]
    check_values(values, trial.read(source))
    check_values(values, trial.read(target))
    return f"{len(values)} records written, copied exactly once; {kills} kills"


class _Copy:
    """A writer, and a group that copies in transactions, until the kills of nodes are over."""

    def __init__(self, trial: Trial, source: str, target: str) -> None:
        self.written = 0
        self._copied = 0
        self._is_disturbed = True
        self._trial = trial
        self._source = source
        self._target = target

    async def run(self) -> int:
        """Return the number of kills, once everything written is copied."""
        deadline_s = DEADLINE_S * (1 + self._trial.effort.kills)
        async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write())
            tasks.create_task(self._copy())
            kills = await asyncio.to_thread(self._trial.disturb, lambda: self._copied, BATCH)
            self._is_disturbed = False
        return kills

    async def _write(self) -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=self._trial.servers, enable_idempotence=True
        ) as producer:
            while self._is_disturbed or self.written < self._trial.effort.records:
                if self.written - self._copied > BEHIND_MAX:
                    await asyncio.sleep(POLL_S)
                    continue
                sent = [
                    await producer.send(self._source, b"%d" % (self.written + number))
                    for number in range(BATCH)
                ]
                await asyncio.gather(*sent)
                self.written += BATCH

    async def _copy(self) -> None:
        group = self._trial.new_name("aio")
        async with (
            AIOKafkaProducer(
                bootstrap_servers=self._trial.servers,
                transactional_id=self._trial.new_name("aio"),
            ) as producer,
            AIOKafkaConsumer(
                self._source,
                bootstrap_servers=self._trial.servers,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
            ) as consumer,
        ):
            while self._is_disturbed or self._copied < max(
                self.written, self._trial.effort.records
            ):
                found = await consumer.getmany(timeout_ms=500, max_records=BATCH)
                offsets: dict[TopicPartition, int] = {}
                async with producer.transaction():
                    for partition, rows in found.items():
                        for row in rows:
                            await producer.send(self._target, row.value)
                        offsets[partition] = rows[-1].offset + 1
                    if offsets:
                        await producer.send_offsets_to_transaction(offsets, group)
                self._copied += sum(len(rows) for rows in found.values())


def kafka_python_group(trial: Trial) -> str:
    """kafka-python writes, a group of two members reads and commits, and describes itself."""
    topic, group = trial.new_topic("kafka-python"), trial.new_name("kafka-python")
    values = [b"%d" % number for number in range(trial.effort.records)]
    producer = kafka.KafkaProducer(bootstrap_servers=trial.servers, enable_idempotence=True)
    sent = [producer.send(topic, value) for value in values]
    for one in sent:
        one.get(DEADLINE_S)
    producer.close()
    members = [
        kafka.KafkaConsumer(
            topic,
            bootstrap_servers=trial.servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        for _ in range(2)
    ]
    found: set[bytes] = set()
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < len(values) or not all(member.assignment() for member in members):
        assert time.monotonic() < deadline, f"{len(found)} of {len(values)} records read"
        for member in members:
            for rows in member.poll(timeout_ms=100).values():
                found |= {row.value for row in rows}
    shared = sorted(len(member.assignment()) for member in members)
    assert sum(shared) == 3, shared
    for member in members:
        member.commit()
    admin = kafka.KafkaAdminClient(bootstrap_servers=trial.servers)
    committed = admin.list_group_offsets([group])[group]
    assert sum(one.offset for one in committed.values()) == len(values), committed
    admin.close()
    for member in members:
        member.close()
    check_values(values, trial.read(topic))
    return f"{len(values)} records by a group of two, {shared} partitions each, all committed"
