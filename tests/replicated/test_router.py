"""The choice of a replica for reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_replicated.reads import POLICIES, Router
from raftlog_replicated.types import Member


def member(replica_id: str, position: int, endpoint: str | None = "host:1") -> Member:
    return Member(replica_id, endpoint, position, lag=0, is_primary=False)


MEMBERS = [member("b", 7), member("a", 7), member("d", 3), member("c", 3), member("e", 5)]


def test_most_updated_and_most_lagging_go_by_position_then_by_id() -> None:
    updated, lagging = Router("most_updated"), Router("most_lagging")
    for members in (MEMBERS, MEMBERS[::-1]):
        assert updated.choose(members) == member("a", 7)
        assert lagging.choose(members) == member("c", 3)


def test_any_takes_each_member_in_turn_as_members_come_and_go() -> None:
    router = Router()
    assert [chosen(router, "ab") for _ in range(3)] == ["a", "b", "a"]
    assert [chosen(router, "abc") for _ in range(3)] == ["b", "c", "a"]
    assert [chosen(router, "c") for _ in range(2)] == ["c", "c"]
    assert chosen(router, "ab") == "a"


def chosen(router: Router, names: str) -> str:
    found = router.choose(member(name, 1) for name in names)
    assert found is not None
    return found.replica_id


def test_a_member_without_an_endpoint_is_passed_over() -> None:
    for policy in POLICIES:
        router = Router(policy)
        assert router.choose([]) is None
        assert router.choose([member("a", 9, None)]) is None
        assert router.choose([member("a", 5, None), member("b", 5), member("c", 5, None)]) == (
            member("b", 5)
        )


def test_another_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="most_lagging"):
        Router("fastest")  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_no_member_is_further_or_more_behind_than_the_chosen_one(positions: list[int]) -> None:
    members = [member(str(number), position) for number, position in enumerate(positions)]
    updated = Router("most_updated").choose(members)
    lagging = Router("most_lagging").choose(members)
    assert updated is not None
    assert lagging is not None
    assert (updated.position, lagging.position) == (max(positions), min(positions))
