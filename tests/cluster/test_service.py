"""The manager as commands see it: start, requests, changes, stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from raftlog.api.manager import (
    AddNode,
    AwaitReady,
    ClusterStatus,
    GetStatus,
    Reconfigure,
    StartNode,
    StopNode,
)
from raftlog.cluster import changes, commands
from raftlog.cluster.errors import AlreadyManagedError, ClusterError
from raftlog.cluster.layout import Layout, manager_pid
from raftlog.cluster.manifest import Plan
from raftlog.cluster.service import ManagerService
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.usefixtures("fake_nodes")

TWO = Plan(nodes=2, base_port=0)


def nobody(_: str) -> None:
    """Hears nothing."""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout.at(tmp_path / "cluster")


@asynccontextmanager
async def managing(layout: Layout, plan: Plan = TWO) -> AsyncIterator[asyncio.Task[None]]:
    """A ready manager in this process; the test must stop it."""
    ready = asyncio.Event()
    service = ManagerService(layout.root, plan, nobody)
    task = asyncio.ensure_future(service.run(lambda _: ready.set()))
    waiting = asyncio.ensure_future(ready.wait())
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if task.done():
            await task
        try:
            yield task
        finally:
            if not task.done():
                await commands.stop(layout, nobody)
            await task


async def status(layout: Layout) -> ClusterStatus:
    return commands.status_from(await commands.request(layout, GetStatus(), nobody))


async def test_manager_answers_and_stops_on_command(layout: Layout) -> None:
    steps: list[str] = []
    async with managing(layout) as task:
        found = await status(layout)
        assert found.is_whole
        assert found.manager_pid == os.getpid()
        assert await commands.request(layout, AwaitReady(), nobody) is not None
        assert await commands.stop(layout, steps.append)
        assert task.done()
    assert steps == ["stopping node 1", "stopping node 2"]
    assert not layout.control.exists()
    assert not await commands.stop(layout, steps.append)


async def test_signal_stops_the_manager(layout: Layout) -> None:
    async with managing(layout) as task:
        os.kill(os.getpid(), signal.SIGINT)
        await task
    assert manager_pid(layout) is None
    assert [node.state for node in commands.status_unmanaged(layout).nodes] == ["stopped"] * 2


async def test_second_manager_leaves_the_firsts_socket_alone(layout: Layout) -> None:
    async with managing(layout):
        with pytest.raises(AlreadyManagedError):
            await ManagerService(layout.root, Plan(), nobody).run(lambda _: None)
        assert (await status(layout)).is_whole


async def test_nodes_are_stopped_started_and_added(layout: Layout) -> None:
    async with managing(layout):
        await commands.request(layout, StopNode(1), nobody)
        assert (await status(layout)).nodes[0].state == "stopped"
        await commands.request(layout, StartNode(1), nobody)
        assert (await status(layout)).nodes[0].ready
        steps: list[str] = []
        assert await commands.request(layout, AddNode(), steps.append) == 3
        address = (await status(layout)).nodes[2].address
        assert steps == [f"starting node 3 at {address}", f"node 3 serves at {address}"]
        await commands.request(layout, StopNode(3, forget=True), nobody)
        assert len((await status(layout)).nodes) == 2
        assert (layout.root / "lost" / "node-3.1").is_dir()
        with pytest.raises(ClusterError, match="no node 9"):
            await commands.request(layout, StopNode(9), nobody)


async def test_new_settings_reach_a_node_with_its_next_start(layout: Layout) -> None:
    def command_line(found: ClusterStatus) -> str:
        words = Path(f"/proc/{found.nodes[0].pid}/cmdline").read_bytes().split(b"\0")
        return b" ".join(words).decode()

    async with managing(layout):
        before = await status(layout)
        await commands.request(layout, Reconfigure(("--rack", "b"), "async"), nobody)
        assert (await status(layout)).nodes[0].pid == before.nodes[0].pid
        assert "--rack" not in command_line(before)
        await commands.request(layout, StopNode(1), nobody)
        await commands.request(layout, StartNode(1), nobody)
        found = command_line(await status(layout))
        assert "--rack b" in found
        assert "--flush async" in found
        with pytest.raises(ClusterError, match="--listen is set by the manager"):
            await commands.request(layout, Reconfigure(("--listen", "h:1"), "sync"), nobody)
    assert layout.require_manifest().arguments == ("--rack", "b")


async def test_one_change_at_a_time_and_stop_ends_it(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = asyncio.Event()

    async def endless(*_: Any, **__: Any) -> int:
        began.set()
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(changes, "add_node", endless)
    async with managing(layout):
        first = asyncio.ensure_future(commands.request(layout, AddNode(), nobody))
        await began.wait()
        with pytest.raises(ClusterError, match="another change"):
            await commands.request(layout, StopNode(1), nobody)
        assert (await status(layout)).is_whole
        assert await commands.stop(layout, nobody)
        with pytest.raises(ClusterError, match="is being stopped"):
            await first


async def test_start_that_fails_leaves_nobody_in_charge(layout: Layout) -> None:
    layout.prepare()
    layout.manifest.write_text("{")
    with pytest.raises(ClusterError, match=r"cluster\.json"):
        async with managing(layout):
            pass
    assert manager_pid(layout) is None
    assert not layout.control.exists()


async def test_commands_say_what_to_do_where_nothing_runs(layout: Layout) -> None:
    with pytest.raises(ClusterError, match="there is no cluster in") as caught:
        await commands.request(layout, GetStatus(), nobody)
    assert "cluster up" in (caught.value.hint or "")
    with pytest.raises(ClusterError, match="there is no cluster in"):
        await commands.stop(layout, nobody)
    async with managing(layout):
        pass
    with pytest.raises(ClusterError, match="is not running"):
        await commands.request(layout, GetStatus(), nobody)


async def test_nodes_of_a_killed_manager_are_stopped_by_down(layout: Layout) -> None:
    ready = asyncio.Event()
    service = ManagerService(layout.root, TWO, nobody)
    task = asyncio.ensure_future(service.run(lambda _: ready.set()))
    async with asyncio.timeout(DEADLINE_S):
        await ready.wait()
        await service.cluster.release()
        assert [node.state for node in commands.status_unmanaged(layout).nodes] == ["unmanaged"] * 2
        assert await commands.stop(layout, nobody)
        assert not await commands.stop(layout, nobody)
        # Cleanup after a manager that was not really killed.
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_manager_that_does_not_listen_is_stopped_by_a_signal(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "LISTEN_TIMEOUT_S", 0.1)
    steps: list[str] = []
    async with managing(layout) as task:
        layout.control.unlink()
        assert await commands.stop(layout, steps.append)
        assert task.done()
    assert f"telling process {os.getpid()} to stop" in steps[0]
