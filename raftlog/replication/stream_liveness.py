"""Noticing that the other side of a stream is gone."""

from __future__ import annotations

from collections.abc import Callable

from raftlog.replication.stream_settings import StreamSettings
from raftlog.world import Clock


class Liveness:
    """Has something sent in every interval, and counts those in which nothing was heard.

    Intervals are counted, not time: a process that was stopped for long wakes to one interval more,
    and hears what has waited for it before the next.
    """

    __slots__ = ("_clock", "_settings", "heard", "sent")

    def __init__(self, clock: Clock, settings: StreamSettings) -> None:
        self._clock = clock
        self._settings = settings
        self.heard = True
        """Something has arrived in this interval. Set by the owner."""
        self.sent = False
        """Something was sent in this interval. Set by the owner."""

    async def watch(self, ping: Callable[[], None]) -> None:
        """Call `ping` after an interval without sending; return when the other side is silent."""
        silent = 0
        while silent < self._settings.silent_pings_max:
            await self._clock.sleep(self._settings.ping_s)
            silent = 0 if self.heard else silent + 1
            self.heard = False
            if not self.sent:
                ping()
            self.sent = False
