"""REST json produce: requests a second over kept connections, by a driver of our own.

The driver speaks just enough HTTP/1.1 over an asyncio protocol to keep each connection busy with
one request at a time, so that the node, not the driver, is what is measured.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import cast

import uvloop

from bench.node import NodeProcess
from bench.report import Latencies, Result

CONNECTIONS = 32


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


async def drive(node: NodeProcess, topic: str, records: int, seconds: float) -> list[_Connection]:
    """Keep every connection busy with requests of `records` records for `seconds`."""
    rows = [{"key": f"k{i}", "value": {"id": i, "text": "hello raftlog"}} for i in range(records)]
    body = json.dumps({"records": rows}, separators=(",", ":")).encode()
    request = (
        f"POST /topics/{topic} HTTP/1.1\r\nHost: {node.address}\r\n"
        f"Content-Type: application/vnd.kafka.json.v2+json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    loop = asyncio.get_running_loop()
    deadline = time.perf_counter() + seconds
    finished = []
    connections = []
    for _ in range(CONNECTIONS):
        done: asyncio.Future[None] = loop.create_future()
        _, connection = await loop.create_connection(
            lambda done=done: _Connection(request, deadline, done), "127.0.0.1", node.port
        )
        connections.append(connection)
        finished.append(done)
    await asyncio.gather(*finished)
    return connections


def run(node: NodeProcess, *, runs: int, scale: float) -> list[Result]:
    """Single-record requests a second, and records a second in requests of 500."""
    seconds = max(2.0, 5.0 * scale)
    parameters = {"connections": CONNECTIONS, "seconds": seconds, "partitions": 6}
    single = Result("REST json, 1 record", "requests/s", [], 15_000, parameters=parameters)
    bulk = Result("REST json, 500 records", "records/s", [], 400_000, parameters=parameters)
    for run_number in range(runs):
        topic = f"rest-{run_number}"
        node.create_topic(topic, 6)
        for result, records in ((single, 1), (bulk, 500)):
            connections = uvloop.run(drive(node, topic, records, seconds))
            latencies = [latency for c in connections for latency in c.latencies]
            result.runs.append(len(latencies) * records / seconds)
            result.details[f"run {run_number}"] = {
                **Latencies.from_seconds(latencies).as_fields("requestLatency"),
                "errors": sum(connection.errors for connection in connections),
            }
        node.delete_topic(topic)
    return [single, bulk]
