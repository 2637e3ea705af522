"""The snapshot file's bytes: a state machine's state as of one index, checksummed. Pure.

Big-endian: magic 4 (b"RLS1"), crc 4 (CRC-32C of everything after it), index 8, length 8, then the
state. The file is only ever replaced as a whole, durably, so any fault in it is damage.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from raftlog.record.errors import STORAGE_FAILED, LogError

MAGIC: Final = b"RLS1"
_PREFIX = struct.Struct(">4sI")
_FIELDS = struct.Struct(">QQ")
_OVERHEAD: Final = _PREFIX.size + _FIELDS.size


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after applying every entry up to `index`."""

    index: int
    state: bytes


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The snapshot file's content."""
    body = _FIELDS.pack(snapshot.index, len(snapshot.state)) + snapshot.state
    return _PREFIX.pack(MAGIC, crc32c(body)) + body


def decode_snapshot(content: bytes) -> Snapshot:
    """The snapshot that a file holds. Raises LogError(STORAGE_FAILED) for a damaged one."""
    if len(content) >= _OVERHEAD:
        magic, crc = _PREFIX.unpack_from(content)
        index, length = _FIELDS.unpack_from(content, _PREFIX.size)
        whole = len(content) == _OVERHEAD + length
        if magic == MAGIC and whole and crc32c(memoryview(content)[_PREFIX.size :]) == crc:
            return Snapshot(index, content[_OVERHEAD:])
    raise LogError(
        STORAGE_FAILED,
        "The metadata snapshot is damaged, or of a newer format. This node does not start, and "
        "nothing was changed. Restore the metadata directory from a copy.",
    )
