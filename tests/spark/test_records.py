"""The starts of records: every walk finds the same."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_spark.codec import records as parsing
from raftlog_spark.codec.records import Bodies, record_starts
from raftlog_spark.codec.varints import CorruptBatchError, Window

from raftlog.record.batch import iterate_batches
from raftlog.record.codec import RecordTuple
from raftlog.record.header import HEADER_SIZE
from tests.record.batches import encoded
from tests.record.wire import encode_batches
from tests.spark.raw import lanes_everywhere, logs, raw_log

CHANCE_SEED = 5


def bodies_of(data: bytes) -> Bodies:
    columns = []
    position = 0
    for batch in iterate_batches(data):
        header = batch.header
        start, position = position + HEADER_SIZE, position + header.size_bytes
        columns.append((start, position, header.record_count, header.last_offset_delta + 1))
    return Bodies(*np.array(columns, np.int64).T)


def by_steps(data: bytes) -> list[int]:
    bodies = bodies_of(data)
    return parsing._walk_each(Window(data), bodies, range(len(bodies.starts)))


def batches(values: list[bytes], batch_bytes: int = 100_000) -> bytes:
    rows = ((1_700_000_000_000 + n // 3, None, value, None) for n, value in enumerate(values))
    return b"".join(batch.data for batch in encode_batches(rows, size_bytes_max=batch_bytes))


def values(kind: str, count: int) -> list[bytes]:
    chance = random.Random(CHANCE_SEED)
    match kind:
        case "one size":
            return [b"x" * 100] * count
        case "random":
            return [chance.randbytes(chance.randrange(300)) for _ in range(count)]
        case "zeros":
            return [bytes(chance.randrange(300)) for _ in range(count)]
        case "long tail":
            return [chance.randbytes(int(chance.expovariate(1 / 200))) for _ in range(count)]
        case "some large":
            return [bytes(chance.choice([50, 50, 50, 20_000])) for _ in range(count)]
        case _:
            # Values that are themselves records, of this very batch's shape.
            inner = encoded([(1_700_000_000_000, None, b"y" * 30, None)] * 3000)[HEADER_SIZE:]
            return [inner[start : start + 3000] for start in range(0, 3000 * 36, 300)]


KINDS = ["one size", "random", "zeros", "long tail", "some large", "records within"]


class TestRecordStarts:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("batch_bytes", [5_000, 100_000, 2_000_000])
    def test_lanes_find_what_steps_find(self, kind: str, batch_bytes: int) -> None:
        data = batches(values(kind, 4000), batch_bytes)
        assert record_starts(Window(data), bodies_of(data)).tolist() == by_steps(data)

    @pytest.mark.parametrize("kind", ["one size", "random", "zeros", "long tail"])
    def test_guesses_are_good(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        data = batches(values(kind, 4000))
        walked: list[int] = []
        step_by_step = parsing._walk_each

        def counting(window: Window, bodies: Bodies, which: range | list[int]) -> list[int]:
            walked.extend(which)
            return step_by_step(window, bodies, which)

        monkeypatch.setattr(parsing, "_walk_each", counting)
        record_starts(Window(data), bodies_of(data))
        assert walked == []

    @given(log=logs)
    def test_small_batches_in_lanes(self, log: list[tuple[list[RecordTuple], object]]) -> None:
        data = raw_log([(records, kind._replace(compression=0)) for records, kind in log])  # type: ignore[attr-defined]
        with lanes_everywhere():
            assert record_starts(Window(data), bodies_of(data)).tolist() == by_steps(data)

    @pytest.mark.parametrize("change", [1, -1])
    def test_a_count_that_is_wrong_is_found(self, change: int) -> None:
        data = batches(values("random", 4000))
        bodies = bodies_of(data)
        bodies.counts[3] += change
        with pytest.raises(CorruptBatchError):
            record_starts(Window(data), bodies)

    @given(place=st.integers(0, 399_999))
    def test_a_length_that_is_wrong_is_found_or_walked_alike(self, place: int) -> None:
        data = bytearray(batches([b"x" * 100] * 3600, 2_000_000))
        data[61 + place % (len(data) - 61)] ^= 6
        bodies = bodies_of(bytes(batches([b"x" * 100] * 3600, 2_000_000)))
        try:
            expected: object = parsing._walk_each(Window(data), bodies, range(1))
        except CorruptBatchError as error:
            expected = str(error)
        try:
            found: object = record_starts(Window(data), bodies).tolist()
        except CorruptBatchError as error:
            found = str(error)
        assert found == expected
