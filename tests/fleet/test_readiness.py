"""Waiting for nodes: the end by readiness, by a deadline, by a process that does not stay up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from raftlog.cluster.process import free_ports
from raftlog.fleet import readiness
from raftlog.fleet.errors import FleetError
from raftlog.fleet.readiness import await_ready

PATIENCE_S = 60.0


class Node:
    """Answers `/ready` as set."""

    def __init__(self) -> None:
        self.is_ready = False
        self.address = ""

    async def answer(self, request: web.Request) -> web.Response:
        status = 200 if self.is_ready else 503
        return web.json_response({"error_code": 50304, "message": "catching up"}, status=status)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    found = Node()
    app = web.Application()
    app.router.add_get("/ready", found.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    found.address = f"{host}:{port}"
    yield found
    await runner.cleanup()


class Processes:
    """Processes that run."""

    async def failure(self, _node_id: int) -> str | None:
        return None

    async def log_end(self, node_id: int) -> str:
        return f"the end of its log: log of {node_id}"


async def test_wait_ends_with_readiness_and_reports_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "REPORT_S", 0.0)
    said: list[str] = []
    waiting = asyncio.ensure_future(await_ready({1: node.address}, Processes(), said.append))
    async with asyncio.timeout(PATIENCE_S):
        while not said:  # noqa: ASYNC110 - the report is the condition
            await asyncio.sleep(0.01)
        assert said[0] == "waiting for node 1: catching up"
        assert not waiting.done()
        node.is_ready = True
        await waiting


async def test_wait_ends_after_its_deadline_with_the_reason(node: Node) -> None:
    with pytest.raises(FleetError, match=r"not ready within 0 s: node 7: catching up.*log of 7"):
        await await_ready({7: node.address}, Processes(), print, timeout_s=0.0)


async def test_node_that_does_not_stay_up_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "CHECK_S", 0.0)
    calls = 0

    class Dying(Processes):
        async def failure(self, _node_id: int) -> str | None:
            nonlocal calls
            calls += 1
            # One life in between begins the count again.
            return None if calls == readiness.FAILURES_MAX - 1 else "exit code 2"

    (port,) = free_ports("127.0.0.1", 1)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(FleetError, match="node 1 does not stay up: exit code 2"):
            await await_ready({1: f"127.0.0.1:{port}"}, Dying(), print)
    assert calls == 2 * readiness.FAILURES_MAX - 1


async def test_node_that_answers_is_not_taken_for_dead(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "CHECK_S", 0.0)

    class Asked(Processes):
        async def failure(self, _node_id: int) -> str | None:
            raise AssertionError("a node that answers has a process")

    with pytest.raises(FleetError, match="not ready within"):
        await await_ready({1: node.address}, Asked(), print, timeout_s=0.5)
