"""REST consumer instances of one node: rights, names, positions, reads, and what bounds them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from raftlog.broker.consumer_instances import (
    UNKNOWN_OFFSET,
    ConsumerInstanceService,
    InstanceOptions,
    OffsetToCommit,
    PartitionMove,
    PlannedRead,
)
from raftlog.broker.offsets import NamedOffset
from raftlog.record.errors import (
    FORBIDDEN,
    ILLEGAL_STATE,
    NOT_COORDINATOR,
    RETRIABLE,
    TOO_MANY_INSTANCES,
    UNKNOWN_INSTANCE,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    ErrorEntry,
    LogError,
)
from tests.broker.data_fakes import batch_of
from tests.broker.harness import ALICE, BrokerHarness, Operation, coordinating_groups
from tests.coordinator.images import remove_topic

EARLIEST = InstanceOptions("json", NamedOffset.EARLIEST)
I = ("g", "i")  # noqa: E741
Act = Callable[[ConsumerInstanceService], Awaitable[object]]


@asynccontextmanager
async def broker(**cluster_settings: str) -> AsyncIterator[BrokerHarness]:
    """A node with instance `i` of group `g`."""
    one = await BrokerHarness.start()
    one.node.metadata.image.cluster_settings = {
        name.replace("_", "."): value for name, value in cluster_settings.items()
    }
    async with coordinating_groups(one.node):
        await service(one).create(ALICE, *I, EARLIEST)
        yield one


def service(one: BrokerHarness) -> ConsumerInstanceService:
    return one.broker.consumer_instances


async def fill(one: BrokerHarness, topic: str, partition: int, count: int) -> None:
    found = one.node.replicas.here(topic, partition)
    await found.append([batch_of([b"x"] * count)], acks=-1, timeout_s=5)


async def refused(work: Awaitable[object]) -> ErrorEntry:
    with pytest.raises(LogError) as raised:
        await work
    return raised.value.entry


async def read(one: BrokerHarness, *, is_first: bool = True) -> PlannedRead:
    return await service(one).begin_read(ALICE, *I, ["json"], is_first=is_first, max_wait_s=0)


def offsets(found: PlannedRead) -> dict[tuple[str, int], int]:
    return {(one.handle.topic, int(one.handle.partition)): one.offset for one in found.partitions}


def id_of(one: BrokerHarness, topic: str) -> Any:
    return one.node.metadata.image.topic(topic).topic_id


EACH_CALL: list[Act] = [
    lambda it: it.create(ALICE, "g", "new", EARLIEST),
    lambda it: it.delete(ALICE, *I),
    lambda it: it.describe(ALICE, *I),
    lambda it: it.subscribe(ALICE, *I, topics=["one"]),
    lambda it: it.assign(ALICE, *I, [("one", 0)]),
    lambda it: it.seek(ALICE, *I, offsets={("one", 0): 1}, times_ms={}),
    lambda it: it.seek_to(ALICE, *I, [("one", 0)], NamedOffset.LATEST),
    lambda it: it.commit(ALICE, *I, None),
    lambda it: it.committed(ALICE, *I, None),
    lambda it: it.begin_read(ALICE, *I, ["json"], is_first=True, max_wait_s=0),
    lambda it: it.end_read(ALICE, *I, [], []),
]


@pytest.mark.parametrize("act", EACH_CALL)
async def test_each_call_needs_the_right_to_its_group_and_changes_nothing_without(act: Act) -> None:
    async with broker() as one:
        one.refuse(Operation.READ, "g")
        assert await refused(act(service(one))) is FORBIDDEN
        one.authorizer.refused.clear()
        assert await service(one).describe(ALICE, *I) == ((), ())
        assert await refused(service(one).describe(ALICE, "g", "new")) is UNKNOWN_INSTANCE


@pytest.mark.parametrize(
    ("operation", "act"),
    [
        (Operation.DESCRIBE, lambda it: it.subscribe(ALICE, *I, topics=["one", "six"])),
        (Operation.READ, lambda it: it.assign(ALICE, *I, [("one", 0), ("six", 0)])),
        (Operation.READ, lambda it: it.commit(ALICE, *I, [OffsetToCommit("six", 0, 1)])),
    ],
)
async def test_topics_need_their_rights(operation: Operation, act: Act) -> None:
    async with broker() as one:
        one.refuse(operation, "six")
        assert await refused(act(service(one))) is FORBIDDEN
        assert await service(one).describe(ALICE, *I) == ((), ())


async def test_what_one_may_not_read_is_refused_when_it_is_read() -> None:
    async with broker() as one:
        await service(one).subscribe(ALICE, *I, topics=["six"])
        one.refuse(Operation.READ, "six")
        assert await refused(read(one)) is FORBIDDEN


async def test_an_instance_without_a_name_gets_one_of_its_own() -> None:
    async with broker() as one:
        names = {await service(one).create(ALICE, "g", None, EARLIEST) for _ in range(3)}
        assert len(names) == 3
        for name in names:
            await service(one).delete(ALICE, "g", name)


async def test_the_operator_bounds_how_many_there_are() -> None:
    async with broker(consumer_instances_max="2") as one:
        await service(one).create(ALICE, "g", "j", EARLIEST)
        assert await refused(service(one).create(ALICE, "g", "k", EARLIEST)) is TOO_MANY_INSTANCES
        await service(one).delete(ALICE, *I)
        await service(one).create(ALICE, "g", "k", EARLIEST)


@pytest.mark.parametrize(
    ("place", "entry"), [(("nope", 0), UNKNOWN_TOPIC), (("one", 1), UNKNOWN_PARTITION)]
)
async def test_partitions_must_exist(place: tuple[str, int], entry: ErrorEntry) -> None:
    async with broker() as one:
        assert await refused(service(one).assign(ALICE, *I, [("one", 0), place])) is entry
        offset = OffsetToCommit(*place, 1)
        assert await refused(service(one).commit(ALICE, *I, [offset])) is entry
        assert (await service(one).describe(ALICE, *I)).partitions == ()


async def test_a_seek_is_of_partitions_that_the_instance_has() -> None:
    async with broker() as one:
        await fill(one, "six", 1, 5)
        await service(one).assign(ALICE, *I, [("six", 1), ("six", 2)])
        both = {("six", 1): 3, ("six", 5): 3}
        assert await refused(service(one).seek(ALICE, *I, offsets=both, times_ms={})) is (
            ILLEGAL_STATE
        )
        for places in (list(both), [("nope", 0)], [("six", 9)]):
            ends = service(one).seek_to(ALICE, *I, places, NamedOffset.LATEST)
            assert await refused(ends) is ILLEGAL_STATE
            times = service(one).seek(ALICE, *I, offsets={}, times_ms=dict.fromkeys(places, 0))
            assert await refused(times) is ILLEGAL_STATE
        assert set(offsets(await read(one)).values()) == {UNKNOWN_OFFSET}
        await service(one).seek_to(ALICE, *I, [("six", 1), ("six", 2)], NamedOffset.LATEST)
        assert offsets(await read(one)) == {("six", 1): 5, ("six", 2): 0}
        await service(one).seek_to(ALICE, *I, [("six", 1)], NamedOffset.EARLIEST)
        assert offsets(await read(one))["six", 1] == 0


async def test_a_seek_to_a_time_after_all_records_is_one_to_the_end() -> None:
    async with broker() as one:
        await fill(one, "six", 1, 5)
        await service(one).assign(ALICE, *I, [("six", 1), ("six", 2)])
        # All records here have the timestamp 0.
        times = {("six", 1): 0, ("six", 2): 0}
        await service(one).seek(ALICE, *I, offsets={}, times_ms=times)
        assert offsets(await read(one)) == {("six", 1): 0, ("six", 2): 0}
        await service(one).seek(ALICE, *I, offsets={("six", 2): 0}, times_ms={("six", 1): 1})
        assert offsets(await read(one)) == {("six", 1): 5, ("six", 2): 0}


async def test_offsets_are_committed_all_or_none_and_found_again() -> None:
    async with broker() as one:
        await service(one).assign(ALICE, *I, [("six", 1), ("six", 2)])
        good, bad = OffsetToCommit("six", 1, 7), OffsetToCommit("six", 9, 7)
        assert await refused(service(one).commit(ALICE, *I, [good, bad])) is UNKNOWN_PARTITION
        assert [row.offset for row in await service(one).committed(ALICE, *I, None)] == [-1, -1]
        await service(one).commit(ALICE, *I, [good])
        found = await service(one).committed(ALICE, *I, None)
        assert [(row.topic, row.partition, row.offset) for row in found] == [
            ("six", 1, 7),
            ("six", 2, -1),
        ]
        [other] = await service(one).committed(ALICE, *I, [("one", 0)])
        assert (other.topic, other.offset) == ("one", -1)
        assert offsets(await read(one))["six", 1] == 7


async def test_a_read_leaves_out_topics_that_are_gone_or_new_to_this_node() -> None:
    async with broker() as one:
        await service(one).assign(ALICE, *I, [("one", 0), ("six", 0)])
        remove_topic(one.node.metadata.image, "six")
        assert set(offsets(await read(one))) == {("one", 0)}
        await one.node.metadata.create_topic("six", partitions=6)
        assert set(offsets(await read(one))) == {("one", 0)}


async def test_the_first_read_to_end_moves_the_position_and_the_other_learns_it() -> None:
    async with broker() as one:
        await service(one).assign(ALICE, *I, [("one", 0), ("six", 0)])
        await read(one)
        await read(one)
        moves = [PartitionMove(id_of(one, "one"), 0, UNKNOWN_OFFSET, 3, 0)]
        assert await service(one).end_read(ALICE, *I, moves, []) == set()
        assert await service(one).end_read(ALICE, *I, moves, []) == {(id_of(one, "one"), 0)}
        assert offsets(await read(one))["one", 0] == 3


@pytest.mark.parametrize(("entry", "is_answered"), [(RETRIABLE, True), (NOT_COORDINATOR, False)])
async def test_records_are_answered_if_the_position_may_have_moved(
    entry: ErrorEntry, is_answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records read twice are better than records lost."""
    async with broker() as one:
        moves = [PartitionMove(id_of(one, "one"), 0, UNKNOWN_OFFSET, 3, 0)]

        async def call(*_arguments: object, **_named: object) -> object:
            raise LogError(entry)

        monkeypatch.setattr(one.broker.groups, "call", call)
        ending = service(one).end_read(ALICE, *I, moves, [])
        if is_answered:
            assert await ending == set()
        else:
            assert await refused(ending) is entry


async def test_an_instance_is_a_member_of_its_group_while_it_is_subscribed() -> None:
    async with broker() as one:
        await service(one).subscribe(ALICE, *I, topics=["six"])
        view = await service(one).describe(ALICE, *I)
        assert view.topics == ("six",)
        assert view.partitions == tuple(("six", number) for number in range(6))
        await service(one).create(ALICE, "g", "j", EARLIEST)
        await service(one).assign(ALICE, "g", "j", [("one", 0)])
        assert (await service(one).describe(ALICE, *I)).partitions == view.partitions
        await service(one).subscribe(ALICE, *I)
        assert await service(one).describe(ALICE, *I) == ((), ())
