"""The cluster under measurement: three nodes, their topics, and waits until all are whole."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import psutil
import uvloop

from bench.cluster_processes import ClusterProcesses, Place
from bench.kept_connection import KeptConnection, NotSentError, OutcomeLostError
from bench.node import data_directory
from raftlog.cluster.manifest import Flush

NODES: Final = 3
PARTITIONS: Final = 16
MIN_ISR: Final = "2"
IN_SYNC_TIMEOUT_S: Final = 120.0
WORKLOAD_TIMEOUT_S: Final = 600.0
"""Of one workload; a longer one has failed."""
POLL_S: Final = 0.02
METADATA_TIMEOUT_S: Final = 2.0
CHANGE_TIMEOUT_S: Final = 30.0
MIB: Final = 1 << 20

_T = TypeVar("_T")


class NotWholeError(Exception):
    """The cluster did not reach the expected state in time."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a benchmark."""

    flush: Flush = "sync"
    runs: int = 3
    scale: float = 1.0
    trials: int = 30
    gigabytes: float = 1.0
    kafka_classpath: Path | None = None
    """A file with the classpath of Apache Kafka, to be measured beside."""


class Row(NamedTuple):
    """One partition, in one node's metadata."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Cluster:
    """Three running nodes, with the requests of the benchmarks."""

    def __init__(self, processes: ClusterProcesses) -> None:
        self.processes = processes

    @property
    def servers(self) -> str:
        """All addresses, as `bootstrap_servers`."""
        return ",".join(node.address for node in self.processes.nodes.values())

    @property
    def addresses(self) -> dict[int, str]:
        """By node."""
        return {node_id: node.address for node_id, node in self.processes.nodes.items()}

    async def create_topic(
        self, name: str, partitions: int = PARTITIONS, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic of three replicas, and wait until all replicas are in sync."""
        wanted = {"min.insync.replicas": MIN_ISR, **(configs or {})}
        body = {
            "topic_name": name,
            "partitions_count": partitions,
            "replication_factor": NODES,
            "configs": [{"name": key, "value": value} for key, value in wanted.items()],
        }
        await self.change("POST", "/v3/clusters/-/topics", body)
        await self.wait_in_sync([name])

    async def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        await self.change("DELETE", f"/v3/clusters/-/topics/{name}")

    async def change(self, method: str, path: str, body: object = None) -> None:
        """One request to the first running node. Raises NotWholeError for any error."""
        address = next(
            node.address
            for node in self.processes.nodes.values()
            if node.is_running and not node.is_paused
        )
        data = b"" if body is None else json.dumps(body).encode()
        connection = KeptConnection(address)
        try:
            answer = await connection.request(method, path, data, timeout_s=CHANGE_TIMEOUT_S)
        except (NotSentError, OutcomeLostError) as error:
            raise NotWholeError(f"{method} {path}: {error}") from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise NotWholeError(f"{method} {path}: {answer.status} {answer.body.decode()}")

    async def rows(self, node_id: int, topics: Sequence[str]) -> list[Row] | None:
        """The partitions of these topics in one node's metadata; None: no answer."""
        connection = KeptConnection(self.addresses[node_id])
        path = f"/v1/metadata?topics={quote(','.join(topics), safe=',')}"
        try:
            answer = await connection.request("GET", path, timeout_s=METADATA_TIMEOUT_S)
        except (NotSentError, OutcomeLostError):
            return None
        finally:
            connection.close()
        if answer.status != 200:
            return None
        return [
            Row(
                topic=topic["name"],
                partition=row["partition"],
                leader=row["leader"],
                replicas=tuple(row["replicas"]),
                isr=tuple(row["isr"]),
            )
            for topic in json.loads(answer.body)["topics"]
            for row in topic["partitions"]
        ]

    async def known(self, topics: Sequence[str]) -> list[Row]:
        """The partitions in the metadata of the first node that answers. Raises NotWholeError."""
        for node_id, node in self.processes.nodes.items():
            if node.is_running and not node.is_paused:
                rows = await self.rows(node_id, topics)
                if rows:
                    return rows
        raise NotWholeError(f"no node answered with metadata of {topics}")

    async def wait_in_sync(
        self, topics: Sequence[str], timeout_s: float = IN_SYNC_TIMEOUT_S
    ) -> None:
        """Wait until, for every node, every partition has a leader and a full ISR."""
        deadline = time.perf_counter() + timeout_s
        waiting = list(self.processes.nodes)
        rows: list[Row] | None = None
        while waiting:
            rows = await self.rows(waiting[0], topics)
            if rows and all(row.leader >= 0 and len(row.isr) == NODES for row in rows):
                waiting.pop(0)
                continue
            if time.perf_counter() > deadline:
                lacking = [row for row in rows or () if row.leader < 0 or len(row.isr) < NODES]
                raise NotWholeError(
                    f"node {waiting[0]} after {timeout_s} s: {lacking[:5] if rows else rows}, "
                    f"{len(lacking)} in all\n{self.processes.log_ends()}"
                )
            await asyncio.sleep(POLL_S)

    async def wait_settled(self, topics: Sequence[str]) -> None:
        """Return once the metadata quorum and all replicas are whole."""
        await asyncio.to_thread(self.processes.wait_quiet)
        await self.wait_in_sync(topics)

    async def lead_by(self, node_id: int, topic: str) -> None:
        """Let one node lead all partitions of a topic, for a while."""
        for row in await self.known([topic]):
            if row.leader != node_id:
                path = f"/v1/topics/{topic}/partitions/{row.partition}/leader"
                await self.change("POST", path, {"broker": node_id})

    def rss_mib(self) -> dict[int, float]:
        """Resident memory by node."""
        return {node_id: node.rss_bytes() / MIB for node_id, node in self.processes.nodes.items()}


class Meter:
    """The processor time of the nodes and of this process, from its making on."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before = self._now()

    def used(self) -> dict[str, tuple[float, float]]:
        """Seconds in user and kernel mode: `node1` to `node3`, and `client`."""
        return {
            name: (now[0] - self._before[name][0], now[1] - self._before[name][1])
            for name, now in self._now().items()
        }

    def _now(self) -> dict[str, tuple[float, float]]:
        times = {
            f"node{node_id}": node.cpu_times()
            for node_id, node in self._cluster.processes.nodes.items()
        }
        own = psutil.Process(os.getpid()).cpu_times()
        return {**times, "client": (own.user, own.system)}


@contextmanager
def running_cluster(flush: Flush, places: Iterable[Place] = ()) -> Iterator[Cluster]:
    """Three nodes with empty logs, ended and removed afterwards."""
    with (
        data_directory() as directory,
        ClusterProcesses(directory, NODES, flush=flush, places=tuple(places)) as processes,
    ):
        processes.start()
        processes.wait_quiet()
        yield Cluster(processes)


def run_workload(work: Coroutine[Any, Any, _T], timeout_s: float = WORKLOAD_TIMEOUT_S) -> _T:
    """Run a coroutine on uvloop, as users do, for no longer than `timeout_s`."""

    async def bounded() -> _T:
        async with asyncio.timeout(timeout_s):
            return await work

    return uvloop.run(bounded())


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for their end. Errors stay in the tasks."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
