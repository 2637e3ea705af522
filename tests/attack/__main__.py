"""`scripts/attack`: see the package."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

import click
import msgspec
import psutil
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from bench.cluster import Cluster, ClusterNode
from bench.node import MeasuredNode, data_directory
from tests.attack.attacker import ATTACKERS, READY
from tests.attack.attacks import ATTACKS, CALM, SECRET_VARIABLE
from tests.attack.inputs import PARTITIONS, TOPIC
from tests.attack.kafka_decoders import Outcome
from tests.attack.kafka_decoders import run as run_decoders
from tests.attack.verdict import (
    LOOP_HELD_S_MAX,
    Observed,
    Work,
    findings,
    may_be_the_machine,
    parse,
)

CALM_SHARE: Final = 0.15
"""Of the time, for the calm before the attacks: the measure of the other clients."""
SETTLE_S: Final = 1.0
"""After an attack, before the next: its connections close."""
SAMPLE_S: Final = 0.1
VICTIMS_TOPIC: Final = "others"
_HOLDS: Final = "raftlog_event_loop_hold_seconds"
AGAIN_S_MIN: Final = 15.0
"""Least length of a repeated attack: a stall of 100 ms of the machine delays less than 1 % of the
other clients' operations."""
PREPARED_S_MAX: Final = 300.0
"""For the inputs of an attack. Its process is nice, and the machine may be busy."""
ENDED_S_MAX: Final = 30.0
"""Seconds for the end of an attack after its time. A busy machine closes thousands of connections
in seconds."""


TRACEBACK: Final = "Traceback (most recent call last)"
TRACEBACKS_SHOWN: Final = 3
TRACEBACK_LINES: Final = 60
BYTES_HELD: Final = "raftlog_http_bytes_in_flight"
BYTES_HELD_MAX: Final = 4_096
"""Bytes in flight of the other clients' requests; those of an attack are more, or none."""
LEFT_S_MAX: Final = 75.0
"""Until the attackers hold nothing more: most ends at once, a deletion of 10,000 groups in 60 s."""


def _metrics_page(node: MeasuredNode) -> str:
    with urllib.request.urlopen(f"http://{node.address}/metrics", timeout=30) as answer:
        page: bytes = answer.read()
    return page.decode()


def _tracebacks(node: ClusterNode) -> list[str]:
    """The first tracebacks in a node's log, with the lines before and after each."""
    found: list[str] = []
    lines = [line for log in node.logs for line in log.read_text().splitlines()]
    for number, line in enumerate(lines):
        if TRACEBACK in line and len(found) < TRACEBACKS_SHOWN:
            found.append("\n".join(lines[max(number - 1, 0) : number + TRACEBACK_LINES]))
    return found


def _connections_of_attackers(node: ClusterNode) -> int:
    """Connections that the node has not closed."""
    # Not by psutil: pysyncobj, which the node's modules import, breaks `socket.inet_ntop`.
    ports = {node.port, int(node.kafka_address.rpartition(":")[2])}
    remote = {socket.inet_aton(one)[::-1].hex().upper() for one in ATTACKERS}
    count = 0
    for line in Path(f"/proc/{node.pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        is_ours = int(fields[1].rpartition(":")[2], 16) in ports and int(fields[9])
        count += bool(is_ours and fields[2].partition(":")[0] in remote)
    return count


class Observer:
    """Watches the nodes of a cluster, in a thread of its own."""

    def __init__(self, cluster: Cluster, slack: float) -> None:
        self._cluster = cluster
        self._held_s_max = LOOP_HELD_S_MAX * slack
        self._processes = {
            node_id: psutil.Process(node.pid) for node_id, node in cluster.nodes.items()
        }
        self._rss_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            for process in self._processes.values():
                try:
                    self._rss_bytes = max(self._rss_bytes, process.memory_info().rss)
                except psutil.NoSuchProcess:
                    return

    def take_rss(self) -> int:
        """The largest memory of a node since the last call."""
        found, self._rss_bytes = self._rss_bytes, 0
        return found

    def ended(self) -> list[int]:
        """Nodes without their first process."""
        return [node_id for node_id, one in self._processes.items() if not one.is_running()]

    def metrics(self) -> dict[str, float]:
        """The counters of interest, summed over the nodes; the term is the newest."""
        found = {"internal": 0.0, "term": 0.0, "holds": 0.0}
        for node in self._cluster.nodes.values():
            found["internal"] += sum(one.read_text().count(TRACEBACK) for one in node.logs)
            for family in text_string_to_metric_families(_metrics_page(node)):
                if family.name == _HOLDS:
                    found["holds"] += self._holds(family.samples)
                for sample in family.samples:
                    if sample.name == "raftlog_http_requests_total":
                        found["internal"] += sample.value * (sample.labels["status"] == "500")
                    elif sample.name == "raftlog_quorum_term":
                        found["term"] = max(found["term"], sample.value)
        return found

    def leftovers(self) -> list[str]:
        """What the attackers still hold of a node a while after the attack; empty: nothing."""
        deadline = time.monotonic() + LEFT_S_MAX
        while (found := list(self._left())) and time.monotonic() < deadline:
            time.sleep(SAMPLE_S)
        return found

    def _left(self) -> Iterator[str]:
        for node_id, node in self._cluster.nodes.items():
            for family in text_string_to_metric_families(_metrics_page(node)):
                for sample in family.samples:
                    if sample.name == BYTES_HELD and sample.value > BYTES_HELD_MAX:
                        yield f"{sample.value:.0f} bytes in flight at node {node_id}"
            count = _connections_of_attackers(node)
            if count:
                yield f"{count} connections at node {node_id}"

    def _holds(self, samples: Iterable[Sample]) -> float:
        """Holds over the bound, by the narrowest bucket that contains the bound."""
        buckets = {
            float(sample.labels["le"]): sample.value
            for sample in samples
            if sample.name.endswith("_bucket")
        }
        within = min(bound for bound in buckets if bound >= self._held_s_max)
        return buckets[math.inf] - buckets[within]


class Phases:
    """Runs phases of a length, each observed."""

    def __init__(self, observer: Observer, operations: Path, node: ClusterNode, seed: int) -> None:
        self._observer = observer
        self._operations = operations
        self._node = node
        self._seed = seed

    def run(self, name: str, seconds: float) -> Observed:
        """Run an attack for so long, once it is ready; return the observations."""
        kind = ATTACKS[name]
        target = self._node.kafka_address if kind.is_kafka else self._node.address
        command = [sys.executable, "-m", "tests.attack.attacks", name, target, str(seconds)]
        with subprocess.Popen(
            [*command, str(self._seed)], stdout=subprocess.PIPE, text=True
        ) as one:
            try:
                self._wait_ready(name, one)
                before = self._observer.metrics()
                self._observer.take_rss()
                begun = time.monotonic()
                ended = begun + seconds
                time.sleep(seconds)
                work = _summary(one)
            finally:
                one.kill()
        leftovers = self._observer.leftovers()
        after = self._observer.metrics()
        with self._operations.open() as lines:
            done = [one for one in parse(lines) if begun <= one.due <= ended]
        return Observed(
            name,
            done,
            self._observer.take_rss(),
            seconds,
            int(after["holds"] - before["holds"]),
            int(after["internal"] - before["internal"]),
            self._observer.ended(),
            int(after["term"] - before["term"]),
            work,
            kind.least,
            leftovers,
        )

    def _wait_ready(self, name: str, process: subprocess.Popen[str]) -> None:
        """Wait until the hostile program has its inputs. Raises RuntimeError."""
        assert process.stdout is not None
        late = threading.Timer(PREPARED_S_MAX, process.kill)
        late.start()
        try:
            if process.stdout.readline().strip() != READY:
                raise RuntimeError(f"the attack {name} did not begin")
        finally:
            late.cancel()


def _summary(process: subprocess.Popen[str]) -> Work | None:
    """The summary at the end of a hostile program; None without one in time."""
    try:
        output, _ = process.communicate(timeout=ENDED_S_MAX)
        return msgspec.json.decode(output, type=Work)
    except (subprocess.TimeoutExpired, msgspec.DecodeError):
        return None


@contextmanager
def _victims(servers: str, kafka: str, output: Path) -> Iterator[None]:
    with output.open("wb") as file:
        command = [sys.executable, "-m", "tests.attack.victims", servers, kafka, VICTIMS_TOPIC]
        process = subprocess.Popen(command, stdout=file)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _row(observed: Observed, note: str) -> str:
    return (
        f"{observed.name:18} {len(observed.operations):7} {len(observed.failures):7} "
        f"{observed.p99_s * 1000:8.1f} {observed.loop_holds:6} "
        f"{observed.rss_bytes >> 20:6}  {note}"
    )


HOSTILE: Final = tuple(name for name in ATTACKS if name != CALM)
DECODERS: Final = "kafka-decoders"
"""The attack that needs no cluster: see `kafka_decoders`."""
PROGRESS_S: Final = 10.0


def _recreate(node: MeasuredNode) -> None:
    """Make the attacked topic again: an attack may have filled, changed or deleted it."""
    with suppress(HTTPError):
        node.delete_topic(TOPIC)
    node.create_topic(TOPIC, len(PARTITIONS))


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="Length of all attacks together.")
@click.option(
    "--only", multiple=True, type=click.Choice((DECODERS, *HOSTILE)), help="Only these attacks."
)
@click.option(
    "--inputs",
    default=500_000,
    show_default=True,
    help=f"Mutated requests of {DECODERS}. 0: the other attacks only.",
)
@click.option("--nodes", default=3, show_default=True, help="Size of the cluster.")
@click.option("--seed", default=1, show_default=True, help="Of the random inputs.")
@click.option(
    "--slack",
    default=1.0,
    show_default=True,
    help="Bounds of time are so many times as wide, and the least work of an attack is divided by "
    "so much. This is for a machine that has other work to do.",
)
def main(
    *, minutes: float, only: tuple[str, ...], inputs: int, nodes: int, seed: int, slack: float
) -> None:
    """Attack one node of a real cluster, while other clients use the cluster.

    Exit code 1: a bound was broken.
    """
    names = only or (DECODERS, *HOSTILE)
    failed = False
    if DECODERS in names and inputs:
        failed = not _decoders_hold(inputs, seed, slack)
    if names := tuple(name for name in names if name != DECODERS):
        failed = not _cluster_holds(names, minutes, nodes, seed, slack) or failed
    sys.exit(1 if failed else 0)


def _decoders_hold(inputs: int, seed: int, slack: float) -> bool:
    """Attack the decoders of the Kafka listener; whether all bounds held."""
    outcome, shown_at = Outcome(), time.monotonic()
    for outcome in run_decoders(inputs, seed):
        if time.monotonic() - shown_at > PROGRESS_S:
            shown_at = time.monotonic()
            print(f"{DECODERS:18} {outcome}", flush=True)
    found = outcome.findings(slack)
    print(f"{DECODERS:18} {'; '.join(found) or 'held'}")
    print(f"{'':18} {outcome}", flush=True)
    return not found


def _cluster_holds(
    names: Sequence[str], minutes: float, nodes: int, seed: int, slack: float
) -> bool:
    """Attack one node of a cluster; whether all bounds held."""
    calm_s = minutes * 60 * CALM_SHARE
    each_s = (minutes * 60 - calm_s) / len(names)
    failed = False
    with ExitStack() as stack:
        directory = stack.enter_context(data_directory())
        cluster = stack.enter_context(Cluster(directory, nodes, kafka=True))
        leader = cluster.start()
        target = cluster.nodes[leader]
        for topic in (TOPIC, VICTIMS_TOPIC):
            target.create_topic(topic, 2)
        os.environ[SECRET_VARIABLE] = cluster.secret
        cluster.wait_quiet()
        observer = stack.enter_context(Observer(cluster, slack))
        operations = directory / "operations"
        stack.enter_context(_victims(cluster.servers, target.kafka_address, operations))
        phases = Phases(observer, operations, target, seed)
        print(f"{'attack':18} {'others':>7} {'failed':>7} {'p99 ms':>8} {'holds':>6} {'MiB':>6}")
        phases.run(CALM, min(3.0, calm_s))
        calm = phases.run(CALM, calm_s)
        print(_row(calm, "the measure of the others"), flush=True)
        print(f"{'':18} {calm.work}", flush=True)
        for name in names:
            _recreate(target)
            observed = phases.run(name, each_s)
            found = findings(calm, observed, slack)
            if found and may_be_the_machine(found):
                print(_row(observed, f"{'; '.join(found)}: once more"), flush=True)
                _recreate(target)
                calm_again = phases.run(CALM, max(each_s, AGAIN_S_MIN / 3))
                observed = phases.run(name, max(each_s, AGAIN_S_MIN))
                found = findings(calm_again, observed, slack)
            failed = failed or bool(found)
            print(_row(observed, "; ".join(found) or "held"), flush=True)
            print(f"{'':18} {observed.work}", flush=True)
            time.sleep(SETTLE_S)
        if failed:
            print(cluster.log_ends())
            for node in cluster.nodes.values():
                print("\n".join(_tracebacks(node)))
    return not failed


if __name__ == "__main__":
    main()
