"""One direction between two nodes: its latency, and its blocking."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop

LATENCY_S_MIN: Final = 0.0001
BYTES_PER_S: Final = 100e6
RETRANSMISSION_S_MAX: Final = 1.0
"""How long after the way is free again the next attempt to send may take."""
PACKET_BYTES: Final = 100
"""Latency of the packets that open connections."""


class Sender(Protocol):
    """One direction of a connection or a stream, waiting for its link."""

    def flush(self, delay_s: float) -> None:
        """Send what waits."""

    def end_in(self, delay_s: float) -> None:
        """Deliver the end."""


class Link:
    """The direction from one node to another."""

    __slots__ = (
        "_latency_s",
        "_loop",
        "_random",
        "_waiters",
        "blocked",
        "blocked_at",
        "ending",
        "extra_s",
        "source",
        "stalled",
        "target",
    )

    def __init__(
        self,
        source: int,
        target: int,
        loop: SimulatedLoop,
        chance: random.Random,
        latency_s: float,
    ) -> None:
        self.source = source
        self.target = target
        self.blocked = False
        self.blocked_at = 0.0
        self.extra_s = 0.0
        """Added to every delay: a slow link."""
        self.stalled: dict[Sender, None] = {}
        """Senders with messages or bytes to send once the link is free."""
        self.ending: dict[Sender, None] = {}
        """Ends at the target, notified of their connection's end once the link is free."""
        self._loop = loop
        self._random = chance
        # Two directions of one way are seldom equally fast.
        self._latency_s = latency_s * chance.uniform(0.5, 1.5)
        self._waiters: list[asyncio.Future[None]] = []

    def delay(self, length: int) -> float:
        """Latency of a message sent now."""
        return (
            LATENCY_S_MIN
            + self._random.expovariate(1.0) * self._latency_s
            + self.extra_s
            + length / BYTES_PER_S
        )

    def retry_delay(self) -> float:
        """Delay until a blocked sender notices the free link."""
        blocked_s = self._loop.now - self.blocked_at
        return self._random.uniform(0.0, min(RETRANSMISSION_S_MAX, blocked_s))

    def block(self) -> None:
        """Block the link. Messages in flight arrive."""
        if not self.blocked:
            self.blocked = True
            self.blocked_at = self._loop.now

    def unblock(self) -> None:
        """Unblock the link; waiting messages go first."""
        if not self.blocked:
            return
        self.blocked = False
        stalled, self.stalled = self.stalled, {}
        for end in stalled:
            end.flush(self.retry_delay())
        ending, self.ending = self.ending, {}
        for end in ending:
            end.end_in(self.retry_delay() + self.delay(PACKET_BYTES))
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def cross(self) -> None:
        """Return when a packet sent now has arrived, which may take for ever."""
        while self.blocked:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
            await asyncio.sleep(self.retry_delay())
        await asyncio.sleep(self.delay(PACKET_BYTES))
