"""`ListenedService` is the part of a service that every listener needs.

Budgets, turns, counters and the end of all waits are common to the listeners of one process. A
node's `Broker` is such a service. The gateway is another, without a node below it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

import msgspec

from raftlog.broker.closing import Closing
from raftlog.broker.limits import AddressBudget, BrokerSettings, WorkTurns
from raftlog.broker.metrics import TopicMetrics
from raftlog.world import Clock


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

    @abstractmethod
    def check_ready(self) -> None:
        """Raise LogError NOT_READY, with the reason, unless the service answers requests."""

    @abstractmethod
    def check_whole(self) -> None:
        """Raise LogError, with the reason, unless the service can do everything."""

    @abstractmethod
    def status(self, text: str) -> msgspec.Struct:
        """The body of the responses of /healthy and /ready."""

    def keep_metrics(self) -> None:  # noqa: B027 - most services have nothing to drop
        """Drop counters of what no longer exists, before a page of metrics."""

    @abstractmethod
    def hosts(self) -> Iterable[str]:
        """Host names under which clients may know the service, besides those of the settings."""
