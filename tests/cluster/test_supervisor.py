"""A supervisor of fake processes: sleeping or dying."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from raftlog.cluster import supervisor as supervisors
from raftlog.cluster.process import NodeProcess, ProcessRecord, start_ticks
from raftlog.cluster.restarts import Restart
from raftlog.cluster.supervisor import Supervisor
from tests.waiting import DEADLINE_S, until

SLEEP = "import time; time.sleep(600)"
DIE = "print('why I die'); raise SystemExit(7)"


class Node:
    """A supervised process; the next one runs `code`."""

    def __init__(self, directory: Path) -> None:
        self.code = SLEEP
        self.launches = 0
        self.refusal: OSError | None = None
        self.told: list[str] = []
        self.log = directory / "log"
        self.supervisor = Supervisor(
            5,
            self._launch,
            log_tail=lambda lines: self.log.read_text().splitlines()[-lines:],
            tell=self.told.append,
            changed=lambda: None,
        )

    def _launch(self) -> NodeProcess:
        self.launches += 1
        if self.refusal is not None:
            raise self.refusal
        return NodeProcess.launch((sys.executable, "-c", self.code), self.log)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    class Impatient(supervisors.RestartPolicy):
        """Decides as always, but waits a hundredth."""

        def died(self, now_s: float, lived_s: float, *, is_hopeless: bool = False) -> Restart:
            decided = super().died(now_s, lived_s, is_hopeless=is_hopeless)
            return Restart(decided.delay_s / 100, decided.is_failing)

    monkeypatch.setattr(supervisors, "RestartPolicy", Impatient)
    made = Node(tmp_path)
    yield made
    await made.supervisor.kill()


async def test_node_that_dies_is_started_again(node: Node) -> None:
    supervisor = node.supervisor
    assert supervisor.state == "stopped"
    supervisor.start()
    assert supervisor.state == "running"
    assert supervisor.process is not None
    first = supervisor.process.pid
    supervisor.signal(signal.SIGKILL)
    await until(lambda: supervisor.restarts == 1)
    assert supervisor.process is not None
    assert supervisor.process.pid != first
    assert node.told == ["node 5 was ended by SIGKILL; it is started again in 0.001 s"]


async def test_node_that_keeps_dying_is_complained_of_once_and_tried_on(node: Node) -> None:
    node.code = DIE
    node.supervisor.start()
    await until(lambda: node.launches >= 7)
    complaints = [text for text in node.told if "does not stay up" in text]
    assert len(complaints) == 1
    assert "why I die" in complaints[0]
    assert node.supervisor.is_failing
    node.code = SLEEP
    await until(lambda: node.supervisor.state == "running")


async def test_node_whose_settings_are_wrong_is_complained_of_at_once(node: Node) -> None:
    node.code = "print('no such setting'); raise SystemExit(2)"
    node.supervisor.start()
    await until(lambda: node.supervisor.is_failing)
    assert node.launches == 1
    assert "no such setting" in node.told[-1]


async def test_process_that_cannot_be_started_counts_as_a_death(node: Node) -> None:
    node.supervisor.start()
    node.refusal = OSError("no memory")
    node.supervisor.signal(signal.SIGKILL)
    await until(lambda: node.launches >= 3)
    assert "node 5 cannot be started: no memory" in node.told
    node.refusal = None
    await until(lambda: node.supervisor.state == "running")


async def test_first_start_that_fails_is_the_callers_to_know(node: Node) -> None:
    node.refusal = OSError("no memory")
    with pytest.raises(OSError, match="no memory"):
        node.supervisor.start()
    assert node.supervisor.process is None


async def test_stopped_node_stays_down_until_started(node: Node) -> None:
    supervisor = node.supervisor
    supervisor.start()
    await supervisor.stop()
    assert supervisor.state == "stopped"
    assert str(supervisor.last_end) == "was ended by SIGTERM"
    supervisor.start()
    supervisor.start()
    assert (supervisor.state, node.launches) == ("running", 2)
    await supervisor.kill()
    assert (supervisor.state, node.launches) == ("stopped", 2)
    assert node.told == []


async def test_stop_while_a_restart_is_waited_for_ends_the_waiting(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        supervisors.RestartPolicy, "died", lambda *_, **__: Restart(600, is_failing=False)
    )
    node.code = DIE
    node.supervisor.start()
    await until(lambda: node.supervisor.state == "restarting")
    async with asyncio.timeout(DEADLINE_S):
        await node.supervisor.stop()
    assert (node.supervisor.state, node.launches) == ("stopped", 1)


async def test_node_that_does_not_stop_is_killed_and_that_is_told(node: Node) -> None:
    node.code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('on', flush=True); time.sleep(600)"
    )
    node.supervisor.start()
    await until(lambda: "on" in node.log.read_text())
    await node.supervisor.stop(timeout_s=0.05)
    assert node.supervisor.state == "stopped"
    assert "was killed" in node.told[0]


async def test_node_let_go_lives_on(node: Node) -> None:
    supervisor = node.supervisor
    supervisor.start()
    process = supervisor.process
    assert process is not None
    supervisor.signal(signal.SIGSTOP)
    assert supervisor.state == "paused"
    await supervisor.let_go()
    again = Node(node.log.parent)
    again.supervisor.start(NodeProcess.adopt(record_of(process.pid)))
    assert again.launches == 0
    assert again.supervisor.state == "running"
    await again.supervisor.kill()


def record_of(pid: int) -> ProcessRecord:
    ticks = start_ticks(pid)
    assert ticks is not None
    return ProcessRecord(pid, ticks)
