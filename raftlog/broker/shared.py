"""`ListenedService` is the part of a service that every listener needs.

Budgets, turns, counters and the end of all waits are common to the listeners of one process. A
node's `Broker` is such a service. The gateway is another, without a node below it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from typing import Any, ClassVar, TypeVar

import msgspec

from raftlog.broker.limits import AddressBudget, BrokerSettings, WorkTurns
from raftlog.broker.metrics import TopicMetrics
from raftlog.world import Clock

T = TypeVar("T")


class Closing(asyncio.Event):
    """Set once, when the listeners start to close. Ends waits for records and held requests."""

    def __init__(self) -> None:
        super().__init__()
        self._scopes: set[asyncio.Timeout] = set()
        """Scopes of all waits. A wait needs no separate task, because a node holds thousands."""

    def set(self) -> None:
        """End all waits, the first time."""
        if self.is_set():
            # A wait that is ending takes no second end.
            return
        super().set()
        now = asyncio.get_running_loop().time()
        while self._scopes:
            self._scopes.pop().reschedule(now)

    async def unless_set(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`, or None if the listeners close first. Raises as `work` does.

        The work has ended at the return. An error of its last step then goes nowhere, also if the
        client has left and this very wait is cancelled.
        """
        scope = asyncio.timeout(0 if self.is_set() else None)
        try:
            async with scope:
                self._scopes.add(scope)
                return await work
        except Exception:
            if scope.expired():
                return None
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from None
            raise
        finally:
            self._scopes.discard(scope)


class ListenedService(ABC):
    """The shared state of all listeners of one process."""

    noun: ClassVar[str]
    """The service in messages."""

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        self.clock = clock
        self.bytes_in_flight = AddressBudget(settings.bytes_in_flight_max, "bytes in flight")
        self.requests_in_flight = AddressBudget(
            settings.requests_in_flight_max, "requests in flight"
        )
        self.turns = WorkTurns(clock)
        self.topics = TopicMetrics(settings.topic_labels_max)
        self.closing = Closing()
        """Set when the listeners start to close, so that waiting fetches return."""
        self.is_leaving = False
        """Whether the process stops soon. It is not ready, and each response ends its connection,
        so that clients use another process."""

    def leave(self) -> None:
        """Serve on, but let clients find another process."""
        self.is_leaving = True

    @abstractmethod
    def check_ready(self) -> None:
        """Raise LogError NOT_READY, with the reason, unless the service answers requests."""

    @abstractmethod
    def check_whole(self) -> None:
        """Raise LogError, with the reason, unless the service can do everything."""

    @abstractmethod
    def status(self, text: str) -> msgspec.Struct:
        """The body of the responses of /healthy and /ready."""

    def record_time_ms(self) -> int:
        """The timestamp of a record whose producer gave none."""
        return self.clock.time_ms()

    def keep_metrics(self) -> None:  # noqa: B027 - most services have nothing to drop
        """Drop counters of what no longer exists, before a page of metrics."""

    @abstractmethod
    def hosts(self) -> Iterable[str]:
        """Host names under which clients may know the service, besides those of the settings."""
