"""The snapshots in a compacted topic, which of them count, and which go. Pure.

Partition 0 holds manifests, partition 1 chunks. Keys begin with the snapshot's id. A manifest is
written after its chunks, and makes the chunks count. Two snapshots are kept. The log is trimmed to
the older snapshot, so a replica begins there if the newer snapshot is damaged. Ids are unique, so
two replicas may take a snapshot at the same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from raftlog_replicated.errors import SnapshotError
from raftlog_replicated.types import Position

KEPT: Final = 2
CHUNK_BYTES_MAX: Final = 900_000
"""Bytes of a chunk, below the largest batch of a topic. A longer chunk is cut, and joined for the
restore."""


MORE: Final = b"\1"
LAST: Final = b"\0"


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """The record that makes chunks a snapshot."""

    snapshot_id: str
    position: Position
    offset: int
    """Offset where the log continues, in its partition."""
    commands: int
    """Commands of the state's whole history."""
    first_chunk: int
    """Offset of the first chunk."""
    chunks: int
    size_bytes: int
    sha256: bytes


_decoder: msgspec.msgpack.Decoder[Manifest] = msgspec.msgpack.Decoder(Manifest)
encode_manifest = msgspec.msgpack.Encoder().encode


def chunk_key(snapshot_id: str, number: int) -> bytes:
    """The key of a chunk's record."""
    return b"%s/%08d" % (snapshot_id.encode(), number)


class Catalogue:
    """The counted manifests, from the records of partition 0."""

    def __init__(self) -> None:
        self._manifests: dict[bytes, Manifest] = {}

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Take the next record. The snapshot of an unreadable manifest does not count."""
        if key is None:
            return
        self._manifests.pop(key, None)
        if value is not None:
            try:
                self._manifests[key] = _decoder.decode(value)
            except msgspec.DecodeError:
                return

    @property
    def newest_first(self) -> list[Manifest]:
        """All, by position."""
        return sorted(self._manifests.values(), key=lambda one: (-one.position, one.snapshot_id))

    @property
    def obsolete(self) -> list[Manifest]:
        """Those to delete."""
        return self.newest_first[KEPT:]

    @property
    def trim_offset(self) -> int | None:
        """End of the unused part of the log. None while there are too few snapshots."""
        newest = self.newest_first
        return newest[KEPT - 1].offset if len(newest) >= KEPT else None


@dataclass(slots=True)
class Sum:
    """Count, size and checksum of chunks, in their order."""

    chunks: int = 0
    size_bytes: int = 0
    _sha256: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, chunk: bytes) -> None:
        """The next chunk."""
        self.chunks += 1
        self.size_bytes += len(chunk)
        self._sha256.update(len(chunk).to_bytes(8, "big"))
        self._sha256.update(chunk)

    @property
    def sha256(self) -> bytes:
        """Hash of all chunks with their sizes."""
        return self._sha256.digest()

    def check(self, manifest: Manifest) -> None:
        """Raises SnapshotError if the chunks are not the manifest's."""
        found = (self.chunks, self.size_bytes, self.sha256)
        if found != (manifest.chunks, manifest.size_bytes, manifest.sha256):
            raise SnapshotError(
                f"Snapshot {manifest.snapshot_id} has {self.chunks} chunks of {self.size_bytes} "
                f"bytes, and is to have {manifest.chunks} of {manifest.size_bytes}, with a "
                "checksum of its own."
            )


def cut(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut chunks into record-sized pieces, each with a first byte for whether more follow."""
    for chunk in chunks:
        for begin in range(0, max(1, len(chunk)), CHUNK_BYTES_MAX):
            end = begin + CHUNK_BYTES_MAX
            yield (MORE if end < len(chunk) else LAST) + chunk[begin:end]


def join(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks that were cut. Raises SnapshotError for pieces without an end."""
    parts: list[bytes] = []
    for piece in pieces:
        parts.append(piece[1:])
        if piece[:1] == LAST:
            yield b"".join(parts)
            parts.clear()
    if parts:
        raise SnapshotError("The snapshot's last chunk has no end.")
