"""Which flush mode is in force, and what the next start has to know of it.

With ASYNC a record may be acknowledged before it is synced, so a power cut may take what others
count on: the start after it must ask. It asks the checkpoint, not the topic's setting, which may be
another one by then. Hence two rules: ASYNC is in force once the checkpoint file says so; and the
file goes on saying it until what was acknowledged meanwhile is synced.
"""

from __future__ import annotations

from raftlog.record.types import Offset
from raftlog.storage.checkpoints import ReplicaCheckpoint
from raftlog.storage.config import FlushMode


class FlushModeInForce:
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

    def to_tell(self, flushed_offset: Offset, end_offset: Offset) -> FlushMode:
        """What the checkpoint file has to say."""
        # What was cut since is nobody's loss.
        if self._wanted is FlushMode.ASYNC or flushed_offset < min(self._async_end, end_offset):
            return FlushMode.ASYNC
        return FlushMode.SYNC
