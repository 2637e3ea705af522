"""Results of requests, so that a repeated request happens once. Pure, and part of the state.

Raft's dissertation (Ongaro, 2014, 6.3) keeps the last result of each client. Here each request has
a separate name, and its result is kept for a time of the log. A full table refuses new named
requests, on all replicas alike, and forgets none early.
"""

from __future__ import annotations

from typing import Final, Generic, NamedTuple

from raftlog_replicated.types import Result

KEPT_MS: Final = 600_000
"""Milliseconds in which a request happens once. All its copies must be in the log within this time
of the first."""
KEPT_MAX: Final = 100_000
"""Results at one time, 170 new requests a second."""
REQUEST_ID_CHARACTERS_MAX: Final = 128


class Kept(NamedTuple, Generic[Result]):
    """A result, and the log's time of its request."""

    timestamp_ms: int
    result: Result


class Requests(Generic[Result]):
    """The table."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept[Result]] = {}
        """Results in order of time."""

    def expire(self, now_ms: int) -> None:
        """Forget what is older than KEPT_MS by the log's time."""
        kept = self.kept
        while kept:
            oldest = next(iter(kept))
            if kept[oldest].timestamp_ms + KEPT_MS > now_ms:
                break
            del kept[oldest]

    @property
    def is_full(self) -> bool:
        """Whether a new request is refused."""
        return len(self.kept) >= KEPT_MAX

    def keep(self, request_id: str, timestamp_ms: int, result: Result) -> None:
        """Remember the result of a new request."""
        self.kept[request_id] = Kept(timestamp_ms, result)
