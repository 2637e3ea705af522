"""Which producers may start anywhere: none behind an undecided or rejected batch."""

from __future__ import annotations

import pytest

from raftlog.broker import first_sequences
from raftlog.broker.first_sequences import REJECTED_S, FirstSequences, Place
from raftlog.record.types import PartitionId, ProducerId

TOPIC_ID = "0" * 31 + "1"
PLACE: Place = (ProducerId(7), "t", PartitionId(0))
BY_ID: Place = (ProducerId(7), TOPIC_ID, PartitionId(0))


def begins(firsts: FirstSequences, sequence: int, now: float = 0.0, place: Place = PLACE) -> bool:
    """Whether the batch may start anywhere. It is written."""
    may_start = firsts.begin(place, TOPIC_ID, sequence, now)
    firsts.end(place, TOPIC_ID, sequence, is_written=True)
    return may_start


def test_a_lone_batch_may_start_anywhere_and_leaves_nothing() -> None:
    firsts = FirstSequences()
    assert begins(firsts, 5)
    assert begins(firsts, 9)
    assert not len(firsts)


def test_a_batch_behind_an_undecided_batch_may_not() -> None:
    firsts = FirstSequences()
    assert firsts.begin(PLACE, TOPIC_ID, 5, 0.0)
    assert not firsts.begin(PLACE, TOPIC_ID, 6, 0.0)
    assert begins(firsts, 6, place=(ProducerId(8), "t", PartitionId(0)))
    assert begins(firsts, 6, place=(ProducerId(7), "t", PartitionId(1)))
    firsts.end(PLACE, TOPIC_ID, 5, is_written=True)
    assert not begins(firsts, 7)
    firsts.end(PLACE, TOPIC_ID, 6, is_written=True)
    assert begins(firsts, 8)
    assert not len(firsts)


@pytest.mark.parametrize("rejected", [PLACE, BY_ID])
def test_a_batch_behind_a_rejected_batch_may_not_until_that_is_written(rejected: Place) -> None:
    firsts = FirstSequences()
    firsts.reject(rejected, TOPIC_ID, 5, 0.0)
    assert not begins(firsts, 6, 1.0)
    # Its own rejection does not take the place of the first.
    firsts.reject(PLACE, TOPIC_ID, 6, 1.0)
    assert begins(firsts, 5, 2.0)
    assert not len(firsts)
    assert begins(firsts, 6, 3.0)


def test_a_rejection_counts_for_a_while() -> None:
    firsts = FirstSequences()
    firsts.reject(PLACE, TOPIC_ID, 5, 0.0)
    assert not begins(firsts, 6, REJECTED_S - 0.1)
    assert begins(firsts, 6, REJECTED_S)
    firsts.reject(PLACE, TOPIC_ID, 8, REJECTED_S)
    assert not begins(firsts, 9, REJECTED_S + 1)
    assert begins(firsts, 8, REJECTED_S + 1)


def test_rejections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_sequences, "REJECTED_MAX", 3)
    firsts = FirstSequences()
    for producer in range(5):
        firsts.reject((ProducerId(producer), "t", PartitionId(0)), TOPIC_ID, 1, float(producer))
    assert len(firsts) == 3
    places: list[Place] = [(ProducerId(producer), "t", PartitionId(0)) for producer in range(5)]
    assert [begins(firsts, 2, 5.0, place) for place in places] == [True] * 2 + [False] * 3
