"""Promises to users, against any cluster: the fake one and a real node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from raftlog_client import (
    Admin,
    Consumer,
    NewTopic,
    Producer,
    ProducerRecord,
    Record,
    ServerError,
    TopicNotFoundError,
    TopicPartition,
    json_deserializer,
    json_serializer,
    string_deserializer,
    string_serializer,
)

from raftlog.record.partitioner import partition_for_key
from tests.waiting import DEADLINE_S


async def read(bootstrap: str, topic: str, count: int) -> list[Record]:
    """The first records of all partitions."""
    records: list[Record] = []
    async with (
        Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer,
        asyncio.timeout(DEADLINE_S),
    ):
        while len(records) < count:
            for some in (await consumer.getmany(timeout_ms=1000)).values():
                records += some
    assert len(records) == count
    return records


async def test_what_is_sent_is_read_as_it_was(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        metadata = await producer.send_and_wait(
            topic, b"value", b"key", timestamp_ms=1234, headers=[("h", b"1"), ("h", None)]
        )
    [record] = await read(bootstrap, topic, 1)
    assert record == Record(
        topic,
        partition_for_key(b"key", 3),
        0,
        1234,
        0,
        b"key",
        b"value",
        [("h", b"1"), ("h", None)],
    )
    assert (metadata.topic_partition, metadata.offset, metadata.timestamp) == (
        record.topic_partition,
        0,
        1234,
    )


async def test_tombstones_and_empty_values_differ(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, None, b"k")
        await producer.send_and_wait(topic, b"", b"k")
    assert [record.value for record in await read(bootstrap, topic, 2)] == [None, b""]


async def test_every_future_tells_where_its_own_record_stands(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap, linger_ms=2) as producer:
        futures = [await producer.send(topic, b"%d" % number) for number in range(2000)]
        places = [await future for future in futures]
    by_place = {
        (record.partition, record.offset): record.value
        for record in await read(bootstrap, topic, 2000)
    }
    for number, place in enumerate(places):
        assert by_place[place.partition, place.offset] == b"%d" % number


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_send_many_keeps_order_within_each_partition(
    bootstrap: str, topic: str, compression: str
) -> None:
    async with Producer(
        bootstrap_servers=bootstrap,
        compression=compression,  # type: ignore[arg-type] # mypy does not know the parameters
        batch_bytes_max=4096,
    ) as producer:
        summary = await producer.send_many(topic, (b"%06d" % n for n in range(5000)))
    assert summary.count == 5000
    records = await read(bootstrap, topic, 5000)
    assert sorted(record.value or b"" for record in records) == [b"%06d" % n for n in range(5000)]
    for place, written in summary.partitions.items():
        own = [record for record in records if record.topic_partition == place]
        assert [record.offset for record in own] == list(range(written.last_offset + 1))
        assert len(own) == written.count
        values = [record.value or b"" for record in own]
        assert values == sorted(values)


async def test_send_many_takes_values_pairs_and_records(bootstrap: str, topic: str) -> None:
    async def source() -> AsyncIterator[object]:
        yield b"plain"
        yield (b"key", b"pair")
        yield ProducerRecord(b"record", b"k", partition=2, timestamp_ms=77, headers=[("a", b"b")])

    async with Producer(bootstrap_servers=bootstrap) as producer:
        assert (await producer.send_many(topic, source())).count == 3
        assert (await producer.send_many(topic, [b"1", (None, b"2"), b"3"])).count == 3
    records = {record.value: record for record in await read(bootstrap, topic, 6)}
    assert records[b"pair"].partition == partition_for_key(b"key", 3)
    record = records[b"record"]
    assert (record.key, record.partition, record.timestamp) == (b"k", 2, 77)
    assert list(record.headers) == [("a", b"b")]


async def test_serializers_go_both_ways(bootstrap: str, topic: str) -> None:
    async with Producer(
        bootstrap_servers=bootstrap,
        key_serializer=string_serializer,
        value_serializer=json_serializer,
    ) as producer:
        await producer.send_and_wait(topic, {"a": [1, None]}, "schlüssel")
        await producer.send_many(topic, [("schlüssel", 5), ("schlüssel", None)])
    async with Consumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        key_deserializer=string_deserializer,
        value_deserializer=json_deserializer,
    ) as consumer:
        records = [await consumer.getone() for _ in range(3)]
    assert [(record.key, record.value) for record in records] == [
        ("schlüssel", {"a": [1, None]}),
        ("schlüssel", 5),
        ("schlüssel", None),
    ]


async def test_latest_sees_what_is_written_after_start(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, b"before", partition=1)
        async with Consumer(topic, bootstrap_servers=bootstrap) as consumer:
            await producer.send_and_wait(topic, b"after", partition=1)
            async with asyncio.timeout(DEADLINE_S):
                assert (await consumer.getone()).value == b"after"


async def test_iteration_wakes_up_for_records_written_later(bootstrap: str, topic: str) -> None:
    async def write() -> None:
        async with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(5):
                await producer.send_and_wait(topic, b"%d" % number)

    seen: list[bytes | None] = []
    async with (
        Consumer(topic, bootstrap_servers=bootstrap) as consumer,
        asyncio.timeout(DEADLINE_S),
    ):
        writing = asyncio.create_task(write())
        async for record in consumer:
            seen.append(record.value)
            if len(seen) == 5:
                break
        await writing
    assert sorted(seen, key=str) == [b"0", b"1", b"2", b"3", b"4"]


async def test_seeking_and_positions(bootstrap: str, topic: str) -> None:
    place = TopicPartition(topic, 0)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(10):
            await producer.send_and_wait(
                topic, b"%d" % number, partition=0, timestamp_ms=1000 + number
            )
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        assert await consumer.position(place) == 0
        consumer.seek(place, 7)
        assert (await consumer.getone()).value == b"7"
        assert await consumer.position(place) == 8
        await consumer.seek_to_beginning(place)
        assert (await consumer.getone()).value == b"0"
        await consumer.seek_to_end()
        assert await consumer.position(place) == 10
        await consumer.seek_to_end(place, last=1)
        assert (await consumer.getone()).value == b"9"
        await consumer.seek_to_end(last=3)
        assert [(await consumer.getone()).value for _ in range(3)] == [b"7", b"8", b"9"]
        await consumer.seek_to_end(place, last=99)
        assert await consumer.position(place) == 0
        with pytest.raises(ValueError, match="last must be at least 0"):
            await consumer.seek_to_end(place, last=-1)
        await consumer.seek_to_timestamp(1004)
        assert (await consumer.getone()).value == b"4"
        await consumer.seek_to_timestamp(99_999)
        assert await consumer.position(place) == 10
        found = await consumer.offsets_for_times({place: 1003, TopicPartition(topic, 1): 0})
        assert found == {place: (3, 1003), TopicPartition(topic, 1): None}
        assert await consumer.beginning_offsets([place]) == {place: 0}
        assert await consumer.end_offsets([place]) == {place: 10}
        assert consumer.highwater(place) == 10


async def test_getmany_gives_no_more_than_asked_for_and_loses_nothing(
    bootstrap: str, topic: str
) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        await producer.send_many(topic, (b"%d" % number for number in range(100)), partition=0)
    seen: list[bytes | None] = []
    async with Consumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=7
    ) as consumer:
        while len(seen) < 100:
            taken = await consumer.getmany(timeout_ms=5000, max_records=3 if seen else None)
            [records] = taken.values()
            assert len(records) <= (3 if seen else 7)
            seen += [record.value for record in records]
            assert await consumer.position(TopicPartition(topic, 0)) == len(seen)
        assert await consumer.getmany(timeout_ms=1) == {}
    assert seen == [b"%d" % number for number in range(100)]


async def test_unknown_topics_are_told_at_once(bootstrap: str) -> None:
    async with Producer(bootstrap_servers=bootstrap, retry_backoff_ms=1) as producer:
        with pytest.raises(TopicNotFoundError):
            await producer.send("missing", b"x")
        with pytest.raises(TopicNotFoundError):
            await producer.send_many("missing", [b"x"])
    with pytest.raises(TopicNotFoundError):
        async with Consumer("missing", bootstrap_servers=bootstrap, retry_backoff_ms=1):
            pass


async def test_a_partition_that_does_not_exist_is_told(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        with pytest.raises(TopicNotFoundError, match="3 partitions"):
            await producer.send(topic, b"x", partition=3)
    async with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 9)])
        with pytest.raises(TopicNotFoundError):
            await consumer.getmany(timeout_ms=5000)


async def test_admin_describes_what_it_creates(bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        [described] = await admin.create_topics([NewTopic("admin-made", partitions=2)])
        assert (described.name, len(described.partitions)) == ("admin-made", 2)
        assert described.partitions[0].leader in described.partitions[0].isr
        assert "admin-made" in await admin.list_topics()
        assert described in await admin.describe_topics()
        with pytest.raises(ServerError) as refused:
            await admin.create_topic("admin-made")
        assert refused.value.name == "TOPIC_EXISTS"
        offsets = await admin.offsets(["admin-made"])
        assert offsets[TopicPartition("admin-made", 1)].end_offset == 0
        cluster = await admin.describe_cluster()
        assert described.partitions[0].leader in {broker.broker_id for broker in cluster.brokers}


async def test_deleted_records_are_gone(bootstrap: str, topic: str) -> None:
    place = TopicPartition(topic, 0)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(5):
            await producer.send_and_wait(topic, b"%d" % number, partition=0)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        assert await admin.delete_records({place: 3}) == {place: 3}
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        consumer.seek(place, 0)
        assert (await consumer.getone()).offset == 3
