"""Requests to coordinators: here or at the leader, with the retries of handles."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from raftlog.record.errors import (
    COORDINATOR_LOADING,
    ILLEGAL_STATE,
    NOT_COORDINATOR,
    NOT_READY,
    OVERLOADED,
    RETRIABLE,
    ErrorEntry,
    LogError,
)
from raftlog.record.types import Buffer
from raftlog.replication.partition import Partition
from raftlog.routing import forwarding, forwarding_server
from raftlog.routing.handle import RETRY_S_MAX, CoordinatorCall
from raftlog.routing.leader_gate import CoordinatorServer

from .forwarding_world import Cluster, Node, simulate


class Coordinator(CoordinatorServer):
    """Answers with the request in capitals, after its errors."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.calls: list[bytes] = []
        self.errors: list[LogError] = []
        self.gate: asyncio.Event | None = None

    async def serve(self, found: Partition, request: memoryview, timeout_s: float) -> Buffer:
        assert found is self.node.mine
        assert timeout_s > 0
        self.calls.append(bytes(request))
        if self.gate is not None:
            await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        return bytes(request).upper()


class Add(CoordinatorCall[bytes]):
    """The same word to a coordinator here and elsewhere, in its language at either."""

    def __init__(self, here: Coordinator) -> None:
        self.here = here

    async def local(self, found: Partition, timeout_s: float) -> bytes:
        return bytes(await self.here.serve(found, memoryview(b"add"), timeout_s))

    def encoded(self) -> Sequence[Buffer]:
        return (b"add",)

    def decoded(self, body: memoryview) -> bytes:
        return bytes(body)


def begin(cluster: Cluster) -> dict[int, Coordinator]:
    found = {}
    for number, node in cluster.nodes.items():
        found[number] = Coordinator(node)
        node.gate.register(coordinators=found[number])
    return found


async def call(
    node: Node,
    coordinator: Coordinator,
    *,
    timeout_s: float = 9.0,
    may_change: bool = True,
    may_repeat: bool = False,
    is_held: bool = False,
) -> bytes:
    async def calling() -> bytes:
        return await node.find().coordinate(
            Add(coordinator),
            timeout_s=timeout_s,
            may_change=may_change,
            may_repeat=may_repeat,
            is_held=is_held,
        )

    return await node.run(calling())


async def failure(*arguments: Any, **named: Any) -> ErrorEntry:
    with pytest.raises(LogError) as raised:
        await call(*arguments, **named)
    return raised.value.entry


def test_any_node_reaches_the_coordinator() -> None:
    async def test(cluster: Cluster) -> None:
        found = begin(cluster)
        for number, node in cluster.nodes.items():
            assert await call(node, found[number]) == b"ADD"
        assert [len(found[number].calls) for number in (1, 2, 3)] == [3, 0, 0]

    simulate(test)


@pytest.mark.parametrize("entry", [NOT_COORDINATOR, COORDINATOR_LOADING, NOT_READY])
@pytest.mark.parametrize("number", [1, 2])
def test_certain_refusals_are_retried_until_the_coordinator_serves(
    entry: ErrorEntry, number: int
) -> None:
    async def test(cluster: Cluster) -> None:
        found = begin(cluster)
        found[1].errors = [LogError(entry, "not now")] * 3
        assert await call(cluster.nodes[number], found[number]) == b"ADD"
        found[1].errors = [LogError(entry, "not now")] * 1000
        begun = asyncio.get_running_loop().time()
        assert await failure(cluster.nodes[number], found[number]) is entry
        assert asyncio.get_running_loop().time() - begun < RETRY_S_MAX + 1

    simulate(test)


def test_final_errors_and_unknown_outcomes_are_not_retried() -> None:
    async def test(cluster: Cluster) -> None:
        found = begin(cluster)
        for entry in (ILLEGAL_STATE, OVERLOADED, RETRIABLE):
            found[1].errors = [LogError(entry, "no")]
            assert await failure(cluster.nodes[2], found[2]) is entry
        assert len(found[1].calls) == 3
        found[1].errors = [LogError(RETRIABLE, "unknown")]
        assert await call(cluster.nodes[2], found[2], may_repeat=True) == b"ADD"

    simulate(test)


@pytest.mark.parametrize(
    ("named", "is_unknown"),
    [({}, True), ({"may_change": False, "may_repeat": True, "timeout_s": 1.0}, False)],
)
def test_a_lost_answer_leaves_the_outcome_unknown(named: dict[str, Any], is_unknown: bool) -> None:
    async def test(cluster: Cluster) -> None:
        found = begin(cluster)
        found[1].gate = asyncio.Event()
        calling = asyncio.ensure_future(failure(cluster.nodes[2], found[2], **named))
        await asyncio.sleep(0.1)
        cluster.world.crash(1)
        assert (await calling).outcome_unknown is is_unknown

    simulate(test)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_caller_that_leaves_cancels_a_held_request(is_closed: bool) -> None:
    """The coordinator takes it for the end of a member's connection; also its node's end."""

    async def test(cluster: Cluster) -> None:
        found = begin(cluster)
        found[1].gate = asyncio.Event()
        held = asyncio.ensure_future(call(cluster.nodes[2], found[2], is_held=True))
        await asyncio.sleep(0.1)
        (session,) = cluster.nodes[1].server._channel.sessions.values()
        (running,) = session._running.values()
        if is_closed:
            cluster.nodes[2].forwarder.close()
        else:
            held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        await asyncio.sleep(0.1)
        assert running.task.cancelled()

    simulate(test)


@pytest.mark.parametrize("side", [forwarding, forwarding_server])
def test_held_requests_are_bounded_apart_from_the_others(
    monkeypatch: pytest.MonkeyPatch, side: Any
) -> None:
    monkeypatch.setattr(side, "WAITS_MAX", 1)

    async def test(cluster: Cluster) -> None:
        found = begin(cluster)
        gate = found[1].gate = asyncio.Event()
        held = asyncio.ensure_future(call(cluster.nodes[2], found[2], is_held=True))
        await asyncio.sleep(0.1)
        assert await failure(cluster.nodes[2], found[2], is_held=True) is OVERLOADED
        other = asyncio.ensure_future(call(cluster.nodes[2], found[2]))
        await asyncio.sleep(0.1)
        gate.set()
        assert await held == await other == b"ADD"

    simulate(test)


def test_a_node_without_coordinators_is_not_ready() -> None:
    async def test(cluster: Cluster) -> None:
        unused = Coordinator(cluster.nodes[2])
        assert await failure(cluster.nodes[2], unused, timeout_s=0.5) is NOT_READY

    simulate(test)
