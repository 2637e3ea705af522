from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from raftlog.api.manager import (
    AddNode,
    ControlAnswer,
    ControlRequest,
    Done,
    Failed,
    GetStatus,
    ReplaceNode,
    Step,
)
from raftlog.cluster import control
from raftlog.cluster.control import ControlServer, answer_line, ask
from raftlog.cluster.errors import ClusterError
from tests.waiting import DEADLINE_S, until

Handler = Callable[[ControlRequest], Awaitable[Any]]


@asynccontextmanager
async def serving(path: Path, handle: Handler) -> AsyncIterator[ControlServer]:
    server = ControlServer(handle)
    await server.start(path)
    try:
        yield server
    finally:
        await server.close(path)


async def answers(path: Path, request: ControlRequest) -> list[ControlAnswer]:
    async with asyncio.timeout(DEADLINE_S):
        return [answer async for answer in ask(path, request)]


async def echo(request: ControlRequest) -> Any:
    return repr(request)


async def test_request_is_answered_with_steps_and_a_result(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def handle(request: ControlRequest) -> Any:
        assert request == ReplaceNode(3)
        server.tell("one")
        await asyncio.sleep(0)
        server.tell("two")
        return {"node": 4}

    async with serving(path, handle) as server:
        found = await answers(path, ReplaceNode(3))
    assert found == [Step("one"), Step("two"), Done({"node": 4})]
    assert not path.exists()


async def test_failures_are_answers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "s"
    failures = iter([ClusterError("no", "do this"), OSError("disk"), KeyError("bug")])

    async def handle(_: ControlRequest) -> Any:
        raise next(failures)

    async with serving(path, handle):
        assert await answers(path, GetStatus()) == [Failed("no", "do this")]
        assert await answers(path, GetStatus()) == [Failed("the manager failed: disk")]
        assert [type(each) for each in await answers(path, GetStatus())] == [Failed]
    assert "KeyError" in caplog.text


async def test_directory_of_any_length_will_do(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    async with serving(directory / "control.sock", echo):
        assert await answers(directory / "control.sock", AddNode(voter=True)) == [
            Done("AddNode(voter=True)")
        ]


async def test_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with pytest.raises(ConnectionRefusedError):
        await answers(path, GetStatus())
    async with serving(path, echo):
        assert await answers(path, GetStatus()) == [Done("GetStatus()")]


async def test_socket_is_for_the_owner_alone(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", echo):
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "line",
    [b"\n", b"hello\n", b'{"type":"explode"}\n', b'{"type":"replace_node"}\n', b"x" * 200_000],
)
async def test_nonsense_is_refused_and_the_next_one_served(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "s"
    async with serving(path, echo), asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(line)
        assert b'"failed"' in await reader.readline()
        writer.close()
        assert await answers(path, GetStatus()) == [Done("GetStatus()")]


async def test_change_goes_on_when_its_spectator_leaves(tmp_path: Path) -> None:
    path = tmp_path / "s"
    began, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(_: ControlRequest) -> Any:
        began.set()
        await go_on.wait()
        done.set()

    async with serving(path, handle) as server, asyncio.timeout(DEADLINE_S):
        _, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b'{"type":"status"}\n')
        await began.wait()
        writer.transport.abort()
        server.tell("a step that nobody hears")
        go_on.set()
        await done.wait()


async def test_end_of_the_manager_is_an_error_to_whoever_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CLOSE_TIMEOUT_S", 0.01)
    path = tmp_path / "s"
    began = asyncio.Event()

    async def handle(_: ControlRequest) -> Any:
        began.set()
        await asyncio.Event().wait()

    async with serving(path, handle):
        asking = asyncio.ensure_future(answers(path, GetStatus()))
        await began.wait()
    with pytest.raises(ClusterError, match="without an answer"):
        await asking


async def test_number_of_commands_at_once_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CONNECTIONS_MAX", 1)
    path = tmp_path / "s"
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(_: ControlRequest) -> Any:
        began.set()
        await go_on.wait()

    async with serving(path, handle):
        first = asyncio.ensure_future(answers(path, GetStatus()))
        await began.wait()
        assert [type(each) for each in await answers(path, GetStatus())] == [Failed]
        go_on.set()
        assert await first == [Done(None)]


def test_answer_never_exceeds_what_a_reader_takes() -> None:
    for answer in (Step("x" * 1_000_000), Done("x" * 1_000_000)):
        assert len(answer_line(answer)) <= control.LINE_BYTES_MAX
    assert answer_line(Step("short")) == b'{"type":"step","text":"short"}\n'


async def test_steps_for_a_slow_reader_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "STEPS_QUEUED_MAX", 3)
    path = tmp_path / "s"
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(_: ControlRequest) -> Any:
        began.set()
        await go_on.wait()
        return "done"

    async with serving(path, handle) as server:
        asking = asyncio.ensure_future(answers(path, GetStatus()))
        await began.wait()
        for number in range(100):
            server.tell(str(number))
        go_on.set()
        await until(asking.done)
    found = await asking
    assert found[-1] == Done("done")
    assert len(found) <= 5
