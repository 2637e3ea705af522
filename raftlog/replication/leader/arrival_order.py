"""Callers with a common key pass one after the other, first come, first served.

Appends wait here for whatever must happen before their place in the log is sure, such as an issued
producer id, a turn for long work, or a leader. Without such a wait no append enters, and none pays.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class ArrivalOrder(Generic[K]):
    """The callers that have entered and not left, by key. The requests in flight bound it."""

    def __init__(self) -> None:
        self._queues: dict[K, deque[Place[K]]] = {}

    def __bool__(self) -> bool:
        """Whether any caller has entered and not left."""
        return bool(self._queues)

    def is_held(self, keys: Collection[K]) -> bool:
        """Whether a caller with one of the keys has entered and not left."""
        return any(key in self._queues for key in keys)

    def enter(self, keys: Collection[K]) -> Place[K]:
        """Take the place behind all earlier callers with a common key. Call `leave` once done. All
        keys are entered at once, so no two callers can wait for each other."""
        place = Place(self, frozenset(keys))
        for key in place.keys:
            self._queues.setdefault(key, deque()).append(place)
        return place

    def is_first(self, place: Place[K]) -> bool:
        """Whether no earlier caller holds a key of the place."""
        return all(self._queues[key][0] is place for key in place.keys)

    def remove(self, place: Place[K]) -> None:
        """Remove a place, wherever it stands, and wake the callers that are first now."""
        for key in place.keys:
            queue = self._queues[key]
            queue.remove(place)
            if queue:
                queue[0].wake_if_first()
            else:
                del self._queues[key]


class Place(Generic[K]):
    """One caller's place, from `ArrivalOrder.enter` to `leave`."""

    __slots__ = ("_is_left", "_order", "_reached", "keys")

    def __init__(self, order: ArrivalOrder[K], keys: frozenset[K]) -> None:
        self.keys = keys
        self._order = order
        self._is_left = False
        self._reached: asyncio.Future[None] | None = None

    async def reached(self) -> None:
        """Return once all earlier callers have left, without suspension if none waits."""
        if not self._order.is_first(self):
            self._reached = asyncio.get_running_loop().create_future()
            await self._reached

    def wake_if_first(self) -> None:
        """Wake the first waiting caller, in a later step of the loop. Does nothing while an earlier
        caller is left."""
        future = self._reached
        if future is not None and not future.done() and self._order.is_first(self):
            future.set_result(None)

    def leave(self) -> None:
        """Let the next callers pass. They run in a later step than the caller. Harmless again."""
        if not self._is_left:
            self._is_left = True
            self._order.remove(self)
