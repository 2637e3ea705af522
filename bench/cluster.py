"""The cluster of real processes that benches and tests drive.

`LocalCluster` manages the nodes. It belongs to one event loop, which must keep running, while each
workload here has another event loop. So the manager's loop runs in a thread.

This module adds the view from outside. `LocalCluster` restarts a node that dies by itself. For a
bench its death is an error. Methods that manage processes block. Requests are coroutines.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import psutil
import uvloop
from msgspec import field
from msgspec.structs import asdict, replace

from bench.kept_connection import NoAnswerError, request_once
from bench.node import MeasuredNode, data_directory
from raftlog.cluster.local import LocalCluster
from raftlog.cluster.manifest import Flush, Manifest, NodeEntry, host_port
from raftlog.cluster.process import SERVE, NodeProcess
from raftlog.workloads.open_loop import Samples, open_loop

ACTIVE_TIMEOUT_S: Final = 30.0
START_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.02
STATUS_TIMEOUT_S: Final = 1.0
STOP_TIMEOUT_S: Final = 60.0
NODES: Final = 3
PARTITIONS: Final = 16
MIN_ISR: Final = "2"
IN_SYNC_TIMEOUT_S: Final = 120.0
WORKLOAD_TIMEOUT_S: Final = 600.0
"""Longest time of a workload. A longer workload has failed."""
METADATA_TIMEOUT_S: Final = 2.0
CHANGE_TIMEOUT_S: Final = 30.0
MIB: Final = 1 << 20

_T = TypeVar("_T")


class Place(NamedTuple):
    """The place of a node: an address, and a command that ends in becoming the node."""

    host: str
    prefix: tuple[str, ...] = ()


LOOPBACK: Final = Place("127.0.0.1")


class NoLeaderError(Exception):
    """No leader became active in time. `str()` holds the last status of each node."""


class NotWholeError(Exception):
    """The cluster did not reach the expected state in time."""


class Row(NamedTuple):
    """One partition, in one node's metadata."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class _PlacedManifest(Manifest, frozen=True):
    """A manifest with an address for each node."""

    hosts: dict[int, str] = field(default_factory=dict)

    def address(self, entry: NodeEntry) -> str:
        return host_port(self.hosts.get(entry.node_id, self.host), entry.port)

    def kafka_address(self, entry: NodeEntry) -> str | None:
        if entry.kafka_port is None:
            return None
        return host_port(self.hosts.get(entry.node_id, self.host), entry.kafka_port)


class _PlacedCluster(LocalCluster):
    """A local cluster that may run another program, and its first nodes in `places`."""

    def __init__(
        self,
        directory: Path,
        *,
        program: Sequence[str],
        places: Sequence[Place],
        nodes: int,
        flush: Flush,
        arguments: Sequence[str],
        kafka: bool,
    ) -> None:
        super().__init__(
            directory, nodes=nodes, base_port=0, flush=flush, arguments=arguments, kafka=kafka
        )
        self._program = tuple(program)
        self._places = dict(enumerate(places, start=1))

    def launch_node(self, entry: NodeEntry, arguments: Sequence[str]) -> NodeProcess:
        command = [*self._place(entry.node_id).prefix, *self._program, *arguments]
        # Linux schedules sessions as groups (autogroup): on a busy machine, nodes in sessions of
        # their own were measured to answer lone records three times later.
        return NodeProcess.launch(
            [shutil.which(command[0]) or command[0], *command[1:]],
            self.layout.log(entry.node_id),
            new_session=False,
        )

    def new_manifest(self) -> Manifest:
        manifest = super().new_manifest()
        hosts = {entry.node_id: self._place(entry.node_id).host for entry in manifest.nodes}
        placed = _PlacedManifest(**asdict(manifest), hosts=hosts)
        voters = ",".join(f"{entry.node_id}@{placed.address(entry)}" for entry in placed.nodes)
        return replace(placed, voters=voters)

    def _place(self, node_id: int) -> Place:
        return self._places.get(node_id, LOOPBACK)


class ClusterNode(MeasuredNode):
    """A node of a `Cluster`."""

    def __init__(self, cluster: Cluster, entry: NodeEntry) -> None:
        self._cluster = cluster
        self._node_id = entry.node_id
        self.data_dir = cluster.local.layout.data_dir(entry)
        self.is_paused = False
        self._known_pid: int | None = cluster.local.pid(entry.node_id)
        """The process after the last launch; None after a kill or stop."""

    @property
    def address(self) -> str:
        """The address, `host:port`."""
        return self._cluster.local.address(self._node_id)

    @property
    def kafka_address(self) -> str:
        """The address of the Kafka listener. AssertionError: there is none."""
        manifest = self._cluster.local.manifest
        address = manifest.kafka_address(manifest.node(self._node_id))
        assert address is not None, "the cluster was made without Kafka listeners"
        return address

    @property
    def log(self) -> Path:
        """The output of this node's processes since the log was rotated."""
        return self._cluster.local.layout.log(self._node_id)

    @property
    def logs(self) -> list[Path]:
        """The log and its rotated predecessors."""
        return sorted(self.log.parent.glob(f"{self.log.name}*"))

    @property
    def pid(self) -> int:
        """The running process. AssertionError: there is none."""
        pid = self._cluster.local.pid(self._node_id)
        assert pid is not None, "the node is not running"
        return pid

    @property
    def is_running(self) -> bool:
        """Whether the node has a process; a paused one is running."""
        return self._cluster.local.pid(self._node_id) is not None

    @property
    def has_ended(self) -> bool:
        """Whether the process died without a kill or stop through this object."""
        # The manager starts a dead node again, as another process.
        return (
            self._known_pid is not None
            and self._cluster.local.pid(self._node_id) != self._known_pid
        )

    def kill(self) -> None:
        """Kill the process (SIGKILL), if there is one; return once it has ended."""
        self._known_pid = None
        self._cluster.run(self._cluster.local.kill(self._node_id))
        self.is_paused = False

    def stop(self) -> None:
        """Stop the process cleanly (SIGTERM), if there is one."""
        self._known_pid = None
        self._cluster.run(self._cluster.local.stop_node(self._node_id, timeout_s=STOP_TIMEOUT_S))
        self.is_paused = False

    def relaunch(self) -> None:
        """Start the process from its data directory; do not wait until it is ready."""
        self._cluster.call(self._cluster.local.launch, self._node_id)
        self._known_pid = self._cluster.local.pid(self._node_id)

    def pause(self) -> None:
        """Pause the process (SIGSTOP): it keeps its connections and answers nothing."""
        self._cluster.call(self._cluster.local.pause, self._node_id)
        self.is_paused = True

    def resume(self) -> None:
        """Let a paused process go on. Harmless if it is not paused."""
        if self.is_paused:
            self._cluster.call(self._cluster.local.resume, self._node_id)
        self.is_paused = False


class Cluster:
    """`count` voters, numbered from 1, and nodes that joined later. Use it as a context manager.

    The first nodes run in `places`, all others on loopback. `nodes` is filled by `open`.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        flush: Flush = "sync",
        program: Sequence[str] = SERVE,
        arguments: Sequence[str] = (),
        places: Sequence[Place] = (),
        kafka: bool = False,
    ) -> None:
        """`kafka`: with Kafka listeners; an older release, as `program`, has no flag for them."""
        self.local = _PlacedCluster(
            directory,
            program=program,
            places=places,
            nodes=count,
            flush=flush,
            arguments=arguments,
            kafka=kafka,
        )
        self.nodes: dict[int, ClusterNode] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster manager")

    @property
    def servers(self) -> str:
        """The addresses of all nodes, as `bootstrap.servers`."""
        return ",".join(node.address for node in self.nodes.values())

    @property
    def kafka_servers(self) -> str:
        """The Kafka listeners of all nodes, as `bootstrap.servers`."""
        return ",".join(node.kafka_address for node in self.nodes.values())

    @property
    def pids(self) -> list[int]:
        """The running processes."""
        return [node.pid for node in self.nodes.values() if node.is_running]

    @property
    def secret(self) -> str:
        """The secret of the cluster, which its nodes authenticate each other with."""
        return self.local.layout.secret.read_text().strip()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine of the manager in its event loop; wait for the result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call(self, method: Callable[..., _T], *arguments: int) -> _T:
        """Call a plain method of the manager in its event loop; wait for the result."""

        async def called() -> _T:
            return method(*arguments)

        return self.run(called())

    def open(self) -> None:
        """Launch all nodes; do not wait until the cluster serves. Raises ClusterError, OSError."""
        self.run(self.local.open())
        for entry in self.local.manifest.nodes:
            self.nodes[entry.node_id] = ClusterNode(self, entry)

    def start(self) -> int:
        """Launch all nodes; return the leader once the quorum is active and every node is ready.

        Raises ClusterError, NoLeaderError, RuntimeError.
        """
        self.open()
        self.wait_answering()
        leader = self.wait_active()
        for node in self.nodes.values():
            node.wait_ready()
        return leader

    def join(self) -> ClusterNode:
        """Start a new node that joins the others; return it once it is ready."""
        entry = self.call(self.local.add_entry)
        self.call(self.local.launch, entry.node_id)
        node = self.nodes[entry.node_id] = ClusterNode(self, entry)
        node.wait_ready()
        return node

    def kill(self, *node_ids: int) -> None:
        """Kill nodes (SIGKILL), paused ones too; return once they have ended."""
        for node_id in node_ids:
            self.nodes[node_id].kill()

    def pause(self, *node_ids: int) -> None:
        """Pause nodes (SIGSTOP)."""
        for node_id in node_ids:
            self.nodes[node_id].pause()

    def resume(self, *node_ids: int) -> None:
        """Let paused nodes go on."""
        for node_id in node_ids:
            self.nodes[node_id].resume()

    def restart(self, *node_ids: int) -> None:
        """Start killed or stopped nodes from their data directories; do not wait."""
        for node_id in node_ids:
            self.nodes[node_id].relaunch()

    def revive(self, node_id: int) -> None:
        """Start a killed or stopped node and wait until it is ready. Raises RuntimeError."""
        self.nodes[node_id].relaunch()
        self.nodes[node_id].wait_ready()

    def heal(self) -> None:
        """Resume paused nodes and start killed ones. Raises RuntimeError: one ended by itself."""
        self._check_alive()
        for node_id, node in self.nodes.items():
            node.resume()
            if not node.is_running:
                self.restart(node_id)

    def quorum(self, node_id: int) -> dict[str, Any] | None:
        """The quorum as one node sees it (GET /v1/quorum); None: no answer in time."""
        try:
            answer = self.nodes[node_id].request("GET", "/v1/quorum", timeout_s=STATUS_TIMEOUT_S)
        except (OSError, HTTPException, ValueError):
            return None
        assert isinstance(answer, dict)
        return answer

    def leader(self) -> int | None:
        """The node that reports itself as active leader, in the highest term; None if none does.

        Paused nodes are left out: `LocalCluster.controller` would wait for their answers.
        """
        found: tuple[int, int] | None = None
        for node_id, node in self.nodes.items():
            if not node.is_running or node.is_paused:
                continue
            view = self.quorum(node_id)
            if view is not None and view["is_active"] and view["leader_id"] == node_id:
                found = max(found or (0, 0), (view["term"], node_id))
        return None if found is None else found[1]

    def wait_answering(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every running node answers HTTP. Raises RuntimeError: ended, or silent.

        A process still starting on a busy machine is not yet part of the cluster under test.
        """
        deadline = time.perf_counter() + timeout_s
        silent = {node_id for node_id, node in self.nodes.items() if node.is_running}
        while silent:
            silent = {node_id for node_id in silent if not self._answers(node_id)}
            self._check_alive()
            if silent and time.perf_counter() > deadline:
                raise RuntimeError(f"nodes {sorted(silent)} did not answer within {timeout_s} s")
            time.sleep(POLL_S if silent else 0)

    def wait_active(self, timeout_s: float = ACTIVE_TIMEOUT_S) -> int:
        """Wait for an active leader; return it. Raises NoLeaderError; RuntimeError: node ended."""
        deadline = time.perf_counter() + timeout_s
        while time.perf_counter() < deadline:
            leader = self.leader()
            if leader is not None:
                return leader
            self._check_alive()
            time.sleep(POLL_S)
        views = {node_id: self.quorum(node_id) for node_id in self.nodes}
        raise NoLeaderError(f"no leader became active within {timeout_s} s: {views}")

    def wait_quiet(self, timeout_s: float = ACTIVE_TIMEOUT_S) -> int:
        """Wait until every node is connected to the leader without lag; return the leader."""
        deadline = time.perf_counter() + timeout_s
        view: dict[str, Any] | None = None
        while time.perf_counter() < deadline:
            leader = self.wait_active(timeout_s)
            view = self.quorum(leader)
            if view is not None:
                members = [*view["voters"], *view["observers"]]
                others = [member for member in members if member["node_id"] != leader]
                if len(others) + 1 >= len(self.nodes) and all(
                    member["connected"] and member["lag"] == 0 for member in others
                ):
                    return leader
            time.sleep(POLL_S)
        raise NoLeaderError(f"the nodes did not catch up within {timeout_s} s: {view}")

    @property
    def addresses(self) -> dict[int, str]:
        """Address of each node, by node id."""
        return {node_id: node.address for node_id, node in self.nodes.items()}

    async def create_topic(
        self,
        name: str,
        partitions: int = PARTITIONS,
        configs: Mapping[str, str] | None = None,
        *,
        replicas: int = NODES,
    ) -> None:
        """Create a topic, and wait until all replicas are in sync."""
        wanted = {"min.insync.replicas": MIN_ISR, **(configs or {})}
        body = {
            "topic_name": name,
            "partitions_count": partitions,
            "replication_factor": replicas,
            "configs": [{"name": key, "value": value} for key, value in wanted.items()],
        }
        await self.change("POST", "/v3/clusters/-/topics", body)
        await self.wait_in_sync([name], replicas=replicas)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        await self.change("DELETE", f"/v3/clusters/-/topics/{name}")

    async def change(self, method: str, path: str, body: object = None) -> None:
        """One request to the first running node. Raises NotWholeError for any error."""
        address = next(
            node.address for node in self.nodes.values() if node.is_running and not node.is_paused
        )
        data = b"" if body is None else json.dumps(body).encode()
        try:
            answer = await request_once(address, method, path, data, timeout_s=CHANGE_TIMEOUT_S)
        except NoAnswerError as error:
            raise NotWholeError(f"{method} {path}: {error}") from error
        if answer.status >= 400:
            raise NotWholeError(f"{method} {path}: {answer.status} {answer.body.decode()}")

    async def rows(self, node_id: int, topics: Sequence[str]) -> list[Row] | None:
        """The partitions of these topics in one node's metadata; None: no answer."""
        path = f"/v1/metadata?topics={quote(','.join(topics), safe=',')}"
        try:
            answer = await request_once(
                self.addresses[node_id], "GET", path, timeout_s=METADATA_TIMEOUT_S
            )
        except NoAnswerError:
            return None
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
        for node_id, node in self.nodes.items():
            if node.is_running and not node.is_paused:
                rows = await self.rows(node_id, topics)
                if rows:
                    return rows
        raise NotWholeError(f"no node answered with metadata of {topics}")

    async def wait_in_sync(
        self, topics: Sequence[str], timeout_s: float = IN_SYNC_TIMEOUT_S, *, replicas: int = NODES
    ) -> None:
        """Wait until, for every node, every partition has a leader and a full ISR."""
        deadline = time.perf_counter() + timeout_s
        waiting = list(self.nodes)
        rows: list[Row] | None = None
        while waiting:
            rows = await self.rows(waiting[0], topics)
            if rows and all(row.leader >= 0 and len(row.isr) == replicas for row in rows):
                waiting.pop(0)
                continue
            if time.perf_counter() > deadline:
                lacking = [row for row in rows or () if row.leader < 0 or len(row.isr) < replicas]
                raise NotWholeError(
                    f"node {waiting[0]} after {timeout_s} s: {lacking[:5] if rows else rows}, "
                    f"{len(lacking)} in all\n{self.log_ends()}"
                )
            await asyncio.sleep(POLL_S)

    async def wait_settled(self, topics: Sequence[str]) -> None:
        """Return once the metadata quorum and all replicas are whole."""
        await asyncio.to_thread(self.wait_quiet)
        await self.wait_in_sync(topics)

    async def lead_by(self, node_id: int, topic: str) -> None:
        """Let one node lead all partitions of a topic, for a while."""
        for row in await self.known([topic]):
            if row.leader != node_id:
                path = f"/v1/topics/{topic}/partitions/{row.partition}/leader"
                await self.change("POST", path, {"broker": node_id})

    def rss_mib(self) -> dict[int, float]:
        """Resident memory by node."""
        return {node_id: node.rss_bytes() / MIB for node_id, node in self.nodes.items()}

    def log_ends(self) -> str:
        """The last lines of every node's log, for error texts."""
        return "\n".join(
            f"--- node {node_id}: {node.log_end()}" for node_id, node in sorted(self.nodes.items())
        )

    def close(self) -> None:
        """Kill all processes, and end the manager. Data and logs stay."""

        async def end() -> None:
            try:
                await self.local.kill_nodes()
            finally:
                await self.local.release()

        try:
            self.run(end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Cluster:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self, node_id: int) -> bool:
        try:
            self.nodes[node_id].request("GET", "/healthy", timeout_s=STATUS_TIMEOUT_S)
        except (OSError, HTTPException, ValueError):
            return False
        return True

    def _check_alive(self) -> None:
        for node_id, node in self.nodes.items():
            if node.has_ended:
                raise RuntimeError(f"node {node_id} has ended by itself; see {node.log}")


def leads_most(rows: Sequence[Row], randomness: random.Random) -> int:
    """The node that leads most of these partitions, drawn among equals."""
    led = Counter(row.leader for row in rows)
    most = max(led.values())
    return randomness.choice([one for one, count in sorted(led.items()) if count == most])


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

    def percent(self, seconds: float) -> dict[str, float]:
        """Share of a core that each node used in so many seconds, in percent."""
        return {
            name: sum(times) / seconds * 100
            for name, times in self.used().items()
            if name != "client"
        }

    def microseconds_each(self, count: int) -> dict[str, float]:
        """Processor time of each process for one of `count` operations, for the report."""
        return {
            f"{name}, processor µs each": sum(times) / count * 1e6
            for name, times in self.used().items()
        }

    def _now(self) -> dict[str, tuple[float, float]]:
        times = {
            f"node{node_id}": node.cpu_times() for node_id, node in self._cluster.nodes.items()
        }
        own = psutil.Process(os.getpid()).cpu_times()
        return {**times, "client": (own.user, own.system)}


@contextmanager
def running_cluster(
    flush: Flush,
    places: Sequence[Place] = (),
    *,
    program: Sequence[str] = SERVE,
    kafka: bool = False,
) -> Iterator[Cluster]:
    """Three nodes with empty logs, ended and removed afterwards."""
    with (
        data_directory() as directory,
        Cluster(
            directory, NODES, flush=flush, places=places, program=program, kafka=kafka
        ) as cluster,
    ):
        cluster.start()
        cluster.wait_quiet()
        yield cluster


def run_workload(work: Coroutine[Any, Any, _T], timeout_s: float = WORKLOAD_TIMEOUT_S) -> _T:
    """Run a coroutine on uvloop, as users do, for no longer than `timeout_s`."""

    async def bounded() -> _T:
        async with asyncio.timeout(timeout_s):
            return await work

    return uvloop.run(bounded())


async def publish_at(
    cluster: Cluster, topic: str, rate: int, seconds: float, **settings: Any
) -> Samples:
    """Send `rate` records a second on schedule, as `open_loop` with these settings does."""
    # Without a busy wait before each record: three nodes need both cores.
    return await open_loop(
        cluster.servers, topic, rate, seconds, consume=False, spin_s=0.0, **settings
    )


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for their end. Errors stay in the tasks."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
