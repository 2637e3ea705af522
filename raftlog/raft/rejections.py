"""Who was not let in, or did not let this node in, and why: logged once, kept for the status."""

from __future__ import annotations

import logging
from typing import Final

from raftlog.world.network import RejectedError

REJECTIONS_MAX: Final = 256
"""Kept; the oldest go first."""

logger = logging.getLogger(__name__)


class Rejections:
    """The present ones, by the other node's address."""

    def __init__(self) -> None:
        self.by_address: dict[str, RejectedError] = {}
        # Two nodes may share what looks like one address; their reasons would take turns in it.
        self._told: dict[str, None] = {}

    def add(self, address: str, error: RejectedError) -> None:
        """Note one; a reason is logged when it is new, not each time that it is met again."""
        self.by_address.pop(address, None)
        self.by_address[address] = error
        if error.message not in self._told:
            logger.error("no connection with %s: %s", address, error.message)
            self._told[error.message] = None
        for noted in (self.by_address, self._told):
            if len(noted) > REJECTIONS_MAX:
                del noted[next(iter(noted))]

    def clear(self, address: str) -> None:
        """That node is connected: if it is rejected again, that is news."""
        error = self.by_address.pop(address, None)
        if error is not None:
            self._told.pop(error.message, None)
