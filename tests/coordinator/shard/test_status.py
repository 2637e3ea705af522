"""What a node tells of its groups and transactions."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from raftlog.coordinator.groups.offset_messages import CommitOffsets, OffsetToCommit
from raftlog.coordinator.instances.messages import CreateInstance, DeleteInstance
from raftlog.coordinator.shard import status as module
from raftlog.coordinator.shard.decision import Event
from raftlog.coordinator.shard.status import CoordinatorWatch, GroupLag
from raftlog.coordinator.transactions.markers import PARKED
from raftlog.coordinator.transactions.transaction import DECIDED, OPEN
from raftlog.http.metrics import TRANSACTION_STATES
from raftlog.record.errors import COORDINATOR_FENCED, PRODUCER_FENCED, LogError
from tests.broker.data_fakes import DataNode, batch_of
from tests.controller.clock import settle
from tests.coordinator.calls import carry_out
from tests.coordinator.groups.test_kind import KIND, SESSION_MS, Harness, join
from tests.coordinator.images import remove_topic
from tests.coordinator.transaction_partition import A, B, TransactionPartition

TOPIC = "__consumer_offsets"


def watch_of(node: DataNode, clock: Any, *shards: Any) -> CoordinatorWatch:
    coordinators = SimpleNamespace(
        shards=lambda: shards,
        counts=lambda: sum((one.kind.counts for one in shards), Counter()),
    )
    return CoordinatorWatch(
        coordinators,  # type: ignore[arg-type]
        node.partitions,
        lambda: node.metadata.image,
        clock,
    )


async def group_node() -> Harness:
    node = DataNode()
    await node.metadata.create_topic(TOPIC, partitions=1)
    await node.metadata.create_topic("six", partitions=6)
    await node.metadata.create_topic("one", partitions=1)
    return Harness(node)


async def fill(node: DataNode, topic: str, partition: int, count: int) -> None:
    found = node.replicas.here(topic, partition)
    await found.append([batch_of([b"x"] * count)], acks=-1, timeout_s=5)  # type: ignore[arg-type]


def commits(group: str, topic: str, **offsets: int) -> CommitOffsets:
    return CommitOffsets(
        group, tuple(OffsetToCommit(topic, int(n[1:]), at) for n, at in offsets.items())
    )


async def test_lags_are_added_up_by_group_and_topic(monkeypatch: Any) -> None:
    harness = await group_node()
    node, shard = harness.node, await harness.load()
    await fill(node, "six", 0, 10)
    await fill(node, "six", 1, 5)
    await fill(node, "one", 0, 7)
    await carry_out(shard, commits("g", "six", p0=4, p1=5))
    await carry_out(shard, commits("g", "one", p0=0))
    await carry_out(shard, commits("h", "six", p1=2, p5=9))
    watch = watch_of(node, harness.clock, shard)
    assert watch.status().lags == ()
    await watch.measure()
    assert watch.status().lags == (
        GroupLag("g", "one", 7),
        GroupLag("g", "six", 6),
        GroupLag("h", "six", 3),
    )
    monkeypatch.setattr(module, "LAGS_MAX", 1)
    await watch.measure()
    assert (len(watch.status().lags), watch.status().other_lags) == (1, 9)
    await harness.tasks.close()


async def test_a_partition_without_a_leader_keeps_its_lag_and_a_deleted_topic_has_none(
    monkeypatch: Any,
) -> None:
    harness = await group_node()
    node, shard = harness.node, await harness.load()
    await fill(node, "one", 0, 7)
    await carry_out(shard, commits("g", "one", p0=3))
    watch = watch_of(node, harness.clock, shard)
    await watch.measure()

    async def lost(_router: object, wanted: list[object]) -> list[LogError]:
        return [LogError(PRODUCER_FENCED) for _ in wanted]

    with monkeypatch.context() as patch:
        patch.setattr(module, "bounds_of_many", lost)
        await watch.measure()
    assert watch.status().lags == (GroupLag("g", "one", 4),)
    remove_topic(node.metadata.image, "one")
    await watch.measure()
    assert watch.status().lags == ()
    await harness.tasks.close()


async def test_groups_rebalances_and_commits_are_counted() -> None:
    harness = await group_node()
    shard = await harness.load()
    watch = watch_of(harness.node, harness.clock, shard)
    before = watch.status()
    await join(shard, "a")
    await join(shard, "b")
    await carry_out(shard, commits("h", "six", p0=1, p1=1))
    status = watch.status()
    assert status.rebalances - before.rebalances == 2
    assert status.offset_commits - before.offset_commits == 2
    assert status.groups[("offsets", "empty")] == 1
    await harness.clock.advance(SESSION_MS / 1000 + 1)
    status = watch.status()
    assert status.rebalances - before.rebalances == 4
    assert status.groups[("consumer", "empty")] == 1
    assert KIND.counts[Event.REBALANCE] == status.rebalances
    await harness.tasks.close()


async def test_instances_are_counted_over_all_coordinators_until_they_end() -> None:
    harness = await group_node()
    shard = await harness.load()
    watch = watch_of(harness.node, harness.clock, shard, shard)
    for name in ("i", "j"):
        create = CreateInstance("g", name, f"m-{name}", "json", "latest", 0, 0, 0)
        await carry_out(shard, create)
    assert watch.status().consumer_instances == 4
    await carry_out(shard, DeleteInstance("g", "i"))
    assert watch.status().consumer_instances == 2
    await harness.tasks.close()


async def test_a_hung_producer_is_seen_by_its_age_and_then_counted() -> None:
    one = await TransactionPartition.start()
    shard = await one.load(writes_markers=False)
    watch = watch_of(one.node, one.clock, shard)
    old = await one.begin(shard, A)
    assert watch.status().transactions == {"ongoing": 1}
    await one.clock.advance(50)
    assert 49_000 <= watch.status().oldest_transaction_ms <= 51_000
    assert watch.status().transaction_timeouts == 0
    await one.clock.advance(11)
    status = watch.status()
    assert (status.transaction_timeouts, status.transactions) == (1, {"prepare-abort": 1})
    assert status.producers_fenced == 0
    for _ in range(2):
        try:
            await one.end(shard, old)
        except LogError as error:
            assert error.entry is PRODUCER_FENCED
    assert watch.status().producers_fenced == 2
    await one.close()


async def test_transactions_with_a_rejected_marker_are_counted_until_it_is_written() -> None:
    one = await TransactionPartition.start()
    shard = await one.load()
    watch = watch_of(one.node, one.clock, shard)
    producer = await one.begin(shard, A, B)
    one.leaders.refusals[producer.producer_id] = LogError(COORDINATOR_FENCED)
    assert watch.status().parked_transactions == 0
    await one.end(shard, producer)
    await settle()
    assert watch.status().parked_transactions == 1
    one.leaders.refusals.clear()
    await one.clock.advance(PARKED.max_s)
    assert watch.status().parked_transactions == 0
    await one.close()


def test_every_state_of_a_transaction_that_is_not_over_has_its_label() -> None:
    assert [state.label for state in (*OPEN, *DECIDED)] == list(TRANSACTION_STATES)
