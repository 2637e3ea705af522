"""Offsets against a search of the whole log, and against a reload after compaction."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raftlog.coordinator.groups.offset_messages import FetchedOffset, OffsetToCommit, TopicPartition
from raftlog.coordinator.groups.offsets import OffsetTable
from raftlog.coordinator.shard.decision import Aging, CoordinatorRecord, Producer
from raftlog.coordinator.shard.record_codec import decode_offsets_record, encode_record
from raftlog.coordinator.shard.records import OffsetCommitKey, OffsetCommitValue
from raftlog.record.batch import split_batches
from raftlog.record.codec import BatchBuilder, Record, decode
from raftlog.record.errors import UNSTABLE_OFFSET_COMMIT
from raftlog.record.types import ProducerEpoch, ProducerId, TopicId
from tests.examples import examples

GROUPS = ("g", "h")
TOPICS = ("t", "u")
RETENTION_MS = 100

groups = st.sampled_from(GROUPS)
names = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 2))
producers = st.integers(1, 3).map(ProducerId)
committed = st.lists(
    st.tuples(names, st.integers(0, 9), st.sampled_from(["", "meta"])), min_size=1, max_size=3
)


@dataclass(frozen=True)
class Entry:
    """A record of the log, or a marker (no key)."""

    position: int
    key: OffsetCommitKey | None = None
    value: OffsetCommitValue | None = None
    producer: Producer | None = None
    is_commit: bool | None = None

    @property
    def plain(self) -> CoordinatorRecord | None:
        """The record, if it is in no transaction."""
        if self.key is None or self.producer is not None:
            return None
        return CoordinatorRecord(self.key, self.value)


class OffsetsAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = OffsetTable()
        self.log: list[Entry] = []
        self.position = 0
        self.now_ms = 1_000
        self.empty_since: dict[str, int | None] = dict.fromkeys(GROUPS)
        self.epochs = {ProducerId(id): ProducerEpoch(1) for id in (1, 2, 3)}
        self.ids = {topic: TopicId(f"{at:032x}") for at, topic in enumerate(TOPICS, 1)}
        self.made = len(TOPICS)

    # The model: of a key the last plain or committed record counts.

    def decision_on(self, entry: Entry) -> bool | None:
        """Whether a record counts; None: its transaction is open."""
        if entry.producer is None:
            return True
        return next(
            (
                marker.is_commit
                for marker in self.log
                if marker.key is None
                and marker.producer is not None
                and marker.position > entry.position
                and marker.producer.producer_id == entry.producer.producer_id
                and marker.producer.producer_epoch >= entry.producer.producer_epoch
            ),
            None,
        )

    def expected(self, group: str) -> tuple[dict[TopicPartition, OffsetCommitValue], set[object]]:
        """Committed offsets, and partitions with a pending one."""
        found: dict[TopicPartition, OffsetCommitValue] = {}
        pending = set()
        for entry in self.log:
            if entry.key is None or entry.key.group != group:
                continue
            name = TopicPartition(entry.key.topic, entry.key.partition)
            counts = self.decision_on(entry)
            if counts is None:
                pending.add(name)
            elif counts:
                pending.discard(name)
                found.pop(name, None)
                if entry.value is not None:
                    found[name] = entry.value
        return found, pending

    # Rules

    def apply(
        self, records: tuple[CoordinatorRecord, ...], producer: Producer | None = None
    ) -> None:
        for record in records:
            assert decode_offsets_record(*encode_record(record)) == record
            self.position += 1
            entry = Entry(self.position, record.key, record.value, producer)
            self.log.append(entry)
            replay(self.table, entry)

    def offsets(self, wanted: list[tuple[TopicPartition, int, str]]) -> list[OffsetToCommit]:
        return [
            OffsetToCommit(name.topic, name.partition, offset, 1, metadata, self.ids[name.topic])
            for name, offset, metadata in wanted
        ]

    @rule(group=groups, wanted=committed, retention_ms=st.sampled_from([-1, -1, 5]))
    def commit(
        self, group: str, wanted: list[tuple[TopicPartition, int, str]], retention_ms: int
    ) -> None:
        made = self.table.commit(
            group, self.offsets(wanted), now_ms=self.now_ms, retention_ms=retention_ms
        )
        self.apply(made.records)

    @rule(group=groups, wanted=committed, id=producers)
    def commit_in_transaction(
        self, group: str, wanted: list[tuple[TopicPartition, int, str]], id: ProducerId
    ) -> None:
        producer = Producer(id, self.epochs[id])
        made = self.table.commit(group, self.offsets(wanted), now_ms=self.now_ms, producer=producer)
        assert made.producer == producer
        self.apply(made.records, made.producer)

    @rule(id=producers, is_commit=st.booleans(), bump=st.booleans())
    def end(self, id: ProducerId, is_commit: bool, bump: bool) -> None:
        if bump:
            self.epochs[id] = ProducerEpoch(self.epochs[id] + 1)
        self.append_marker(Producer(id, self.epochs[id]), is_commit)

    @rule(id=producers, is_commit=st.booleans())
    def late_marker(self, id: ProducerId, is_commit: bool) -> None:
        self.append_marker(Producer(id, ProducerEpoch(self.epochs[id] - 1)), is_commit)

    def append_marker(self, producer: Producer, is_commit: bool) -> None:
        self.position += 1
        entry = Entry(self.position, producer=producer, is_commit=is_commit)
        self.log.append(entry)
        replay(self.table, entry)

    @rule(group=groups, wanted=st.lists(names, max_size=3, unique=True))
    def delete(self, group: str, wanted: list[TopicPartition]) -> None:
        self.apply(self.table.delete(group, wanted).records)
        found, pending = self.expected(group)
        assert not (found.keys() | pending) & set(wanted)

    @rule(group=groups, offsets_max=st.integers(1, 3))
    def delete_group(self, group: str, offsets_max: int) -> None:
        for _ in range(7):
            made = self.table.delete_group(group, offsets_max=offsets_max)
            assert len(made.records) <= offsets_max
            self.apply(made.records)
            if made.response:
                break
        assert self.expected(group) == ({}, set())

    @rule(topic=st.sampled_from(TOPICS))
    def make_topic_again(self, topic: str) -> None:
        self.made += 1
        self.ids[topic] = TopicId(f"{self.made:032x}")
        for group in GROUPS:
            wanted = [TopicPartition(topic, partition, self.ids[topic]) for partition in range(3)]
            fetched = self.table.fetch(group, wanted)
            assert all(each.offset == -1 or each.topic_id is None for each in fetched)

    @rule(group=groups, is_empty=st.booleans(), passed_ms=st.sampled_from([1, 5, 50, 100]))
    def pass_time(self, group: str, is_empty: bool, passed_ms: int) -> None:
        self.now_ms += passed_ms
        if not is_empty:
            self.empty_since[group] = None
        elif self.empty_since[group] is None:
            self.empty_since[group] = self.now_ms
        self.sweep()

    @rule()
    def sweep(self) -> None:
        before = {group: self.expected(group) for group in GROUPS}
        for step in self.table.sweep(
            aging=Aging(self.now_ms, self.now_ms),
            retention_ms=RETENTION_MS,
            empty_since_ms=self.empty_since.__getitem__,
            is_deleted=lambda topic, topic_id: topic_id not in (None, self.ids[topic]),
        ):
            self.apply(step)
        for group, (found, pending) in before.items():
            kept = {
                name: value
                for name, value in found.items()
                if value.topic_id in (None, self.ids[name.topic])
                and not (name not in pending and self.has_expired(value, self.empty_since[group]))
            }
            assert self.expected(group)[0] == kept

    def has_expired(self, value: OffsetCommitValue, empty_since: int | None) -> bool:
        if empty_since is None:
            return False
        if value.expire_timestamp_ms >= 0:
            return value.expire_timestamp_ms <= self.now_ms
        return max(value.commit_timestamp_ms, empty_since) + RETENTION_MS <= self.now_ms

    @rule(keeps_tombstones=st.booleans())
    def compact(self, keeps_tombstones: bool) -> None:
        """Compact below the last stable offset; the reload gives the same offsets."""
        stable_end = min(
            (each.position for each in self.log if each.key and self.decision_on(each) is None),
            default=self.position + 1,
        )
        last = {
            each.key: each.position
            for each in self.log
            if each.key and each.position < stable_end and self.decision_on(each)
        }
        self.log = [
            each
            for each in self.log
            if each.key is None
            or each.position >= stable_end
            or (
                last.get(each.key) == each.position and (keeps_tombstones or each.value is not None)
            )
        ]
        self.reload()

    @rule()
    def reload(self) -> None:
        loaded = OffsetTable()
        for is_plain, entries in groupby(self.log, lambda entry: entry.plain is not None):
            run = list(entries)
            records = [encoded(entry.plain) for entry in run if entry.plain is not None]
            at = 0
            while at < len(run):
                if is_plain and (at := loaded.replay_usual(records, at)) == len(run):
                    break
                replay(loaded, run[at])
                at += 1
        assert contents(loaded) == contents(self.table)
        self.table = loaded

    @invariant()
    def equals_the_model(self) -> None:
        count = 0
        for group in GROUPS:
            found, pending = self.expected(group)
            count += len(found)
            unstable = UNSTABLE_OFFSET_COMMIT.code
            all_names = found.keys() | pending
            assert self.table.has_offsets(group) == bool(all_names)
            answers = {
                name: FetchedOffset(
                    name.topic,
                    name.partition,
                    value.offset,
                    value.leader_epoch,
                    value.metadata,
                    value.topic_id,
                )
                for name, value in found.items()
            }
            assert by_name(self.table.fetch(group, None)) == answers
            answers |= {
                name: FetchedOffset(name.topic, name.partition, -1, error_code=unstable)
                for name in pending
            }
            assert by_name(self.table.fetch(group, None, require_stable=True)) == answers
            wanted = [TopicPartition(topic, at) for topic in TOPICS for at in range(3)]
            assert self.table.fetch(group, wanted, require_stable=True) == tuple(
                answers.get(name, FetchedOffset(name.topic, name.partition, -1)) for name in wanted
            )
            values = {(topic, at): value for topic, at, value in self.table.offsets(group)}
            assert values == {(name.topic, name.partition): found[name] for name in found}
        assert len(self.table) == count


def replay(table: OffsetTable, entry: Entry) -> None:
    if entry.key is not None:
        table.replay(entry.key, entry.value, position=entry.position, producer=entry.producer)
    elif entry.producer is not None:
        table.replay_marker(*entry.producer, committed=bool(entry.is_commit))


def encoded(record: CoordinatorRecord) -> Record:
    """The record as a log has it."""
    builder = BatchBuilder()
    builder.append(0, *encode_record(record))
    (batch,) = split_batches(bytes(builder.build()), max_message_bytes=1 << 20)
    (found,) = decode(batch, decompressed_bytes_max=1 << 20)
    return found


def by_name(fetched: tuple[FetchedOffset, ...]) -> dict[TopicPartition, FetchedOffset]:
    found = {TopicPartition(each.topic, each.partition): each for each in fetched}
    assert len(found) == len(fetched)
    return found


def contents(table: OffsetTable) -> list[object]:
    return [
        (
            group,
            sorted(table.offsets(group), key=lambda each: each[:2]),
            by_name(table.fetch(group, None, require_stable=True)),
        )
        for group in sorted(table.group_ids())
    ]


TestOffsetsAgainstModel = OffsetsAgainstModel.TestCase
TestOffsetsAgainstModel.settings = settings(
    max_examples=examples(300), stateful_step_count=50, deadline=None
)
