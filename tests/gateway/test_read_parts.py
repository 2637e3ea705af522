"""The records taken into an answer, and the moves of positions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.api.instances import PlannedPosition, PositionMove
from raftlog.gateway.read_parts import AnswerBounds, Part
from raftlog.record.errors import LogError
from raftlog.record.types import Offset


def part(offset: int = 0) -> Part:
    return Part(PlannedPosition("orders", "id", 3, offset))


def body(first: int, *sizes: int) -> bytes:
    """Records of about these sizes in JSON; every second offset is a marker's."""
    rows = [{"offset": first + 2 * n, "value": "x" * size} for n, size in enumerate(sizes)]
    return json.dumps(rows).encode()


def taken(one: Part) -> list[int]:
    return [row["offset"] for row in json.loads(b"[%b]" % b",".join(one.pieces))]


def test_all_records_are_taken_while_there_is_room() -> None:
    answer, one = AnswerBounds(1_000, 10), part()
    answer.take(one, body(0, 10, 10), 4)
    assert taken(one) == [0, 2]
    assert one.move == PositionMove("id", 3, 0, Offset(4), -1)
    answer.take(one, b"[]", 9)
    assert one.offset == 9, "an offset without a record is passed"
    assert not answer.is_full


def test_the_position_moves_to_the_first_record_that_is_left_out() -> None:
    answer, one, other = AnswerBounds(150, 10), part(), part()
    answer.take(one, body(0, 50, 50, 50), 6)
    assert taken(one) == [0]
    assert one.offset == 2
    assert answer.is_full
    assert other.move is None


def test_a_first_record_is_taken_however_large() -> None:
    answer, one = AnswerBounds(10, 10), part()
    answer.take(one, body(0, 5_000, 1), 4)
    assert taken(one) == [0]
    assert one.offset == 2


def test_the_number_of_records_is_bounded() -> None:
    answer, one = AnswerBounds(10_000, 2), part()
    answer.take(one, body(0, 1, 1, 1), 6)
    assert taken(one) == [0, 2]
    assert one.offset == 4
    assert answer.is_full


@pytest.mark.parametrize("content", [b"", b"{}", b"[1", b"\xff"])
def test_what_is_no_array_is_an_error_and_moves_nothing(content: bytes) -> None:
    one = part(5)
    with pytest.raises(LogError, match="orders-3"):
        AnswerBounds(10, 10).take(one, content, 7)
    assert one.move is None


def test_a_reset_is_part_of_the_move() -> None:
    one = part(-1)
    assert one.move is None
    one.reset(7)
    assert one.move == PositionMove("id", 3, -1, Offset(7), 7)
    AnswerBounds(100, 10).take(one, body(7, 1), 9)
    assert one.move == PositionMove("id", 3, -1, Offset(9), 7)


@given(
    st.lists(st.lists(st.integers(0, 200), max_size=6), max_size=6),
    st.integers(1, 600),
    st.integers(1, 12),
)
def test_answers_are_prefixes_within_their_bounds(
    chunks: list[list[int]], bytes_max: int, records_max: int
) -> None:
    """Over any chunks: the taken records are a prefix, the position is right behind."""
    answer, one = AnswerBounds(bytes_max, records_max), part()
    offset, written = 0, []
    for sizes in chunks:
        if answer.is_full:
            break
        written += [offset + 2 * n for n in range(len(sizes))]
        following = offset + 2 * len(sizes)
        answer.take(one, body(offset, *sizes), following)
        offset = following
        found = taken(one)
        assert found == written[: len(found)]
        rest = written[len(found) :]
        assert one.offset == (rest[0] if rest else following)
        assert len(found) == answer.count <= records_max
        assert answer.size_bytes <= bytes_max or answer.count == 1
        assert not rest or answer.is_full
