"""A history of records: sends, reads and their results by client, after Jepsen's Kafka workload.

Every value is sent once in the whole history (retries of one send belong to that send), so a read
value identifies its writer. Steps are numbers that grow with time, all of one clock: virtual or
monotonic nanoseconds, or a count. Only their order matters; equal steps count as simultaneous.

| operation | recorded by | when |
|---|---|---|
| Send | a producer | the outcome is known, the producer gives up, or the history ends |
| Assign | a consumer | before a read of a partition from another offset than its position |
| Poll | a consumer | records came, or the position moved |
| End | any client | a leader answered with the partition's end offset for readers |
| FinalRead | the checker's caller | the faults are over; once per readable replica |
| Loss | the checker's caller | the partition reported that records may be lost (promise 2) |
| Deletion | the client of the deletion | before the request is sent, and again when acknowledged |
| Lookup | any client | a leader answered which record is the first at or after a time |
| Compacted | the checker's caller | the faults are over; once per compacted partition |
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

ACKS_ALL: Final = -1

TOMBSTONE: Final = "/tombstone"
"""Ending of the value that stands for a record with a key and without a value."""

Outcome: TypeAlias = Literal["ok", "refused", "unknown"]
Pairs: TypeAlias = tuple[tuple[int, str], ...]
"""Offsets and values of read records."""


def is_tombstone(value: str) -> bool:
    """Whether the record has no value: compaction may remove it, with all before of its key."""
    return value.endswith(TOMBSTONE)


class _Operation(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    partition: str
    """Topic and number, in any unique spelling."""


class Send(_Operation, frozen=True, tag="send"):
    """One batch of values, written at consecutive offsets or not at all.

    `producer` names a session with promised order: a producer that gives up its sequence numbers
    continues under another name.
    """

    producer: str
    values: tuple[str, ...]
    invoked: int
    completed: int | None = None
    """None: never answered."""
    outcome: Outcome = "unknown"
    offset: int | None = None
    """Of the first value, if known."""
    acks: int = ACKS_ALL
    idempotent: bool = True
    """Its batches carry sequences: no duplicates, no reordering."""
    repeated: bool = False
    """Sent more than once."""
    keys: tuple[str, ...] = ()
    """One for each value, in compacted topics."""
    times: tuple[int, ...] = ()
    """The timestamp of each value, where times are looked up."""
    identity: tuple[int, int] | None = None
    """Producer id and epoch of its batches, where epochs are judged."""
    transaction: str = ""
    """The name of the transaction that it joined: see transaction_history.py."""


class Assign(_Operation, frozen=True, tag="assign"):
    """The consumer's next poll begins at `offset`."""

    consumer: str
    offset: int


class Poll(_Operation, frozen=True, tag="poll"):
    """The consumer polled at `start`, received `records`, and continues at `next_offset`."""

    consumer: str
    invoked: int
    completed: int
    start: int
    next_offset: int
    records: Pairs
    node: str = ""
    is_committed: bool = False
    """By a reader of committed transactions only. A consumer reads either all or these."""


class End(_Operation, frozen=True, tag="end"):
    """A leader answered with `offset` as the end for readers."""

    invoked: int
    completed: int
    offset: int
    node: str = ""
    is_committed: bool = False
    """The last stable offset, not the high watermark."""


class FinalRead(_Operation, frozen=True, tag="final_read"):
    """All readable records of one replica, after the last fault."""

    node: str
    start: int
    end: int
    """Exclusive."""
    records: Pairs
    is_committed: bool = False
    """Without the records of aborted transactions."""


class Loss(_Operation, frozen=True, tag="loss"):
    """The partition reported that its records from `offset` on may be lost."""

    step: int
    offset: int


class Deletion(_Operation, frozen=True, tag="deletion"):
    """A request to delete records below `before`."""

    before: int
    completed: int | None = None
    """When it was acknowledged: from then on no record below `before` comes back."""


class Lookup(_Operation, frozen=True, tag="lookup"):
    """A leader answered with the first record at or after `time_ms`; None: there is no such one."""

    invoked: int
    completed: int
    time_ms: int
    offset: int | None
    found_ms: int | None = None
    """The answered record's timestamp."""
    node: str = ""


class Compacted(_Operation, frozen=True, tag="compacted"):
    """Below `end`, a record may be gone if a later one below `end` has its key."""

    end: int


Operation: TypeAlias = Send | Assign | Poll | End | FinalRead | Loss | Deletion | Lookup | Compacted


DECODER: Final[msgspec.json.Decoder[Operation]] = msgspec.json.Decoder(Operation)
"""For history_file.load."""
