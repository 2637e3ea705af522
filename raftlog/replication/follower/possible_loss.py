"""The gate of a replica that may lack acknowledged records.

Until the metadata has recorded the possible loss, the replica neither leads nor follows. The
clearing must be durable on this disk before the gate opens. Otherwise the loss would be reported
again after a crash, and records acknowledged since then would count as lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from raftlog.record.errors import LogError
from raftlog.replication.replica import Replica

RETRY_S: Final = 0.5
"""Seconds between two attempts to clear a possible loss on a full disk."""

logger = logging.getLogger(__name__)


class LossGate:
    """The loss gate of one replica. Lives in the event loop."""

    def __init__(
        self, replica: Replica, *, may_have_lost_data: bool, on_cleared: Callable[[], None]
    ) -> None:
        """`on_cleared` is called when the gate opens."""
        self.may_have_lost_data = may_have_lost_data
        """Whether acknowledged records may be missing, by a loss that is not cleared yet."""
        self._replica = replica
        self._on_cleared = on_cleared
        self._work: asyncio.Task[None] | None = None

    @property
    def is_clearing(self) -> bool:
        """Whether the loss is being cleared."""
        return self._work is not None

    def clear_loss(self) -> asyncio.Task[None]:
        """Clear the loss on disk, with retries, and open the gate. Returns the task.

        Call this once the metadata has recorded the loss, when the replica is in neither ISR nor
        ELR, or was elected uncleanly since.
        """
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._clear_loss())
            self._work.add_done_callback(self._on_clear_done)
        return self._work

    def close(self) -> None:
        """Stop the retries."""
        if self._work is not None:
            self._work.cancel()

    async def _clear_loss(self) -> None:
        replica = self._replica
        while replica.log.possible_loss is not None and not replica.is_closed:
            try:
                await replica.log.forget_possible_loss()
            except LogError as error:
                logger.info("%s: possible loss not cleared yet: %s", replica.name, error.message)
                await replica.host.clock.sleep(RETRY_S)

    def _on_clear_done(self, task: asyncio.Task[None]) -> None:
        self._work = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            logger.critical(
                "%s: clearing a possible loss failed", self._replica.name, exc_info=error
            )
        elif self.may_have_lost_data and not self._replica.is_closed:
            self.may_have_lost_data = False
            self._on_cleared()
