"""The journal's bytes, with the format of records and recovery after a crash. Pure.

A journal is one file of records, big-endian::

    magic     4  b"RLJ2"
    crc       4  CRC-32C of everything after it
    length    4  of the payload
    kind      1  HEADER (the first record, only), ENTRY, MARK, VOTE
    position  8  of this record in the file, so that bytes inside a payload, or a misplaced block,
                 are never taken for a record
    synced    8  known to be durable when the record was written: all below this position
    index     8  ENTRY: its own; HEADER: the base, the newest entry that is only in the snapshot;
                 else the newest entry's
    term      8  ENTRY: its own; HEADER: the base's; VOTE: the member's; MARK: 0
    payload      ENTRY: the command; VOTE: the node id voted for, 8 bytes, or nothing;
                 HEADER: JSON of the member's term and vote and of the voters at the base

An entry at or below the newest entry replaces the present entry at its index and all after it
(Raft's rule for conflicts). The log is the rest after the last record. A vote stands until the next
vote, or until an entry of a later term, because a member with that entry has left the earlier term.

The file as a whole is only ever put in place by an atomic, durable replacement, at each start and
each trim. The `synced` of its header covers the whole replacement. After that the file grows by
entries and votes, and by a mark after each sync. No write waits for the mark, but the mark is also
a witness for the bytes synced before it.

Recovery reads records up to the first bad record. If a record anywhere behind it, or the header, is
witness that those bytes were durable once, then this is damage, not a crash. Entries that were
acknowledged, or votes that were given, may be lost, so the node must not start (`damaged`).
Otherwise no peer or client knows of the rest, which is the torn tail of the last write and is left
out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from crc32c import crc32c

from raftlog.raft.voters import VoterSet
from raftlog.record.errors import STORAGE_FAILED, LogError

MAGIC: Final = b"RLJ2"
PAYLOAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""A longer length is not believed. Commands are bounded far below it."""
FIRST_INDEX: Final = 1
FIRST_TERM: Final = 0
"""Term of the entry that every log begins after. That entry is never written or applied."""

_PREFIX = struct.Struct(">4sI")
_FIELDS = struct.Struct(">IBQQQQ")
_NODE_ID = struct.Struct(">Q")
_CRC_START: Final = _PREFIX.size
RECORD_OVERHEAD: Final = _PREFIX.size + _FIELDS.size
"""Bytes of a record beside its payload."""

LogEntry: TypeAlias = tuple[bytes, int, int]
"""(command, index, term). A plain tuple in pysyncobj's order, so that one object serves in the log,
among pending records, and on the way to the disk."""


class Kind(IntEnum):
    """The kind of a record."""

    HEADER = 1
    ENTRY = 2
    MARK = 3
    VOTE = 4


@dataclass(frozen=True, slots=True)
class VoteRecord:
    """Promises no message in a term before `term`, and only `vote` in `term`."""

    term: int
    vote: int | None


PendingRecord: TypeAlias = LogEntry | VoteRecord
"""A record that the journal grows by."""


@dataclass(frozen=True, slots=True)
class JournalContent:
    """The vote, and the entries after the base, in order and without a gap.

    `voters_at_base` are in force from the base on, until an entry changes the set.
    """

    base_index: int
    base_term: int
    voters_at_base: VoterSet
    term: int
    vote: int | None
    entries: Sequence[LogEntry]

    @property
    def last_index(self) -> int:
        """Index of the newest entry, or of the base without any entry."""
        return self.base_index + len(self.entries)

    def term_at(self, index: int) -> int:
        """Term of an entry from the base to the newest."""
        assert self.base_index <= index <= self.last_index
        return (
            self.base_term
            if index == self.base_index
            else self.entries[index - self.base_index - 1][2]
        )


@dataclass(frozen=True, slots=True)
class Recovered:
    """A journal's content. `valid_bytes` is where the torn tail begins, if there is one."""

    content: JournalContent
    valid_bytes: int


class _Header(msgspec.Struct, frozen=True):
    term: Annotated[int, msgspec.Meta(ge=0)]
    vote: Annotated[int, msgspec.Meta(ge=0)] | None
    voters: VoterSet


_HEADERS: Final = msgspec.json.Decoder(_Header)


@dataclass(frozen=True, slots=True)
class _Record:
    kind: int
    synced: int
    index: int
    term: int
    payload: bytes
    end: int


def encode_pending(record: PendingRecord, *, position: int, synced: int, last_index: int) -> bytes:
    """Encode an entry or a vote for `position`, after entry `last_index`."""
    if isinstance(record, VoteRecord):
        vote = b"" if record.vote is None else _NODE_ID.pack(record.vote)
        return _encode(
            Kind.VOTE,
            position=position,
            synced=synced,
            index=last_index,
            term=record.term,
            payload=vote,
        )
    command, index, term = record
    return _encode(
        Kind.ENTRY, position=position, synced=synced, index=index, term=term, payload=command
    )


def encode_mark(*, position: int, synced: int, last_index: int) -> bytes:
    """Encode a witness of the synced bytes for `position`, after entry `last_index`."""
    return _encode(
        Kind.MARK, position=position, synced=synced, index=last_index, term=0, payload=b""
    )


def encode_journal(content: JournalContent) -> Iterator[bytes]:
    """Encode a whole journal, record by record, for an atomic, durable replacement."""
    assert content.term >= content.term_at(content.last_index), "a term of the log is to come yet"
    payload = msgspec.json.encode(_Header(content.term, content.vote, content.voters_at_base))
    position = RECORD_OVERHEAD + len(payload)
    size = position + sum(RECORD_OVERHEAD + len(command) for command, _, _ in content.entries)
    yield _encode(
        Kind.HEADER,
        position=0,
        synced=size,
        index=content.base_index,
        term=content.base_term,
        payload=payload,
    )
    for command, index, term in content.entries:
        record = _encode(
            Kind.ENTRY, position=position, synced=0, index=index, term=term, payload=command
        )
        position += len(record)
        yield record
    assert position == size


def recover(content: bytes) -> Recovered:
    """Decode and check a journal.

    Raises LogError(STORAGE_FAILED) if bytes may be lost which were durable once.
    """
    header = _parse(content, 0)
    if header is None or header.kind != Kind.HEADER:
        # The file got its name only after its header was durable, so a crash cannot have caused
        # this.
        raise damaged("has no valid header, or one of another format")
    replay = _Replay(header)
    position = header.end
    while position < len(content):
        record = _parse(content, position)
        if record is None:
            break
        replay.take(record, position)
        position = record.end
    witness = max(header.synced, _highest_synced(content, position))
    if witness > position:
        raise damaged(f"is damaged at byte {position}, but was durable up to byte {witness} once")
    return Recovered(replay.content(), position)


def damaged(fault: str) -> LogError:
    """The error of a start with a journal that has this fault."""
    return LogError(
        STORAGE_FAILED,
        f"The metadata journal {fault}. Acknowledged changes may be missing from it, so this node "
        "does not start, and nothing was changed. Restore the metadata directory from a copy; if "
        "other nodes of the cluster are well, start this one as a new node with an empty directory "
        "instead.",
    )


class _Replay:
    """The log, rebuilt record by record."""

    def __init__(self, header: _Record) -> None:
        try:
            first = _HEADERS.decode(header.payload)
        except msgspec.DecodeError as error:
            raise damaged(f"has a header that this raftlog does not understand: {error}") from error
        self._base_index, self._base_term = header.index, header.term
        self._voters = first.voters
        self._term, self._vote = first.term, first.vote
        self._entries: list[LogEntry] = []
        if self._term < self._base_term:
            raise damaged(f"has term {self._term}, before that of its base, {self._base_term}")

    def take(self, record: _Record, position: int) -> None:
        """Add the next record, undamaged. A misfit is never cut as a torn tail."""
        last_index = self._base_index + len(self._entries)
        match record.kind:
            case Kind.ENTRY:
                self._take_entry(record, position)
            case Kind.VOTE if record.index == last_index:
                self._take_vote(record, position)
            case Kind.MARK if record.index == last_index:
                pass
            case _:
                raise damaged(
                    f"has a record at byte {position} that this raftlog does not understand"
                )

    def content(self) -> JournalContent:
        """The content after the last record."""
        return JournalContent(
            base_index=self._base_index,
            base_term=self._base_term,
            voters_at_base=self._voters,
            term=self._term,
            vote=self._vote,
            entries=self._entries,
        )

    def _take_entry(self, record: _Record, position: int) -> None:
        number = record.index - self._base_index - 1
        previous_term = self._base_term
        if 0 < number <= len(self._entries):
            previous_term = self._entries[number - 1][2]
        if not 0 <= number <= len(self._entries) or record.term < previous_term:
            raise damaged(
                f"has entry {record.index} of term {record.term} at byte {position}, where it "
                f"goes from entry {self._base_index} to {self._base_index + len(self._entries)}"
            )
        del self._entries[number:]
        self._entries.append((record.payload, record.index, record.term))
        if record.term > self._term:
            self._term, self._vote = record.term, None

    def _take_vote(self, record: _Record, position: int) -> None:
        vote: int | None = None
        if record.payload:
            if len(record.payload) != _NODE_ID.size:
                raise damaged(
                    f"has a vote at byte {position} that this raftlog does not understand"
                )
            (vote,) = _NODE_ID.unpack(record.payload)
        again = record.term == self._term and self._vote not in (None, vote)
        if record.term < self._term or again:
            raise damaged(
                f"has a vote for {vote} in term {record.term} at byte {position}, after one for "
                f"{self._vote} in term {self._term}"
            )
        self._term, self._vote = record.term, vote


def _highest_synced(content: bytes, start: int) -> int:
    """The highest `synced` of any record that begins after `start`. 0 without any."""
    highest = 0
    position = content.find(MAGIC, start + 1)
    while position != -1:
        record = _parse(content, position)
        if record is not None:
            highest = max(highest, record.synced)
        position = content.find(MAGIC, position + 1)
    return highest


def _encode(
    kind: Kind, *, position: int, synced: int, index: int, term: int, payload: bytes
) -> bytes:
    assert len(payload) <= PAYLOAD_BYTES_MAX, "it would not be believed when it is read"
    body = _FIELDS.pack(len(payload), kind, position, synced, index, term) + payload
    return _PREFIX.pack(MAGIC, crc32c(body)) + body


def _parse(content: bytes, position: int) -> _Record | None:
    """The record at `position`, or None unless a whole and undamaged record is there."""
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
    return _Record(kind=kind, synced=synced, index=index, term=term, payload=payload, end=end)
