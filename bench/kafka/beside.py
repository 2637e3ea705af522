"""`scripts/bench kafka`: librdkafka's producer and idle memory, beside Apache Kafka.

The producer sends a record at a time, and at a steady rate while a leader is killed.
"""

from __future__ import annotations

import random
import threading
import time
from itertools import count, pairwise
from typing import Any, Final

import psutil
from confluent_kafka import KafkaException, Producer

from bench.cluster import MIB, NODES, PARTITIONS
from bench.kafka.suite import System, admin, create, systems
from bench.report import Options, Percentiles, Result
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.load import payload

TOPIC: Final = "beside"
SECONDS: Final = 5.0
SETTLE_S: Final = 10.0
TRIALS: Final = 12
RATE: Final = 1000
"""Records a second, over all partitions."""
CALM_S: Final = (0.5, 1.5)
"""Before a fault, drawn: it meets the client's timers at any phase."""
RECOVERY_S_MAX: Final = 30.0
IN_SYNC_S_MAX: Final = 90.0
ON_THE_WAY_S: Final = 0.05
"""Reports of a dead node are still in sockets and queues for so long."""
GOAL_S: Final = 1.0
SEED: Final = 7


class Reports:
    """An idempotent producer that writes to all partitions in turn, and the records' reports."""

    def __init__(self, system: System, **settings: Any) -> None:
        named = {"bootstrap.servers": system.servers, "enable.idempotence": True, "acks": "all"}
        self.producer = Producer({**named, **settings})
        self.acknowledged: list[list[float]] = [[] for _ in range(PARTITIONS)]
        self.errors: list[str] = []
        self._numbers = count()
        self._value = payload(100)

    def send(self) -> None:
        """Send the next record. An error is noted."""
        partition = next(self._numbers) % PARTITIONS
        try:
            self.producer.produce(
                TOPIC, self._value, partition=partition, on_delivery=self._reported
            )
        except (BufferError, KafkaException) as error:
            self.errors.append(str(error))

    def _reported(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        self.acknowledged[message.partition()].append(time.perf_counter())


def one_at_a_time(options: Options) -> list[Result]:
    """confluent-kafka waits for each record's acknowledgement before it sends the next."""
    seconds = max(1.0, SECONDS * options.scale)
    with systems(options) as measured:
        figures = {}
        for system in measured:
            create(system, TOPIC)
            _publish(system, seconds)  # the JVM compiles while it is used
            name = f"confluent: one record at a time, {{}}, {system.name}"
            figures[system.name] = Percentiles(name, {"p50": None})
        for _ in range(options.runs):
            for system in measured:
                figures[system.name].note(_publish(system, seconds))
    return [result for each in figures.values() for result in each.results]


def _publish(system: System, seconds: float) -> Latencies:
    reports = Reports(system, **{"linger.ms": 0, "socket.nagle.disable": True})

    def send() -> float:
        sent = time.perf_counter()
        reports.send()
        reports.producer.flush()
        return time.perf_counter() - sent

    for _ in range(PARTITIONS):
        send()  # the producer gets its id and a connection to every leader
    samples: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        samples.append(send())
    if reports.errors:
        raise RuntimeError(f"{len(reports.errors)} records failed: {reports.errors[0]}")
    return Latencies.from_seconds(samples)


def leader_kill(options: Options) -> list[Result]:
    """Seconds without a delivery report after `kill -9` of a node, in the worst partition."""
    trials = max(1, int(TRIALS * options.scale))
    chance = random.Random(SEED)
    with systems(options) as measured:
        results = []
        for system in measured:
            goal = GOAL_S if system.name == "raftlog" else None
            name = f"librdkafka: leader killed, no reports, {system.name}"
            results.append(_kill_leaders(Result(name, "s", goal=goal), system, trials, chance))
    return results


def _kill_leaders(result: Result, system: System, trials: int, chance: random.Random) -> Result:
    """The same fault again and again: the leader of partition 0 is killed and comes back."""
    create(system, TOPIC)
    reports, is_over = Reports(system), threading.Event()
    writing = threading.Thread(target=_write_at_rate, args=(reports, is_over))
    writing.start()
    try:
        _recovered(reports, time.perf_counter(), time.perf_counter())
        for _ in range(trials):
            victim = _wait_in_sync(system)
            time.sleep(chance.uniform(*CALM_S))
            struck = time.perf_counter()
            system.nodes.kill(victim)
            result.runs.append(_recovered(reports, struck, time.perf_counter()))
            print(f"{system.name}: node {victim} killed: {result.runs[-1]:.2f} s", flush=True)
            system.nodes.revive(victim)
    finally:
        is_over.set()
        writing.join()
    result.details["errors"] = reports.errors[:10]
    return result


def _write_at_rate(reports: Reports, is_over: threading.Event) -> None:
    started, number = time.perf_counter(), 0
    while not is_over.is_set():
        while number < (time.perf_counter() - started) * RATE:
            number += 1
            reports.send()
        reports.producer.poll(0.002)
    reports.producer.flush()


def _recovered(reports: Reports, struck: float, ended: float) -> float:
    """The longest time without a report in any partition, between `struck` and its recovery.

    It has recovered with a report after `ended` and the time in which reports of the dead leader
    may still arrive. Raises TimeoutError: it has none within RECOVERY_S_MAX.
    """
    deadline = time.perf_counter() + RECOVERY_S_MAX
    while time.perf_counter() < deadline:
        seen = [list(times) for times in reports.acknowledged]
        if all(times and times[-1] > ended + ON_THE_WAY_S for times in seen):
            return max(gap_after(times, struck) for times in seen)
        time.sleep(0.01)
    raise TimeoutError(f"a partition had no report for {RECOVERY_S_MAX} s: {reports.errors[-3:]}")


def gap_after(times: list[float], moment: float) -> float:
    """The longest time between two of `times`, as far as it is after `moment`."""
    worst = 0.0
    for before, after in pairwise(times):
        if after > moment:
            worst = max(worst, after - max(before, moment))
    return worst


def _wait_in_sync(system: System) -> int:
    """The leader of partition 0, once every replica is in sync. Raises TimeoutError."""
    client, deadline = admin(system), time.perf_counter() + IN_SYNC_S_MAX
    while time.perf_counter() < deadline:
        partitions = client.list_topics(TOPIC, timeout=IN_SYNC_S_MAX).topics[TOPIC].partitions
        if all(len(partition.isrs) == NODES for partition in partitions.values()):
            return int(partitions[0].leader)
        time.sleep(0.1)
    raise TimeoutError(f"replicas were out of sync for {IN_SYNC_S_MAX} s")


def memory(options: Options) -> list[Result]:
    """Resident memory of each node of a fresh, idle cluster."""
    with systems(options) as measured:
        time.sleep(SETTLE_S)
        results = []
        for system in measured:
            result = Result(f"idle node: resident memory, {system.name}", "MiB")
            result.runs += [
                psutil.Process(pid).memory_info().rss / MIB for pid in system.nodes.pids
            ]
            results.append(result)
    return results
