"""REST json produce: requests a second over kept connections, by a driver of our own.

The driver speaks just enough HTTP/1.1 over an asyncio protocol to keep each connection busy with
one request at a time, so that the node is the bottleneck, not the driver.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import uvloop

from bench.node import LoneNode, free_port
from bench.report import Latencies, Result
from bench.throughput import PARTITIONS

CONNECTIONS = 32
BARE_START_TIMEOUT_S = 10.0


class _Connection(asyncio.Protocol):
    """One kept connection: sends the request again as soon as the answer is whole."""

    def __init__(self, request: bytes, deadline: float, done: asyncio.Future[None]) -> None:
        self._request = request
        self._deadline = deadline
        self._done = done
        self._buffer = b""
        self._sent_at = 0.0
        self._transport: asyncio.WriteTransport | None = None
        self.latencies: list[float] = []
        self.errors = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = self._buffer[:head_end].lower()
        length_at = head.index(b"content-length:") + 15
        line_end = head.find(b"\r\n", length_at)
        length = int(head[length_at : line_end if line_end >= 0 else None])
        body = self._buffer[head_end + 4 :]
        if len(body) < length:
            return
        now = time.perf_counter()
        self.latencies.append(now - self._sent_at)
        if not head.startswith(b"http/1.1 200") or b'"error_code":null' not in body:
            self.errors += 1
        self._buffer = b""
        if now < self._deadline:
            self._send()
        else:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(exc or ConnectionResetError("the node closed the connection"))

    def _send(self) -> None:
        assert self._transport is not None
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)

    def _finish(self) -> None:
        self._done.set_result(None)
        assert self._transport is not None
        self._transport.close()


async def drive(port: int, topic: str, records: int, seconds: float) -> list[_Connection]:
    """Keep every connection busy with requests of `records` records for `seconds`."""
    rows = [{"key": f"k{i}", "value": {"id": i, "text": "hello raftlog"}} for i in range(records)]
    body = json.dumps({"records": rows}, separators=(",", ":")).encode()
    request = (
        f"POST /topics/{topic} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/vnd.kafka.json.v2+json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    loop = asyncio.get_running_loop()
    deadline = time.perf_counter() + seconds
    finished = []
    connections = []
    for _ in range(CONNECTIONS):
        done: asyncio.Future[None] = loop.create_future()
        _, connection = await loop.create_connection(
            partial(_Connection, request, deadline, done), "127.0.0.1", port
        )
        connections.append(connection)
        finished.append(done)
    await asyncio.gather(*finished)
    return connections


@contextmanager
def bare_server() -> Iterator[int]:
    """Run the bare aiohttp server (bench/bare_http.py); yield its port."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "bench.bare_http", str(port)])
    try:
        deadline = time.perf_counter() + BARE_START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                if time.perf_counter() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.01)
        yield port
    finally:
        process.terminate()
        process.wait()


def run(node: LoneNode, *, runs: int, scale: float) -> list[Result]:
    """Single-record requests a second, and records a second in requests of 500."""
    seconds = max(2.0, 5.0 * scale)
    parameters = {"connections": CONNECTIONS, "seconds": seconds, "partitions": PARTITIONS}
    single = Result("REST json, 1 record", "requests/s", [], 15_000, parameters=parameters)
    bare = Result("limit: bare aiohttp POST", "requests/s", [], parameters=parameters)
    bulk = Result("REST json, 500 records", "records/s", [], 400_000, parameters=parameters)
    for run_number in range(runs):
        topic = f"rest-{run_number}"
        node.create_topic(topic, PARTITIONS)
        with bare_server() as port:
            connections = uvloop.run(drive(port, topic, 1, seconds))
            bare.runs.append(sum(len(c.latencies) for c in connections) / seconds)
        for result, records in ((single, 1), (bulk, 500)):
            connections = uvloop.run(drive(node.port, topic, records, seconds))
            latencies = [latency for c in connections for latency in c.latencies]
            result.runs.append(len(latencies) * records / seconds)
            result.details[f"run {run_number}"] = {
                **Latencies.from_seconds(latencies).as_fields("requestLatency"),
                "errors": sum(connection.errors for connection in connections),
            }
        node.delete_topic(topic)
    return [bare, single, bulk]
