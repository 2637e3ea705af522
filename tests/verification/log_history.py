"""A history: what each client sent, was told, and read, after Jepsen's Kafka workload.

Every value is sent once in the whole history (retries of one send are that send), so that a value
that is read tells who wrote it. Steps are numbers that grow with time, all of one clock: virtual or
monotonic nanoseconds, or a count. Only their order matters; equal steps count as at once.

| operation | is recorded by | when |
|---|---|---|
| Send | a producer | its outcome is known, or it gives up, or the history ends |
| Assign | a consumer | before it reads a partition from another offset than where it left off |
| Poll | a consumer | records came, or the position moved |
| End | anybody | it has asked a leader for the end of the partition, as readers see it |
| FinalRead | whoever judges | the faults are over; once per replica that can be read |
| Loss | whoever judges | the partition has said that records may be lost (promise 2) |
| Deletion | whoever asked | records were asked to be deleted, before it is carried out |
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

ACKS_ALL: Final = -1

Outcome: TypeAlias = Literal["ok", "refused", "unknown"]
Pairs: TypeAlias = tuple[tuple[int, str], ...]
"""Offsets and values, as they were read."""


class _Operation(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    partition: str
    """Topic and number, in any spelling that names it."""


class Send(_Operation, frozen=True, tag="send"):
    """One batch of values, written at consecutive offsets or not at all.

    `producer` names a session in which order is promised: a producer that gives up its sequence
    numbers goes on under another name.
    """

    producer: str
    values: tuple[str, ...]
    invoked: int
    completed: int | None = None
    """None: it was never answered."""
    outcome: Outcome = "unknown"
    offset: int | None = None
    """Of the first value, if it is known."""
    acks: int = ACKS_ALL
    idempotent: bool = True
    """Its batches carry sequences: they are neither doubled nor reordered."""
    repeated: bool = False
    """It was sent more than once."""


class Assign(_Operation, frozen=True, tag="assign"):
    """The consumer's next poll begins at `offset`."""

    consumer: str
    offset: int


class Poll(_Operation, frozen=True, tag="poll"):
    """The consumer asked at `start`, was given these, and will ask at `next_offset`."""

    consumer: str
    invoked: int
    completed: int
    start: int
    next_offset: int
    records: Pairs
    node: str = ""


class End(_Operation, frozen=True, tag="end"):
    """A leader answered that readers can read up to `offset`."""

    invoked: int
    completed: int
    offset: int
    node: str = ""


class FinalRead(_Operation, frozen=True, tag="final_read"):
    """All that one replica lets be read, after everything."""

    node: str
    start: int
    end: int
    """Exclusive."""
    records: Pairs


class Loss(_Operation, frozen=True, tag="loss"):
    """The partition has said that what it held from `offset` on may be gone."""

    step: int
    offset: int


class Deletion(_Operation, frozen=True, tag="deletion"):
    """Records below `before` may be gone, because somebody asked for it."""

    before: int


Operation: TypeAlias = Send | Assign | Poll | End | FinalRead | Loss | Deletion


DECODER: Final[msgspec.json.Decoder[Operation]] = msgspec.json.Decoder(Operation)
"""For history_file.load."""
