"""A Kafka listener over topics in memory, and a client that sends single frames."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from raftlog.broker.service import Broker
from raftlog.http.settings import ServerLimits, ServerSettings
from raftlog.kafka.apis import APIS, Api
from raftlog.kafka.listener import KafkaListener
from raftlog.kafka.settings import KafkaSettings
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.record.types import BrokerId
from raftlog.schema.codec import ELEMENTS_MAX
from tests.broker.data_fakes import DataNode

DEADLINE_S = 10.0


def api_of(request: msgspec.Struct) -> Api:
    return next(api for api in APIS.values() if api.request_type is type(request))


@dataclass
class RawClient:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sent: list[tuple[Api, int]] = field(default_factory=list)

    def frame(self, request: msgspec.Struct, version: int) -> bytes:
        """The request's frame; its correlation id is its place among all."""
        api = api_of(request)
        self.sent.append((api, version))
        head = struct.pack(">hhih", api.key, version, len(self.sent) - 1, 1) + b"c"
        if api.is_request_flexible(version):
            head += b"\0"
        body = head + api.request_codec(version).encode(request)
        return struct.pack(">i", len(body)) + body

    async def send(self, request: msgspec.Struct, version: int) -> None:
        self.writer.write(self.frame(request, version))
        await self.writer.drain()

    async def receive(self) -> tuple[int, Any]:
        """Number and message of the next answer."""
        async with asyncio.timeout(DEADLINE_S):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            data = await self.reader.readexactly(size)
        (number,) = struct.unpack_from(">i", data)
        api, version = self.sent[number]
        start = 5 if api.is_answer_flexible(version) else 4
        return number, api.response_codec(version).decode(data, start, ELEMENTS_MAX)

    async def ask(self, request: msgspec.Struct, version: int) -> Any:
        await self.send(request, version)
        number, answer = await self.receive()
        assert number == len(self.sent) - 1
        return answer

    async def ends(self) -> bool:
        """Whether the listener closes the connection, without another answer."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


@dataclass
class KafkaNode:
    """A node with a Kafka listener."""

    node: DataNode
    broker: Broker
    listener: KafkaListener

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.port}"

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RawClient]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        try:
            yield RawClient(reader, writer)
        finally:
            writer.close()


@asynccontextmanager
async def kafka_node(
    settings: KafkaSettings | None = None, **limits: Any
) -> AsyncIterator[KafkaNode]:
    """A running node with topics `one` (1 partition) and `six` (6)."""
    node = DataNode()
    await node.metadata.create_topic("one", partitions=1)
    await node.metadata.create_topic("six", partitions=6)
    server = ServerSettings(limits=ServerLimits(**limits))
    broker = Broker(node.services, server.for_broker())
    failures: list[BaseException] = []
    listener = KafkaListener(broker, settings or KafkaSettings(shutdown_s=1.0), failures.append)
    await listener.start(socket.create_server(("127.0.0.1", 0)))
    brokers = node.metadata.image.brokers
    brokers[BrokerId(1)] = replace(
        brokers[BrokerId(1)], kafka_host="127.0.0.1", kafka_port=listener.port
    )
    try:
        yield KafkaNode(node, broker, listener)
    finally:
        await listener.close()
        await asyncio.sleep(0)
        broker.close()
    assert not failures
    assert broker.bytes_in_flight.used == 0, "bytes in flight leaked"


def batch(*values: bytes) -> bytes:
    """A record batch as a client builds it."""
    builder = BatchBuilder(Compression.NONE, 1 << 20)
    for number, value in enumerate(values):
        builder.append(1_700_000_000_000 + number, None, value, None)
    return bytes(builder.build())
