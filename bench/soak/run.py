"""One run: load, faults, healing, final reads, files, verdict."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.replication.cluster import Cluster, NotWholeError
from bench.replication.wires import Wires
from bench.soak import verdict as verdicts
from bench.soak.cuts import Cuts
from bench.soak.faults import WHOLE_TIMEOUT_S, Fault, Nemesis
from bench.soak.verdict import UnreadError, Verdict
from bench.soak.worker import Account, Orders, Worker

SEGMENT_BYTES: Final = 4 << 20
CONFIGS: Final = {
    "segment.bytes": str(SEGMENT_BYTES),
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
DISASTERS: Final = ("Traceback", "CRITICAL", "AssertionError")
LOG_LINES_SHOWN_MAX: Final = 10
UNREAD: Final = "at the end:"
NO_FINAL_READ: Final = "and no final read"
"""What the checker says of a partition of which nobody has read anything at the end."""


@dataclass(slots=True)
class Found:
    """What one run has seen."""

    account: Account
    faults: Sequence[Fault]
    verdict: Verdict
    anomalies: list[str] = field(default_factory=list)


def orders_of(
    cluster: Cluster, topics: Mapping[str, int], history: Path, *, rate: float, writers: int
) -> list[Orders]:
    """Who works in which process: so many with a writer each, and the readers among them."""
    common = {"addresses": cluster.addresses, "topics": dict(topics), "history": str(history)}
    readers = [{"client-reader": 0.0, "http-writer": 20.0}, {"replica-reader": 0.0}]
    readers.append({"http-reader": 0.0})
    parts: list[dict[str, float]] = [{"client-writer": rate / writers} for _ in range(writers)]
    for number, part in enumerate(readers):
        parts[number % writers].update(part)
    return [
        Orders(name=f"w{number}", clients=part, **common)  # type: ignore[arg-type]
        for number, part in enumerate(parts)
    ]


async def hurt_under_load(
    nemesis: Nemesis,
    orders: Sequence[Orders],
    hurt: Callable[[Nemesis, asyncio.Event], asyncio.Future[None]],
    seconds: float,
) -> Account:
    """Let the clients work while the nemesis does, for so long; then all is healed."""
    workers = [Worker(one) for one in orders]
    stop = asyncio.Event()
    account = Account()
    try:
        for worker in workers:
            await worker.start()
        hurting = hurt(nemesis, stop)
        watching = asyncio.create_task(_until_one_ends(workers))
        try:
            await asyncio.wait(
                {hurting, watching}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stop.set()
            watching.cancel()
        await hurting
        for worker in workers:
            try:
                account += await worker.stop()
            except RuntimeError as error:
                nemesis.anomalies.append(str(error))
    finally:
        for worker in workers:
            await worker.kill()
    return account


async def _until_one_ends(workers: Sequence[Worker]) -> None:
    await asyncio.wait(
        [asyncio.ensure_future(worker.ended()) for worker in workers],
        return_when=asyncio.FIRST_COMPLETED,
    )


async def soak(
    cluster: Cluster,
    topics: Mapping[str, int],
    history: Path,
    *,
    groups: Sequence[str],
    seconds: float,
    every_s: float,
    rate: float,
    writers: int,
    seed: int,
    wires: Wires | None = None,
    configs: Mapping[str, str] | None = None,
    say: Callable[[str], None] = print,
) -> Found:
    """Hurt a fresh cluster for so long, then end it and judge what its clients saw."""
    for topic, partitions in topics.items():
        await cluster.create_topic(topic, partitions, {**CONFIGS, **(configs or {})})
    cuts = None if wires is None else Cuts(dict(enumerate(wires.places, start=1)))
    nemesis = Nemesis(cluster, list(topics), random.Random(seed), wires=wires, cuts=cuts, say=say)
    orders = orders_of(cluster, topics, history, rate=rate, writers=writers)
    account = await hurt_under_load(
        nemesis,
        orders,
        lambda found, stop: asyncio.ensure_future(found.run(groups, every_s, stop)),
        seconds,
    )
    return await concluded(nemesis, topics, history, account)


async def concluded(
    nemesis: Nemesis, topics: Mapping[str, int], history: Path, account: Account
) -> Found:
    """Wait until all is whole, read it all, stop the nodes, and judge."""
    cluster = nemesis.cluster
    anomalies = list(nemesis.anomalies)
    for node_id, node in cluster.processes.nodes.items():
        if node.has_ended:
            anomalies.append(f"node {node_id} ended by itself, with {node.process.returncode}")
    anomalies += await ending(cluster, topics, history)
    nodes = cluster.processes.nodes
    for node in nodes.values():
        if node.is_running:
            await asyncio.to_thread(node.stop)
    if not anomalies:
        directories = {node_id: node.data_dir for node_id, node in nodes.items()}
        anomalies += await asyncio.to_thread(verdicts.compare_files, directories)
    for node_id, node in nodes.items():
        anomalies += [f"node {node_id} said: {line}" for line in disasters(node.log)]
    verdict = await asyncio.to_thread(verdicts.judge, history, nemesis.faults)
    # Whoever could not be read at the end has been named; that much is not lost.
    is_read = not any(anomaly.startswith(UNREAD) for anomaly in anomalies)
    anomalies += [one for one in verdict.anomalies if is_read or NO_FINAL_READ not in one]
    return Found(account, nemesis.faults, verdict, anomalies)


async def ending(cluster: Cluster, topics: Mapping[str, int], history: Path) -> list[str]:
    """Start what does not run, wait until all is whole, and read it; what was wrong with that."""
    try:
        await asyncio.to_thread(cluster.processes.heal)
        await cluster.wait_in_sync(list(topics), WHOLE_TIMEOUT_S)
        await verdicts.read_all(cluster.addresses, await cluster.known(list(topics)), history)
    except (NotWholeError, UnreadError, RuntimeError) as error:
        return [f"{UNREAD} {error}"]
    return []


def disasters(log: Path) -> list[str]:
    """Lines of a node's log that a sound node never writes."""
    found: list[str] = []
    with log.open(errors="replace") as lines:
        for line in lines:
            if any(word in line for word in DISASTERS):
                found.append(line.rstrip())
                if len(found) >= LOG_LINES_SHOWN_MAX:
                    break
    return found
