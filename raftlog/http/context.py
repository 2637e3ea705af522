"""What every handler is given besides its request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raftlog.broker.limits import BytesInFlight
from raftlog.http.metrics import ServerMetrics
from raftlog.http.request import Request
from raftlog.http.settings import ServerLimits, ServerSettings

if TYPE_CHECKING:
    from raftlog.broker.service import Services
    from raftlog.peer.network import HttpNetwork


@dataclass(frozen=True, slots=True)
class ServerContext:
    """One server's surroundings. There is one for each server, shared by all its requests."""

    services: Services
    settings: ServerSettings
    metrics: ServerMetrics
    budget: BytesInFlight
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server begins to close: long polls and tails should end soon."""

    on_broken_invariant: Callable[[AssertionError], None] | None = None
    """Told of assertions that failed in a handler: the node decides what becomes of it."""
    network: HttpNetwork | None = None
    """What other nodes of the cluster connect to; without it, all of them are strangers."""

    @property
    def limits(self) -> ServerLimits:
        """The settings' limits."""
        return self.settings.limits

    def hold(self, request: Request, size: int) -> None:
        """Count `size` bytes as held by `request` until it is answered; LogError OVERLOADED.

        For memory a handler is about to use for the request besides its body: decompressed
        records, data read for an answer.
        """
        self.budget.take(size)
        request.bytes_held += size

    def release(self, request: Request) -> None:
        """Give back the bytes in flight that `request` holds. Harmless if done already."""
        if request.bytes_held:
            self.budget.give(request.bytes_held)
            request.bytes_held = 0
