"""The data directory of each node id, pinned from its first use on.

A voter that comes back with an empty disk has forgotten its vote and its acknowledgements. Counted
as the same voter, it could help to elect a leader that lacks committed entries. So a node pins each
peer's directory, also over its restarts. The pin is durable before the first message passes.

The file is JSON, `{"crc": CRC-32C of the bytes under "peers", "peers": {node id: directory id}}`.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from crc32c import crc32c

from raftlog.peer.channel import PEERS_MAX
from raftlog.record.decoders import json_decoder
from raftlog.record.errors import ILLEGAL_STATE, OVERLOADED, STORAGE_FAILED, LogError
from raftlog.world import Disk, read_small_file

FILE_NAME: Final = "peers.json"
_READ_BYTES_MAX: Final = 1024 * 1024


class _Content(msgspec.Struct):
    crc: int
    peers: msgspec.Raw


class KnownPeers:
    """The pinned directories, in memory and in their file. Made by `open`."""

    def __init__(self, disk: Disk, path: str, peers: dict[int, str]) -> None:
        self._disk = disk
        self._path = path
        self._durable = peers
        self._wanted = dict(peers)
        """Desired content of the file, ahead of `_durable` during a write."""
        self._writer: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, disk: Disk, directory: str) -> KnownPeers:
        """Read the file in `directory`, which must exist. A missing file counts as empty.

        Raises LogError(STORAGE_FAILED) if the file is damaged, and DiskError.
        """
        path = f"{directory}/{FILE_NAME}" if directory else FILE_NAME
        content = await disk.run(lambda: read_small_file(disk, path, _READ_BYTES_MAX))
        return cls(disk, path, {} if content is None else decode_peers(path, content))

    def directory_id(self, node_id: int) -> str | None:
        """The node's directory, also while its pin is not durable yet."""
        return self._wanted.get(node_id)

    async def pin(self, node_id: int, directory_id: str) -> None:
        """Pin a node's directory. Return once the pin is durable.

        The pin counts from the call on. Raises LogError(OVERLOADED) above the bound of nodes,
        LogError(ILLEGAL_STATE) if the node was forgotten or pinned otherwise during the write, and
        DiskError.
        """
        if node_id not in self._wanted and len(self._wanted) >= PEERS_MAX:
            raise LogError(
                OVERLOADED,
                f"Node {node_id} is one too many: {PEERS_MAX} nodes are known here already.",
            )
        self._wanted[node_id] = directory_id
        while self._durable.get(node_id) != directory_id:
            if self._wanted.get(node_id) != directory_id:
                raise LogError(ILLEGAL_STATE, f"Node {node_id} was removed or replaced meanwhile.")
            await self._written()

    async def forget(self, node_id: int) -> None:
        """Unpin a node, so that it may come with another directory. Return once durable.

        Raises DiskError. The node is then forgotten only until the next start.
        """
        self._wanted.pop(node_id, None)
        while node_id in self._durable and node_id not in self._wanted:
            await self._written()

    async def close(self) -> None:
        """Wait for a write under way. The disk may be closed afterwards."""
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def _written(self) -> None:
        """Wait for one write of the file, which continues if the waiter is cancelled."""
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write(), name="quorum-known-peers")
            # Without a waiter left, a failure needs no report.
            self._writer.add_done_callback(lambda task: task.cancelled() or task.exception())
        writer = self._writer
        await asyncio.wait([writer])
        writer.result()

    async def _write(self) -> None:
        peers = dict(self._wanted)
        content = encode_peers(peers)
        try:
            await self._disk.run(lambda: self._disk.replace(self._path, content))
        except BaseException:
            # Without durability a pin must not count. Forgotten nodes stay forgotten.
            self._wanted = {
                node_id: self._durable[node_id]
                for node_id in self._wanted
                if node_id in self._durable
            }
            raise
        self._durable = peers


def encode_peers(peers: dict[int, str]) -> bytes:
    """Encode the file's content."""
    ordered = {str(node_id): peers[node_id] for node_id in sorted(peers)}
    content = msgspec.json.encode(ordered)
    return msgspec.json.encode(_Content(crc32c(content), msgspec.Raw(content)))


def decode_peers(path: str, content: bytes) -> dict[int, str]:
    """Decode the content of `encode_peers`. Raises LogError(STORAGE_FAILED) for anything else."""
    try:
        whole = json_decoder(_Content).decode(content)
        if crc32c(bytes(whole.peers)) == whole.crc:
            return json_decoder(dict[int, str]).decode(whole.peers)
        reason = "the CRC does not match"
    except msgspec.DecodeError as error:
        reason = str(error)
    raise LogError(
        STORAGE_FAILED,
        f"{path} is damaged ({reason}). It tells which data directory each node had. If you are "
        "sure that no node's disk was wiped or exchanged, remove the file and start again.",
    )
