"""The anomalies of a history of transactions: pure functions, each anomaly named.

| anomaly | meaning |
|---|---|
| ABORTED_READ | a read_committed reader got a record of an aborted transaction (G1a) |
| UNDECIDED_READ | a read_committed reader got a record before the commit was requested |
| HALF_SEEN | a read_committed reader got one record of a transaction, and one missed another |
| LOST_COMMIT | a commit was acknowledged, and a read_committed reader missed a record |
| OFFSET_AHEAD | a committed offset that no transaction has committed up to then |
| OFFSET_WENT_BACK | a committed offset below the one of an earlier acknowledged commit |
| PROCESSED_TWICE | two committed transactions of one group processed the same input |
| NOT_PROCESSED | committed transactions of one group left a gap in their input |

A reader misses a record by passing its offset: a reader may be late, and see half of a transaction
until it has caught up. An unknown outcome is either all or nothing: with one record read, the
transaction counts as committed.

All else is judged by log_checker.py, over two views: all records with the readers of all, and the
records of committed transactions with the read_committed readers. There a duplicate, a record out
of order, a loss or an end that goes back is found. In compacted partitions, records of aborted
transactions may go at once, and are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from tests.verification import log_checker
from tests.verification.log_checker import Anomaly
from tests.verification.log_history import (
    ACKS_ALL,
    Assign,
    Compacted,
    Deletion,
    End,
    FinalRead,
    Operation,
    Poll,
    Send,
    is_tombstone,
)
from tests.verification.transaction_history import (
    CommittedOffset,
    Processed,
    Transaction,
    TransactionOperation,
)


class Kind(StrEnum):
    """The anomalies; see the module."""

    ABORTED_READ = "aborted read"
    UNDECIDED_READ = "undecided read"
    HALF_SEEN = "half seen"
    LOST_COMMIT = "lost commit"
    OFFSET_AHEAD = "offset ahead"
    OFFSET_WENT_BACK = "offset went back"
    PROCESSED_TWICE = "processed twice"
    NOT_PROCESSED = "not processed"


def check(operations: Iterable[TransactionOperation]) -> list[Anomaly]:
    """All anomalies: of transactions first, then those of the records alone."""
    transactions: dict[str, Transaction] = {}
    offsets: list[CommittedOffset] = []
    records: list[Operation] = []
    for operation in operations:
        if isinstance(operation, Transaction):
            if operation.name in transactions:
                raise log_checker.HistoryError(f"two transactions are named {operation.name!r}")
            transactions[operation.name] = operation
        elif isinstance(operation, CommittedOffset):
            offsets.append(operation)
        else:
            records.append(operation)
    partitions = _partitions(records)
    committed = _committed(transactions, partitions.values())
    found = [
        *_visibility(transactions, partitions, committed),
        *_offsets(transactions, offsets, committed),
    ]
    for view in (
        _view_of_all(records, partitions, committed),
        _view_of_committed(records, partitions),
        [each for each in records if isinstance(each, End) and each.is_committed],
    ):
        found += log_checker.check(view)
    return found


def require_sound(operations: Iterable[TransactionOperation]) -> None:
    """Raise HistoryError, with the anomalies, if there are any."""
    log_checker.require_none(check(operations))


# Records


@dataclass(slots=True)
class _Missed:
    """A record that a reader passed."""

    reader: str
    value: str
    offset: int


@dataclass(slots=True)
class _Partition:
    """The records of one partition, and the read_committed readers."""

    name: str
    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    finals: list[FinalRead] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    """Value to its offset, by any reader or acknowledgement."""
    seen: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Value to the step of its first committed read, and the reader."""
    keys: dict[str, str] = field(default_factory=dict)
    deleted_before: int = 0
    compacted_end: int = 0
    committed_readers: set[str] = field(default_factory=set)

    def take(self, operation: Operation) -> None:
        match operation:
            case Send():
                self.sends.append(operation)
                self.keys.update(zip(operation.values, operation.keys, strict=False))
                if operation.offset is not None and operation.acks == ACKS_ALL:
                    for place, value in enumerate(operation.values, operation.offset):
                        self.places.setdefault(value, place)
            case Poll():
                self._read(operation.records)
                if operation.is_committed:
                    self.polls.append(operation)
                    self.committed_readers.add(operation.consumer)
                    self._see(operation.records, operation.completed, operation.consumer)
            case FinalRead():
                self._read(operation.records)
                if operation.is_committed:
                    self.finals.append(operation)
                    self._see(operation.records, _LATEST, operation.node)
            case Deletion():
                self.deleted_before = max(self.deleted_before, operation.before)
            case Compacted():
                self.compacted_end = max(self.compacted_end, operation.end)
            case _:
                pass

    def _read(self, records: Sequence[tuple[int, str]]) -> None:
        for offset, value in records:
            self.places.setdefault(value, offset)

    def _see(self, records: Sequence[tuple[int, str]], step: int, reader: str) -> None:
        for _, value in records:
            known = self.seen.get(value)
            if known is None or step < known[0]:
                self.seen[value] = step, reader

    def missed(self, wanted: dict[str, str]) -> Iterator[_Missed]:
        """Each of the `wanted` values, with their transactions, that a reader passed."""
        newest = self._newest_of_keys(wanted)
        at = {self.places[value]: value for value in wanted if value in self.places}
        walks = [(each.consumer, each.start, each.next_offset, each.records) for each in self.polls]
        walks += [(each.node, each.start, each.end, each.records) for each in self.finals]
        offsets = sorted(at)
        for reader, start, end, records in walks:
            given = {value for _, value in records}
            for offset in log_checker.between(offsets, start, end):
                value = at[offset]
                if value not in given and not self._is_superseded(offset, value, newest):
                    yield _Missed(reader, value, offset)

    def unseen(self, wanted: dict[str, str]) -> Iterator[_Missed]:
        """Each acknowledged one of the `wanted` values that is at no known place."""
        if self.deleted_before or self.compacted_end or not self.finals:
            return
        for send in self.sends:
            for value in send.values if send.outcome == "ok" and send.acks == ACKS_ALL else ():
                if value in wanted and value not in self.places:
                    yield _Missed("every reader", value, -1)

    def uncommitted(self, committed: frozenset[str]) -> frozenset[str]:
        """The values of transactions that are not committed."""
        return frozenset(
            value
            for send in self.sends
            if send.transaction and send.transaction not in committed
            for value in send.values
        )

    def _newest_of_keys(self, wanted: dict[str, str]) -> dict[str, int]:
        newest: dict[str, int] = {}
        if not self.compacted_end:
            return newest
        plain = {value for send in self.sends if not send.transaction for value in send.values}
        for value, offset in self.places.items():
            key = self.keys.get(value)
            if key is not None and offset < self.compacted_end and (
                value in wanted or value in plain
            ):  # fmt: skip
                newest[key] = max(offset, newest.get(key, -1))
        return newest

    def _is_superseded(self, offset: int, value: str, newest: dict[str, int]) -> bool:
        """Whether compaction may have removed the record: only a committed one supersedes it."""
        key = self.keys.get(value)
        if key is None or offset >= self.compacted_end:
            return False
        return newest.get(key, -1) > offset or is_tombstone(value)


_LATEST: Final = 1 << 62
"""The step of a final read."""


def _partitions(records: Iterable[Operation]) -> dict[str, _Partition]:
    found: dict[str, _Partition] = {}
    for operation in records:
        name = operation.partition
        if name not in found:
            found[name] = _Partition(name)
        found[name].take(operation)
    return dict(sorted(found.items()))


def _committed(
    transactions: dict[str, Transaction], partitions: Iterable[_Partition]
) -> frozenset[str]:
    """The transactions that are committed: acknowledged, or unknown and seen."""
    seen: set[str] = set()
    for partition in partitions:
        for send in partition.sends:
            if send.transaction and any(value in partition.seen for value in send.values):
                seen.add(send.transaction)
    return frozenset(
        name
        for name, each in transactions.items()
        if each.outcome == "committed" or (each.outcome == "unknown" and name in seen)
    )


def _visibility(
    transactions: dict[str, Transaction],
    partitions: dict[str, _Partition],
    committed: frozenset[str],
) -> Iterator[Anomaly]:
    seen: dict[str, str] = {}
    missed: dict[str, list[tuple[str, _Missed]]] = defaultdict(list)
    for partition in partitions.values():
        owners = {
            value: send.transaction
            for send in partition.sends
            if send.transaction
            for value in send.values
        }
        for value, owner in owners.items():
            if value not in partition.seen:
                continue
            step, reader = partition.seen[value]
            seen.setdefault(owner, value)
            present = transactions[owner]
            what = f"{reader} got {value!r} of {owner}"
            if present.ending is not None and step < present.ending:
                yield Anomaly(
                    Kind.UNDECIDED_READ, partition.name, f"{what} before its commit was requested"
                )
            elif present.outcome == "aborted":
                yield Anomaly(Kind.ABORTED_READ, partition.name, f"{what}, which was aborted")
        wanted = {value: owner for value, owner in owners.items() if owner in committed}
        for each in (*partition.missed(wanted), *partition.unseen(wanted)):
            missed[wanted[each.value]].append((partition.name, each))
    for owner, misses in sorted(missed.items()):
        for name, each in misses:
            what = f"{each.reader} missed {each.value!r} (at {each.offset}) of {owner}"
            if owner in seen:
                yield Anomaly(Kind.HALF_SEEN, name, f"{what}; {seen[owner]!r} was read")
            else:
                yield Anomaly(Kind.LOST_COMMIT, name, what)


# Views for the checker of records


def _view_of_all(
    records: Iterable[Operation], partitions: dict[str, _Partition], committed: frozenset[str]
) -> Iterator[Operation]:
    """All sends, and the readers of all records; in compacted partitions, of what is committed."""
    given_up = {
        name: partition.uncommitted(committed)
        for name, partition in partitions.items()
        if partition.compacted_end
    }
    for operation in records:
        gone = given_up.get(operation.partition, frozenset())
        match operation:
            case Send():
                if operation.values[0] not in gone:
                    yield operation
            case Poll() | FinalRead():
                if not operation.is_committed:
                    kept = tuple(each for each in operation.records if each[1] not in gone)
                    yield replace(operation, records=kept)
            case Assign():
                if operation.consumer not in partitions[operation.partition].committed_readers:
                    yield operation
            case End():
                if not operation.is_committed:
                    yield operation
            case _:
                yield operation


def _view_of_committed(
    records: Iterable[Operation], partitions: dict[str, _Partition]
) -> Iterator[Operation]:
    """The readers of committed records. Sends in transactions count as unknown: `_visibility`."""
    for operation in records:
        match operation:
            case Send():
                is_unknown = bool(operation.transaction)
                yield (
                    replace(operation, outcome="unknown", offset=None) if is_unknown else operation
                )
            case Poll() | FinalRead():
                if operation.is_committed:
                    yield operation
            case Assign():
                if operation.consumer in partitions[operation.partition].committed_readers:
                    yield operation
            case End():
                pass
            case _:
                yield operation


# Offsets of groups


def _offsets(
    transactions: dict[str, Transaction],
    reads: Sequence[CommittedOffset],
    committed: frozenset[str],
) -> Iterator[Anomaly]:
    inputs: dict[tuple[str, str], list[tuple[Processed, Transaction]]] = defaultdict(list)
    for transaction in transactions.values():
        for each in transaction.processed:
            inputs[each.group, each.partition].append((each, transaction))
    for read in reads:
        yield from _check_offset(read, inputs.get((read.group, read.partition), []))
    for (group, name), taken in sorted(inputs.items()):
        yield from _check_input(group, name, taken, committed)


def _check_offset(
    read: CommittedOffset, taken: Sequence[tuple[Processed, Transaction]]
) -> Iterator[Anomaly]:
    possible = {0}
    least, winner = 0, ""
    for each, transaction in taken:
        if transaction.ending is None or transaction.outcome == "aborted":
            continue
        if transaction.ending < read.completed:
            possible.add(each.end)
        if (
            transaction.outcome == "committed"
            and transaction.completed is not None
            and transaction.completed < read.invoked
            and each.end > least
        ):
            least, winner = each.end, transaction.name
    what = f"{read.group} stands at {read.offset}"
    if read.offset not in possible:
        yield Anomaly(Kind.OFFSET_AHEAD, read.partition, f"{what}; committed: {sorted(possible)}")
    if read.offset < least:
        yield Anomaly(
            Kind.OFFSET_WENT_BACK, read.partition, f"{what}, and {winner} had committed {least}"
        )


def _check_input(
    group: str,
    name: str,
    taken: Sequence[tuple[Processed, Transaction]],
    committed: frozenset[str],
) -> Iterator[Anomaly]:
    kept = sorted(
        (each.start, each.end, transaction.name)
        for each, transaction in taken
        if transaction.name in committed
    )
    maybe = [
        each
        for each, transaction in taken
        if transaction.outcome == "unknown" and transaction.name not in committed
    ]
    end, before = 0, "the beginning"
    for start, following, owner in kept:
        what = f"{group}: {owner} processed {start} to {following} after {before} (to {end})"
        if start < end:
            yield Anomaly(Kind.PROCESSED_TWICE, name, what)
        elif start > end and not any(each.start <= end and each.end > end for each in maybe):
            yield Anomaly(Kind.NOT_PROCESSED, name, what)
        if following > end:
            end, before = following, owner
