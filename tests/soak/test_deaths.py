"""`acks` and `min.insync.replicas` decide which writes survive the death of nodes.

The claims are those of `bench.sources.promises`. Replicas stand on the voters, where the quorum
needs two of three, and on three nodes beside the voters.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final

import msgspec
import pytest
from raftlog_client import Consumer, Producer, RaftlogClientError, TopicPartition

from bench.cluster import (
    NODES,
    POLL_S,
    Cluster,
    NotWholeError,
    cancelled,
    run_workload,
)
from bench.sources.promises import ACKS, FLUSHES, MIN_ISRS, Acks, Deaths, deaths

ON_VOTERS: Final = (1, 2, 3)
BESIDE_VOTERS: Final = (4, 5, 6)
ATTEMPT_MS: Final = 2_000
"""Timeout of one write that may be refused."""
LOAD_S: Final = 0.5
"""Time of writes before a kill."""
OUTCOME_TIMEOUT_S: Final = 60.0
"""Longest wait for the promised outcome. Leases, elections and ISR changes take their time."""


class PromiseBrokenError(Exception):
    """Writes stopped, continued or lost records against the promise."""


@dataclass(slots=True)
class Cell:
    """One topic under one kind of acknowledgement, and the records that were acknowledged."""

    topic: str
    nodes: Sequence[int]
    acks: Acks
    min_isr: int
    producer: Producer[bytes, bytes]
    acknowledged: set[bytes] = field(default_factory=set)
    attempts: int = 0

    def goes_on(self, dead: int) -> bool:
        """Whether writes are promised with so many of the nodes dead."""
        promised = deaths(self.acks, self.min_isr)
        return dead <= (promised.writing if self.nodes == ON_VOTERS else promised.writing_beside)

    async def attempt(self) -> bool:
        """Write one record. Return whether it is acknowledged."""
        self.attempts += 1
        value = msgspec.json.encode(f"{self.topic}, acks={self.acks}, {self.attempts}")
        try:
            await self.producer.send_and_wait(self.topic, value, partition=0)
        except RaftlogClientError:
            return False
        self.acknowledged.add(value)
        return True

    async def check(self, dead: int) -> None:
        """Attempt until the outcome is as promised. Raises PromiseBrokenError."""
        deadline = time.perf_counter() + OUTCOME_TIMEOUT_S
        while await self.attempt() != self.goes_on(dead):
            if time.perf_counter() > deadline:
                verb = "stopped" if self.goes_on(dead) else "continued"
                raise PromiseBrokenError(
                    f"writes with acks={self.acks}, min.insync.replicas={self.min_isr} {verb} "
                    f"with {dead} of the nodes {self.nodes} dead"
                )
            await asyncio.sleep(POLL_S)


@pytest.mark.parametrize(
    ("acks", "min_isr", "promised"),
    [
        ("all", 1, Deaths(writing=1, writing_beside=2, lossless=0)),
        ("all", 2, Deaths(writing=1, writing_beside=1, lossless=1)),
        ("all", 3, Deaths(writing=0, writing_beside=0, lossless=2)),
        (1, 3, Deaths(writing=1, writing_beside=2, lossless=0)),
        (0, 2, Deaths(writing=1, writing_beside=2, lossless=0)),
    ],
)
def test_each_acknowledgement_has_its_promise(acks: Acks, min_isr: int, promised: Deaths) -> None:
    assert deaths(acks, min_isr) == promised


class FixedCell(Cell):
    """A cell with writes that always, or never, succeed."""

    is_written: bool = True

    async def attempt(self) -> bool:
        return self.is_written


def fixed(nodes: tuple[int, ...], acks: Acks, min_isr: int, *, is_written: bool) -> FixedCell:
    cell = FixedCell("t", nodes, acks, min_isr, producer=None)  # type: ignore[arg-type]
    cell.is_written = is_written
    return cell


@pytest.mark.parametrize(
    ("cell", "dead"),
    [
        (fixed(ON_VOTERS, "all", 2, is_written=True), 1),
        (fixed(ON_VOTERS, 1, 1, is_written=False), 2),
        (fixed(BESIDE_VOTERS, 1, 1, is_written=True), 2),
        (fixed(BESIDE_VOTERS, "all", 3, is_written=False), 1),
    ],
)
async def test_writes_as_promised_pass_the_check(cell: FixedCell, dead: int) -> None:
    await cell.check(dead)


@pytest.mark.parametrize(
    ("cell", "dead", "words"),
    [
        (fixed(ON_VOTERS, "all", 3, is_written=True), 1, "continued with 1"),
        (fixed(ON_VOTERS, 0, 1, is_written=True), 2, "continued with 2"),
        (fixed(BESIDE_VOTERS, "all", 1, is_written=False), 2, "stopped with 2"),
    ],
)
async def test_a_broken_promise_is_an_error(
    monkeypatch: pytest.MonkeyPatch, cell: FixedCell, dead: int, words: str
) -> None:
    monkeypatch.setattr(f"{__name__}.OUTCOME_TIMEOUT_S", 0.05)
    with pytest.raises(PromiseBrokenError, match=words):
        await cell.check(dead)


@pytest.mark.full  # a minute of nine nodes
def test_as_many_nodes_may_die_as_promised(tmp_path: Path) -> None:
    """Two of three nodes are killed, one after the other, of either kind. All come back."""
    with Cluster(tmp_path / "data", NODES) as nodes:
        nodes.start()
        for _ in BESIDE_VOTERS:
            nodes.join()
        totals = run_workload(_kills(nodes))
    assert all(acknowledged > 0 for acknowledged, _ in totals.values())
    assert totals["all"][1] == 0


async def _kills(cluster: Cluster) -> dict[Acks, tuple[int, int]]:
    async with AsyncExitStack() as stack:
        producers: dict[Acks, Producer[bytes, bytes]] = {
            acks: await stack.enter_async_context(
                Producer(
                    bootstrap_servers=cluster.servers, acks=acks, delivery_timeout_ms=ATTEMPT_MS
                )
            )
            for acks in ACKS
        }
        cells: list[Cell] = []
        for nodes, min_isr, flush in product((ON_VOTERS, BESIDE_VOTERS), MIN_ISRS, FLUSHES):
            topic = f"kills-{nodes[0]}-{min_isr}-{flush}"
            configs = {"min.insync.replicas": str(min_isr), "flush": flush}
            await cluster.create_topic(topic, 1, configs)
            cells += [
                Cell(topic=topic, nodes=nodes, acks=acks, min_isr=min_isr, producer=producers[acks])
                for acks in ACKS
            ]
        for nodes in (ON_VOTERS, BESIDE_VOTERS):
            await _place(cluster, sorted({one.topic for one in cells if one.nodes == nodes}), nodes)
        for nodes in (BESIDE_VOTERS, ON_VOTERS):
            own = [one for one in cells if one.nodes == nodes]
            await asyncio.gather(*(one.check(0) for one in own))
            for dead, victim in enumerate(nodes[:-1], start=1):
                # Records that a survivor does not know as committed wait for the others' return.
                await _read(cluster, own, nodes[dead:])
                await _kill_under_load(cluster, victim, [one for one in own if one.acks != "all"])
                await asyncio.gather(*(one.check(dead) for one in own))
            if nodes == BESIDE_VOTERS:
                await _read(cluster, own, nodes[-1:])
            await asyncio.to_thread(cluster.restart, *nodes[:-1])
            await cluster.wait_settled(sorted({one.topic for one in cells}))
        return await _losses(cluster, cells)


async def _kill_under_load(cluster: Cluster, victim: int, cells: Sequence[Cell]) -> None:
    """Kill a node between two writes to cells that the node may lead."""

    async def write() -> None:
        while True:
            await asyncio.gather(*(one.attempt() for one in cells))

    writing = asyncio.create_task(write())
    try:
        await asyncio.sleep(LOAD_S)
        await asyncio.to_thread(cluster.kill, victim)
    finally:
        await cancelled(writing)


async def _place(cluster: Cluster, topics: Sequence[str], nodes: Sequence[int]) -> None:
    """Move all replicas to these nodes, the leader to the first."""
    moves = [{"topic": topic, "partition": 0, "replicas": nodes} for topic in topics]
    await cluster.change("POST", "/v1/reassignments", {"reassignments": moves})
    deadline = time.perf_counter() + OUTCOME_TIMEOUT_S
    while True:
        rows = await cluster.known(topics)
        if all(set(row.isr) == set(row.replicas) == set(nodes) for row in rows):
            return
        if time.perf_counter() > deadline:
            raise NotWholeError(f"the replicas did not move to {nodes}: {rows}")
        await asyncio.sleep(POLL_S)


async def _read(cluster: Cluster, cells: Sequence[Cell], nodes: Sequence[int]) -> None:
    """Wait until each of these nodes shows all records acknowledged by acks=all.

    Raises PromiseBrokenError.
    """
    wanted: dict[str, set[bytes]] = {}
    for cell in cells:
        if cell.acks == "all":
            wanted.setdefault(cell.topic, set()).update(cell.acknowledged)
    deadline = time.perf_counter() + OUTCOME_TIMEOUT_S
    for node_id, (topic, values) in product(nodes, wanted.items()):
        while missing := values - await _values_at(cluster, node_id, topic):
            if time.perf_counter() > deadline:
                raise PromiseBrokenError(f"node {node_id} does not show {sorted(missing)[:3]}")
            await asyncio.sleep(POLL_S)


async def _values_at(cluster: Cluster, node_id: int, topic: str) -> set[bytes]:
    """The values that a node shows by its own replica."""
    path = f"/topics/{topic}/partitions/0/records?offset=0&replica=any&isolation=read_uncommitted"
    node = cluster.nodes[node_id]
    return {
        msgspec.json.encode(record["value"])
        for record in await asyncio.to_thread(node.request, "GET", path)
    }


async def _losses(cluster: Cluster, cells: Sequence[Cell]) -> dict[Acks, tuple[int, int]]:
    """The counts of acknowledged and of lost records, for each `acks`."""
    found: set[bytes] = set()
    async with Consumer(
        bootstrap_servers=cluster.servers, auto_offset_reset="earliest"
    ) as consumer:
        places = [TopicPartition(topic, 0) for topic in sorted({one.topic for one in cells})]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        while any([await consumer.position(place) < end for place, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                found |= {record.value for record in records if record.value is not None}
    totals: dict[Acks, tuple[int, int]] = {}
    for acks in ACKS:
        acknowledged = {value for one in cells if one.acks == acks for value in one.acknowledged}
        totals[acks] = len(acknowledged), len(acknowledged - found)
    return totals
