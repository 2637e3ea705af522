"""Filtering of control batches and aborted transactions, against a log of random transactions."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from raftlog.record.batch import RecordBatch
from raftlog.record.codec import BatchBuilder
from raftlog.record.header import CONTROL_BIT, TRANSACTIONAL_BIT, parse_header
from raftlog.record.isolation import readable_batches
from raftlog.record.types import NO_PRODUCER_ID, AbortedTransaction, Offset, ProducerId


class Step(NamedTuple):
    kind: str
    producer: int
    record_count: int


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["data", "plain", "commit", "abort"]),
        st.integers(1, 3),
        st.integers(1, 3),
    ),
    max_size=30,
)


def batch(base_offset: int, count: int, producer: int, attributes: int) -> RecordBatch:
    builder = BatchBuilder()
    for _ in range(count):
        builder.append(0, None, b"x")
    data = builder.build()
    header = parse_header(data)._replace(
        base_offset=Offset(base_offset), producer_id=ProducerId(producer), attributes=attributes
    )
    return RecordBatch(header, memoryview(data))


def log_of(steps: list[Step]) -> tuple[list[RecordBatch], list[AbortedTransaction], set[int]]:
    """Batches, aborted transactions, and base offsets of the batches that may be read."""
    batches: list[RecordBatch] = []
    aborted: list[AbortedTransaction] = []
    readable: set[int] = set()
    open_offsets: dict[int, list[int]] = {}
    end = 0
    # Open transactions end, too: a reader never gets batches past the last stable offset.
    for step in [*steps, *(Step("commit", producer, 1) for producer in (1, 2, 3))]:
        if step.kind == "plain":
            batches.append(batch(end, step.record_count, NO_PRODUCER_ID, 0))
            readable.add(end)
        elif step.kind == "data":
            batches.append(batch(end, step.record_count, step.producer, TRANSACTIONAL_BIT))
            open_offsets.setdefault(step.producer, []).append(end)
        else:
            offsets = open_offsets.pop(step.producer, None)
            if offsets is None:
                continue
            batches.append(batch(end, 1, step.producer, TRANSACTIONAL_BIT | CONTROL_BIT))
            if step.kind == "commit":
                readable.update(offsets)
            else:
                aborted.append(AbortedTransaction(ProducerId(step.producer), Offset(offsets[0])))
        end = batches[-1].header.next_offset
    return batches, aborted, readable


@given(steps, st.integers(0, 30), st.integers(0, 30))
def test_exactly_the_committed_batches_are_read_wherever_the_fetch_begins(
    steps: list[Step], start: int, size: int
) -> None:
    batches, aborted, readable = log_of(steps)
    fetched = batches[start : start + size]
    end = fetched[-1].header.next_offset if fetched else 0
    # As a node does: transactions with a first offset below the end of the data.
    first_offset = fetched[0].header.base_offset if fetched else 0
    listed = [
        one for one in aborted if one.first_offset < end and _marker(batches, one) >= first_offset
    ]
    found = [one.header.base_offset for one in readable_batches(iter(fetched), listed)]
    assert found == [
        one.header.base_offset for one in fetched if one.header.base_offset in readable
    ]


@given(steps, st.lists(st.integers(0, 30), max_size=3))
def test_the_lists_of_several_frames_are_good_for_all_of_their_data(
    steps: list[Step], cuts: list[int]
) -> None:
    batches, aborted, readable = log_of(steps)
    listed: list[AbortedTransaction] = []
    for start, end in itertools.pairwise([0, *sorted(cuts), len(batches)]):
        frame = batches[start:end]
        if not frame:
            continue
        first, after = frame[0].header.base_offset, frame[-1].header.next_offset
        listed += [
            one for one in aborted if one.first_offset < after and _marker(batches, one) >= first
        ]
    found = [one.header.base_offset for one in readable_batches(iter(batches), listed)]
    assert set(found) == readable


def _marker(batches: list[RecordBatch], aborted: AbortedTransaction) -> int:
    return next(
        one.header.base_offset
        for one in batches
        if one.header.is_control
        and one.header.producer_id == aborted.producer_id
        and one.header.base_offset > aborted.first_offset
    )
