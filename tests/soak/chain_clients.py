"""The processes of the exactly-once chain: `python -m tests.soak.chain_clients`.

The first line on stdin is a `ChainOrder`; the end of stdin ends the process. Killed at any moment
and started again, a process goes on where the committed transactions say:

- a *generator* writes numbers 0, 1, 2, … in transactions; after a start it reads its last one;
- a *processor* is a member of the group. It copies input records to the output, one transaction
  for each poll, together with the offsets.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import suppress
from typing import Final

import msgspec
import uvloop
from raftlog_client import (
    Consumer,
    FencedError,
    Producer,
    RaftlogClientError,
    TopicPartition,
)

from raftlog.api.records import Isolation
from tests.soak.orders import order_from_stdin, until_end

INPUT: Final = "chain-input"
OUTPUT: Final = "chain-output"
GROUP: Final = "chain"
PARTITIONS: Final = 6
RECORDS_MAX: Final = 40
"""Of one transaction of a generator."""
POLL_RECORDS_MAX: Final = 200
ABORTED_SHARE: Final = 0.05
"""Of the transactions: these are aborted on purpose, and written again."""
SESSION_TIMEOUT_MS: Final = 3_000
TRANSACTION_TIMEOUT_MS: Final = 10_000
AGAIN_S: Final = 0.2
TAIL: Final = 5_000
"""Offsets at the end of each partition in which a generator looks for its last number first."""


class ChainOrder(msgspec.Struct, frozen=True):
    """What a process does."""

    name: str
    """Also the transactional id."""
    servers: str
    generator: int | None = None
    """The generator's number; None: a processor."""
    rate: float = 0.0
    """Records a second of a generator."""


class AbortedOnPurposeError(Exception):
    """Aborts a transaction."""


def maybe_abort() -> None:
    """Raise AbortedOnPurposeError now and then."""
    if random.random() < ABORTED_SHARE:
        raise AbortedOnPurposeError


def partitions(topic: str) -> list[TopicPartition]:
    """All partitions of a topic of the chain."""
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


def input_value(generator: int, number: int) -> bytes:
    """A generator's record."""
    return b"%d:%d" % (generator, number)


def output_value(source: TopicPartition, offset: int, value: bytes) -> bytes:
    """A processor's copy of an input record."""
    return b"%s@%d:%d" % (value, source.partition, offset)


async def read_topic(
    servers: str,
    topic: str,
    *,
    isolation: Isolation = "read_committed",
    tail: int | None = None,
) -> dict[int, list[tuple[int, bytes]]]:
    """Offsets and values of each partition, up to the end of the log at the time of the call.

    A read of committed records waits for the end of transactions that are open there. `tail`: only
    so many offsets at the end.
    """
    sources = partitions(topic)
    found: dict[int, list[tuple[int, bytes]]] = {source.partition: [] for source in sources}
    async with Consumer(bootstrap_servers=servers, isolation="read_uncommitted") as consumer:
        ends = await consumer.end_offsets(sources)
    async with Consumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", isolation=isolation
    ) as consumer:
        consumer.assign(sources)
        if tail is not None:
            starts = await consumer.beginning_offsets(sources)
            for source in sources:
                consumer.seek(source, max(starts[source], ends[source] - tail))
        while any([await consumer.position(source) < ends[source] for source in sources]):
            for source, records in (await consumer.getmany(timeout_ms=200)).items():
                found[source.partition] += [
                    (record.offset, record.value or b"") for record in records
                ]
    return found


async def last_number(servers: str, generator: int, *, tail: int | None) -> int:
    """The last number of a generator in committed transactions; -1: none."""
    prefix = b"%d:" % generator
    found = await read_topic(servers, INPUT, tail=tail)
    values = (value for records in found.values() for _, value in records)
    numbers = (int(value[len(prefix) :]) for value in values if value.startswith(prefix))
    return max(numbers, default=-1)


async def generate(order: ChainOrder) -> None:
    """Write numbers until cancelled."""
    assert order.generator is not None
    async with Producer(
        bootstrap_servers=order.servers,
        transactional_id=order.name,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    ) as producer:
        # What an earlier process left open has ended by now.
        last = await last_number(order.servers, order.generator, tail=TAIL)
        if last < 0:
            last = await last_number(order.servers, order.generator, tail=None)
        number = last + 1
        while True:
            count = random.randint(1, RECORDS_MAX)
            with suppress(AbortedOnPurposeError):
                async with producer.transaction():
                    for value in range(number, number + count):
                        await producer.send(
                            INPUT,
                            input_value(order.generator, value),
                            partition=value % PARTITIONS,
                        )
                    maybe_abort()
                number += count
            await asyncio.sleep(count / order.rate)


async def process(order: ChainOrder) -> None:
    """Copy input to output until cancelled."""
    async with (
        Producer(
            bootstrap_servers=order.servers,
            transactional_id=order.name,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        ) as producer,
        Consumer(
            INPUT,
            bootstrap_servers=order.servers,
            group_id=GROUP,
            auto_commit_interval_ms=None,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            max_poll_records=POLL_RECORDS_MAX,
        ) as consumer,
    ):
        while True:
            taken = await consumer.getmany(timeout_ms=500)
            if not taken:
                continue
            try:
                async with producer.transaction() as transaction:
                    for source, records in taken.items():
                        for record in records:
                            await producer.send(
                                OUTPUT,
                                output_value(source, record.offset, record.value or b""),
                                partition=source.partition,
                            )
                    await transaction.commit_offsets(consumer)
                    maybe_abort()
            except AbortedOnPurposeError:
                await consumer.seek_to_committed()
            except FencedError:
                raise
            except RaftlogClientError as error:
                if error.outcome_unknown:
                    # Only a new producer of the transactional id finds out.
                    raise
                print(f"{order.name}: {error!r}", file=sys.stderr, flush=True)
                await consumer.seek_to_committed()


async def keep_working(order: ChainOrder) -> None:
    """Work; after an error begin again, as a restarted process would."""
    while True:
        try:
            await (process(order) if order.generator is None else generate(order))
        except RaftlogClientError as error:
            print(f"{order.name} begins again: {error!r}", file=sys.stderr, flush=True)
            await asyncio.sleep(AGAIN_S)


async def _main() -> None:
    order, reader = await order_from_stdin(ChainOrder)
    await until_end(keep_working(order), reader)


if __name__ == "__main__":
    uvloop.run(_main())
