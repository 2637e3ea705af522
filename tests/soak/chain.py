"""The soak of the exactly-once chain: generators, a group of processors, and what they leave.

Generators write numbers to the input topic in transactions; processors copy input to output, with
the offsets in the same transaction (chain_clients.py). All of these processes, and the nodes, are
killed and paused in turn, while a reader of committed transactions follows the output. After the
last fault the generators stop, and once all input is processed:

- the input has the numbers 0 … n of each generator, once each, in order;
- the output has a copy of each input record, once, in the order of the partition;
- the reader has seen the output from its beginning, and nothing else;
- no transaction is open, and no node or process has ended by itself.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from raftlog_client import Admin, Consumer, RaftlogClientError, TopicPartition

from bench.cluster import Cluster, NotWholeError
from raftlog.api.transactions import TransactionListing
from tests.soak.chain_clients import (
    GROUP,
    INPUT,
    OUTPUT,
    PARTITIONS,
    ChainOrder,
    input_value,
    output_value,
    partitions,
    read_topic,
)
from tests.soak.client_processes import ClientProcesses
from tests.soak.nemesis import WHOLE_TIMEOUT_S, Fault, Nemesis, Pace
from tests.soak.records import CONFIGS, node_anomalies

GENERATORS: Final = 2
PROCESSORS: Final = 3
DRAIN_TIMEOUT_S: Final = 90.0
"""From the generators' end to no lag and no open transaction."""
POLL_S: Final = 0.5
ANOMALIES_OF_A_KIND_MAX: Final = 5
LOGS_FILE: Final = "logs.json"

Records = Mapping[int, Sequence[tuple[int, bytes]]]
"""Offsets and values, by partition."""


class ChainLogs(msgspec.Struct):
    """What is judged."""

    input: dict[int, list[tuple[int, bytes]]]
    output: dict[int, list[tuple[int, bytes]]]
    watched: dict[int, list[tuple[int, bytes]]]
    """What the reader of the output has seen, in its order."""


@dataclass(slots=True)
class ChainRun:
    """The observations of one run."""

    logs: ChainLogs
    faults: list[Fault] = field(default_factory=list)
    anomalies: list[str] = field(default_factory=list)

    @classmethod
    def replay(cls, directory: Path) -> ChainRun:
        """Check the logs in a directory again."""
        logs = msgspec.msgpack.decode((directory / LOGS_FILE).read_bytes(), type=ChainLogs)
        return cls(logs, anomalies=judge(logs))

    def save(self, directory: Path) -> None:
        """Write the logs, for `replay`."""
        (directory / LOGS_FILE).write_bytes(msgspec.msgpack.encode(self.logs))


def judge(logs: ChainLogs) -> list[str]:
    """Whatever is lost, doubled, out of order, or seen without being committed."""
    found: dict[str, list[str]] = defaultdict(list)
    for kind, text in [*_judge_input(logs), *_judge_output(logs), *_judge_watched(logs)]:
        found[kind].append(text)
    return [
        f"{kind}: {text}" + (f" (one of {len(texts)})" if len(texts) > 1 else "")
        for kind, texts in found.items()
        for text in texts[:ANOMALIES_OF_A_KIND_MAX]
    ]


def _judge_input(logs: ChainLogs) -> Iterator[tuple[str, str]]:
    numbers: dict[int, Counter[int]] = defaultdict(Counter)
    for partition, records in logs.input.items():
        last: dict[int, int] = {}
        for offset, value in records:
            generator, number = (int(part) for part in value.split(b":"))
            numbers[generator][number] += 1
            if number % PARTITIONS != partition or number <= last.get(generator, -1):
                yield "out of order", f"{INPUT}-{partition} at {offset}: {value!r}"
            last[generator] = number
    for generator, counts in sorted(numbers.items()):
        wanted = [input_value(generator, number) for number in range(max(counts) + 1)]
        copies = {input_value(generator, number): count for number, count in counts.items()}
        yield from _judge_copies(INPUT, wanted, copies)


def _judge_output(logs: ChainLogs) -> Iterator[tuple[str, str]]:
    for partition, records in logs.input.items():
        source = TopicPartition(INPUT, partition)
        wanted = [output_value(source, offset, value) for offset, value in records]
        values = [value for _, value in logs.output.get(partition, [])]
        yield from judge_output(OUTPUT, partition, wanted, values)


def judge_output(
    topic: str, partition: int, wanted: Sequence[bytes], values: Sequence[bytes]
) -> Iterator[tuple[str, str]]:
    """Kind and text of each difference between a partition's output and the wanted one."""
    copies = Counter(values)
    yield from _judge_copies(topic, wanted, copies)
    for value in copies.keys() - set(wanted):
        yield "from nowhere", f"{topic}: {value!r}"
    if sorted(values) == sorted(wanted) and list(values) != list(wanted):
        yield "out of order", f"{topic}-{partition} is not in the input's order"


def _judge_copies(
    topic: str, wanted: Iterable[bytes], copies: Mapping[bytes, int]
) -> Iterator[tuple[str, str]]:
    for value in wanted:
        count = copies.get(value, 0)
        if count != 1:
            yield "doubled" if count else "lost", f"{topic}: {value!r} is there {count} times"


def _judge_watched(logs: ChainLogs) -> Iterator[tuple[str, str]]:
    for partition, seen in logs.watched.items():
        there = logs.output.get(partition, [])
        for place, (was, now) in enumerate(itertools.zip_longest(seen, there[: len(seen)])):
            if was != now:
                yield "seen, not committed", f"{OUTPUT}-{partition}, {place}: {was}, now {now}"
                break


async def soak(
    cluster: Cluster,
    directory: Path,
    *,
    kinds: Iterable[str],
    seconds: float,
    every_s: float,
    rate: float,
    seed: int,
    log: Callable[[str], None] = print,
) -> ChainRun:
    """Strike a fresh cluster and its clients for so long, then check what they leave.

    `rate` is the number of input records a second.
    """
    for topic in (INPUT, OUTPUT):
        await cluster.create_topic(topic, PARTITIONS, CONFIGS)
    servers = cluster.servers
    orders = [
        *(
            ChainOrder(f"generator-{number}", servers, number, rate / GENERATORS)
            for number in range(GENERATORS)
        ),
        *(ChainOrder(f"processor-{number}", servers) for number in range(PROCESSORS)),
    ]
    clients = ClientProcesses(
        orders,
        directory,
        module="tests.soak.chain_clients",
        groups=[GROUP],
        transactional=range(len(orders)),
    )
    nemesis = Nemesis(
        cluster,
        [INPUT, OUTPUT],
        random.Random(seed),
        Pace(every_s=every_s),
        clients=clients,
        log=log,
    )
    watched: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    watching = asyncio.ensure_future(_watch(servers, watched))
    stop = asyncio.Event()
    try:
        await clients.start(clients.numbers)
        striking = asyncio.ensure_future(nemesis.run(kinds, stop))
        await asyncio.wait({striking}, timeout=seconds)
        stop.set()
        await striking
        anomalies = [*nemesis.anomalies, *clients.ended()]
        anomalies += await clients.stop(range(GENERATORS))
        anomalies += await _drained(cluster, watched)
        anomalies += await clients.stop(range(GENERATORS, len(orders)))
        logs = ChainLogs(
            await read_topic(servers, INPUT),
            await read_topic(servers, OUTPUT),
            {},
        )
    finally:
        await clients.kill(clients.numbers)
        watching.cancel()
        (failure,) = await asyncio.gather(watching, return_exceptions=True)
    if not isinstance(failure, asyncio.CancelledError):
        anomalies.append(f"the reader of {OUTPUT} ended: {failure!r}")
    logs.watched = dict(watched)
    anomalies += node_anomalies(cluster.nodes)
    return ChainRun(logs, nemesis.faults, [*anomalies, *judge(logs)])


async def _watch(servers: str, watched: dict[int, list[tuple[int, bytes]]]) -> None:
    """Read the output as it is committed, for ever."""
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions(OUTPUT))
        while True:
            try:
                record = await consumer.getone()
            except RaftlogClientError as error:
                if not error.retriable:
                    raise
            else:
                watched[record.partition].append((record.offset, record.value or b""))


async def _drained(
    cluster: Cluster, watched: Mapping[int, Sequence[tuple[int, bytes]]]
) -> list[str]:
    """Wait until all input is processed and no transaction is open; the anomalies."""
    # The group's lag does not tell: the markers of transactions are offsets, too.
    remaining = ""
    try:
        await cluster.wait_in_sync([INPUT, OUTPUT], WHOLE_TIMEOUT_S)
        async with (
            asyncio.timeout(DRAIN_TIMEOUT_S),
            Admin(bootstrap_servers=cluster.servers) as admin,
        ):
            count = sum(map(len, (await read_topic(cluster.servers, INPUT)).values()))
            while True:
                listed = (await admin.list_transactions()).transactions
                is_open = {one.transactional_id: one.state for one in listed if is_undecided(one)}
                seen = sum(map(len, watched.values()))
                if seen >= count and not is_open:
                    return []
                remaining = f"{seen} of {count} records are processed, open are {is_open}"
                await asyncio.sleep(POLL_S)
    except NotWholeError as error:
        return [f"at the end: {error}"]
    except TimeoutError:
        return [f"{DRAIN_TIMEOUT_S:g} s after the end of the generators: {remaining}"]


def is_undecided(listed: TransactionListing) -> bool:
    """Whether a transaction is open, or its markers are not all written."""
    return listed.state not in {"empty", "complete-commit", "complete-abort"}


def print_report(run: ChainRun) -> None:
    """Print the run in a screenful."""
    logs = run.logs
    print(f"  input         {sum(map(len, logs.input.values())):,} records")
    print(f"  output        {sum(map(len, logs.output.values())):,} records")
    print(f"  watched       {sum(map(len, logs.watched.values())):,} records")
    print(f"  faults        {len(run.faults)}")
    for kind, count in sorted(Counter(fault.kind for fault in run.faults).items()):
        print(f"    {count:3} {kind}")
    print(f"  anomalies     {len(run.anomalies)}")
    for anomaly in run.anomalies:
        print(f"ANOMALY {anomaly}")
