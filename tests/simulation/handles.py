"""Callbacks, futures and tasks with the life of their owner."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from tests.simulation.life import LIFE, current_life, life_of

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop

T = TypeVar("T")


class Handle(asyncio.TimerHandle):
    """A callback due at a time or as soon as possible."""

    __slots__ = ("is_own_timer", "life")

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: SimulatedLoop,
        context: contextvars.Context,
    ) -> None:
        # Not the base's, which checks for debugging and knows no lives.
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._scheduled = False
        self._repr = None
        self._source_traceback = None
        self.life = context.get(LIFE)
        self.is_own_timer = False
        """Set by code of the life itself: it stands still while the life's machine sleeps."""

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            if self._scheduled:
                self._loop.timer_cancelled()
            # Dropping the arguments of a dead life could run its code.
            if self.life is None or self.life.alive:
                self._callback = self._args = None  # type: ignore[assignment]


class SimulatedFuture(asyncio.Future[T]):
    """A future with a place of its own in sets, which does not depend on its address."""

    __slots__ = ("life", "number")

    def __init__(self, *, loop: SimulatedLoop) -> None:
        super().__init__(loop=loop)
        self.life = current_life()
        loop.numbers += 1
        self.number = loop.numbers

    def __hash__(self) -> int:
        return self.number


class SimulatedTask(asyncio.Task[T]):
    """A task with a place of its own in sets, which does not depend on its address."""

    __slots__ = ("life", "number")

    def __init__(
        self,
        coro: Coroutine[Any, Any, T],
        loop: SimulatedLoop,
        name: str | None,
        context: contextvars.Context | None,
    ) -> None:
        self.life = current_life() if context is None else life_of(context)
        loop.numbers += 1
        self.number = loop.numbers
        super().__init__(
            coro, loop=loop, name=name or f"{self.life}-{self.number}", context=context
        )

    def __hash__(self) -> int:
        return self.number
