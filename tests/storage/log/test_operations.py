from __future__ import annotations

from collections.abc import Sequence

import pytest

from raftlog.record.types import Offset
from raftlog.storage.log.operations import UNPUBLISHED_SNAPSHOTS_MAX, outdated_snapshots


@pytest.mark.parametrize(
    ("known", "published", "newest", "outdated"),
    [
        ([5], 0, 5, []),
        ([1, 2, 3, 4], 2, 4, []),
        ([1, 2, 3, 4], 3, 4, [1]),
        ([1, 2, 3, 4], 4, 4, [1, 2]),
        # A truncation has lowered the published recovery point, which has no snapshot.
        ([1, 2, 9], 3, 9, [1]),
    ],
)
def test_what_the_checkpoint_file_may_name_stays(
    known: Sequence[int], published: int, newest: int, outdated: Sequence[int]
) -> None:
    offsets = [Offset(offset) for offset in known]
    committed = Offset(0)
    assert outdated_snapshots(offsets, Offset(published), committed, Offset(newest)) == outdated


@pytest.mark.parametrize(("committed", "outdated"), [(0, [1, 2, 3]), (2, [1, 3]), (3, [1, 2])])
def test_one_stays_from_which_any_truncation_can_rebuild(
    committed: int, outdated: Sequence[int]
) -> None:
    offsets = [Offset(offset) for offset in (1, 2, 3, 4, 5)]
    assert outdated_snapshots(offsets, Offset(5), Offset(committed), Offset(5)) == outdated


def test_a_checkpoint_file_that_cannot_be_written_does_not_pile_up_snapshots() -> None:
    offsets = [Offset(offset) for offset in range(1, 500)]
    outdated = outdated_snapshots(offsets, Offset(1), Offset(0), Offset(499))
    assert Offset(1) not in outdated
    assert Offset(499) not in outdated
    assert len(offsets) - len(outdated) == UNPUBLISHED_SNAPSHOTS_MAX + 2
