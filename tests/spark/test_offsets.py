from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_spark.source.offsets import (
    INITIAL,
    OFFSET_MAX,
    PARTITION_MAX,
    OffsetFormatError,
    StreamOffset,
    from_json,
    to_json,
)

topics = st.text(min_size=1, max_size=5)
partitions = st.tuples(topics, st.integers(0, PARTITION_MAX))


@st.composite
def stream_offsets(draw: st.DrawFn) -> StreamOffset:
    ends = draw(st.dictionaries(partitions, st.integers(0, OFFSET_MAX), max_size=6))
    started = draw(st.lists(st.sampled_from(sorted(ends)))) if ends else []
    starts = {part: draw(st.integers(0, ends[part])) for part in started}
    ids = {topic: draw(st.text(max_size=4)) for topic, _ in ends}
    return StreamOffset(ends, starts, ids)


@given(stream_offsets())
def test_an_offset_survives_the_checkpoint(offset: StreamOffset) -> None:
    assert from_json(json.loads(json.dumps(to_json(offset)))) == offset


@given(stream_offsets(), st.randoms(use_true_random=False))
def test_equal_offsets_are_equal_text_whatever_order_they_were_made_in(
    offset: StreamOffset, random: object
) -> None:
    def shuffled(table: object) -> object:
        items = list(table.items())  # type: ignore[attr-defined]
        random.shuffle(items)  # type: ignore[attr-defined]
        return dict(items)

    other = StreamOffset(*map(shuffled, (offset.ends, offset.starts, offset.topic_ids)))  # type: ignore[arg-type]
    assert json.dumps(to_json(other)) == json.dumps(to_json(offset))


def test_the_format_is_what_checkpoints_hold() -> None:
    offset = StreamOffset({("t", 0): 30, ("t", 10): 5}, {("t", 10): 2}, {"t": "id"})
    assert to_json(offset) == {
        "v": 1,
        "from": {"t": {"10": 2}},
        "offsets": {"t": {"0": 30, "10": 5}},
        "topicIds": {"t": "id"},
    }
    assert to_json(INITIAL) == {"v": 1}
    assert from_json({"v": 1}) is INITIAL


def test_a_stream_that_began_without_partitions_has_begun() -> None:
    assert from_json(to_json(StreamOffset())).begun
    assert to_json(StreamOffset()) != to_json(INITIAL)


GOOD = {"v": 1, "from": {}, "offsets": {"t": {"0": 3}}, "topicIds": {"t": "id"}}


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": True},
        {"v": "1"},
        {"more": 1},
        {"offsets": []},
        {"offsets": {"t": 3}},
        {"offsets": {"t": {"0": -1}}},
        {"offsets": {"t": {"0": True}}},
        {"offsets": {"t": {"0": 1.5}}},
        {"offsets": {"t": {"01": 3}}},
        {"offsets": {"t": {"-1": 3}}},
        {"offsets": {"t": {"0": OFFSET_MAX + 1}}},
        {"from": {"t": {"1": 0}}},
        {"from": {"t": {"0": 4}}},
        {"topicIds": {}},
        {"topicIds": {"t": 1}},
        {"topicIds": None},
    ],
)
def test_a_damaged_offset_is_refused(change: dict[str, object]) -> None:
    from_json(GOOD)
    with pytest.raises(OffsetFormatError, match="checkpoint"):
        from_json(GOOD | change)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@given(
    st.fixed_dictionaries(
        {"v": st.just(1)},
        optional={"from": json_values, "offsets": json_values, "topicIds": json_values},
    )
    | json_values
)
def test_any_json_is_an_offset_or_is_refused(value: object) -> None:
    try:
        offset = from_json(value)
    except OffsetFormatError:
        return
    assert from_json(to_json(offset)) == offset
