"""Reads wait for a place in the log, and for the position of its end.

`Router` chooses a replica by the members' positions. Pure.

| policy | replica | with tokens |
|---|---|---|
| any | each in turn | spreads reads, waits for slower replicas |
| most_updated | furthest in the log | waits least |
| most_lagging | last in the log | waits most, for comparison only |

No policy by itself makes a client's reads monotonic. Positions are as old as a heartbeat, so the
chosen replica may be far behind another replica that served the client before. A member comes or
goes at any time. `session(token)` makes the reads monotonic with every policy, as the chosen
replica waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Final, Literal, TypeAlias, assert_never, get_args

from raftlog_replicated.types import Member

Policy: TypeAlias = Literal["any", "most_updated", "most_lagging"]
POLICIES: Final = get_args(Policy)


class Router:
    """Chooses members of one state for the reads of one process."""

    def __init__(self, policy: Policy = "any") -> None:
        """Raises ValueError for another policy."""
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}")
        self.policy = policy
        self._last = ""
        """The replica of the last choice in turn."""

    def choose(self, members: Iterable[Member]) -> Member | None:
        """The member for the next read, as `Replicated.members` lists them. None without members.
        Members without an endpoint are passed over. Among equal positions, the lowest id counts."""
        found = sorted(
            (member for member in members if member.endpoint is not None),
            key=lambda member: member.replica_id,
        )
        if not found:
            return None
        match self.policy:
            case "most_updated":
                return max(found, key=lambda member: member.position)
            case "most_lagging":
                return min(found, key=lambda member: member.position)
            case "any":
                after = [member for member in found if member.replica_id > self._last]
                chosen = (after or found)[0]
                self._last = chosen.replica_id
                return chosen
            case _:
                assert_never(self.policy)


WAITING_MAX: Final = 100_000
"""Waiting reads at one time, for each kind of place."""


class TooManyWaitError(Exception):
    """More reads than WAITING_MAX would wait."""


class Progress:
    """A growing number, and callers waiting until it is large enough."""

    def __init__(self) -> None:
        self.value = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def advance(self, value: int) -> None:
        """Set the number, and wake its waiting callers."""
        self.value = value
        waiting = self._waiting
        while waiting and waiting[0][0] <= value:
            future = heappop(waiting)[2]
            if not future.done():
                future.set_result(None)

    @property
    def next_wanted(self) -> int | None:
        """The smallest awaited number. None without a waiter."""
        waiting = self._waiting
        while waiting and waiting[0][2].done():
            heappop(waiting)
        return waiting[0][0] if waiting else None

    async def reach(self, value: int) -> None:
        """Wait for a number at least as large. Raises TooManyWaitError."""
        if self.value >= value:
            return
        if len(self._waiting) >= WAITING_MAX:
            self._waiting = [waiter for waiter in self._waiting if not waiter[2].done()]
            self._waiting.sort()
            if len(self._waiting) >= WAITING_MAX:
                raise TooManyWaitError(f"{WAITING_MAX} reads wait already.")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (value, next(self._numbers), future))
        await future

    def fail(self, error: Exception) -> None:
        """End all waits."""
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(error)


class SharedQuestions:
    """Sequential queries, each started after all calls that share its response. So a response is
    never older than the call. A call during a query gets the response of the next."""

    def __init__(self, ask: Callable[[], Awaitable[int]], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._next: asyncio.Future[tuple[float, int]] | None = None
        self._task: asyncio.Task[None] | None = None

    async def ask(self) -> tuple[float, int]:
        """When the question began, by the clock, and its answer. Raises its errors."""
        future = self._next
        if future is None:
            loop = asyncio.get_running_loop()
            future = self._next = loop.create_future()
            if self._task is None:
                self._task = loop.create_task(self._run())
        return await asyncio.shield(future)

    async def close(self) -> None:
        """End the query under way. Its callers are cancelled."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._next is not None:
            self._next.cancel()

    async def _run(self) -> None:
        future: asyncio.Future[tuple[float, int]] | None = None
        try:
            while (future := self._next) is not None:
                self._next = None
                begun = self._clock()
                try:
                    answer = await self._ask()
                except Exception as error:
                    future.set_exception(error)
                    future.exception()  # seen, also if all callers have gone
                else:
                    future.set_result((begun, answer))
            self._task = None
        finally:
            if future is not None and not future.done():
                future.cancel()
