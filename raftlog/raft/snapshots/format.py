"""The snapshot file's bytes, a state as of one entry in checksummed pieces. Pure.

The file is an origin, then the content, big-endian. The origin is how this copy came here, and so
stays here when the content is sent to another node, which writes its own origin::

    magic     4  b"RLS2"
    crc       4  CRC-32C of everything after it
    received  1  0: taken by this node; 1: received from another

The content is the records META (JSON of format, index, term, voters), any number of PIECEs, END::

    crc       4  CRC-32C of all the content before this field, without the crcs, and of the rest
                 of this record: a record that is missing or of another snapshot does not fit
    length    4  of the payload
    kind      1  META, PIECE, END
    payload

The file is only ever replaced as a whole, durably, so any fault in it is damage. It is written,
read and sent piece by piece, never whole in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from crc32c import crc32c

from raftlog.raft.voters import VoterSet

MAGIC: Final = b"RLS2"
FORMAT: Final = 2
PIECE_BYTES_MAX: Final = 1024 * 1024
"""A longer length is not believed."""

_PREFIX = struct.Struct(">4sI")
_RECEIVED = struct.Struct(">?")
_CRC = struct.Struct(">I")
_FIELDS = struct.Struct(">IB")
_RECORD_OVERHEAD: Final = _CRC.size + _FIELDS.size
ORIGIN_BYTES: Final = _PREFIX.size + _RECEIVED.size

Read: TypeAlias = Callable[[int, int], bytes]
"""(position, length) to the bytes there. Fewer only at the end."""


class Kind(IntEnum):
    """The kind of a record."""

    META = 1
    PIECE = 2
    END = 3


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """A snapshot of all entries up to `index`, which is of `term`.

    `voters` are in force at `index`. `received` is a fact about this copy. A received copy came
    from another node, so this node's journal may never have had those entries.
    """

    index: int
    term: int
    voters: VoterSet
    received: bool = False


class SnapshotDamagedError(Exception):
    """These bytes are not a whole, undamaged snapshot."""


class _Meta(msgspec.Struct, frozen=True):
    format: int
    index: Annotated[int, msgspec.Meta(ge=1)]
    term: Annotated[int, msgspec.Meta(ge=0)]
    voters: VoterSet


_METAS: Final = msgspec.json.Decoder(_Meta)


def encode_origin(*, received: bool) -> bytes:
    """Encode the beginning of the file, which is not sent."""
    body = _RECEIVED.pack(received)
    return _PREFIX.pack(MAGIC, crc32c(body)) + body


def encode_snapshot(meta: SnapshotMeta, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Encode the whole file in parts (origin and meta, each piece, the end)."""
    payload = msgspec.json.encode(_Meta(FORMAT, meta.index, meta.term, meta.voters))
    record, crc = _encode(Kind.META, payload, 0)
    yield encode_origin(received=meta.received) + record
    for piece in pieces:
        record, crc = _encode(Kind.PIECE, piece, crc)
        yield record
    yield _encode(Kind.END, b"", crc)[0]


def decode_snapshot(read: Read, size: int) -> tuple[SnapshotMeta, Iterator[bytes]]:
    """Decode a file of `size` bytes into its meta and its pieces, each verified.

    The caller must not rely on any piece before the iterator is exhausted, because only then the
    end was seen. Raises SnapshotDamagedError, at once or from the iterator.
    """
    origin = read(0, ORIGIN_BYTES)
    if len(origin) < ORIGIN_BYTES or origin != encode_origin(received=bool(origin[-1])):
        raise SnapshotDamagedError("it has no valid beginning, or one of another format")
    records = _decode(read, size)
    try:
        meta = _METAS.decode(next(records))
    except msgspec.DecodeError as error:
        raise SnapshotDamagedError(f"its description is not understood: {error}") from error
    if meta.format != FORMAT:
        raise SnapshotDamagedError(f"it is of format {meta.format}, not {FORMAT}")
    return SnapshotMeta(meta.index, meta.term, meta.voters, bool(origin[-1])), records


def _encode(kind: Kind, payload: bytes, crc: int) -> tuple[bytes, int]:
    assert len(payload) <= PIECE_BYTES_MAX, f"a piece of {len(payload)} bytes"
    fields = _FIELDS.pack(len(payload), kind)
    crc = crc32c(payload, crc32c(fields, crc))
    return _CRC.pack(crc) + fields + payload, crc


def _decode(read: Read, size: int) -> Iterator[bytes]:
    """The payloads of META and all PIECEs."""
    position, crc, expected = ORIGIN_BYTES, 0, Kind.META
    while True:
        head = read(position, _RECORD_OVERHEAD)
        if len(head) < _RECORD_OVERHEAD:
            raise SnapshotDamagedError(f"it ends at byte {size}, in the middle")
        length, kind = _FIELDS.unpack_from(head, _CRC.size)
        if length > PIECE_BYTES_MAX:
            raise SnapshotDamagedError(f"it is damaged at byte {position}")
        payload = read(position + _RECORD_OVERHEAD, length)
        crc = crc32c(payload, crc32c(head[_CRC.size :], crc))
        if len(payload) < length or _CRC.unpack_from(head) != (crc,):
            raise SnapshotDamagedError(f"it is damaged at byte {position}")
        position += _RECORD_OVERHEAD + length
        if kind == Kind.END and expected == Kind.PIECE:
            break
        if kind != expected:
            raise SnapshotDamagedError(f"it has a record of kind {kind} before byte {position}")
        expected = Kind.PIECE
        yield payload
    if position != size:
        raise SnapshotDamagedError(f"it goes on behind its end, at byte {position}")
