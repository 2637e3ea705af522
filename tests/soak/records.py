"""The soak of records: topics under writers and readers, with the history checked.

Clients work in processes of their own (worker.py) while the nemesis strikes. After the last fault
every replica is read to the end, and the files of all replicas are compared (verdict.py).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from bench.cluster import Cluster, ClusterNode, NotWholeError
from bench.wires import Wires
from tests.soak import verdict as verdicts
from tests.soak.cuts import Cuts
from tests.soak.nemesis import WHOLE_TIMEOUT_S, Fault, Nemesis, Pace
from tests.soak.verdict import UnreadError, Verdict
from tests.soak.worker import Account, Worker, WorkerOrder

TOPICS: Final = {"alpha": 12, "beta": 8, "gamma": 4}
"""Names and numbers of partitions."""
SEGMENT_BYTES: Final = 4 << 20
CONFIGS: Final = {
    "segment.bytes": str(SEGMENT_BYTES),
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
DISASTERS: Final = ("Traceback", "CRITICAL", "AssertionError")
LOG_LINES_SHOWN_MAX: Final = 10
ANOMALIES_SHOWN_MAX: Final = 40
ERRORS_SHOWN_MAX: Final = 12
UNREAD: Final = "at the end:"
NO_FINAL_READ: Final = "and no final read"
"""The checker's anomaly for a partition without a final read."""
FAULTS_FILE: Final = "faults.json"
ACCOUNT_FILE: Final = "account.json"


@dataclass(slots=True)
class RecordsRun:
    """The observations of one run."""

    account: Account
    faults: Sequence[Fault]
    verdict: Verdict
    anomalies: list[str] = field(default_factory=list)

    @classmethod
    def replay(cls, directory: Path) -> RecordsRun:
        """Check the history in a directory again."""
        faults = msgspec.json.decode((directory / FAULTS_FILE).read_bytes(), type=list[Fault])
        account = msgspec.json.decode((directory / ACCOUNT_FILE).read_bytes(), type=Account)
        verdict = verdicts.judge(directory, faults)
        return cls(account, faults, verdict, verdict.anomalies)

    def save(self, directory: Path) -> None:
        """Write the faults and the account beside the history, for `replay`."""
        (directory / FAULTS_FILE).write_bytes(msgspec.json.encode(list(self.faults)))
        (directory / ACCOUNT_FILE).write_bytes(msgspec.json.encode(self.account))


def worker_orders(
    cluster: Cluster, topics: Mapping[str, int], history: Path, *, rate: float, writers: int
) -> list[WorkerOrder]:
    """An order for each worker process: one writer in each, the readers spread among them."""
    readers = [{"client-reader": 0.0, "http-writer": 20.0}, {"replica-reader": 0.0}]
    readers.append({"http-reader": 0.0})
    parts: list[dict[str, float]] = [{"client-writer": rate / writers} for _ in range(writers)]
    for number, part in enumerate(readers):
        parts[number % writers].update(part)
    return [
        WorkerOrder(
            name=f"w{number}",
            clients=part,
            addresses=cluster.addresses,
            topics=dict(topics),
            history=str(history),
        )
        for number, part in enumerate(parts)
    ]


async def strike_under_load(
    nemesis: Nemesis, orders: Sequence[WorkerOrder], kinds: Iterable[str], seconds: float
) -> Account:
    """Run clients and nemesis for so long; return once the last fault is healed."""
    workers = [Worker(order) for order in orders]
    stop = asyncio.Event()
    account = Account()
    try:
        for worker in workers:
            await worker.start()
        striking = asyncio.create_task(nemesis.run(kinds, stop))
        watching = asyncio.create_task(_first_end(workers))
        try:
            await asyncio.wait(
                {striking, watching}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stop.set()
            watching.cancel()
        await striking
        for worker in workers:
            try:
                account += await worker.stop()
            except RuntimeError as error:
                nemesis.anomalies.append(str(error))
    finally:
        for worker in workers:
            await worker.kill()
    return account


async def _first_end(workers: Sequence[Worker]) -> None:
    await asyncio.wait(
        [asyncio.ensure_future(worker.ended()) for worker in workers],
        return_when=asyncio.FIRST_COMPLETED,
    )


async def soak(
    cluster: Cluster,
    directory: Path,
    *,
    kinds: Iterable[str],
    seconds: float,
    every_s: float,
    rate: float,
    writers: int,
    seed: int,
    wires: Wires | None = None,
    log: Callable[[str], None] = print,
) -> RecordsRun:
    """Strike a fresh cluster for so long, then stop the cluster and check the clients' history."""
    for topic, partitions in TOPICS.items():
        await cluster.create_topic(topic, partitions, CONFIGS)
    nemesis = Nemesis(
        cluster,
        list(TOPICS),
        random.Random(seed),
        Pace(every_s=every_s),
        wires=wires,
        cuts=None if wires is None else Cuts(wires.places),
        log=log,
    )
    orders = worker_orders(cluster, TOPICS, directory, rate=rate, writers=writers)
    account = await strike_under_load(nemesis, orders, kinds, seconds)
    return await _conclude(nemesis, directory, account)


async def _conclude(nemesis: Nemesis, history: Path, account: Account) -> RecordsRun:
    """Wait until the cluster is whole, read all replicas, stop the nodes, and judge."""
    cluster = nemesis.cluster
    nodes = cluster.nodes
    anomalies = list(nemesis.anomalies)
    for node_id, node in nodes.items():
        if node.has_ended:
            anomalies.append(f"node {node_id} ended by itself")
    anomalies += await read_to_end(cluster, TOPICS, history)
    for node in nodes.values():
        if node.is_running:
            await asyncio.to_thread(node.stop)
    if not anomalies:
        directories = {node_id: node.data_dir for node_id, node in nodes.items()}
        anomalies += await asyncio.to_thread(verdicts.compare_files, directories)
    for node_id, node in nodes.items():
        anomalies += [f"log of node {node_id}: {line}" for line in disasters(node.logs)]
    verdict = await asyncio.to_thread(verdicts.judge, history, nemesis.faults)
    # An unread replica is an anomaly already; its missing final reads are not losses.
    is_read = not any(anomaly.startswith(UNREAD) for anomaly in anomalies)
    anomalies += [one for one in verdict.anomalies if is_read or NO_FINAL_READ not in one]
    return RecordsRun(account, nemesis.faults, verdict, anomalies)


async def read_to_end(cluster: Cluster, topics: Mapping[str, int], history: Path) -> list[str]:
    """Heal the cluster, wait until it is whole, and read all replicas; return the anomalies."""
    try:
        await asyncio.to_thread(cluster.heal)
        await cluster.wait_in_sync(list(topics), WHOLE_TIMEOUT_S)
        await verdicts.read_all(cluster.addresses, await cluster.known(list(topics)), history)
    except (NotWholeError, UnreadError, RuntimeError) as error:
        return [f"{UNREAD} {error}"]
    return []


def node_anomalies(nodes: Mapping[int, ClusterNode]) -> list[str]:
    """Nodes that ended by themselves, and disasters in the logs of all."""
    found = []
    for node_id, node in nodes.items():
        if node.has_ended:
            found.append(f"node {node_id} ended by itself")
        found += [f"log of node {node_id}: {line}" for line in disasters(node.logs)]
    return found


def disasters(logs: Iterable[Path]) -> list[str]:
    """Log lines that a sound node never writes."""
    found: list[str] = []
    for log in logs:
        with log.open(errors="replace") as lines:
            for line in lines:
                if any(word in line for word in DISASTERS):
                    found.append(line.rstrip())
                    if len(found) >= LOG_LINES_SHOWN_MAX:
                        return found
    return found


def print_report(run: RecordsRun, seconds: float) -> None:
    """Print the run in a screenful. `seconds` of load; 0: unknown."""
    verdict = run.verdict
    kinds = Counter(fault.kind for fault in run.faults)
    print(f"  sends         {verdict.acknowledged:,} acknowledged of {verdict.sends:,}", end="")
    print(f", {verdict.acknowledged / seconds:,.0f} a second" if seconds else "")
    print(f"  final reads   {verdict.records_read:,} records of all replicas")
    print(
        f"  faults        {len(run.faults)}; longest gap without acknowledgement outside of "
        f"faults: {verdict.calm_gap_s:.2f} s"
    )
    for kind, count in sorted(kinds.items()):
        resume_s = verdict.resume_s.get(kind)
        print(
            f"    {count:3} {kind}: longest gap of a partition {verdict.gap_s.get(kind, 0):.2f} s"
            + ("" if resume_s is None else f", {resume_s:.2f} s after the healing")
        )
    if run.account.errors:
        print("  most frequent errors of clients:")
        for error, count in Counter(run.account.errors).most_common(ERRORS_SHOWN_MAX):
            print(f"    {count:6} {error}")
    print(f"  anomalies     {len(run.anomalies)}")
    for anomaly in run.anomalies[:ANOMALIES_SHOWN_MAX]:
        print(f"ANOMALY {anomaly}")
