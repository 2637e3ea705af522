"""A handler receives its request and the call's surroundings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from raftlog.broker.authorize import ANONYMOUS, Principal
from raftlog.broker.service import Broker
from raftlog.record.types import BrokerId

FENCED_LISTED_S: Final = 15.0
"""Seconds for which a fenced broker is listed. Apache Kafka lists a broker for the 9 s until it is
fenced."""


class Fences:
    """The start of each broker's fence, as a listener's requests have found it."""

    def __init__(self) -> None:
        self._since: dict[BrokerId, float] = {}

    def recent(self, fenced: Collection[BrokerId], now: float) -> set[BrokerId]:
        """The fenced brokers that are still to be listed."""
        self._since = {broker_id: self._since.get(broker_id, now) for broker_id in fenced}
        return {
            broker_id for broker_id, since in self._since.items() if now - since < FENCED_LISTED_S
        }


@dataclass(frozen=True, slots=True)
class Call:
    """One request's surroundings."""

    broker: Broker
    version: int
    """Version of the API."""
    address: str
    """Address of the client."""
    fences: Fences
    """Fences of the listener."""
    client_id: str = ""
    """Name that the client gives itself, for logs and quotas, not for rights."""
    principal: Principal = ANONYMOUS
    gateway: tuple[str, int] | None = None
    """Gateway of `KafkaSettings.gateway`."""

    @property
    def any_node(self) -> bool:
        """Whether requests for partitions of other leaders are forwarded."""
        return self.gateway is not None
