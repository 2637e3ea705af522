"""`scripts/bench kafka`: a leader is killed under librdkafka's producer, beside Apache Kafka."""

from __future__ import annotations

import random
import threading
import time
from itertools import pairwise
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from bench.cluster import NODES, PARTITIONS
from bench.kafka.suite import System, create, systems
from bench.report import Options, Result

TRIALS: Final = 12
TOPIC: Final = "kafka-gaps"
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


class Probe:
    """A producer that writes to all partitions in turn, in a thread, and notes each report."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "acks": "all"}
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[list[float]] = [[] for _ in range(PARTITIONS)]
        self.errors: list[str] = []

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def wait_all_since(self, struck: float, ended: float) -> float:
        """The longest time without a report in any partition, between `struck` and its recovery.

        It has recovered with a report after `ended` and the time in which reports of the dead
        leader may still arrive. Raises TimeoutError: it has none within RECOVERY_S_MAX.
        """
        deadline = time.perf_counter() + RECOVERY_S_MAX
        while time.perf_counter() < deadline:
            seen = [list(times) for times in self.acknowledged]
            if all(times and times[-1] > ended + ON_THE_WAY_S for times in seen):
                return max(gap_after(times, struck) for times in seen)
            time.sleep(0.01)
        raise TimeoutError(f"a partition had no report for {RECOVERY_S_MAX} s: {self.errors[-3:]}")

    def _run(self) -> None:
        started, number = time.perf_counter(), 0
        while not self._is_over.is_set():
            while number < (time.perf_counter() - started) * RATE:
                partition = number % PARTITIONS
                number += 1
                try:
                    self._producer.produce(
                        TOPIC, b"x" * 100, partition=partition, on_delivery=self._reported
                    )
                except (BufferError, KafkaException) as error:
                    self.errors.append(str(error))
            self._producer.poll(0.002)
        self._producer.flush()

    def _reported(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        self.acknowledged[message.partition()].append(time.perf_counter())


def gap_after(times: list[float], moment: float) -> float:
    """The longest time between two of `times`, as far as it is after `moment`."""
    worst = 0.0
    for before, after in pairwise(times):
        if after > moment:
            worst = max(worst, after - max(before, moment))
    return worst


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
    admin = AdminClient({"bootstrap.servers": system.servers, "log_level": 0})
    with Probe(system.servers) as probe:
        probe.wait_all_since(time.perf_counter(), time.perf_counter())
        for _ in range(trials):
            victim = _wait_in_sync(admin)
            time.sleep(chance.uniform(*CALM_S))
            struck = time.perf_counter()
            system.nodes.kill(victim)
            result.runs.append(probe.wait_all_since(struck, time.perf_counter()))
            print(f"{system.name}: node {victim} killed: {result.runs[-1]:.2f} s", flush=True)
            system.nodes.revive(victim)
        result.details["errors"] = probe.errors[:10]
    return result


def _wait_in_sync(admin: AdminClient) -> int:
    """The leader of partition 0, once every replica is in sync. Raises TimeoutError."""
    deadline = time.perf_counter() + IN_SYNC_S_MAX
    while time.perf_counter() < deadline:
        partitions = admin.list_topics(TOPIC, timeout=IN_SYNC_S_MAX).topics[TOPIC].partitions
        if all(len(partition.isrs) == NODES for partition in partitions.values()):
            return int(partitions[0].leader)
        time.sleep(0.1)
    raise TimeoutError(f"replicas were out of sync for {IN_SYNC_S_MAX} s")
