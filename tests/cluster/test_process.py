"""Real processes, of the smallest kind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.cluster.process import (
    Ended,
    NodeProcess,
    ProcessRecord,
    clean_environment,
    is_alive,
    load_records,
    save_records,
    start_ticks,
)
from tests.waiting import DEADLINE_S, until

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True);"
    "time.sleep(600)",
)


def saying(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


async def ended(process: NodeProcess) -> Ended:
    async with asyncio.timeout(DEADLINE_S):
        return await process.ended()


async def test_end_is_heard_with_its_code_and_output_is_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("an earlier life\n")
    process = NodeProcess.launch(saying("print('hello'); raise SystemExit(3)"), log)
    assert await ended(process) == Ended(3)
    assert not process.is_running
    assert log.read_text() == "an earlier life\nhello\n"
    assert str(Ended(3)) == "ended with exit code 3"
    # Signals after the end hit no process.
    process.send(signal.SIGKILL)


async def test_open_files_of_whoever_starts_it_stay_their_own(tmp_path: Path) -> None:
    code = "import os; print(sorted(set(os.listdir('/proc/self/fd'))))"
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        await ended(NodeProcess.launch(saying(code), tmp_path / "log"))
    # 3 is the listing itself.
    assert (tmp_path / "log").read_text() == "['0', '1', '2', '3']\n"


async def test_ctrl_c_at_the_managers_terminal_is_not_the_nodes(tmp_path: Path) -> None:
    process = NodeProcess.launch(SLEEP, tmp_path / "log")
    assert os.getsid(process.pid) == process.pid
    await process.stop(DEADLINE_S)


async def test_stop_is_by_sigterm_also_for_a_paused_process(tmp_path: Path) -> None:
    # With a handler, as nodes have: without, the signal would end even a paused process.
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5));"
        "print('on', flush=True); time.sleep(600)"
    )
    process = NodeProcess.launch(saying(code), tmp_path / "log")
    await until(lambda: "on" in (tmp_path / "log").read_text())
    process.send(signal.SIGSTOP)
    assert process.is_paused
    assert await process.stop(DEADLINE_S)
    assert await ended(process) == Ended(5)


async def test_process_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    process = NodeProcess.launch(STUBBORN, tmp_path / "log")
    await until(lambda: "on" in (tmp_path / "log").read_text())
    assert not await process.stop(0.05)
    assert await ended(process) == Ended(-signal.SIGKILL)


async def test_missing_program_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        NodeProcess.launch([str(tmp_path / "no-such-program")], tmp_path / "log")


async def test_process_of_an_earlier_manager_is_taken_over() -> None:
    parent = await asyncio.create_subprocess_exec(
        *saying(
            "import subprocess, sys;"
            f"child = subprocess.Popen({SLEEP!r}, stdout=subprocess.DEVNULL);"
            "print(child.pid); child.returncode = 0"
        ),
        stdout=subprocess.PIPE,
    )
    output, _ = await parent.communicate()
    pid = int(output)
    ticks = start_ticks(pid)
    assert ticks is not None
    process = NodeProcess.adopt(ProcessRecord(pid, ticks))
    assert process is not None
    process.send(signal.SIGKILL)
    # Only a parent learns the exit code.
    assert await ended(process) == Ended(None)
    assert NodeProcess.adopt(ProcessRecord(pid, ticks)) is None


async def test_another_process_of_the_same_number_is_left_alone(tmp_path: Path) -> None:
    process = NodeProcess.launch(SLEEP, tmp_path / "log")
    ticks = start_ticks(process.pid)
    assert ticks is not None
    assert is_alive(ProcessRecord(process.pid, ticks))
    other = ProcessRecord(process.pid, ticks - 1)
    assert not is_alive(other)
    assert NodeProcess.adopt(other) is None
    await process.stop(DEADLINE_S)


async def test_records_name_the_processes_that_run(tmp_path: Path) -> None:
    path = tmp_path / "processes.json"
    assert load_records(path) == {}
    process = NodeProcess.launch(SLEEP, tmp_path / "log")
    save_records(path, {1: process.pid, 2: 2**22 + 1})
    records = load_records(path)
    assert list(records) == [1]
    assert records[1].pid == process.pid
    # After a reboot the same numbers mean others.
    text = path.read_text()
    path.write_text(text.replace('"boot_id":"', '"boot_id":"x'))
    assert load_records(path) == {}
    path.write_text("{")
    assert load_records(path) == {}
    await process.stop(DEADLINE_S)


def test_settings_of_whoever_starts_the_cluster_are_not_the_nodes() -> None:
    assert clean_environment({"RAFTLOG_LISTEN": "x", "PATH": "y"}) == {"PATH": "y"}
