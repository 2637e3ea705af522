"""No body and no stored batch holds the event loop: the longest step of each, in processor time.

The bound is 50 ms on an idle machine. Here each step may take STEP_S of its thread's processor
time, as other work on the machine slows the caches; the bytes of each step are bounded exactly in
tests/http/test_json_check.py and tests/http/test_body.py.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import gzip
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import product
from typing import Final, ParamSpec

import pytest

from raftlog.node.process import GC_THRESHOLDS
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.record.frames import ProduceFrame
from raftlog.record.types import LeaderEpoch, PartitionId
from tests.broker.data_fakes import batch_of
from tests.http.http_peers import Reply
from tests.record.wire import encode_produce_frames
from tests.rest.data_fakes import DataPeer, data_node
from tests.waiting import until

STEP_S = 0.15
MIB = 1 << 20
P = ParamSpec("P")
JSON_TYPE = "application/vnd.kafka.json.v2+json"
BINARY = "application/vnd.kafka.binary.v2+json"
TEXT = "application/vnd.kafka.text.v2+json"


@contextmanager
def longest_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Measures the callbacks of the event loop; the list has the longest one."""
    longest = [0.0]
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        longest[0] = max(longest[0], time.thread_time() - began)

    # As in a node: the collector does not scan the modules, which tests/conftest.py has exempted.
    gc.collect()
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.Handle, "_run", measured)
            yield longest
    finally:
        gc.set_threshold(*thresholds)


class LongStepError(AssertionError):
    """A step of the event loop took longer than STEP_S."""


def check(longest: list[float]) -> None:
    if longest[0] >= STEP_S:
        raise LongStepError(f"a step took {longest[0] * 1000:.0f} ms of processor time")


def best_of_three(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """Try again after a long step: a step that is long by itself is long every time."""

    @wraps(test)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(2):
            try:
                return await test(*args, **kwargs)
            except LongStepError:
                continue
        return await test(*args, **kwargs)

    return wrapper


def records(*texts: bytes) -> bytes:
    return b'{"records":[' + b",".join(texts) + b"]}"


def value(content: bytes) -> bytes:
    return records(b'{"value":%b}' % content)


def filled(piece: bytes, size: int) -> bytes:
    return piece * (size // len(piece))


JSON_BODIES: dict[str, Callable[[], bytes]] = {
    "brackets": lambda: value(b"[" + filled(b"[],", 15 * MIB) + b"0]"),
    "brackets over the bound": lambda: value(b"[" + filled(b"[],", 48 * MIB) + b"0]"),
    "open brackets": lambda: filled(b"[", 48 * MIB),
    "open brackets after records": lambda: b'{"records":[' + filled(b"[", 48 * MIB),
    "stairs": lambda: value(b"[" + filled(b"[" * 60 + b"]" * 60 + b",", 15 * MIB) + b"0]"),
    "numbers": lambda: value(b"[" + filled(b"1,", 15 * MIB) + b"1]"),
    "quotes": lambda: value(b"[" + filled(b'"",', 15 * MIB) + b'""]'),
    "escapes": lambda: value(b'"' + filled(b'\\n\\\\\\"', 15 * MIB) + b'"'),
    "unicode": lambda: value(b'"' + filled("é漢".encode(), 15 * MIB) + b'"'),
    "a long string": lambda: value(b'"' + filled(b"x", 15 * MIB) + b'"'),
    "spaces": lambda: b" " * (48 * MIB),
    "spaces before records": lambda: b" " * 4000 + b'{"records":[' + b" " * (20 * MIB) + b"]}",
    "records": lambda: records(*[b'{"value":1}'] * 100_000),
    "too many records": lambda: records(*[b'{"value":1}'] * 2_000_000),
    "keyed records": lambda: records(*[b'{"key":"%d","value":1}' % n for n in range(100_000)]),
    "nested records": lambda: records(*[b'{"value":[{"a":{}},{"b":[]}]}'] * 100_000),
    "records with headers": lambda: records(
        *[b'{"value":1,"headers":[' + b",".join([b'{"key":"a","value":"QQ=="}'] * 20) + b"]}"]
        * 20_000
    ),
    "one record with headers": lambda: records(
        b'{"value":1,"headers":[' + filled(b'{"key":"a"},', 15 * MIB) + b'{"key":"a"}]}'
    ),
    "an unusual order": lambda: b'{"x":[],' + records(*[b'{"value":1}'] * 150_000)[1:],
    "not UTF-8 at the end": lambda: value(b'"' + filled(b"x", 15 * MIB) + b'\xff"'),
}


@pytest.mark.parametrize("name", JSON_BODIES)
@best_of_three
async def test_json_bodies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = gzip.compress(JSON_BODIES[name](), 1)
    async with data_node() as one:
        with longest_step(monkeypatch) as longest:
            reply = await one.peer.request(
                "POST", "/topics/six", body, Content_Type=JSON_TYPE, Content_Encoding="gzip"
            )
        assert reply.status in (200, 413, 422), reply.body
    check(longest)


@pytest.mark.parametrize(
    ("media_type", "content"),
    [
        (BINARY, lambda: base64.b64encode(bytes(11 * MIB))),
        (TEXT, lambda: filled(b"\\u0001", 15 * MIB)),
        (TEXT, lambda: filled("é漢".encode(), 15 * MIB)),
    ],
)
@best_of_three
async def test_binary_and_text_bodies(
    media_type: str, content: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = gzip.compress(value(b'"' + content() + b'"'), 1)
    async with data_node() as one:
        with longest_step(monkeypatch) as longest:
            reply = await one.peer.request(
                "POST", "/topics/one", body, Content_Type=media_type, Content_Encoding="gzip"
            )
        assert reply.status in (200, 413), reply.body
    check(longest)


STREAMS: dict[str, Callable[[], bytes]] = {
    "small records": lambda: filled(b'{"value":null}', 256 * 1024),
    "invalid records": lambda: filled(b"{}", 256 * 1024),
    "deep records": lambda: b'{"value":{"type":"JSON","data":' + filled(b"[" * 9 + b"]" * 9, MIB),
    "a long record": lambda: (
        b'{"value":{"type":"JSON","data":[' + filled(b"[],", 2 * MIB) + b"0]}}"
    ),
    "a record over the bound": lambda: b'{"value":"' + filled(b"x", 40 * MIB),
    "a record with headers": lambda: (
        b'{"value":null,"headers":[' + filled(b'{"name":"a"},', 15 * MIB) + b'{"name":"a"}]}'
    ),
    "spaces": lambda: b" " * (48 * MIB),
}


@pytest.mark.parametrize("name", STREAMS)
@best_of_three
async def test_streams_of_records(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = gzip.compress(STREAMS[name](), 1)
    async with data_node() as one:
        path = "/v3/clusters/-/topics/one/records"
        with longest_step(monkeypatch) as longest:
            reply = await one.peer.request("POST", path, body, Content_Encoding="gzip")
        assert reply.status in (200, 413, 422), reply.body[:500]
    check(longest)


@best_of_three
async def test_batch_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [{"id": str(n), "key": {"type": "JSON", "data": n}} for n in range(10_000)]
    body = json.dumps({"entries": entries}).encode()
    async with data_node() as one:
        path = "/v3/clusters/-/topics/six/records:batch"
        with longest_step(monkeypatch) as longest:
            reply = await one.peer.request("POST", path, body)
        assert reply.status == 207, reply.body[:500]
    check(longest)


def small_batch() -> bytes:
    builder = BatchBuilder()
    builder.append(1, None, None)
    return bytes(builder.build())


@best_of_three
async def test_frames_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = small_batch()
    bodies = [
        [ProduceFrame("six", PartitionId(n), batch) for n in range(10_000)],
        [ProduceFrame("one", PartitionId(0), batch * 10_000)],
        [ProduceFrame("one", PartitionId(0), batch * 100_000)],
        [ProduceFrame("one", PartitionId(0), bytes(30 * MIB))],
    ]
    async with data_node() as one:
        for frames in bodies:
            body = encode_produce_frames(frames)
            with longest_step(monkeypatch) as longest:
                reply = await one.peer.request(
                    "POST", "/v1/produce", body, Content_Type="application/vnd.raftlog.batches"
                )
            assert reply.status in (200, 413, 422), reply.body[:500]
            check(longest)


async def read_all(one: DataPeer, accept: str) -> list[Reply]:
    offset, replies = 0, []
    while len(replies) < 5:
        query = f"offset={offset}&max_bytes=33554432&max_records=100000"
        reply = await one.peer.request(
            "GET", f"/topics/one/partitions/0/records?{query}", Accept=accept
        )
        replies.append(reply)
        if reply.status != 200 or reply.body == b"[]":
            break
        offset = int(reply.headers["x-raftlog-next-offset"])
    return replies


VALUES: dict[str, Callable[[], list[bytes]]] = {
    "a value of zeros": lambda: [bytes(15 * MIB)],
    "a value of letters": lambda: [b'"' + b"x" * (15 * MIB) + b'"'],
    "a value of brackets": lambda: [b"[" + filled(b"[],", 15 * MIB) + b"0]"],
    "tiny values": lambda: [b""] * 1_500_000,
    "values": lambda: [b'{"a":[1,2,3]}' * 10] * 100_000,
}


FURTHER: Final = pytest.mark.full  # the quick suite has each values and each compression once

READS: Final = [
    pytest.param(
        name,
        compression,
        marks=() if name == "values" or compression is Compression.NONE else FURTHER,
    )
    for name, compression in product(VALUES, Compression)
]


@pytest.mark.parametrize(("name", "compression"), READS)
@best_of_three
async def test_reads_of_stored_batches(
    name: str, compression: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(VALUES[name](), compression)
    async with data_node() as one:
        log = one.node.replicas.partition("one", 0).log
        await log.appender.append([batch], LeaderEpoch(0))
        await until(lambda: one.node.log().flushed_offset == batch.header.record_count)
        for accept in (BINARY, TEXT, JSON_TYPE):
            with longest_step(monkeypatch) as longest:
                replies = await read_all(one, accept)
            assert {reply.status for reply in replies} <= {200, 406}
            check(longest)
