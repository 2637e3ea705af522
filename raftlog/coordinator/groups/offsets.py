"""Committed and pending offsets of all groups of a shard. Pure, and independent of members.

For each group and partition the last of these in log order counts:

| replayed | effect |
|---|---|
| a plain commit, or a tombstone | counts at once, drops older pending offsets of the partition |
| a commit in a transaction | pending, in place of the producer's earlier one of the partition |
| the marker of a commit | the producer's pending offsets count, each as of its place in the log |
| the marker of an abort | drops the producer's pending offsets |

So an offset counts by the place of its record and not of its marker. Compaction keeps the last
record of a key, so a reload from the compacted log gives the same offsets.

**Authorship.** The caller checks the member and its epoch, and that a group to delete has no
members.

**Recreated topics.** An offset is stored with its topic's id. `fetch` ignores offsets of another id
than the wanted id, and `sweep` deletes them.

**Memory.** The dict of a group maps an int key to the value of the record. 1,000,000 offsets take
160 MB in groups of 10 or more. A group with one offset takes 450 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

from msgspec.structs import replace

from raftlog.coordinator.groups.offset_messages import (
    ANY_OFFSET,
    NO_OFFSET,
    CommittedOffset,
    FetchedOffset,
    OffsetToCommit,
    PartitionOutcome,
    TopicPartition,
)
from raftlog.coordinator.shard.decision import Aging, CoordinatorRecord, Decision, Producer
from raftlog.coordinator.shard.record_codec import (
    USUAL_OFFSET,
    decode_offset_value,
    encode_offset_value,
    group_and_topic,
)
from raftlog.coordinator.shard.records import NO_TIMESTAMP, OffsetCommitKey, OffsetCommitValue
from raftlog.record.codec import Record
from raftlog.record.errors import (
    INVALID_BODY,
    OFFSET_METADATA_TOO_LARGE,
    OFFSET_SUPERSEDED,
    UNSTABLE_OFFSET_COMMIT,
)
from raftlog.record.types import ProducerEpoch, ProducerId, TopicId

METADATA_BYTES_MAX: Final = 4096
"""Most bytes of an offset's metadata, in UTF-8."""
SWEEP_STEP: Final = 1_000
"""Offsets that a step of a sweep inspects, in about a millisecond."""

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_PARTITION_BITS: Final = 32
_PARTITION_MASK: Final = (1 << _PARTITION_BITS) - 1
_PARTITION: Final = Struct(">i")
"""Last bytes of an offset's key."""
_unpack_partition: Final = _PARTITION.unpack_from
_is_usual: Final = USUAL_OFFSET.fullmatch


class _Pending(NamedTuple):
    """An offset in an open transaction."""

    position: int
    producer_epoch: ProducerEpoch
    entry: bytes | None


class _TopicNumbers:
    """A number for each topic name in use. With it the key of an offset is an int."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.uses: dict[int, int] = {}
        """Committed and pending offsets with the number. At 0 the number ends for good."""
        self._last = 0

    def add(self, name: str) -> int:
        """Number a name without a number. The first use must follow."""
        self._last += 1
        number = self._last
        self.numbers[name], self.names[number], self.uses[number] = number, name, 0
        return number

    def release(self, number: int) -> None:
        """End one use."""
        self.uses[number] -= 1
        if not self.uses[number]:
            del self.uses[number], self.numbers[self.names.pop(number)]


class OffsetTable:
    """The offsets of a shard. Decisions only read. `replay` and `replay_marker` change them."""

    def __init__(self) -> None:
        self._topics = _TopicNumbers()
        self._groups: dict[str, dict[int, bytes]] = {}
        self._pending: dict[str, dict[int, dict[ProducerId, _Pending]]] = {}
        self._slots_of_producer: dict[ProducerId, set[tuple[str, int]]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Committed offsets of all groups."""
        return self._count

    # Replay

    def replay(
        self,
        key: OffsetCommitKey,
        value: OffsetCommitValue | None,
        *,
        position: int,
        producer: Producer | None = None,
    ) -> None:
        """Apply a record. `position` rises with each. `producer` wrote it in a transaction."""
        number = self._topics.numbers.get(key.topic)
        if number is None:
            if value is None:
                return
            number = self._topics.add(key.topic)
        slot = number << _PARTITION_BITS | key.partition
        entry = None if value is None else encode_offset_value(value)
        if producer is None:
            self._put(key.group, slot, entry)
            if self._pending:
                self._drop_pending(key.group, slot, before=position)
        else:
            self._put_pending(key.group, slot, producer, position, entry)

    def replay_marker(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, *, committed: bool
    ) -> None:
        """End the producer's transaction. Pending offsets of a newer epoch stay."""
        for group, slot in sorted(self._slots_of_producer.get(producer_id, ())):
            pending = self._pending[group][slot][producer_id]
            if pending.producer_epoch > producer_epoch:
                continue
            if committed:
                self._put(group, slot, pending.entry)
                self._drop_pending(group, slot, before=pending.position)
            self._remove_pending(group, slot, producer_id)

    def replay_usual(self, records: Sequence[Record], start: int) -> int:
        """Replay records from `start` on while they are usual commits without a transaction.

        Returns the index of the first other record. The result is that of `replay`, in a fraction
        of the time for a load. No value is decoded, and commits in a row have their names decoded
        once.
        """
        if self._pending:
            return start
        index, end = start, len(records)
        while index < end:
            key, value = records[index].key or b"", records[index].value
            if value is None or not _is_usual(value):
                break
            prefix = key[: -_PARTITION.size]
            names = group_and_topic(prefix)
            if names is None:
                break
            group, topic = names
            number = self._topics.numbers.get(topic) or self._topics.add(topic)
            offsets = self._groups.setdefault(group, {})
            count = len(offsets)
            while True:
                (partition,) = _unpack_partition(key, len(prefix))
                offsets[number << _PARTITION_BITS | partition] = value
                index += 1
                if index == end:
                    break
                record = records[index]
                key, value = record.key or b"", record.value
                if value is None or key[: -_PARTITION.size] != prefix or not _is_usual(value):
                    break
            self._count += len(offsets) - count
            self._topics.uses[number] += len(offsets) - count
        return index

    # Queries

    def fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        require_stable: bool = False,
    ) -> tuple[FetchedOffset, ...]:
        """The offsets of some partitions, or of all with an offset.

        With `require_stable` a partition with a pending offset gets UNSTABLE_OFFSET_COMMIT.
        """
        offsets, pending = self._groups.get(group_id, {}), self._pending.get(group_id, {})
        if partitions is None:
            slots = offsets if not require_stable else offsets | dict.fromkeys(pending, b"")
            wanted: Iterable[TopicPartition] = (
                TopicPartition(self._topics.names[slot >> _PARTITION_BITS], slot & _PARTITION_MASK)
                for slot in slots
            )
        else:
            wanted = partitions
        return tuple(
            self._fetched(name, offsets, pending if require_stable else {}) for name in wanted
        )

    def offsets(self, group_id: str) -> Iterator[tuple[str, int, OffsetCommitValue]]:
        """Topic, partition and committed offset. Invalid once the group's offsets change."""
        for slot, entry in self._groups.get(group_id, {}).items():
            topic = self._topics.names[slot >> _PARTITION_BITS]
            yield topic, slot & _PARTITION_MASK, decode_offset_value(entry)

    def topics(self) -> tuple[str, ...]:
        """Names of all topics with committed or pending offsets."""
        return tuple(self._topics.numbers)

    def group_ids(self) -> tuple[str, ...]:
        """All groups with committed or pending offsets."""
        return tuple(dict.fromkeys((*self._groups, *self._pending)))

    def has_offsets(self, group_id: str) -> bool:
        """Whether the group has committed or pending offsets, so that it must not be forgotten."""
        return group_id in self._groups or group_id in self._pending

    # Decisions

    def commit(
        self,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        *,
        now_ms: int,
        producer: Producer | None = None,
        retention_ms: int = -1,
    ) -> Decision[tuple[PartitionOutcome, ...]]:
        """Commit offsets, in the producer's transaction if any. `now_ms` is stored.

        Each partition succeeds or fails separately. OFFSET_METADATA_TOO_LARGE rejects long
        metadata. INVALID_BODY rejects a partition, an offset or a leader epoch out of the range of
        its type. OFFSET_SUPERSEDED rejects a commit if another offset than the expected offset is
        committed.
        """
        expire_ms = NO_TIMESTAMP if retention_ms < 0 else min(now_ms + retention_ms, _INT64_MAX)
        outcomes, records = [], []
        for offset in offsets:
            code = _refusal(offset)
            if not code and producer is None and self._is_superseded(group_id, offset):
                code = OFFSET_SUPERSEDED.code
            outcomes.append(PartitionOutcome(offset.topic, offset.partition, code))
            if not code:
                # No version of the record has an expiry time and these two.
                is_newer = expire_ms == NO_TIMESTAMP
                value = OffsetCommitValue(
                    offset=offset.offset,
                    leader_epoch=offset.leader_epoch if is_newer else -1,
                    metadata=offset.metadata,
                    commit_timestamp_ms=now_ms,
                    expire_timestamp_ms=expire_ms,
                    topic_id=offset.topic_id if is_newer else None,
                )
                key = OffsetCommitKey(group_id, offset.topic, offset.partition)
                records.append(CoordinatorRecord(key, value))
        return Decision(tuple(outcomes), tuple(records), producer)

    def _is_superseded(self, group_id: str, offset: OffsetToCommit) -> bool:
        """Whether an offset is committed that is neither the expected nor this offset."""
        if offset.expected == ANY_OFFSET:
            return False
        known = self._fetched(offset, self._groups.get(group_id, {}), {})
        return known.offset not in (NO_OFFSET, offset.expected, offset.offset)

    def delete(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> Decision[tuple[PartitionOutcome, ...]]:
        """Delete committed and pending offsets. A partition without offsets succeeds as well."""
        outcomes, records = [], []
        for name in partitions:
            outcomes.append(PartitionOutcome(name.topic, name.partition))
            number = self._topics.numbers.get(name.topic)
            if number is not None:
                slot = number << _PARTITION_BITS | name.partition
                if any(slot in held.get(group_id, ()) for held in (self._groups, self._pending)):
                    records.append(self._record(group_id, slot, None))
        return Decision(tuple(outcomes), tuple(records))

    def delete_group(self, group_id: str, *, offsets_max: int) -> Decision[bool]:
        """Delete at most `offsets_max` offsets of a group. True means that all are deleted."""
        slots = dict.fromkeys((*self._groups.get(group_id, ()), *self._pending.get(group_id, ())))
        records = tuple(self._record(group_id, slot, None) for slot in islice(slots, offsets_max))
        return Decision(len(records) == len(slots), records)

    def sweep(
        self,
        *,
        aging: Aging | None,
        retention_ms: int,
        empty_since_ms: Callable[[str], int | None],
        is_deleted: Callable[[str, TopicId | None], bool],
    ) -> Iterator[tuple[CoordinatorRecord, ...]]:
        """Delete expired offsets, and offsets of deleted topics, in bounded steps.

        The caller replays the records of a step before the next step. Other decisions may come in
        between. No offset expires without `aging`. `empty_since_ms` gives the time at which a
        group's last member left, or 0 if it never had a member. It gives None while the group has
        members, so that its offsets do not expire. `is_deleted` judges a topic by name and id (None
        if the committer gave no id).

        A partition with a pending offset does not expire. A commit ahead of the cluster's time
        counts as a commit of now.
        """
        step: list[CoordinatorRecord] = []
        looked_at = 0
        for group in tuple(self._groups):
            empty_since = empty_since_ms(group)
            for slot in tuple(self._groups.get(group, ())):
                entry = self._groups.get(group, {}).get(slot)
                value = None if entry is None else decode_offset_value(entry)
                if value is None:
                    pass
                elif is_deleted(self._topics.names[slot >> _PARTITION_BITS], value.topic_id):
                    step.append(self._record(group, slot, None))
                elif aging is None or empty_since is None or slot in self._pending.get(group, ()):
                    pass
                elif aging.is_ahead(value.commit_timestamp_ms):
                    step.append(self._record(group, slot, _dated(value, aging.time_ms)))
                elif _is_over(value, aging, empty_since, retention_ms):
                    step.append(self._record(group, slot, None))
                looked_at += 1
                if looked_at == SWEEP_STEP:
                    yield tuple(step)
                    step, looked_at, empty_since = [], 0, empty_since_ms(group)
        yield tuple(step)

    # The dicts

    def _put(self, group: str, slot: int, entry: bytes | None) -> None:
        offsets = self._groups.get(group)
        if entry is None:
            if offsets is not None and offsets.pop(slot, None) is not None:
                self._count -= 1
                if not offsets:
                    del self._groups[group]
                self._topics.release(slot >> _PARTITION_BITS)
            return
        if offsets is None:
            offsets = self._groups[group] = {}
        if slot not in offsets:
            self._count += 1
            self._topics.uses[slot >> _PARTITION_BITS] += 1
        offsets[slot] = entry

    def _put_pending(
        self, group: str, slot: int, producer: Producer, position: int, entry: bytes | None
    ) -> None:
        producer_id, epoch = producer
        if producer_id not in (
            by_producer := self._pending.setdefault(group, {}).setdefault(slot, {})
        ):
            self._topics.uses[slot >> _PARTITION_BITS] += 1
            self._slots_of_producer.setdefault(producer_id, set()).add((group, slot))
        by_producer[producer_id] = _Pending(position, epoch, entry)

    def _remove_pending(self, group: str, slot: int, producer_id: ProducerId) -> None:
        slots = self._pending[group]
        del slots[slot][producer_id]
        if not slots[slot]:
            del slots[slot]
            if not slots:
                del self._pending[group]
        of_producer = self._slots_of_producer[producer_id]
        of_producer.remove((group, slot))
        if not of_producer:
            del self._slots_of_producer[producer_id]
        self._topics.release(slot >> _PARTITION_BITS)

    def _drop_pending(self, group: str, slot: int, *, before: int) -> None:
        by_producer = self._pending.get(group, {}).get(slot, {})
        for producer_id in [id for id, each in by_producer.items() if each.position < before]:
            self._remove_pending(group, slot, producer_id)

    # Entries

    def _fetched(
        self,
        name: TopicPartition | CommittedOffset,
        offsets: dict[int, bytes],
        pending: dict[int, dict[ProducerId, _Pending]],
    ) -> FetchedOffset:
        slot = self._topics.numbers.get(name.topic, 0) << _PARTITION_BITS | name.partition
        if slot in pending:
            return FetchedOffset(
                name.topic, name.partition, NO_OFFSET, error_code=UNSTABLE_OFFSET_COMMIT.code
            )
        entry = offsets.get(slot)
        if entry is None:
            return FetchedOffset(name.topic, name.partition, NO_OFFSET)
        value = decode_offset_value(entry)
        if None not in (name.topic_id, value.topic_id) and name.topic_id != value.topic_id:
            return FetchedOffset(name.topic, name.partition, NO_OFFSET)
        return FetchedOffset(
            topic=name.topic,
            partition=name.partition,
            offset=value.offset,
            leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            topic_id=value.topic_id,
        )

    def _record(self, group: str, slot: int, value: OffsetCommitValue | None) -> CoordinatorRecord:
        topic = self._topics.names[slot >> _PARTITION_BITS]
        return CoordinatorRecord(OffsetCommitKey(group, topic, slot & _PARTITION_MASK), value)


def _is_over(
    value: OffsetCommitValue, aging: Aging, empty_since_ms: int, retention_ms: int
) -> bool:
    if value.expire_timestamp_ms != NO_TIMESTAMP:
        return aging.is_over(value.expire_timestamp_ms, 0)
    return aging.is_over(max(empty_since_ms, value.commit_timestamp_ms), retention_ms)


def _dated(value: OffsetCommitValue, time_ms: int) -> OffsetCommitValue:
    """The offset as committed at a time, with the retention of its committer."""
    expire_ms = value.expire_timestamp_ms
    if expire_ms != NO_TIMESTAMP:
        expire_ms = min(time_ms + expire_ms - value.commit_timestamp_ms, _INT64_MAX)
    return replace(value, commit_timestamp_ms=time_ms, expire_timestamp_ms=expire_ms)


def _refusal(offset: OffsetToCommit) -> int:
    if not (
        0 <= offset.partition <= _INT32_MAX
        and 0 <= offset.offset <= _INT64_MAX
        and -1 <= offset.leader_epoch <= _INT32_MAX
    ):
        return INVALID_BODY.code
    # A character takes at most four bytes, so short metadata needs no encoding to be checked.
    if 4 * len(offset.metadata) <= METADATA_BYTES_MAX:
        return 0
    is_too_large = len(offset.metadata.encode()) > METADATA_BYTES_MAX
    return OFFSET_METADATA_TOO_LARGE.code if is_too_large else 0
