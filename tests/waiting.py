"""Waits of tests: `until` in an event loop, `wait_until` in a thread.

Both poll a condition until it holds. A condition that does not hold in time fails the test with
the name of the condition (`what`), by default its source. `what` may be a call that collects facts
at that moment. Where the code under test has an event, wait for the event.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from bench.node import MeasuredNode

T = TypeVar("T")

DEADLINE_S = 120.0
"""Deadline of a condition. Only a failing test reaches it, also on a busy machine."""
POLL_S = 0.001
SLOW_POLL_S = 0.05
"""Poll interval of conditions that ask another process."""


async def until(
    condition: Callable[[], T | Awaitable[T | None] | None],
    what: str | Callable[[], str] = "",
    *,
    deadline_s: float = DEADLINE_S,
    poll_s: float = POLL_S,
) -> T:
    """Wait until a condition holds, by the clock of the loop; return its value.

    `poll_s` of 0 lets the other tasks of the loop run and nothing else. Raises AssertionError.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + deadline_s
    while True:
        found = condition()
        value = await found if inspect.isawaitable(found) else found
        if value:
            return value
        assert loop.time() < deadline, _message(condition, what, deadline_s)
        await asyncio.sleep(poll_s)


def wait_until(
    condition: Callable[[], T | None],
    what: str | Callable[[], str] = "",
    *,
    deadline_s: float = DEADLINE_S,
    poll_s: float = SLOW_POLL_S,
) -> T:
    """Block until a condition holds; return its value. Raises AssertionError."""
    deadline = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < deadline, _message(condition, what, deadline_s)
        time.sleep(poll_s)
    return value


def _message(
    condition: Callable[[], object], what: str | Callable[[], str], deadline_s: float
) -> str:
    named = what() if callable(what) else what
    return f"not within {deadline_s} s: {named or _source(condition)}"


def _source(condition: Callable[[], object]) -> str:
    """Return the lines that define a condition, or its name if they are not at hand."""
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return repr(condition)


def wait_for_log(node: MeasuredNode, *words: str, deadline_s: float = DEADLINE_S) -> str:
    """Return the first line of a node's log with all the words, in any case."""

    def text() -> str:
        return node.log.read_text(errors="replace") if node.log.exists() else "(no log)"

    def line() -> str | None:
        for candidate in text().splitlines():
            if all(word.lower() in candidate.lower() for word in words):
                return candidate
        return None

    return wait_until(
        line, lambda: f"line with {words} in the log:\n{text()}", deadline_s=deadline_s
    )
