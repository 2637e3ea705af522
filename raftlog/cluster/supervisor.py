"""Keeps one node alive, with starts, restarts after its death, and stops on request."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Final, Literal

from raftlog.cluster.process import Ended, NodeProcess
from raftlog.cluster.restarts import RestartPolicy

logger = logging.getLogger(__name__)

LOG_LINES_SHOWN: Final = 8
STOP_TIMEOUT_S: Final = 20.0
"""Seconds after which a stopping node is stuck. It transfers leadership (2 s) and syncs logs."""

USAGE_EXIT_CODE: Final = 2
"""Exit code of `raftlog serve` with wrong settings."""

State = Literal["running", "paused", "restarting", "failing", "stopped"]


class Supervisor:
    """Keeps one node in its desired state, running or not."""

    def __init__(
        self,
        node_id: int,
        launch: Callable[[], NodeProcess],
        *,
        log_tail: Callable[[int], list[str]],
        tell: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self.node_id = node_id
        self.restarts = 0
        """Restarts after a death."""
        self.last_end: Ended | None = None
        self.process: NodeProcess | None = None
        self._launch = launch
        self._log_tail = log_tail
        self._tell = tell
        self._changed = changed
        self._policy = RestartPolicy()
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False
        self._is_failing = False

    @property
    def state(self) -> State:
        """The node's state."""
        if self.process is not None:
            return "paused" if self.process.is_paused else "running"
        if not self._is_wanted:
            return "stopped"
        return "failing" if self._is_failing else "restarting"

    @property
    def is_failing(self) -> bool:
        """Whether the node is in a crash loop."""
        return self._is_failing

    def start(self, running: NodeProcess | None = None) -> None:
        """Keep the node running from now on, starting with the given process, if any.

        Harmless to repeat. Raises OSError if the process cannot be started.
        """
        if self._task is not None and not self._task.done():
            return
        self._is_wanted = True
        self._is_failing = False
        self._policy = RestartPolicy()
        self.process = running or self._launch()
        self._changed()
        self._task = asyncio.create_task(self._keep())
        self._task.add_done_callback(_report)

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the node, and keep the node stopped."""
        self._is_wanted = False
        process = self.process
        if process is not None and not await process.stop(timeout_s):
            self._tell(
                f"node {self.node_id} did not stop within {timeout_s:g} s and was killed; "
                "its next start checks its log"
            )
        await self._finish()

    async def kill(self) -> None:
        """Kill the node, and keep the node down."""
        self._is_wanted = False
        if self.process is not None:
            self.process.send(signal.SIGKILL)
            await self.process.ended()
        await self._finish()

    async def let_go(self) -> None:
        """Stop supervising. A running process is left running."""
        process, self.process = self.process, None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if process is not None:
            process.let_go()

    def signal(self, number: signal.Signals) -> None:
        """Send the process, if any, a signal. After a deadly signal the node is restarted."""
        if self.process is not None:
            self.process.send(number)

    async def _finish(self) -> None:
        """Wake the task, as the process has ended, or the back-off is cut short."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self.process is not None and not self.process.is_running:
            self.last_end = await self.process.ended()
            self.process = None
        self._changed()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self.process is None:
                self._relaunch()
            lived_s = 0.0
            if self.process is not None:
                started_s = self.process.started_s
                self.last_end = await self.process.ended()
                lived_s = loop.time() - started_s
                self.process = None
                self._changed()
            if not self._is_wanted:
                return
            is_misused = self.last_end is not None and self.last_end.code == USAGE_EXIT_CODE
            restart = self._policy.died(loop.time(), lived_s, is_hopeless=is_misused)
            how = str(self.last_end) if self.last_end else "could not be started"
            self._tell(f"node {self.node_id} {how}; it is started again in {restart.delay_s:g} s")
            if restart.is_failing and not self._is_failing:
                self._tell(self._complaint())
            self._is_failing = restart.is_failing
            await asyncio.sleep(restart.delay_s)

    def _relaunch(self) -> None:
        try:
            self.process = self._launch()
        except OSError as error:
            # No process, no memory or no file. The machine may recover. This counts as a death.
            self.last_end = None
            self._tell(f"node {self.node_id} cannot be started: {error}")
            return
        self.restarts += 1
        self._changed()

    def _complaint(self) -> str:
        lines = "\n".join(f"    {line}" for line in self._log_tail(LOG_LINES_SHOWN))
        return (
            f"node {self.node_id} does not stay up; from now on it is tried more slowly. "
            f"The end of its log:\n{lines or '    (nothing)'}"
        )


def _report(task: asyncio.Task[None]) -> None:
    # A bug here would leave a node unsupervised and unnoticed without this log line.
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a node is not watched any more", exc_info=error)
