"""Three nodes of Apache Kafka (KRaft, broker and controller in one process) on loopback."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from raftlog.cluster.process import free_ports

NODES: Final = 3
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
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def servers(self) -> str:
        """As `bootstrap.servers`."""
        return ",".join(f"127.0.0.1:{port}" for port in self._brokers)

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [process.pid for process in self._processes]

    def start(self) -> None:
        """Format the directories and start all nodes. Raises PeerError."""
        self._directory.mkdir(parents=True)
        for number in range(NODES):
            config = self._directory / f"{number}.properties"
            config.write_text(self._properties(number))
            tool = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config))
            done = subprocess.run(
                java(self._classpath, *tool), capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise PeerError(done.stdout + done.stderr)
        for number in range(NODES):
            config = self._directory / f"{number}.properties"
            with self._log(number).open("ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        java(self._classpath, "kafka.Kafka", str(config), heap=HEAP),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                )
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        self._wait(lambda: len(admin.list_topics(timeout=METADATA_TIMEOUT_S).brokers) == NODES)

    def stop(self) -> None:
        """Stop all nodes, and remove their directories."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _wait(self, is_true: Callable[[], bool]) -> None:
        deadline = time.perf_counter() + READY_TIMEOUT_S
        while time.perf_counter() < deadline:
            for number, process in enumerate(self._processes):
                if process.poll() is not None:
                    raise PeerError(f"node {number} ended: {self._log(number).read_text()[-2000:]}")
            try:
                if is_true():
                    return
            except KafkaException:
                pass  # not up yet
            time.sleep(POLL_S)
        raise PeerError(f"Apache Kafka was not ready within {READY_TIMEOUT_S} s")

    def _log(self, number: int) -> Path:
        return self._directory / f"{number}.log"

    def _properties(self, number: int) -> str:
        broker, controller = self._brokers[number], self._controllers[number]
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(self._controllers, 1))
        return f"""
process.roles=broker,controller
node.id={number + 1}
listeners=BROKER://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.voters={voters}
log.dirs={self._directory}/{number}
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


def classpath_of(file: Path) -> str:
    """The classpath in a file, as `mvn dependency:build-classpath` writes it."""
    return file.read_text().strip()
