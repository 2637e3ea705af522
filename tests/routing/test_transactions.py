"""Reads of committed transactions, and markers, through other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.record.batch import RecordBatch
from raftlog.record.control import Marker
from raftlog.record.errors import (
    COORDINATOR_FENCED,
    MAYBE_ENDED,
    NO_LEADER,
    RETRIABLE,
    TRANSACTION_NOT_VERIFIED,
    LogError,
)
from raftlog.record.types import (
    AbortedTransaction,
    Offset,
    PartitionId,
    ProducerEpoch,
    ProducerId,
)
from raftlog.replication.partition import Acks, Isolation, Partition
from raftlog.routing.forwarding_messages import split_aborted, with_aborted
from raftlog.routing.leader_gate import LeaderTransactions
from raftlog.routing.many import PartitionBounds, bounds_of_many, times_of_many
from raftlog.storage.types import AppendResult
from tests.storage.transactional import transactional

from .forwarding_world import Cluster, Node, batch, simulate

COMMITTED = Isolation.READ_COMMITTED
MANY = tuple(AbortedTransaction(ProducerId(2**62 + n), Offset(n)) for n in range(50_000))


async def filled(cluster: Cluster) -> bytes:
    """Three batches, the last one of an open transaction."""
    for value in (b"a", b"b", b"c"):
        await cluster.nodes[2].append(batch(value))
    for node in cluster.nodes.values():
        node.mine.stable = Offset(2)
    return b"".join(cluster.records.batches[:2])


def mark(node: Node, timeout_s: float = 5.0):  # type: ignore[no-untyped-def]
    return node.run(
        node.find().write_marker(
            ProducerId(7),
            ProducerEpoch(3),
            Marker(False, 9, is_epoch_next=True, coordinator=PartitionId(3)),
            timeout_s=timeout_s,
        )
    )


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("aborted", [(), MANY[:1], MANY])
def test_a_read_ends_at_the_last_stable_offset_and_names_the_aborted(
    number: int, aborted: tuple[AbortedTransaction, ...]
) -> None:
    async def test(cluster: Cluster) -> None:
        content = await filled(cluster)
        cluster.nodes[1].mine.aborted = aborted
        node = cluster.nodes[number]
        fetched = await node.run(node.find().read(Offset(0), max_bytes=1000, isolation=COMMITTED))
        assert bytes(fetched.data) == content
        assert fetched.aborted == aborted
        assert (fetched.next_offset, fetched.high_watermark, fetched.last_stable_offset) == (
            2,
            3,
            2,
        )
        everything = await node.run(node.find().read(Offset(0), max_bytes=1000))
        assert (everything.next_offset, everything.last_stable_offset) == (3, 2)
        assert everything.aborted == ()

    simulate(test)


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))), st.binary())
def test_a_body_holds_the_aborted_transactions_before_the_batches(
    rows: list[tuple[int, int]], data: bytes
) -> None:
    aborted = tuple(AbortedTransaction(ProducerId(one), Offset(two)) for one, two in rows)
    body = memoryview(b"".join(with_aborted(aborted, data)))
    found, left = split_aborted(len(aborted), body)
    assert found == aborted
    assert bytes(left) == data


def test_a_local_follower_reads_up_to_its_own_last_stable_offset() -> None:
    async def test(cluster: Cluster) -> None:
        content = await filled(cluster)
        node = cluster.nodes[3]
        handle = node.find(any_replica=True)
        assert await node.run(handle.bounds(COMMITTED)) == (0, 2)
        fetched = await node.run(handle.read(Offset(0), max_bytes=1000, isolation=COMMITTED))
        assert bytes(fetched.data) == content
        assert node.mine.calls == ["read 0 1000 None any committed"]

    simulate(test)


@pytest.mark.parametrize("number", [1, 2])
def test_bounds_and_times_have_an_isolation(number: int) -> None:
    async def test(cluster: Cluster) -> None:
        await filled(cluster)
        node = cluster.nodes[number]
        assert await node.run(node.find().bounds()) == (0, 3)
        assert await node.run(node.find().bounds(COMMITTED)) == (0, 2)
        rows = await node.run(bounds_of_many(node.partitions, [node.find()]))
        assert rows == [PartitionBounds(Offset(0), Offset(3), Offset(2))]
        leader = cluster.nodes[1].mine
        asked: list[Isolation] = []
        known = leader.known_offset_for_timestamp

        async def noted(timestamp_ms: int, isolation: Isolation = Isolation.READ_UNCOMMITTED):  # type: ignore[no-untyped-def]
            asked.append(isolation)
            return await known(timestamp_ms, isolation)

        leader.known_offset_for_timestamp = noted  # type: ignore[method-assign]
        await node.run(node.find().offset_for_timestamp(5, COMMITTED))
        await node.run(times_of_many(node.partitions, [(node.find(), 5)], COMMITTED))
        await node.run(node.find().offset_for_timestamp(5))
        assert asked == [COMMITTED, COMMITTED, Isolation.READ_UNCOMMITTED]

    simulate(test)


def test_a_wait_at_another_node_is_for_the_last_stable_offset() -> None:
    async def test(cluster: Cluster) -> None:
        await filled(cluster)
        node, leader = cluster.nodes[2], cluster.nodes[1]
        wants = [(node.find(), Offset(2))]
        await node.run(node.partitions.wait_for_data(wants, 30.0))
        waiting = asyncio.ensure_future(
            node.run(node.partitions.wait_for_data(wants, 30.0, COMMITTED))
        )
        await asyncio.sleep(1.0)
        assert not waiting.done()
        leader.mine.stable = Offset(3)
        leader.replicas.wake.set()
        await waiting

    simulate(test)


@pytest.mark.parametrize("number", [1, 2])
def test_a_marker_goes_to_the_leader(number: int) -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[number], cluster.nodes[1]
        leader.mine.errors = [LogError(NO_LEADER, "not yet"), LogError(RETRIABLE, "no commit")]
        await mark(node)
        calls = [call.rpartition(" ")[0] for call in leader.mine.calls]
        marker = "Marker(commit=False, coordinator_epoch=9, is_epoch_next=True, coordinator=3)"
        assert calls == [f"marker 7 3 {marker}"] * 3
        leader.mine.errors = [LogError(COORDINATOR_FENCED, "a newer one")]
        with pytest.raises(LogError) as caught:
            await mark(node)
        assert caught.value.entry is COORDINATOR_FENCED

    simulate(test)


def test_a_marker_without_an_answer_has_an_unknown_outcome() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        leader.mine.gate = asyncio.Event()
        with pytest.raises(LogError) as caught:
            await mark(node, 1.0)
        assert caught.value.entry is RETRIABLE
        assert caught.value.message.startswith(MAYBE_ENDED)
        assert not node.fatal

    simulate(test)


def test_a_transactional_batch_is_for_the_leader_to_judge() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        leader.mine.errors = [LogError(TRANSACTION_NOT_VERIFIED)]
        with pytest.raises(LogError) as caught:
            await node.append(transactional([b"a"], 1, 0))
        assert caught.value.entry is TRANSACTION_NOT_VERIFIED
        await node.append(transactional([b"a"], 1, 0))
        assert cluster.records.end == 1

    simulate(test)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("adds", [True, False])
def test_whether_a_batch_adds_its_partition_comes_to_the_leader(number: int, adds: bool) -> None:
    class Transactions(LeaderTransactions):
        async def append(
            self, found: Partition, batches: Sequence[RecordBatch], **named: Any
        ) -> list[AppendResult]:
            joined.append((named["transactional_id"], named["adds_partition"]))
            acks, timeout_s = named["acks"], named["timeout_s"]
            return await found.append(batches, acks=acks, timeout_s=timeout_s)

        async def write_marker(self, *_: Any, **__: Any) -> None:
            raise AssertionError

    joined: list[tuple[str, bool]] = []

    async def test(cluster: Cluster) -> None:
        for node in cluster.nodes.values():
            node.gate.register(transactions=Transactions())
        append = (
            cluster.nodes[number]
            .find()
            .append(
                [transactional([b"a"], 1, 0)],
                acks=Acks.ALL,
                timeout_s=5.0,
                transactional_id="t",
                adds_partition=adds,
            )
        )
        await cluster.nodes[number].run(append)
        assert joined == [("t", adds)]

    simulate(test)
