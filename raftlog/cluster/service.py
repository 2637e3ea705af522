"""The manager as a process, with the cluster, its control socket and its stop signals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, assert_never

import msgspec

from raftlog.api import manager as api
from raftlog.cluster import changes
from raftlog.cluster.control import ControlServer
from raftlog.cluster.errors import ClusterError
from raftlog.cluster.local import LocalCluster
from raftlog.cluster.manifest import Plan

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ManagerService:
    """Runs a cluster until a stop signal or command."""

    def __init__(self, directory: Path, plan: Plan, tell: Callable[[str], None]) -> None:
        self._told = tell
        self._control = ControlServer(self._handle)
        self.cluster = LocalCluster(
            directory,
            nodes=plan.nodes,
            base_port=plan.base_port,
            host=plan.host,
            flush=plan.flush,
            arguments=plan.arguments,
            kafka=plan.kafka,
            kafka_base_port=plan.kafka_base_port,
            tell=self.tell,
        )
        self._stop_requests = 0
        self._stopping = asyncio.Event()
        self._killing = asyncio.Event()
        self._stopped = asyncio.Event()
        self._ready: asyncio.Future[api.ClusterStatus] | None = None
        self._change: asyncio.Future[Any] | None = None

    def tell(self, text: str) -> None:
        """Report an event to the log, and to every waiting command."""
        # A closed terminal, or a full disk, must not end the manager.
        with suppress(OSError):
            self._told(text)
        self._control.tell(text)

    async def run(self, on_ready: Callable[[api.ClusterStatus], None]) -> None:
        """Start the cluster, call `on_ready` once serving, stop in order on request.

        Raises ClusterError or OSError if the start fails. Then nothing runs.
        """
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._ask_to_stop)
        layout = self.cluster.layout
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            # An unusable socket path should fail before anything runs, but only the
            # holder of the lock may replace the socket.
            await self.cluster.open()
            await self._control.start(layout.control)
            self._ready = asyncio.ensure_future(self._await_ready())
            await asyncio.wait({self._ready, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if self._ready.done():
                on_ready(self._ready.result())
            await stopping
        finally:
            stopping.cancel()
            await self._stop()
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)

    async def _stop(self) -> None:
        self._stopping.set()
        if self._ready is not None:
            self._ready.cancel()
            await asyncio.gather(self._ready, return_exceptions=True)
        if self._change is not None:
            self._change.cancel()
            await asyncio.gather(self._change, return_exceptions=True)
        killing = asyncio.ensure_future(self._killing.wait())
        stopping = asyncio.ensure_future(self.cluster.stop_nodes())
        try:
            await asyncio.wait({stopping, killing}, return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                self.tell("second request to stop: killing the nodes")
                await self.cluster.kill_nodes()
            await stopping
        finally:
            killing.cancel()
            self._stopped.set()
            # The order matters. From the lock's release on the socket may be another manager's.
            await self._control.close(self.cluster.layout.control)
            await self.cluster.release()

    async def _await_ready(self) -> api.ClusterStatus:
        await self.cluster.wait_ready()
        return await self.cluster.status()

    def _ask_to_stop(self) -> None:
        self._stop_requests += 1
        if self._stopping.is_set():
            self._killing.set()
        self._stopping.set()

    async def _handle(self, request: api.ControlRequest) -> Any:
        if isinstance(request, api.StopCluster):
            # A second `down` waits with the first. Only a signal means hurry.
            self._stopping.set()
            await self._stopped.wait()
            return None
        if self._stopping.is_set():
            raise ClusterError("the cluster is being stopped")
        match request:
            case api.GetStatus():
                return msgspec.to_builtins(await self.cluster.status())
            case api.AwaitReady():
                return await self._status_when_ready()
            case api.Reconfigure(arguments=arguments, flush=flush):
                self.cluster.reconfigure(Plan(arguments=arguments, flush=flush))
                return None
            case api.AddNode(voter=voter):
                change: Coroutine[Any, Any, Any] = changes.add_node(self.cluster, voter=voter)
            case api.ReplaceNode(node_id=node_id):
                change = changes.replace_node(self.cluster, node_id)
            case api.StopNode(node_id=node_id, forget=False):
                change = self.cluster.stop_node(node_id)
            case api.StopNode(node_id=node_id):
                change = changes.forget_node(self.cluster, node_id)
            case api.StartNode(node_id=node_id):
                change = self.cluster.start_node(node_id)
            case _:
                assert_never(request)
        return await self._alone(change)

    async def _status_when_ready(self) -> Any:
        assert self._ready is not None
        try:
            await asyncio.shield(self._ready)
        except asyncio.CancelledError:
            raise ClusterError("the cluster is being stopped") from None
        return msgspec.to_builtins(await self.cluster.status())

    async def _alone(self, change: Coroutine[Any, Any, Any]) -> Any:
        """Run one change at a time, as two would invalidate each other's checks."""
        if self._change is not None and not self._change.done():
            change.close()
            raise ClusterError(
                "another change of this cluster is under way", "Try again when it is done."
            )
        self._change = asyncio.ensure_future(change)
        try:
            return await asyncio.shield(self._change)
        except asyncio.CancelledError:
            if self._change.cancelled():
                raise ClusterError(
                    "the cluster is being stopped; the change is not whole"
                ) from None
            raise
