"""Run the three workers beside this file, kill them and nodes, and count what they did.

    python docs/examples/kill_and_count.py [--orders 3000] [--kills 4]

Starts three nodes, writes numbered orders, and runs the worker of each delivery mode, which
writes an invoice for every order. Each worker gets a kill -9, `--kills` times, somewhere in its
work, and is started again; a node dies with every second kill. In the end all invoices are read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

from raftlog_client import Admin, Consumer, Producer, RaftlogClientError, TopicPartition

MODES = ("at-most-once", "at-least-once", "exactly-once")
HERE = Path(__file__).parent
PARTITIONS = 2
POLL_S = 0.02
PATIENCE_S = 240.0


def raftlog(*arguments: str) -> str:
    command = [sys.executable, "-m", "raftlog.cli", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Worker:
    """The worker of one mode: started again whenever it ends, as a supervisor does."""

    def __init__(self, mode: str, servers: str, log: Path) -> None:
        self.mode = mode
        self.kills = 0
        self._environment = {**os.environ, "RAFTLOG_SERVERS": servers}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def keep_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            program = HERE / f"{self.mode.replace('-', '_')}.py"
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, program], env=self._environment, stdout=log, stderr=log
                )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


async def invoices(consumer: Consumer, mode: str) -> int:
    """Invoices in the log, those of open and aborted transactions too."""
    (end,) = (await consumer.end_offsets([TopicPartition(f"invoices.{mode}", 0)])).values()
    return end


async def has_read_all(admin: Admin, mode: str) -> bool:
    try:
        found = (await admin.describe_group(mode)).offsets
    except RaftlogClientError:
        return False
    return len(found) == PARTITIONS and all(one.lag == 0 for one in found)


async def count(servers: str, mode: str) -> Counter[bytes]:
    """All invoices that readers of committed transactions see."""
    place = TopicPartition(f"invoices.{mode}", 0)
    seen: Counter[bytes] = Counter()
    async with Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        end = (await consumer.end_offsets([place]))[place]
        while await consumer.position(place) < end:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                seen.update(record.value for record in records)
    return seen


async def supervise(
    servers: str, workers: list[Worker], cluster: str, orders: int, kills: int
) -> int:
    """Kill and restart until all orders are read by all workers; return how many nodes died."""
    node_kills = 0
    # Within a batch: the workers take 100 orders at once.
    thresholds = [orders * number // (kills + 1) + 50 for number in range(kills)]
    unfinished = set(workers)
    async with (
        Admin(bootstrap_servers=servers) as admin,
        Consumer(bootstrap_servers=servers, isolation="read_uncommitted") as consumer,
    ):
        while unfinished:
            for worker in workers:
                worker.keep_running()
                if worker.kills == kills:
                    if await has_read_all(admin, worker.mode):
                        unfinished.discard(worker)
                elif await invoices(consumer, worker.mode) >= thresholds[worker.kills]:
                    worker.kill()
                    worker.kills += 1
                    if worker is workers[-1] and worker.kills % 2:
                        kill_a_node(cluster, node_kills)
                        node_kills += 1
            await asyncio.sleep(POLL_S)
        # At most once: the last position is committed, and its work may be under way.
        before = -1
        while (now := await invoices(consumer, MODES[0])) != before:
            before = now
            await asyncio.sleep(1.0)
    return node_kills


def kill_a_node(cluster: str, number: int) -> None:
    """The manager of the cluster starts the node again."""
    nodes = json.loads(raftlog("cluster", "status", "--dir", cluster, "--format", "json"))["nodes"]
    with suppress(ProcessLookupError):
        os.kill(nodes[number % len(nodes)]["pid"], signal.SIGKILL)


async def play(servers: str, cluster: str, orders: int, kills: int) -> dict[str, tuple[int, int]]:
    """Lost and doubled invoices by mode."""
    written = [b"%d" % number for number in range(orders)]
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic("orders", partitions=PARTITIONS)
        for mode in MODES:
            await admin.create_topic(f"invoices.{mode}", partitions=1)
    async with Producer(bootstrap_servers=servers) as producer:
        await producer.send_many("orders", written)
    workers = [Worker(mode, servers, Path(cluster).parent / f"{mode}.log") for mode in MODES]
    try:
        async with asyncio.timeout(PATIENCE_S):
            node_kills = await supervise(servers, workers, cluster, orders, kills)
    finally:
        for worker in workers:
            worker.kill()
    print(f"kill -9: {kills} times for each worker, {node_kills} times for a node")
    print(f"{'':15}{'orders':>8}{'lost':>8}{'doubled':>8}")
    found: dict[str, tuple[int, int]] = {}
    for mode in MODES:
        seen = await count(servers, mode)
        lost = len(set(written) - seen.keys())
        doubled = seen.total() - len(seen)
        found[mode] = (lost, doubled)
        print(f"{mode:15}{orders:>8}{lost:>8}{doubled:>8}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--orders", type=int, default=3_000)
    parser.add_argument("--kills", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raftlog-delivery-") as work:
        cluster = str(Path(work) / "cluster")
        up = raftlog(
            "cluster", "up", "--dir", cluster, "--nodes", "3", "--base-port", "0", "--detach"
        )
        try:
            servers = next(
                line.partition("=")[2] for line in up.splitlines() if "RAFTLOG_SERVERS=" in line
            )
            found = asyncio.run(play(servers, cluster, arguments.orders, arguments.kills))
        finally:
            raftlog("cluster", "down", "--dir", cluster)
    (_, most), (least, _), exactly = (found[mode] for mode in MODES)
    if most or least or any(exactly):
        sys.exit("a delivery mode did not keep its promise")


if __name__ == "__main__":
    main()
