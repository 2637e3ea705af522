"""Lookups by time: headers are claims, and no claim hides what follows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.record.batch import RecordBatch, sealed
from raftlog.record.header import HEADER_SIZE, parse_header
from raftlog.record.types import Offset
from raftlog.storage.types import LogConfig
from tests.examples import examples
from tests.storage.logs import EPOCH, batch, new_log

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)
NOW = 1_700_000_000_000


def lying(count: int, *, claims_ms: int, timestamp_ms: int = NOW) -> RecordBatch:
    """A batch whose header claims a time that its records do not have."""
    honest = batch([b"v"] * count, timestamp_ms=timestamp_ms)
    data = bytearray(honest.data)
    header = sealed(data, honest.header._replace(max_timestamp_ms=claims_ms))
    return RecordBatch(header, bytes(data))


def garbage(count: int, *, claims_ms: int) -> RecordBatch:
    """A batch with the right CRC over records that are none."""
    honest = batch([b"v"] * count)
    data = bytearray(honest.data)
    data[HEADER_SIZE:] = bytes(len(data) - HEADER_SIZE)
    sealed(data, honest.header._replace(max_timestamp_ms=claims_ms))
    return RecordBatch(parse_header(data), bytes(data))


@pytest.mark.parametrize("bad", [lying, garbage])
@pytest.mark.parametrize("count", [1, 1500])
async def test_batches_that_claim_a_time_do_not_hide_what_follows(
    bad: type[object], count: int
) -> None:
    log = new_log(config=SMALL)
    for _ in range(count):
        await log.appender.append([bad(2, claims_ms=NOW + 10_000)], EPOCH)  # type: ignore[call-arg]
    await log.appender.append([batch([b"wanted"], timestamp_ms=NOW + 1000)], EPOCH)
    end = log.log_end_offset
    wanted = (Offset(2 * count), NOW + 1000)
    assert await log.reader.offset_for_timestamp(NOW + 1000, end=end) == wanted
    assert await log.reader.offset_for_timestamp(NOW + 1001, end=end) is None


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["good", "lying", "garbage"]), st.integers(0, 9)), max_size=40
    ),
    st.integers(0, 11),
    st.integers(1, 4),
)
async def test_a_lookup_finds_the_first_young_record_whatever_headers_claim(
    content: list[tuple[str, int]], wanted: int, step: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raftlog.storage.log.reader.HEADERS_PER_STEP_MAX", step)
        log = new_log(config=SMALL)
        expected: tuple[int, int] | None = None
        for kind, time in content:
            offset = log.log_end_offset
            if kind == "good":
                await log.appender.append([batch([b"a", b"b"], timestamp_ms=NOW + time)], EPOCH)
                for number in range(2):
                    if time + number >= wanted and expected is None:
                        expected = (offset + number, NOW + time + number)
            elif kind == "lying":
                await log.appender.append([lying(1, claims_ms=NOW + 9, timestamp_ms=1)], EPOCH)
            else:
                await log.appender.append([garbage(1, claims_ms=NOW + time)], EPOCH)
        found = await log.reader.offset_for_timestamp(NOW + wanted, end=log.log_end_offset)
        assert found == expected


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["good", "lying", "garbage"]), st.integers(0, 9)), max_size=40
    ),
    st.integers(0, 80),
)
async def test_the_newest_record_is_found_whatever_headers_claim(
    content: list[tuple[str, int]], end: int
) -> None:
    log = new_log(config=SMALL)
    records: list[tuple[int, int]] = []
    for kind, time in content:
        offset = log.log_end_offset
        if kind == "good":
            await log.appender.append([batch([b"a", b"b"], timestamp_ms=NOW + time)], EPOCH)
            records += [(offset + number, NOW + time + number) for number in range(2)]
        elif kind == "lying":
            await log.appender.append([lying(1, claims_ms=2**62, timestamp_ms=1)], EPOCH)
            records.append((offset, 1))
        else:
            await log.appender.append([garbage(1, claims_ms=NOW + 100)], EPOCH)
    readable = [one for one in records if one[0] < end]
    expected = min(readable, key=lambda one: (-one[1], one[0]), default=None)
    assert await log.reader.offset_of_newest_timestamp(end=Offset(end)) == expected
