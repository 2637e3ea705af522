from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.coordinator.groups.offset_messages import (
    ANY_OFFSET,
    NO_OFFSET,
    CommitOffsets,
    Committer,
    FetchedOffset,
    FetchOffsets,
    OffsetToCommit,
    ResetTarget,
    ShiftBy,
    ToOffsetsOf,
    TopicPartition,
)
from raftlog.coordinator.groups.offsets import METADATA_BYTES_MAX, SWEEP_STEP, OffsetTable
from raftlog.coordinator.shard.decision import Aging, CoordinatorRecord, Decision, Producer
from raftlog.coordinator.shard.record_codec import (
    USUAL_OFFSET,
    decode_offset_value,
    decode_offsets_record,
    encode_record,
)
from raftlog.coordinator.shard.records import (
    ConsumerGroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from raftlog.record.errors import (
    INVALID_BODY,
    OFFSET_METADATA_TOO_LARGE,
    OFFSET_SUPERSEDED,
    UNSTABLE_OFFSET_COMMIT,
)
from raftlog.record.types import ProducerEpoch, ProducerId, TopicId

DAY_MS = 24 * 3_600_000
NOW_MS = 1_760_000_000_000
P1 = Producer(ProducerId(1), ProducerEpoch(0))
P2 = Producer(ProducerId(2), ProducerEpoch(0))
ID_A, ID_B = TopicId("a" * 32), TopicId("b" * 32)


class Shard:
    """A table, and the replay of its decisions as a shard does it."""

    def __init__(self) -> None:
        self.table = OffsetTable()
        self.position = 0

    def apply(self, records: Iterable[CoordinatorRecord], producer: Producer | None = None) -> None:
        for record in records:
            assert isinstance(record.key, OffsetCommitKey)
            assert record.value is None or isinstance(record.value, OffsetCommitValue)
            self.position += 1
            self.table.replay(record.key, record.value, position=self.position, producer=producer)

    def commit(
        self,
        offset: int,
        *,
        group: str = "g",
        topic: str = "t",
        partition: int = 0,
        topic_id: TopicId | None = None,
        producer: Producer | None = None,
        now_ms: int = NOW_MS,
        retention_ms: int = -1,
    ) -> None:
        wanted = OffsetToCommit(topic, partition, offset, topic_id=topic_id)
        made = self.table.commit(
            group, [wanted], now_ms=now_ms, producer=producer, retention_ms=retention_ms
        )
        assert [each.error_code for each in made.response] == [0]
        self.apply(made.records, made.producer)

    def end(self, producer: Producer, *, committed: bool) -> None:
        self.table.replay_marker(*producer, committed=committed)

    def fetch(self, *, stable: bool = False, topic_id: TopicId | None = None) -> FetchedOffset:
        wanted = [TopicPartition("t", 0, topic_id)]
        return self.table.fetch("g", wanted, require_stable=stable)[0]

    def sweep(
        self,
        *,
        now_ms: int,
        empty_since_ms: int | None = 0,
        deleted: frozenset[TopicId] = frozenset(),
    ) -> list[int]:
        steps = []
        for step in self.table.sweep(
            aging=Aging(now_ms, now_ms),
            retention_ms=7 * DAY_MS,
            empty_since_ms=lambda _: empty_since_ms,
            is_deleted=lambda _, topic_id: topic_id in deleted,
        ):
            self.apply(step)
            steps.append(len(step))
        return steps


def test_a_commit_decides_and_only_replay_changes() -> None:
    table = OffsetTable()
    made = table.commit("g", [OffsetToCommit("t", 3, 17, 2, "here")], now_ms=NOW_MS)
    assert table.fetch("g", None) == ()
    [(key, value)] = made.records
    assert key == OffsetCommitKey("g", "t", 3)
    assert value == OffsetCommitValue(17, 2, "here", NOW_MS)
    table.replay(key, value, position=0)
    assert table.fetch("g", None) == (FetchedOffset("t", 3, 17, 2, "here"),)
    assert list(table.offsets("g")) == [("t", 3, value)]


def test_partitions_of_a_commit_fail_by_themselves() -> None:
    most = "ä" * (METADATA_BYTES_MAX // 2)
    offsets = [
        OffsetToCommit("t", 0, 1, metadata=most),
        OffsetToCommit("t", 1, 1, metadata=most + "x"),
        OffsetToCommit("t", 2, -1),
        OffsetToCommit("t", 3, 2**63),
        OffsetToCommit("t", 4, 2**63 - 1, 2**31 - 1),
        OffsetToCommit("t", 5, 1, 2**31),
    ]
    shard = Shard()
    made = shard.table.commit("g", offsets, now_ms=NOW_MS, retention_ms=2**63 - 1)
    bad = INVALID_BODY.code
    assert [each.error_code for each in made.response] == [
        0,
        OFFSET_METADATA_TOO_LARGE.code,
        bad,
        bad,
        0,
        bad,
    ]
    shard.apply(made.records)
    assert [each.partition for each in shard.table.fetch("g", None)] == [0, 4]


def test_a_late_copy_of_a_commit_does_not_take_the_offset_back() -> None:
    shard = Shard()

    def commit(offset: int, expected: int, topic_id: TopicId = ID_A) -> int:
        wanted = OffsetToCommit("t", 0, offset, topic_id=topic_id, expected=expected)
        made = shard.table.commit("g", [wanted], now_ms=NOW_MS)
        shard.apply(made.records)
        assert bool(made.records) is (not made.response[0].error_code)
        return made.response[0].error_code

    superseded = OFFSET_SUPERSEDED.code
    assert commit(10, NO_OFFSET) == 0
    assert commit(10, NO_OFFSET) == 0, "a repeat succeeds again"
    assert commit(20, 10) == 0
    assert commit(10, NO_OFFSET) == superseded
    assert shard.fetch().offset == 20
    assert commit(5, 20) == 0, "a member may seek back"
    assert commit(7, ANY_OFFSET) == 0
    assert commit(3, NO_OFFSET, ID_B) == 0, "the topic is another one"
    shard.apply(shard.table.delete("g", [TopicPartition("t", 0)]).records)
    assert commit(30, 7) == 0, "the offset was deleted"


def test_a_pending_offset_counts_once_its_transaction_is_committed() -> None:
    shard = Shard()
    shard.commit(5)
    shard.commit(9, producer=P1)
    assert shard.fetch().offset == 5
    unstable = shard.fetch(stable=True)
    assert unstable.error_code == UNSTABLE_OFFSET_COMMIT.code and unstable.offset == -1
    shard.end(P1, committed=True)
    assert shard.fetch(stable=True).offset == 9


def test_a_pending_offset_is_dropped_with_its_transaction() -> None:
    shard = Shard()
    shard.commit(9, producer=P1)
    assert shard.fetch().offset == -1
    assert shard.table.fetch("g", None, require_stable=True)[0].error_code
    assert shard.table.fetch("g", None) == ()
    assert shard.table.has_offsets("g")
    shard.end(P1, committed=False)
    assert shard.fetch(stable=True) == FetchedOffset("t", 0, -1)
    assert not shard.table.has_offsets("g")


def test_a_plain_commit_wins_over_an_older_pending_one() -> None:
    shard = Shard()
    shard.commit(9, producer=P1)
    shard.commit(3)
    shard.end(P1, committed=True)
    assert shard.fetch(stable=True).offset == 3


def test_the_later_of_two_pending_commits_wins_whichever_marker_comes_last() -> None:
    for first, second in ((P1, P2), (P2, P1)):
        shard = Shard()
        shard.commit(9, producer=P1)
        shard.commit(11, producer=P2)
        shard.end(first, committed=True)
        shard.end(second, committed=True)
        assert shard.fetch(stable=True).offset == 11


def test_a_pending_offset_does_not_come_back_after_a_delete() -> None:
    shard = Shard()
    shard.commit(9, producer=P1)
    shard.apply(shard.table.delete("g", [TopicPartition("t", 0)]).records)
    shard.end(P1, committed=True)
    assert shard.fetch(stable=True) == FetchedOffset("t", 0, -1)


def test_a_marker_of_an_older_epoch_ends_no_newer_transaction() -> None:
    shard = Shard()
    newer = P1._replace(producer_epoch=ProducerEpoch(4))
    shard.commit(9, producer=newer)
    shard.end(P1._replace(producer_epoch=ProducerEpoch(3)), committed=False)
    assert shard.fetch(stable=True).error_code
    shard.end(newer._replace(producer_epoch=ProducerEpoch(5)), committed=True)
    assert shard.fetch(stable=True).offset == 9


def test_a_topic_made_again_starts_without_offsets() -> None:
    shard = Shard()
    shard.commit(9, topic_id=ID_A)
    assert shard.fetch(topic_id=ID_A).offset == 9
    assert shard.fetch(topic_id=ID_B).offset == -1
    assert shard.sweep(now_ms=NOW_MS, empty_since_ms=None, deleted=frozenset({ID_A})) == [1]
    assert not shard.table.has_offsets("g")


def test_deletes_are_for_what_is_there() -> None:
    shard = Shard()
    shard.commit(1)
    made = shard.table.delete("g", [TopicPartition("t", 0), TopicPartition("u", 7)])
    assert [each.error_code for each in made.response] == [0, 0]
    assert made.records == (CoordinatorRecord(OffsetCommitKey("g", "t", 0), None),)


def test_a_group_is_deleted_in_bounded_steps() -> None:
    shard = Shard()
    for partition in range(5):
        shard.commit(1, partition=partition, producer=P1 if partition % 2 else None)
    shard.commit(1, group="other")
    sizes, done = [], False
    while not done:
        made: Decision[bool] = shard.table.delete_group("g", offsets_max=2)
        shard.apply(made.records)
        done = made.response
        sizes.append(len(made.records))
    assert sizes == [2, 2, 1]
    assert shard.table.group_ids() == ("other",)


@pytest.mark.parametrize(
    ("empty_since_ms", "committed_ms", "retention_ms", "expires_ms"),
    [
        (0, NOW_MS, -1, NOW_MS + 7 * DAY_MS),
        (NOW_MS + DAY_MS, NOW_MS, -1, NOW_MS + 8 * DAY_MS),
        (NOW_MS - DAY_MS, NOW_MS, -1, NOW_MS + 7 * DAY_MS),
        (0, NOW_MS, DAY_MS, NOW_MS + DAY_MS),
        (None, NOW_MS, -1, None),
        (None, NOW_MS, DAY_MS, None),
    ],
)
def test_offsets_expire_after_the_group_became_empty(
    empty_since_ms: int | None, committed_ms: int, retention_ms: int, expires_ms: int | None
) -> None:
    shard = Shard()
    shard.commit(1, now_ms=committed_ms, retention_ms=retention_ms)
    if expires_ms is None:
        assert shard.sweep(now_ms=NOW_MS + 99 * DAY_MS, empty_since_ms=empty_since_ms) == [0]
        return
    assert shard.sweep(now_ms=expires_ms - 1, empty_since_ms=empty_since_ms) == [0]
    assert shard.sweep(now_ms=expires_ms, empty_since_ms=empty_since_ms) == [1]
    assert len(shard.table) == 0


@pytest.mark.parametrize("retention_ms", [-1, DAY_MS])
def test_a_commit_ahead_of_the_time_counts_as_a_commit_of_now(retention_ms: int) -> None:
    """A clock 30 days ahead dated it."""
    kept_ms = 7 * DAY_MS if retention_ms < 0 else retention_ms
    shard = Shard()
    shard.commit(1, now_ms=NOW_MS + 30 * DAY_MS, retention_ms=retention_ms)
    shard.commit(2, now_ms=NOW_MS + 5 * 60_000, partition=1)
    assert shard.sweep(now_ms=NOW_MS, empty_since_ms=None) == [0]
    assert shard.sweep(now_ms=NOW_MS) == [1]
    assert shard.sweep(now_ms=NOW_MS) == [0]
    [(_, _, value)] = [each for each in shard.table.offsets("g") if each[1] == 0]
    assert (value.offset, value.commit_timestamp_ms) == (1, NOW_MS)
    assert shard.sweep(now_ms=NOW_MS + kept_ms - 1) == [0]
    assert shard.sweep(now_ms=NOW_MS + kept_ms) == [1]


def test_a_commit_with_its_own_retention_has_a_version_of_its_record() -> None:
    offset = OffsetToCommit("t", 0, 1, leader_epoch=3, topic_id=ID_A)
    made = OffsetTable().commit("g", [offset], now_ms=NOW_MS, retention_ms=DAY_MS)
    [record] = made.records
    assert decode_offsets_record(*encode_record(record)) == record
    assert record.value == OffsetCommitValue(1, -1, "", NOW_MS, NOW_MS + DAY_MS)


def test_a_partition_with_a_pending_offset_does_not_expire() -> None:
    shard = Shard()
    shard.commit(1)
    shard.commit(2, producer=P1)
    assert shard.sweep(now_ms=NOW_MS + 99 * DAY_MS) == [0]
    shard.end(P1, committed=True)
    assert shard.fetch().offset == 2


def test_a_sweep_goes_in_bounded_steps_and_meets_changes_between_them() -> None:
    shard = Shard()
    for partition in range(2 * SWEEP_STEP + 5):
        shard.commit(1, partition=partition)
    later = NOW_MS + 7 * DAY_MS
    sweep = shard.table.sweep(
        aging=Aging(later, later),
        retention_ms=7 * DAY_MS,
        empty_since_ms=lambda _: 0,
        is_deleted=lambda *_: False,
    )
    first = next(sweep)
    shard.apply(first)
    assert len(first) == SWEEP_STEP
    shard.commit(2, partition=SWEEP_STEP, now_ms=later)
    shard.apply(shard.table.delete("g", [TopicPartition("t", SWEEP_STEP + 1)]).records)
    rest = [len(step) for step in sweep]
    assert rest == [SWEEP_STEP - 2, 5]


def test_members_that_come_during_a_sweep_keep_the_offsets() -> None:
    shard = Shard()
    for partition in range(2 * SWEEP_STEP):
        shard.commit(1, partition=partition)
    answers = iter([0, None, None])
    steps = shard.table.sweep(
        aging=Aging(NOW_MS + 99 * DAY_MS, NOW_MS + 99 * DAY_MS),
        retention_ms=7 * DAY_MS,
        empty_since_ms=lambda _: next(answers),
        is_deleted=lambda *_: False,
    )
    assert [len(step) for step in steps] == [SWEEP_STEP, 0, 0]


def test_nothing_is_left_of_topics_without_offsets() -> None:
    shard = Shard()
    for topic in ("t", "u"):
        shard.commit(1, topic=topic)
        shard.commit(2, topic=topic, producer=P1)
        shard.commit(2, topic=topic, producer=P2, partition=1)
    shard.end(P1, committed=True)
    shard.end(P2, committed=False)
    while not (made := shard.table.delete_group("g", offsets_max=1)).response:
        shard.apply(made.records)
    shard.apply(made.records)
    assert len(shard.table) == 0
    topics = shard.table._topics
    assert not (topics.numbers or topics.names or topics.uses)


def test_messages_between_nodes_come_out_as_they_went_in() -> None:
    sent: list[CommitOffsets | FetchOffsets | ResetTarget] = [
        CommitOffsets("g", (OffsetToCommit("t", 1, 2, topic_id=ID_A),), Committer("m", 3), P1),
        FetchOffsets("g", (TopicPartition("t", 1),), require_stable=True),
        FetchOffsets("g", None),
        ShiftBy(-3),
        ToOffsetsOf("other"),
    ]
    decoder = msgspec.msgpack.Decoder(CommitOffsets | FetchOffsets | ResetTarget)
    for message in sent:
        assert decoder.decode(msgspec.msgpack.encode(message)) == message


class Loaded(NamedTuple):
    """A record as a load sees it."""

    key: bytes | None
    value: bytes | None
    offset: int = 0
    timestamp: int = 0
    timestamp_type: int = 0
    headers: list[tuple[str, bytes | None]] = []  # noqa: RUF012 - nobody changes it


def usual(group: str, topic: str, partition: int, offset: int) -> Loaded:
    value = OffsetCommitValue(offset, 7, "", NOW_MS, topic_id=ID_A)
    return Loaded(
        *encode_record(CoordinatorRecord(OffsetCommitKey(group, topic, partition), value))
    )


def test_usual_commits_in_a_log_are_replayed_as_they_are() -> None:
    records = [usual("g", "t", n, n) for n in range(3)]
    records += [usual("g", "u", 1, 4), usual("h", "t", 0, 5), usual("g", "t", 1, 6)]
    table = OffsetTable()
    assert table.replay_usual(records, 0) == 6
    assert len(table) == 5
    found = {(one.topic, one.partition): one for one in table.fetch("g", None)}
    assert found[("t", 1)] == FetchedOffset("t", 1, 6, 7, "", ID_A)
    assert {place: one.offset for place, one in found.items()} == {
        ("t", 0): 0,
        ("t", 1): 6,
        ("t", 2): 2,
        ("u", 1): 4,
    }
    assert [one.offset for one in table.fetch("h", None)] == [5]
    for group in ("g", "h"):
        for tombstone in table.delete_group(group, offsets_max=9).records:
            assert isinstance(tombstone.key, OffsetCommitKey)
            table.replay(tombstone.key, None, position=9)
    assert not len(table)
    assert not table.topics()


@pytest.mark.parametrize(
    "other",
    [
        Loaded(*encode_record(CoordinatorRecord(OffsetCommitKey("g", "t", 1), None))),
        Loaded(
            *encode_record(
                CoordinatorRecord(
                    OffsetCommitKey("g", "t", 1), OffsetCommitValue(1, 7, "meta", NOW_MS)
                )
            )
        ),
        Loaded(*encode_record(CoordinatorRecord(ConsumerGroupMetadataKey("g"), None))),
        usual("g", "t", 1, 1)._replace(key=b"\0\2" + (usual("g", "t", 1, 1).key or b"")[2:]),
        usual("g", "t", 1, 1)._replace(key=(usual("g", "t", 1, 1).key or b"")[:-1]),
        usual("g", "t", 1, 1)._replace(key=(usual("g", "t", 1, 1).key or b"") + b"\0"),
        usual("g", "t", 1, 1)._replace(key=b""),
        usual("g", "t", 1, 1)._replace(key=None),
    ],
)
def test_other_records_are_left_to_be_decoded(other: Loaded) -> None:
    table = OffsetTable()
    assert table.replay_usual([usual("g", "t", 0, 1), other, usual("g", "t", 2, 1)], 0) == 1
    assert table.replay_usual([other], 0) == 0
    assert table.topics() == ("t",)
    assert len(table) == 1


def test_nothing_is_replayed_as_it_is_while_a_transaction_is_open() -> None:
    shard = Shard()
    shard.commit(1, producer=P1)
    assert shard.table.replay_usual([usual("g", "t", 0, 2)], 0) == 0


@given(st.binary(min_size=42, max_size=42) | st.from_regex(USUAL_OFFSET, fullmatch=True))
def test_what_looks_like_a_usual_value_is_one(value: bytes) -> None:
    if USUAL_OFFSET.fullmatch(value):
        decoded = decode_offset_value(value)
        assert decoded.metadata == ""
        assert decoded.expire_timestamp_ms == -1


def test_an_offset_takes_at_most_200_bytes() -> None:
    table = OffsetTable()
    tracemalloc.start()
    for at in range(50_000):
        # Strings of their own, as decoded records have them.
        key = OffsetCommitKey(f"group-{at // 100}", f"topic-{at // 10 % 10}", at % 10)
        value = OffsetCommitValue(2**40 + at, 7, "", NOW_MS + at, topic_id=TopicId(f"{at:032x}"))
        table.replay(key, value, position=at)
    del key, value
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table) == 50_000
    assert used / len(table) <= 200
