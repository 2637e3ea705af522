from __future__ import annotations

from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.segments.scan import Expectation, Stop, find_later_batch, scan
from raftlog.world import File
from tests.record.batches import stamped
from tests.simulation.disk import SimulatedDisk
from tests.storage.logs import batch


def stored(base_offset: int, *values: bytes, epoch: int = 1) -> bytes:
    """A batch as stored in a segment."""
    return b"".join(stamped(batch(list(values)), Offset(base_offset), LeaderEpoch(epoch)))


def file_of(content: bytes) -> File:
    disk = SimulatedDisk()
    disk.put("f", content)
    return disk.open("f")


def expect(offset: int = 0, epoch: int = -1, gaps_below: int = 0) -> Expectation:
    return Expectation(Offset(offset), LeaderEpoch(epoch), Offset(gaps_below))


def run(content: bytes, expected: Expectation, position: int = 0) -> tuple[list[int], Stop, int]:
    """Base offsets visited, and the reason and place of the stop."""
    visited: list[int] = []
    end = scan(
        file_of(content),
        position,
        len(content),
        expected,
        lambda _, header: visited.append(header.base_offset),
    )
    return visited, end.stop, end.position


def test_batches_of_all_sizes_are_visited_to_the_end() -> None:
    content = stored(0, b"a") + stored(1, b"x" * (3 << 20)) + stored(2, b"b", b"c")
    assert run(content, expect()) == ([0, 1, 2], Stop.END, len(content))
    first = len(stored(0, b"a"))
    assert run(content, expect(1), first) == ([1, 2], Stop.END, len(content))


def test_what_cannot_follow_stops_the_scan() -> None:
    one = stored(0, b"a")
    for second in (
        stored(2, b"gap"),
        stored(0, b"back"),
        stored(1, b"old epoch", epoch=0),
        bytes(100),
        b"\xff" * 100,
    ):
        assert run(one + second, expect()) == ([0], Stop.INVALID, len(one))


def test_compaction_may_leave_gaps_and_only_it() -> None:
    content = stored(0, b"a") + stored(5, b"b") + stored(9, b"c")
    assert run(content, expect(gaps_below=10)) == ([0, 5, 9], Stop.END, len(content))
    assert run(content, expect(gaps_below=9))[:2] == ([0, 5], Stop.INVALID)


def test_a_file_that_ends_early_is_incomplete_unless_its_bytes_say_otherwise() -> None:
    one, two = stored(0, b"a"), stored(1, b"b")
    for size in range(1, len(two)):
        assert run(one + two[:size], expect())[1] is Stop.INCOMPLETE
    assert run(one + b"\0" * 8, expect())[1] is Stop.INVALID
    longer = bytearray(two)
    longer[11] += 1
    assert run(one + bytes(longer), expect())[1] is Stop.INVALID


def test_a_later_batch_is_found_anywhere_behind_an_invalid_one() -> None:
    broken = bytearray(stored(7, b"broken"))
    broken[40] ^= 1
    for rubbish in (b"", b"\0", b"\0\0\0\0\0" * 9, b"\2" * 100):
        content = bytes(broken) + rubbish + stored(8, b"later")
        assert find_later_batch(file_of(content), 0, len(content), Offset(7)) == 8
    for content in (bytes(broken), bytes(broken) + stored(3, b"older"), b"", bytes(500)):
        assert find_later_batch(file_of(content), 0, len(content), Offset(7)) is None


def test_a_later_batch_is_found_across_a_carry_of_its_offset() -> None:
    before = (1 << 24) - 1
    content = b"\1" * 61 + stored(before + 1, b"later")
    assert find_later_batch(file_of(content), 0, len(content), Offset(before)) == before + 1
