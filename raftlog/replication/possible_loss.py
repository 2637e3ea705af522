"""When a replica that may lack what it acknowledged counts again: once that is durable.

Until the metadata knows of the possible loss, the replica neither leads nor follows. That it knows
must be on this disk before anybody goes by it: after a crash the log would be distrusted again, and
with it all that others have come to count on since.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from raftlog.record.errors import LogError
from raftlog.replication.replica import Replica

RETRY_S: Final = 0.5
"""Between two attempts to write down that a possible loss is dealt with: the disk is full."""

logger = logging.getLogger(__name__)


class LossGate:
    """In one replica's log. Lives in the event loop."""

    def __init__(
        self, replica: Replica, *, may_have_lost_data: bool, on_cleared: Callable[[], None]
    ) -> None:
        """`on_cleared` is called when a distrusted replica takes part after all."""
        self.may_have_lost_data = may_have_lost_data
        self._replica = replica
        self._on_cleared = on_cleared
        self._work: asyncio.Task[None] | None = None

    @property
    def is_clearing(self) -> bool:
        """Whether it is being written down."""
        return self._work is not None

    def clear_loss(self) -> asyncio.Task[None]:
        """The metadata knows: write that down, and try until it succeeds.

        Returns who does it, for who wants to wait.
        """
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._clear_loss())
            self._work.add_done_callback(self._on_clear_done)
        return self._work

    def close(self) -> None:
        """Stop trying."""
        if self._work is not None:
            self._work.cancel()

    async def _clear_loss(self) -> None:
        replica = self._replica
        while replica.log.possible_loss is not None and not replica.is_closed:
            try:
                await replica.log.forget_possible_loss()
            except LogError as error:
                logger.info("%s: not trusted yet: %s", replica.name, error.message)
                await replica.host.clock.sleep(RETRY_S)

    def _on_clear_done(self, task: asyncio.Task[None]) -> None:
        self._work = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            logger.critical("%s: trusting failed", self._replica.name, exc_info=error)
        elif self.may_have_lost_data and not self._replica.is_closed:
            self.may_have_lost_data = False
            self._on_cleared()
