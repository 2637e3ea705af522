"""Clusters of real processes for synchronous benches and tests: `LocalCluster` in a thread.

`raftlog.cluster` starts, signals and stops the nodes, and gives them ports, data directories, logs
and the secret. `LocalCluster` belongs to one event loop, which must keep running, while each
workload here has an event loop of its own: so the manager's loop runs in a thread.

This module adds the view from outside: the leader, when the quorum is whole again, and whether a
node died by itself. `LocalCluster` starts such a node again; for a bench its death is an error.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Coroutine, Sequence
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import field
from msgspec.structs import asdict, replace

from bench.node import MeasuredNode
from raftlog.cluster.local import LocalCluster
from raftlog.cluster.manifest import Flush, Manifest, NodeEntry, host_port
from raftlog.cluster.process import SERVE, NodeProcess

ACTIVE_TIMEOUT_S: Final = 30.0
START_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.02
STATUS_TIMEOUT_S: Final = 1.0
STOP_TIMEOUT_S: Final = 60.0

_T = TypeVar("_T")


class Place(NamedTuple):
    """The place of a node: an address, and a command that ends in becoming the node."""

    host: str
    prefix: tuple[str, ...] = ()


LOOPBACK: Final = Place("127.0.0.1")


class NoLeaderError(Exception):
    """No leader became active in time. `str()` holds the last status of each node."""


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
    """A node of a `ClusterProcesses`."""

    def __init__(self, cluster: ClusterProcesses, entry: NodeEntry) -> None:
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

        async def launch() -> int | None:
            self._cluster.local.launch(self._node_id)
            return self._cluster.local.pid(self._node_id)

        self._known_pid = self._cluster.run(launch())

    def pause(self) -> None:
        """Pause the process (SIGSTOP): it keeps its connections and answers nothing."""

        async def pause() -> None:
            self._cluster.local.pause(self._node_id)

        self._cluster.run(pause())
        self.is_paused = True

    def resume(self) -> None:
        """Let a paused process go on. Harmless if it is not paused."""

        async def resume() -> None:
            self._cluster.local.resume(self._node_id)

        if self.is_paused:
            self._cluster.run(resume())
        self.is_paused = False


class ClusterProcesses:
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

        async def add() -> NodeEntry:
            entry = self.local.add_entry()
            self.local.launch(entry.node_id)
            return entry

        entry = self.run(add())
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

    def __enter__(self) -> ClusterProcesses:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
