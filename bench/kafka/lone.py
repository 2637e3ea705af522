"""`scripts/bench kafka`, of one node: lone acknowledged Produce requests, and the idle listener."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from bench.cluster import MIB, PARTITIONS, run_workload
from bench.node import free_port, running_node
from bench.report import Options, Percentiles, Result
from bench.rest import BusyConnection, drive_all
from raftlog.kafka.apis import APIS
from raftlog.kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from raftlog.record.codec import BatchBuilder
from raftlog.schema.codec import ELEMENTS_MAX, codec_of
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.load import payload

TOPIC: Final = "lone"
CONNECTIONS: Final = 32
SECONDS: Final = 5.0
PRODUCE_KEY: Final = 0
VERSION: Final = 9
IDLE_CONNECTIONS: Final = 1_000
SETTLE_S: Final = 3.0
KIB: Final = 1 << 10


class _Connection(BusyConnection):
    answer = b""
    """The last answer."""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if _is_whole(self._buffer):
            self.answer = self._buffer[4:]
            self._answered(time.perf_counter())


async def load(port: int, connections: int, seconds: float) -> tuple[float, Latencies]:
    """Requests a second, and how long each took. Raises RuntimeError for an error answer."""
    started = time.perf_counter()
    clients = await drive_all(
        port,
        [
            partial(_Connection, _request(number % PARTITIONS), started + seconds)
            for number in range(connections)
        ],
    )
    elapsed = time.perf_counter() - started
    for one in clients:
        answer = APIS[PRODUCE_KEY].response_codec(VERSION).decode(one.answer, 5, ELEMENTS_MAX)
        assert isinstance(answer, ProduceResponse)
        code = answer.responses[0].partition_responses[0].error_code
        if code:
            raise RuntimeError(f"a record was refused with Kafka's code {code}")
    samples = [value for one in clients for value in one.latencies]
    return len(samples) / elapsed, Latencies.from_seconds(samples)


def _is_whole(answer: bytes) -> bool:
    """Whether all bytes that the length of an answer promises are there."""
    return len(answer) >= 4 and len(answer) >= 4 + int(struct.unpack_from(">i", answer)[0])


def _request(partition: int) -> bytes:
    """The frame of one record of 100 B, `acks=all`."""
    builder = BatchBuilder()
    builder.append(None, None, payload(100))
    data = (PartitionProduceData(partition, builder.build()),)
    message = ProduceRequest(None, -1, 30_000, (TopicProduceData(TOPIC, None, data),))
    body = codec_of(APIS[PRODUCE_KEY].request_type, VERSION).encode(message)
    head = struct.pack(">hhih", PRODUCE_KEY, VERSION, 1, 5) + b"bench" + b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def lone_requests(options: Options) -> list[Result]:
    """One node; each connection waits for its acknowledgement."""
    seconds = max(1.0, SECONDS * options.scale)
    given = {"connections": CONNECTIONS}
    rate = Result("Kafka listener: lone records, acks=all", "/s", goal=10_000, parameters=given)
    latency = Percentiles("Kafka listener: lone record, one connection, {}", {"p50": 0.35})
    port = free_port()
    with running_node(options.flush, "--kafka-listen", f"127.0.0.1:{port}") as node:
        node.create_topic(TOPIC, PARTITIONS)
        run_workload(load(port, CONNECTIONS, seconds))  # to warm up
        for _ in range(options.runs):
            before = node.cpu_seconds()
            found, latencies = run_workload(load(port, CONNECTIONS, seconds))
            used = node.cpu_seconds() - before
            rate.runs.append(found)
            rate.details["node, us each"] = used / latencies.count * 1e6
            rate.details.update(latencies.as_fields("latency"))
            latency.note(run_workload(load(port, 1, seconds))[1])
    return [rate, *latency.results]


def idle(options: Options) -> list[Result]:
    """Memory of an idle node: without a listener, with it, and with idle connections."""
    listener = Result("Kafka listener: idle memory", "MiB", goal=2.0)
    each = Result("Kafka listener: idle connection", "KiB", goal=30.0)
    for _ in range(options.runs):
        with running_node(options.flush) as node:
            time.sleep(SETTLE_S)
            without = node.rss_bytes()
        port = free_port()
        with running_node(options.flush, "--kafka-listen", f"127.0.0.1:{port}") as node:
            time.sleep(SETTLE_S)
            with _connected(port, 1):
                idle_bytes = node.rss_bytes()
                with _connected(port, IDLE_CONNECTIONS):
                    time.sleep(SETTLE_S)
                    connected_bytes = node.rss_bytes()
        listener.runs.append((idle_bytes - without) / MIB)
        each.runs.append((connected_bytes - idle_bytes) / KIB / IDLE_CONNECTIONS)
        listener.details["MiB without"] = without / MIB
    return [listener, each]


@contextmanager
def _connected(port: int, count: int) -> Iterator[None]:
    """Connections of one request each."""
    # ApiVersions 0, as each client's first request.
    request = struct.pack(">ihhih", 10, 18, 0, 1, 0)
    with ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(request)
            _receive(client)
        yield


def _receive(client: socket.socket) -> bytes:
    """One whole answer."""
    received = b""
    while not _is_whole(received):
        data = client.recv(64 * KIB)
        if not data:
            raise ConnectionError("the listener closed the connection")
        received += data
    return received
