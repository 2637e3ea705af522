"""Three nodes of Apache Kafka (KRaft, broker and controller in one process) on loopback."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench.node import output_of
from raftlog.cluster.process import free_ports

NODES: Final = 3
NODE_IDS: Final = range(1, NODES + 1)
HEAP: Final = "1G"
"""Kafka's default."""
CLUSTER_ID: Final = "bXktY2x1c3Rlci1pZC0wMQ"
READY_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.05
METADATA_TIMEOUT_S: Final = 2.0
_COLLECTOR: Final = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
)
"""As Kafka's own start script has them."""


class PeerError(Exception):
    """Apache Kafka did not start."""


def java(classpath: str, *arguments: str, heap: str = "512M") -> list[str]:
    """The command of a Java program on a classpath."""
    memory = (f"-Xms{heap}", f"-Xmx{heap}")
    return ["java", "-server", *memory, *_COLLECTOR, "-cp", classpath, *arguments]


class KafkaPeer:
    """The three nodes. `servers` are their addresses, for clients."""

    def __init__(self, directory: Path, classpath: str) -> None:
        self._directory = directory
        self._classpath = classpath
        ports = free_ports("127.0.0.1", 2 * NODES)
        self._brokers, self._controllers = ports[:NODES], ports[NODES:]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        """Running processes, by node id."""

    @property
    def servers(self) -> str:
        """As `bootstrap.servers`."""
        return ",".join(f"127.0.0.1:{port}" for port in self._brokers)

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [process.pid for process in self._processes.values()]

    def start(self) -> None:
        """Format the directories and start all nodes. Raises PeerError, RuntimeError."""
        self._directory.mkdir(parents=True)
        for node_id in NODE_IDS:
            config = self._config(node_id)
            config.write_text(self._properties(node_id))
            tool = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config))
            output_of(java(self._classpath, *tool))
        for node_id in NODE_IDS:
            self.revive(node_id)
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        deadline = time.perf_counter() + READY_TIMEOUT_S
        while not self._has_all_brokers(admin):
            for node_id, process in self._processes.items():
                if process.poll() is not None:
                    output = self._log(node_id).read_text()
                    raise PeerError(f"node {node_id} ended: {output[-2000:]}")
            if time.perf_counter() > deadline:
                raise PeerError(f"Apache Kafka was not ready within {READY_TIMEOUT_S} s")
            time.sleep(POLL_S)

    def kill(self, node_id: int) -> None:
        """Kill a node (SIGKILL) and return once it has ended."""
        process = self._processes.pop(node_id)
        process.kill()
        process.wait()

    def revive(self, node_id: int) -> None:
        """Start a node from its directory. Do not wait until it is ready."""
        with self._log(node_id).open("ab") as log:
            self._processes[node_id] = subprocess.Popen(
                java(self._classpath, "kafka.Kafka", str(self._config(node_id)), heap=HEAP),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        """Stop all nodes, and remove their directories."""
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _has_all_brokers(self, admin: AdminClient) -> bool:
        try:
            return len(admin.list_topics(timeout=METADATA_TIMEOUT_S).brokers) == NODES
        except KafkaException:
            return False  # not up yet

    def _config(self, node_id: int) -> Path:
        return self._directory / f"{node_id}.properties"

    def _log(self, node_id: int) -> Path:
        return self._directory / f"{node_id}.log"

    def _properties(self, node_id: int) -> str:
        broker, controller = self._brokers[node_id - 1], self._controllers[node_id - 1]
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(self._controllers, 1))
        return f"""
process.roles=broker,controller
node.id={node_id}
listeners=BROKER://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.voters={voters}
log.dirs={self._directory}/{node_id}
default.replication.factor={NODES}
min.insync.replicas=2
offsets.topic.replication.factor={NODES}
transaction.state.log.replication.factor={NODES}
transaction.state.log.min.isr=2
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
"""


@contextmanager
def running_peer(directory: Path, classpath: str) -> Iterator[KafkaPeer]:
    """A running cluster, stopped and removed afterwards. Raises PeerError."""
    peer = KafkaPeer(directory, classpath)
    try:
        peer.start()
        yield peer
    finally:
        peer.stop()
