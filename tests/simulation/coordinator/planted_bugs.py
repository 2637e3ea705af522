"""Mistakes of the shell, planted one at a time: the histories must find each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from raftlog.coordinator.shard.shard import Shard
from raftlog.record.errors import LogError
from raftlog.replication.partition import Acks, Partition


async def answered_before_commit(shard: Any, _batch: Any, *, has_records: bool) -> None:
    """`Shard._waited` that does not wait."""
    shard.timers_changed()
    await asyncio.sleep(0)


async def not_waited(shard: Any) -> None:
    """`Shard._committed` that does not wait."""
    shard.timers_changed()


def going_on(end: Any) -> Any:
    """`Shard.end` that ends nothing but the waiting requests, unless the lead is over."""

    def go_on(shard: Any, error: LogError) -> None:
        """Fail what waits, and serve on with the same state."""
        if shard.partition.leader_role is not shard.role:
            end(shard, error)
            return
        batches = (*shard._in_flight, *shard._unwritten)
        shard._in_flight.clear()
        shard._unwritten.clear()
        shard._pending_bytes = shard._pending_records = 0
        for batch in batches:
            for future, _ in batch.waiters:
                if not future.done():
                    future.set_exception(shard._not_coordinator(error))
        shard._next = shard.partition.log_end_offset

    return go_on


def by_own_clock(moment: Any) -> Any:
    """`Shard.moment` by the wall clock of this node."""

    def own(shard: Any) -> Any:
        time_ms = shard._clock.time_ms()
        return moment(shard)._replace(time_ms=time_ms, expiry_ms=time_ms)

    return own


def dated_by_own_clock(moment: Any) -> Any:
    """`Shard.moment` that stores the wall clock of this node, and expires by the cluster's."""

    def dated(shard: Any) -> Any:
        return moment(shard)._replace(time_ms=shard._clock.time_ms())

    return dated


async def _unguarded(shard: Any, batches: Any, _guard: Any, _verification: Any) -> None:
    await shard.partition.append(batches, acks=Acks.ALL, timeout_s=30.0)


async def _unconfirmed(_partition: Any) -> None:
    """Trust the applied metadata."""


async def _committed_by_leader(shard: Any, batches: Any, guard: Any, _verification: Any) -> None:
    await shard.partition.append(batches, acks=Acks.LEADER, timeout_s=30.0, guard=guard)


@dataclass(frozen=True, slots=True)
class Mistake:
    """One planted mistake."""

    name: str
    owner: Any
    attribute: str
    wrong: Any
    seed: int
    """Seed of a cheap history that finds the mistake."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        with mock.patch.object(self.owner, self.attribute, self.wrong):
            yield


MISTAKES: Final = (
    Mistake("answers before the commit", Shard, "_waited", answered_before_commit, 4),
    Mistake("answers without records do not wait", Shard, "_committed", not_waited, 4),
    Mistake("keeps the state after a failed append", Shard, "end", going_on(Shard.end), 4),
    Mistake("appends with acks=1", Shard, "_append", _committed_by_leader, 4),
    Mistake("reads without a confirmed lead", Partition, "confirm", _unconfirmed, 60),
    Mistake("writes wherever the log ends", Shard, "_append", _unguarded, 11),
)
