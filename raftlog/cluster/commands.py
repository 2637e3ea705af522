"""Commands to a cluster that another process manages, such as start, requests and stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from raftlog.api import manager as api
from raftlog.cluster.control import Tell, answers, ask
from raftlog.cluster.errors import ClusterError
from raftlog.cluster.layout import Layout, ManagerLock, manager_pid, tail
from raftlog.cluster.manifest import NODES_MAX, Plan
from raftlog.cluster.process import NodeProcess, ProcessRecord, is_alive, load_records, spawn
from raftlog.cluster.supervisor import STOP_TIMEOUT_S

MANAGER: Final = (sys.executable, "-m", "raftlog.cluster")
LISTEN_TIMEOUT_S: Final = 10.0
"""Seconds that the manager may take from holding the lock to listening."""
POLL_S: Final = 0.05
LOG_LINES_SHOWN: Final = 8


async def start_detached(layout: Layout, plan: Plan, tell: Tell) -> api.ClusterStatus:
    """Start a detached manager, and wait until its cluster serves. Raises ClusterError, OSError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    layout.prepare()
    command = [*MANAGER, str(layout.root), msgspec.json.encode(plan).decode()]
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        try:
            spawn(command, stdout=writing, stderr=layout.manager_log)
        finally:
            os.close(writing)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            result = await _result(answers(reader), tell)
        except ClusterError as error:
            if error.hint is None:
                end = "\n    ".join(tail(layout.manager_log, LOG_LINES_SHOWN))
                error.hint = f"The end of {layout.manager_log}:\n    {end}"
            raise
        finally:
            transport.close()
    return status_from(result)


async def request(layout: Layout, what: api.ControlRequest, tell: Tell) -> Any:
    """Send the running manager a request. Return the result. Raises ClusterError, OSError."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + LISTEN_TIMEOUT_S
    while True:
        if manager_pid(layout) is None:
            layout.require_manifest()
            raise ClusterError(
                f"the cluster in {layout.root} is not running",
                f"`raftlog cluster up --dir {layout.root}` starts it.",
            )
        try:
            return await _result(ask(layout.control, what), tell)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            # The manager is just starting, or just ending.
            if loop.time() >= deadline_s:
                raise ClusterError(
                    f"the manager of {layout.root} (process {manager_pid(layout)}) does not listen",
                    f"`raftlog cluster down --dir {layout.root}` stops it by a signal.",
                ) from error
        await asyncio.sleep(POLL_S)


async def stop(layout: Layout, tell: Tell) -> bool:
    """Stop the cluster and wait for its end. False if nothing ran.

    Raises ClusterError after a deadline, OSError.
    """
    if layout.load_manifest() is None and manager_pid(layout) is None:
        layout.require_manifest()
    pid = manager_pid(layout)
    if pid is None:
        return await _stop_left_behind(layout, tell)
    loop = asyncio.get_running_loop()
    listen_by_s = loop.time() + LISTEN_TIMEOUT_S
    is_told = False
    while not is_told and (pid := manager_pid(layout)) is not None:
        try:
            await _result(ask(layout.control, api.StopCluster()), tell)
            is_told = True
        except ClusterError:
            if manager_pid(layout) is not None:
                raise
        except OSError as error:
            # The manager may be just starting. Send no signal before its pid is in the lock file.
            if loop.time() >= listen_by_s and pid:
                tell(f"the manager does not listen ({error}); telling process {pid} to stop")
                os.kill(pid, signal.SIGTERM)
                is_told = True
            await asyncio.sleep(POLL_S)
    end_by_s = loop.time() + NODES_MAX * STOP_TIMEOUT_S
    while (pid := manager_pid(layout)) is not None:
        if loop.time() >= end_by_s:
            raise ClusterError(
                f"the manager (process {pid}) does not end",
                f"`kill -9 {pid}` ends it; `raftlog cluster down` then stops its nodes.",
            )
        await asyncio.sleep(POLL_S)
    return True


def status_unmanaged(layout: Layout) -> api.ClusterStatus:
    """The status of a cluster without a manager. Raises ClusterError, OSError."""
    manifest = layout.require_manifest()
    alive = _left_behind(layout)
    return api.ClusterStatus(
        directory=str(layout.root),
        manager_pid=None,
        flush=manifest.flush,
        servers=",".join(manifest.addresses),
        controller_id=None,
        nodes=tuple(
            api.NodeStatus(
                node_id=entry.node_id,
                address=manifest.address(entry),
                kafka=manifest.kafka_address(entry),
                pid=record.pid if (record := alive.get(entry.node_id)) else None,
                state="unmanaged" if entry.node_id in alive else "stopped",
                ready=False,
                why="there is no manager",
                restarts=0,
                last_end=None,
                log=str(layout.log(entry.node_id)),
            )
            for entry in manifest.nodes
        ),
    )


def status_from(document: Any) -> api.ClusterStatus:
    """The status in a manager's response. Raises ClusterError."""
    try:
        return msgspec.convert(document, api.ClusterStatus)
    except msgspec.ValidationError as error:
        raise ClusterError(f"the manager's answer cannot be read: {error}") from error


async def _result(said: AsyncIterator[api.ControlAnswer], tell: Tell) -> Any:
    async for answer in said:
        match answer:
            case api.Step(text=text):
                tell(text)
            case api.Done(result=result):
                return result
            case api.Failed(message=message, hint=hint):
                raise ClusterError(message, hint)
    raise AssertionError("answers end with a result")


async def _stop_left_behind(layout: Layout, tell: Tell) -> bool:
    """Stop the nodes of a killed manager."""
    if not _left_behind(layout):
        return False
    lock = ManagerLock(layout)
    try:
        for node_id, record in _left_behind(layout).items():
            process = NodeProcess.adopt(record)
            if process is None:
                continue
            tell(f"stopping node {node_id}, which its manager left behind")
            if not await process.stop(STOP_TIMEOUT_S):
                tell(f"node {node_id} did not stop within {STOP_TIMEOUT_S:g} s and was killed")
    finally:
        lock.release()
    return True


def _left_behind(layout: Layout) -> dict[int, ProcessRecord]:
    records = load_records(layout.processes)
    return {node_id: record for node_id, record in records.items() if is_alive(record)}
