from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from raftlog_spark.codec.arrow_join import Pieces, heads, joined
from raftlog_spark.codec.varints import packed

from tests.spark.test_varints import varint

column = st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=20)
numbers = st.lists(st.integers(-(2**54), 2**54) | st.integers(-64, 63), min_size=8, max_size=8)


class TestJoined:
    @given(values=column, first=st.integers(0, 10), kinds=st.integers(1, 4))
    def test_pieces_of_each_record_follow_each_other(
        self, values: list[bytes | None], first: int, kinds: int
    ) -> None:
        pieces = Pieces.of(pa.array(values, pa.binary())).sliced(first, len(values))
        data, bounds = joined([pieces] * kinds)
        found = [data[start:end].tobytes() for start, end in pairwise(bounds)]
        assert found == [(value or b"") * kinds for value in values[first:]]

    @given(rows=st.lists(numbers, min_size=1, max_size=20), fields=st.integers(1, 8))
    def test_heads_are_the_varints_of_each_record(self, rows: list[list[int]], fields: int) -> None:
        columns = np.array(rows, np.int64).T[:fields]
        data, bounds = joined(heads([packed(np.ascontiguousarray(each)) for each in columns]))
        found = [data[start:end].tobytes() for start, end in pairwise(bounds)]
        assert found == [b"".join(map(varint, row[:fields])) for row in rows]
