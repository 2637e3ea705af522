"""The producer against faults: nothing is lost silently, written twice, or put out of order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from raftlog_client import (
    BufferFullError,
    ClientClosedError,
    ConnectionLostError,
    DeliveryTimeoutError,
    Producer,
    ProducerRecord,
    RecordTooLargeError,
    SendManyError,
    SerializationError,
    ServerError,
    TopicNotFoundError,
)

from raftlog.record.errors import (
    CORRUPT_BATCH,
    DISK_FULL,
    INTERNAL,
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    OVERLOADED,
    RETRIABLE,
    STORAGE_FAILED,
    ErrorEntry,
)
from tests.client.fake_node import FakeCluster, Fault, all_values
from tests.waiting import DEADLINE_S

PRODUCE = "/v1/produce"


def producer(cluster: FakeCluster, **settings: Any) -> Producer:
    return Producer(
        bootstrap_servers=cluster.bootstrap,
        **{"retry_backoff_ms": 1, "retry_backoff_max_ms": 5} | settings,
    )


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(drop_before=True)],
        [Fault(drop_after=True)],
        [Fault(drop_after=True), Fault(drop_after=True), Fault(drop_before=True)],
        [Fault(error=OVERLOADED), Fault(error=RETRIABLE)],
        [Fault(frame_errors={0: NOT_ENOUGH_REPLICAS}), Fault(frame_errors={0: DISK_FULL})],
        [Fault(answer=b"not json")],
        [Fault(answer=b'{"results": []}')],
        [Fault(delay_s=0.3)],
    ],
)
async def test_faults_that_pass_neither_lose_nor_duplicate_nor_reorder(
    single: FakeCluster, faults: Sequence[Fault]
) -> None:
    single.fail(PRODUCE, *faults)
    async with producer(single, request_timeout_ms=200, batch_bytes_max=1024) as sending:
        futures = [await sending.send("t", b"%03d" % number) for number in range(300)]
        places = await asyncio.gather(*futures)
    assert single.topics["t"].partitions[0].values() == [b"%03d" % n for n in range(300)]
    assert [place.offset for place in places] == list(range(300))


async def test_order_is_kept_while_some_partitions_fail(cluster: FakeCluster) -> None:
    for _ in range(5):
        cluster.fail(PRODUCE, Fault(frame_errors={0: NOT_ENOUGH_REPLICAS}), Fault(drop_after=True))
    async with producer(cluster, batch_bytes_max=1024) as sending:
        records = ((b"k%d" % (number % 17), b"%05d" % number) for number in range(5000))
        summary = await sending.send_many("t", records)
    assert summary.count == 5000
    partitions = cluster.topics["t"].partitions
    for partition in partitions:
        assert partition.values() == sorted(partition.values(), key=str)
    assert sorted(all_values(partitions), key=str) == [b"%05d" % n for n in range(5000)]


async def test_a_refusal_for_good_fails_its_own_records_only(single: FakeCluster) -> None:
    async with producer(single) as sending:
        await sending.send_and_wait("t", b"0")
        single.fail(PRODUCE, Fault(frame_errors={0: CORRUPT_BATCH}))
        with pytest.raises(ServerError) as refused:
            await sending.send_and_wait("t", b"bad")
        assert (refused.value.name, refused.value.outcome_unknown) == ("CORRUPT_BATCH", False)
        assert (await sending.send_and_wait("t", b"1")).offset == 1
    assert single.topics["t"].partitions[0].values() == [b"0", b"1"]
    assert single.requests["/v1/producer-ids"] == 1


async def test_batches_over_the_topics_limit_are_sent_in_parts(single: FakeCluster) -> None:
    single.max_message_bytes = 2000
    async with producer(single, linger_ms=5) as sending:
        futures = [await sending.send("t", b"%03d" % n + bytes(100)) for n in range(100)]
        await sending.flush(timeout_ms=5000)
        assert [future.result().offset for future in futures] == list(range(100))
        summary = await sending.send_many("t", [b"%03d" % n + bytes(100) for n in range(100, 300)])
        assert summary.count == 200
        with pytest.raises(ServerError) as refused:
            await sending.send_and_wait("t", bytes(5000))
        assert refused.value.name == "RECORD_TOO_LARGE"
        assert (await sending.send_and_wait("t", b"300")).offset == 300
    values = single.topics["t"].partitions[0].values()
    assert [int((value or b"")[:3]) for value in values] == list(range(301))
    assert single.requests[PRODUCE] < 60


@pytest.mark.parametrize("entry", [INTERNAL, STORAGE_FAILED])
async def test_a_failure_of_unknown_outcome_says_so(single: FakeCluster, entry: Any) -> None:
    async with producer(single) as sending:
        single.fail(PRODUCE, Fault(frame_errors={0: entry}))
        with pytest.raises(ServerError) as failed:
            await sending.send_and_wait("t", b"x")
    assert failed.value.outcome_unknown


async def test_the_leader_is_followed_when_it_moves(cluster: FakeCluster) -> None:
    async with producer(cluster) as sending:
        await sending.send_and_wait("t", b"0", partition=0)
        cluster.topics["t"].partitions[0].leader = 2
        assert (await sending.send_and_wait("t", b"1", partition=0)).offset == 1
    assert cluster.topics["t"].partitions[0].values() == [b"0", b"1"]


@pytest.mark.parametrize("error", [NO_LEADER, DISK_FULL])
async def test_who_leads_is_asked_again_after_an_error_that_another_may_not_have(
    single: FakeCluster, error: ErrorEntry
) -> None:
    """A node with a full disk may not even know its successor."""
    async with producer(single) as sending:
        await sending.send_and_wait("t", b"0")
        asked = single.requests["/v1/metadata"]
        single.fail(PRODUCE, Fault(frame_errors={0: error}))
        assert (await sending.send_and_wait("t", b"1")).offset == 1
        assert single.requests["/v1/metadata"] > asked


async def test_a_partition_without_leader_is_waited_for(single: FakeCluster) -> None:
    partition = single.topics["t"].partitions[0]
    partition.leader = -1
    async with producer(single) as sending:
        future = await sending.send("t", b"x")
        await asyncio.sleep(0.02)
        assert not future.done()
        partition.leader = 1
        assert (await future).offset == 0


async def test_a_node_that_restarts_is_waited_for(single: FakeCluster) -> None:
    async with producer(single) as sending:
        await sending.send_and_wait("t", b"0")
        await single.nodes[0].stop()
        future = await sending.send("t", b"1")
        await asyncio.sleep(0.02)
        assert not future.done()
        await single.nodes[0].start()
        assert (await future).offset == 1


async def test_a_deleted_topic_fails_what_was_meant_for_it(single: FakeCluster) -> None:
    async with producer(single) as sending:
        await sending.send_and_wait("t", b"0")
        del single.topics["t"]
        with pytest.raises(TopicNotFoundError):
            await sending.send_and_wait("t", b"1")
        single.create_topic("t")
        assert (await sending.send_and_wait("t", b"2")).offset == 0


async def test_unknown_topic_is_created_where_the_cluster_does_that(single: FakeCluster) -> None:
    async with producer(single) as sending:
        with pytest.raises(TopicNotFoundError):
            await sending.send("new", b"x")
        single.auto_create_topics = True
        assert (await sending.send_and_wait("new", b"x")).offset == 0
        assert (await sending.send_many("many", [b"x"])).count == 1
        assert (await sending.send_and_wait("placed", b"x", partition=1)).offset == 0
        assert await sending.partitions_for("asked") == {0, 1}


async def test_partitions_that_are_added_are_written_to(single: FakeCluster) -> None:
    async with producer(single, metadata_max_age_ms=5) as sending:
        await sending.send_and_wait("t", b"0")
        single.add_partitions("t", 2)
        assert (await sending.send_and_wait("t", b"1", partition=1)).partition == 1
        assert await sending.partitions_for("t") == {0, 1}


async def test_delivery_timeout_of_a_record_never_sent(single: FakeCluster) -> None:
    single.topics["t"].partitions[0].leader = -1
    async with producer(single, delivery_timeout_ms=50) as sending:
        with pytest.raises(DeliveryTimeoutError, match="never sent") as late:
            await sending.send_and_wait("t", b"x")
    assert not late.value.outcome_unknown


async def test_delivery_timeout_of_a_record_that_may_be_written(single: FakeCluster) -> None:
    async with producer(single, delivery_timeout_ms=60, request_timeout_ms=40) as sending:
        single.fail(PRODUCE, *[Fault(drop_after=True)] * 1000)
        with pytest.raises(DeliveryTimeoutError) as late:
            await sending.send_and_wait("t", b"x")
        assert late.value.outcome_unknown
        assert isinstance(late.value.__cause__, ConnectionLostError)
        single.faults[PRODUCE].clear()
        assert (await sending.send_and_wait("t", b"y")).offset == 1
    assert single.topics["t"].partitions[0].values() == [b"x", b"y"]


async def test_without_idempotence_a_lost_answer_is_not_repeated(single: FakeCluster) -> None:
    single.fail(PRODUCE, Fault(drop_after=True))
    async with producer(single, idempotent=False) as sending:
        with pytest.raises(ConnectionLostError) as lost:
            await sending.send_and_wait("t", b"x")
        assert lost.value.outcome_unknown
    assert single.topics["t"].partitions[0].values() == [b"x"]
    assert single.requests["/v1/producer-ids"] == 0


async def test_a_full_buffer_makes_send_wait_and_then_fail(single: FakeCluster) -> None:
    sending = producer(single, buffer_bytes_max=4096, batch_bytes_max=1024, delivery_timeout_ms=100)
    await sending.start()
    single.fail(PRODUCE, Fault(delay_s=30))
    futures: list[asyncio.Future[Any]] = []

    async def fill() -> None:
        while True:
            futures.append(await sending.send("t", bytes(2000)))

    with pytest.raises(BufferFullError, match="never sent") as full:
        async with asyncio.timeout(DEADLINE_S):
            await fill()
    assert full.value.retriable
    assert not full.value.outcome_unknown
    assert 2 <= len(futures) <= 3
    await sending.close(timeout_ms=1)
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(outcome, ClientClosedError) for outcome in outcomes)


async def test_a_full_buffer_ends_all_lingering(single: FakeCluster) -> None:
    async with (
        producer(single, buffer_bytes_max=2048, batch_bytes_max=1024, linger_ms=60_000) as sending,
        asyncio.timeout(DEADLINE_S),
    ):
        for _ in range(50):
            await sending.send("t", bytes(300))
        await asyncio.gather(*(sending.send("t", bytes(300)) for _ in range(50)))


async def test_waiting_senders_go_on_in_their_order_when_room_returns(
    single: FakeCluster,
) -> None:
    async with producer(single, buffer_bytes_max=2048, batch_bytes_max=1024) as sending:

        async def send(number: int) -> None:
            await (await sending.send("t", b"%03d" % number + bytes(300)))

        await asyncio.gather(*(send(number) for number in range(100)))
    values = single.topics["t"].partitions[0].values()
    assert [int((value or b"")[:3]) for value in values] == list(range(100))


async def test_linger_gathers_what_comes_within_it(single: FakeCluster) -> None:
    async with producer(single, linger_ms=50) as sending:
        futures = []
        for number in range(20):
            futures.append(await sending.send("t", b"%d" % number))
            await asyncio.sleep(0)
        await asyncio.gather(*futures)
    assert single.topics["t"].partitions[0].append_count == 1


async def test_flush_does_not_linger(single: FakeCluster) -> None:
    async with producer(single, linger_ms=60_000) as sending:
        future = await sending.send("t", b"x")
        await sending.flush(timeout_ms=2000)
        assert future.done()


async def test_flush_gives_up_waiting_but_not_sending(single: FakeCluster) -> None:
    async with producer(single) as sending:
        single.fail(PRODUCE, Fault(delay_s=0.1))
        future = await sending.send("t", b"x")
        with pytest.raises(DeliveryTimeoutError):
            await sending.flush(timeout_ms=10)
        assert (await future).offset == 0


async def test_one_request_carries_many_partitions(cluster: FakeCluster) -> None:
    async with producer(cluster, linger_ms=20) as sending:
        await asyncio.gather(*[await sending.send("t", b"x", partition=n % 3) for n in range(30)])
    # Two nodes lead the three partitions.
    assert cluster.requests[PRODUCE] == 2


async def test_a_body_that_is_too_large_is_sent_in_parts(single: FakeCluster) -> None:
    single.body_bytes_max = 3000
    async with producer(single, batch_bytes_max=1024, linger_ms=20) as sending:
        await sending.send_and_wait("t", b"x")
        await sending.send_many("t", [b"%03d" % n + bytes(200) for n in range(100)])
    values = single.topics["t"].partitions[0].values()[1:]
    assert [int((value or b"")[:3]) for value in values] == list(range(100))


async def test_records_that_cannot_be_sent_are_refused_at_once(single: FakeCluster) -> None:
    async with producer(single, request_bytes_max=2048, batch_bytes_max=1024) as sending:
        with pytest.raises(RecordTooLargeError):
            await sending.send("t", bytes(3000))
        with pytest.raises(SerializationError, match="value_serializer"):
            await sending.send("t", "text")  # type: ignore[arg-type]
        with pytest.raises(ServerError, match=r"[Tt]imestamp"):
            await sending.send("t", b"x", timestamp_ms=-5)
        with pytest.raises(TypeError):
            await sending.send("t", b"x", headers=[("a", 5)])  # type: ignore[list-item]
        # Larger than a batch, but not than a request: a batch of its own.
        assert (await sending.send_and_wait("t", bytes(1500))).offset == 0


async def test_a_custom_partitioner_decides(cluster: FakeCluster) -> None:
    def by_value(topic: str, key: bytes | None, value: bytes | None, count: int) -> int | None:
        return None if value is None else int(value) % count

    async with producer(cluster, partitioner=by_value) as sending:
        places = await asyncio.gather(*[await sending.send("t", b"%d" % n) for n in range(9)])
        assert [place.partition for place in places] == [0, 1, 2] * 3
        await sending.send_many("t", [b"4", b"5", (b"key", b"6")])
        assert 0 <= (await sending.send_and_wait("t", None)).partition < 3
    assert [partition.end_offset for partition in cluster.topics["t"].partitions][1:] >= [4, 4]


async def test_records_without_key_use_all_partitions(cluster: FakeCluster) -> None:
    async with producer(cluster, batch_bytes_max=1024) as sending:
        await sending.send_many("t", [bytes(100)] * 1000)
        futures = [await sending.send("t", bytes(100)) for _ in range(1000)]
        await asyncio.gather(*futures)
    assert all(partition.end_offset > 300 for partition in cluster.topics["t"].partitions)


async def test_acks_0_acknowledges_without_an_offset_when_there_is_none(
    single: FakeCluster,
) -> None:
    single.fail(
        PRODUCE,
        Fault(
            answer=b'{"results":[{"topic":"t","partition":0,"base_offset":-1,"last_offset":-1}]}'
        ),
    )
    async with producer(single, acks=0) as sending:
        futures = [await sending.send("t", b"x") for _ in range(2)]
        assert [(await future).offset for future in futures] == [-1, -1]


async def test_close_sends_what_is_buffered(single: FakeCluster) -> None:
    async with producer(single, linger_ms=60_000) as sending:
        future = await sending.send("t", b"x")
    assert (await future).offset == 0
    with pytest.raises(ClientClosedError):
        await sending.send("t", b"y")
    await sending.close()


async def test_close_is_bounded_and_says_what_became_of_the_rest(single: FakeCluster) -> None:
    sending = producer(single)
    await sending.start()
    single.fail(PRODUCE, Fault(delay_s=30))
    in_flight = await sending.send("t", b"1")
    await asyncio.sleep(0.05)
    waiting = await sending.send("t", b"2")
    await sending.close(timeout_ms=20)
    with pytest.raises(ClientClosedError) as doubtful:
        await in_flight
    assert doubtful.value.outcome_unknown
    with pytest.raises(ClientClosedError) as certain:
        await waiting
    assert not certain.value.outcome_unknown


async def test_cancelling_the_application_still_flushes(single: FakeCluster) -> None:
    sent = asyncio.Event()

    async def application() -> None:
        async with producer(single, linger_ms=60_000) as sending:
            await sending.send("t", b"x")
            sent.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(application())
    await sent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert single.topics["t"].partitions[0].values() == [b"x"]


async def test_no_cluster_is_told_at_start() -> None:
    with pytest.raises(ConnectionLostError, match="No raftlog node answers at"):
        async with Producer(bootstrap_servers="127.0.0.1:1", request_timeout_ms=100):
            pass


@pytest.mark.parametrize(
    "settings",
    [
        {"acks": 2},
        {"compression": "brotli"},
        {"linger_ms": -1},
        {"batch_bytes_max": 10},
        {"batch_bytes_max": 2**20, "request_bytes_max": 2**19},
        {"bootstrap_servers": ""},
        {"bootstrap_servers": "host:99999"},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|there are|names no|is not host"):
        Producer(**settings)


@pytest.mark.parametrize(
    "name", ["linger_ms", "buffer_bytes_max", "in_flight_requests_max", "request_timeout_ms"]
)
def test_none_is_no_value_of_a_setting_with_a_minimum(name: str) -> None:
    with pytest.raises(TypeError):
        Producer(**{"bootstrap_servers": "127.0.0.1:1", name: None})


@pytest.mark.parametrize(("acks", "sent"), [("all", "all"), (-1, "all"), (True, "1"), (0, "0")])
async def test_requests_name_acks_and_the_servers_share_of_the_timeout(
    acks: Any, sent: str
) -> None:
    sending: Producer[Any, Any] = Producer(
        bootstrap_servers="127.0.0.1:1", acks=acks, request_timeout_ms=2010
    )
    assert sending._sender._path == f"/v1/produce?acks={sent}&timeout=1809"


async def test_send_many_tells_what_was_written_before_a_failure(single: FakeCluster) -> None:
    async with producer(single, batch_bytes_max=1024) as sending:
        await sending.send_and_wait("t", b"0")
        single.fail(PRODUCE, Fault(), Fault(frame_errors={0: CORRUPT_BATCH}))
        with pytest.raises(SendManyError) as failed:
            await sending.send_many("t", (bytes(400) for _ in range(100_000)))
    error = failed.value
    log = single.topics["t"].partitions[0]
    assert error.summary.count == log.end_offset - 1 > 0
    assert error.failed_count > 0
    assert not error.outcome_unknown
    assert isinstance(error.__cause__, ServerError)
    assert error.summary.count + error.failed_count < 100_000


async def test_send_many_passes_on_what_its_iterable_raises(single: FakeCluster) -> None:
    def records() -> Any:
        yield b"1"
        yield b"2"
        raise LookupError("the source broke")

    async with producer(single) as sending:
        with pytest.raises(LookupError) as broken:
            await sending.send_many("t", records())
        assert any("2 records before" in note for note in broken.value.__notes__)
        with pytest.raises(SerializationError):
            await sending.send_many("t", [b"3", 4])
        with pytest.raises(SerializationError):
            await sending.send_many("t", [(b"k", b"5"), (b"k", b"6", b"7")])
        await sending.send_and_wait("t", b"8")
    values = single.topics["t"].partitions[0].values()
    assert values == [b"1", b"2", b"3", b"5", b"8"]


async def test_send_many_loses_nothing_where_plain_records_meet_full_batches(
    cluster: FakeCluster,
) -> None:
    keyed = [(b"%d" % number, bytes(800)) for number in range(12)]
    plain = [bytes(500)] * 20
    async with producer(cluster, batch_bytes_max=1024) as sending:
        summary = await sending.send_many("t", [*keyed[:6], *plain, *keyed[6:], *plain])
    assert summary.count == 52
    values = all_values(cluster.topics["t"].partitions)
    assert sorted(map(len, filter(None, values))) == [500] * 40 + [800] * 12


async def test_send_many_sends_each_keyed_record_where_send_would(cluster: FakeCluster) -> None:
    records: list[Any] = [(b"%d" % (n % 23), b"%04d" % n) for n in range(3000)]
    records[700:700] = [(None, b"none"), (b"7", None)]
    records[1500:1500] = [ProducerRecord(b"header", b"5", headers=[("a", b"b")]), b"plain"]
    async with producer(cluster, batch_bytes_max=2048) as sending:
        summary = await sending.send_many("t", records)
        assert summary.count == len(records)
        partitions = cluster.topics["t"].partitions
        for n in range(23):
            place = await sending.send_and_wait("t", b"last", b"%d" % n)
            values = partitions[place.partition].values()
            expected = [b"%04d" % m for m in range(n, 3000, 23)]
            assert [value for value in values if value in expected] == expected
    assert sorted(map(str, all_values(partitions))) == sorted(
        [*(f"b'{n:04d}'" for n in range(3000)), "None", "b'none'", "b'plain'", "b'header'"]
        + ["b'last'"] * 23
    )


async def test_send_many_of_pairs_to_a_fixed_partition(cluster: FakeCluster) -> None:
    async with producer(cluster, batch_bytes_max=1024) as sending:
        await sending.send_many("t", [(b"%d" % n, b"%03d" % n) for n in range(500)], partition=1)
    values = cluster.topics["t"].partitions[1].values()
    assert values == [b"%03d" % n for n in range(500)]


async def test_send_many_of_pairs_sends_those_before_a_failure(single: FakeCluster) -> None:
    def records() -> Any:
        yield b"k", b"1"
        yield b"k", b"2"
        raise LookupError("the source broke")

    async with producer(single, request_bytes_max=4096, batch_bytes_max=1024) as sending:
        with pytest.raises(LookupError) as broken:
            await sending.send_many("t", records())
        assert any("2 records before" in note for note in broken.value.__notes__)
        with pytest.raises(RecordTooLargeError):
            await sending.send_many("t", [(b"k", b"3"), (b"k", bytes(5000)), (b"k", b"4")])
        with pytest.raises(SerializationError):
            await sending.send_many("t", [(b"k", b"5"), (b"k", "text")])
    assert single.topics["t"].partitions[0].values() == [b"1", b"2", b"3", b"5"]


async def test_send_many_of_nothing_is_nothing(single: FakeCluster) -> None:
    async with producer(single) as sending:
        assert (await sending.send_many("t", [])).count == 0


async def test_send_many_and_send_share_a_partition_in_order(single: FakeCluster) -> None:
    async with producer(single, linger_ms=5) as sending:
        await sending.send("t", b"1")
        many = asyncio.create_task(sending.send_many("t", [b"2", b"3"]))
        await asyncio.sleep(0)
        await sending.send_and_wait("t", b"4")
        await many
    assert single.topics["t"].partitions[0].values() == [b"1", b"2", b"3", b"4"]


async def test_many_metadata_answers_without_a_leader_do_not_spin(single: FakeCluster) -> None:
    single.topics["t"].partitions[0].leader = -1
    async with producer(single, retry_backoff_ms=20, retry_backoff_max_ms=20) as sending:
        future = await sending.send("t", b"x")
        await asyncio.sleep(0.2)
        assert single.requests["/v1/metadata"] < 20
        single.fail(PRODUCE, Fault(frame_errors={0: NO_LEADER}))
        single.topics["t"].partitions[0].leader = 1
        assert (await future).offset == 0


async def test_leader_that_moves_right_before_a_request_breaks_no_callback(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(3):
            await producer.send_and_wait("t", b"v", partition=number)
        addressed = producer._metadata.leader_address
        lookups = 0

        def moving(topic: str, partition: int) -> Any:
            nonlocal lookups
            lookups += partition == 0
            # Known when the record is queued, another one when it is about to leave.
            if partition == 0 and lookups in {2, 3}:
                return "127.0.0.1:9"
            return addressed(topic, partition)

        monkeypatch.setattr(producer._metadata, "leader_address", moving)
        async with asyncio.timeout(DEADLINE_S):
            await producer.send_and_wait("t", b"v", partition=0)
        assert lookups >= 4
    assert failures == []
