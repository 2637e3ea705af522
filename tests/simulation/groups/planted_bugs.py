"""Mistakes of groups and offsets, planted one at a time: the histories must find each.

The last four are defects that the histories found, planted again.

    scripts/simulate planted-groups deaf-subscribe 0:200    which seeds find it
    scripts/simulate planted-groups all 0:200               each
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from raftlog_client.groups.member import GroupMember
from raftlog_client.groups.membership import GroupMembership
from raftlog_client.groups.offsets import GroupOffsets

from raftlog.coordinator.groups import consumer_decisions, offsets
from raftlog.coordinator.groups.consumer_decisions import ConsumerDecisions
from raftlog.coordinator.groups.consumer_group import ConsumerGroup
from raftlog.coordinator.groups.offsets import OffsetTable
from raftlog.coordinator.groups.shard import GroupShard
from raftlog.coordinator.shard.shard import Shard
from tests.simulation import runner
from tests.simulation.coordinator import planted_bugs as shell
from tests.simulation.groups.histories import replay


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One planted mistake."""

    name: str
    invariant: str
    """As numbered in raftlog/coordinator/DESIGN.md, or the promise in words."""
    owner: Any
    attribute: str
    wrong: Any
    seed: int
    """Finds it."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        with mock.patch.object(self.owner, self.attribute, self.wrong):
            yield


def _any_commit(_group: ConsumerGroup, _member_id: str, _member_epoch: int) -> None:
    """Check nothing."""


def _any_sequence(_group: ConsumerGroup, _request: object) -> None:
    """Take late copies for new reports."""


def _any_epoch(group: ConsumerGroup, member_id: str, _member_epoch: int) -> None:
    if member_id:
        group.known(member_id)


def _free(_group: ConsumerGroup, _pair: object) -> None:
    """Every partition is free."""


def _never(*_arguments: object) -> bool:
    return False


def _always(*_arguments: object, **_options: object) -> bool:
    return True


def _given_out(offsets: GroupOffsets, only: Collection[Any] | None = None) -> Any:
    """The positions after all records given out, processed or not."""
    return offsets._changed(offsets._assignment.position, only)


def _set_once(set_timers: Any) -> Any:
    def set_new(decisions: Any, *arguments: Any, is_new: bool) -> None:
        if is_new:
            set_timers(decisions, *arguments, is_new=True)

    return set_new


def _kept(_shard: GroupShard, _group: str, _member: str, _number: int) -> None:
    """Hold on to the heartbeat."""


def _from_the_end(placed: Any) -> Any:
    def begin(offsets: Any, state: Any, row: Any) -> None:
        """Begin a record too late."""
        placed(offsets, state, row)
        if state.reset is None and row.offset > 0:
            offsets._assignment.jump(state, row.offset + 1)

    return begin


def _changed_beside_the_log(expire: Any) -> Any:
    def forget(shard: Any, timer: Any, *arguments: Any) -> Any:
        decision = expire(shard, timer, *arguments)
        for record in decision.records[:-1]:
            shard.replay(record, position=0, producer=None)
        return type(decision)(None)

    return forget


async def _join_unheard(membership: Any) -> None:
    """`GroupMembership.join` without a word that the application is alive."""
    if not membership._tasks:
        await _JOIN(membership)
        return
    membership._report.set()
    while membership._member.has_report and membership._error is None:
        await membership._answered.wait()
    await membership.poll()


_JOIN: Final = GroupMembership.join


def _forgets_subscription(answered: Any) -> Any:
    def answer(member: GroupMember, request: Any, response: Any) -> None:
        """A report of owned partitions settles a subscription that changed meanwhile."""
        answered(member, request, response)
        if request.owned is not None and request.topics is None:
            member._reported = member._reporting

    return answer


BUGS: Final = (
    PlantedBug(
        name="own-clock",
        invariant="7",
        owner=Shard,
        attribute="moment",
        wrong=shell.by_own_clock(Shard.moment),
        seed=2,
    ),
    PlantedBug(
        name="own-dates",
        invariant="7",
        owner=Shard,
        attribute="moment",
        wrong=shell.dated_by_own_clock(Shard.moment),
        seed=32,
    ),
    PlantedBug("any-commit", "1", ConsumerGroup, "check_commit", _any_commit, 0),
    PlantedBug("any-epoch", "1", ConsumerGroup, "check_commit", _any_epoch, 0),
    PlantedBug("not-given-up", "1", ConsumerGroup, "holder", _free, 0),
    PlantedBug("sweeps-all", "2, lost", offsets, "_is_over", _always, 0),
    PlantedBug("one-replica", "2, lost", Shard, "_append", shell._committed_by_leader, 0),
    PlantedBug(
        "commits-unprocessed", "2, ahead", GroupOffsets, "processed_positions", _given_out, 0
    ),
    PlantedBug(
        "skips-a-record",
        "at least once",
        GroupOffsets,
        "_placed",
        _from_the_end(GroupOffsets._placed),
        1,
    ),
    PlantedBug("early-response", "6", Shard, "_waited", shell.answered_before_commit, 0),
    PlantedBug("failed-append", "6", Shard, "end", shell.going_on(Shard.end), 3),
    PlantedBug(
        "beside-the-log", "6", GroupShard, "expire", _changed_beside_the_log(GroupShard.expire), 1
    ),
    PlantedBug(
        "session-from-join",
        "no false expiry",
        ConsumerDecisions,
        "_set_timers",
        _set_once(ConsumerDecisions._set_timers),
        0,
    ),
    PlantedBug("held-for-good", "held heartbeats end", GroupShard, "release", _kept, 0),
    PlantedBug("late-commit", "2, back", OffsetTable, "_is_superseded", _never, 30),
    PlantedBug("deaf-subscribe", "groups converge", GroupMembership, "join", _join_unheard, 17),
    PlantedBug(
        "late-report", "no false fence", consumer_decisions, "_check_sequence", _any_sequence, 20201
    ),
    PlantedBug(
        "forgotten-subscription",
        "groups converge",
        GroupMember,
        "answered",
        _forgets_subscription(GroupMember.answered),
        21482,
    ),
)


def bug(name: str) -> PlantedBug:
    """The bug of that name."""
    return next(each for each in BUGS if each.name == name)


def find(name: str, seed: int) -> str | None:
    """What the history finds of the planted bug, if anything."""
    return runner.finding(bug(name).planted(), replay, seed)


if __name__ == "__main__":
    sys.exit(runner.run_planted([each.name for each in BUGS], find, sys.argv[1:]))
