"""Decisions and timers that the state machines of all coordinators share. Pure.

A state machine has methods that decide about a request, and `replay`. To decide is to read the
state and return a `Decision`. Only `replay` changes the state. The shard appends a decision's
records and replays them at once, before the next decision, and sends the response once they are
committed. After an append with a failed or unknown outcome, the shard drops the state and loads the
log again from its start.

Stored times are the cluster's (`raftlog.world.cluster_clock`), whatever the coordinator's own clock
shows. They belong to offsets, empty groups, idle transactional ids and sinks.

| a stored time | the cluster time is known | unknown |
|---|---|---|
| its retention is over | the data is deleted | kept |
| its retention is not over | kept | kept |
| more than CLOCK_SKEW_MS_MAX ahead, or UNDATED_MS | replaced by the cluster time, once | kept |

UNDATED_MS is stored while the cluster time is unknown. The last row also bounds the harm of a clock
that was ahead, such as an earlier release's. Its data does not stay for ever, and holds back no
other. A clock of an earlier release that was behind cannot be recognised.

Timers are soft state. They are in no record, a decision sets and cancels them directly, and a load
sets them again, with their full length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import Final, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar
from weakref import WeakMethod

from raftlog.coordinator.shard.records import Key, Value
from raftlog.record.types import ProducerEpoch, ProducerId
from raftlog.world.cluster_clock import CLOCK_SKEW_MS_MAX

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
K = TypeVar("K", bound=Hashable)


UNDATED_MS: Final = 253_402_300_799_000
"""Stored in place of an unknown time: the last second of the year 9999. Nothing with it expires in
earlier releases."""


class Aging(NamedTuple):
    """The cluster's times, for a decision about stored times."""

    expiry_ms: int
    time_ms: int

    def is_over(self, stored_ms: int, retention_ms: int) -> bool:
        """Whether the retention has passed since a stored time."""
        return self.expiry_ms - stored_ms >= retention_ms

    def is_ahead(self, stored_ms: int) -> bool:
        """Whether a stored time is UNDATED_MS, or from a clock that was ahead."""
        return stored_ms > self.time_ms + CLOCK_SKEW_MS_MAX


def weakly(method: Callable[P, R]) -> Callable[P, R]:
    """An object's method, for a part of this object to call, without a reference back.

    In a circle of references the state of a shard, perhaps of a million offsets, would live on
    until a full collection, long after the shard.
    """
    found = WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = found()
        assert bound is not None, "a part lives no longer than the whole"
        return bound(*args, **kwargs)

    return call


class CoordinatorRecord(NamedTuple):
    """One change of a coordinator's state."""

    key: Key
    value: Value | None
    """None deletes the key (a tombstone)."""


class Producer(NamedTuple):
    """The producer of a transaction."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class Event(StrEnum):
    """What a node counts of its coordinators, for metrics."""

    REBALANCE = "rebalance"
    """A group began another assignment or generation."""
    OFFSET_COMMIT = "offset commit"
    """An offset was committed, also in a transaction."""
    TRANSACTION_TIMEOUT = "transaction timeout"
    """A transaction was aborted because its producer was silent for its timeout."""
    PRODUCER_FENCED = "producer fenced"
    """A request of a producer with an old epoch was refused."""


Counts: TypeAlias = Counter[Event]
"""Events since the start of the node. Soft state, like timers."""


@dataclass(frozen=True, slots=True)
class Decision(Generic[R_co]):
    """The answer to a request, and the records that must be committed before it leaves."""

    response: R_co
    records: tuple[CoordinatorRecord, ...] = ()
    """Records appended together, so that all of them are committed, or none."""
    producer: Producer | None = None
    """Producer of the transaction that the records join. They count once it is committed."""


class Timers(Generic[K]):
    """Deadlines by key, one each. Times are milliseconds of a monotonic clock."""

    def __init__(self) -> None:
        self._deadlines: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._count = 0
        """Entries ever made, which break ties in the order of creation."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: K, at_ms: int) -> None:
        """Set the key's deadline, in place of any other."""
        if self._deadlines.get(key) == at_ms:
            return
        self._deadlines[key] = at_ms
        self._count += 1
        heappush(self._heap, (at_ms, self._count, key))
        if len(self._heap) > 2 * len(self._deadlines) + 64:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapify(self._heap)

    def cancel(self, key: K) -> None:
        """Remove the key's deadline, if it is set."""
        self._deadlines.pop(key, None)

    def deadline_ms(self, key: K) -> int | None:
        """The key's deadline, or None."""
        return self._deadlines.get(key)

    def next_ms(self) -> int | None:
        """The earliest deadline, or None."""
        while self._heap and not self._is_valid(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> K | None:
        """Remove and return the key with the earliest deadline, if that has passed."""
        next_ms = self.next_ms()
        if next_ms is None or next_ms > now_ms:
            return None
        key = heappop(self._heap)[2]
        del self._deadlines[key]
        return key

    def _is_valid(self, entry: tuple[int, int, K]) -> bool:
        return self._deadlines.get(entry[2]) == entry[0]
