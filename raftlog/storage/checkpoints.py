"""The node's checkpoint file: what was durable, where scanning may start, how the node stopped.

One small JSON document with a CRC-32C, replaced whole. It is written after everything that it
names is durable, so it may lag behind the logs but never runs ahead of them.

The clean-shutdown marker is written last at a stop and taken away, durably, at the next start
before anything else is written: a marker that is seen was true.

Which flush mode is in force, and what the next start has to know of it.

With ASYNC a record may be acknowledged before it is synced, so a power cut may take what others
count on: the start after it must ask. It asks the checkpoint, not the topic's setting, which may be
another one by then. Hence two rules: ASYNC is in force once the checkpoint file says so; and the
file goes on saying it until what was acknowledged meanwhile is synced.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import crc32c
import msgspec

from raftlog.record.types import Offset
from raftlog.storage.compaction_plan import CompactionHistory
from raftlog.storage.types import FlushMode, PossibleLoss

CHECKPOINT_VERSION = 1
CHECKPOINT_BYTES_MAX = 64 << 20
"""A larger checkpoint file is not read: 100,000 replicas need about 10 MB."""


class StartKind(StrEnum):
    """What a start must expect of the files it finds."""

    CLEAN = "clean"
    """Everything was synced and checkpointed at the last stop."""
    PROCESS_CRASH = "process_crash"
    """The kernel went on running: every byte written is there, a prefix of the last write too."""
    POWER_LOSS = "power_loss"
    """Unsynced bytes may be missing, in any pattern."""


class FirstAppend(msgspec.Struct, frozen=True, array_like=True):
    """When a segment took its first append (wall clock)."""

    base_offset: Offset
    at_ms: int


class ReplicaCheckpoint(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What is known to be durable of one log."""

    recovery_point: Offset
    """Everything derived from records below this offset is durable; scans start here."""
    flushed_offset: Offset
    """Records below this offset were synced. If one is invalid now, that is damage."""
    log_start_offset: Offset
    high_watermark: Offset
    segment_base_offset: Offset
    """Segment that holds the recovery point, or ends at it."""
    segment_position: int
    """Position of the recovery point in that segment."""
    offset_index_entries: int
    """Entries of that segment's offset index that lie below the recovery point."""
    time_index_entries: int
    gaps_below: Offset = Offset(0)
    """Below this offset compaction may have left gaps between batches."""
    compaction: CompactionHistory = CompactionHistory()
    boot_id: str = ""
    """The kernel's run in which the replica was last open."""
    clean: bool = False
    """It was closed, and nothing has written to it since."""
    damage: str = ""
    """Why the replica is offline, until it is repaired: later starts must not forget it."""
    first_appends: tuple[FirstAppend, ...] = ()
    """Of the first segment, the last one that is not empty, and some between them; rising."""
    possible_loss: PossibleLoss | None = None
    """What a power cut may have taken, until the owner has dealt with it."""
    restart_at: Offset | None = None
    """The log is being emptied, to begin again here: files of it are left over."""
    flush: FlushMode | None = None
    """ASYNC: records may have been acknowledged before they were synced, since this was written or
    before. The topic's setting at the next start says nothing of that: it may be another one by
    then. None: written by a version that did not tell."""


class NodeCheckpoint(msgspec.Struct, frozen=True):
    """The whole file."""

    clean_shutdown: bool
    """The node stopped in order, and has not started since."""
    replicas: dict[str, ReplicaCheckpoint]
    """By replica directory name, `<topic id>/<partition>`."""


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
    content = msgspec.json.encode(checkpoint)
    return msgspec.json.encode(
        _Envelope(CHECKPOINT_VERSION, crc32c.crc32c(content), msgspec.Raw(content))
    )


def decode_checkpoint(data: bytes) -> NodeCheckpoint | CheckpointUnreadable:
    """The file's content, or why it cannot be trusted."""
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
    """What to expect of a replica's files. Where nothing is known of them: the worst.

    Asked for each replica by itself: one that was not opened in the last run may still be as the
    run before left it.
    """
    checkpoint = None if node is None else node.replicas.get(replica)
    if node is None or checkpoint is None:
        return StartKind.POWER_LOSS
    if node.clean_shutdown and checkpoint.clean:
        return StartKind.CLEAN
    if checkpoint.boot_id == boot_id:
        return StartKind.PROCESS_CRASH
    return StartKind.POWER_LOSS


class EffectiveFlushMode:
    """Of one log."""

    __slots__ = ("_async_end", "_wanted", "mode")

    def __init__(self, wanted: FlushMode, checkpoint: ReplicaCheckpoint | None) -> None:
        is_told = checkpoint is None or checkpoint.flush is FlushMode.ASYNC
        self._wanted = wanted
        self._async_end = Offset(0)
        """Records below it were perhaps acknowledged before they were synced."""
        self.mode = wanted if is_told else FlushMode.SYNC

    def configure(self, wanted: FlushMode, end_offset: Offset) -> bool:
        """The setting is this one now. Returns whether SYNC has come into force."""
        self._wanted = wanted
        if wanted is FlushMode.ASYNC or self.mode is FlushMode.SYNC:
            return False
        self.mode = FlushMode.SYNC
        self._async_end = end_offset
        return True

    @property
    def waits_for_checkpoint(self) -> bool:
        """Whether the setting holds only once the checkpoint file says so."""
        return self.mode is not self._wanted

    def published(self, told: FlushMode | None) -> None:
        """The checkpoint file says this now."""
        if told is FlushMode.ASYNC:
            self.mode = self._wanted

    def to_publish(self, flushed_offset: Offset, end_offset: Offset) -> FlushMode:
        """What the checkpoint file has to say."""
        # What was cut since is nobody's loss.
        if self._wanted is FlushMode.ASYNC or flushed_offset < min(self._async_end, end_offset):
            return FlushMode.ASYNC
        return FlushMode.SYNC
