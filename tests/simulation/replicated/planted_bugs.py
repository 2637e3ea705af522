"""Planted mistakes, one for each fence and order of a replicated state.

.venv/bin/python -m tests.simulation.replicated.planted_bugs all 0:200    which seeds find each
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest.mock import patch

from raftlog_replicated import replica as replica_module
from raftlog_replicated.applier import Applier, Requests
from raftlog_replicated.codec import Commands, Entry, Fence
from raftlog_replicated.examples.bank import Ledger, Open, Receipt, Transfer
from raftlog_replicated.examples.table import SHARDS, Table
from raftlog_replicated.logs.pipeline import Pipeline
from raftlog_replicated.reads import Progress, SharedQuestions
from raftlog_replicated.replica import Replica
from raftlog_replicated.snapshots.snapshots import Catalogue, Sum
from raftlog_replicated.types import At, Read, Role

from tests.simulation.replicated.histories import replay
from tests.simulation.replicated.service import Service, SimulatedLease
from tests.simulation.runner import run_planted, sign_of


@contextmanager
def no_term(service: Service) -> Iterator[None]:
    """Commands of any term count, where the log takes those of old writers."""
    service.fences = False
    apply = Applier.apply

    def any_term(self: Applier[Any, Any], entry: Entry, *rest: Any) -> Any:
        if isinstance(entry, Commands):
            entry = Commands(self.term, entry.number, entry.payloads, entry.requests)
        return apply(self, entry, *rest)

    with patch.object(Applier, "apply", any_term):
        yield


@contextmanager
def fence_without_order(_: Service) -> Iterator[None]:
    """Any fence counts, whatever its term: two primaries of one term."""
    apply = Applier.apply

    def any_fence(self: Applier[Any, Any], entry: Entry, *rest: Any) -> Any:
        if isinstance(entry, Fence) and entry.term <= self.term:
            self.fence = entry
        return apply(self, entry, *rest)

    with patch.object(Applier, "apply", any_fence):
        yield


@contextmanager
def joined_question(_: Service) -> Iterator[None]:
    """A linearizable read takes the answer of a question that began before the read."""

    async def ask(self: Any) -> tuple[float, int]:
        running = getattr(self, "running", None)
        if running is None or running.done():
            loop = asyncio.get_running_loop()
            running = self.running = loop.create_task(self._ask())
        return 0.0, await asyncio.shield(running)

    with patch.object(SharedQuestions, "ask", ask):
        yield


@contextmanager
def endless_lease(_: Service) -> Iterator[None]:
    """A read by lease on a primary with a lease that may be over."""

    def always(_: SimulatedLease) -> bool:
        return True

    with patch.object(SimulatedLease, "is_exclusive", property(always)):
        yield


@contextmanager
def no_token(_: Service) -> Iterator[None]:
    """A session read does not wait."""
    reach = Replica._reach

    async def at_once(self: Any, at: Read) -> None:
        await reach(self, at if at.token is None else Read("eventual"))

    with patch.object(Replica, "_reach", at_once):
        yield


@contextmanager
def forgotten_requests(_: Service) -> Iterator[None]:
    """A repeated request happens again."""
    with patch.object(Requests, "keep", lambda *_: None):
        yield


@contextmanager
def requests_of_one_life(_: Service) -> Iterator[None]:
    """Results of requests are not in the snapshot."""
    restore = Applier.restore

    def without(self: Applier[Any, Any], chunks: Any) -> None:
        restore(self, chunks)
        self._requests.kept = {}

    with patch.object(Applier, "restore", without):
        yield


@contextmanager
def unknown_is_failed(_: Service) -> Iterator[None]:
    """A primary that lost its lease says of sent commands that none happened."""
    refuse = Pipeline.refuse_queued

    def all_of_them(self: Pipeline[Any, Any], error: Any) -> None:
        for batch in self._sent.values():
            batch.fail(error)
        refuse(self, error)

    with patch.object(Pipeline, "refuse_queued", all_of_them):
        yield


@contextmanager
def serves_while_catching_up(_: Service) -> Iterator[None]:
    """A replica that has not seen the log's end is a candidate, and does not read it first."""

    async def unread(self: Any, writer: Any) -> bool:
        while self._may_serve():
            fence = Fence(self._applier.term + 1, self.replica_id, self.endpoint)
            now_ms = self._log.now_ms()
            await writer.append([replica_module.encode_entry(fence)], now_ms)
            self._may_read.clear()
            self._set_role(Role.PRIMARY)
            return True
        return False

    with patch.object(Replica, "_promote", unread):
        yield


@contextmanager
def unchecked_snapshot(_: Service) -> Iterator[None]:
    """A damaged snapshot is restored."""
    with patch.object(Sum, "check", lambda *_: None):
        yield


@contextmanager
def trims_to_the_newest(_: Service) -> Iterator[None]:
    """The log behind the newest snapshot is deleted, and the older one is of no use."""

    def newest(self: Catalogue) -> int | None:
        found = self.newest_first
        return found[0].offset if found else None

    with patch.object(Catalogue, "trim_offset", property(newest)):
        yield


@contextmanager
def primary_reads_nothing(_: Service) -> Iterator[None]:
    """A read on a primary waits for ever for entries that an old writer appended."""
    with patch.object(Progress, "next_wanted", property(lambda _: None)):
        yield


@contextmanager
def lease_before_the_batch(_: Service) -> Iterator[None]:
    """A read by lease does not wait for the batch under way."""
    begin = Replica.__init__

    def init(self: Any, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        self._settled = AlwaysSettled()

    with patch.object(Replica, "__init__", init):
        yield


@contextmanager
def snapshot_of_a_later_moment(_: Service) -> Iterator[None]:
    """Commands applied while a snapshot is written change it."""
    snapshot = Table.snapshot

    def unmarked(self: Table[Any]) -> Iterator[bytes]:
        chunks = snapshot(self)
        self._is_own = bytearray(b"\1" * SHARDS)
        return chunks

    with patch.object(Table, "snapshot", unmarked):
        yield


@contextmanager
def coins_of_a_transfer_to_itself(_: Service) -> Iterator[None]:
    """A transfer of an account to itself adds coins."""
    apply = Ledger.apply

    def careless(self: Ledger, command: Open | Transfer, at: At) -> Receipt:
        receipt = apply(self, command, at)
        if isinstance(command, Transfer) and receipt.done and command.source == command.target:
            held = self.balances.get(command.source) or 0
            self.balances.set(command.source, held + command.amount)
        return receipt

    with patch.object(Ledger, "apply", careless):
        yield


@contextmanager
def stamps_of_the_wall_clock(_: Service) -> Iterator[None]:
    """A primary's timestamps are those of its wall clock, which jumps."""
    with patch.object(Replica, "_stamp_ms", lambda self: self._log.now_ms()):
        yield


@contextmanager
def largest_wall_clock(_: Service) -> Iterator[None]:
    """The log's time is the largest timestamp, so one primary's clock moves it for good."""

    def advance(self: Applier[Any, Any], stamp_ms: int) -> int:
        self.timestamp_ms = max(self.timestamp_ms, stamp_ms)
        return self.timestamp_ms

    with patch.object(Applier, "_advance", advance):
        yield


class AlwaysSettled(Progress):
    """Waits for no batch."""

    @property
    def value(self) -> int:  # type: ignore[override]
        return 1 << 60

    @value.setter
    def value(self, value: int) -> None:
        pass


PLANTED: Final[dict[Callable[[Service], AbstractContextManager[None]], int]] = {
    no_term: 11,
    fence_without_order: 1231,
    joined_question: 6,
    endless_lease: 298,
    lease_before_the_batch: 1,
    no_token: 0,
    forgotten_requests: 0,
    requests_of_one_life: 169,
    unknown_is_failed: 24,
    serves_while_catching_up: 1,
    unchecked_snapshot: 4,
    trims_to_the_newest: 4,
    primary_reads_nothing: 51,
    snapshot_of_a_later_moment: 60,
    coins_of_a_transfer_to_itself: 2,
    stamps_of_the_wall_clock: 0,
    largest_wall_clock: 7,
}
"""And a seed that finds it."""
_BY_NAME: Final = {plant.__name__: plant for plant in PLANTED}


def find(name: str, seed: int) -> str | None:
    """The sign of a mistake in the history of a seed."""
    try:
        replay(seed, plant=_BY_NAME[name])
    except AssertionError as error:
        return sign_of(error)
    return None


if __name__ == "__main__":
    sys.exit(run_planted(list(_BY_NAME), find, sys.argv[1:]))
