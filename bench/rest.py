"""REST produce over kept connections: requests a second, and the cost of a megabyte.

The driver speaks just enough HTTP/1.1 to keep each connection busy, so that the node is the
bottleneck.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar, cast

import uvloop
from raftlog_client.produce.sender import PRODUCE_FRAME_HEAD

from bench.node import LoneNode, cpu_times, data_directory, listening, running_node
from bench.report import Options, Result
from raftlog.record.codec import BatchBuilder
from raftlog.record.frames import BATCHES_MEDIA_TYPE
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.load import PARTITIONS, payload

CONNECTIONS = 32
BARE = "bench.bare_http"
RAW_BYTES = 1_000_000
RAW_RECORD_BYTES = 1_000
RAW_SECONDS = 1.0
"""Some hundred MB, so that the page cache takes memory that earlier runs have freed."""


GOOD: Final = b'"error_code":null'
"""In the answer to a produce request that has succeeded."""


ConnectionT = TypeVar("ConnectionT", bound="BusyConnection")


class BusyConnection(asyncio.Protocol):
    """A kept connection that sends its request again as soon as the answer is whole."""

    def __init__(self, request: bytes, deadline: float) -> None:
        self._request = request
        self._deadline = deadline
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = b""
        self._sent_at = 0.0
        self._transport: asyncio.WriteTransport | None = None
        self.latencies: list[float] = []
        self.errors = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast(asyncio.WriteTransport, transport)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail, unless the deadline has passed."""
        if not self.done.done():
            self.done.set_exception(exc or ConnectionResetError("the node closed the connection"))

    def _send(self) -> None:
        assert self._transport is not None
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)

    def _answered(self, now: float) -> None:
        self.latencies.append(now - self._sent_at)
        self._buffer = b""
        if now < self._deadline:
            self._send()
        else:
            self.done.set_result(None)
            assert self._transport is not None
            self._transport.close()


class _HttpConnection(BusyConnection):
    def __init__(self, request: bytes, deadline: float, good: bytes) -> None:
        super().__init__(request, deadline)
        self._good = good

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
        if not head.startswith(b"http/1.1 200") or self._good not in body:
            self.errors += 1
        self._answered(now)


def json_request(port: int, topic: str, records: int) -> bytes:
    """A v2 produce request of `records` records."""
    rows = [{"key": f"k{i}", "value": {"id": i, "text": "hello raftlog"}} for i in range(records)]
    body = json.dumps({"records": rows}, separators=(",", ":")).encode()
    return _request(port, f"/topics/{topic}", "application/vnd.kafka.json.v2+json", body)


def raw_request(port: int, topic: str) -> bytes:
    """A v1 produce request of one record batch of 1 MB."""
    builder = BatchBuilder(size_bytes_max=2 * RAW_BYTES)
    for _ in range(RAW_BYTES // RAW_RECORD_BYTES):
        builder.append(0, None, payload(RAW_RECORD_BYTES))
    batch, name = bytes(builder.build()), topic.encode()
    body = PRODUCE_FRAME_HEAD.pack(len(name), 0, len(batch)) + name + batch
    return _request(port, "/v1/produce?acks=all", BATCHES_MEDIA_TYPE, body)


def _request(port: int, path: str, media_type: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def drive(
    port: int, requests: Sequence[bytes], seconds: float, good: bytes = GOOD
) -> list[_HttpConnection]:
    """Keep a connection for each request busy with it, again and again for `seconds`.

    `good` is part of the body of an answer that counts as a success.
    """
    deadline = time.perf_counter() + seconds
    return await drive_all(
        port, [partial(_HttpConnection, one, deadline, good) for one in requests]
    )


async def drive_all(port: int, makers: Sequence[Callable[[], ConnectionT]]) -> list[ConnectionT]:
    """Open all connections, and wait until each has passed its deadline."""
    loop = asyncio.get_running_loop()
    opened = [await loop.create_connection(make, "127.0.0.1", port) for make in makers]
    await asyncio.gather(*(connection.done for _, connection in opened))
    return [connection for _, connection in opened]


def run(options: Options) -> list[Result]:
    """JSON requests, and the cost of raw requests, on the same node."""
    with running_node(options.flush) as node:
        return [*json_rates(node, options), *raw_cost(node, options)]


def json_rates(node: LoneNode, options: Options) -> list[Result]:
    """Single-record requests a second, and records a second in requests of 500."""
    seconds = max(2.0, 5.0 * options.scale)
    parameters = {"connections": CONNECTIONS, "seconds": seconds, "partitions": PARTITIONS}
    single = Result("REST json, 1 record", "requests/s", goal=15_000, parameters=parameters)
    bare = Result("limit: bare aiohttp POST", "requests/s", parameters=parameters)
    bulk = Result("REST json, 500 records", "records/s", goal=400_000, parameters=parameters)
    for run_number in range(options.runs):
        topic = f"rest-{run_number}"
        node.create_topic(topic, PARTITIONS)
        with listening(BARE, [()]) as [(port, _)]:
            connections = uvloop.run(
                drive(port, [json_request(port, topic, 1)] * CONNECTIONS, seconds)
            )
            bare.runs.append(sum(len(c.latencies) for c in connections) / seconds)
        for result, records in ((single, 1), (bulk, 500)):
            request = json_request(node.port, topic, records)
            connections = uvloop.run(drive(node.port, [request] * CONNECTIONS, seconds))
            latencies = [latency for c in connections for latency in c.latencies]
            result.runs.append(len(latencies) * records / seconds)
            result.details[f"run {run_number}"] = {
                **Latencies.from_seconds(latencies).as_fields("requestLatency"),
                "errors": sum(connection.errors for connection in connections),
            }
        node.delete_topic(topic)
    return [bare, single, bulk]


def raw_cost(node: LoneNode, options: Options) -> list[Result]:
    """Processor time of a raw produce request of 1 MB, beside that of a bare listener.

    Both append to a file: on a virtual machine most of the time can be the first touch of memory
    for the page cache (suite `limits`), which no server avoids.
    """
    parameters = {"connections": 1, "seconds": RAW_SECONDS, "bytes": RAW_BYTES}
    bare = Result("limit: bare listener, 1 MB: CPU", "ms", parameters=parameters)
    raw = Result("raw produce 1 MB: CPU of the node", "ms", goal=1.6, parameters=parameters)
    for run_number in range(options.runs):
        topic = f"raw-{run_number}"
        node.create_topic(topic, 1)
        with (
            data_directory(str(node.data_dir.parent)) as path,
            listening(BARE, [(str(path),)]) as [(port, process)],
        ):
            bare.runs.append(_cpu_ms(port, process.pid, raw_request(port, topic)))
        raw.runs.append(_cpu_ms(node.port, node.pid, raw_request(node.port, topic)))
        node.delete_topic(topic)
    return [bare, raw]


def _cpu_ms(port: int, pid: int, request: bytes) -> float:
    """Processor time of the server for one request."""
    before = sum(cpu_times(pid))
    (connection,) = uvloop.run(drive(port, [request], RAW_SECONDS))
    assert not connection.errors, f"{connection.errors} requests failed"
    return (sum(cpu_times(pid)) - before) * 1000 / len(connection.latencies)
