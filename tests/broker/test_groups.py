"""The choice of offsets that a request names."""

from __future__ import annotations

from raftlog.broker.groups import FetchedOffset, _chosen

COUNT = 1_000


class ComparedNumber(int):
    """A partition's number that counts the comparisons with others."""

    comparisons = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        ComparedNumber.comparisons += 1
        return int.__eq__(self, other)


def test_an_offset_is_not_compared_with_all_numbers_of_a_request() -> None:
    """9,900 numbers beside 2,000 offsets held the event loop for 0.2 s."""
    offsets = [FetchedOffset("t", number, 1) for number in range(COUNT)]
    wanted = {"t": [ComparedNumber(number) for number in reversed(range(COUNT))]}
    assert list(_chosen(offsets, wanted)) == offsets
    assert ComparedNumber.comparisons <= 2 * COUNT
    assert list(_chosen(offsets, {"t": None, "other": [0]})) == offsets
    assert list(_chosen(offsets, {"t": [7]})) == [offsets[7]]
