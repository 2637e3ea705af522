"""A handler receives its request and the call's surroundings."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from raftlog.broker.authorize import ANONYMOUS, Principal
from raftlog.broker.service import Broker
from raftlog.record.errors import BAD_REQUEST, OVERLOADED, LogError
from raftlog.record.types import BrokerId

FENCED_LISTED_S: Final = 15.0
"""Seconds for which a fenced broker is listed. Apache Kafka lists a broker for the 9 s until it is
fenced."""

ROW_BYTES: Final = 256
"""Bytes counted for a row of a response, for its objects and its encoding."""
ROWS_AT_ONCE: Final = 100
"""Rows that are built without a turn of the event loop (0.2 ms)."""
RESPONSE_BYTES_FREE: Final = 64 * 1024
"""Bytes of a response that need no room. Nearly all responses are smaller."""
ROOM_POLLS: Final = 100
ROOM_POLL_S: Final = 0.05
"""Seconds between two checks for room in the bytes in flight."""


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


@dataclass(slots=True, eq=False)
class ResponseBudget:
    """Bytes of one response, reserved from the node's bytes in flight while rows are added.

    A request may name many large objects, so a handler reserves before it builds a row. One
    response holds at most the share of its address. The connection releases all of it.
    """

    broker: Broker
    address: str
    used: int = 0
    """Bytes that the response has reserved."""
    refusal: LogError | None = None
    """Error of the first row without room, and of every later row."""

    async def reserve(self, rows: int, size: int = 0) -> None:
        """Reserve bytes for rows, and `size` bytes for their strings.

        Waits a while for room that other requests hold, and for a turn of the event loop to build
        many rows. Raises LogError BAD_REQUEST for a response over the share, OVERLOADED without
        room.
        """
        size += rows * ROW_BYTES
        shared = self.broker.bytes_in_flight
        for _ in range(ROOM_POLLS):
            if self.refusal is not None:
                break
            total = self.used + size
            if total <= RESPONSE_BYTES_FREE or size <= shared.room(self.address):
                shared.force_reserve(size, self.address)
                self.used = total
                if rows > ROWS_AT_ONCE:
                    await self.broker.turns.wait()
                return
            if total > shared.per_client_max:
                self.refusal = LogError(
                    BAD_REQUEST,
                    f"The response is over {shared.per_client_max} bytes. Request less at once.",
                )
            elif self.broker.closing.is_set():
                break
            else:
                await asyncio.sleep(ROOM_POLL_S)
        self.refusal = self.refusal or LogError(OVERLOADED)
        raise LogError(self.refusal.entry, self.refusal.message)


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
    budget: ResponseBudget
    """Bytes of the response to this request."""
    client_id: str = ""
    """Name that the client gives itself, for logs and quotas, not for rights."""
    principal: Principal = ANONYMOUS
    gateway: tuple[str, int] | None = None
    """Gateway of `KafkaSettings.gateway`."""

    @property
    def any_node(self) -> bool:
        """Whether requests for partitions of other leaders are forwarded."""
        return self.gateway is not None
