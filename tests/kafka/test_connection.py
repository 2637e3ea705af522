"""One connection: order of answers, bounds, malformed frames, slow clients, the end."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import psutil
import pytest

from raftlog.broker.limits import address_group
from raftlog.kafka import listener
from raftlog.kafka.listener import Connection, KafkaListener
from raftlog.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from raftlog.kafka.messages.groups import ListGroupsRequest
from raftlog.kafka.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from raftlog.kafka.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from raftlog.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from raftlog.kafka.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from raftlog.kafka.metrics import EndReason
from raftlog.kafka.settings import KafkaSettings
from raftlog.schema.codec import codec_of
from tests.kafka.peers import DEADLINE_S, KafkaNode, RawClient, batch, kafka_node

VERSIONS = ApiVersionsRequest("test", "1")
LISTED = ListGroupsRequest()


@pytest.fixture
async def one() -> AsyncIterator[KafkaNode]:
    async with kafka_node() as node:
        yield node


def produce(
    *values: bytes, topic: str = "one", partition: int = 0, acks: int = -1
) -> ProduceRequest:
    data = TopicProduceData(topic, None, (PartitionProduceData(partition, batch(*values)),))
    return ProduceRequest(None, acks, 10_000, (data,))


def fetch(offset: int, *, wait_ms: int = 0, topic: str = "one", isolation: int = 0) -> FetchRequest:
    part = FetchPartition(0, -1, offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        isolation_level=isolation,
        topics=(FetchTopic(topic, None, (part,)),),
    )


def end_of(topic: str = "one", partition: int = 0) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        topics=(ListOffsetsTopic(topic, (ListOffsetsPartition(partition, timestamp=-1),)),)
    )


async def test_records_come_back_as_they_were_sent(one: KafkaNode) -> None:
    async with one.client() as client:
        answer = await client.ask(produce(b"a", b"b"), 9)
        [row] = answer.responses[0].partition_responses
        assert (row.error_code, row.base_offset) == (0, 0)
        answer = await client.ask(fetch(0), 12)
        [part] = answer.responses[0].partitions
        assert part.high_watermark == 2
        sent = batch(b"a", b"b")
        # Base offset and leader epoch are the broker's.
        assert bytes(part.records)[16:] == sent[16:]
        answer = await client.ask(end_of(), 7)
        assert answer.topics[0].partitions[0].offset == 2


@pytest.mark.parametrize("version", [0, 2, 3, 4])
async def test_a_client_learns_the_versions_first(one: KafkaNode, version: int) -> None:
    async with one.client() as client:
        answer = await client.ask(VERSIONS, version)
        offered = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        assert offered[0] == (0, 13)
        assert offered[18] == (0, 4)


async def test_an_unknown_version_of_the_first_request_is_answered_in_version_0(
    one: KafkaNode,
) -> None:
    async with one.client() as client:
        head = struct.pack(">hhih", 18, 99, 7, -1) + b"\0" * 9
        client.writer.write(struct.pack(">i", len(head)) + head)
        (size,) = struct.unpack(">i", await client.reader.readexactly(4))
        data = await client.reader.readexactly(size)
        assert data[:4] == b"\0\0\0\7"
        answer = codec_of(ApiVersionsResponse, 0).decode(data, 4, 1_000)
        assert answer.error_code == 35
        assert answer.api_keys
        assert (await client.ask(VERSIONS, 3)).error_code == 0


@pytest.mark.parametrize("client_id", ["müller".encode("latin-1"), b"\xff" * 1_000, b""])
@pytest.mark.parametrize(("request_", "version"), [(VERSIONS, 3), (VERSIONS, 0), (LISTED, 0)])
async def test_a_client_id_may_be_any_bytes(
    one: KafkaNode, client_id: bytes, request_: msgspec.Struct, version: int
) -> None:
    async with one.client() as client:
        client.writer.write(client.frame(request_, version, client_id))
        assert (await client.receive())[1].error_code == 0


async def test_sasl_is_refused_on_a_listener_without_it(one: KafkaNode) -> None:
    async with one.client() as client:
        offered = {api.api_key for api in (await client.ask(VERSIONS, 3)).api_keys}
        assert {17, 36} <= offered
        for version in (0, 1):
            answer = await client.ask(SaslHandshakeRequest("PLAIN"), version)
            assert (answer.error_code, answer.mechanisms) == (34, ())
        for version in (0, 1, 2):
            answer = await client.ask(SaslAuthenticateRequest(b"\0user\0secret"), version)
            assert answer.error_code == 34
            assert "SASL" in answer.error_message
        assert (await client.ask(LISTED, 0)).error_code == 0


async def test_answers_leave_in_the_order_of_the_requests(one: KafkaNode) -> None:
    """Though the first one is held back."""
    async with one.client() as client, one.client() as other:
        await client.send(fetch(0, wait_ms=5_000), 12)
        for _ in range(20):
            await client.send(VERSIONS, 3)
        await other.ask(produce(b"x"), 9)
        numbers = [(await client.receive())[0] for _ in range(21)]
        assert numbers == list(range(21))


async def test_pipelines_of_many_connections_take_turns(
    one: KafkaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = most = 0
    count, advance = KafkaListener.begun, KafkaListener._next_turn

    def counted(self: KafkaListener) -> None:
        nonlocal begun, most
        begun += 1
        most = max(most, begun)
        count(self)

    def advanced(self: KafkaListener) -> None:
        nonlocal begun
        begun = 0
        advance(self)

    monkeypatch.setattr(listener, "REQUESTS_PER_TURN", 4)
    monkeypatch.setattr(KafkaListener, "begun", counted)
    monkeypatch.setattr(KafkaListener, "_next_turn", advanced)
    one.listener._next_turn()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(one.client()) for _ in range(5)]
        for client in clients:
            client.writer.write(b"".join(client.frame(VERSIONS, 3) for _ in range(50)))
        for client in clients:
            assert [(await client.receive())[0] for _ in range(50)] == list(range(50))
    assert most == 4


async def test_the_addresses_of_a_line_take_turns(
    one: KafkaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address with many connections delays no other."""
    events: list[tuple[str, str]] = []
    may_begin, begin = KafkaListener.may_begin, Connection._begin

    def asked(self: KafkaListener, connection: Connection) -> bool:
        may = may_begin(self, connection)
        if not may:
            events.append(("waits", connection.address_group))
        return may

    def began(self: Connection, frame: Any, taken: int) -> None:
        events.append(("begins", self.address_group))
        begin(self, frame, taken)

    monkeypatch.setattr(listener, "REQUESTS_PER_TURN", 1)
    monkeypatch.setattr(KafkaListener, "may_begin", asked)
    monkeypatch.setattr(Connection, "_begin", began)
    one.listener._next_turn()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(one.client()) for _ in range(40)]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", one.listener.port, local_addr=("127.0.0.2", 0)
        )
        other = RawClient(reader, writer)
        stack.callback(writer.close)
        await other.ask(VERSIONS, 3)
        for client in clients:
            client.writer.write(b"".join(client.frame(VERSIONS, 3) for _ in range(10)))
        await other.ask(VERSIONS, 3)
        for client in clients:
            assert [(await client.receive())[0] for _ in range(10)] == list(range(10))
    group = address_group("127.0.0.2")
    last = max(place for place, event in enumerate(events) if event == ("begins", group))
    waits = [place for place, event in enumerate(events[:last]) if event == ("waits", group)]
    since = events[waits[0] if waits else last : last]
    assert since.count(("begins", address_group("127.0.0.1"))) <= 2
    assert ("waits", address_group("127.0.0.1")) in events


async def test_a_frame_may_arrive_byte_by_byte(one: KafkaNode) -> None:
    async with one.client() as client:
        for byte in client.frame(produce(b"slow"), 9) + client.frame(VERSIONS, 3):
            client.writer.write(bytes([byte]))
            await client.writer.drain()
        assert (await client.receive())[0] == 0
        assert (await client.receive())[0] == 1


@pytest.mark.parametrize("size", [32_000, 33_000, 100_000, 900_000])
async def test_large_frames_and_what_follows_them(one: KafkaNode, size: int) -> None:
    async with one.client() as client:
        frames = [client.frame(produce(bytes(size)), 9) for _ in range(3)]
        client.writer.write(b"".join(frames) + client.frame(VERSIONS, 3))
        for number in range(4):
            assert (await client.receive())[0] == number
        assert one.node.record_count() == 3


async def test_a_frame_larger_than_any_batch(one: KafkaNode) -> None:
    parts = tuple(PartitionProduceData(number, batch(bytes(900_000))) for number in range(3))
    request = ProduceRequest(None, -1, 10_000, (TopicProduceData("six", None, parts),))
    async with one.client() as client:
        answer = await client.ask(request, 9)
        codes = [part.error_code for part in answer.responses[0].partition_responses]
        assert codes == [0, 0, 0]


async def test_bytes_that_are_claimed_take_no_memory_until_they_come(one: KafkaNode) -> None:
    """Clearing 32 MiB for each claim held the event loop for 10 ms a connection."""
    size = 32 << 20
    async with one.client() as client:
        before = psutil.Process().memory_info().rss
        client.writer.write(struct.pack(">ihhih", size, 0, 9, 0, -1))
        async with asyncio.timeout(DEADLINE_S):
            while one.broker.bytes_in_flight.used < size:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        after = psutil.Process().memory_info().rss
    assert after - before < size / 4


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">ihh", 100, 99, 0),
        struct.pack(">ihh", 100, 1, 3),
        struct.pack(">ihh", 100, 1, 99),
        struct.pack(">ihh", -1, 18, 0),
        struct.pack(">ihh", 3, 18, 0),
        struct.pack(">ihh", 0x7FFFFFFF, 0, 9),
        struct.pack(">ihh", 2 << 20, 3, 9),
        struct.pack(">ihhih", 10, 3, 9, 0, 1_000),
        struct.pack(">ihhih", 14, 3, 9, 0, 0) + b"\xff\xff\xff\xff",
        struct.pack(">ihhih", 25, 0, 9, 0, -1) + bytes.fromhex("00 00ffff00000000ffffffff0f0000"),
    ],
    ids=lambda frame: frame.hex()[:24],
)
async def test_a_frame_that_makes_no_sense_ends_its_connection_alone(
    one: KafkaNode, frame: bytes
) -> None:
    async with one.client() as other, one.client() as client:
        client.writer.write(frame)
        assert await client.ends()
        assert one.listener.metrics.ended[EndReason.MALFORMED] == 1
        assert (await other.ask(VERSIONS, 3)).error_code == 0


async def test_more_requests_than_may_be_handled_wait_their_turn() -> None:
    settings = KafkaSettings(requests_per_connection_max=2, shutdown_s=1.0)
    async with kafka_node(settings) as one, one.client() as client:
        frames = [client.frame(produce(b"%d" % number), 9) for number in range(50)]
        client.writer.write(b"".join(frames))
        for number in range(50):
            assert (await client.receive())[0] == number


async def test_a_large_frame_waits_for_room_and_is_never_refused() -> None:
    async with (
        kafka_node(bytes_in_flight_max=400_000) as one,
        one.client() as client,
        one.client() as other,
    ):
        # All of the address's share is held by another request.
        one.broker.bytes_in_flight.reserve(90_000, "127.0.0.1")
        await client.send(produce(bytes(50_000)), 9)
        assert (await other.ask(VERSIONS, 3)).error_code == 0
        assert not one.node.record_count()
        one.broker.bytes_in_flight.release(90_000, "127.0.0.1")
        assert (await client.receive())[0] == 0


async def test_answers_that_clients_do_not_read_are_bounded_for_all_of_an_address() -> None:
    """Each of 200 slow readers took 32 MiB of a node."""
    share = 4 << 20
    async with kafka_node(bytes_in_flight_max=4 * share) as one, AsyncExitStack() as stack:
        first = await stack.enter_async_context(one.client())
        for _ in range(12):
            await first.ask(produce(bytes(900_000)), 9)
        clients = [await stack.enter_async_context(one.client()) for _ in range(8)]
        part = FetchPartition(0, -1, 0, partition_max_bytes=32 << 20)
        request = FetchRequest(max_bytes=32 << 20, topics=(FetchTopic("one", None, (part,)),))
        for client in clients:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(request, 12)
        async with asyncio.timeout(DEADLINE_S):
            while one.listener._tasks or not one.broker.bytes_in_flight.used:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert share / 2 < one.broker.bytes_in_flight.used <= share + (1 << 20)
        sizes = []
        for client in clients:
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            _, answer = await client.receive()
            sizes.append(len(answer.responses[0].partitions[0].records))
        assert max(sizes) > share / 2
        assert min(sizes) == 0
        answer = await clients[0].ask(request, 12)
        assert answer.responses[0].partitions[0].records


async def test_an_address_that_holds_nothing_reads_while_others_hold_the_budget(
    one: KafkaNode,
) -> None:
    budget = one.broker.bytes_in_flight
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"):
        budget.force_reserve(budget.per_client_max, address)
    try:
        async with one.client() as client:
            await client.ask(produce(b"x"), 9)
            answer = await client.ask(fetch(0), 12)
            assert answer.responses[0].partitions[0].records
    finally:
        for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"):
            budget.release(budget.per_client_max, address)


async def test_a_client_that_leaves_ends_its_fetch_and_no_write(one: KafkaNode) -> None:
    async with one.client() as client:
        await client.send(fetch(0, wait_ms=60_000), 12)
        while not one.listener._tasks:  # noqa: ASYNC110 (plain data)
            await asyncio.sleep(0.005)
    async with asyncio.timeout(DEADLINE_S):
        while one.listener._tasks or one.listener._connections:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_large_fetch_that_never_began_gives_its_bytes_back(one: KafkaNode) -> None:
    """Its connection is lost in the step of the event loop in which the last bytes come."""
    part = FetchPartition(0, -1, 0, partition_max_bytes=1 << 20)
    topics = tuple(FetchTopic(f"none-{number}", None, (part,)) for number in range(2_000))
    async with one.client() as client:
        frame = memoryview(client.frame(FetchRequest(topics=topics), 12))
        await client.ask(VERSIONS, 3)
        [connection] = one.listener._connections
        while frame:
            buffer = connection.get_buffer(len(frame))
            count = min(len(buffer), len(frame))
            buffer[:count] = frame[:count]
            connection.buffer_updated(count)
            frame = frame[count:]
        assert one.broker.bytes_in_flight.used
        connection._transport.abort()  # type: ignore[union-attr]
        connection.connection_lost(None)
        async with asyncio.timeout(DEADLINE_S):
            while one.listener._tasks:  # noqa: ASYNC110 (plain data)
                await asyncio.sleep(0.005)
        assert not one.broker.bytes_in_flight.used


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        (KafkaSettings(idle_s=0.1), b""),
        (KafkaSettings(receive_s=0.1), b"\0\0\0\x40\0\x12\0\3"),
        (KafkaSettings(receive_s=0.1), struct.pack(">ihh", 100_000, 0, 9)),
    ],
)
async def test_idle_and_slow_clients_are_cut_off(settings: KafkaSettings, sent: bytes) -> None:
    async with kafka_node(settings) as one, one.client() as client:
        client.writer.write(sent)
        assert await client.ends()


async def test_too_many_connections_of_one_address_are_closed() -> None:
    async with (
        kafka_node(KafkaSettings(connections_per_address_max=1)) as one,
        one.client() as client,
        one.client() as refused,
    ):
        assert await refused.ends()
        assert (await client.ask(VERSIONS, 3)).error_code == 0


async def test_requests_in_flight_are_answered_before_the_listener_closes(one: KafkaNode) -> None:
    async with one.client() as client:
        log = one.node.log()
        log.hold_flush = True
        await client.send(produce(b"a"), 9)
        while not one.node.record_count():  # noqa: ASYNC110 (plain data)
            await asyncio.sleep(0.005)
        closing = asyncio.ensure_future(one.listener.close())
        await asyncio.sleep(0)
        log.hold_flush = False
        log.flush_now()
        assert (await client.receive())[0] == 0
        await closing
        assert await client.ends()
