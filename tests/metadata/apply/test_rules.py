from __future__ import annotations

import pytest

from raftlog.metadata.apply.rules import in_order, min_isr_in_force, next_elr
from raftlog.metadata.image import PartitionImage
from raftlog.record.types import BrokerId, LeaderEpoch, PartitionEpoch, PartitionId


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def row(isr: tuple[BrokerId, ...], elr: tuple[BrokerId, ...] = ()) -> PartitionImage:
    return PartitionImage(
        partition=PartitionId(0),
        replicas=ids(3, 1, 2),
        isr=isr,
        elr=elr,
        leader=isr[0] if isr else BrokerId(-1),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
    )


def test_members_come_in_the_order_of_the_replicas() -> None:
    replicas = ids(3, 1, 2)
    assert in_order(replicas, {BrokerId(2), BrokerId(3)}) == (3, 2)
    assert in_order(replicas, ids(1, 2, 3)) is replicas


@pytest.mark.parametrize(
    ("own", "cluster", "expected"),
    [
        (None, None, 2),
        (None, "3", 3),
        ("1", "3", 1),
        ("0", None, 1),
        ("-1", None, 1),
        ("x", "3", 1),
        ("\N{SUPERSCRIPT TWO}", None, 1),
        ("9" * 11, None, 1),
    ],
)
def test_minimum_is_the_topics_else_the_clusters_else_the_commands(
    own: str | None, cluster: str | None, expected: int
) -> None:
    name = "min.insync.replicas"
    configs = {} if own is None else {name: own}
    settings = {} if cluster is None else {name: cluster}
    assert min_isr_in_force(configs, settings, 2) == expected


def test_no_member_is_eligible_beside_a_large_enough_isr() -> None:
    before = row(ids(3), ids(1))
    assert next_elr(before, replicas=before.replicas, isr=ids(3, 2), min_isr=2) == ()


def test_member_that_leaves_a_too_small_isr_stays_eligible() -> None:
    before = row(ids(3, 1, 2))
    assert next_elr(before, replicas=before.replicas, isr=ids(1), min_isr=2) == (3, 2)
    before = row(ids(3), ids(1))
    assert next_elr(before, replicas=before.replicas, isr=(), min_isr=2) == (3, 1)


def test_last_member_stays_eligible_whatever_the_minimum() -> None:
    before = row(ids(1))
    assert next_elr(before, replicas=before.replicas, isr=(), min_isr=1) == (1,)


def test_full_isr_has_no_elr_however_large_the_minimum() -> None:
    before = row(ids(3, 1))
    assert next_elr(before, replicas=ids(3, 1), isr=ids(3, 1), min_isr=5) == ()


def test_not_eligible_are_left_out_and_so_are_former_replicas() -> None:
    before = row(ids(3, 1, 2))
    assert next_elr(before, replicas=ids(3, 1), isr=(), min_isr=2) == (3, 1)
    elr = next_elr(before, replicas=ids(3, 1, 2), isr=(), min_isr=2, not_eligible=ids(1))
    assert elr == (3, 2)
