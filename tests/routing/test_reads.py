"""Reads of many partitions through one node: one call per leader, bounded, one outcome each."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.metadata.image import NO_LEADER_ID
from raftlog.record.errors import (
    NO_LEADER,
    NOT_READY,
    OFFSET_OUT_OF_RANGE,
    UNSUPPORTED_FORMAT,
    LogError,
)
from raftlog.record.types import AbortedTransaction, Offset, ProducerId
from raftlog.replication.partition import Fetched, Isolation
from raftlog.routing import reads
from raftlog.routing.reads import READS_S_MAX, ReadWant, read_many, reads_answer

from .forwarding_world import Cluster, Node, batch, simulate
from .test_many import spread, wanted

UNCOMMITTED, COMMITTED = Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED


async def read(
    node: Node,
    *offsets: int,
    max_bytes: int = 1 << 20,
    isolation: Isolation = UNCOMMITTED,
) -> list[Fetched | LogError]:
    """Partition n from the n-th offset on."""
    handles = wanted(node, *range(len(offsets)))
    wants = [
        ReadWant(handle, Offset(offset), 1 << 20)
        for handle, offset in zip(handles, offsets, strict=True)
    ]
    return await node.run(
        read_many(node.partitions, wants, max_bytes=max_bytes, isolation=isolation)
    )


async def filled(cluster: Cluster, *values: bytes) -> bytes:
    for value in values:
        await cluster.nodes[1].append(batch(value))
    return b"".join(cluster.records.batches)


def data_of(rows: list[Fetched | LogError]) -> list[bytes]:
    assert all(isinstance(row, Fetched) for row in rows), rows
    return [bytes(row.data) for row in rows if isinstance(row, Fetched)]


def test_each_leader_is_called_once_and_every_partition_has_its_batches() -> None:
    async def test(cluster: Cluster) -> None:
        content = await filled(cluster, b"a", b"b")
        spread(cluster, 1, 2, 3, 1, 2, 3)
        rows = await read(cluster.nodes[2], *[0] * 6)
        assert data_of(rows) == [content] * 6
        assert {row.next_offset for row in rows if isinstance(row, Fetched)} == {2}
        assert cluster.nodes[2].forwarder.requests == 2

    simulate(test)


def test_the_bound_is_shared_and_the_partitions_behind_it_have_their_marks() -> None:
    async def test(cluster: Cluster) -> None:
        content = await filled(cluster, bytes(1_000), bytes(1_000))
        one_batch = len(content) // 2
        spread(cluster, 1, 1, 2, 3)
        rows = await read(cluster.nodes[2], 0, 0, 0, 0, max_bytes=3 * one_batch)
        # A third for each leader: one batch.
        assert [len(data) for data in data_of(rows)] == [one_batch, 0, one_batch, one_batch]
        [_, behind, *_] = rows
        assert isinstance(behind, Fetched)
        assert (behind.next_offset, behind.high_watermark) == (0, 2)

    simulate(test)


def test_marks_alone_are_read_without_a_batch() -> None:
    async def test(cluster: Cluster) -> None:
        await filled(cluster, b"a", b"b", b"c")
        spread(cluster, 1, 2)
        for node in cluster.nodes.values():
            node.mine.stable = Offset(2)
        rows = await read(cluster.nodes[2], 0, 1, max_bytes=0)
        assert data_of(rows) == [b"", b""]
        for row, offset in zip(rows, (0, 1), strict=True):
            assert isinstance(row, Fetched)
            marks = (row.next_offset, row.high_watermark, row.last_stable_offset)
            assert marks == (offset, 3, 2)

    simulate(test)


def test_aborted_transactions_come_with_their_partitions_batches() -> None:
    async def test(cluster: Cluster) -> None:
        content = await filled(cluster, b"a", b"b")
        aborted = AbortedTransaction(ProducerId(7), Offset(1))
        cluster.nodes[1].mine.aborted = (aborted,)
        spread(cluster, 1, 1, 2)
        rows = await read(cluster.nodes[2], 0, 0, 0, isolation=COMMITTED)
        assert data_of(rows) == [content] * 3
        found = [row.aborted for row in rows if isinstance(row, Fetched)]
        assert found == [(aborted,), (aborted,), ()]

    simulate(test)


def test_an_error_is_of_its_partition_alone() -> None:
    async def test(cluster: Cluster) -> None:
        content = await filled(cluster, b"a")
        spread(cluster, 1, int(NO_LEADER_ID), 1, 2)
        rows = await read(cluster.nodes[2], 99, 0, 0, 0)
        entries = [row.entry if isinstance(row, LogError) else None for row in rows]
        assert entries == [OFFSET_OUT_OF_RANGE, NO_LEADER, None, None]
        assert data_of(rows[2:]) == [content] * 2

    simulate(test)


@pytest.mark.parametrize("is_crashed", [False, True])
def test_a_leader_that_hangs_or_is_gone_costs_its_own_partitions(is_crashed: bool) -> None:
    async def test(cluster: Cluster) -> None:
        content = await filled(cluster, b"a")
        spread(cluster, 1, 3)
        if is_crashed:
            cluster.world.crash(1)
        else:
            cluster.nodes[1].mine.gate = asyncio.Event()
        begun = asyncio.get_running_loop().time()
        lost, there = await read(cluster.nodes[3], 0, 0)
        assert isinstance(lost, LogError) and lost.entry is NOT_READY
        assert not lost.entry.outcome_unknown
        assert data_of([there]) == [content]
        assert asyncio.get_running_loop().time() - begun < READS_S_MAX + 1

    simulate(test)


def test_a_body_never_exceeds_what_one_answer_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(cluster: Cluster) -> None:
        await filled(cluster, bytes(1_000))
        size = len(cluster.records.batches[0])
        spread(cluster, 1, 1)
        # The second batch has no room any more, and is there for the next read.
        monkeypatch.setattr(reads, "BODY_BYTES_MAX", size + 1)
        rows = await read(cluster.nodes[2], 0, 0)
        assert [len(data) for data in data_of(rows)] == [size, 0]
        monkeypatch.setattr(reads, "BODY_BYTES_MAX", size - 1)
        for row in await read(cluster.nodes[2], 0, 0):
            assert isinstance(row, LogError) and row.entry is UNSUPPORTED_FORMAT

    simulate(test)


offsets = st.integers(0, 2**63 - 1).map(Offset)
fetched = st.builds(
    Fetched,
    st.binary(max_size=40),
    offsets,
    offsets,
    offsets,
    offsets,
    st.lists(
        st.builds(AbortedTransaction, st.integers(0, 2**62).map(ProducerId), offsets), max_size=3
    ).map(tuple),
)


@given(st.lists(st.one_of(fetched, st.sampled_from([LogError(NO_LEADER)])), max_size=8))
def test_outcomes_are_the_same_on_the_other_side(rows: list[Fetched | LogError]) -> None:
    outcome, body = reads_answer(rows)
    found = reads._answer(outcome, memoryview(b"".join(body)))
    wanted_rows = [row.entry.code if isinstance(row, LogError) else row for row in rows]
    assert found == wanted_rows
