"""What a handler learns besides its request."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.broker.authorize import ANONYMOUS, Principal
from raftlog.broker.service import Broker


@dataclass(frozen=True, slots=True)
class Call:
    """One request's surroundings."""

    broker: Broker
    version: int
    """Of the API."""
    address: str
    """The client's."""
    client_id: str = ""
    """As the client names itself; for logs and quotas, not for rights."""
    principal: Principal = ANONYMOUS
    gateway: tuple[str, int] | None = None
    """See `KafkaSettings.gateway`."""

    @property
    def any_node(self) -> bool:
        """Whether requests for partitions of other leaders are forwarded."""
        return self.gateway is not None
