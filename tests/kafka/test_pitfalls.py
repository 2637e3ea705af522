"""The ten worst pitfalls of Kafka's protocol: each test fails once its mistake is made.

1. A producer that the log does not know continues its sequence, unless an earlier batch was just
   rejected. Then it gets 59 and the log start offset: 45 ends an idempotent producer for good, and
   Java's repeats the batch without end while the offset is -1.
2. Produce is offered from version 0 and refused below 3: older librdkafka stops compressing where
   single old versions are missing (KAFKA-18659).
3. A length or count is judged before memory is taken for it.
4. A wait before the append swaps the batches of a producer: 45 again.
5. A group's answer leaves before its record is committed, or comes from a shard that is loading.
6. A marker between verification and append: a late batch opens a transaction for good (KIP-890).
7. Java repeats a batch on 2 (CORRUPT_MESSAGE) until its delivery timeout: a malformed one gets 87.
8. `acks=0` has no answer, and an answer that never comes holds back all later ones.
9. Connect, Streams and tools create topics with configs of Kafka that have no effect here.
10. Topic ids: a deleted topic's id must not match its successor.
"""

from __future__ import annotations

import asyncio
import random
import struct
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from raftlog.coordinator.shard import service
from raftlog.kafka.apis import APIS
from raftlog.kafka.framing import parse_head
from raftlog.kafka.messages.classic import HeartbeatRequest
from raftlog.kafka.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from raftlog.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from raftlog.kafka.messages.group_offsets import OffsetFetchRequest
from raftlog.kafka.messages.groups import ConsumerGroupHeartbeatRequest
from raftlog.kafka.messages.metadata import (
    ApiVersionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from raftlog.kafka.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from raftlog.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from raftlog.kafka.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from raftlog.kafka.settings import KafkaSettings
from raftlog.record.batch import sealed
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.record.coordinators import partition_of
from raftlog.record.errors import NOT_ENOUGH_REPLICAS, LogError
from raftlog.record.header import parse_header
from raftlog.record.types import ProducerEpoch, ProducerId, TopicId
from raftlog.routing import handle
from raftlog.schema.codec import ELEMENTS_MAX
from raftlog.schema.errors import DecodeError
from tests.attack.kafka_inputs import claimed, crowded, sized
from tests.kafka.offsets import commit_request, committed_codes
from tests.kafka.peers import KafkaNode, RawClient, batch, group_node, kafka_node
from tests.replication import test_transactions
from tests.waiting import DEADLINE_S

VERSIONS: Final = ApiVersionsRequest("test", "1")
GROUP: Final = "g"


@pytest.fixture
async def one() -> AsyncIterator[KafkaNode]:
    async with kafka_node() as node:
        yield node


@pytest.fixture
async def client(one: KafkaNode) -> AsyncIterator[RawClient]:
    async with one.client() as client:
        yield client


def produce(
    data: bytes, topic: str = "one", *, acks: int = -1, topic_id: TopicId | None = None
) -> ProduceRequest:
    rows = (PartitionProduceData(0, data),)
    return ProduceRequest(None, acks, 10_000, (TopicProduceData(topic, topic_id, rows),))


def of_producer(first: int, *values: bytes, producer_id: int = 7) -> bytes:
    """The batch of an idempotent producer; its sequence begins with `first`."""
    builder = BatchBuilder(
        Compression.NONE,
        1 << 20,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(0),
        base_sequence=first,
    )
    for value in values:
        builder.append(0, None, value, None)
    return bytes(builder.build())


def outcome(answer: Any) -> Any:
    """Of the one partition of a Produce answer."""
    [topic] = answer.responses
    [row] = topic.partition_responses
    return row


# 1


async def test_1_an_unknown_producer_continues_its_sequence_through_a_gateway() -> None:
    settings = KafkaSettings(gateway=("127.0.0.1", 1))
    async with kafka_node(settings) as one, one.client() as client:
        assert outcome(await client.ask(produce(of_producer(5, b"x")), 9)).error_code == 0
        assert outcome(await client.ask(produce(of_producer(9, b"x")), 9)).error_code == 45


@pytest.mark.parametrize("version", [5, 9, 12])
async def test_1_an_unknown_producer_continues_its_sequence(
    client: RawClient, version: int
) -> None:
    assert outcome(await client.ask(produce(of_producer(5, b"x")), version)).error_code == 0
    assert outcome(await client.ask(produce(of_producer(6, b"x")), version)).error_code == 0
    # A gap in a known producer's sequence stays 45, and so does what was before its start.
    for sequence in (9, 0):
        row = outcome(await client.ask(produce(of_producer(sequence, b"x", b"y")), version))
        assert row.error_code == 45


@pytest.mark.parametrize("version", [5, 9, 12])
async def test_1_a_producer_whose_first_batch_was_rejected_gets_59_and_the_log_start_offset(
    one: KafkaNode, client: RawClient, version: int
) -> None:
    """Taken as a start, the second of two pipelined batches would bar the first (KAFKA-15591)."""
    assert outcome(await client.ask(produce(batch(b"a", b"b", b"c")), version)).error_code == 0
    request = DeleteRecordsRequest(
        (DeleteRecordsTopic("one", (DeleteRecordsPartition(0, 2),)),), 10_000
    )
    assert (await client.ask(request, 2)).topics[0].partitions[0].low_watermark == 2
    one.node.log().append_error = LogError(NOT_ENOUGH_REPLICAS, "not now")
    assert outcome(await client.ask(produce(of_producer(5, b"x")), version)).error_code == 19
    one.node.log().append_error = None
    row = outcome(await client.ask(produce(of_producer(6, b"x")), version))
    assert (row.error_code, row.log_start_offset) == (59, 2)
    for sequence in (5, 6):
        row = outcome(await client.ask(produce(of_producer(sequence, b"x")), version))
        assert row.error_code == 0


async def test_1_a_rejection_by_an_unknown_topic_id_counts(
    one: KafkaNode, client: RawClient
) -> None:
    topic_id = one.node.metadata.image.topics_by_name["one"].topic_id
    topic = one.node.metadata.image.topics_by_id.pop(topic_id)
    request = produce(of_producer(5, b"x"), "", topic_id=topic_id)
    assert outcome(await client.ask(request, 13)).error_code == 100
    one.node.metadata.image.topics_by_id[topic_id] = topic
    request = produce(of_producer(6, b"x"), "", topic_id=topic_id)
    assert outcome(await client.ask(request, 13)).error_code == 59
    request = produce(of_producer(5, b"x"), "", topic_id=topic_id)
    assert outcome(await client.ask(request, 13)).error_code == 0


# 2


async def test_2_produce_is_offered_from_version_0(client: RawClient) -> None:
    offered = {api.api_key: api for api in (await client.ask(VERSIONS, 3)).api_keys}
    assert (offered[0].min_version, offered[0].max_version) == (0, 13)
    # The other minimums are Kafka 4's.
    assert {key: offered[key].min_version for key in (1, 2, 8, 11)} == {1: 4, 2: 1, 8: 2, 11: 0}


@pytest.mark.parametrize("version", range(3))
async def test_2_produce_is_refused_below_version_3(client: RawClient, version: int) -> None:
    head = struct.pack(">hhih", 0, version, 0, 1) + b"c"
    client.writer.write(sized(head + struct.pack(">hii", -1, 1_000, 0)))
    assert await client.ends()


# 3


@pytest.mark.parametrize("count", [ELEMENTS_MAX + 1, 1 << 24, (1 << 31) - 2])
async def test_3_a_claimed_count_takes_no_memory(one: KafkaNode, count: int) -> None:
    frames = [sized(frame) for api in APIS.values() for frame in claimed(api, api.last, count)]
    assert len(frames) > len(APIS) / 2
    async with one.client() as warm:
        await warm.ask(VERSIONS, 3)
    tracemalloc.start()
    try:
        for frame in frames:
            async with one.client() as client:
                client.writer.write(frame)
                assert await client.ends()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize("size", [-1, 7, (1 << 20) + 1, (1 << 31) - 1])
async def test_3_a_claimed_size_takes_no_memory(one: KafkaNode, size: int) -> None:
    tracemalloc.start()
    try:
        for api in APIS.values():
            if api.takes_records and 8 <= size <= one.listener.settings.produce_bytes_max:
                continue
            async with one.client() as client:
                client.writer.write(struct.pack(">ihh", size, api.key, api.last))
                assert await client.ends()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert not one.broker.bytes_in_flight.used


@pytest.mark.parametrize("version", [4, 9])
def test_3_elements_are_counted_before_they_are_made(version: int) -> None:
    """A frame of the largest size that is not Produce, full of the smallest elements."""
    [body] = crowded(APIS[3], version, 400_000)
    head = parse_head(body, is_flexible=version == 9)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            APIS[3].request_decoder(version)(body, head.end, ELEMENTS_MAX)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


# 4


async def test_4_batches_of_a_producer_are_appended_in_their_order(
    one: KafkaNode, client: RawClient
) -> None:
    """Though some are large, some have many batches, and topics travel by name and by id."""
    topic_id = one.node.metadata.image.topics_by_name["one"].topic_id
    chance = random.Random(4)
    frames, sequence = [], 0
    for number in range(200):
        count = chance.choice([1, 1, 1, 40])
        value = bytes(chance.choice([1, 1, 40_000 // count]))
        data = b"".join(of_producer(sequence + n, value) for n in range(count))
        sequence += count
        if number % 3:
            frames.append(client.frame(produce(data), 9))
        else:
            frames.append(client.frame(produce(data, "", topic_id=topic_id), 13))
    client.writer.write(b"".join(frames))
    codes = [outcome((await client.receive())[1]).error_code for _ in frames]
    assert codes == [0] * len(frames)
    assert one.node.log().log_end_offset == sequence


# 5


async def test_5_an_answer_of_a_group_waits_for_the_commit_of_its_record() -> None:
    async with group_node() as one, one.client() as client, one.client() as other:
        assert committed_codes(await client.ask(commit_request(GROUP, {("one", 0): 1}), 9)) == [0]
        log = one.node.log("__consumer_offsets", partition_of(GROUP, 16))
        log.hold_flush = True
        end = log.log_end_offset
        await client.send(commit_request(GROUP, {("one", 0): 2}), 9)
        heartbeat = ConsumerGroupHeartbeatRequest(
            "h", "m" * 22, 0, rebalance_timeout_ms=10_000, subscribed_topic_names=("one",)
        )
        theirs = one.node.log("__consumer_offsets", partition_of("h", 16))
        theirs.hold_flush = True
        await other.send(heartbeat, 0)
        async with asyncio.timeout(DEADLINE_S):
            while log.log_end_offset == end or not theirs.log_end_offset:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        waiting = [asyncio.ensure_future(one_.receive()) for one_ in (client, other)]
        done, _ = await asyncio.wait(waiting, timeout=0.2)
        assert not done, "answered before the commit"
        for held in (log, theirs):
            held.hold_flush = False
            held.flush_now()
        assert committed_codes((await waiting[0])[1]) == [0]
        assert (await waiting[1])[1].error_code == 0


async def test_5_a_loading_shard_answers_14(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, load = asyncio.Event(), service.load_shard

    async def slow(*arguments: Any) -> None:
        await loaded.wait()
        await load(*arguments)

    monkeypatch.setattr(service, "load_shard", slow)
    monkeypatch.setattr(handle, "RETRY_S_MAX", 0.05)
    async with group_node() as one, one.client() as client:
        assert committed_codes(await client.ask(commit_request(GROUP, {("one", 0): 2}), 9)) == [14]
        assert (await client.ask(OffsetFetchRequest(GROUP, None), 7)).error_code == 14
        assert (await client.ask(HeartbeatRequest(GROUP, 1, "m"), 4)).error_code == 14
        loaded.set()
        monkeypatch.undo()
        assert committed_codes(await client.ask(commit_request(GROUP, {("one", 0): 2}), 9)) == [0]


# 6


async def test_6_a_marker_between_verification_and_append_ends_the_guard() -> None:
    await test_transactions.test_a_marker_between_question_and_append_ends_the_guard()


# 7


def malformed(**changes: int) -> bytes:
    """A batch with changed fields of its header, and a correct CRC."""
    plain = batch(b"x")
    data = bytearray(plain)
    sealed(data, parse_header(plain)._replace(**changes))
    return bytes(data)


async def test_7_only_a_wrong_crc_is_answered_2(client: RawClient) -> None:
    sound = batch(b"some value")
    for place in range(17, len(sound)):
        broken = bytearray(sound)
        broken[place] ^= 1
        assert outcome(await client.ask(produce(bytes(broken)), 9)).error_code == 2, place


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 61,
        batch(b"x")[:-1],
        batch(b"x") + b"\0",
        batch(b"x")[:16] + b"\1" + batch(b"x")[17:],
        malformed(record_count=0),
        malformed(record_count=9),
        malformed(last_offset_delta=-1),
        malformed(attributes=7),
        malformed(attributes=0x20),
        malformed(producer_id=7),
    ],
    ids=lambda data: str(len(data)),
)
async def test_7_a_malformed_batch_is_answered_87(client: RawClient, data: bytes) -> None:
    assert outcome(await client.ask(produce(data), 9)).error_code == 87


# 8


async def test_8_without_acks_there_is_no_answer_and_an_error_ends_the_connection(
    one: KafkaNode, client: RawClient
) -> None:
    await client.send(produce(batch(b"a"), acks=0), 9)
    await client.send(VERSIONS, 3)
    assert (await client.receive())[0] == 1
    assert one.node.record_count() == 1
    await client.send(produce(batch(b"a"), "unknown", acks=0), 9)
    await client.send(VERSIONS, 3)
    assert await client.ends()


async def test_8_requests_without_an_answer_hold_back_none(client: RawClient) -> None:
    frames = []
    for _ in range(100):
        frames += [
            client.frame(produce(batch(b"a"), acks=0), 9),
            client.frame(produce(batch(b"a"), acks=-1), 9),
        ]
    client.writer.write(b"".join(frames))
    assert [(await client.receive())[0] for _ in range(100)] == list(range(1, 200, 2))


# 9

KAFKA_CONFIGS: Final = {
    "cleanup.policy": "compact",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "zstd",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "0:1",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
"""All topic configs of Kafka 4.3, each with a value that Kafka's tools set."""


async def test_9_every_topic_config_of_kafka_is_taken_and_described(client: RawClient) -> None:
    values = tuple(CreatableTopicConfig(*one) for one in KAFKA_CONFIGS.items())
    topic = CreatableTopic("by-connect", 1, 1, configs=values)
    [row] = (await client.ask(CreateTopicsRequest((topic,), 10_000), 7)).topics
    assert row.error_code == 0, row.error_message
    request = DescribeConfigsRequest((DescribeConfigsResource(2, "by-connect", None),))
    [described] = (await client.ask(request, 4)).results
    found = {config.name: config.value for config in described.configs}
    assert {name: found.get(name) for name in KAFKA_CONFIGS} == KAFKA_CONFIGS


# 10


def fetch(topic_id: TopicId) -> FetchRequest:
    part = FetchPartition(0, -1, 0, partition_max_bytes=1 << 20)
    return FetchRequest(topics=(FetchTopic("", topic_id, (part,)),))


async def test_10_the_id_of_a_deleted_topic_is_not_that_of_its_successor(
    one: KafkaNode, client: RawClient
) -> None:
    old = one.node.metadata.image.topics_by_name["one"].topic_id
    assert outcome(await client.ask(produce(batch(b"x"), "", topic_id=old), 13)).error_code == 0
    await one.node.metadata.delete_topic("one")
    await one.node.metadata.create_topic("one", partitions=1)
    new = one.node.metadata.image.topics_by_name["one"].topic_id
    for topic_id, code in ((old, 100), (TopicId("f" * 32), 100), (new, 0)):
        fetched = await client.ask(fetch(topic_id), 13)
        [topic] = fetched.responses
        assert (topic.topic_id, topic.partitions[0].error_code) == (topic_id, code)
        request = produce(batch(b"x"), "", topic_id=topic_id)
        answer = await client.ask(request, 13)
        assert (answer.responses[0].topic_id, outcome(answer).error_code) == (topic_id, code)
        wanted = MetadataRequest((MetadataRequestTopic(topic_id, None),))
        [described] = (await client.ask(wanted, 12)).topics
        assert (described.error_code, described.name) == (code, None if code else "one")
