"""Lives: one process of a node from start to end, in the simulated loop.

Every callback, timer and task belongs to the life of the context of its creation, or to none (the
test's own code, the network, the nemesis). An ended life is like a process after SIGKILL: nothing
of the life runs again, no `finally`, no `except CancelledError`.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.handles import Handle

LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)
"""The life of the running code. Call `current_life`."""


class SimulationError(AssertionError):
    """The run failed: by an unhandled exception, a limit, or by asking for the real world."""


class LifeEndedError(BaseException):
    """Unwinds the code in the middle of which its process was killed.

    Not an Exception: a node's code must not handle this as an error.
    """


class NodeDiedError(Exception):
    """The process ended before the end of a call from outside."""


class Life:
    """One process of a node."""

    def __init__(self, node_id: int, incarnation: int) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self.alive = True
        self.paused = False
        self.callbacks = 0
        """How many callbacks of this life have run."""
        self.fuse = 0
        """Callbacks until its crash; 0: none is ordered. See `crash_after`."""
        self.held: deque[Handle] = deque()
        """Due callbacks waiting until the life is resumed, in order."""
        self.suspended_at: float | None = None
        """When the machine was suspended; its timers stand still since."""
        self.context = contextvars.copy_context()
        self.context.run(LIFE.set, self)
        self._on_end: dict[Callable[[], None], None] = {}

    def __hash__(self) -> int:
        # Not by its address: checkers keep lives in sets.
        return hash((self.node_id, self.incarnation))

    def __repr__(self) -> str:
        return f"n{self.node_id}.{self.incarnation}"

    def crash_after(self, callbacks: int) -> None:
        """Kill this life when `callbacks` (1 or more) more of its callbacks have run."""
        assert callbacks >= 1
        self.fuse = callbacks

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call back, outside of any life, when this one ends. In the order of asking."""
        self._on_end[callback] = None

    def forget_on_end(self, callback: Callable[[], None]) -> None:
        """Take back `on_end`."""
        self._on_end.pop(callback, None)

    def kill(self) -> None:
        """End this life at once, as SIGKILL does. Harmless if it has ended.

        Raises LifeEndedError in the life's own code, to stop there.
        """
        if not self.alive:
            return
        self.alive = False
        self.paused = False
        outside = contextvars.Context()
        for callback in list(self._on_end):
            outside.run(callback)
        self._on_end.clear()
        if current_life() is self:
            raise LifeEndedError(repr(self))


def current_life() -> Life | None:
    """The life to which the running code belongs; None outside of all."""
    return LIFE.get()


def life_of(context: contextvars.Context) -> Life | None:
    """The life of code running in a context."""
    return context.get(LIFE)
