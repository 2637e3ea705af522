"""`scripts/bench kafka`: one record at a time and idle memory, beside Apache Kafka."""

from __future__ import annotations

import time
from typing import Any, Final

import psutil
from confluent_kafka import Producer

from bench.cluster import MIB, PARTITIONS
from bench.kafka.suite import System, create, systems
from bench.report import Options, Result
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.load import payload

TOPIC: Final = "one-at-a-time"
SECONDS: Final = 5.0
SETTLE_S: Final = 10.0


def one_at_a_time(options: Options) -> list[Result]:
    """confluent-kafka waits for each record's acknowledgement before it sends the next."""
    seconds = max(1.0, SECONDS * options.scale)
    with systems(options) as measured:
        results = {}
        for system in measured:
            create(system, TOPIC)
            _publish(system, seconds)  # the JVM compiles while it is used
            name = f"confluent: one record at a time, p50, {system.name}"
            results[system.name] = Result(name, "ms")
        for _ in range(options.runs):
            for system in measured:
                latencies = _publish(system, seconds)
                result = results[system.name]
                result.runs.append(latencies.percentiles["50pct"])
                result.details.update(latencies.as_fields("latency"))
    return [*results.values()]


def _publish(system: System, seconds: float) -> Latencies:
    settings: dict[str, Any] = {
        "bootstrap.servers": system.servers,
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 0,
        "socket.nagle.disable": True,
    }
    producer = Producer(settings)
    errors: list[str] = []

    def reported(error: Any, _message: Any) -> None:
        if error is not None:
            errors.append(str(error))

    value = payload(100)

    def send(number: int) -> float:
        sent = time.perf_counter()
        producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=reported)
        producer.flush()
        return time.perf_counter() - sent

    for number in range(PARTITIONS):
        send(number)  # the producer gets its id and a connection to every leader
    samples: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        samples.append(send(len(samples)))
    if errors:
        raise RuntimeError(f"{len(errors)} records failed: {errors[0]}")
    return Latencies.from_seconds(samples)


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
