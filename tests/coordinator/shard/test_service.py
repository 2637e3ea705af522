"""The coordinators of one node: internal topics, shards as leads come and go, calls."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from raftlog.coordinator.shard import service
from raftlog.coordinator.shard.service import PARTITIONS, Coordinators
from raftlog.metadata.image import TopicImage
from raftlog.record.coordinators import partition_of
from raftlog.record.errors import (
    COORDINATOR_LOADING,
    DISK_FULL,
    ILLEGAL_STATE,
    INVALID_BODY,
    NOT_COORDINATOR,
    RETRIABLE,
    LogError,
)
from raftlog.record.types import BrokerId, LeaderEpoch, PartitionEpoch
from raftlog.replication.partition import Partition
from raftlog.world.cluster_clock import ClusterClock
from tests.broker.data_fakes import DataNode, MemoryLog
from tests.controller.clock import SteppedClock, settle
from tests.coordinator.registers import (
    KIND,
    MESSAGES,
    REGISTER_CHARACTERS_MAX,
    TOPIC,
    Get,
    Increment,
    Request,
    Response,
)


class ServiceHarness:
    """A node's coordinators over partitions in memory."""

    def __init__(self) -> None:
        self.node = DataNode()
        self.clock = SteppedClock()
        self.fatal: list[str] = []
        self.coordinators = Coordinators(
            replicas=self.node.replicas,  # type: ignore[arg-type]
            router=self.node.partitions,
            metadata=self.node.metadata,  # type: ignore[arg-type]
            clock=self.clock,
            cluster_clock=ClusterClock(self.clock),
            on_fatal=self.fatal.append,
        )
        self.coordinators.register(KIND)

    async def call(self, request: Request, **named: Any) -> Response:
        return await self.coordinators.call(
            MESSAGES, request.register, request, **{"timeout_s": 5.0, **named}
        )

    async def increment(self, operation: str, **named: Any) -> int:
        return (await self.call(Increment("r", "c", operation), **named)).value

    def partition(self, register: str = "r") -> Partition:
        return self.node.replicas.here(TOPIC, partition_of(register, PARTITIONS))

    @property
    def log(self) -> MemoryLog:
        return self.node.log(TOPIC, partition_of("r", PARTITIONS))

    def lead(self, leader: int) -> None:
        """Another leader, or this node again, in the next leader epoch."""
        image = self.node.metadata.image
        topic = image.topics_by_name[TOPIC]
        number = partition_of("r", PARTITIONS)
        row = topic.partitions[number]
        row = msgspec.structs.replace(
            row,
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(row.leader_epoch + 1),
            partition_epoch=PartitionEpoch(row.partition_epoch + 1),
        )
        rows = (*topic.partitions[:number], row, *topic.partitions[number + 1 :])
        changed = msgspec.structs.replace(topic, partitions=rows)
        image.topics_by_name[TOPIC] = image.topics_by_id[topic.topic_id] = changed
        self.partition()
        self.node.partitions.on_metadata_applied()


@pytest.fixture
async def one() -> AsyncIterator[ServiceHarness]:
    harness = ServiceHarness()
    yield harness
    await harness.coordinators.close()
    assert not harness.fatal


async def test_first_use_creates_the_internal_topic_once(one: ServiceHarness) -> None:
    names = [f"r{number}" for number in range(40)]
    responses = await asyncio.gather(*(one.call(Increment(name, "c", name)) for name in names))
    assert [each.value for each in responses] == [1] * len(names)
    topic = one.node.metadata.image.topics_by_name[TOPIC]
    assert len(topic.partitions) == PARTITIONS
    assert topic.configs["cleanup.policy"] == "compact"
    for shard in one.coordinators.shards():
        held = [n for n in names if partition_of(n, PARTITIONS) == shard.partition.partition]
        assert sorted(shard.state.values) == sorted(held)


async def test_topic_of_another_creator_is_taken_as_it_is(
    one: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = one.node.metadata.create_topic

    async def overtaken(name: str, **_named: Any) -> TopicImage:
        await create(name, partitions=3)
        return await create(name, partitions=PARTITIONS)

    monkeypatch.setattr(one.node.metadata, "create_topic", overtaken)
    calling = asyncio.ensure_future(one.increment("a"))
    await one.clock.advance(1.0)
    assert await calling == 1
    assert len(one.node.metadata.image.topics_by_name[TOPIC].partitions) == 3


async def test_creation_is_tried_again_for_a_while(
    one: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_name: str, **_named: Any) -> TopicImage:
        raise LogError(RETRIABLE, "no quorum")

    monkeypatch.setattr(one.node.metadata, "create_topic", refused)
    calling = asyncio.ensure_future(one.increment("a"))
    await one.clock.advance(service.CREATE_S_MAX - 1)
    assert not calling.done()
    await one.clock.advance(2.0)
    with pytest.raises(LogError, match="no quorum"):
        await calling


async def test_shard_follows_the_lead(one: ServiceHarness) -> None:
    assert await one.increment("a") == 1
    (shard,) = one.coordinators.shards()
    one.lead(2)
    assert shard.ended is not None
    with pytest.raises(LogError):
        await one.increment("b", timeout_s=0.1)
    assert not one.coordinators.shards()
    one.lead(1)
    assert await one.increment("b") == 2
    (again,) = one.coordinators.shards()
    assert again is not shard


@pytest.mark.parametrize("fails", [False, True])
async def test_an_ended_shard_is_freed_at_once(one: ServiceHarness, fails: bool) -> None:
    """A full collection is rare, and a shard that is loaded again and again may be large."""
    await one.increment("a")
    gc.collect()
    gc.disable()
    try:
        (shard,) = one.coordinators.shards()
        state, ended = weakref.ref(shard.state), weakref.ref(shard)
        del shard
        if fails:
            one.log.append_error = LogError(DISK_FULL, "full")
            calling = asyncio.ensure_future(one.increment("b"))
            await settle()
            one.log.append_error = None
            await one.clock.advance(service.RELOAD.min_s)
            assert await calling == 2
        else:
            one.lead(2)
        await settle()
        assert state() is None
        assert ended() is None
    finally:
        gc.enable()


async def test_leads_that_change_at_once_leave_one_shard(one: ServiceHarness) -> None:
    await one.increment("a")
    for leader in (2, 1, 2, 1):
        one.lead(leader)
    assert await one.increment("b") == 2
    await settle()
    (shard,) = one.coordinators.shards()
    assert shard.role is one.partition().leader_role
    assert len(one.partition().require_leader().end_listeners) == 1


async def test_shard_is_loaded_again_after_a_failed_append(one: ServiceHarness) -> None:
    assert await one.increment("a") == 1
    one.log.append_error = LogError(DISK_FULL, "full")
    calling = asyncio.ensure_future(one.increment("b"))
    await settle()
    assert not one.coordinators.shards()
    one.log.append_error = None
    await one.clock.advance(service.RELOAD.min_s)
    # Certainly not written, so repeated by the call itself.
    assert await calling == 2


async def test_requests_wait_while_a_shard_loads(one: ServiceHarness) -> None:
    assert await one.increment("a") == 1
    one.log.hold_flush = True
    one.lead(2)
    one.lead(1)
    one.partition().high_watermark = one.log.log_start_offset
    with pytest.raises(LogError) as loading:
        await one.call(Get("r"), timeout_s=0.1, may_change=False)
    assert loading.value.entry is COORDINATOR_LOADING
    calling = asyncio.ensure_future(one.increment("b"))
    await asyncio.sleep(0.05)
    assert not calling.done()
    one.log.hold_flush = False
    one.log.flush_now()
    assert await calling == 2


@pytest.mark.parametrize(("may_change", "is_unknown"), [(True, True), (False, False)])
async def test_late_answer_has_an_unknown_outcome_if_it_changes(
    one: ServiceHarness, may_change: bool, is_unknown: bool
) -> None:
    await one.increment("a")
    one.log.hold_flush = True
    writing = asyncio.ensure_future(one.increment("b", timeout_s=60.0))
    await settle()
    request = Increment("r", "d", "c") if may_change else Get("r")
    with pytest.raises(LogError) as late:
        await one.call(request, timeout_s=0.02, may_change=may_change)
    assert late.value.entry.outcome_unknown is is_unknown
    one.log.hold_flush = False
    one.log.flush_now()
    assert await writing == 2


async def test_bounds_are_checked_wherever_the_coordinator_is(one: ServiceHarness) -> None:
    await one.increment("a")
    (shard,) = one.coordinators.shards()
    request = Increment("r" * (REGISTER_CHARACTERS_MAX + 1), "c", "b")
    found: list[LogError] = []
    calls = (
        lambda: one.coordinators.call_partition(
            MESSAGES,
            one.node.metadata.image.topic(TOPIC),
            shard.partition.partition,
            request,
            timeout_s=5.0,
        ),
        lambda: one.coordinators.serve(
            shard.partition, memoryview(MESSAGES.encode_request(request)), 5.0
        ),
    )
    for call in calls:
        with pytest.raises(LogError) as refused:
            await call()
        found.append(refused.value)
    one.lead(2)
    with pytest.raises(LogError) as refused:
        await calls[0]()
    found.append(refused.value)
    assert {error.entry for error in found} == {INVALID_BODY}
    assert len({error.message for error in found}) == 1
    assert shard.state.values.keys() == {"r"}


async def test_other_topics_have_no_coordinator(one: ServiceHarness) -> None:
    topic = await one.node.metadata.create_topic("t")
    found = one.node.replicas.partition("t", 0)
    await settle()
    assert not one.coordinators.shards()
    with pytest.raises(LogError) as refused:
        await one.coordinators.serve(found, memoryview(b""), 1.0)
    assert refused.value.entry is NOT_COORDINATOR
    assert topic.name == "t"


async def test_close_ends_all_shards(one: ServiceHarness) -> None:
    await one.increment("a")
    (shard,) = one.coordinators.shards()
    await one.coordinators.close()
    assert shard.ended is not None
    with pytest.raises(LogError):
        await shard.execute(lambda _: pytest.fail("decided"))


async def test_refusals_of_the_state_machine_reach_the_caller(one: ServiceHarness) -> None:
    with pytest.raises(LogError) as refused:
        await one.call(Increment("refused", "c", "a"))
    assert refused.value.entry is ILLEGAL_STATE
