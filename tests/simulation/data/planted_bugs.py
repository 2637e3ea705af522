"""The ten mistakes of docs/decisions/ten-mistakes.md, each planted in one place.

They exist in tests only: `planted` patches one into the shipped code for the duration of the block.
The checkers must find every one: see test_planted_bugs.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from raftlog.metadata import apply_cluster
from raftlog.record.types import TopicId
from raftlog.replication import divergence
from raftlog.replication.divergence import BelowStart, Diverging
from raftlog.replication.leader_role import LeaderRole
from raftlog.replication.leader_state import LeaderState
from raftlog.replication.lifecycle import ReplicaLifecycle
from raftlog.replication.possible_loss import LossGate
from raftlog.replication.replica import Replica
from raftlog.storage.log_core import LogCore
from raftlog.storage.manager import LogManager
from raftlog.storage.producer_state import ProducerStates


@dataclass(frozen=True)
class Mistake:
    """One of the ten mistakes, or a variant."""

    number: int
    what: str
    owner: Any
    """The class or module in which `name` is replaced."""
    name: str
    wrong: Any

    def __str__(self) -> str:
        return f"{self.number}-{self.what.replace(' ', '-')}"

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """The shipped code has the mistake within the block."""
        with mock.patch.object(self.owner, self.name, self.wrong):
            yield


def _durable_once_written(self: Replica) -> Any:
    return self.log.log_end_offset


def _committed_once_durable_here(
    self: LeaderState, own_durable_end: Any, *, min_insync_replicas: int
) -> Any:
    return own_durable_end


def _truncating_to_high_watermark(right: Callable[..., Any]) -> Any:
    async def open_replica(self: LogManager, *arguments: Any, **named: Any) -> Any:
        known = self.logs()
        log = await right(self, *arguments, **named)
        if log.failure is None and log not in known.values():
            end = max(log.high_watermark, log.log_start_offset)
            if end < log.log_end_offset:
                await log.operations.truncate_to(end)
        return log

    return open_replica


def _offsets_without_epochs(
    history: Any, *, log_start: Any, log_end: Any, position: Any
) -> Diverging | BelowStart | None:
    if position.offset < log_start:
        return BelowStart(log_start)
    if position.offset > log_end:
        return Diverging(position.last_epoch, log_end)
    return None


def _acked_before_compared(right: Callable[..., Any]) -> Any:
    """Acknowledgements to earlier leaders count, whatever the follower's log is."""

    def attach(self: LeaderRole, feed: Any, position: Any) -> Any:
        before = self._feeds.get(feed.broker_id)
        self._feeds[feed.broker_id] = feed
        self.acked(feed, position.durable_end, position.log_start_offset)
        if before is None:
            del self._feeds[feed.broker_id]
        else:
            self._feeds[feed.broker_id] = before
        return right(self, feed, position)

    return attach


def _proposed_is_effective(self: LeaderState) -> None:
    members = self._proposed or frozenset(self.row.isr)
    self._effective_isr = tuple(
        member for member in self.row.replicas if member in members and member != self.me
    )


def _entering_when_heard(self: LeaderState, broker_id: Any, broker: Any, **_limits: Any) -> bool:
    follower = self._followers.get(broker_id)
    return (
        follower is not None
        and broker is not None
        and broker.is_available
        and broker.broker_epoch == follower.broker_epoch
    )


def _trusting(right: Callable[..., None]) -> Any:
    def init(self: LossGate, replica: Replica, *, may_have_lost_data: bool, **named: Any) -> None:
        right(self, replica, may_have_lost_data=False, **named)

    return init


def _succeeding(right: Callable[..., Any]) -> Any:
    """A failed sync is retried, and seems to succeed."""

    def end_sync(self: LogCore, error: Exception | None) -> None:
        right(self, None)

    return end_sync


async def _deleting_strays(self: ReplicaLifecycle) -> None:
    for stray in self._logs.strays():
        await self._logs.delete_topic(TopicId(stray.partition("/")[0]))


MISTAKES: Final = (
    Mistake(1, "acks before its disk", Replica, "durable_end", property(_durable_once_written)),
    Mistake(
        1, "acks before its followers", LeaderState, "committed_end", _committed_once_durable_here
    ),
    Mistake(
        2,
        "truncates to the high watermark",
        LogManager,
        "open_replica",
        _truncating_to_high_watermark(LogManager.open_replica),
    ),
    Mistake(3, "fetches without epochs", divergence, "compare", _offsets_without_epochs),
    Mistake(
        4, "counts stale acks", LeaderRole, "attach", _acked_before_compared(LeaderRole.attach)
    ),
    Mistake(5, "acts on a proposed ISR", LeaderState, "_recompute", _proposed_is_effective),
    Mistake(6, "re-enters the ISR too early", LeaderState, "may_enter", _entering_when_heard),
    Mistake(
        7,
        "trusts a restart after power loss",
        LossGate,
        "__init__",
        _trusting(LossGate.__init__),
    ),
    Mistake(8, "leads without asking", LeaderRole, "_require_lead", lambda _self: None),
    Mistake(9, "goes on after a failed sync", LogCore, "end_sync", _succeeding(LogCore.end_sync)),
    Mistake(
        9, "deletes what nobody names", ReplicaLifecycle, "_remove_deleted_strays", _deleting_strays
    ),
    Mistake(
        10,
        "forgets producers at failover",
        ProducerStates,
        "update",
        lambda _self, _header, *, now_ms: None,
    ),
    Mistake(
        10,
        "uses an epoch twice",
        apply_cluster,
        "_begin_leader_epochs",
        lambda _image, _broker_id: (),
    ),
)
