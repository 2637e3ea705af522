"""The anomalies of a history of records: pure functions, each anomaly named.

| anomaly | meaning |
|---|---|
| LOST_WRITE | acknowledged with acks=all, and missed by a reader past its offset |
| INCONSISTENT_OFFSET | two values at one offset, over all readers and writers, for ever |
| DUPLICATE | one value at two offsets, though its sends carried sequences, or was sent once |
| UNWRITTEN_READ | a value was read without a send, or before its send |
| REFUSED_READ | a value was read though its send was refused |
| NON_MONOTONIC_POLL | a consumer got an offset at or below an earlier one |
| SKIPPED_POLL | a consumer passed an offset with a known value |
| NON_MONOTONIC_SEND | a later send of one idempotent producer has a lower offset |
| REAL_TIME_ORDER | a send begun after another's acknowledgement has a lower offset |
| WITHDRAWN_READ | a value was read, and a later or the final read of its offset lacks the value |
| UNSEEN | acknowledged with acks=all, and in no final read |
| END_WENT_BACK | an end offset is below an earlier acknowledgement or end offset |
| SHORT_START | a replica begins above offset 0, without a request to delete records |
| UNDELETED | a replica keeps records below an acknowledged deletion, or before a tombstone gone |
| LOOKUP_WRONG | the record found for a time is older than the time, or has another timestamp |
| LOOKUP_PASSED | a lookup by time passed a record that was known before it began |
| ZOMBIE | a batch of an older producer epoch is behind one of a newer epoch |

A record of a compacted partition is not missed where a later record, below the end of what was
compacted, has its key; nor a tombstone there, but for a replica that keeps what it deletes.

Reported losses (promise 2) cancel all knowledge of the partition from `Loss.offset` on, before
`Loss.step`.

A history is checked whole, in memory: about 1 kB for each value.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.verification.history_file import load
from tests.verification.log_history import (
    ACKS_ALL,
    DECODER,
    Assign,
    Compacted,
    Deletion,
    End,
    FinalRead,
    Lookup,
    Loss,
    Operation,
    Poll,
    Send,
    is_tombstone,
)

SHOWN_MAX: Final = 20


class Kind(StrEnum):
    """The anomalies; see the module."""

    LOST_WRITE = "lost write"
    INCONSISTENT_OFFSET = "inconsistent offset"
    DUPLICATE = "duplicate"
    UNWRITTEN_READ = "unwritten read"
    REFUSED_READ = "refused read"
    NON_MONOTONIC_POLL = "non-monotonic poll"
    SKIPPED_POLL = "skipped poll"
    NON_MONOTONIC_SEND = "non-monotonic send"
    REAL_TIME_ORDER = "real-time order"
    WITHDRAWN_READ = "withdrawn read"
    UNSEEN = "unseen"
    END_WENT_BACK = "end went back"
    SHORT_START = "short start"
    UNDELETED = "undeleted"
    LOOKUP_WRONG = "lookup wrong"
    LOOKUP_PASSED = "lookup passed"
    ZOMBIE = "zombie"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One anomaly, with its partition."""

    kind: StrEnum
    """A `Kind`, or one of transaction_checker.py."""
    partition: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.partition}: {self.detail}"


class HistoryError(AssertionError):
    """The history is wrong."""


def require_sound(operations: Iterable[Operation]) -> None:
    """Raise HistoryError, with the anomalies, if there are any."""
    require_none(check(operations))


def require_none(found: Iterable[Anomaly]) -> None:
    """Raise HistoryError if there are anomalies."""
    anomalies = list(found)
    if anomalies:
        shown = "\n".join(map(str, anomalies[:SHOWN_MAX]))
        raise HistoryError(f"{len(anomalies)} anomalies:\n{shown}")


def check(operations: Iterable[Operation]) -> list[Anomaly]:
    """All anomalies, partition by partition."""
    partitions: dict[str, _Partition] = {}
    for operation in operations:
        name = operation.partition
        if name not in partitions:
            partitions[name] = _Partition(name)
        partitions[name].take(operation)
    return [anomaly for name in sorted(partitions) for anomaly in partitions[name].anomalies()]


def between(offsets: Sequence[int], start: int, end: int) -> Sequence[int]:
    """The sorted offsets from `start` on and below `end`."""
    return offsets[bisect_left(offsets, start) : bisect_left(offsets, end)]


@dataclass(slots=True)
class _Known:
    """The known value at one offset."""

    value: str
    acked_at: int | None = None
    """Step of the first acknowledgement with acks=all."""
    read_at: int | None = None
    """Step of the first read."""


@dataclass(slots=True)
class _Partition:
    name: str
    sends: list[Send] = field(default_factory=list)
    walks: dict[str, list[Assign | Poll]] = field(default_factory=lambda: defaultdict(list))
    ends: list[End] = field(default_factory=list)
    finals: list[FinalRead] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)
    deleted_before: int = 0
    """By any request, whatever its answer."""
    gone_before: int = 0
    """By an acknowledged request."""
    compacted_end: int = 0
    last_of_key: dict[str, int] = field(default_factory=dict)
    """The last known offset below `compacted_end` with the key."""
    unseen_tombstones: dict[str, list[Send]] = field(default_factory=lambda: defaultdict(list))
    """By key: sends with a tombstone that may have been written, and has gone without a reader."""
    writers: dict[str, Send] = field(default_factory=dict)
    known: dict[int, _Known] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    """Of `known`, sorted."""
    places: dict[str, int] = field(default_factory=dict)
    """Value to its offset, by readers and by acknowledgements of acks=all."""

    def take(self, operation: Operation) -> None:
        match operation:
            case Send():
                self.sends.append(operation)
            case Assign() | Poll():
                self.walks[operation.consumer].append(operation)
            case End():
                self.ends.append(operation)
            case FinalRead():
                self.finals.append(operation)
            case Loss():
                self.losses.append(operation)
            case Deletion():
                self.deleted_before = max(self.deleted_before, operation.before)
                if operation.completed is not None:
                    self.gone_before = max(self.gone_before, operation.before)
            case Lookup():
                self.lookups.append(operation)
            case Compacted():
                self.compacted_end = max(self.compacted_end, operation.end)

    def anomalies(self) -> Iterator[Anomaly]:
        self.sends.sort(key=lambda send: send.invoked)
        yield from self._collect()
        self.offsets = sorted(self.known)
        self._find_last_of_keys()
        yield from self._check_walks()
        yield from self._check_finals()
        yield from self._check_producers()
        yield from self._check_real_time()
        yield from self._check_ends()
        yield from self._check_lookups()
        yield from self._check_epochs()

    def _found(self, kind: Kind, detail: str) -> Anomaly:
        return Anomaly(kind, self.name, detail)

    def _is_lost(self, offset: int, step: int) -> bool:
        """Whether a reported loss covers an offset known at that step."""
        return any(loss.offset <= offset and loss.step >= step for loss in self.losses)

    def _is_given_up(self, offset: int, value: str) -> bool:
        """Whether a reported loss may have taken the record; its answers may arrive later."""
        writer = self.writers.get(value)
        return writer is not None and any(
            loss.offset <= offset and loss.step >= writer.invoked for loss in self.losses
        )

    # Keys and times

    def _key(self, value: str) -> str | None:
        writer = self.writers.get(value)
        if writer is None or not writer.keys:
            return None
        return writer.keys[writer.values.index(value)]

    def _time(self, value: str) -> int | None:
        writer = self.writers.get(value)
        if writer is None or not writer.times:
            return None
        return writer.times[writer.values.index(value)]

    def _find_last_of_keys(self) -> None:
        if not self.compacted_end:
            return
        for offset in self.offsets:
            key = self._key(self.known[offset].value) if offset < self.compacted_end else None
            if key is not None:
                self.last_of_key[key] = offset
        for send in self.sends:
            is_sure = send.outcome == "ok" and send.acks == ACKS_ALL
            if send.outcome == "refused" or is_sure:
                continue
            for key, value in zip(send.keys, send.values, strict=bool(send.keys)):
                if is_tombstone(value) and value not in self.places:
                    self.unseen_tombstones[key].append(send)

    def _is_superseded(self, offset: int, value: str) -> bool:
        """Whether compaction may have removed the record."""
        if offset >= self.compacted_end:
            return False
        key = self._key(value)
        if key is None:
            return False
        if is_tombstone(value) or self.last_of_key.get(key, -1) > offset:
            return True
        writer = self.writers[value]
        return any(
            send.completed is None or send.completed >= writer.invoked
            for send in self.unseen_tombstones.get(key, ())
        )

    # Values and offsets

    def _collect(self) -> Iterator[Anomaly]:
        """Collect the known value of each offset, and the offset of each value."""
        for send in self.sends:
            for value in send.values:
                if value in self.writers:
                    raise HistoryError(f"{value!r} is sent twice: the history cannot be judged")
                self.writers[value] = send
        kept = {record for final in self.finals for record in final.records}
        for send in self.sends:
            if send.outcome == "ok" and send.acks == ACKS_ALL and send.offset is not None:
                assert send.completed is not None, send
                for position, value in enumerate(send.values):
                    at = send.offset + position
                    if (at, value) in kept or not self._is_given_up(at, value):
                        yield from self._note(at, value, acked_at=send.completed)
        for poll in self._polls():
            for offset, value in poll.records:
                if (offset, value) not in kept and self._is_given_up(offset, value):
                    continue
                yield from self._note(offset, value, read_at=poll.completed)
                yield from self._check_writer(offset, value, poll.completed)
        for final in self.finals:
            for offset, value in final.records:
                yield from self._note(offset, value)
                yield from self._check_writer(offset, value, None)

    def _polls(self) -> Iterator[Poll]:
        polls = [each for walk in self.walks.values() for each in walk if isinstance(each, Poll)]
        yield from sorted(polls, key=lambda poll: poll.completed)

    def _note(
        self, offset: int, value: str, *, acked_at: int | None = None, read_at: int | None = None
    ) -> Iterator[Anomaly]:
        step = acked_at if acked_at is not None else read_at
        if step is not None and self._is_lost(offset, step):
            return
        known = self.known.get(offset)
        if known is None:
            known = self.known[offset] = _Known(value)
        elif known.value != value:
            yield self._found(
                Kind.INCONSISTENT_OFFSET, f"{offset} is {known.value!r} and {value!r}"
            )
            return
        if acked_at is not None and (known.acked_at is None or acked_at < known.acked_at):
            known.acked_at = acked_at
        if read_at is not None and (known.read_at is None or read_at < known.read_at):
            known.read_at = read_at
        place = self.places.setdefault(value, offset)
        if place != offset:
            writer = self.writers.get(value)
            if writer is None or writer.idempotent or not writer.repeated:
                yield self._found(Kind.DUPLICATE, f"{value!r} is at {place} and {offset}")

    def _check_writer(self, offset: int, value: str, read_at: int | None) -> Iterator[Anomaly]:
        writer = self.writers.get(value)
        if writer is None:
            yield self._found(
                Kind.UNWRITTEN_READ, f"{value!r} was never sent, and read at {offset}"
            )
        elif writer.outcome == "refused":
            yield self._found(Kind.REFUSED_READ, f"{value!r} was refused, and read at {offset}")
        elif read_at is not None and read_at < writer.invoked:
            yield self._found(
                Kind.UNWRITTEN_READ, f"{value!r} was read at step {read_at}, before it was sent"
            )

    # Readers

    def _between(self, start: int, end: int) -> Sequence[int]:
        """Offsets from `start` on and below `end` of which something is known."""
        return between(self.offsets, start, end)

    def _check_walks(self) -> Iterator[Anomaly]:
        for consumer in sorted(self.walks):
            position: int | None = None
            for step in self.walks[consumer]:
                if isinstance(step, Assign):
                    position = step.offset
                    continue
                yield from self._check_poll(consumer, step, position)
                position = step.next_offset

    def _check_poll(self, consumer: str, poll: Poll, position: int | None) -> Iterator[Anomaly]:
        last = -1 if position is None else position - 1
        for offset, _ in poll.records:
            if offset <= last:
                yield self._found(
                    Kind.NON_MONOTONIC_POLL, f"{consumer} got {offset}, and stood behind {last}"
                )
            last = max(last, offset)
        if poll.next_offset <= last:
            yield self._found(
                Kind.NON_MONOTONIC_POLL, f"{consumer} got {last}, and goes on at {poll.next_offset}"
            )
        start = poll.start if position is None else min(position, poll.start)
        given = {offset for offset, _ in poll.records}
        for offset in self._between(start, poll.next_offset):
            if offset in given:
                continue
            known = self.known[offset]
            if self._is_superseded(offset, known.value):
                continue
            what = f"{consumer} on {poll.node or '?'} went past {offset} ({known.value!r})"
            if known.acked_at is not None:
                yield self._found(Kind.LOST_WRITE, what)
            elif known.read_at is not None and known.read_at < poll.invoked:
                yield self._found(Kind.WITHDRAWN_READ, what)
            yield self._found(Kind.SKIPPED_POLL, what)

    def _check_finals(self) -> Iterator[Anomaly]:
        if not self.finals:
            acked = [offset for offset in self.offsets if self.known[offset].acked_at is not None]
            if acked:
                yield self._found(Kind.UNSEEN, f"{len(acked)} acknowledged, and no final read")
            return
        seen: set[str] = set()
        for final in self.finals:
            seen.update(value for _, value in final.records)
            yield from self._check_final(final)
        yield from self._check_unseen(seen)

    def _check_final(self, final: FinalRead) -> Iterator[Anomaly]:
        given = dict(final.records)
        if final.start > self.deleted_before:
            yield self._found(
                Kind.SHORT_START,
                f"{final.node} begins at {final.start}, without a request to delete",
            )
        if final.start < self.gone_before:
            yield self._found(
                Kind.UNDELETED,
                f"{final.node} begins at {final.start}; all below {self.gone_before} was deleted",
            )
        offsets = [offset for offset, _ in final.records]
        if offsets != sorted(set(offsets)):
            yield self._found(Kind.NON_MONOTONIC_POLL, f"the final read of {final.node}")
        yield from self._check_tombstones(final)
        for offset in self.offsets:
            known = self.known[offset]
            if offset < min(final.start, self.deleted_before) or offset in given:
                continue
            if self._is_superseded(offset, known.value):
                continue
            what = f"{final.node}, {final.start} to {final.end}, lacks {offset} ({known.value!r})"
            if known.acked_at is not None:
                yield self._found(Kind.LOST_WRITE, what)
            elif known.read_at is not None:
                yield self._found(Kind.WITHDRAWN_READ, what)
            elif offset < final.end:
                yield self._found(Kind.SKIPPED_POLL, what)

    def _check_tombstones(self, final: FinalRead) -> Iterator[Anomaly]:
        """A tombstone goes only after all earlier records of its key: no value of it is back."""
        last: dict[str, tuple[int, str]] = {}
        for offset, value in final.records:
            if (key := self._key(value)) is not None:
                last[key] = offset, value
        for offset in self.offsets:
            value = self.known[offset].value
            known = last.get(self._key(value) or "")
            if known is None or not is_tombstone(value) or offset < final.start:
                continue
            if known[0] < offset and not is_tombstone(known[1]):
                yield self._found(
                    Kind.UNDELETED,
                    f"{final.node} lacks the tombstone at {offset}, and keeps {known[0]}",
                )

    def _check_unseen(self, seen: set[str]) -> Iterator[Anomaly]:
        for send in self.sends:
            if send.outcome != "ok" or send.acks != ACKS_ALL:
                continue
            assert send.completed is not None
            for position, value in enumerate(send.values):
                if value in seen:
                    continue
                offset = self.places.get(value) if send.offset is None else send.offset + position
                if offset is None and self.losses:
                    # Acknowledged as a repetition: perhaps of a record lost since.
                    continue
                if offset is not None and (
                    offset < self.deleted_before
                    or self._is_lost(offset, send.invoked)
                    or self._is_superseded(offset, value)
                ):
                    continue
                yield self._found(Kind.UNSEEN, f"{value!r} (at {send.offset})")

    # Order

    def _place(self, send: Send) -> tuple[int, int] | None:
        """First and last offset of a send; None: unknown."""
        if send.outcome == "ok" and send.acks == ACKS_ALL and send.offset is not None:
            assert send.completed is not None
            last = send.offset + len(send.values) - 1
            while last >= send.offset and self._is_lost(last, send.invoked):
                last -= 1
            return (send.offset, last) if last >= send.offset else None
        found = [self.places[value] for value in send.values if value in self.places]
        return (min(found), max(found)) if found else None

    def _check_producers(self) -> Iterator[Anomaly]:
        before: dict[str, tuple[int, Send]] = {}
        for send in self.sends:
            place = self._place(send)
            if not send.idempotent or place is None:
                continue
            known = before.get(send.producer)
            if known is not None and place[0] <= known[0]:
                yield self._found(
                    Kind.NON_MONOTONIC_SEND,
                    f"{send.producer} sent {known[1].values[-1]!r} (at {known[0]}) before "
                    f"{send.values[0]!r} (at {place[0]})",
                )
            before[send.producer] = (place[1], send)

    def _check_real_time(self) -> Iterator[Anomaly]:
        acked = sorted(
            (send.completed, self._place(send), send.values[-1])
            for send in self.sends
            if send.outcome == "ok" and send.acks == ACKS_ALL and self._place(send) is not None
        )
        highest, winner, at = -1, "", 0
        for send in self.sends:
            while at < len(acked) and acked[at][0] < send.invoked:  # type: ignore[operator]
                _, place, value = acked[at]
                assert place is not None
                if place[1] > highest:
                    highest, winner = place[1], value
                at += 1
            place = self._place(send)
            if place is not None and place[0] <= highest:
                yield self._found(
                    Kind.REAL_TIME_ORDER,
                    f"{send.values[0]!r} (at {place[0]}) was sent after {winner!r} (at {highest}) "
                    "was acknowledged",
                )

    def _check_ends(self) -> Iterator[Anomaly]:
        bounds: list[tuple[int, int, str]] = []
        for send in self.sends:
            place = self._place(send)
            if send.outcome == "ok" and send.acks == ACKS_ALL and place is not None:
                assert send.completed is not None
                bounds.append(
                    (send.completed, place[1] + 1, f"{send.values[-1]!r} was acknowledged")
                )
        for end in self.ends:
            if not self._is_lost(end.offset - 1, end.completed):
                bounds.append((end.completed, end.offset, f"end offset of {end.node or '?'}"))
        bounds.sort()
        highest, reason, at = 0, "", 0
        for end in sorted(self.ends, key=lambda end: end.invoked):
            while at < len(bounds) and bounds[at][0] < end.invoked:
                if bounds[at][1] > highest:
                    _, highest, reason = bounds[at]
                at += 1
            if end.offset < highest:
                yield self._found(
                    Kind.END_WENT_BACK,
                    f"{end.node or '?'} answered {end.offset} as the end after {highest}: {reason}",
                )

    def _check_lookups(self) -> Iterator[Anomaly]:
        for lookup in self.lookups:
            what = f"{lookup.node or '?'} answered {lookup.offset} for {lookup.time_ms}"
            if lookup.offset is not None and not self._is_lost(lookup.offset, lookup.completed):
                found = self.known.get(lookup.offset)
                found_ms = None if found is None else self._time(found.value)
                is_early = lookup.found_ms is not None and lookup.found_ms < lookup.time_ms
                if is_early or found_ms not in (None, lookup.found_ms):
                    yield self._found(
                        Kind.LOOKUP_WRONG,
                        f"{what}, with {lookup.found_ms}; that record has {found_ms}",
                    )
            passed = self._passed(lookup)
            if passed is not None:
                value = self.known[passed].value
                yield self._found(
                    Kind.LOOKUP_PASSED, f"{what}, past {value!r} (at {passed}, {self._time(value)})"
                )

    def _passed(self, lookup: Lookup) -> int | None:
        """A record known before the lookup began, and before its answer, that fits its time."""
        for offset in self.offsets:
            if lookup.offset is not None and offset >= lookup.offset:
                return None
            known = self.known[offset]
            steps = [step for step in (known.acked_at, known.read_at) if step is not None]
            time_ms = self._time(known.value)
            if (
                steps
                and min(steps) < lookup.invoked
                and time_ms is not None
                and time_ms >= lookup.time_ms
                and offset >= self.deleted_before
                and not self._is_superseded(offset, known.value)
            ):
                return offset
        return None

    def _check_epochs(self) -> Iterator[Anomaly]:
        """The log has the batches of one producer id in the order of its epochs."""
        placed = [
            (place, send)
            for send in self.sends
            if send.identity is not None and (place := self._place(send)) is not None
        ]
        newest: dict[int, tuple[int, Send]] = {}
        for place, send in sorted(placed, key=lambda each: each[0]):
            assert send.identity is not None
            producer_id, epoch = send.identity
            known = newest.get(producer_id)
            if known is not None and epoch < known[0]:
                yield self._found(
                    Kind.ZOMBIE,
                    f"{send.values[0]!r} of epoch {epoch} (at {place[0]}) is behind "
                    f"{known[1].values[0]!r} of epoch {known[0]}",
                )
            elif known is None or epoch > known[0]:
                newest[producer_id] = (epoch, send)


def main(paths: Sequence[str]) -> int:
    """Judge histories in files; returns the exit code."""
    failed = False
    for path in paths:
        anomalies = check(load(Path(path), DECODER))
        failed = failed or bool(anomalies)
        for anomaly in anomalies[:SHOWN_MAX]:
            sys.stdout.write(f"{anomaly}\n")
        sys.stdout.write(f"{path}: {len(anomalies)} anomalies\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
