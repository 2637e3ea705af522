"""The soak of Kafka's clients: librdkafka's producers and groups on the nodes' Kafka listeners.

Idempotent writers, transactional producers and two groups of processors (kafka_clients.py) work in
processes of their own while the nemesis strikes nodes and clients; readers of other doors follow
(kafka_readers.py). After the last fault the producers stop. Once both groups have processed all
committed input, every door reads all topics, every replica is read, the nodes stop, the files of
all replicas are compared, and the history is checked (kafka_verdict.py).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace
from raftlog_client import Admin, RaftlogClientError, ServerError

from bench.cluster import Cluster, NotWholeError
from bench.wires import Wires
from tests.soak import kafka_verdict
from tests.soak import verdict as verdicts
from tests.soak.chain import is_undecided
from tests.soak.chain_clients import read_topic
from tests.soak.client_processes import ClientProcesses
from tests.soak.cuts import Cuts
from tests.soak.kafka_history import EVENTS, all_operations, events, latest
from tests.soak.kafka_readers import (
    ISOLATIONS,
    DoorError,
    KafkaReader,
    follow_by_python,
    read_doors,
)
from tests.soak.kafka_topics import (
    INPUT,
    LONE,
    PARTITIONS,
    PROTOCOLS,
    TOPICS,
    KafkaOrder,
    group_of,
)
from tests.soak.kafka_verdict import RESETS, KafkaVerdict
from tests.soak.nemesis import KAFKA_GROUPS, WHOLE_TIMEOUT_S, Fault, Nemesis, Pace
from tests.soak.recording import operations, partition_name
from tests.soak.records import CONFIGS, FAULTS_FILE, disasters, read_to_end
from tests.soak.verdict import Verdict

TRANSACTORS: Final = 2
PROCESSORS: Final = 2
"""Of each group."""
HASTY_TIMEOUT_MS: Final = 3_000
"""The second writer gives values up before most faults are over.

librdkafka then begins another epoch of the producer, and sends the younger values again, which may
be in the log: they may be doubled. Only within an epoch are there sequences to hold
(`verdict.check_sequences`)."""
DRAIN_TIMEOUT_S: Final = 120.0
"""From the end of the producers to no lag and no open transaction."""
POLL_S: Final = 0.5
ZOMBIES_FILE: Final = "zombies.json"
ERRORS_SHOWN_MAX: Final = 15
ANOMALIES_SHOWN_MAX: Final = 60


@dataclass(slots=True)
class KafkaRun:
    """The observations of one run."""

    faults: Sequence[Fault]
    zombies: Sequence[int]
    verdict: KafkaVerdict
    writes: Verdict
    """Acknowledgements of the writers, and their gaps."""
    anomalies: list[str] = field(default_factory=list)

    @classmethod
    def judged(cls, directory: Path, faults: Sequence[Fault], zombies: Sequence[int]) -> KafkaRun:
        """Check the history in a directory."""
        history = list(all_operations(directory))
        verdict = kafka_verdict.judge(history, list(events(directory)), zombies, faults)
        # Clients that were started again need their time: only nodes must resume at once.
        measured_faults = [
            replace(one, healed=0) if one.kind in KAFKA_GROUPS["clients"] else one for one in faults
        ]
        writes = Verdict()
        for number in range(PARTITIONS):
            partition = partition_name(LONE, number)
            measured = latest(operations(directory, partition))
            verdicts.measure(writes, measured, partition, measured_faults)
        return cls(faults, zombies, verdict, writes, [*verdict.anomalies, *writes.anomalies])

    @classmethod
    def replay(cls, directory: Path) -> KafkaRun:
        """Check the history in a directory again."""
        faults = msgspec.json.decode((directory / FAULTS_FILE).read_bytes(), type=list[Fault])
        zombies = msgspec.json.decode((directory / ZOMBIES_FILE).read_bytes(), type=list[int])
        return cls.judged(directory, faults, zombies)

    def save(self, directory: Path) -> None:
        """Write faults and zombies beside the history, for `replay`."""
        (directory / FAULTS_FILE).write_bytes(msgspec.json.encode(list(self.faults)))
        (directory / ZOMBIES_FILE).write_bytes(msgspec.json.encode(list(self.zombies)))


def is_history(directory: Path) -> bool:
    """Whether the directory holds a history of this soak."""
    return any(directory.glob(f"*{EVENTS}"))


def client_orders(servers: str, history: Path, rate: float) -> list[KafkaOrder]:
    """An order for each client process: writers, transactors, processors."""

    def order(name: str, role: str, **options: object) -> KafkaOrder:
        given = {"name": name, "role": role, "servers": servers, "history": str(history)}
        return msgspec.convert({**given, **options}, KafkaOrder)

    return [
        order("patient", "writer", rate=rate / 4),
        order("hasty", "writer", rate=rate / 4, message_timeout_ms=HASTY_TIMEOUT_MS, is_once=False),
        *(
            order(f"transactor_{number}", "transactor", rate=rate / 2 / TRANSACTORS)
            for number in range(TRANSACTORS)
        ),
        *(
            order(f"{protocol}_{number}", "processor", protocol=protocol)
            for protocol in PROTOCOLS
            for number in range(PROCESSORS)
        ),
    ]


async def soak(
    cluster: Cluster,
    directory: Path,
    *,
    kinds: Iterable[str],
    seconds: float,
    every_s: float,
    rate: float,
    seed: int,
    pace: Pace | None = None,
    wires: Wires | None = None,
    log: Callable[[str], None] = print,
) -> KafkaRun:
    """Strike a fresh cluster with Kafka listeners and its clients, then check what they leave.

    `rate` is the number of records a second that are produced, without copies.
    """
    for topic in TOPICS:
        await cluster.create_topic(topic, PARTITIONS, CONFIGS)
    kafka_servers = cluster.kafka_servers
    orders = client_orders(kafka_servers, directory, rate)
    processors = [number for number, each in enumerate(orders) if each.role == "processor"]
    producers = [number for number, each in enumerate(orders) if each.role != "processor"]
    clients = ClientProcesses(
        orders,
        directory,
        module="tests.soak.kafka_clients",
        groups=[group_of(protocol) for protocol in PROTOCOLS],
        transactional=[number for number, each in enumerate(orders) if each.role != "writer"],
    )
    nemesis = Nemesis(
        cluster,
        TOPICS,
        random.Random(seed),
        pace or Pace(every_s=every_s),
        wires=wires,
        cuts=None if wires is None else Cuts(wires.places),
        clients=clients,
        log=log,
    )
    readers = [KafkaReader(kafka_servers, isolation, directory) for isolation in ISOLATIONS]
    following = asyncio.ensure_future(follow_by_python(cluster.servers, directory))
    try:
        for reader in readers:
            reader.start()
        await clients.start(clients.numbers)
        stop = asyncio.Event()
        striking = asyncio.ensure_future(nemesis.run(kinds, stop))
        await asyncio.wait({striking}, timeout=seconds)
        stop.set()
        await striking
        anomalies = [*nemesis.anomalies, *clients.ended()]
        anomalies += await clients.stop(producers)
        anomalies += await _drained(cluster)
        anomalies += await clients.stop(processors)
    finally:
        await clients.kill(clients.numbers)
        for reader in readers:
            await asyncio.to_thread(reader.stop)
        following.cancel()
        (failure,) = await asyncio.gather(following, return_exceptions=True)
    if not isinstance(failure, asyncio.CancelledError):
        anomalies.append(f"the reader of the Python client ended: {failure!r}")
    for reader, isolation in zip(readers, ISOLATIONS, strict=True):
        if reader.failure is not None:
            anomalies.append(f"the {isolation} reader ended: {reader.failure!r}")
        anomalies += [
            f"the {isolation} reader: {error}"
            for error in reader.errors
            if error.partition(" ")[0] in RESETS
        ]
    return await _conclude(nemesis, directory, kafka_servers, clients.zombies, anomalies)


async def _conclude(
    nemesis: Nemesis,
    directory: Path,
    kafka_servers: str,
    zombies: Sequence[int],
    anomalies: list[str],
) -> KafkaRun:
    """Read all by every door and replica, stop the nodes, and judge."""
    cluster = nemesis.cluster
    nodes = cluster.nodes
    for node_id, node in nodes.items():
        if node.has_ended:
            anomalies.append(f"node {node_id} ended by itself")
    unread = await read_to_end(cluster, dict.fromkeys(TOPICS, PARTITIONS), directory)
    try:
        await read_doors(cluster.servers, kafka_servers, directory)
    except (DoorError, RaftlogClientError) as error:
        unread.append(f"at the end: {error}")
    anomalies += unread
    topic_ids = await _topic_ids(cluster)
    for node in nodes.values():
        if node.is_running:
            await asyncio.to_thread(node.stop)
    if not unread:
        directories = {node_id: node.data_dir for node_id, node in nodes.items()}
        for topic_id in topic_ids:
            anomalies += await asyncio.to_thread(verdicts.compare_files, directories, topic_id)
            for data_dir in directories.values():
                found = await asyncio.to_thread(verdicts.check_sequences, data_dir, topic_id)
                anomalies += found[:ANOMALIES_SHOWN_MAX]
    for node_id, node in nodes.items():
        anomalies += [f"log of node {node_id}: {line}" for line in disasters(node.logs)]
    run = await asyncio.to_thread(KafkaRun.judged, directory, nemesis.faults, zombies)
    run.anomalies = [*anomalies, *run.anomalies]
    return run


async def _topic_ids(cluster: Cluster) -> list[str]:
    async with Admin(bootstrap_servers=cluster.servers) as admin:
        described = await admin.describe_topics(list(TOPICS))
    return [str(one.topic_id) for one in described]


async def _drained(cluster: Cluster) -> list[str]:
    """Wait until both groups have processed all input and no transaction is open; the anomalies."""
    remaining = ""
    try:
        await cluster.wait_in_sync(TOPICS, WHOLE_TIMEOUT_S)
        async with (
            asyncio.timeout(DRAIN_TIMEOUT_S),
            Admin(bootstrap_servers=cluster.servers) as admin,
        ):
            found = await read_topic(cluster.servers, INPUT)
            ends = {n: records[-1][0] + 1 for n, records in found.items() if records}
            while True:
                listed = (await admin.list_transactions()).transactions
                is_open = {one.transactional_id: one.state for one in listed if is_undecided(one)}
                lags = [text for one in PROTOCOLS for text in await _lags(admin, one, ends)]
                if not lags and not is_open:
                    return []
                remaining = f"{', '.join(lags)}; open are {is_open}"
                await asyncio.sleep(POLL_S)
    except NotWholeError as error:
        return [f"at the end: {error}"]
    except TimeoutError:
        return [f"{DRAIN_TIMEOUT_S:g} s after the end of the producers: {remaining}"]


async def _lags(admin: Admin, protocol: str, ends: dict[int, int]) -> list[str]:
    """The partitions whose input a group has not processed to these ends."""
    committed: dict[int, int] = {}
    with suppress(ServerError):
        described = await admin.describe_group(group_of(protocol))
        committed = {one.partition: one.offset for one in described.offsets if one.topic == INPUT}
    return [
        f"{group_of(protocol)} stands at {committed.get(number)} of {end} in {number}"
        for number, end in ends.items()
        if committed.get(number, 0) < end
    ]


def print_report(run: KafkaRun, seconds: float = 0.0) -> None:
    """Print the run in a screenful. `seconds` of load; 0: unknown."""
    verdict, writes = run.verdict, run.writes
    records, transactions = verdict.records, verdict.transactions
    acknowledged = records["ok"]
    print(
        f"  records       {acknowledged:,} acknowledged of {records.total():,}"
        + (f", {acknowledged / seconds:,.0f} a second" if seconds else "")
        + f"; {writes.acknowledged:,} of {writes.sends:,} without a transaction"
    )
    print(
        f"  transactions  {transactions['committed']:,} committed ({verdict.processed:,} with "
        f"offsets), {transactions['aborted']:,} aborted, {transactions['unknown']:,} unknown"
    )
    for door, count in sorted(verdict.final_records.items()):
        place = f"node {door}" if door.isdigit() else door
        print(f"  final read    {count:,} records by {place}")
    victims = Counter(
        f"{fault.kind.partition(' ')[0]} {victim}"
        for fault in run.faults
        if fault.kind not in KAFKA_GROUPS["clients"]
        for victim in fault.victims
    )
    print(
        f"  faults        {len(run.faults)}; zombies fenced: {verdict.fenced}, "
        f"empty aborts of librdkafka: {verdict.empty_aborts}"
    )
    print("  nodes struck  " + ", ".join(f"{what}: {n}" for what, n in sorted(victims.items())))
    print(f"  calm          longest gap without acknowledgement {writes.calm_gap_s:.2f} s")
    for kind, count in sorted(Counter(fault.kind for fault in run.faults).items()):
        resume_s = writes.resume_s.get(kind)
        print(
            f"    {count:3} {kind}: longest gap of a partition {writes.gap_s.get(kind, 0):.2f} s"
            + ("" if resume_s is None else f" ({resume_s:.2f} s after the healing)")
            + f", of all commits {verdict.commit_gap_s.get(kind, 0):.2f} s"
        )
    if verdict.errors:
        print("  most frequent errors of clients:")
        for error, count in verdict.errors.most_common(ERRORS_SHOWN_MAX):
            print(f"    {count:6} {error}")
    print(f"  anomalies     {len(run.anomalies)}")
    for anomaly in run.anomalies[:ANOMALIES_SHOWN_MAX]:
        print(f"ANOMALY {anomaly}")
