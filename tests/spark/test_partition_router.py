"""Where rows go: property tests against one row at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_client.produce.record_encoder import murmur2_partitioner
from raftlog_spark.errors import TopicGone
from raftlog_spark.sink.sink_task import TURNS, Destination, Router, RowError, partition_of

COUNTS = {"a": 1, "b": 3, "c": 12}
topics = st.sampled_from(sorted(COUNTS))
row_keys = st.none() | st.binary(max_size=12)
rows = st.lists(st.tuples(topics, row_keys, st.none() | st.just(0)), max_size=60)


def router(turn: int = 0, counts: dict[str, int] | None = None) -> Router:
    return Router((counts or COUNTS).__getitem__, turn=turn)


def places(made: Router, count: int, **columns: object) -> list[Destination]:
    return [made.places[number] for number in made.route(count, **columns)]  # type: ignore[arg-type]


@given(rows=rows, turn=st.integers(0, 100) | st.sampled_from([TURNS - 1, TURNS, 1 << 40]))
def test_every_row_goes_where_it_says_or_its_key_or_the_turn(
    rows: list[tuple[str, bytes | None, int | None]], turn: int
) -> None:
    made = router(turn)
    for shift in range(2):
        found = places(
            made,
            len(rows),
            topics=pa.array([row[0] for row in rows], pa.string()),
            keys=pa.array([row[1] for row in rows], pa.binary()),
            partitions=pa.array([row[2] for row in rows], pa.int32()),
        )
        for (topic, key, said), place in zip(rows, found, strict=True):
            if said is not None:
                expected = said
            elif key is not None:
                expected = murmur2_partitioner(topic, key, None, COUNTS[topic]) or 0
            else:
                expected = (turn + shift) % TURNS % COUNTS[topic]
            assert place == Destination(topic, expected)
        made.next_turn()


def test_one_topic_for_all_rows() -> None:
    assert places(router(4), 3, topics="b") == [Destination("b", 1)] * 3
    by_key = places(router(), 2, topics="c", keys=pa.array(["x", "x"]))
    assert by_key == [Destination("c", murmur2_partitioner("c", b"x", None, 12) or 0)] * 2


def test_slices_are_their_own_rows() -> None:
    topics = pa.array(["a", "b", "c", "b"]).slice(1, 2)
    partitions = pa.array([0, 2, 11, 0], pa.int8()).slice(1, 2)
    found = places(router(), 2, topics=topics, partitions=partitions)
    assert found == [Destination("b", 2), Destination("c", 11)]


@pytest.mark.parametrize("partition", [-1, 3, 1 << 40])
def test_partitions_that_are_not_there_are_refused(partition: int) -> None:
    given = pa.array([None, 2, partition], pa.int64())
    with pytest.raises(RowError, match=f"partition {partition} of 'b', which has partitions 0 to"):
        router().route(3, topics=pa.array(["a", "b", "b"]), partitions=given)


def test_rows_without_a_topic_are_refused() -> None:
    with pytest.raises(RowError, match="null as its topic"):
        router().route(2, topics=pa.array(["a", None]))


def test_a_topic_is_looked_up_once() -> None:
    asked: list[str] = []

    def count(topic: str) -> int:
        asked.append(topic)
        return 2

    made = Router(count, turn=0)
    for _ in range(2):
        made.route(4, topics=pa.array(["x", "y", "x", "y"]))
    assert asked == ["x", "y"]


def test_topics_that_are_not_there_are_told() -> None:
    def gone(topic: str) -> int:
        raise TopicGone("gone", topic=topic)

    lookup: Callable[[str], int] = gone
    with pytest.raises(TopicGone):
        Router(lookup, turn=0).route(1, topics="none")


keys = st.lists(st.none() | st.binary(max_size=9) | st.binary(max_size=300), max_size=80)


def expected(key: bytes | None, partitions: int) -> int:
    chosen = murmur2_partitioner("t", key, None, partitions)
    return -1 if chosen is None else chosen


class TestPartitionOf:
    @given(keys=keys, partitions=st.integers(1, 1000))
    def test_it_is_the_clients_partitioner(self, keys: list[bytes | None], partitions: int) -> None:
        found = partition_of(pa.array(keys, pa.binary()), partitions)
        assert found.tolist() == [expected(key, partitions) for key in keys]

    @given(keys=keys, first=st.integers(0, 80))
    def test_slices_are_their_own_keys(self, keys: list[bytes | None], first: int) -> None:
        found = partition_of(pa.array(keys, pa.binary()).slice(first), 7)
        assert found.tolist() == [expected(key, 7) for key in keys[first:]]

    @given(keys=st.lists(st.tuples(st.none() | st.binary(max_size=9), st.integers(1, 50))))
    def test_each_key_may_have_partitions_of_its_own(
        self, keys: list[tuple[bytes | None, int]]
    ) -> None:
        counts = np.array([count for _, count in keys], np.int32)
        found = partition_of(pa.array([key for key, _ in keys], pa.binary()), counts)
        assert found.tolist() == [expected(key, count) for key, count in keys]

    def test_strings_are_their_utf8(self) -> None:
        assert partition_of(pa.array(["é", None]), 12).tolist() == [
            expected("é".encode(), 12),
            -1,
        ]

    def test_one_very_long_key_among_many(self) -> None:
        keys = [b"k%d" % number for number in range(1000)] + [bytes(1_000_000)]
        assert partition_of(pa.array(keys), 12).tolist() == [expected(key, 12) for key in keys]

    def test_numbers_are_refused(self) -> None:
        with pytest.raises(pa.ArrowTypeError):
            partition_of(pa.array([1]), 3)
