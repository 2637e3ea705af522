"""A small client of the Kafka protocol: raw frames on one connection, for victims and attackers."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final

import msgspec

from raftlog.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from raftlog.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from raftlog.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from raftlog.record.types import Buffer
from tests.attack.kafka_inputs import api_of, record_batch, request

METADATA_VERSION: Final = 12
PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 12
ANSWER_BYTES_MAX: Final = 1 << 30
ELEMENTS_MAX: Final = 1 << 20
TIMEOUT_MS: Final = 10_000


def produce(topic: str, partition: int, records: Buffer, *, acks: int = -1) -> ProduceRequest:
    """Append records to one partition."""
    data = TopicProduceData(topic, None, (PartitionProduceData(partition, records),))
    return ProduceRequest(None, acks, TIMEOUT_MS, (data,))


def fetch(
    topic: str,
    *partitions: int,
    offset: int = 0,
    wait_ms: int = 0,
    min_bytes: int = 1,
    bytes_max: int = 1 << 20,
) -> FetchRequest:
    """Read partitions, each from the same offset on."""
    rows = tuple(
        FetchPartition(number, -1, offset, partition_max_bytes=bytes_max) for number in partitions
    )
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=bytes_max,
        topics=(FetchTopic(topic, None, rows),),
    )


class FailedError(Exception):
    """A partition answered an error; `code` is Kafka's."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error code {code}")
        self.code = code


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """The next answer without its size. Raises OSError, asyncio.IncompleteReadError."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    if not 4 <= size <= ANSWER_BYTES_MAX:
        raise ConnectionError(f"an answer of {size} bytes")
    return await reader.readexactly(size)


class KafkaConnection:
    """One connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, address: str) -> KafkaConnection:
        """Connect to `host:port`. Raises OSError."""
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, message: msgspec.Struct, version: int) -> Any:
        """The answer to a request. Raises OSError, asyncio.IncompleteReadError."""
        self._writer.write(request(message, version))
        data = await read_answer(self._reader)
        api = api_of(message)
        start = 5 if api.is_answer_flexible(version) else 4
        return api.response_codec(version).decode(data, start, ELEMENTS_MAX)

    def close(self) -> None:
        """Close the connection."""
        self._writer.transport.abort()


class KafkaClient:
    """Writes and reads one partition at its leader; finds the leader again after an error."""

    def __init__(self, address: str, topic: str, partition: int) -> None:
        self._address = address
        self._topic, self._partition = topic, partition
        self._connection: KafkaConnection | None = None
        self._end = 0
        """The offset after the last record that is known."""

    async def send(self) -> None:
        """Append one record. Raises FailedError, OSError, asyncio.IncompleteReadError."""
        message = produce(self._topic, self._partition, record_batch(b"value"))
        answer = await self._ask(message, PRODUCE_VERSION)
        [row] = answer.responses[0].partition_responses
        self._check(row.error_code)
        self._end = row.base_offset + 1

    async def read(self) -> None:
        """Read the last record that is known. Raises as `send`."""
        message = fetch(self._topic, self._partition, offset=max(self._end - 1, 0))
        answer = await self._ask(message, FETCH_VERSION)
        [row] = answer.responses[0].partitions
        self._check(row.error_code)
        self._end = row.high_watermark

    async def _ask(self, message: msgspec.Struct, version: int) -> Any:
        connection = self._connection or await self._at_leader()
        try:
            return await connection.ask(message, version)
        except BaseException:
            # A later answer would be taken for that of a later request.
            self.close()
            raise

    async def _at_leader(self) -> KafkaConnection:
        """A connection to the partition's leader."""
        first = await KafkaConnection.open(self._address)
        try:
            wanted = (MetadataRequestTopic(None, self._topic),)
            answer = await first.ask(MetadataRequest(wanted), METADATA_VERSION)
        finally:
            first.close()
        row = next(
            one for one in answer.topics[0].partitions if one.partition_index == self._partition
        )
        self._check(row.error_code)
        leader = next(one for one in answer.brokers if one.node_id == row.leader_id)
        self._connection = await KafkaConnection.open(f"{leader.host}:{leader.port}")
        return self._connection

    def _check(self, code: int) -> None:
        if code:
            self.close()
            raise FailedError(code)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
