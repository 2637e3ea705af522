"""Replicas compacted apart: a record does not outlast a missed tombstone.

A model of three logs over the shipped rules: `DeletionHorizon`, `CompactionHistory`, `is_outrun`.
Each fetch subscribes again, as after a lost connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raftlog.record.errors import ILLEGAL_STATE, NOT_READY, LogError
from raftlog.record.types import BrokerId, LeaderEpoch, Offset
from raftlog.replication.follower.divergence import Outrun, is_outrun
from raftlog.replication.leader.state import LeaderState
from raftlog.replication.partition import Acks
from raftlog.storage.compaction.plan import NO_HORIZON, CompactionHistory, DeletionHorizon
from raftlog.storage.leader_epochs import LeaderEpochs
from tests.examples import examples
from tests.replication.pair import (
    BROKER_EPOCH,
    HandFeed,
    Node,
    attach,
    catch_up,
    nodes,
    one,
    restart,
    row,
)

REPLICAS = 3
KEYS = "ab"
APPENDED = st.lists(st.sampled_from(("a", "a", "b", "a-", "a-")), min_size=1, max_size=3)
"""Keys; those with a minus are tombstones."""
ROUNDS_MAX = 3
"""A truncation, a restart, and the records."""
RARELY = st.sampled_from((None, None, None, 1, 3, 6))


@dataclass(frozen=True)
class Written:
    """What was written at one offset."""

    epoch: int
    key: str
    is_tombstone: bool


@dataclass
class Log:
    """One replica's log."""

    written: list[Written] = field(default_factory=list)
    """All records up to the log's end, also those compacted away since."""
    kept: dict[int, Written] = field(default_factory=dict)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    compaction: CompactionHistory = field(default_factory=CompactionHistory)
    high_watermark: int = 0
    restarts: int = 0

    @property
    def end(self) -> int:
        return len(self.written)

    @property
    def horizon(self) -> DeletionHorizon:
        return self.compaction.horizon.within(self.epochs)

    def take(self, offset: int, written: Written, *, is_kept: bool) -> None:
        assert offset == self.end
        if not self.written or self.written[-1].epoch < written.epoch:
            self.epochs.assign(LeaderEpoch(written.epoch), Offset(offset))
        self.written.append(written)
        if is_kept:
            self.kept[offset] = written

    def common(self, other: Log) -> int:
        end = min(self.end, other.end)
        return next((at for at in range(end) if self.written[at] != other.written[at]), end)

    def truncate_to(self, end: int) -> None:
        if end < self.end:
            self.compaction = self.compaction.truncate_to(Offset(end), self.epochs)
            self.epochs.truncate_from_end(Offset(end))
            del self.written[end:]
            self.kept = {at: one for at, one in self.kept.items() if at < end}
            self.high_watermark = min(self.high_watermark, end)

    def restart(self, horizon: DeletionHorizon) -> None:
        self.truncate_to(0)
        self.compaction = CompactionHistory(known_horizon=horizon)
        self.restarts += 1

    def compact(
        self, held_from: int | None, interrupted_at: int | None
    ) -> set[tuple[int, Written]]:
        """A pass up to the high watermark; without retention time, so the next pass deletes.

        Returns the tombstones that a newer record of their key supersedes.
        """
        superseded: set[tuple[int, Written]] = set()
        end = self.high_watermark
        first_dirty = self.compaction.first_dirty_offset
        if end < first_dirty:
            return superseded
        due = self.compaction.deletable_before(0, 0)
        deletable = due if held_from is None else Offset(min(due, held_from))
        self.compaction = self.compaction.before_deleting(deletable, self.epochs)
        newest = {one.key: at for at, one in self.kept.items() if first_dirty <= at < end}
        waiting = 0
        for at in sorted(self.kept):
            if at >= (end if interrupted_at is None else interrupted_at):
                break
            one = self.kept[at]
            if newest.get(one.key, -1) > at:
                superseded |= {(at, one)} if one.is_tombstone else set()
                del self.kept[at]
            elif one.is_tombstone and at < deletable:
                del self.kept[at]
            elif one.is_tombstone:
                waiting += 1
        if interrupted_at is None:
            self.compaction = self.compaction.after(
                Offset(end),
                now_ms=0,
                delete_retention_ms=0,
                deleted_before=deletable,
                awaits_deletion=waiting > 0,
            )
        return superseded


class Replicas(RuleBasedStateMachine):
    """One partition. A record is committed on two of three replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = [Log() for _ in range(REPLICAS)]
        self.leader = 0
        self.epoch = 0
        self.committed = 0
        self.may_lose_values = False
        self.superseded: set[tuple[int, Written]] = set()
        """Tombstones compacted away for a newer record, which an unclean election may lose."""

    @property
    def led(self) -> Log:
        return self.logs[self.leader]

    @rule(appended=APPENDED)
    def append(self, appended: list[str]) -> None:
        for each in appended:
            written = Written(self.epoch, each[0], each.endswith("-"))
            self.led.take(self.led.end, written, is_kept=True)

    @rule(follower=st.integers(0, REPLICAS - 1), count=st.sampled_from((1, 2, 100, 100)))
    def fetch(self, follower: int, count: int) -> None:
        """Subscribe until the leader sends records."""
        answers = (self._fetch(follower, count) for _ in range(ROUNDS_MAX))
        assert any(answers), "it starts again and again"

    def _fetch(self, follower: int, count: int) -> bool:
        log, led = self.logs[follower], self.led
        if follower == self.leader:
            return True
        common = log.common(led)
        if common < log.end:
            log.truncate_to(common)
            return False
        if is_outrun(Offset(log.end), log.horizon, led.horizon):
            may_lack = self.may_lose_values or log.end < self.committed or not log.end
            assert may_lack, "a replica that may be elected"
            log.restart(led.horizon)
            return False
        for at in range(log.end, min(log.end + count, led.end)):
            log.take(at, led.written[at], is_kept=at in led.kept)
        ends = sorted(one.common(led) for one in self.logs)
        self.committed = max(self.committed, ends[-2])
        led.high_watermark = self.committed
        log.high_watermark = min(self.committed, log.end)
        return True

    @rule(
        replica=st.integers(0, REPLICAS - 1),
        passes=st.integers(1, 3),
        held_from=RARELY,
        interrupted_at=RARELY,
    )
    def compact(
        self, replica: int, passes: int, held_from: int | None, interrupted_at: int | None
    ) -> None:
        for _ in range(passes - 1):
            self.superseded |= self.logs[replica].compact(None, None)
        self.superseded |= self.logs[replica].compact(held_from, interrupted_at)

    @rule(replica=st.integers(0, REPLICAS - 1))
    def replace(self, replica: int) -> None:
        """Its files were damaged, or it moved to another node."""
        if replica != self.leader:
            self.logs[replica] = Log()

    @rule(replica=st.integers(0, REPLICAS - 1))
    def elect(self, replica: int) -> None:
        if self.logs[replica].common(self.led) >= self.committed:
            self._elect(replica)

    @rule(replica=st.integers(0, REPLICAS - 1))
    @precondition(lambda self: self.epoch > 1)
    def elect_uncleanly(self, replica: int) -> None:
        self.may_lose_values = True
        self._elect(replica)
        self.committed = self.led.end

    def _elect(self, replica: int) -> None:
        self.leader = replica
        self.epoch += 1
        for log in self.logs:
            # An epoch without records is no part of a log.
            log.epochs.truncate_from_end(Offset(log.end))
        self.led.epochs.assign(LeaderEpoch(self.epoch), Offset(self.led.end))

    @invariant()
    def no_key_is_back(self) -> None:
        for log in self.logs:
            if log.end < self.led.end or log.common(self.led) < log.end:
                continue
            for key in KEYS:
                held = [at for at, one in log.kept.items() if one.key == key]
                written = [at for at, one in enumerate(log.written) if one.key == key]
                if not written:
                    continue
                newest = log.written[written[-1]]
                if newest.is_tombstone:
                    if self.may_lose_values and (written[-1], newest) in self.superseded:
                        continue
                    assert not held or held[-1] == written[-1], f"{key} is back: {held}"
                elif not self.may_lose_values:
                    assert held, f"{key} is lost"
                    assert held[-1] == written[-1], f"{key} is old: {held}"


Replicas.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=60, deadline=None
)
TestReplicas = Replicas.TestCase


def test_an_unclean_election_may_lose_what_superseded_a_tombstone() -> None:
    """A copy of a compacted log that ends before the newer record of the key."""
    model = Replicas()
    model.append(["a", "a", "a-", "a", "b"])
    model.replace(1)
    model.fetch(2, 100)
    model.logs[1].take(0, model.led.written[0], is_kept=True)
    model.compact(0, 1, None, None)
    model.fetch(1, 2)
    model.no_key_is_back()
    model.elect_uncleanly(1)
    assert model.logs[1].kept == {0: model.logs[1].written[0]}
    model.no_key_is_back()


def replicas(*written: str) -> Replicas:
    """Replicas 0 and 1 have these records; 0 leads, and has deleted its tombstones."""
    model = Replicas()
    model.append(list(written))
    model.fetch(1, 100)
    model.compact(0, 2, None, None)
    assert model.led.horizon.offset == len(written)
    return model


def test_a_copy_of_a_log_without_a_tombstone_is_one_too() -> None:
    """It leads without any pass of its own."""
    model = Replicas()
    model.append(["a"])
    model.fetch(1, 100)
    model.fetch(2, 100)
    model.append(["a-"])
    model.fetch(1, 100)
    model.compact(0, 2, None, None)
    model.replace(1)
    model.fetch(1, 100)
    model.elect(1)
    model.fetch(2, 100)
    model.no_key_is_back()
    assert model.logs[2].restarts == 1


def test_a_copy_goes_on_with_its_leader_and_begins_again_with_another() -> None:
    """The second leader has more tombstones, and so older records of their keys."""
    model = replicas("b", "c-", "b", "a", "b", "a-", "b")
    model.fetch(2, 2)
    model.fetch(2, 1)
    assert (model.logs[2].end, model.logs[2].restarts) == (3, 1)
    model.elect(1)
    model.fetch(2, 2)
    model.elect(0)
    model.fetch(2, 100)
    model.no_key_is_back()
    assert model.logs[2].restarts == 3


def test_a_copy_begins_again_after_an_unclean_election() -> None:
    """The new history has a tombstone below the same offset."""
    model = replicas("b", "a", "c-", "b", "b")
    model.fetch(2, 2)
    model.replace(1)
    model.fetch(1, 2)
    model.elect_uncleanly(1)
    model.append(["b", "a-", "b"])
    model.fetch(0, 100)
    model.compact(1, 2, None, None)
    assert model.led.horizon.offset == model.logs[2].horizon.offset == 5
    model.fetch(2, 100)
    model.no_key_is_back()


def test_an_incomplete_copy_that_leads_has_no_horizon_beyond_its_own_records() -> None:
    model = replicas("b", "b", "c-", "b", "b", "b", "b", "b")
    model.fetch(2, 2)
    model.elect_uncleanly(2)
    model.append(["a", "a-", "b"])
    model.replace(1)
    model.fetch(1, 1)
    model.fetch(1, 1)
    model.fetch(1, 1)
    assert model.logs[1].end == 3
    model.fetch(0, 100)
    model.compact(2, 2, None, None)
    model.fetch(1, 100)
    model.no_key_is_back()
    assert model.logs[1].restarts == 2


def horizon(offset: int, epoch: int = 1) -> DeletionHorizon:
    return DeletionHorizon(Offset(offset), LeaderEpoch(epoch))


@pytest.mark.parametrize(
    ("end", "follower", "leader", "expected"),
    [
        (10, NO_HORIZON, NO_HORIZON, False),
        (10, NO_HORIZON, horizon(10), False),
        (10, NO_HORIZON, horizon(11), True),
        (0, NO_HORIZON, horizon(11), True),
        (10, horizon(5), horizon(9), False),
        (10, horizon(9), horizon(5), False),
        (10, horizon(20), horizon(20), False),
        (10, horizon(20), horizon(21), True),
        (10, horizon(20), horizon(20, epoch=2), True),
        (10, horizon(20), horizon(5), True),
    ],
    ids=[
        "nothing is gone",
        "at the horizon",
        "below the horizon",
        "a new replica",
        "both beyond their horizons",
        "a leader that has more tombstones",
        "a copy under way",
        "a copy that was outrun",
        "a copy of another history",
        "a copy, and a leader with more tombstones",
    ],
)
def test_a_follower_goes_on_only_where_no_tombstone_is_missing(
    end: int, follower: DeletionHorizon, leader: DeletionHorizon, expected: bool
) -> None:
    assert is_outrun(Offset(end), follower, leader) is expected


async def cluster() -> tuple[Node, Node, Node]:
    """Two replicas in sync at offset 3, and one that has stopped at 1."""
    first, second, third = nodes(1, 2, 3)
    image = row(1, 1, replicas=(1, 2, 3), isr=(1, 2))
    for node in (first, second, third):
        await node.open(image)
    for value, followers in ((b"a", (second, third)), (b"b", (second,)), (b"c", (second,))):
        await first.partition.append(one(value), acks=Acks.LEADER, timeout_s=60)
        await first.partition.log.flush()
        for follower in followers:
            await catch_up(first, follower)
    assert first.partition.high_watermark == 3
    return first, second, third


def delete_tombstones(node: Node, before: int) -> None:
    """As a pass of compaction does, right before the first one goes."""
    node.partition.log.raise_deletion_horizon(CompactionHistory(known_horizon=horizon(before)))


async def test_a_pass_ends_the_feeds_of_the_followers_that_it_outruns() -> None:
    first, second, third = await cluster()
    in_sync, slow = attach(first, second), attach(first, third)
    delete_tombstones(first, 3)
    assert in_sync.ended_by is None
    assert slow.ended_by is not None
    assert slow.ended_by.entry is NOT_READY
    answer = first.partition.attach(slow, third.partition.follower_role.position())
    assert answer == Outrun(Offset(0))


async def test_a_follower_that_was_outrun_starts_again_and_goes_on() -> None:
    first, _, third = await cluster()
    delete_tombstones(first, 2)
    await restart(first, third, Offset(0), is_outrun=True)
    assert third.partition.log_end_offset == 0
    assert third.partition.log.deletion_horizon == horizon(2)
    # The copy goes on after the connection was lost, until a pass outruns it once more.
    attach(first, third)
    delete_tombstones(first, 3)
    answer = first.partition.attach(HandFeed(BrokerId(3)), third.partition.follower_role.position())
    assert answer == Outrun(Offset(0))
    await catch_up(first, third)
    assert await third.values() == [b"a", b"b", b"c"]
    assert third.partition.log.deletion_horizon == horizon(3)


async def test_a_replica_that_may_be_elected_does_not_start_again() -> None:
    first, second, third = await cluster()
    third.partition.update(row(1, 1, replicas=(1, 2, 3), isr=(1, 2, 3), partition_epoch=11), 2)
    for follower in (second, third):
        with pytest.raises(LogError) as refused:
            await restart(first, follower, Offset(0), is_outrun=True)
        assert refused.value.entry is ILLEGAL_STATE
    assert await third.values() == [b"a"]


async def test_the_leader_waits_with_tombstones_for_a_follower_that_moves() -> None:
    first, second, third = await cluster()
    role = first.partition.require_leader()
    assert role.tombstones_held_from() == 1
    await catch_up(first, third)
    assert role.tombstones_held_from() == 3
    assert first.partition.log.tombstone_hold is role
    assert second.partition.log.tombstone_hold is None, "a follower has no followers"


def test_a_follower_that_does_not_move_is_waited_for_so_long() -> None:
    state = LeaderState(BrokerId(1), row(1, 1, replicas=(1, 2, 3)), epoch_start=Offset(9), now=0.0)
    assert state.slowest_end(60.0, 60.0) == 0, "none has acknowledged yet"

    def ack(broker_id: int, durable_end: int, now: float) -> None:
        state.acked(
            BrokerId(broker_id),
            BROKER_EPOCH,
            durable_end=Offset(durable_end),
            log_start_offset=Offset(0),
            log_end=Offset(9),
            now=now,
        )

    ack(2, 5, 10.0)
    ack(3, 7, 20.0)
    assert state.slowest_end(70.0, 60.0) == 5
    ack(2, 5, 50.0)
    assert state.slowest_end(80.0, 60.0) == 7, "the second one acknowledges, and does not move"
    assert state.slowest_end(80.1, 60.0) is None
    ack(2, 0, 90.0)
    assert state.slowest_end(90.0, 60.0) == 0, "it has started again"
