"""Attacks on the Kafka listener of a node."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from raftlog.kafka.apis import APIS
from raftlog.kafka.messages.metadata import ApiVersionsRequest, MetadataRequest
from raftlog.kafka.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.attack.attacker import ADDRESSES, ANSWER_TIMEOUT_S, Attack, Kind
from tests.attack.inputs import MIB, PARTITIONS, TOPIC
from tests.attack.kafka_client import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    fetch,
    produce,
    read_answer,
)
from tests.attack.kafka_inputs import (
    KIB,
    FrameMutator,
    claimed,
    compressed_bombs,
    crowded,
    record_batch,
    request,
    sized,
    tagged,
    unknown_tags,
    versions,
)

FRAME_BYTES_MAX: Final = 32 * MIB
"""Largest frame of Produce, which the node takes."""
PLAIN_BYTES_MAX: Final = MIB
"""The same of all other APIs."""
ELEMENTS_MAX: Final = 10_000
VERSIONS: Final = request(ApiVersionsRequest("attacker", "1"), 3)
METADATA: Final = request(MetadataRequest(None), 12)
_SIZE: Final = struct.Struct(">i")
_PREFIX: Final = struct.Struct(">ihh")
NOISE: Final = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\0" * 64,
    b"\xff" * 64,
    b"\x7f\xff\xff\xff" * 16,
)
HELD_MS: Final = 20_000
"""Wait of a held fetch: a client that leaves behind it, with requests unread, is noticed then."""


async def answers(attack: Attack, reader: asyncio.StreamReader, count: int) -> None:
    """Read so many answers and drop them. Raises OSError, TimeoutError, IncompleteReadError."""
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        for _ in range(count):
            await read_answer(reader)
            attack.counts["answers"] += 1


async def send(attack: Attack, frame: bytes, address: int = 0) -> None:
    """Send one frame on a connection of its own; count the answer, or that the node ended it."""
    try:
        async with attack.connection(address) as (reader, writer):
            attack.counts["requests"] += 1
            writer.write(frame)
            await answers(attack, reader, 1)
    except (ConnectionError, asyncio.IncompleteReadError):
        attack.counts["cut"] += 1


async def until_cut(attack: Attack, reader: asyncio.StreamReader, seconds: float) -> None:
    """Read until the node ends the connection, or for so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            with suppress(ConnectionError):
                while await reader.read(MIB):
                    pass
            attack.counts["cut"] += 1


async def mutations(attack: Attack) -> None:
    """Mutated requests of every API and version."""
    mutators = [FrameMutator(attack.rng, *one) for one in versions()]
    chance = attack.rng

    async def work(number: int) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            async with attack.connection(number % ADDRESSES) as (reader, writer):
                for _ in range(50):
                    if writer.transport.is_closing():
                        break
                    attack.counts["requests"] += 1
                    writer.write(sized(chance.choice(mutators).frame()))
                    # Some are held back, and some have no answer.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await read_answer(reader)
                            attack.counts["answers"] += 1
                else:
                    return
        attack.counts["cut"] += 1

    await attack.repeat(work, 16)


async def noise(attack: Attack) -> None:
    """Random bytes, and other protocols."""

    async def work(number: int) -> None:
        chance = attack.rng
        data = chance.choice(NOISE)
        if chance.random() < 0.5:
            data = chance.randbytes(chance.randrange(1, 70_000))
        async with attack.connection(number % ADDRESSES) as (reader, writer):
            attack.counts["requests"] += 1
            writer.write(data)
            await until_cut(attack, reader, 0.2)

    await attack.repeat(work, 16)


async def claims(attack: Attack) -> None:
    """Frames that claim up to 2 GiB and have a few bytes, and requests that claim 2³¹ elements."""
    sizes = (
        -1,
        -(2**31),
        2**31 - 1,
        FRAME_BYTES_MAX + 1,
        FRAME_BYTES_MAX,
        PLAIN_BYTES_MAX,
        8 * MIB,
    )
    heads = [
        _PREFIX.pack(size, api.key, api.last) + b"\0" * 60
        for api in APIS.values()
        for size in sizes
    ]
    counts = ELEMENTS_MAX + 1, 1 << 20, (1 << 31) - 2
    lies = [
        sized(frame)
        for api, version in versions()
        for count in counts
        for frame in claimed(api, version, count)
    ]
    for_produce = [one for one in heads if one[4:6] == b"\0\0"]

    async def work(number: int) -> None:
        match number % 4:
            case 0:
                await send(attack, attack.rng.choice(lies), number % ADDRESSES)
            case 1:
                # The node takes memory for a large frame; the client leaves at once.
                async with attack.connection(number % ADDRESSES) as (_, writer):
                    attack.counts["requests"] += 1
                    writer.write(attack.rng.choice(for_produce))
                    await asyncio.sleep(0.01)
            case _:
                async with attack.connection(number % ADDRESSES) as (reader, writer):
                    attack.counts["requests"] += 1
                    writer.write(attack.rng.choice(heads))
                    await until_cut(attack, reader, 0.2)

    await attack.repeat(work, 16)


async def half_frames(attack: Attack) -> None:
    """Thousands of frames, sent but for their last bytes."""
    frame = request(produce(TOPIC, 0, bytes(32_000)), PRODUCE_VERSION)[:-10]

    async def work(number: int) -> None:
        async with attack.connection(number % ADDRESSES) as (reader, writer):
            attack.counts["requests"] += 1
            writer.write(frame if number % 8 else frame[: attack.rng.randrange(len(frame))])
            await until_cut(attack, reader, 30)

    await attack.repeat(work, 4_000)


async def slow_senders(attack: Attack) -> None:
    """Large frames of Produce, a little at a time: they hold what they claim."""
    head = _PREFIX.pack(FRAME_BYTES_MAX, 0, PRODUCE_VERSION)

    async def work(number: int) -> None:
        # Two addresses: each holds a quarter of the node's bytes in flight.
        async with attack.connection(number % 2) as (reader, writer):
            attack.counts["requests"] += 1
            writer.write(head)
            taking = asyncio.ensure_future(until_cut(attack, reader, attack.seconds))
            try:
                while not taking.done():
                    writer.write(bytes(KIB))
                    await asyncio.sleep(0.5)
            finally:
                taking.cancel()

    await attack.repeat(work, 120)


async def slow_readers(attack: Attack) -> None:
    """Large answers of Fetch that nothing reads, or a byte at a time."""
    for _ in range(16):
        for partition in PARTITIONS:
            batch = record_batch(*(attack.rng.randbytes(100 * KIB) for _ in range(9)))
            await send(attack, request(produce(TOPIC, partition, batch), PRODUCE_VERSION))
    message = fetch(TOPIC, *PARTITIONS, bytes_max=64 * MIB)
    frame = request(message, FETCH_VERSION)

    async def work(number: int) -> None:
        async with attack.connection(number % ADDRESSES) as (reader, writer):
            attack.counts["requests"] += 1
            writer.write(frame)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await reader.readexactly(8)
            attack.counts["begun"] += 1
            writer.transport.pause_reading()  # type: ignore[attr-defined] # of a socket, both ways
            await asyncio.sleep(10)

    await attack.repeat(work, 200)


async def idle(attack: Attack) -> None:
    """Thousands of connections that send nothing, or one request and nothing more."""

    async def work(number: int) -> None:
        async with attack.connection(number % ADDRESSES) as (reader, writer):
            if number % 2:
                attack.counts["requests"] += 1
                writer.write(VERSIONS)
                await answers(attack, reader, 1)
            await until_cut(attack, reader, 60)

    await attack.repeat(work, 4_000)


async def storms(attack: Attack) -> None:
    """Connections as fast as may be: reset at once, after a request, or amid one."""

    async def work(number: int) -> None:
        async with attack.connection(number % ADDRESSES) as (reader, writer):
            match number % 4:
                case 0:
                    await send_and_leave(attack, reader, writer)
                case 1:
                    writer.write(VERSIONS[: attack.rng.randrange(len(VERSIONS))])
                case 2:
                    writer.write(METADATA * 3)
            found: socket.socket = writer.get_extra_info("socket")
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            attack.counts["resets"] += 1

    await attack.repeat(work, 64)


async def send_and_leave(
    attack: Attack, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """One request with its answer."""
    attack.counts["requests"] += 1
    writer.write(VERSIONS)
    await answers(attack, reader, 1)


async def elements(attack: Attack) -> None:
    """Requests with as many elements as may be and more, and messages of nothing but tags."""
    names: Sequence[Callable[[int], str]] = (
        lambda _: TOPIC,
        lambda number: f"none-{number}",
    )
    frames = [
        sized(frame)
        for api, version in versions()
        if version in {api.first, api.last}
        for count in (ELEMENTS_MAX, ELEMENTS_MAX + 1)
        for name in names
        for frame in crowded(api, version, count, name)
        if len(frame) <= PLAIN_BYTES_MAX
    ]
    tags = unknown_tags(PLAIN_BYTES_MAX - 1_000)
    frames += [
        sized(tagged(api, api.last, tags))
        for api in APIS.values()
        if api.is_request_flexible(api.last)
    ]
    frames.append(sized(tagged(APIS[0], 9, tags * 30)))
    await _cycle(attack, frames, 4)


async def bombs(attack: Attack) -> None:
    """Record batches that inflate, and requests that have to look into them.

    By one client: with four, the others wait for a second (raftlog/kafka/DESIGN.md, Open).
    """
    frames = [
        request(produce(TOPIC, partition, data), PRODUCE_VERSION)
        for data in compressed_bombs()
        for partition in PARTITIONS
    ]
    times = (-1, -2, -3, 0, 1, 2**62)
    frames += [
        request(
            ListOffsetsRequest(
                topics=(
                    ListOffsetsTopic(
                        TOPIC,
                        tuple(ListOffsetsPartition(one, timestamp=time) for one in PARTITIONS),
                    ),
                )
            ),
            7,
        )
        for time in times
    ] * 3
    await _cycle(attack, frames, 1)


async def _cycle(attack: Attack, frames: Sequence[bytes], count: int) -> None:
    order = attack.rng.sample(frames, len(frames))
    numbers: Iterator[int] = iter(range(1 << 62))

    async def work(number: int) -> None:
        await send(attack, order[next(numbers) % len(order)], number % ADDRESSES)

    await attack.repeat(work, count)


async def pipelines(attack: Attack) -> None:
    """Thousands of requests in one write; the answers are read late, or never."""
    small = request(produce(TOPIC, 0, record_batch(bytes(1000))), PRODUCE_VERSION)
    silent = request(produce(TOPIC, 1, record_batch(bytes(1000)), acks=0), PRODUCE_VERSION)
    many = VERSIONS * 1_000 + (small + silent) * 200 + METADATA * 800

    async def work(number: int) -> None:
        async with attack.connection(number % ADDRESSES) as (reader, writer):
            attack.counts["requests"] += 2_200
            writer.write(many)
            await asyncio.sleep(0.5)
            if number % 2:
                await answers(attack, reader, 2_000)

    await attack.repeat(work, 16)


async def held(attack: Attack) -> None:
    """Fetches that wait for records which never come, with many requests behind each."""
    message = fetch(TOPIC, 0, offset=0, wait_ms=HELD_MS, min_bytes=2**31 - 1)
    frames = request(message, FETCH_VERSION) + VERSIONS * (64 * KIB // len(VERSIONS))

    async def work(number: int) -> None:
        async with attack.connection(number % ADDRESSES) as (reader, writer):
            attack.counts["requests"] += 1
            writer.write(frames)
            await until_cut(attack, reader, 60)

    await attack.repeat(work, 3_000)


def _kind(run: Callable[[Attack], Awaitable[None]], **least: int) -> Kind:
    return Kind(run, least, is_kafka=True)


KAFKA_ATTACKS: Final[dict[str, Kind]] = {
    "kafka-mutations": _kind(mutations, requests=500, answers=50, cut=50),
    "kafka-noise": _kind(noise, requests=50, cut=20),
    "kafka-claims": _kind(claims, requests=100, cut=30),
    "kafka-half-frames": _kind(half_frames, open=1_000),
    "kafka-slow-senders": _kind(slow_senders, open=100),
    "kafka-slow-readers": _kind(slow_readers, open=100, begun=30),
    "kafka-idle": _kind(idle, open=1_000, answers=300),
    "kafka-storms": _kind(storms, resets=200, answers=50),
    "kafka-elements": _kind(elements, answers=5, cut=5),
    "kafka-bombs": _kind(bombs, answers=10),
    "kafka-pipelines": _kind(pipelines, answers=1_000),
    "kafka-held": _kind(held, open=1_000),
}
