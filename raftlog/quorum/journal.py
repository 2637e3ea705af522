"""The journal's bytes: how records are written, and what is made of them after a crash. Pure.

A journal is one file of records, big-endian:

    magic     4  b"RLJ1"
    crc       4  CRC-32C of everything after it
    length    4  of the payload
    kind      1  HEADER (the first record, only), ENTRY, MARK
    position  8  of this record in the file, so that bytes inside a payload, or a misplaced block,
                 are never taken for a record
    synced    8  what was known to be durable when the record was written: all below this position
    index     8  ENTRY, MARK: the entry's, or the newest entry's; HEADER: the newest entry that is
                 only in the snapshot
    term      8  of the entry; HEADER: the writer's
    payload      ENTRY: the command

The file as a whole is only ever put in place by an atomic, durable replacement, at each start and
each trim; its header's `synced` covers all that the replacement brought. After that it grows by
entries, and by a mark after each sync that no entry follows at once: the mark is not waited for,
but it, too, is a witness for what was synced before it.

Recovery reads records up to the first bad one. If a record anywhere behind it, or the header, is
witness that those bytes were durable once, then this is damage, not a crash: commands that were
answered may be lost, so the node must not start (`damaged`). Otherwise nobody was ever told of what
follows: it is the torn tail of the last write, and is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from crc32c import crc32c

from raftlog.record.errors import STORAGE_FAILED, LogError

MAGIC: Final = b"RLJ1"
PAYLOAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""A longer length is not believed. Commands are bounded far below it."""

_PREFIX = struct.Struct(">4sI")
_FIELDS = struct.Struct(">IBQQQQ")
_CRC_START: Final = _PREFIX.size
RECORD_OVERHEAD: Final = _PREFIX.size + _FIELDS.size
"""Bytes of a record beside its payload."""


class Kind(IntEnum):
    """What a record is."""

    HEADER = 1
    ENTRY = 2
    MARK = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One command in the log."""

    index: int
    term: int
    command: bytes


@dataclass(frozen=True, slots=True)
class Recovered:
    """A journal's content: entries after `base_index`, in order, none missing.

    `valid_bytes` is where the torn tail begins, if there is one.
    """

    base_index: int
    term: int
    entries: Sequence[Entry]
    valid_bytes: int


@dataclass(frozen=True, slots=True)
class _Record:
    kind: int
    synced: int
    index: int
    term: int
    payload: bytes
    end: int


def encode_record(
    kind: Kind, *, position: int, synced: int, index: int, term: int, payload: bytes = b""
) -> bytes:
    """One record, as it is written at `position`."""
    body = _FIELDS.pack(len(payload), kind, position, synced, index, term) + payload
    return _PREFIX.pack(MAGIC, crc32c(body)) + body


def encode_journal(*, base_index: int, term: int, entries: Iterable[Entry]) -> bytes:
    """A whole journal, to be put in place by an atomic and durable replacement."""
    position = RECORD_OVERHEAD
    records = []
    for entry in entries:
        record = encode_record(
            Kind.ENTRY,
            position=position,
            synced=0,
            index=entry.index,
            term=entry.term,
            payload=entry.command,
        )
        records.append(record)
        position += len(record)
    header = encode_record(Kind.HEADER, position=0, synced=position, index=base_index, term=term)
    return b"".join([header, *records])


def recover(content: bytes) -> Recovered:
    """What a journal of these bytes holds.

    Raises LogError(STORAGE_FAILED) if it may have lost what was durable once.
    """
    header = _parse(content, 0)
    if header is None or header.kind != Kind.HEADER:
        # The file got its name only after its header was durable: a crash cannot have done this.
        raise damaged("has no valid header, or one of a newer format")
    entries: list[Entry] = []
    index, term = header.index, 0
    position = header.end
    while position < len(content):
        record = _parse(content, position)
        if record is None:
            break
        if record.kind == Kind.ENTRY:
            if record.index != index + 1 or not term <= record.term <= header.term:
                raise damaged(
                    f"has entry {record.index} of term {record.term} at byte {position}, after "
                    f"entry {index} of term {term}"
                )
            index, term = record.index, record.term
            entries.append(Entry(index, term, record.payload))
        elif record.kind != Kind.MARK or record.index != index:
            # Undamaged, yet not what this release would have written: never cut it as a torn tail.
            raise damaged(f"has a record at byte {position} that this raftlog does not understand")
        position = record.end
    witness = max(header.synced, _synced_according_to(content, position))
    if witness > position:
        raise damaged(f"is damaged at byte {position}, but was durable up to byte {witness} once")
    return Recovered(header.index, header.term, entries, position)


def damaged(fault: str) -> LogError:
    """The refusal to start with a journal that has this fault."""
    return LogError(
        STORAGE_FAILED,
        f"The metadata journal {fault}. Acknowledged changes may be missing from it, so this node "
        "does not start, and nothing was changed. Restore the metadata directory from a copy.",
    )


def _synced_according_to(content: bytes, start: int) -> int:
    """The highest `synced` of any record that begins after `start`; 0 without any."""
    highest = 0
    position = content.find(MAGIC, start + 1)
    while position != -1:
        record = _parse(content, position)
        if record is not None:
            highest = max(highest, record.synced)
        position = content.find(MAGIC, position + 1)
    return highest


def _parse(content: bytes, position: int) -> _Record | None:
    """The record at `position`, if a whole and undamaged one is there."""
    if len(content) - position < RECORD_OVERHEAD:
        return None
    magic, crc = _PREFIX.unpack_from(content, position)
    length, kind, own_position, synced, index, term = _FIELDS.unpack_from(
        content, position + _CRC_START
    )
    end = position + RECORD_OVERHEAD + length
    if magic != MAGIC or own_position != position or length > PAYLOAD_BYTES_MAX:
        return None
    if end > len(content) or crc32c(memoryview(content)[position + _CRC_START : end]) != crc:
        return None
    payload = content[position + RECORD_OVERHEAD : end]
    return _Record(kind, synced, index, term, payload, end)
