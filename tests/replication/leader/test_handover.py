"""When a leader that does not reach its followers hands over."""

from __future__ import annotations

import pytest

from raftlog.metadata.image import BrokerImage, PartitionImage
from raftlog.record.types import BrokerId, LeaderEpoch, PartitionEpoch, PartitionId, TopicId
from raftlog.replication.leader.handover import MEMORY_S, PATIENCE_S_MAX, Handovers, successor
from tests.replication.leader.test_state import broker, ids

KEY = (TopicId("0" * 32), PartitionId(0))


def row(
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    *,
    leader: int = 1,
    replicas: tuple[int, ...] = (1, 2, 3),
) -> PartitionImage:
    return PartitionImage(
        partition=PartitionId(0),
        replicas=ids(*replicas),
        isr=ids(*isr),
        elr=ids(*elr),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
    )


def brokers(*dead: int) -> dict[BrokerId, BrokerImage]:
    return {BrokerId(n): broker(n, fenced=n in dead) for n in (1, 2, 3, 4)}


@pytest.mark.parametrize(
    ("isr", "elr", "minimum", "attached", "dead", "expected"),
    [
        # Enough in sync.
        ((1, 2), (), 2, (2,), (), None),
        ((1,), (), 1, (), (), None),
        # Neither follower is reached.
        ((1,), (2, 3), 2, (), (), 2),
        ((1,), (3,), 2, (), (), 3),
        ((1,), (), 2, (), (), None),
        # One follower is slow, the other one not reached: the slow one reaches both.
        ((1,), (2, 3), 2, (2,), (), 2),
        ((1,), (2, 3), 2, (2, 3), (), None),
        # A dead follower reaches no other.
        ((1,), (2, 3), 2, (), (2,), None),
        ((1,), (2, 3), 2, (), (2, 3), None),
        # The minimum is met only by the one that reaches this leader.
        ((1, 2), (3,), 3, (2,), (), 2),
        ((1,), (2, 3), 3, (), (), None),
        # A minimum above the number of replicas.
        ((1, 2), (3,), 5, (2,), (), 2),
    ],
)
def test_successor(  # noqa: PLR0917 - one row of the table
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    minimum: int,
    attached: tuple[int, ...],
    dead: tuple[int, ...],
    expected: int | None,
) -> None:
    found = successor(
        row(isr, elr),
        min_insync_replicas=minimum,
        brokers=brokers(*dead),
        attached=set(ids(*attached)),
    )
    assert found == expected


def test_all_replicas_get_their_turn() -> None:
    leader, tried = 1, []
    for _ in range(6):
        others = tuple(n for n in (3, 1, 2) if n != leader)
        found = successor(
            row((leader,), others, leader=leader, replicas=(3, 1, 2)),
            min_insync_replicas=2,
            brokers=brokers(),
            attached=(),
        )
        assert found is not None
        leader = found
        tried.append(leader)
    assert tried == [2, 3, 1, 2, 3, 1]


def test_patience_doubles_and_comes_back() -> None:
    handovers, now, waits = Handovers(), 0.0, []
    for epoch in range(10):
        since = now
        while not handovers.is_due(KEY, LeaderEpoch(epoch), BrokerId(2), now=now, patience_s=2.0):
            now += 0.5
        waits.append(now - since)
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, PATIENCE_S_MAX, PATIENCE_S_MAX]
    now += MEMORY_S + 1
    assert not handovers.is_due(KEY, LeaderEpoch(99), BrokerId(2), now=now, patience_s=2.0)
    assert handovers.is_due(KEY, LeaderEpoch(99), BrokerId(2), now=now + 2, patience_s=2.0)


def test_patience_begins_anew_after_a_break_or_in_a_new_epoch() -> None:
    handovers = Handovers()

    def is_due(now: float, *, candidate: int | None = 2, epoch: int = 0) -> bool:
        chosen = None if candidate is None else BrokerId(candidate)
        return handovers.is_due(KEY, LeaderEpoch(epoch), chosen, now=now, patience_s=2.0)

    assert not is_due(0)
    assert not is_due(1.5, candidate=None)
    assert not is_due(2)
    assert not is_due(3, epoch=1)
    handovers.retain([], 4)
    assert not is_due(5, epoch=1)
    assert is_due(7, epoch=1)
