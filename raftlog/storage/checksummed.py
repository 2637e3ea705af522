"""Small derived files with a CRC, such as leader epochs and producer snapshots.

Layout, big endian: 4 bytes kind, 2 version, 4 CRC-32C of both and of the content, then the content.

These files are all derived from the log, so an unreadable file is never an error that stops a
replica. The reader gets `Damaged` as a value and rebuilds from the log.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

_FRONT: Final = struct.Struct(">4sH")
_CRC: Final = struct.Struct(">I")
OVERHEAD_BYTES: Final = _FRONT.size + _CRC.size
"""Size of an empty file of this kind."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """The bytes cannot be trusted. Their content must be rebuilt from the log."""

    reason: str


def wrap(kind: bytes, version: int, content: bytes) -> bytes:
    """Build the file's bytes. `kind` is four bytes that name the kind of file."""
    front = _FRONT.pack(kind, version)
    return front + _CRC.pack(crc32c(content, crc32c(front))) + content


def unwrap(kind: bytes, version: int, data: bytes) -> bytes | Damaged:
    """Return the content, or the reason to distrust it.

    The file may be cut off, changed, or of another kind or version.
    """
    if len(data) < OVERHEAD_BYTES:
        return Damaged(f"only {len(data)} bytes long")
    found_kind, found_version = _FRONT.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _FRONT.size)
    content = data[OVERHEAD_BYTES:]
    if crc32c(content, crc32c(data[: _FRONT.size])) != crc:
        return Damaged("the CRC does not match")
    if found_kind != kind:
        return Damaged(f"a file of kind {found_kind!r}, not {kind!r}")
    if found_version != version:
        return Damaged(f"version {found_version} is not known here")
    return content
