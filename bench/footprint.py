"""Footprint: memory, start-up, recovery, and memory under a backlog with slow clients."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from bench.cluster import MIB
from bench.loads import consume_many
from bench.node import LoneNode, data_directory
from bench.report import Options, Result
from raftlog.workloads.load import PARTITIONS, send_many

IDLE_S = 3.0
SLOW_CLIENTS = 64
RECORD_BYTES = 1000


@contextmanager
def peak_rss(node: LoneNode) -> Iterator[list[int]]:
    """Sample the node's memory while the block runs; the list's only item is the largest."""
    peak = [0]
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(0.05):
            peak[0] = max(peak[0], node.rss_bytes())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


@contextmanager
def slow_clients(node: LoneNode, topic: str) -> Iterator[None]:
    """Clients that request all records and read nothing."""
    sockets = []
    for number in range(SLOW_CLIENTS):
        client = socket.create_connection(("127.0.0.1", node.port))
        path = f"/topics/{topic}/partitions/{number % PARTITIONS}/records?offset=earliest"
        if number % 2:
            path = f"/v1/topics/{topic}/tail?offset=earliest&format=binary"
        client.sendall(
            f"GET {path} HTTP/1.1\r\nHost: x\r\n"
            "Accept: application/vnd.kafka.binary.v2+json, application/x-ndjson\r\n\r\n".encode()
        )
        sockets.append(client)
    try:
        yield
    finally:
        for client in sockets:
            client.close()


def start_and_idle(options: Options) -> list[Result]:
    """Start to ready, and idle memory and processor."""
    idle_rss = Result("idle RSS", "MiB", goal=60)
    idle_cpu = Result("idle CPU", "% of a core")
    start = Result("start to ready, empty log", "s", goal=1.0)
    for _ in range(options.runs):
        with data_directory() as directory:
            node = LoneNode(directory, options.flush)
            start.runs.append(node.start())
            cpu = node.cpu_seconds()
            time.sleep(IDLE_S)
            idle_cpu.runs.append((node.cpu_seconds() - cpu) / IDLE_S * 100)
            idle_rss.runs.append(node.rss_bytes() / MIB)
            node.stop()
    return [idle_rss, idle_cpu, start]


def backlog(options: Options) -> list[Result]:
    """Recovery by log size, and memory under a backlog with slow clients."""
    results, scale = [], options.scale
    rss = Result(
        f"RSS, {5 * scale:g} GB backlog read, {SLOW_CLIENTS} slow clients", "MiB", goal=200
    )
    with data_directory() as directory:
        node = LoneNode(directory, options.flush)
        node.start()
        node.create_topic("backlog", PARTITIONS)
        written = 0
        for gigabytes in (1, 5, 10):
            target = int(gigabytes * scale * 1e9)
            count = (target - written) // RECORD_BYTES
            uvloop.run(send_many(node.address, "backlog", RECORD_BYTES, count))
            written = target
            goal = 2.0 if gigabytes == 10 else None
            recovery = Result(f"unclean start, {gigabytes * scale:g} GB", "s", goal=goal)
            for _ in range(options.runs):
                # An unclean start must scan the records after the last checkpoint.
                uvloop.run(send_many(node.address, "backlog", RECORD_BYTES, 50_000))
                node.kill()
                recovery.runs.append(node.start())
            results.append(recovery)
            if gigabytes == 5:
                with slow_clients(node, "backlog"), peak_rss(node) as peak:
                    uvloop.run(consume_many(node.address, "backlog", count))
                rss.runs.append(peak[0] / MIB)
        node.stop()
    return [*results, rss]
