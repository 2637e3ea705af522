"""The content of the node's checkpoint file.

It holds durable state, recovery points and the kind of stop, in one small JSON document with a
CRC-32C that is replaced whole. The file is written after everything named there is durable, so it
may lag behind the logs but never runs ahead.

The clean-shutdown marker is written last at a stop and removed, durably, at the next start before
anything else is written. So a marker found at a start is true.

With flush=async a record may be acknowledged before its sync, so a power cut may take records other
replicas count on. The next start decides by the checkpoint, not by the topic's setting, which may
have changed since. Hence two rules. ASYNC takes effect once the checkpoint file has ASYNC. The file
keeps ASYNC until every record acknowledged under ASYNC is synced.

A log without appends for a while rests. It is synced, in SYNC, and the file has SYNC. A power cut
then takes no record, and the partition does not have to report a loss. The next append wakes the
log. The append is acknowledged once synced, and ASYNC takes effect with the next file.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

import crc32c
import msgspec

from raftlog.record.types import Offset
from raftlog.storage.compaction.plan import CompactionHistory
from raftlog.storage.types import FlushMode, PossibleLoss

CHECKPOINT_VERSION = 1
CHECKPOINT_BYTES_MAX = 64 << 20
"""Size beyond which a checkpoint file is not read. 100,000 replicas need about 10 MB."""

REPLICAS_PER_PIECE_MAX: Final = 1_000
"""Replicas encoded by one call, in about a millisecond."""


class StartKind(StrEnum):
    """The kind of stop before a start, which bounds the state of the files."""

    CLEAN = "clean"
    """Everything was synced and checkpointed at the last stop."""
    PROCESS_CRASH = "process_crash"
    """The kernel kept running. Every byte written is there, with a prefix of the last write."""
    POWER_LOSS = "power_loss"
    """Unsynced bytes may be missing, in any pattern."""


class FirstAppend(msgspec.Struct, frozen=True, array_like=True):
    """When a segment took its first append (wall clock)."""

    base_offset: Offset
    at_ms: int


class ReplicaCheckpoint(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The durable state of one log."""

    recovery_point: Offset
    """Offset below which everything derived from records is durable. Scans start here."""
    flushed_offset: Offset
    """Offset below which records were synced. An invalid record there is damage."""
    log_start_offset: Offset
    high_watermark: Offset
    segment_base_offset: Offset
    """Segment that contains the recovery point, or ends there."""
    segment_position: int
    """Position of the recovery point in the segment."""
    offset_index_entries: int
    """Entries of the segment's offset index below the recovery point."""
    time_index_entries: int
    gaps_below: Offset = Offset(0)
    """Offset below which compaction may have left gaps between batches."""
    compaction: CompactionHistory = CompactionHistory()
    boot_id: str = ""
    """The kernel's run in which the replica was last open."""
    clean: bool = False
    """Whether the log was closed, and not written since."""
    aborted_entries: int = 0
    """Entries of the segment's aborted index below the recovery point."""
    damage: str = ""
    """Reason why the replica is offline, until its repair. Later starts must not forget the damage.
    """
    first_appends: tuple[FirstAppend, ...] = ()
    """First appends of the first segment, the last non-empty segment, and some between. Rising."""
    possible_loss: PossibleLoss | None = None
    """Records that a power cut may have taken, until the owner has handled the loss."""
    restart_at: Offset | None = None
    """Offset of a log that is being emptied, to start again here. Old files may be left over."""
    flush: FlushMode | None = None
    """Flush mode that bounds a loss. ASYNC means that records may have been acknowledged before
    they were synced, since this was written or before. The topic's setting at the next start proves
    nothing, because it may have changed. None was written by a version without this field."""
    is_unknown: bool = False
    """Whether no checkpoint could be read when the log was found damaged. Its repair must not count
    on the promises above."""


class NodeCheckpoint(msgspec.Struct, frozen=True):
    """The whole file."""

    clean_shutdown: bool
    """Whether the node stopped in order, and has not started since."""
    replicas: dict[str, ReplicaCheckpoint]
    """Checkpoints by replica directory name, `<topic id>/<partition>`."""


class _Envelope(msgspec.Struct, frozen=True):
    version: int
    crc32c: int
    content: msgspec.Raw


_ENVELOPES: Final = msgspec.json.Decoder(_Envelope)
_CHECKPOINTS: Final = msgspec.json.Decoder(NodeCheckpoint)


class CheckpointUnreadable(NamedTuple):
    """The file exists and cannot be trusted."""

    reason: str


def encode_checkpoint(checkpoint: NodeCheckpoint) -> bytes:
    """The file's bytes."""
    content = _encode_content(checkpoint)
    return msgspec.json.encode(
        _Envelope(CHECKPOINT_VERSION, crc32c.crc32c(content), msgspec.Raw(content))
    )


def _encode_content(checkpoint: NodeCheckpoint) -> bytes:
    """Encode the document in pieces. One call would hold the interpreter lock all the time."""
    front = msgspec.json.encode(NodeCheckpoint(checkpoint.clean_shutdown, {}))
    pieces = []
    replicas = iter(checkpoint.replicas.items())
    while piece := dict(islice(replicas, REPLICAS_PER_PIECE_MAX)):
        pieces.append(msgspec.json.encode(piece)[1:-1])
    return b"".join((front[:-2], b",".join(pieces), front[-2:]))


def decode_checkpoint(data: bytes) -> NodeCheckpoint | CheckpointUnreadable:
    """The file's content, or the reason not to trust the file."""
    try:
        envelope = _ENVELOPES.decode(data)
        if envelope.version != CHECKPOINT_VERSION:
            return CheckpointUnreadable(f"version {envelope.version} is not known here")
        content = bytes(envelope.content)
        if crc32c.crc32c(content) != envelope.crc32c:
            return CheckpointUnreadable("the CRC does not match")
        return _CHECKPOINTS.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return CheckpointUnreadable(f"not a checkpoint: {error}")


def start_kind(node: NodeCheckpoint | None, replica: str, boot_id: str) -> StartKind:
    """Kind of stop for a replica's files, or the worst kind if unknown.

    Decided for each replica, since a replica not opened in the last run may still be as the run
    before left it.
    """
    checkpoint = None if node is None else node.replicas.get(replica)
    if node is None or checkpoint is None or checkpoint.is_unknown:
        return StartKind.POWER_LOSS
    if node.clean_shutdown and checkpoint.clean:
        return StartKind.CLEAN
    if checkpoint.boot_id == boot_id:
        return StartKind.PROCESS_CRASH
    return StartKind.POWER_LOSS


class EffectiveFlushMode:
    """The flush mode of one log. ASYNC takes effect only after the checkpoint file has it."""

    __slots__ = ("_async_end", "_is_resting", "_wanted", "mode")

    def __init__(self, wanted: FlushMode, checkpoint: ReplicaCheckpoint | None) -> None:
        may_be_async = checkpoint is None or checkpoint.flush is FlushMode.ASYNC
        self._wanted = wanted
        self._async_end = Offset(0)
        """Offset below which records may have been acknowledged before their sync."""
        self._is_resting = False
        self.mode = wanted if may_be_async else FlushMode.SYNC

    def configure(self, wanted: FlushMode, end_offset: Offset) -> bool:
        """Apply a changed setting. Returns whether SYNC has just taken effect."""
        self._wanted = wanted
        if wanted is FlushMode.ASYNC or self.mode is FlushMode.SYNC:
            return False
        self.mode = FlushMode.SYNC
        self._async_end = end_offset
        return True

    @property
    def waits_for_checkpoint(self) -> bool:
        """Whether the setting takes effect only with the next checkpoint file."""
        return self.mode is not self._wanted and not self._is_resting

    def rest(self, end_offset: Offset) -> bool:
        """Return to SYNC until `wake`, after a sync of all records.

        Returns whether this is new.
        """
        if self.mode is FlushMode.SYNC:
            return False
        self.mode = FlushMode.SYNC
        self._async_end = end_offset
        self._is_resting = True
        return True

    def wake(self) -> bool:
        """Let ASYNC take effect again with the next checkpoint file.

        Returns whether the log rested.
        """
        was_resting, self._is_resting = self._is_resting, False
        return was_resting

    def published(self, mode: FlushMode | None) -> None:
        """Note the mode now in the checkpoint file."""
        if mode is FlushMode.ASYNC and not self._is_resting:
            self.mode = self._wanted

    def to_publish(self, flushed_offset: Offset, end_offset: Offset) -> FlushMode:
        """The flush mode to write into the checkpoint file."""
        # Offsets truncated since then do not count as loss.
        is_async = self._wanted is FlushMode.ASYNC and not self._is_resting
        if is_async or flushed_offset < min(self._async_end, end_offset):
            return FlushMode.ASYNC
        return FlushMode.SYNC
