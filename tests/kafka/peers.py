"""A Kafka listener over topics in memory, and a client that sends single frames."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from raftlog.broker.authorize import Authorize, Operation, Principal, Resource, allow_all
from raftlog.broker.service import Broker
from raftlog.coordinator.transactions.kind import TransactionCoordinator, TransactionKind
from raftlog.coordinator.transactions.transaction import TransactionSettings
from raftlog.http.settings import ServerLimits, ServerSettings
from raftlog.kafka.apis import APIS, Api
from raftlog.kafka.listener import KafkaListener
from raftlog.kafka.settings import KafkaSettings
from raftlog.metadata.commands import KAFKA_ADDRESS_VERSION, RegisterBroker
from raftlog.raft.voters import Voter, VoterSet
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.record.errors import FORBIDDEN, LogError
from raftlog.record.types import BrokerId
from raftlog.schema.codec import ELEMENTS_MAX, codec_of
from tests.broker.data_fakes import DataNode
from tests.broker.harness import coordinating_groups
from tests.http.fakes import FakeLogs, FakeMetadata, FakeQuorum

DEADLINE_S = 10.0


def api_of(request: msgspec.Struct) -> Api:
    return next(api for api in APIS.values() if api.request_type is type(request))


@dataclass
class RawClient:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sent: list[tuple[Api, int]] = field(default_factory=list)

    def frame(self, request: msgspec.Struct, version: int, client_id: bytes = b"c") -> bytes:
        """The request's frame; its correlation id is its place among all."""
        api = api_of(request)
        self.sent.append((api, version))
        head = struct.pack(">hhih", api.key, version, len(self.sent) - 1, len(client_id))
        head += client_id
        if api.is_request_flexible(version):
            head += b"\0"
        body = head + codec_of(api.request_type, version).encode(request)
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

    def advertise(self, port: int | None) -> None:
        """Register the address of the listener; None: there is none."""
        broker = self.node.metadata.image.brokers[BrokerId(1)]
        self.node.metadata.run(
            RegisterBroker(
                v=KAFKA_ADDRESS_VERSION,
                broker_id=broker.broker_id,
                directory_id=broker.directory_id,
                incarnation=broker.incarnation,
                host=broker.host,
                port=broker.port,
                software_version=broker.software_version,
                kafka_host=None if port is None else "127.0.0.1",
                kafka_port=port,
            )
        )


@asynccontextmanager
async def kafka_node(
    settings: KafkaSettings | None = None,
    *,
    brokers: int = 1,
    authorize: Authorize = allow_all,
    **limits: Any,
) -> AsyncIterator[KafkaNode]:
    """Broker 1, with topics `one` (1 partition) and `six` (6). The other brokers do not run."""
    metadata = FakeMetadata(brokers=1)
    for number in range(2, brokers + 1):
        metadata.register(number, kafka_port=number)
        metadata.unfence(number)
    node = DataNode(metadata)
    node.services.quorum = FakeQuorum(
        1, VoterSet(tuple(Voter(n, f"10.0.0.{n}", 8082) for n in range(1, brokers + 1)))
    )
    node.services.logs = FakeLogs()
    async with _listening(node, settings, authorize, **limits) as one:
        yield one


@asynccontextmanager
async def group_node(
    cluster_settings: Mapping[str, str] | None = None,
    *,
    settings: KafkaSettings | None = None,
    authorize: Authorize = allow_all,
) -> AsyncIterator[KafkaNode]:
    """The same, with the coordinators of groups and transactions. Classic groups begin at once."""
    node = DataNode()
    node.services.quorum = FakeQuorum(1, VoterSet((Voter(1, "10.0.0.1", 8082),)))
    node.services.logs = FakeLogs()
    node.metadata.image.cluster_settings = {
        "group.initial.rebalance.delay.ms": "0",
        **(cluster_settings or {}),
    }
    transactions = TransactionKind(
        node.metadata.allocate_producer_id, _no_markers, TransactionSettings()
    )
    async with (
        coordinating_groups(node, transactions),
        _listening(node, settings, authorize) as one,
    ):
        yield one


async def _no_markers(_shard: TransactionCoordinator) -> None:
    """There are no transactions."""


@asynccontextmanager
async def _listening(
    node: DataNode, settings: KafkaSettings | None, authorize: Authorize, **limits: Any
) -> AsyncIterator[KafkaNode]:
    await node.metadata.create_topic("one", partitions=1, replication_factor=1)
    await node.metadata.create_topic("six", partitions=6, replication_factor=1)
    server = ServerSettings(limits=ServerLimits(**limits))
    broker = Broker(node.services, server.for_broker(), authorize)
    failures: list[BaseException] = []
    listener = KafkaListener(broker, settings or KafkaSettings(shutdown_s=1.0), failures.append)
    await listener.start(socket.create_server(("127.0.0.1", 0)))
    one = KafkaNode(node, broker, listener)
    one.advertise(listener.port)
    try:
        yield one
    finally:
        broker.closing.set()
        await listener.close()
        await asyncio.sleep(0)
        broker.close()
    assert not failures
    assert broker.bytes_in_flight.used == 0, "bytes in flight leaked"


def refusing(*refused: Operation) -> Authorize:
    """Refuses these operations on everything."""

    def authorize(_principal: Principal, operation: Operation, _resource: Resource) -> None:
        if operation in refused:
            raise LogError(FORBIDDEN)

    return authorize


def batch(*values: bytes) -> bytes:
    """A record batch as a client builds it."""
    builder = BatchBuilder(Compression.NONE, 1 << 20)
    for number, value in enumerate(values):
        builder.append(1_700_000_000_000 + number, None, value, None)
    return bytes(builder.build())
