"""A request that repeats a name to its bound, beside one large stored object, for every API.

The work of a step is counted in calls of functions, the memory in allocated bytes.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from raftlog.broker.transactions import TransactionService
from raftlog.kafka import call
from raftlog.kafka.apis import APIS, Api
from raftlog.kafka.handlers.brokers import LEADER_NOT_AVAILABLE
from raftlog.kafka.handlers.groups import COORDINATOR_LOAD_IN_PROGRESS
from raftlog.kafka.handlers.names import INVALID_REQUEST
from raftlog.kafka.messages.classic import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from raftlog.kafka.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from raftlog.kafka.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest
from raftlog.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from raftlog.kafka.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from raftlog.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    InitProducerIdRequest,
)
from raftlog.record.types import TopicId
from raftlog.storage.producers.state import ProducerDescription
from tests.attack.kafka_inputs import Values, repeated, sized
from tests.kafka.offsets import commit_request, committed_codes
from tests.kafka.peers import KafkaNode, RawClient, group_node

NAME: Final = "large"
"""Name of the stored topic, groups and transactional id."""
PARTITIONS: Final = 2_000
PRODUCERS: Final = 1_000
"""Producers of each partition."""
METADATA: Final = bytes(150_000)
CALLS_PER_STEP_MAX: Final = 60_000
CALLS_PER_ELEMENT_MAX: Final = 60
"""Calls of functions in one step of the event loop, 45 ms for 10,000 elements of a request."""
HELD_OR_DELETING: Final = {11, 14, 20, 42, 47}
"""Keys of APIs that come last: JoinGroup, SyncGroup, DeleteTopics, DeleteGroups, OffsetDelete."""
MEMORY_BYTES_MAX: Final = 256 << 20
DEADLINE_S: Final = 60.0
NON_EMPTY_GROUP: Final = 68


@pytest.fixture
async def one(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KafkaNode]:
    """A node with one large object of each kind."""
    async with group_node() as node, node.client() as client:
        topic = await node.node.metadata.create_topic(
            NAME, partitions=PARTITIONS, replication_factor=1
        )
        logs: Any = node.node.services.logs
        logs.sizes |= {(topic.topic_id, number): 1 for number in range(PARTITIONS)}
        monkeypatch.setattr(TransactionService, "producers", _producers)
        await _store_group(client)
        producer = await client.ask(InitProducerIdRequest(NAME, 60_000), 4)
        added = AddPartitionsToTxnTopic(NAME, tuple(range(PARTITIONS)))
        await client.ask(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=NAME,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=(added,),
            ),
            3,
        )
        yield node


async def _producers(*_: Any, **__: Any) -> list[ProducerDescription]:
    return [
        ProducerDescription(
            producer_id=number,
            producer_epoch=0,
            last_sequence=0,
            idle_ms=0,
            coordinator_epoch=-1,
            transaction_start=None,
        )
        for number in range(PRODUCERS)
    ]


async def _store_group(client: RawClient) -> None:
    """Store a classic group with a member, and committed offsets."""
    protocol = JoinGroupRequestProtocol("range", METADATA)
    joining = JoinGroupRequest(
        group_id=NAME,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        group_instance_id="i",
        protocol_type="consumer",
        protocols=(protocol,),
    )
    member_id = (await client.ask(joining, 9)).member_id
    mine = SyncGroupRequestAssignment(member_id, METADATA)
    syncing = SyncGroupRequest(
        group_id=NAME,
        generation_id=1,
        member_id=member_id,
        group_instance_id="i",
        protocol_type="consumer",
        protocol_name="range",
        assignments=(mine,),
    )
    await client.ask(syncing, 5)
    for first in range(0, PARTITIONS, 200):
        committed = commit_request(
            NAME,
            dict.fromkeys(((NAME, first + number) for number in range(200)), 1),
            metadata="m" * 4_000,
            generation_id_or_member_epoch=1,
            member_id=member_id,
            group_instance_id="i",
        )
        assert set(committed_codes(await client.ask(committed, 9))) == {0}


@contextmanager
def steps() -> Iterator[list[int]]:
    """The calls of functions in each step of the event loop."""
    found: list[int] = []
    count = 0
    run = asyncio.events.Handle._run

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    def counted(handle: asyncio.events.Handle) -> None:
        before = count
        run(handle)
        found.append(count - before)

    asyncio.events.Handle._run = counted  # type: ignore[method-assign]
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        asyncio.events.Handle._run = run  # type: ignore[method-assign]


async def read_away(client: RawClient) -> int:
    """Read a response in pieces and drop them. Returns its size, or 0 without a response."""
    async with asyncio.timeout(DEADLINE_S):
        try:
            (size,) = struct.unpack(">i", await client.reader.readexactly(4))
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0
        left = size
        while left:
            left -= len(await client.reader.read(min(left, 1 << 16)))
    return int(size)


def frames(api: Api, topic_id: TopicId, count: int) -> Iterator[tuple[str, bytes]]:
    """Requests with many elements in each array: alike, or apart by a number."""
    variants = {
        "alike": Values(NAME, topic_id),
        "numbers": Values(NAME, topic_id, number_of=lambda place: place),
        "names": Values(NAME, topic_id, suffix_of=str),
        "long names": Values("x" * 30_000, topic_id, number_of=lambda place: place),
    }
    for variant, values in variants.items():
        for frame in repeated(api, api.last, values, count):
            if len(frame) < 1 << 20:
                yield f"{api.name}, {variant}, {len(frame)} bytes", sized(frame)


@pytest.mark.parametrize("count", [1_000, pytest.param(9_900, marks=pytest.mark.full)])
async def test_repeated_names_multiply_neither_memory_nor_a_step(
    one: KafkaNode, count: int
) -> None:
    topic_id = one.node.metadata.image.topic(NAME).topic_id
    apis = [api for api in APIS.values() if api.key not in HELD_OR_DELETING]
    apis += [api for api in APIS.values() if api.key in HELD_OR_DELETING]
    for api in apis:
        for name, frame in frames(api, topic_id, count):
            async with one.client() as client:
                client.writer.write(frame)
                tracemalloc.start()
                try:
                    with steps() as calls:
                        await read_away(client)
                    _, peak = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
            assert max(calls) <= CALLS_PER_STEP_MAX + CALLS_PER_ELEMENT_MAX * count, name
            assert peak <= MEMORY_BYTES_MAX, name


async def test_a_large_response_is_whole_and_has_each_repeated_name_once(one: KafkaNode) -> None:
    topic = MetadataRequestTopic(None, NAME)
    async with one.client() as client:
        answer = await client.ask(MetadataRequest((topic,) * 3), 12)
        [described] = answer.topics
        assert [row.partition_index for row in described.partitions] == list(range(PARTITIONS))
        [group] = (await client.ask(DescribeGroupsRequest((NAME,) * 3), 5)).groups
        assert [member.member_metadata for member in group.members] == [METADATA]
        wanted = OffsetFetchRequestTopic(NAME, (0, 1, 0))
        [offsets] = (await client.ask(OffsetFetchRequest(NAME, (wanted,) * 3), 7)).topics
        assert [row.partition_index for row in offsets.partitions] == [0, 1]
        [deleted] = (await client.ask(DeleteGroupsRequest((NAME,) * 3), 2)).results
        assert deleted.error_code == NON_EMPTY_GROUP


@pytest.mark.parametrize("is_split", [False, True])
async def test_a_partition_that_list_offsets_has_twice_is_refused(
    one: KafkaNode, is_split: bool
) -> None:
    rows = [ListOffsetsPartition(number, timestamp=-1) for number in (0, 1, 0)]
    topics = [ListOffsetsTopic(NAME, tuple(rows))]
    if is_split:
        topics = [ListOffsetsTopic(NAME, (row,)) for row in rows]
    async with one.client() as client:
        answer = await client.ask(ListOffsetsRequest(topics=tuple(topics)), 7)
    codes = [row.error_code for topic in answer.topics for row in topic.partitions]
    assert codes == [INVALID_REQUEST, 0, INVALID_REQUEST]


async def test_rows_without_room_in_the_response_get_an_error(
    one: KafkaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "ROOM_POLLS", 1)
    shared = one.broker.bytes_in_flight
    described = DescribeGroupsRequest((NAME, "other"))
    topics = MetadataRequest((MetadataRequestTopic(None, NAME), MetadataRequestTopic(None, "one")))
    shared.reserve(shared.per_client_max, "127.0.0.1")
    async with one.client() as client:
        codes = [group.error_code for group in (await client.ask(described, 5)).groups]
        # A row without members needs no room.
        assert codes == [COORDINATOR_LOAD_IN_PROGRESS, 0]
        answer = await client.ask(topics, 12)
        assert [topic.error_code for topic in answer.topics] == [LEADER_NOT_AVAILABLE] * 2
    shared.release(shared.per_client_max, "127.0.0.1")
    monkeypatch.setattr(shared, "per_client_max", 2 * len(METADATA))
    monkeypatch.setattr(shared, "little_max", 0)
    async with one.client() as client:
        codes = [group.error_code for group in (await client.ask(described, 5)).groups]
        assert codes == [INVALID_REQUEST] * 2
