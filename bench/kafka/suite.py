"""`scripts/bench kafka`: Kafka's clients produce and consume, beside Apache Kafka."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.cluster import NODES, PARTITIONS, Cluster, running_cluster
from bench.kafka.peer import KafkaPeer, java, running_peer
from bench.node import data_directory, output_of
from bench.report import Options, Result, ratio

SIZES: Final = (100, 1000)
COUNTS: Final[Mapping[str, Mapping[int, int]]] = {
    "librdkafka": {100: 5_000_000, 1000: 1_000_000},
    "confluent": {100: 2_000_000, 1000: 500_000},
    "aiokafka": {100: 300_000, 1000: 150_000},
    "java": {100: 3_000_000, 1000: 500_000},
}
"""Records of one run, by client and size: some seconds each."""
WARM_UP_SHARE: Final = 0.5
"""Of a run, before the first: Kafka's JVM compiles while it is used."""
ADMIN_TIMEOUT_S: Final = 60.0
PERFORMANCE: Final = "rdkafka_performance"
"""librdkafka's own performance program (its examples/), if it is installed."""
_MS: Final = re.compile(r"delivered .* in (\d+)ms")
_JAVA_RATE: Final = re.compile(r"([\d.]+) records/sec")


@dataclass(frozen=True)
class System:
    """A running cluster."""

    name: str
    nodes: Cluster | KafkaPeer
    servers: str
    """For Kafka's clients."""


Run = Callable[[System, str, str, int, int], float]
"""Records a second: of a system, a workload, a topic, a size and a count."""


@dataclass(frozen=True)
class Client:
    """One of Kafka's clients."""

    name: str
    goals: Mapping[str, float]
    """raftlog's rate by Kafka's: by workload."""
    run: Run


def measure(workload: str, options: Options) -> list[Result]:
    """Kafka's clients produce, or read what was produced."""
    with systems(options) as measured:
        clients = [one for one in _clients(options) if workload in one.goals]
        results: list[Result] = []
        for client in clients:
            for size in SIZES:
                results += _compare(client, workload, size, measured, options)
    return results


def _compare(
    client: Client, workload: str, size: int, measured: Sequence[System], options: Options
) -> list[Result]:
    """Runs of the systems in turn."""
    count = max(1000, int(COUNTS[client.name][size] * options.scale))
    named = f"{client.name}: {workload} {size} B"
    found = {
        one.name: Result(f"{named}, {one.name}", "records/s", parameters={"records": count})
        for one in measured
    }
    for number in range(-1, options.runs):
        records = int(count * WARM_UP_SHARE) if number < 0 else count
        for system in measured:
            topic = f"{client.name}-{workload}-{size}-{number + 1}"
            create(system, topic)
            if workload == "consume":
                fill(system, topic, size, records)
            rate = client.run(system, workload, topic, size, records)
            if number >= 0:
                found[system.name].runs.append(rate)
            delete(system, topic)
    for result in found.values():
        print(f"{result.name}: {result.median:,.0f} records/s {result.runs}", flush=True)
    if len(measured) == 1:
        return [*found.values()]
    ours, theirs = (found[one.name] for one in measured)
    share = ratio(f"{named}, by Kafka's", ours, theirs, client.goals[workload])
    print(f"{share.name}: {share.median:.2f}", flush=True)
    return [*found.values(), share]


@contextmanager
def systems(options: Options) -> Iterator[list[System]]:
    """raftlog, and Apache Kafka if there is its classpath. All run, one is used at a time."""
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(options.flush, kafka=True))
        found = [System("raftlog", cluster, cluster.kafka_servers)]
        if options.kafka_classpath is not None:
            beside = stack.enter_context(data_directory())
            peer = stack.enter_context(running_peer(beside, options.kafka_classpath))
            found.append(System("Kafka", peer, peer.servers))
        yield found


def _clients(options: Options) -> list[Client]:
    clients = [
        Client("confluent", {"produce": 1.2, "consume": 1.0}, _by_python("confluent")),
        Client("aiokafka", {"produce": 1.2, "consume": 1.0}, _by_python("aiokafka")),
    ]
    if shutil.which(PERFORMANCE):
        clients.insert(0, Client("librdkafka", {"produce": 1.5}, _by_librdkafka))
    else:
        print(f"left out: {PERFORMANCE} is not installed (librdkafka's examples)", flush=True)
    if options.kafka_classpath is not None and shutil.which("java"):
        by_java = _by_java(options.kafka_classpath)
        clients.append(Client("java", {"produce": 1.2, "consume": 1.0}, by_java))
    else:
        print("left out: Kafka's own performance tools (no --kafka-classpath, or no Java)")
    return clients


def _by_python(client: str) -> Run:
    def run(system: System, workload: str, topic: str, size: int, count: int) -> float:
        own = {"size": size} if workload == "produce" else {"partitions": PARTITIONS}
        given = {"servers": system.servers, "topic": topic, "count": count, **own}
        program = ("-m", "bench.kafka.programs", client, workload, json.dumps(given))
        return count / float(json.loads(output_of([sys.executable, *program]))["seconds"])

    return run


def _by_librdkafka(system: System, _workload: str, topic: str, size: int, count: int) -> float:
    command = [PERFORMANCE, "-P", "-t", topic, "-s", str(size), "-c", str(count)]
    command += ["-b", system.servers]
    settings = ("enable.idempotence=true", "acks=all", "queue.buffering.max.messages=500000")
    for setting in settings:
        command += ["-X", setting]
    output = output_of(command)
    match = _MS.findall(output)
    if not match:
        raise RuntimeError(f"{PERFORMANCE}: {output[-2000:]}")
    return count / (int(match[-1]) / 1000)


def _by_java(classpath: str) -> Run:
    """ProducerPerformance and ConsumerPerformance, by the rates that they report."""

    def run(system: System, workload: str, topic: str, size: int, count: int) -> float:
        tool: tuple[str, ...]
        if workload == "produce":
            tool = (
                *("org.apache.kafka.tools.ProducerPerformance", "--topic", topic),
                *("--num-records", str(count), "--record-size", str(size), "--throughput", "-1"),
                *("--producer-props", f"bootstrap.servers={system.servers}", "acks=all"),
            )
            return float(_JAVA_RATE.findall(output_of(java(classpath, *tool)))[-1])
        tool = (
            *("org.apache.kafka.tools.ConsumerPerformance", "--topic", topic),
            *("--num-records", str(count), "--bootstrap-server", system.servers),
            *("--timeout", "60000", "--hide-header"),
        )
        # The last column: records a second while fetching, without the time to join the group.
        return float(output_of(java(classpath, *tool)).strip().splitlines()[-1].split(",")[-1])

    return run


def admin(system: System) -> AdminClient:
    """Kafka's admin client of a system."""
    return AdminClient({"bootstrap.servers": system.servers, "log_level": 0})


def create(system: System, topic: str) -> None:
    """Create a topic of three replicas."""
    wanted = NewTopic(topic, PARTITIONS, NODES, config={"min.insync.replicas": "2"})
    client = admin(system)  # its end would fail the request
    client.create_topics([wanted])[topic].result(ADMIN_TIMEOUT_S)


def delete(system: System, topic: str) -> None:
    """Delete a topic."""
    client = admin(system)
    client.delete_topics([topic])[topic].result(ADMIN_TIMEOUT_S)


def fill(system: System, topic: str, size: int, count: int) -> None:
    """Write `count` records and one more, by librdkafka."""
    _by_python("confluent")(system, "produce", topic, size, count)
