"""Produce without a protocol: partitions, batches, and an outcome for each partition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

from raftlog.broker import produce
from raftlog.broker.produce import (
    BATCHES_PER_STEP_MAX,
    BatchesAppended,
    ProduceOptions,
    RoundRobin,
)
from raftlog.record.errors import (
    FORBIDDEN,
    INVALID_BODY,
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    RECORD_TOO_LARGE,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.record.frames import ProduceFrame
from raftlog.record.partitioner import partition_for_key
from raftlog.record.types import PartitionId, ProducerEpoch, ProducerId
from raftlog.replication.leader.role import LeaderRole
from raftlog.replication.partition import Acks
from tests.broker.data_fakes import contents
from tests.broker.harness import (
    ALICE,
    CLUSTER,
    DEFAULTS,
    TOPIC,
    BrokerHarness,
    Operation,
    encoded,
    record,
)

IDEMPOTENT = ProduceOptions(Acks.ALL, 5.0, ProducerId(7), ProducerEpoch(0), 0)


async def test_records_go_to_their_partition_or_their_key_or_the_round_robin() -> None:
    one = await BrokerHarness.start()
    topic = await one.broker.produce.topic(ALICE, "six")
    records = [record("a"), record("b", b"key"), record("c"), record("d")]
    writes = await one.broker.produce.write(
        topic, records, [4, None, None, None], DEFAULTS, size_bytes=100
    )
    found = {write.number: (list(write.indexes), write.outcome) for write in writes}
    turn = 0
    expected: dict[int, list[int]] = {4: [0]}
    expected.setdefault(partition_for_key(b"key", 6), []).append(1)
    expected.setdefault(turn, []).extend([2, 3])
    assert {number: indexes for number, (indexes, _) in found.items()} == expected
    assert found[4][1] == range(1)


async def test_two_brokers_share_no_round_robin() -> None:
    first, second = await BrokerHarness.start(), await BrokerHarness.start()
    for one in (first, second, first):
        topic = await one.broker.produce.topic(ALICE, "six")
        await one.broker.produce.write(topic, [record("a")], None, DEFAULTS, size_bytes=1)
    assert [first.node.log("six", n).log_end_offset for n in range(3)] == [1, 1, 0]
    assert [second.node.log("six", n).log_end_offset for n in range(3)] == [1, 0, 0]


async def test_round_robin_forgets_topics_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "TOPICS_REMEMBERED_MAX", 1)
    one = await BrokerHarness.start()
    image = one.node.metadata.image
    turns = RoundRobin()
    assert [turns.take(image.topic("six")) for _ in range(3)] == [0, 1, 2]
    assert turns.take(image.topic("one")) == 0
    assert turns.take(image.topic("six")) == 0


async def test_partitions_fare_differently_and_each_has_its_outcome() -> None:
    one = await BrokerHarness.start()
    one.node.log("six", 1).append_error = LogError(NOT_ENOUGH_REPLICAS, "too few")
    topic = await one.broker.produce.topic(ALICE, "six")
    writes = await one.broker.produce.write(
        topic, [record("a"), record("b")], [0, 1], DEFAULTS, size_bytes=2
    )
    good, bad = writes
    assert (list(good.outcome), bad.number) == ([0], 1)  # type: ignore[arg-type]
    assert isinstance(bad.outcome, LogError)
    assert bad.outcome.entry is NOT_ENOUGH_REPLICAS
    counters = one.broker.topics.topic("six")
    assert (counters.produce_requests, counters.failed_produce_requests) == (1, 1)
    assert (counters.messages_in, counters.bytes_in) == (1, 0)


@pytest.mark.parametrize(
    ("partitions", "options", "entry"),
    [
        ([9, 0], DEFAULTS, UNKNOWN_PARTITION),
        ([0, 1], IDEMPOTENT, INVALID_BODY),
        ([None, 0], IDEMPOTENT, INVALID_BODY),
    ],
)
async def test_request_that_cannot_be_planned_appends_nothing(
    partitions: list[int | None], options: ProduceOptions, entry: object
) -> None:
    one = await BrokerHarness.start()
    topic = await one.broker.produce.topic(ALICE, "six")
    records = [record("a"), record("b")]
    with pytest.raises(LogError) as caught:
        await one.broker.produce.write(topic, records, partitions, options, size_bytes=2)
    assert caught.value.entry is entry
    assert one.node.record_count() == 0


async def test_record_over_the_topics_limit_is_named_and_appends_nothing() -> None:
    one = await BrokerHarness.start()
    topic = await one.node.metadata.create_topic("t", configs={"max.message.bytes": "1024"})
    records = [record("a"), record("b" * 2000)]
    with pytest.raises(LogError, match="Record 1 makes a batch") as caught:
        await one.broker.produce.write(topic, records, None, DEFAULTS, size_bytes=2001)
    assert caught.value.entry is RECORD_TOO_LARGE
    assert one.node.record_count() == 0


async def test_repeated_idempotent_write_has_the_first_ones_offsets() -> None:
    one = await BrokerHarness.start()
    topic = await one.broker.produce.topic(ALICE, "one")
    for _ in range(2):
        (write,) = await one.broker.produce.write(
            topic, [record("a"), record("b")], None, IDEMPOTENT, size_bytes=2
        )
        assert write.outcome == [0, 1]
    assert [value for _, value in contents(one.node.log())] == [b"a", b"b"]


async def test_fixed_partition_takes_all_records() -> None:
    one = await BrokerHarness.start()
    topic = await one.broker.produce.topic(ALICE, "six")
    records = [record("a", b"k1"), record("b", b"k2")]
    (write,) = await one.broker.produce.write(
        topic, records, None, DEFAULTS, size_bytes=2, partition=PartitionId(5)
    )
    assert (write.number, write.outcome) == (5, range(2))


async def test_write_needs_the_right_to_write() -> None:
    one = await BrokerHarness.start()
    await one.broker.produce.topic(ALICE, "one")
    assert one.authorizer.taken() == [(Operation.WRITE, TOPIC, "one")]
    one.refuse(Operation.WRITE, "one")
    with pytest.raises(LogError) as caught:
        await one.broker.produce.topic(ALICE, "one")
    assert caught.value.entry is FORBIDDEN


async def test_unknown_topic_is_created_only_by_the_settings_and_with_the_right() -> None:
    one = await BrokerHarness.start()
    with pytest.raises(LogError) as caught:
        await one.broker.produce.topic(ALICE, "new")
    assert caught.value.entry is UNKNOWN_TOPIC
    two = await BrokerHarness.start(auto_create_topics=True)
    assert (await two.broker.produce.topic(ALICE, "new")).name == "new"
    assert two.authorizer.taken() == [
        (Operation.WRITE, TOPIC, "new"),
        (Operation.CREATE, TOPIC, "new"),
    ]
    two.refuse(Operation.CREATE, "other")
    with pytest.raises(LogError) as caught:
        await two.broker.produce.topic(ALICE, "other")
    assert caught.value.entry is FORBIDDEN
    assert "other" not in two.node.metadata.image.topics_by_name


async def test_producer_id_needs_the_right_to_write_idempotently() -> None:
    one = await BrokerHarness.start()
    assert (await one.broker.produce.allocate_producer_id(ALICE))[1] == 0
    assert one.authorizer.taken() == [(Operation.IDEMPOTENT_WRITE, CLUSTER, "kafka-cluster")]


# Batches that clients build


def frame(topic: str, partition: int, *values: bytes) -> ProduceFrame:
    return ProduceFrame(topic, PartitionId(partition), encoded(values))


async def test_frames_fare_apart_each_with_its_outcome() -> None:
    one = await BrokerHarness.start()
    one.refuse(Operation.WRITE, "one")
    frames = [frame("six", 2, b"a", b"b"), frame("one", 0, b"c"), frame("none", 0, b"d")]
    good, refused, unknown = await one.broker.produce.append_batches(ALICE, frames, DEFAULTS)
    assert good == BatchesAppended(0, 1, -1, 0)  # type: ignore[arg-type]
    assert isinstance(refused, LogError)
    assert isinstance(unknown, LogError)
    assert (refused.entry, unknown.entry) == (FORBIDDEN, UNKNOWN_TOPIC)
    assert one.authorizer.taken() == [
        (Operation.WRITE, TOPIC, name) for name in ("six", "one", "none")
    ]
    assert one.node.log("one").log_end_offset == 0
    counters = one.broker.topics.topic("six")
    assert (counters.messages_in, counters.failed_produce_requests) == (2, 0)
    assert one.broker.topics.topic("one").produce_requests == 0


async def test_two_frames_of_one_partition_append_nothing() -> None:
    one = await BrokerHarness.start()
    with pytest.raises(LogError) as caught:
        await one.broker.produce.append_batches(
            ALICE, [frame("one", 0, b"a"), frame("one", 0, b"b")], DEFAULTS
        )
    assert caught.value.entry is INVALID_BODY
    assert one.node.record_count() == 0


async def test_frame_of_a_partition_led_elsewhere_names_the_leader() -> None:
    one = await BrokerHarness.start()
    error = LogError(NO_LEADER, "led elsewhere")
    one.node.replicas.offline["one", 0] = error
    outcomes = await one.broker.produce.append_batches(ALICE, [frame("one", 0, b"a")], DEFAULTS)
    assert list(outcomes) == [error]
    assert one.broker.topics.topic("one").failed_produce_requests == 1
    epoch, leader = one.broker.produce.current_leader("one", PartitionId(0))
    assert leader is not None
    assert (epoch, leader.broker_id) == (
        one.node.metadata.image.partition("one", 0).leader_epoch,
        1,
    )


async def test_records_that_the_topic_cannot_take_are_named() -> None:
    one = await BrokerHarness.start()
    configs = {"max.message.bytes": "200", "cleanup.policy": "compact"}
    await one.node.metadata.create_topic("kept", partitions=2, configs=configs)
    topic = await one.broker.produce.topic(ALICE, "kept")
    records = [
        record("a", b"k"),
        record("a"),
        record("a" * 200, b"k"),
        record("a", b"k"),
        record("a" * 100, b"k"),
    ]
    errors = await one.broker.produce.unfit(topic, records, [None, None, 1, 2, 1])
    found = {index: error.entry for index, error in errors.items()}
    assert found == {1: INVALID_BODY, 2: RECORD_TOO_LARGE, 3: UNKNOWN_PARTITION}


async def appends_by_turn(one: BrokerHarness, calls: Sequence[Any]) -> list[int]:
    """Run the calls; returns for each append the iteration of the event loop that it was in."""
    loop = asyncio.get_running_loop()
    turn, turns = 0, []

    def count() -> None:
        nonlocal turn, counting
        turn += 1
        counting = loop.call_soon(count)

    append = LeaderRole.append

    async def noted(self: LeaderRole, *arguments: Any, **named: Any) -> Any:
        turns.append(turn)
        return await append(self, *arguments, **named)

    counting = loop.call_soon(count)
    with mock.patch.object(LeaderRole, "append", noted):
        await asyncio.gather(*calls)
    counting.cancel()
    return turns


@pytest.mark.parametrize("requests", [1, 6])
async def test_frames_of_many_batches_take_turns(requests: int) -> None:
    """One such frame is a long step of the loop: no two of them in one iteration."""
    one = await BrokerHarness.start()
    many = [
        ProduceFrame("six", PartitionId(number), encoded([b"x"]) * (BATCHES_PER_STEP_MAX + 1))
        for number in range(6)
    ]
    append = one.broker.produce.append_batches
    share = len(many) // requests
    calls = [append(ALICE, many[first : first + share], DEFAULTS) for first in range(0, 6, share)]
    turns = await appends_by_turn(one, calls)
    assert len(set(turns)) == 6


async def test_a_frame_of_few_batches_is_appended_without_suspension() -> None:
    """A listener relies on that for the order of a connection's requests."""
    one = await BrokerHarness.start()
    few = ProduceFrame("one", PartitionId(0), encoded([b"x"]) * BATCHES_PER_STEP_MAX)
    append = one.broker.produce.append_batches
    calls = [append(ALICE, [few], DEFAULTS) for _ in range(3)]
    turns = await appends_by_turn(one, calls)
    assert len(set(turns)) == 1


MANY = ProduceFrame("six", PartitionId(0), encoded([b"x"]) * (BATCHES_PER_STEP_MAX + 1))


@pytest.mark.parametrize(
    "earlier",
    [
        [MANY],
        [frame("six", 1, b"x"), frame("six", 0, b"x")],
        [*(frame("six", number, b"x") for number in range(5, 0, -1)), MANY],
    ],
    ids=["many batches", "two frames", "many frames"],
)
async def test_requests_append_to_a_partition_in_the_order_of_their_arrival(
    earlier: list[ProduceFrame],
) -> None:
    one = await BrokerHarness.start()
    append = one.broker.produce.append_batches
    requests = [earlier, [frame("six", 0, b"1")], [frame("six", 0, b"2"), frame("six", 2, b"2")]]
    calls = [asyncio.create_task(append(ALICE, frames, DEFAULTS)) for frames in requests]
    await asyncio.gather(*calls)
    values = [value for _, value in contents(one.node.log("six", 0))]
    assert values == [b"x"] * (len(values) - 2) + [b"1", b"2"]


async def test_requests_to_a_topic_that_is_created_keep_their_order() -> None:
    one = await BrokerHarness.start(auto_create_topics=True)
    gate = asyncio.Event()
    create = one.node.metadata.create_topic

    async def slow(name: str) -> Any:
        topic = await create(name)
        await gate.wait()
        return topic

    append = one.broker.produce.append_batches
    with mock.patch.object(one.node.metadata, "create_topic", slow):
        calls = [
            asyncio.create_task(append(ALICE, [frame("new", 0, b"%d" % number)], DEFAULTS))
            for number in range(2)
        ]
        await asyncio.sleep(0)
        calls.append(asyncio.create_task(append(ALICE, [frame("new", 0, b"2")], DEFAULTS)))
        await asyncio.sleep(0)
        calls[1].cancel()
        gate.set()
        await asyncio.gather(*calls, return_exceptions=True)
    assert [value for _, value in contents(one.node.log("new"))] == [b"0", b"2"]


async def test_idempotent_writes_append_in_the_order_of_their_arrival() -> None:
    """A long request takes several turns before its append; the next one has one record."""
    one = await BrokerHarness.start()
    topic = await one.broker.produce.topic(ALICE, "six")
    count = 3 * produce.RECORDS_PER_TURN

    async def write(sequence: int, count: int) -> object:
        options = ProduceOptions(Acks.ALL, 5.0, ProducerId(7), ProducerEpoch(0), sequence)
        records = [record("a")] * count
        (one_write,) = await one.broker.produce.write(
            topic, records, [0] * count, options, size_bytes=count
        )
        return one_write.outcome

    long, short = await asyncio.gather(write(0, count), write(count, 1))
    assert (long, short) == (list(range(count)), [count])
