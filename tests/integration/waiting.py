"""Waits for real processes, each with a deadline and an error text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from bench.node import MeasuredNode

T = TypeVar("T")

WAIT_S = 15.0
POLL_S = 0.05


def wait_for(what: str, condition: Callable[[], T | None], timeout_s: float = WAIT_S) -> T:
    """Wait for the first true result of `condition`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        answer = condition()
        if answer:
            return answer
        time.sleep(POLL_S)
    raise AssertionError(f"within {timeout_s} s there was no {what}")


def wait_for_log(node: MeasuredNode, *words: str, timeout_s: float = WAIT_S) -> str:
    """The first line of the node's log with all the words, in any case."""

    def line() -> str | None:
        text = node.log.read_text(errors="replace") if node.log.exists() else ""
        for candidate in text.splitlines():
            if all(word.lower() in candidate.lower() for word in words):
                return candidate
        return None

    try:
        return wait_for(f"line with {words} in the log", line, timeout_s)
    except AssertionError as error:
        text = node.log.read_text(errors="replace") if node.log.exists() else "(no log)"
        raise AssertionError(f"{error}:\n{text}") from None
