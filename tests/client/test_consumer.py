"""The consumer against faults and changes: in order, nothing twice, nothing skipped silently."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import uvloop
from raftlog_client import (
    ClientClosedError,
    ConnectionLostError,
    Consumer,
    CorruptDataError,
    NoOffsetError,
    OffsetOutOfRangeError,
    Producer,
    RecordTooLargeError,
    SerializationError,
    ServerError,
    TopicChangedError,
    TopicNotFoundError,
    TopicPartition,
    json_deserializer,
)

from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.record.errors import NO_LEADER, OVERLOADED, STORAGE_FAILED, UNKNOWN_TOPIC_ID
from tests.client.fake_node import FakeCluster, Fault, split_batches
from tests.client.fake_partition import FakePartition
from tests.waiting import DEADLINE_S

FETCH = "/v1/fetch"
P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


def consumer(cluster: FakeCluster, *topics: str, **settings: Any) -> Consumer[Any, Any]:
    return Consumer(
        *topics,
        bootstrap_servers=cluster.bootstrap,
        **{"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "auto_offset_reset": "earliest"}
        | settings,
    )


def append(partition: FakePartition, *values: bytes, compression: str = "none") -> None:
    builder = BatchBuilder(Compression.from_name(compression))
    for value in values:
        builder.append(0, None, value)
    partition.append_frame(split_batches(bytes(builder.build()), max_message_bytes=1 << 24))


async def take(reader: Consumer[Any, Any], count: int) -> list[bytes | None]:
    async with asyncio.timeout(DEADLINE_S):
        return [(await reader.getone()).value for _ in range(count)]


def test_consumer_reads_under_uvloop() -> None:
    async def read() -> list[bytes | None]:
        async with FakeCluster(1) as cluster:
            append(cluster.create_topic("t", 1).partitions[0], b"1", b"2" * 100_000)
            async with consumer(cluster, "t") as reader:
                return await take(reader, 2)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(read()) == [b"1", b"2" * 100_000]


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(drop_before=True)],
        [Fault(drop_after=True), Fault(drop_before=True)],
        [Fault(error=OVERLOADED)],
        [Fault(answer=b"\x00\x01nonsense")],
        [Fault(delay_s=0.5)],
    ],
)
async def test_faults_that_pass_lose_and_repeat_nothing(
    single: FakeCluster, faults: list[Fault]
) -> None:
    for number in range(50):
        append(single.topics["t"].partitions[0], b"%d" % number)
    single.fail(FETCH, *faults)
    async with consumer(
        single, "t", request_timeout_ms=100, fetch_max_wait_ms=20, max_partition_fetch_bytes=1024
    ) as reader:
        assert await take(reader, 50) == [b"%d" % number for number in range(50)]


async def test_the_leader_is_followed_when_it_moves(cluster: FakeCluster) -> None:
    partition = cluster.topics["t"].partitions[0]
    append(partition, b"1")
    async with consumer(cluster, "t", fetch_max_wait_ms=10) as reader:
        assert await take(reader, 1) == [b"1"]
        partition.leader = 2
        append(partition, b"2")
        assert await take(reader, 1) == [b"2"]


async def test_damage_is_raised_never_served_and_can_be_skipped(single: FakeCluster) -> None:
    partition = single.topics["t"].partitions[0]
    for number in range(4):
        append(partition, b"%d" % number)
    good = partition.batches[2]
    # The last byte but one is the value: only the CRC can tell.
    partition.batches[2] = good[:-2] + bytes([good[-2] ^ 1]) + good[-1:]
    async with consumer(single, "t") as reader:
        assert await take(reader, 2) == [b"0", b"1"]
        for _ in range(2):
            with pytest.raises(CorruptDataError) as damaged:
                await take(reader, 1)
            assert (damaged.value.topic, damaged.value.partition) == P0
            assert damaged.value.offset == await reader.position(P0) == 2
        with pytest.raises(CorruptDataError):
            await reader.getmany(timeout_ms=2000)
        reader.seek(P0, 3)
        assert await take(reader, 1) == [b"3"]
        # A repair heals the partition.
        partition.batches[2] = good
        reader.seek(P0, 2)
        assert await take(reader, 2) == [b"2", b"3"]


async def test_what_was_asked_for_before_the_damage_was_found_does_not_hide_it(
    single: FakeCluster,
) -> None:
    partition = single.topics["t"].partitions[0]
    for number in range(6):
        append(partition, b"%d" % number + bytes(1000))
    partition.batches[1] = partition.batches[1][:-2] + b"??"
    # The second request is under way when the first one's second batch proves to be damaged.
    single.fail(FETCH, Fault(), Fault(delay_s=0.1))
    async with consumer(single, "t", max_partition_fetch_bytes=2500) as reader:
        await single.wait_for_requests(FETCH, 2)
        assert (await take(reader, 1))[0] == b"0" + bytes(1000)
        for _ in range(3):
            with pytest.raises(CorruptDataError):
                await take(reader, 1)
            await asyncio.sleep(0.05)


async def test_seeking_does_not_wait_for_a_long_poll(single: FakeCluster) -> None:
    append(single.topics["t"].partitions[0], b"0")
    async with consumer(single, "t", fetch_max_wait_ms=30_000) as reader:
        for _ in range(5):
            assert await take(reader, 1) == [b"0"]
            await asyncio.sleep(0.02)
            reader.seek(P0, 0)


async def test_an_error_of_one_partition_does_not_hold_back_others(cluster: FakeCluster) -> None:
    partitions = cluster.topics["t"].partitions
    for partition in partitions:
        append(partition, b"a", b"b")
    partitions[0].batches[0] = partitions[0].batches[0][:-1] + b"?"
    seen: list[bytes | None] = []
    errors = 0
    async with consumer(cluster, "t") as reader, asyncio.timeout(DEADLINE_S):
        while len(seen) < 4 or not errors:
            try:
                for records in (await reader.getmany(timeout_ms=100)).values():
                    seen += [record.value for record in records]
            except CorruptDataError:
                errors += 1
    assert sorted(seen, key=str) == [b"a", b"a", b"b", b"b"]


async def test_check_crcs_off_serves_unchecked(single: FakeCluster) -> None:
    partition = single.topics["t"].partitions[0]
    append(partition, b"abc")
    partition.batches[0] = partition.batches[0].replace(b"abc", b"abd")
    async with consumer(single, "t", check_crcs=False) as reader:
        assert await take(reader, 1) == [b"abd"]


async def test_a_decompression_bomb_is_refused(single: FakeCluster) -> None:
    append(single.topics["t"].partitions[0], bytes(1_000_000), compression="zstd")
    async with consumer(single, "t", decompressed_bytes_max=10_000) as reader:
        with pytest.raises(RecordTooLargeError, match="decompressed_bytes_max"):
            await take(reader, 1)


async def test_a_record_that_cannot_be_deserialized_can_be_skipped(single: FakeCluster) -> None:
    append(single.topics["t"].partitions[0], b"1", b"2", b"{", b"4")
    async with consumer(single, "t", value_deserializer=json_deserializer) as reader:
        assert await take(reader, 2) == [1, 2]
        for _ in range(2):
            with pytest.raises(SerializationError, match="offset 2"):
                await take(reader, 1)
        assert await reader.position(P0) == 2
        reader.seek(P0, 3)
        assert await take(reader, 1) == [4]


async def test_out_of_range_goes_on_where_the_reset_says(
    single: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    partition = single.topics["t"].partitions[0]
    for number in range(5):
        append(partition, b"%d" % number)
    partition.log_start_offset = 3
    async with consumer(single, "t") as reader:
        reader.seek(P0, 1)
        with caplog.at_level(logging.WARNING, "raftlog_client"):
            assert await take(reader, 1) == [b"3"]
        assert "out of range" in caplog.text
    async with consumer(single, "t", auto_offset_reset="latest") as reader:
        reader.seek(P0, 99)
        task = asyncio.create_task(take(reader, 1))
        await asyncio.sleep(0.1)
        append(partition, b"5")
        assert await task == [b"5"]


async def test_without_a_reset_out_of_range_is_raised(single: FakeCluster) -> None:
    append(single.topics["t"].partitions[0], b"0")
    async with consumer(single, "t", auto_offset_reset="none") as reader:
        with pytest.raises(NoOffsetError):
            await take(reader, 1)
        reader.seek(P0, 7)
        with pytest.raises(OffsetOutOfRangeError):
            await take(reader, 1)
        reader.seek(P0, 0)
        assert await take(reader, 1) == [b"0"]


async def test_a_failed_replica_is_told(single: FakeCluster) -> None:
    append(single.topics["t"].partitions[0], b"0")
    single.fail(FETCH, Fault(error=STORAGE_FAILED))
    async with consumer(single, "t") as reader:
        with pytest.raises(ServerError) as failed:
            await take(reader, 1)
        assert failed.value.name == "STORAGE_FAILED"
        assert await take(reader, 1) == [b"0"]


async def test_a_topic_that_vanishes_is_told(single: FakeCluster) -> None:
    async with consumer(single, "t", fetch_max_wait_ms=5) as reader:
        del single.topics["t"]
        with pytest.raises(TopicNotFoundError):
            await take(reader, 1)


async def test_new_partitions_are_read_from_their_beginning(single: FakeCluster) -> None:
    async with consumer(single, "t", auto_offset_reset="latest", metadata_max_age_ms=20) as reader:
        single.add_partitions("t", 2)
        append(single.topics["t"].partitions[1], b"early")
        assert await take(reader, 1) == [b"early"]
        assert reader.assignment() == {P0, P1}


async def test_a_pattern_follows_topics_as_they_come_and_go(single: FakeCluster) -> None:
    single.create_topic("metrics-a")
    single.create_topic("other")
    async with consumer(single, auto_offset_reset="latest", metadata_max_age_ms=20) as reader:
        await reader.subscribe(pattern=r"metrics-.*")
        assert reader.subscription() == {"metrics-a"}
        append(single.create_topic("metrics-b").partitions[0], b"b")
        record = await asyncio.wait_for(reader.getone(), 5)
        assert (record.topic, record.value) == ("metrics-b", b"b")
        del single.topics["metrics-a"]
        async with asyncio.timeout(DEADLINE_S):
            while reader.subscription() != {"metrics-b"}:
                await reader.getmany(timeout_ms=10)
        with pytest.raises(ValueError, match="not to both"):
            await reader.subscribe(["t"], pattern="x")
        with pytest.raises(ValueError, match="malformed"):
            await reader.subscribe(pattern="(")
        await reader.unsubscribe()
        assert reader.assignment() == set()


async def test_changing_the_assignment_keeps_positions(cluster: FakeCluster) -> None:
    for partition in cluster.topics["t"].partitions:
        append(partition, b"%d-0" % partition.partition)
        append(partition, b"%d-1" % partition.partition)
    async with consumer(cluster) as reader:
        reader.assign([P0])
        assert await take(reader, 1) == [b"0-0"]
        reader.assign([P0, P1])
        assert sorted(await take(reader, 3), key=str) == [b"0-1", b"1-0", b"1-1"]
        reader.assign([P2])
        assert await take(reader, 2) == [b"2-0", b"2-1"]
        with pytest.raises(ValueError, match="not assigned"):
            reader.seek(P0, 0)


async def test_pausing_holds_records_back_and_loses_none(cluster: FakeCluster) -> None:
    for partition in cluster.topics["t"].partitions[:2]:
        append(partition, *[b"%d-%d" % (partition.partition, number) for number in range(3)])
    async with consumer(cluster) as reader:
        reader.assign([P0, P1])
        seen = await take(reader, 1)
        first = P0 if (seen[0] or b"").startswith(b"0") else P1
        reader.pause(first)
        assert reader.paused() == {first}
        assert await reader.position(first) == 1
        others = await take(reader, 3)
        assert all(value and not value.startswith(b"%d" % first.partition) for value in others)
        assert await reader.getmany(timeout_ms=50) == {}
        reader.resume(first)
        assert await take(reader, 2) == [b"%d-%d" % (first.partition, n) for n in (1, 2)]


async def test_seeking_within_an_iteration_takes_effect_at_once(single: FakeCluster) -> None:
    append(single.topics["t"].partitions[0], *[b"%d" % number for number in range(10)])
    seen: list[bytes | None] = []
    async with consumer(single, "t") as reader, asyncio.timeout(DEADLINE_S):
        async for record in reader:
            seen.append(record.value)
            if record.offset == 3 and len(seen) == 4:
                reader.seek(P0, 8)
            if record.offset == 9:
                break
    assert seen == [b"0", b"1", b"2", b"3", b"8", b"9"]


async def test_getmany_of_some_partitions_leaves_the_others(cluster: FakeCluster) -> None:
    for partition in cluster.topics["t"].partitions:
        append(partition, b"%d" % partition.partition)
    async with consumer(cluster, "t") as reader:
        for place in (P2, P0):
            taken = await reader.getmany(place, timeout_ms=2000)
            assert {one: [r.value for r in records] for one, records in taken.items()} == {
                place: [b"%d" % place.partition]
            }
        assert await take(reader, 1) == [b"1"]


async def test_every_partition_gets_its_turn(cluster: FakeCluster) -> None:
    for partition in cluster.topics["t"].partitions:
        for _ in range(40):
            append(partition, bytes(1000), bytes(1000))
    async with consumer(cluster, "t", max_partition_fetch_bytes=4096) as reader:
        recent: list[int] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(recent) < 200:
                for place in await reader.getmany(timeout_ms=1000, max_records=2):
                    recent.append(place.partition)
                if len(recent) >= 60:
                    break
    assert all(recent[20:].count(number) >= 5 for number in range(3))


async def test_buffering_ahead_is_bounded(single: FakeCluster) -> None:
    partition = single.topics["t"].partitions[0]
    for _ in range(200):
        append(partition, bytes(1000))
    async with consumer(
        single,
        "t",
        max_partition_fetch_bytes=2048,
        fetch_max_bytes=4096,
        buffer_bytes_max=4096,
        fetch_max_wait_ms=5,
    ) as reader:
        await take(reader, 1)
        await asyncio.sleep(0.1)
        assert reader._buffer.buffered_bytes <= 4096
        assert single.requests[FETCH] < 6
        assert len(await take(reader, 199)) == 199


async def test_a_batch_larger_than_all_limits_is_read(single: FakeCluster) -> None:
    append(single.topics["t"].partitions[0], bytes(100_000))
    async with consumer(
        single, "t", max_partition_fetch_bytes=1024, fetch_max_bytes=1024, buffer_bytes_max=1024
    ) as reader:
        assert len((await take(reader, 1))[0] or b"") == 100_000


async def test_idle_partitions_do_not_delay_those_with_records(cluster: FakeCluster) -> None:
    async with consumer(cluster, "t", fetch_max_wait_ms=5000) as reader:
        await asyncio.sleep(0.05)
        loop = asyncio.get_running_loop()
        started = loop.time()
        for number in range(20):
            append(cluster.topics["t"].partitions[number % 3], b"%d" % number)
            assert await take(reader, 1) == [b"%d" % number]
        assert loop.time() - started < 2


async def test_close_ends_iterations_and_waits(single: FakeCluster) -> None:
    reader = consumer(single, "t")
    await reader.start()

    async def iterate() -> list[Any]:
        return [record async for record in reader]

    iterating = asyncio.create_task(iterate())
    waiting = asyncio.create_task(reader.getone())
    await asyncio.sleep(0.01)
    await reader.close()
    assert await iterating == []
    with pytest.raises(ClientClosedError):
        await waiting
    with pytest.raises(ClientClosedError):
        await reader.getmany()
    await reader.close()


async def test_two_tasks_share_one_consumer_without_repeats(single: FakeCluster) -> None:
    append(single.topics["t"].partitions[0], *[b"%03d" % number for number in range(100)])
    seen: list[bytes] = []
    async with consumer(single, "t") as reader:

        async def iterate() -> None:
            async for record in reader:
                seen.append(record.value)
                await asyncio.sleep(0)
                if len(seen) >= 100:
                    return

        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait(
                [asyncio.create_task(iterate()), asyncio.create_task(iterate())],
                return_when=asyncio.FIRST_COMPLETED,
            )
    assert sorted(seen) == [b"%03d" % number for number in range(100)]


async def test_no_cluster_is_told_at_start() -> None:
    with pytest.raises(ConnectionLostError):
        async with Consumer("t", bootstrap_servers="127.0.0.1:1", request_timeout_ms=50):
            pass


@pytest.mark.parametrize(
    "settings",
    [
        {"group_id": ""},
        {"auto_offset_reset": "middle"},
        {"max_poll_records": 0},
        {"max_partition_fetch_bytes": 10},
        {"fetch_max_bytes": 2048, "max_partition_fetch_bytes": 4096},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"group_id|must be"):
        Consumer(**settings)


@pytest.mark.parametrize("name", ["fetch_min_bytes", "decompressed_bytes_max", "buffer_bytes_max"])
def test_none_is_no_value_of_a_setting_with_a_minimum(name: str) -> None:
    with pytest.raises(TypeError):
        Consumer(**{"bootstrap_servers": "127.0.0.1:1", name: None})


async def test_offsets_are_found_again_after_failures(single: FakeCluster) -> None:
    append(single.topics["t"].partitions[0], b"0")
    single.fail("/v1/offsets", Fault(error=OVERLOADED), Fault(error=NO_LEADER))
    async with consumer(single, "t") as reader:
        assert await reader.position(P0) == 0


async def test_a_topic_is_not_unknown_before_a_node_has_answered(single: FakeCluster) -> None:
    append(single.topics["t"].partitions[0], b"0")
    async with consumer(single) as reader:
        single.fail("/v1/metadata", Fault(delay_s=0.3))
        reader.assign([P0])
        reader.seek(P0, 0)
        assert await take(reader, 1) == [b"0"]


async def test_a_topic_that_is_gone_does_not_keep_others_from_being_read(
    single: FakeCluster,
) -> None:
    append(single.topics["t"].partitions[0], b"0")
    async with consumer(single) as reader:
        reader.assign([P0, TopicPartition("gone", 0)])
        seen: list[bytes | None] = []
        errors = 0
        async with asyncio.timeout(DEADLINE_S):
            while not (seen and errors):
                try:
                    seen += await take(reader, 1)
                except TopicNotFoundError:
                    errors += 1
    assert seen == [b"0"]


async def test_producer_and_consumer_follow_a_restarted_node(single: FakeCluster) -> None:
    async with (
        Producer(bootstrap_servers=single.bootstrap, retry_backoff_ms=1) as producer,
        consumer(single, "t", fetch_max_wait_ms=50) as reader,
    ):
        await producer.send_and_wait("t", b"1")
        assert await take(reader, 1) == [b"1"]
        await single.nodes[0].stop()
        await single.nodes[0].start()
        await producer.send_and_wait("t", b"2")
        assert await take(reader, 1) == [b"2"]


def make_again(cluster: FakeCluster, *values: bytes) -> FakePartition:
    """Delete the topic `t`, and create another of its name with these records."""
    del cluster.topics["t"]
    partition = cluster.create_topic("t").partitions[0]
    append(partition, *values)
    return partition


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("has_read", [1, 3])
async def test_a_topic_made_again_is_read_from_its_beginning(
    single: FakeCluster, caplog: pytest.LogCaptureFixture, reset: str, has_read: int
) -> None:
    """Not on at the offsets of the one before, whose name it has."""
    partition = single.create_topic("t").partitions[0]
    async with consumer(single, "t", auto_offset_reset=reset) as reader:
        append(partition, b"1", b"2", b"3")
        assert await take(reader, has_read) == [b"1", b"2", b"3"][:has_read]
        make_again(single, b"a", b"b", b"c", b"d", b"e")
        left = [b"1", b"2", b"3"][has_read:]
        assert await take(reader, 5 + len(left)) == [*left, b"a", b"b", b"c", b"d", b"e"]
    assert "another topic of that name" in caplog.text


async def test_without_a_reset_a_topic_made_again_is_raised_until_a_seek(
    single: FakeCluster,
) -> None:
    append(single.create_topic("t").partitions[0], b"1", b"2")
    async with consumer(single, auto_offset_reset="none") as reader:
        reader.assign([P0])
        reader.seek(P0, 0)
        assert await take(reader, 2) == [b"1", b"2"]
        old_id = single.topics["t"].topic_id
        make_again(single, b"a", b"b", b"c")
        for _ in range(2):
            with pytest.raises(TopicChangedError) as changed:
                await take(reader, 1)
            assert changed.value.topic_id == old_id
            assert changed.value.found_id == single.topics["t"].topic_id
        reader.seek(P0, 1)
        assert await take(reader, 2) == [b"b", b"c"]


async def test_positions_found_by_a_query_are_of_the_topic_in_its_answer(
    single: FakeCluster,
) -> None:
    append(single.create_topic("t").partitions[0], b"1", b"2")
    async with consumer(single, "t") as reader:
        assert await take(reader, 2) == [b"1", b"2"]
        make_again(single, b"a", b"b", b"c")
        await reader.seek_to_beginning()
        assert await take(reader, 3) == [b"a", b"b", b"c"]


async def test_a_node_that_is_behind_does_not_make_the_consumer_begin_again(
    single: FakeCluster,
) -> None:
    append(single.create_topic("t").partitions[0], b"1", b"2", b"3")
    async with consumer(single, "t", max_poll_records=1, fetch_max_wait_ms=10) as reader:
        assert await take(reader, 3) == [b"1", b"2", b"3"]
        single.fail(FETCH, *[Fault(error=UNKNOWN_TOPIC_ID)] * 5)
        append(single.partition("t", 0), b"4")
        assert await take(reader, 1) == [b"4"]


async def test_leader_that_moves_right_before_a_fetch_breaks_no_callback(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        append(cluster.partition("t", number), b"v")
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with consumer(cluster, "t") as reader:
        await take(reader, 3)
        addressed = reader._metadata.leader_address
        reader.seek(P0, 0)
        monkeypatch.setattr(
            reader._metadata,
            "leader_address",
            lambda *place: "127.0.0.1:9" if place == P0 else addressed(*place),
        )
        # The fetch is about to leave for the node that led until now.
        await asyncio.sleep(0.01)
        monkeypatch.undo()
        assert await take(reader, 1) == [b"v"]
    assert failures == []
