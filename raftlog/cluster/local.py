"""`LocalCluster`: a cluster of processes on this machine, managed by this object.

```
async with LocalCluster(directory, nodes=3, base_port=0) as cluster:   # starts it, waits
    ... cluster.servers ...
    await cluster.kill(2)             # SIGKILL; stays down until
    await cluster.start_node(2)
```
Its exit stops the nodes in order. The directory stays, and starts the same cluster again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from raftlog.api.manager import ClusterStatus, NodeStatus
from raftlog.cluster import manifest as manifests
from raftlog.cluster.errors import ClusterError
from raftlog.cluster.layout import LOG_BYTES_MAX, Layout, ManagerLock, rotate, tail
from raftlog.cluster.manifest import Flush, Manifest, NodeEntry, Plan
from raftlog.cluster.membership import Probes
from raftlog.cluster.process import (
    SERVE,
    NodeProcess,
    ProcessRecord,
    consecutive,
    free_ports,
    is_alive,
    load_records,
    next_port,
    require_free,
    save_records,
)
from raftlog.cluster.supervisor import STOP_TIMEOUT_S, Supervisor

logger = logging.getLogger(__name__)

READY_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.05
ROTATE_EVERY_S: Final = 5.0
LOG_LINES_SHOWN: Final = 8
_LOOK: Final = "`raftlog cluster status --dir {}` shows the nodes, and their logs say why."


class LocalCluster:
    """The cluster in one directory. Belongs to one event loop."""

    def __init__(
        self,
        directory: str | Path,
        *,
        nodes: int | None = None,
        base_port: int | None = None,
        host: str | None = None,
        flush: Flush | None = None,
        arguments: Sequence[str] | None = None,
        kafka: bool | None = None,
        kafka_base_port: int | None = None,
        tell: Callable[[str], None] = logger.info,
    ) -> None:
        """Starts nothing yet. None means unchanged, or the default, see `Plan`.

        Every node's `raftlog serve` gets `arguments`. `tell` is called with each event.
        """
        self.layout = Layout.at(directory)
        self.plan = Plan(
            nodes=nodes,
            base_port=base_port,
            host=host,
            flush=flush,
            arguments=None if arguments is None else tuple(arguments),
            kafka=kafka,
            kafka_base_port=kafka_base_port,
        )
        self.tell = tell
        self._manifest: Manifest | None = None
        self._lock: ManagerLock | None = None
        self._probes: Probes | None = None
        self._supervisors: dict[int, Supervisor] = {}
        self._rotating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # Reads

    @property
    def manifest(self) -> Manifest:
        """The cluster's nodes and settings."""
        assert self._manifest is not None, "the cluster has not been opened"
        return self._manifest

    @property
    def probes(self) -> Probes:
        """Probes that request state from the nodes."""
        assert self._probes is not None, "the cluster has not been opened"
        return self._probes

    @property
    def node_ids(self) -> tuple[int, ...]:
        """The nodes, running or not."""
        return tuple(entry.node_id for entry in self.manifest.nodes)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the nodes, `host:port` each."""
        return self.manifest.addresses

    @property
    def servers(self) -> str:
        """The addresses in the form of `bootstrap_servers` and RAFTLOG_SERVERS."""
        return ",".join(self.addresses)

    def address(self, node_id: int) -> str:
        """Address of a node. Raises ClusterError."""
        return self.manifest.address(self.manifest.node(node_id))

    def pid(self, node_id: int) -> int | None:
        """A node's process, or None without a process. Raises ClusterError."""
        process = self._supervisor(node_id).process
        return None if process is None else process.pid

    async def controller(self) -> int | None:
        """The active controller, if there is one."""
        return await self.probes.controller(*self.addresses)

    async def status(self) -> ClusterStatus:
        """Every node, with its readiness."""
        entries = self.manifest.nodes
        reasons = await asyncio.gather(
            *(self.probes.why_not_ready(self.manifest.address(entry)) for entry in entries)
        )
        return ClusterStatus(
            directory=str(self.layout.root),
            manager_pid=os.getpid(),
            flush=self.manifest.flush,
            servers=self.servers,
            controller_id=await self.controller(),
            nodes=tuple(map(self._node_status, entries, reasons)),
        )

    # Start and stop

    async def start(self, timeout_s: float = READY_TIMEOUT_S) -> list[int]:
        """Open, and wait until the cluster serves, see `wait_ready`. On failure all is stopped."""
        try:
            await self.open()
            return await self.wait_ready(timeout_s=timeout_s)
        except BaseException:
            await self.stop()
            raise

    async def open(self) -> None:
        """Become the manager. Start the processes, or adopt running processes.

        Raises AlreadyManagedError, ClusterError, OSError.
        """
        self.plan.check()
        layout = self.layout
        layout.prepare()
        self._lock = ManagerLock(layout)
        self._probes = Probes()
        known = layout.load_manifest()
        manifest = self.new_manifest() if known is None else self._revised(known)
        alive = self._left_behind(manifest)
        to_start = [e for e in manifest.nodes if not e.stopped and e.node_id not in alive]
        # The check comes before any start or stop, as serving processes must not suffer for
        # another's port.
        require_free(
            manifest.host,
            (entry.port for entry in to_start),
            "Stop what listens there, or choose other ports with --base-port."
            if known is None
            else f"Stop what listens there (`ss -ltnp`); {layout.manifest} names the nodes' ports.",
        )
        require_free(
            manifest.host,
            (entry.kafka_port for entry in to_start if entry.kafka_port is not None),
            f"Stop what listens there (`ss -ltnp`); {layout.manifest} names the nodes' ports."
            if known is not None and known.kafka_ports
            else "Stop what listens there, or choose other ports with --kafka-base-port, or none "
            "with --no-kafka.",
        )
        layout.ensure_secret()
        if manifest != known:
            layout.save_manifest(manifest)
        self._manifest = manifest
        for entry in manifest.nodes:
            self._supervise(entry)
        for node_id, record in alive.items():
            # Until its next start a node keeps its settings.
            process = NodeProcess.adopt(record)
            if process is not None:
                self.tell(f"node {node_id} runs already, as process {process.pid}")
            self._supervisors[node_id].start(process)
        for entry in to_start:
            self._supervisors[entry.node_id].start()
        self._rotating = asyncio.create_task(self._rotate())

    async def wait_ready(self, *node_ids: int, timeout_s: float = READY_TIMEOUT_S) -> list[int]:
        """Wait until a controller is active and these nodes are ready.

        The default is all nodes that are not stopped. Without `node_ids`, returns the nodes not
        ready in time if the cluster serves without these, and reports each. Raises ClusterError
        otherwise.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            wanted = node_ids or tuple(e.node_id for e in self.manifest.nodes if not e.stopped)
            reasons = await self._not_ready(wanted)
            controller = await self.controller()
            if not reasons and controller is not None:
                return []
            # Nodes that keep dying do not become ready by waiting.
            hopeless = all(self._supervisor(node_id).is_failing for node_id in reasons)
            if loop.time() >= deadline_s or (reasons and hopeless):
                break
            await asyncio.sleep(POLL_S)
        if controller is not None and not node_ids and len(reasons) < len(wanted):
            for node_id, reason in sorted(reasons.items()):
                self.tell(f"node {node_id} is not ready: {self._why(node_id, reason)}")
            return sorted(reasons)
        missing = "; ".join(f"node {n}: {self._why(n, why)}" for n, why in sorted(reasons.items()))
        raise ClusterError(
            f"the cluster is not ready: {missing or 'it has no active controller'}",
            _LOOK.format(self.layout.root),
        )

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop all nodes in sequence, the controller last, and manage no more."""
        try:
            await self.stop_nodes(timeout_s)
        finally:
            await self.release()

    async def stop_nodes(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop all nodes in sequence, the controller last."""
        for node_id in await self._stop_order():
            supervisor = self._supervisors[node_id]
            if supervisor.process is not None:
                self.tell(f"stopping node {node_id}")
            await supervisor.stop(timeout_s)

    async def kill_nodes(self) -> None:
        """End all nodes at once."""
        await asyncio.gather(*(each.kill() for each in list(self._supervisors.values())))

    async def release(self) -> None:
        """Release the lock. Running nodes are left to the next manager."""
        if self._rotating is not None:
            self._rotating.cancel()
            await asyncio.gather(self._rotating, return_exceptions=True)
            self._rotating = None
        for supervisor in self._supervisors.values():
            await supervisor.let_go()
        self._supervisors.clear()
        if self._probes is not None:
            await self._probes.close()
            self._probes = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # One node

    async def start_node(self, node_id: int, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start a stopped or killed node. Wait until ready. Raises ClusterError."""
        self.launch(node_id)
        await self.wait_ready(node_id, timeout_s=timeout_s)

    def launch(self, node_id: int) -> None:
        """Start a stopped or killed node, without waiting. Raises ClusterError, OSError."""
        supervisor = self._supervisor(node_id)
        if supervisor.process is None:
            entry = self.manifest.node(node_id)
            hint = "Stop what listens there (`ss -ltnp`)."
            ports = [entry.port] if entry.kafka_port is None else [entry.port, entry.kafka_port]
            require_free(self.manifest.host, ports, hint)
        self._note_stopped(node_id, stopped=False)
        supervisor.start()

    async def stop_node(self, node_id: int, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop a node cleanly, until `start_node`. Raises ClusterError."""
        supervisor = self._supervisor(node_id)
        self._note_stopped(node_id, stopped=True)
        await supervisor.stop(timeout_s)

    async def restart(self, node_id: int, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Stop a node cleanly, start the node again, wait until ready. Raises ClusterError."""
        await self._supervisor(node_id).stop()
        await self.start_node(node_id, timeout_s=timeout_s)

    async def kill(
        self, node_id: int, number: signal.Signals = signal.SIGKILL, *, stays_down: bool = True
    ) -> None:
        """Send a node's process a signal. Raises ClusterError.

        With `stays_down` and SIGKILL, return after its end. The node is down until `launch` or
        `start_node`. Otherwise the node is started again at once, as after any death.
        """
        supervisor = self._supervisor(node_id)
        if number is signal.SIGKILL and stays_down:
            await supervisor.kill()
        else:
            supervisor.signal(number)

    def pause(self, node_id: int) -> None:
        """Pause a node. Its connections stay open, without any response."""
        self._supervisor(node_id).signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        """Resume a paused node. Harmless for others."""
        self._supervisor(node_id).signal(signal.SIGCONT)

    def reconfigure(self, plan: Plan) -> None:
        """Give each node the settings of the plan, from its next start on. Raises ClusterError."""
        plan.check()
        manifest = manifests.revised(self.manifest, plan)
        if manifest != self.manifest:
            self._save(manifest)

    # Membership

    def add_entry(self) -> NodeEntry:
        """Add a new node to the manifest. Its process is not started yet. Raises ClusterError."""
        known = self.manifest
        port = next_port(known.host, known.ports, avoid=known.kafka_ports)
        kafka_port = (
            next_port(known.host, known.kafka_ports, avoid=(*known.ports, port))
            if known.kafka_ports
            else None
        )
        manifest, entry = manifests.with_new_node(known, port, kafka_port)
        self._save(manifest)
        self._supervise(entry)
        return entry

    async def drop_entry(self, node_id: int) -> Path | None:
        """Drop a node from the manifest. Return the new path of its data directory, if any.

        Stops its process. Raises ClusterError, OSError.
        """
        entry = self.manifest.node(node_id)
        manifest = manifests.without_node(self.manifest, node_id)
        await self._supervisor(node_id).stop()
        self._save(manifest)
        del self._supervisors[node_id]
        self._save_processes()
        return self.layout.put_aside(entry)

    async def empty_directory(self, node_id: int) -> Path | None:
        """Stop a node and move its data directory away. Return the new path, if any.

        Its next start takes the place of the lost node. Raises ClusterError, OSError.
        """
        await self.stop_node(node_id)
        self._save(manifests.with_replaced(self.manifest, node_id))
        return self.layout.put_aside(self.manifest.node(node_id))

    # For subclasses, which may run the nodes elsewhere

    def launch_node(self, entry: NodeEntry, arguments: Sequence[str]) -> NodeProcess:
        """Start a node's process. `arguments` are for `raftlog serve`. Raises OSError."""
        return NodeProcess.launch([*SERVE, *arguments], self.layout.log(entry.node_id))

    def new_manifest(self) -> Manifest:
        """The manifest of a new cluster. Raises ClusterError."""
        plan = self.plan
        host = plan.host or manifests.HOST_DEFAULT
        count = plan.nodes or manifests.NODES_DEFAULT
        base_port = manifests.BASE_PORT_DEFAULT if plan.base_port is None else plan.base_port
        chosen = consecutive(base_port, count) if base_port else free_ports(host, count)
        kafka_ports = [] if plan.kafka is False else self._new_kafka_ports(host, chosen)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return manifests.new_manifest(plan, chosen, created, kafka_ports)

    # Inside

    def _revised(self, known: Manifest) -> Manifest:
        manifest = manifests.revised(known, self.plan)
        if not manifests.needs_kafka_ports(manifest, self.plan):
            return manifest
        return manifests.with_kafka(manifest, self._new_kafka_ports(known.host, known.ports))

    def _new_kafka_ports(self, host: str, ports: Sequence[int]) -> list[int]:
        """A Kafka port for each node, beside its HTTP port. Raises ClusterError."""
        base_port = self.plan.kafka_base_port
        if base_port is None:
            is_any_free = self.plan.base_port == 0
            base_port = 0 if is_any_free else manifests.default_kafka_base_port(min(ports))
        if not base_port:
            return free_ports(host, len(ports), avoid=ports)
        chosen = consecutive(base_port, len(ports))
        common = sorted(set(chosen) & set(ports))
        if common:
            raise ClusterError(
                f"port {common[0]} cannot be a node's HTTP port and a Kafka port",
                "Choose other ports with --base-port or --kafka-base-port.",
            )
        return chosen

    def _left_behind(self, manifest: Manifest) -> dict[int, ProcessRecord]:
        """Processes left behind by a killed manager, serving ever since."""
        records = load_records(self.layout.processes)
        return {
            entry.node_id: records[entry.node_id]
            for entry in manifest.nodes
            if entry.node_id in records and is_alive(records[entry.node_id])
        }

    def _supervise(self, entry: NodeEntry) -> None:
        log = self.layout.log(entry.node_id)

        def launch() -> NodeProcess:
            layout = self.layout
            arguments = manifests.serve_arguments(
                self.manifest,
                self.manifest.node(entry.node_id),
                str(layout.data_dir(entry)),
                str(layout.secret),
                has_begun=layout.has_begun(entry),
            )
            return self.launch_node(entry, arguments)

        self._supervisors[entry.node_id] = Supervisor(
            entry.node_id,
            launch,
            log_tail=lambda lines: tail(log, lines),
            tell=self.tell,
            changed=self._save_processes,
        )

    def _supervisor(self, node_id: int) -> Supervisor:
        self.manifest.node(node_id)
        return self._supervisors[node_id]

    def _save(self, manifest: Manifest) -> None:
        self.layout.save_manifest(manifest)
        self._manifest = manifest

    def _note_stopped(self, node_id: int, *, stopped: bool) -> None:
        manifest = manifests.with_stopped(self.manifest, node_id, stopped=stopped)
        if manifest != self.manifest:
            self._save(manifest)

    def _save_processes(self) -> None:
        pids = {
            node_id: supervisor.process.pid
            for node_id, supervisor in self._supervisors.items()
            if supervisor.process is not None
        }
        try:
            save_records(self.layout.processes, pids)
        except OSError as error:
            # The file is needed only if this process is killed. Then taken ports reveal running
            # nodes.
            self.tell(f"{self.layout.processes} cannot be written: {error}")

    async def _not_ready(self, node_ids: Iterable[int]) -> dict[int, str]:
        asked = list(node_ids)
        answers = await asyncio.gather(
            *(self.probes.why_not_ready(self.address(node_id)) for node_id in asked)
        )
        return {n: why for n, why in zip(asked, answers, strict=True) if why is not None}

    def _why(self, node_id: int, reason: str) -> str:
        supervisor = self._supervisor(node_id)
        if supervisor.process is not None:
            return reason
        lines = tail(self.layout.log(node_id), LOG_LINES_SHOWN)
        ended = f"it {supervisor.last_end}" if supervisor.last_end else "it does not run"
        return "\n    ".join([f"{ended}; the end of its log:", *lines] if lines else [ended])

    async def _stop_order(self) -> list[int]:
        """The controller is last, since every other order elects its successor in between."""
        running = [n for n, supervisor in self._supervisors.items() if supervisor.process]
        controller = await self.controller() if running and self._manifest is not None else None
        return sorted(self._supervisors, key=lambda node_id: (node_id == controller, node_id))

    def _node_status(self, entry: NodeEntry, reason: str | None) -> NodeStatus:
        supervisor = self._supervisors[entry.node_id]
        process = supervisor.process
        return NodeStatus(
            node_id=entry.node_id,
            address=self.manifest.address(entry),
            kafka=self.manifest.kafka_address(entry),
            pid=None if process is None else process.pid,
            state=supervisor.state,
            ready=reason is None,
            why=reason,
            restarts=supervisor.restarts,
            last_end=None if supervisor.last_end is None else str(supervisor.last_end),
            log=str(self.layout.log(entry.node_id)),
        )

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(ROTATE_EVERY_S)
            logs = [self.layout.log(node_id) for node_id in sorted(self._supervisors)]
            for path in (*logs, self.layout.manager_log):
                try:
                    await asyncio.to_thread(rotate, path, LOG_BYTES_MAX)
                except OSError as error:
                    self.tell(f"{path} cannot be rotated: {error}")
