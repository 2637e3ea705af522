"""What a handler learns besides its request."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from raftlog.broker.authorize import ANONYMOUS, Principal
from raftlog.broker.service import Broker
from raftlog.record.types import BrokerId

FENCED_LISTED_S: Final = 15.0
"""A fenced broker is listed for so long. Apache Kafka lists one for the 9 s until it is fenced."""


class Fences:
    """Since when brokers are fenced, as a listener's requests have found them."""

    def __init__(self) -> None:
        self._since: dict[BrokerId, float] = {}

    def recent(self, fenced: Collection[BrokerId], now: float) -> set[BrokerId]:
        """Those of all fenced brokers that are to be listed still."""
        self._since = {one: self._since.get(one, now) for one in fenced}
        return {one for one, since in self._since.items() if now - since < FENCED_LISTED_S}


@dataclass(frozen=True, slots=True)
class Call:
    """One request's surroundings."""

    broker: Broker
    version: int
    """Of the API."""
    address: str
    """The client's."""
    fences: Fences
    """The listener's."""
    client_id: str = ""
    """As the client names itself; for logs and quotas, not for rights."""
    principal: Principal = ANONYMOUS
    gateway: tuple[str, int] | None = None
    """See `KafkaSettings.gateway`."""

    @property
    def any_node(self) -> bool:
        """Whether requests for partitions of other leaders are forwarded."""
        return self.gateway is not None
