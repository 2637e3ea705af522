"""Limits that all listeners of a node share: budgets by client address, turns, rates, counts.

- `AddressBudget` counts bytes in flight and requests in flight, in total and by address.
- `WorkTurns` spreads long synchronous work over iterations of the event loop.
- `RateGuard` measures the rate of a request or response body.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from raftlog.peer.dial import address_group
from raftlog.record.errors import INVALID_BODY, OVERLOADED, QUOTA_EXCEEDED, LogError
from raftlog.world.time import Clock

__all__ = [
    "ADDRESS_SHARE",
    "AddressBudget",
    "BrokerSettings",
    "RateGuard",
    "WorkTurns",
    "address_group",
]

ADDRESS_SHARE: Final = 4
"""One address holds at most a quarter of a shared budget."""
RESERVED_SHARE: Final = 8
"""The last eighth of a budget is for addresses that hold little."""
LITTLE_SHARE: Final = 64
"""An address holds little up to a 64th of a budget."""
OTHERS_EXPECTED_S: Final = 0.1
"""Seconds after a request for which more of its address are expected."""
LONG_WORK_EXPECTED_S: Final = 1.0
"""Seconds after long work for which more of its address is expected."""
ADDRESSES_REMEMBERED_MAX: Final = 64
"""Addresses with long work that are remembered."""
PAUSE_S_MIN: Final = 0.002
"""Shortest pause between turns, because timers are a millisecond coarse."""
PAUSE_S_MAX: Final = 0.05
"""Longest pause, should a piece of work have been longer than it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of the broker. Defaults and bounds are the node's (http/settings.py)."""

    auto_create_topics: bool
    """Whether a produce request to an unknown topic creates it."""
    bytes_in_flight_max: int
    """Bytes that all requests together may hold. An address may hold a quarter of them."""
    requests_in_flight_max: int
    """Requests in flight. An address may have a quarter of them."""
    response_bytes_max: int
    """Upper bound of `max_bytes` of a fetch. Larger values are lowered to it."""
    long_poll_s_max: float
    """Upper bound of a fetch's wait in seconds. Longer waits are lowered to it."""
    partitions_per_request_max: int
    """Partitions that one request may name."""
    topic_labels_max: int
    """Topics with separate metrics."""

    def check_partition_count(self, count: int) -> None:
        """Raise LogError INVALID_BODY if one request names too many partitions."""
        if count > self.partitions_per_request_max:
            raise LogError(
                INVALID_BODY,
                f"The request names {count} partitions; {self.partitions_per_request_max} may be.",
            )


class AddressBudget:
    """Counts what clients hold of one shared resource, in total and by client address.

    One address holds at most a quarter of the total, so no single client takes the resource from
    all others. The last eighth is for addresses that hold little, so four addresses at their limit
    leave room for the requests of others. `reserve` refuses and never waits, because requests that
    wait for each other's bytes would wait forever.
    """

    def __init__(self, total_max: int, noun: str) -> None:
        self.total_max = total_max
        self.per_client_max = max(total_max // ADDRESS_SHARE, 1)
        """Most that each client address may hold."""
        self.little_max = total_max // LITTLE_SHARE
        """What an address may hold out of the last part."""
        self.used = 0
        self.refused = 0
        self._common_max = total_max - total_max // RESERVED_SHARE
        self._noun = noun
        self._by_address: dict[str, int] = {}

    def used_by(self, address: str) -> int:
        """Amount that one address holds."""
        return self._by_address.get(address, 0)

    def room(self, address: str) -> int:
        """Amount that `reserve` would still grant the address."""
        held = self._by_address.get(address, 0)
        common = min(self.per_client_max - held, self._common_max - self.used)
        return max(common, min(self.little_max - held, self.total_max - self.used), 0)

    def reserve(self, size: int, address: str) -> None:
        """Reserve `size` more for `address`. The caller must `release` the same amount.

        Raises LogError OVERLOADED over the total, and QUOTA_EXCEEDED over the address's share.
        """
        if not size:
            # An entry of 0 would stay, because no `release` follows.
            return
        held = self._by_address.get(address, 0)
        if held + size > self.per_client_max:
            self.refused += 1
            raise LogError(
                QUOTA_EXCEEDED,
                f"The requests of address {address} hold {held} {self._noun}, and this one needs "
                f"{size} more; {self.per_client_max} are allowed, a quarter of the node's limit.",
            )
        is_little = held + size <= self.little_max
        if self.used + size > (self.total_max if is_little else self._common_max):
            self.refused += 1
            raise LogError(OVERLOADED, f"The node is at its limit for {self._noun}.")
        self.used += size
        self._by_address[address] = held + size

    def force_reserve(self, size: int, address: str) -> None:
        """Reserve over the limits, for a response to a completed write, which must be sent.

        The amount counts against the next `reserve`. The caller bounds the size.
        """
        self.used += size
        self._by_address[address] = self._by_address.get(address, 0) + size

    def release(self, size: int, address: str) -> None:
        """Release an amount that was reserved."""
        held = self._by_address.get(address, 0) - size
        assert held >= 0, f"more {self._noun} released than reserved"
        self.used -= size
        if held:
            self._by_address[address] = held
        else:
            self._by_address.pop(address, None)


class WorkTurns:
    """Turns of long synchronous work, at most one piece per iteration of the event loop.

    Each piece is bounded (about 3 ms), but many requests bring many pieces. Run in one iteration,
    they would hold the loop for their sum. Client addresses take turns, so the many requests of an
    address do not delay the few of another.

    A short request takes several iterations for its read, its sync, its replication and its
    response. While requests of addresses without long work arrive, pieces leave half of the time to
    these.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._address = ContextVar("address", default="")
        """The client address that the running task works for. Tasks that it creates inherit it."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Waits by address, in the order of the addresses' turns. Bounded by requests in flight."""
        self._is_due = False
        """Whether the next turn is scheduled."""
        self._worked: dict[str, float] = {}
        """Time of the last turn of each address with long work, the newest last. Bounded."""
        self._began = 0.0
        """Begin of the last turn."""
        self._since_pause_s = 0.0
        """Sum of the turns since the last pause."""
        self._others_until = 0.0
        """End of the time in which short requests of other addresses are expected."""

    def work_for(self, address: str) -> None:
        """Assign further waits of the running task, a new request, to a client address."""
        self._address.set(address)
        if self._is_due and address not in self._waiting:
            now = self._clock.monotonic()
            if now - self._worked.get(address, -math.inf) > LONG_WORK_EXPECTED_S:
                self._others_until = now + OTHERS_EXPECTED_S

    async def wait(self) -> None:
        """Wait for a turn. Do the piece of work right after it, without suspension."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(self._address.get(), deque()).append(turn)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._next)
        await turn
        self._began = self._clock.monotonic()

    def _next(self) -> None:
        """Give one turn. The loop polls its sockets and timers before the next."""
        self._is_due = False
        while self._waiting:
            address = next(iter(self._waiting))
            turns = self._waiting.pop(address)
            turn = turns.popleft()
            if turns:
                self._waiting[address] = turns
            if not turn.done():  # else its wait was cancelled
                self._is_due = True
                self._remember(address)
                self._began = math.inf
                turn.set_result(None)
                # Runs after the piece, in the same iteration.
                asyncio.get_running_loop().call_soon(self._turn_ended)
                break

    def _remember(self, address: str) -> None:
        """Note that `address` has long work."""
        self._worked.pop(address, None)
        self._worked[address] = self._clock.monotonic()
        if len(self._worked) > ADDRESSES_REMEMBERED_MAX:
            del self._worked[next(iter(self._worked))]

    def _turn_ended(self) -> None:
        """Schedule the next turn, after a pause if other addresses need it."""
        now = self._clock.monotonic()
        self._since_pause_s += max(now - self._began, 0.0)
        if now >= self._others_until:
            self._since_pause_s = 0.0
        loop = asyncio.get_running_loop()
        if self._since_pause_s < PAUSE_S_MIN:
            loop.call_soon(self._next)
        else:
            loop.call_later(min(self._since_pause_s, PAUSE_S_MAX), self._next)
            self._since_pause_s = 0.0


class RateGuard:
    """The minimum rate of a transfer, measured over its latest window of waiting.

    Each `window_s` of waiting for the peer must move `bytes_per_second_min * window_s` bytes. Bytes
    of earlier windows earn no time. A burst followed by silence ends one window later.
    """

    __slots__ = ("_bytes_left", "_bytes_min", "_window_s", "patience_s")

    def __init__(self, bytes_per_second_min: int, window_s: float) -> None:
        self._bytes_min = bytes_per_second_min * window_s
        self._window_s = window_s
        self._bytes_left = self._bytes_min
        self.patience_s = window_s
        """Seconds left to the peer for the rest of the window's bytes. 0 if it is too slow."""

    def moved(self, size: int, waited_s: float) -> None:
        """Count bytes and the wait for them. With enough bytes the next window starts."""
        self._bytes_left -= size
        if self._bytes_left > 0:
            self.patience_s = max(self.patience_s - waited_s, 0.0)
        else:
            self._bytes_left = self._bytes_min
            self.patience_s = self._window_s
