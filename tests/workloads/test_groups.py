"""The settled state of a measured group, and its gaps of delivery."""

from __future__ import annotations

import asyncio
import time

import pytest
from raftlog_client import TopicPartition

from raftlog.workloads.groups import MeasuredGroup


def group(members: int, partitions: int) -> MeasuredGroup:
    """A group of members without connections."""
    made = MeasuredGroup("127.0.0.1:9", "t", partitions, "g", with_load=False)
    made.members += [made.new_member() for _ in range(members)]
    return made


def own(made: MeasuredGroup, *shares: tuple[int, ...]) -> None:
    for member, numbers in zip(made.members, shares, strict=True):
        member.on_partitions_revoked(set(member.owned))
        member.on_partitions_assigned([TopicPartition("t", number) for number in numbers])


@pytest.mark.parametrize(
    ("shares", "is_settled"),
    [
        (((0, 1), (2, 3)), True),
        (((0, 1, 2), (3,)), False),
        (((0, 1), (2,)), False),
        (((0, 1), (1, 2)), False),
        (((0, 1, 2, 3), ()), True),
        (((), ()), False),
    ],
    ids=["equal", "unequal", "one without owner", "two owners", "one member", "no members"],
)
async def test_settled_means_every_partition_once_in_equal_shares(
    shares: tuple[tuple[int, ...], ...], is_settled: bool
) -> None:
    made = group(2, 4)
    own(made, *shares)
    assert made.is_settled() is is_settled
    # Beside members of other processes only the own share is known.
    own(made, (0,), ())
    assert made.is_settled(others=3)
    assert not made.is_settled(others=1)


async def test_waiting_ends_with_the_change_that_settles() -> None:
    made = group(1, 2)
    waiting = asyncio.ensure_future(made.settled())
    own(made, (0,))
    await asyncio.sleep(0)
    assert not waiting.done()
    own(made, (0, 1))
    assert await waiting <= time.perf_counter()
    assert made.owners() == dict.fromkeys((0, 1), made.members[0])


async def test_gap_under_way_counts_and_one_before_is_forgotten() -> None:
    made = group(1, 2)
    made.delivered(0)
    made.delivered(1)
    time.sleep(0.02)  # noqa: ASYNC251 - the passing time is the case
    assert made.gaps([0]) >= 0.02
    made.delivered(0)
    assert 0.02 <= made.gaps([0]) < made.gaps([1]) + 0.02
    made.forget_gaps()
    assert made.gaps([0]) < 0.02 <= made.gaps([1])
    assert made.gaps([]) == 0
