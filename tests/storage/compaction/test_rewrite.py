"""A pass leaves the newest record of each key, at its offset, in valid batches."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.record.batch import RecordBatch, check_batch, iterate_batches, sealed
from raftlog.record.codec import BatchBuilder, Headers, decode
from raftlog.record.compression import Compression
from raftlog.record.errors import INVALID_BODY, LogError
from raftlog.record.header import CONTROL_BIT, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, parse_header
from raftlog.record.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
)
from raftlog.storage.compaction.plan import CompactionHistory
from raftlog.storage.compaction.rewrite import (
    CompactionPass,
    Stop,
    refuse_keyless,
)
from raftlog.storage.leader_epochs import LeaderEpochs
from raftlog.storage.producers.state import ProducerStates
from raftlog.storage.transactions.transactions import AbortedEntry
from tests.examples import examples
from tests.record.batches import stamped

NOW = 1_700_000_000_000
RETENTION = 1000
BOUND = 1 << 24
Row: TypeAlias = tuple[bytes | None, bytes | None]
View: TypeAlias = tuple[int, int | None, bytes | None, bytes | None, Headers]


class Log:
    """Batches as written by a leader, and the state of their producers."""

    def __init__(self) -> None:
        self.batches: list[RecordBatch] = []
        self.producers = ProducerStates()
        self.history = CompactionHistory()
        self.aborted: list[AbortedEntry] = []
        self.kept_epoch_starts: set[Offset] = set()

    @property
    def end(self) -> Offset:
        return self.batches[-1].header.next_offset if self.batches else Offset(0)

    def append(
        self,
        *rows: Row,
        producer: int = NO_PRODUCER_ID,
        sequence: int = NO_SEQUENCE,
        compression: Compression = Compression.NONE,
        timestamps: Sequence[int] = (),
        attributes: int = 0,
        headers: Headers | None = None,
        epoch: int = 7,
    ) -> RecordBatch:
        builder = BatchBuilder(
            compression,
            producer_id=ProducerId(producer),
            producer_epoch=ProducerEpoch(0) if producer >= 0 else NO_PRODUCER_EPOCH,
            base_sequence=sequence,
        )
        for number, (key, value) in enumerate(rows):
            timestamp = timestamps[number] if timestamps else NOW + number
            builder.append(timestamp, key, value, headers)
        plain = builder.build()
        bare = parse_header(plain)
        bare = sealed(plain, bare._replace(attributes=bare.attributes | attributes))
        prefix, rest = stamped(RecordBatch(bare, bytes(plain)), self.end, LeaderEpoch(epoch))
        data = prefix + bytes(rest)
        batch = RecordBatch(parse_header(data), data)
        self.batches.append(batch)
        self.producers.update(batch.header, now_ms=0)
        return batch

    def marker(self, producer: int, *, commit: bool) -> RecordBatch:
        key = struct.pack(">hh", 0, int(commit))
        return self.append(
            (key, bytes(6)), producer=producer, attributes=CONTROL_BIT | TRANSACTIONAL_BIT
        )

    def compact(
        self, *, now: int = NOW, end: int | None = None, keys_max: int = 1000, segments: int = 1
    ) -> CompactionPass:
        """One pass over all batches, spread over the given number of finished segments."""
        work = CompactionPass(
            self.history,
            now_ms=now,
            delete_retention_ms=RETENTION,
            deletable_before=self.history.deletable_before(now, RETENTION),
            last_offsets=self.producers.last_offsets(),
            epoch_starts=self.kept_epoch_starts,
            aborted=self.aborted,
            keys_max=keys_max,
            decompressed_bytes_max=BOUND,
        )
        plan_end = self.end if end is None else Offset(end)
        for batch in self.batches:
            begin = batch.header.base_offset
            if self.history.first_dirty_offset <= begin < plan_end and not work.survey(batch):
                break
        work.finish_survey(plan_end)
        last = {len(self.batches) * (n + 1) // segments - 1 for n in range(segments)}
        written = []
        for number, batch in enumerate(self.batches):
            data = work.rewrite(batch, is_last=number in last)
            if data is not None:
                written.append(bytes(data))
        self.batches = list(iterate_batches(b"".join(written)))
        self.history = work.finish()
        return work

    def epoch_starts(self) -> set[Offset]:
        """Where each leader epoch of the log begins, by its batches."""
        history = LeaderEpochs()
        for batch in self.batches:
            history.assign(batch.header.partition_leader_epoch, batch.header.base_offset)
        return {entry.start_offset for entry in history.entries}

    def waits(self) -> bool:
        return self.history.awaits_deletion

    def view(self) -> list[View]:
        return [view for batch in self.batches for view in view_of(batch)]

    def rows(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(offset, key, value) for offset, _, key, value, _ in self.view()]

    def image(self) -> bytes:
        return b"".join(bytes(batch.data) for batch in self.batches)


def view_of(batch: RecordBatch) -> list[View]:
    records = decode(batch, decompressed_bytes_max=BOUND, check_crc=True)
    return [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in records]


@pytest.fixture
def log() -> Log:
    return Log()


def test_only_the_newest_record_of_each_key_is_left_at_its_offset(log: Log) -> None:
    log.append((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    log.append((b"c", b"1"), (b"b", b"2"))
    work = log.compact()
    assert log.rows() == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"2")]
    assert work.stats.records_removed == 2
    assert log.history.first_dirty_offset == 5


def test_a_batch_that_loses_nothing_is_passed_through_as_it_is(log: Log) -> None:
    batch = log.append((b"a", b"1"), (b"b", None), compression=Compression.GZIP)
    work = CompactionPass(
        log.history,
        now_ms=NOW,
        delete_retention_ms=0,
        deletable_before=Offset(0),
        last_offsets={},
        epoch_starts=set(),
        aborted=(),
    )
    assert work.survey(batch)
    work.finish_survey(log.end)
    assert work.rewrite(batch, is_last=True) is batch.data


@pytest.mark.parametrize("compression", list(Compression))
def test_a_smaller_batch_keeps_all_that_identifies_it(log: Log, compression: Compression) -> None:
    rows: list[Row] = [(b"%d" % (n % 7), b"value " * n) for n in range(40)]
    stamps = [NOW + (n * 7919) % 100 for n in range(40)]
    log.append((b"other", b""))
    before = log.append(
        *rows,
        producer=4,
        sequence=50,
        compression=compression,
        timestamps=stamps,
        headers=[("h", b"x"), ("h", None)],
    )
    kept = view_of(before)[-7:]
    log.compact()
    after = log.batches[1]
    assert view_of(after) == kept
    assert after.header._replace(batch_length=0, crc=0) == before.header._replace(
        batch_length=0, crc=0, record_count=7, max_timestamp_ms=max(stamps[-7:])
    )
    assert len(after.data) == after.header.size_bytes < before.header.size_bytes
    assert check_batch(after.data, 0, after.header)


def test_log_append_time_is_kept_as_the_time_of_every_record(log: Log) -> None:
    log.append((b"a", b"1"), (b"b", b"1"), attributes=LOG_APPEND_TIME_BIT, timestamps=[5, NOW])
    log.append((b"b", b"2"))
    log.compact()
    assert log.batches[0].header.max_timestamp_ms == NOW
    assert next(timestamp for _, timestamp, *_ in log.view()) == NOW


def test_a_batch_without_records_goes_unless_something_hangs_on_it(log: Log) -> None:
    log.append((b"a", b"1"))
    log.append((b"a", b"2"), producer=1, sequence=0)
    log.append((b"a", b"3"), (b"a", b"4"), producer=1, sequence=1, compression=Compression.ZSTD)
    log.append((b"a", b"5"))
    log.append((b"z", b"1"))
    log.append((b"z", b"2"))
    log.compact()
    assert log.rows() == [(4, b"a", b"5"), (6, b"z", b"2")]
    emptied = log.batches[0].header
    assert (emptied.base_offset, emptied.last_offset, emptied.record_count) == (2, 3, 0)
    assert (emptied.producer_id, emptied.base_sequence) == (1, 1)
    assert emptied.size_bytes == 61
    assert emptied.compression is Compression.NONE
    assert emptied.max_timestamp_ms == -1


def test_the_end_of_each_new_segment_stays_known(log: Log) -> None:
    for _ in range(3):
        log.append((b"a", b"x"), (b"b", b"x"))
    log.append((b"a", b"y"), (b"b", b"y"))
    work = log.compact(segments=2)
    assert [(b.header.base_offset, b.header.record_count) for b in log.batches] == [(2, 0), (6, 2)]
    assert work.stats.batches_emptied == 1
    assert work.stats.batches_removed == 2


def test_a_tombstone_stays_for_its_time_and_then_goes(log: Log) -> None:
    log.append((b"a", b"1"), (b"b", b"1"))
    log.append((b"a", None))
    log.compact()
    assert log.rows() == [(1, b"b", b"1"), (2, b"a", None)]
    assert log.waits()
    log.compact(now=NOW + RETENTION - 1)
    assert log.rows() == [(1, b"b", b"1"), (2, b"a", None)]
    work = log.compact(now=NOW + RETENTION)
    assert log.rows() == [(1, b"b", b"1")]
    assert not log.waits()
    assert work.stats.tombstones_waiting == 0


def test_a_tombstone_that_was_superseded_goes_at_once(log: Log) -> None:
    log.append((b"a", None), (b"a", b"2"))
    log.compact()
    assert log.rows() == [(1, b"a", b"2")]


def test_a_lost_history_only_lets_tombstones_stay_longer(log: Log) -> None:
    log.append((b"a", None))
    log.compact()
    log.history = CompactionHistory()
    log.compact(now=NOW + RETENTION)
    assert log.rows() == [(0, b"a", None)]
    log.compact(now=NOW + 2 * RETENTION)
    assert log.rows() == []


def test_records_without_a_key_stay(log: Log) -> None:
    log.append((None, b"1"), (None, None), (b"a", b"1"), (b"a", b"2"))
    log.compact()
    log.compact(now=NOW + 2 * RETENTION)
    assert log.rows() == [(0, None, b"1"), (1, None, None), (3, b"a", b"2")]


def test_an_empty_key_is_a_key(log: Log) -> None:
    log.append((b"", b"1"), (b"", b"2"))
    log.compact()
    assert log.rows() == [(1, b"", b"2")]


def test_long_keys_are_distinguished(log: Log) -> None:
    long = [bytes(31), bytes(32), bytes(33), bytes(32) + b"\1", b"k" * 5000]
    log.append(*[(key, b"1") for key in long])
    log.append(*[(key, b"2") for key in long])
    log.compact()
    assert [key for _, key, _ in log.rows()] == long
    assert log.batches[0].header.base_offset == 5


def test_what_lies_behind_the_end_is_not_touched(log: Log) -> None:
    log.append((b"a", b"1"), (b"b", b"1"))
    behind = log.append((b"a", b"2"), (b"a", b"3"))
    log.compact(end=2)
    assert log.batches[-1].data == behind.data
    assert log.rows() == [(0, b"a", b"1"), (1, b"b", b"1"), (2, b"a", b"2"), (3, b"a", b"3")]


def test_a_full_map_ends_the_pass_and_further_ones_finish_the_work(log: Log) -> None:
    for n in range(30):
        log.append((b"%d" % (n % 20), b"1"), (b"%d" % ((n + 5) % 20), b"2"))
    single = Log()
    single.batches = list(log.batches)
    single.compact()
    passes = 0
    while log.compact(keys_max=6).stopped is Stop.MAP_FULL:
        passes += 1
    assert passes > 3
    assert log.rows() == single.rows()


def test_the_first_batch_of_each_leader_epoch_stays(log: Log) -> None:
    """Without records: a log shows where each epoch began, however often it is compacted."""
    for epoch in (1, 1, 2, 2, 4):
        log.append((b"a", b"%d" % epoch), epoch=epoch)
    before = log.kept_epoch_starts = log.epoch_starts()
    assert before == {0, 2, 4}
    for _ in range(2):
        log.compact()
        assert log.rows() == [(4, b"a", b"4")]
        assert log.epoch_starts() == before
        assert [batch.header.record_count for batch in log.batches] == [0, 0, 1]
        assert [batch.header.partition_leader_epoch for batch in log.batches] == [1, 2, 4]


def test_a_batch_with_more_keys_than_the_map_holds_is_still_taken(log: Log) -> None:
    log.append(*[(b"%d" % n, b"") for n in range(50)])
    log.append((b"1", b"x"))
    assert log.compact(keys_max=10).stopped is Stop.MAP_FULL
    assert log.history.first_dirty_offset == 50
    assert log.compact(keys_max=10).stopped is None
    assert len(log.rows()) == 50


def test_a_batch_that_cannot_be_read_ends_the_pass_below_it(log: Log) -> None:
    log.append((b"a", b"1"), (b"a", b"2"))
    broken = log.append((b"a", b"3"))
    data = bytearray(broken.data)
    data[61] ^= 0x40
    header = sealed(data, broken.header)
    log.batches[1] = RecordBatch(header, bytes(data))
    log.append((b"a", b"4"))
    work = CompactionPass(
        log.history,
        now_ms=NOW,
        delete_retention_ms=0,
        deletable_before=Offset(0),
        last_offsets={},
        epoch_starts=set(),
        aborted=(),
    )
    assert [work.survey(batch) for batch in log.batches[:2]] == [True, False]
    assert work.stopped is Stop.UNREADABLE
    assert isinstance(work.unreadable, LogError)
    assert work.finish_survey(log.end) == 2
    assert work.rewrite(log.batches[1], is_last=False) is log.batches[1].data
    assert work.finish().first_dirty_offset == 2


def test_aborted_records_supersede_nothing_and_go(log: Log) -> None:
    log.append((b"a", b"1"))
    log.append((b"a", b"2"), producer=1, sequence=0, attributes=TRANSACTIONAL_BIT)
    log.append((b"b", b"1"), producer=2, sequence=0, attributes=TRANSACTIONAL_BIT)
    log.marker(1, commit=False)
    log.marker(2, commit=True)
    log.append((b"c", b"2"), producer=1, sequence=1, attributes=TRANSACTIONAL_BIT)
    log.marker(1, commit=True)
    log.aborted = [AbortedEntry(ProducerId(1), Offset(1), Offset(3), Offset(2))]
    log.compact()
    assert log.rows() == [(0, b"a", b"1"), (2, b"b", b"1"), (5, b"c", b"2")]


def test_markers_stay_as_long_as_their_records_and_then_for_the_retention_time(log: Log) -> None:
    log.append((b"a", b"1"), producer=1, sequence=0, attributes=TRANSACTIONAL_BIT)
    log.marker(1, commit=True)
    log.append((b"b", b"1"), producer=1, sequence=1, attributes=TRANSACTIONAL_BIT)
    log.marker(1, commit=True)
    markers = {Offset(1), Offset(3)}

    def left() -> set[Offset]:
        there = {b.header.base_offset for b in log.batches if b.header.record_count}
        return there & markers

    log.compact()
    log.compact(now=NOW + 5 * RETENTION)
    assert left() == {1, 3}
    log.append((b"a", b"2"))
    log.compact(now=NOW + 10 * RETENTION)
    assert left() == {3}, "its records went now, and it was clean for long"


def test_a_marker_of_an_emptied_transaction_waits_like_a_tombstone(log: Log) -> None:
    log.append((b"a", b"1"), producer=1, sequence=0, attributes=TRANSACTIONAL_BIT)
    log.marker(1, commit=True)
    log.append((b"a", b"2"), (b"z", b"1"))
    log.compact()
    assert [b.header.base_offset for b in log.batches if b.header.is_control] == [1]
    assert log.waits()
    log.compact(now=NOW + RETENTION)
    assert [b.header.base_offset for b in log.batches if b.header.is_control] == []


def test_a_topic_that_will_be_compacted_refuses_records_without_a_key(log: Log) -> None:
    refuse_keyless(log.append((b"a", b"1"), (b"", None)), decompressed_bytes_max=BOUND)
    with pytest.raises(LogError, match="Record 1 ") as caught:
        refuse_keyless(log.append((b"a", b"1"), (None, b"2")), decompressed_bytes_max=BOUND)
    assert caught.value.entry is INVALID_BODY


KEYS = [None, b"", b"a", b"b", b"c", b"d" * 31, b"d" * 32, b"d" * 40]
rows = st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=12))
written_batches = st.lists(
    st.tuples(
        st.lists(rows, min_size=1, max_size=6),
        st.sampled_from([-1, -1, 1, 2]),
        st.sampled_from(list(Compression)),
        st.lists(st.integers(0, NOW), min_size=6, max_size=6),
    ),
    min_size=1,
    max_size=12,
)


def fill(log: Log, drawn: list[tuple[list[Row], int, Compression, list[int]]]) -> None:
    sequences = {1: 0, 2: 0, -1: NO_SEQUENCE}
    for records, producer, compression, timestamps in drawn:
        log.append(
            *records,
            producer=producer,
            sequence=sequences[producer],
            compression=compression,
            timestamps=timestamps,
        )
        if producer >= 0:
            sequences[producer] += len(records)


def expected_view(before: list[View]) -> list[View]:
    newest = {key: offset for offset, _, key, _, _ in before}
    return [row for row in before if row[2] is None or newest[row[2]] == row[0]]


@given(
    drawn=written_batches,
    more=written_batches,
    keys_max=st.sampled_from([1, 3, 1000]),
    segments=st.integers(1, 3),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_compacted_log_is_the_log_without_what_is_outdated(
    drawn: list[tuple[list[Row], int, Compression, list[int]]],
    more: list[tuple[list[Row], int, Compression, list[int]]],
    keys_max: int,
    segments: int,
) -> None:
    log = Log()
    fill(log, drawn)
    for batches in (drawn, more):
        if batches is more:
            log.producers = ProducerStates()
            fill(log, [(r, -1, c, t) for r, _, c, t in batches])
            for batch in log.batches:
                log.producers.update(batch.header, now_ms=0)
        before, originals = log.view(), {b.header.base_offset: b for b in log.batches}
        end, last_offsets = log.end, log.producers.last_offsets()
        while log.compact(keys_max=keys_max, segments=segments).stopped is Stop.MAP_FULL:
            pass
        assert log.view() == expected_view(before)
        assert log.end == end
        for batch in log.batches:
            original = originals[batch.header.base_offset].header
            assert batch.header.last_offset == original.last_offset
            assert batch.header[2:4] == original[2:4]
            assert batch.header[9:12] == original[9:12]
            assert batch.header.record_count == len(view_of(batch))
            times = [timestamp for _, timestamp, *_ in view_of(batch)]
            if len(times) < original.record_count:
                assert batch.header.max_timestamp_ms == max((t or 0 for t in times), default=-1)
        for one, following in pairwise(log.batches):
            assert one.header.next_offset <= following.header.base_offset
        rebuilt = ProducerStates()
        for batch in log.batches:
            rebuilt.update(batch.header, now_ms=0)
        assert rebuilt.last_offsets() == last_offsets

        once = log.image()
        log.compact(keys_max=keys_max, segments=1)
        again = log.image()
        log.compact(keys_max=keys_max, segments=1)
        assert log.image() == again
        if segments == 1:
            assert again == once


@given(drawn=written_batches, passes=st.lists(st.integers(0, 2 * RETENTION), max_size=5))
@settings(max_examples=examples(100), deadline=None)
def test_a_deleted_key_never_rises_again(
    drawn: list[tuple[list[Row], int, Compression, list[int]]], passes: list[int]
) -> None:
    """Whatever the passes and their times, a reader of the whole log ends with the same table."""
    log = Log()
    now = NOW
    table: dict[bytes, bytes] = {}
    for number, one in enumerate(drawn):
        fill(log, [(one[0], -1, one[2], one[3])])
        for key, value in one[0]:
            if key is not None and value is not None:
                table[key] = value
            elif key is not None:
                table.pop(key, None)
        if number < len(passes):
            now += passes[number]
            log.compact(now=now, keys_max=2)
            read: dict[bytes, bytes] = {}
            for _, key, value in log.rows():
                if key is not None and value is not None:
                    read[key] = value
                elif key is not None:
                    read.pop(key, None)
            assert read == table
