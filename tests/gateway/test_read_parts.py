"""The records taken into an answer, and the moves of positions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.api.instances import PlannedPosition, PositionMove
from raftlog.gateway.read_parts import Part, move_of, part_of, take
from raftlog.record.errors import OFFSET_OUT_OF_RANGE, LogError
from raftlog.record.types import Offset
from raftlog.rest.v2.instance_reads import Room


def part(offset: int = 0) -> Part:
    return part_of(PlannedPosition("orders", "id", 3, offset))


def body(first: int, *sizes: int) -> bytes:
    """Records of about these sizes in JSON; every second offset is a marker's."""
    rows = [{"offset": first + 2 * n, "value": "x" * size} for n, size in enumerate(sizes)]
    return json.dumps(rows).encode()


def taken(one: Part) -> list[int]:
    return [row["offset"] for row in json.loads(b"[%b]" % b",".join(one.pieces))]


def test_all_records_are_taken_while_there_is_room() -> None:
    answer, one = Room(1_000, 10), part()
    take(answer, one, body(0, 10, 10), 4)
    assert taken(one) == [0, 2]
    assert move_of(one) == PositionMove("id", 3, 0, Offset(4), -1)
    take(answer, one, b"[]", 9)
    assert one.offset == 9, "an offset without a record is passed"
    assert not answer.is_full


def test_the_position_moves_to_the_first_record_that_is_left_out() -> None:
    answer, one, other = Room(150, 10), part(), part()
    take(answer, one, body(0, 50, 50, 50), 6)
    assert taken(one) == [0]
    assert one.offset == 2
    assert answer.is_full
    assert not other.has_moved


def test_a_first_record_is_taken_however_large() -> None:
    answer, one = Room(10, 10), part()
    take(answer, one, body(0, 5_000, 1), 4)
    assert taken(one) == [0]
    assert one.offset == 2


def test_the_number_of_records_is_bounded() -> None:
    answer, one = Room(10_000, 2), part()
    take(answer, one, body(0, 1, 1, 1), 6)
    assert taken(one) == [0, 2]
    assert one.offset == 4
    assert answer.is_full


@pytest.mark.parametrize("content", [b"", b"{}", b"[1", b"\xff"])
def test_what_is_no_array_is_an_error_and_moves_nothing(content: bytes) -> None:
    one = part(5)
    with pytest.raises(LogError, match="orders-3"):
        take(Room(10, 10), one, content, 7)
    assert not one.has_moved


async def test_a_reset_is_part_of_the_move() -> None:
    one = part(-1)
    assert not one.has_moved
    begins = [5, 7]
    reads = iter([LogError(OFFSET_OUT_OF_RANGE), None])

    async def first() -> int:
        return begins.pop(0)

    async def records() -> int:
        if (error := next(reads)) is not None:
            raise error
        return take(Room(100, 10), one, b"[]", one.offset)

    await one.read(first, records)
    assert move_of(one) == PositionMove("id", 3, -1, Offset(7), 7)
    take(Room(100, 10), one, body(7, 1), 9)
    assert move_of(one) == PositionMove("id", 3, -1, Offset(9), 7)


@given(
    st.lists(st.lists(st.integers(0, 200), max_size=6), max_size=6),
    st.integers(1, 600),
    st.integers(1, 12),
)
def test_answers_are_prefixes_within_their_bounds(
    chunks: list[list[int]], bytes_max: int, records_max: int
) -> None:
    """Over any chunks: the taken records are a prefix, the position is right behind."""
    answer, one = Room(bytes_max, records_max), part()
    offset, written = 0, []
    for sizes in chunks:
        if answer.is_full:
            break
        written += [offset + 2 * n for n in range(len(sizes))]
        following = offset + 2 * len(sizes)
        take(answer, one, body(offset, *sizes), following)
        offset = following
        found = taken(one)
        assert found == written[: len(found)]
        rest = written[len(found) :]
        assert one.offset == (rest[0] if rest else following)
        assert len(found) == answer.count <= records_max
        assert answer.size_bytes <= bytes_max or answer.count == 1
        assert not rest or answer.is_full
