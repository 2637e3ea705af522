"""The hostile clients: one process for one attack.

`python -m tests.attack.attacks NAME HOST:PORT SECONDS SEED` prepares its inputs, prints READY,
attacks for so long, and prints a `Work` as JSON: the counts of its requests and of the answers.
Its exit code says nothing about the node: see `verdict`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import resource
import secrets
import socket
import struct
import sys
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import uvloop

from raftlog.peer.auth import NONCE_BYTES, Caller, derive_key
from raftlog.peer.opening import KEY_BYTES, NONCE_HEADER, request_head
from raftlog.record.frames import BATCHES_MEDIA_TYPE
from tests.attack.attacker import ADDRESSES, ANSWER_TIMEOUT_S, Attack, Kind, drop, status_of
from tests.attack.inputs import (
    JSON_TYPE,
    MIB,
    TOPIC,
    Mutator,
    Request,
    batch_bombs,
    batch_reads,
    foreign_requests,
    garbage,
    gzip_bombs,
    header_floods,
    json_bombs,
    many_partitions,
    opening,
    stranger_batch,
)
from tests.attack.kafka_attacks import KAFKA_ATTACKS
from tests.attack.verdict import Work

NICENESS: Final = 15
"""The processor is for the node and for the other clients first."""
CHANNELS: Final = ("quorum", "join", "replication", "data")
SECRET_VARIABLE: Final = "RAFTLOG_ATTACK_SECRET"
"""The cluster's secret: `replays` records one true opening with it."""
FILES_WANTED: Final = 8_192
UPGRADED: Final = 101


async def honest(attack: Attack) -> None:
    """No attack: as many clients as most attacks have, with small requests as fast as may be.

    The measure of the others: it has the machine, and as much load as an attack may be.
    """
    body = json.dumps({"records": [{"value": "x" * 1000}]}).encode()
    requests = (
        Request("GET", "/topics"),
        Request("POST", f"/topics/{TOPIC}", body, {"Content-Type": JSON_TYPE}),
    )

    async def work(number: int) -> None:
        await attack.send(requests[number % 2])

    await attack.repeat(work, 8)


async def slow_heads(attack: Attack) -> None:
    """Request heads, a byte at a time."""

    async def work(_number: int) -> None:
        async with attack.connection() as (_, writer):
            attack.counts["requests"] += 1
            writer.write(b"GET /topics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            while not writer.transport.is_closing():
                writer.write(b"a")
                await asyncio.sleep(0.5)
            attack.counts["cut"] += 1

    await attack.repeat(work, 400)


async def slow_bodies(attack: Attack) -> None:
    """Large bodies, a byte at a time."""

    async def work(number: int) -> None:
        path = (f"/topics/{TOPIC}", "/v1/produce", f"/v3/clusters/-/topics/{TOPIC}/records")
        kind = BATCHES_MEDIA_TYPE if number % 3 == 1 else JSON_TYPE
        headers = {"Content-Type": kind, "Content-Length": str(32 * MIB)}
        head = Request("POST", path[number % 3], b"", headers).head()
        if number % 3 == 2:
            head = _chunked(head)
        async with attack.connection() as (_, writer):
            attack.counts["requests"] += 1
            writer.write(head)
            while not writer.transport.is_closing():
                writer.write(b"1\r\n{\r\n" if number % 3 == 2 else b"{")
                await asyncio.sleep(0.5)
            attack.counts["cut"] += 1

    await attack.repeat(work, 120)


def _chunked(head: bytes) -> bytes:
    """The head of a request with a chunked body."""
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    return b"\r\n".join([*lines[:-2], b"Transfer-Encoding: chunked", b"", b""])


async def trickles(attack: Attack) -> None:
    """Streams of /v3: sound records, one now and then, on hundreds of connections."""
    head = _chunked(Request("POST", f"/v3/clusters/-/topics/{TOPIC}/records").head())
    record = b'{"value":{"type":"JSON","data":1}}\n'

    async def work(number: int) -> None:
        async with attack.connection(number % ADDRESSES) as (reader, writer):
            attack.counts["requests"] += 1
            writer.write(head.replace(b"\r\n\r\n", b"\r\nContent-Type: application/json\r\n\r\n"))
            taking = asyncio.ensure_future(attack.until_cut(reader, attack.seconds))
            try:
                while not taking.done():
                    writer.write(b"%x\r\n%b\r\n" % (len(record), record))
                    await asyncio.sleep(1)
            finally:
                taking.cancel()

    await attack.repeat(work, 400)


async def waiters(attack: Attack) -> None:
    """Tails, long polls and waiting fetches, held by hundreds."""
    fetch = {"partitions": [{"topic": TOPIC, "partition": 0, "offset": 0}], "min_bytes": 2**40}
    fetch["max_wait_ms"] = 60_000
    requests = (
        Request("GET", f"/v1/topics/{TOPIC}/tail"),
        Request("GET", f"/v1/topics/{TOPIC}/tail", headers={"Accept": "text/event-stream"}),
        Request(
            "GET", f"/topics/{TOPIC}/partitions/1/records?offset=latest&timeout=60000", headers={}
        ),
        Request("POST", "/v1/fetch", json.dumps(fetch).encode(), {"Content-Type": JSON_TYPE}),
    )

    async def work(number: int) -> None:
        async with attack.connection(number % ADDRESSES) as (reader, writer):
            attack.counts["requests"] += 1
            request = requests[number // ADDRESSES % len(requests)]
            writer.write(request.head() + request.body)
            await attack.until_cut(reader, 30)

    await attack.repeat(work, 800)


async def slow_readers(attack: Attack) -> None:
    """Requests for large answers, without reading."""
    for request in batch_bombs():
        await attack.send(request)

    async def work(_number: int) -> None:
        async with attack.connection() as (reader, writer):
            attack.counts["requests"] += 1
            writer.write(attack.rng.choice(batch_reads()).head())
            await attack.answer_head(reader)
            writer.transport.pause_reading()  # type: ignore[attr-defined] # of a socket, both ways
            await asyncio.sleep(10)

    await attack.repeat(work, 60)


async def half_open(attack: Attack) -> None:
    """Thousands of connections: silent, cut in the first line, or reset."""

    async def work(number: int) -> None:
        async with attack.connection(number % ADDRESSES) as (reader, writer):
            if number % 3 == 1:
                attack.counts["requests"] += 1
                writer.write(b"GET /topi")
            elif number % 3 == 2:
                found: socket.socket = writer.get_extra_info("socket")
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                attack.counts["resets"] += 1
                return
            await attack.until_cut(reader, 20)

    await attack.repeat(work, 4_000)


async def json_depth(attack: Attack) -> None:
    """Deep, wide and lying JSON, plain and compressed."""
    await _cycle(attack, [one for size in (4096, MIB, 16 * MIB) for one in json_bombs(size)], 4)


async def bombs(attack: Attack) -> None:
    """Inflating content encodings and record batches of every codec, and reads of these."""
    await _cycle(attack, [*gzip_bombs(), *batch_bombs(), *batch_reads()], 4)


async def headers(attack: Attack) -> None:
    """Heads at and over every bound of size and count."""
    await _cycle(attack, list(header_floods()), 16)


async def many_names(attack: Attack) -> None:
    """Requests naming as many topics and partitions as may be, and more."""
    await _cycle(attack, list(many_partitions()), 4)


async def _cycle(attack: Attack, requests: Sequence[Request], count: int) -> None:
    order = attack.rng.sample(requests, len(requests))
    numbers = iter(range(1 << 62))

    async def work(number: int) -> None:
        await attack.send(order[next(numbers) % len(order)], number % ADDRESSES)

    await attack.repeat(work, count)


async def made_up_producers(attack: Attack) -> None:
    """Raw batches, each by a producer id that was never given out."""

    async def work(number: int) -> None:
        await attack.send(stranger_batch(attack.rng), number % ADDRESSES)

    await attack.repeat(work, 8)


async def pipelines(attack: Attack) -> None:
    """Hundreds of requests in one write, without a look at the answers of the first."""
    body = json.dumps({"records": [{"value": "x" * 1000}]}).encode()
    one = Request("POST", f"/topics/{TOPIC}", body, {"Content-Type": JSON_TYPE})
    many = (one.head() + body) * 20 + Request("GET", "/topics").head() * 180

    async def work(number: int) -> None:
        async with attack.connection(number % ADDRESSES) as (reader, writer):
            attack.counts["requests"] += 200
            writer.write(many)
            await asyncio.sleep(0.1)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                for _ in range(200):
                    await attack.answer(reader)

    await attack.repeat(work, 16)


async def browsers(attack: Attack) -> None:
    """Requests of foreign pages, and by rebound names: each must be refused."""
    requests = foreign_requests()

    async def work(_number: int) -> None:
        status = await attack.send(attack.rng.choice(requests))
        if status not in (None, 403, 421):
            attack.breach()

    await attack.repeat(work, 8)


async def mutations(attack: Attack) -> None:
    """Valid and mutated requests on every route."""
    mutator = Mutator(await asyncio.to_thread(_document, attack), attack.rng)

    async def work(_number: int) -> None:
        await attack.send(mutator.request())

    await attack.repeat(work, 8)


def _document(attack: Attack) -> Any:
    with urllib.request.urlopen(f"http://{attack.host}:{attack.port}/openapi.json") as answer:
        return json.load(answer)


async def noise(attack: Attack) -> None:
    """Random bytes instead of HTTP."""

    async def work(_number: int) -> None:
        async with attack.connection() as (reader, writer):
            attack.counts["requests"] += 1
            writer.write(garbage(attack.rng))
            await attack.until_cut(reader, 0.2)

    await attack.repeat(work, 16)


async def node_channels(attack: Attack) -> None:
    """Openings of node channels by strangers: repeated, malformed, silent."""

    async def work(number: int) -> None:
        async with attack.connection(number % ADDRESSES) as (reader, writer):
            head = opening(attack.rng, attack.rng.choice(CHANNELS))
            attack.counts["requests"] += 1
            writer.write(head if number % 4 else head[: attack.rng.randrange(len(head))])
            async with asyncio.timeout(1):
                if status_of(await attack.answer_head(reader)) == UPGRADED:
                    attack.breach()

    await attack.repeat(work, 200)


async def replays(attack: Attack) -> None:
    """A true node's opening, recorded once, and repeated by strangers from every address."""
    key = await asyncio.to_thread(derive_key, os.environ[SECRET_VARIABLE].encode())
    recorded = {channel: await _record(attack, channel, key) for channel in CHANNELS}
    attack.counts["recorded"] = len(recorded)

    async def work(number: int) -> None:
        first, proven = recorded[attack.rng.choice(CHANNELS)]
        async with attack.connection(number % ADDRESSES) as (reader, writer):
            for head in (first, proven) if number % 2 else (proven, proven):
                attack.counts["requests"] += 1
                writer.write(head)
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    if await attack.answer(reader) == UPGRADED:
                        attack.breach()

    await attack.repeat(work, 64)


async def _record(attack: Attack, channel: str, key: bytes) -> tuple[bytes, bytes]:
    """Both requests of an opening with the secret, which the node takes."""
    address = f"{attack.host}:{attack.port}"
    nonce, socket_key = secrets.token_bytes(NONCE_BYTES), secrets.token_bytes(KEY_BYTES)
    first = request_head(address, channel, socket_key, nonce)
    async with attack.connection() as (reader, writer), asyncio.timeout(ANSWER_TIMEOUT_S):
        writer.write(first)
        head = await reader.readuntil(b"\r\n\r\n")
        await drop(reader, head)
        callee_nonce = _nonce(head)
        proof = Caller(key, channel, b"", nonce, callee_nonce).opening()
        proven = request_head(
            address, channel, socket_key, nonce, callee_nonce=callee_nonce, proof=proof
        )
        writer.write(proven)
        status = status_of(await reader.readuntil(b"\r\n\r\n"))
        assert status == UPGRADED, f"the node answers {status} to the secret"
    return first, proven


def _nonce(head: bytes) -> bytes:
    """The node's nonce in the answer to a first request."""
    for line in head.decode().split("\r\n"):
        name, _, value = line.partition(": ")
        if name.lower() == NONCE_HEADER.lower():
            return base64.b64decode(value)
    raise AssertionError("the node gives no nonce")


CALM: Final = "calm"
ATTACKS: Final[dict[str, Kind]] = {
    CALM: Kind(honest, {"200": 100}),
    "slow-heads": Kind(slow_heads, {"open": 300}),
    "slow-bodies": Kind(slow_bodies, {"open": 100}),
    "slow-readers": Kind(slow_readers, {"open": 30, "200": 30}),
    "half-open": Kind(half_open, {"open": 1_000, "resets": 100}),
    "trickles": Kind(trickles, {"open": 300, "200": 100}),
    "waiters": Kind(waiters, {"open": 600, "200": 100}),
    "headers": Kind(headers, {"200": 1, "400": 1, "431": 1}),
    "pipelines": Kind(pipelines, {"200": 200}),
    "json-depth": Kind(json_depth, {"422": 5}),
    "bombs": Kind(bombs, {"200": 5, "413": 1}),
    "many-names": Kind(many_names, {"200": 1, "422": 1}),
    "producers": Kind(made_up_producers, {"200": 50}),
    "mutations": Kind(mutations, {"200": 50, "404": 10, "422": 10}),
    "noise": Kind(noise, {"400": 20}),
    "browsers": Kind(browsers, {"403": 50, "421": 50}),
    "node-channels": Kind(node_channels, {"401": 50, "open": 150}),
    "replays": Kind(replays, {"401": 50, "recorded": len(CHANNELS)}),
    **KAFKA_ATTACKS,
}


def main(arguments: Sequence[str]) -> None:
    """Run one attack."""
    name, address, seconds, seed = arguments
    host, _, port = address.rpartition(":")
    os.nice(NICENESS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, FILES_WANTED)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    attack = Attack(host, int(port), float(seconds), random.Random(f"{name} {seed}"))

    async def run() -> None:
        await ATTACKS[name].run(attack)

    uvloop.run(run())
    print(msgspec.json.encode(Work(attack.counts)).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
