"""The epoch history of one partition, which leader epoch wrote which offsets.

A returning follower must not truncate to its high watermark, since records below may have been
replaced and records above may be committed. Instead the follower requests from the leader the end
of the last epoch known to both (KIP-101), with the epoch of the response (KIP-279), so that several
fast failovers in a row still lead both to their last common record.

In an entry, `epoch` started at `start_offset` and ends where the next entry starts. Both numbers
grow strictly from entry to entry. An epoch without records leaves no entry once the next epoch
starts at the same offset, so the number of batches in the log bounds the history. Truncating the
log at either end shortens the history too.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.checksummed import Damaged, unwrap, wrap

KIND: Final = b"RLEP"
VERSION: Final = 1
_ENTRY: Final = struct.Struct(">iq")


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """The epoch's first record is at `start_offset`."""

    epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """The largest known epoch not above the requested epoch, with its end."""

    epoch: LeaderEpoch
    end_offset: Offset
    """First offset after the records of the epoch."""


class LeaderEpochs:
    """The epoch history of one log.

    The caller must store every change (`to_bytes`) before the recovery point passes the batch that
    caused the change.
    """

    __slots__ = ("_epochs", "_start_offsets")

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._epochs: list[LeaderEpoch] = []
        self._start_offsets: list[Offset] = []
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """The whole history, oldest first."""
        pairs = zip(self._epochs, self._start_offsets, strict=True)
        return tuple(EpochEntry(epoch, start) for epoch, start in pairs)

    @property
    def latest(self) -> EpochEntry | None:
        """The newest entry, or None for an empty history."""
        if not self._epochs:
            return None
        return EpochEntry(self._epochs[-1], self._start_offsets[-1])

    def assign(self, epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Start `epoch` at `start_offset`, and return whether the history changed.

        Call this when a replica becomes leader (with its log end offset) and for every batch
        written or scanned (with its base offset). Only the first call of an epoch changes anything.

        A batch of an older epoch than an earlier batch can only come from a replaced leader.
        Callers reject such a batch from outside by `accepts` (from a peer as a typed error, from a
        file as damage). Here it is a broken invariant.
        """
        epochs, start_offsets = self._epochs, self._start_offsets
        if epochs:
            if epoch == epochs[-1]:
                assert start_offset >= start_offsets[-1], "an epoch cannot begin a second time"
                return False
            assert self.accepts(epoch, start_offset), (
                f"epoch {epoch} at {start_offset} after epoch {epochs[-1]} at {start_offsets[-1]}"
            )
            if start_offset == start_offsets[-1]:
                # The last epoch wrote nothing. A kept entry would claim the new epoch's records.
                epochs[-1] = epoch
                return True
        assert epoch >= 0, f"epoch {epoch}"
        assert start_offset >= 0, f"start offset {start_offset}"
        epochs.append(epoch)
        start_offsets.append(start_offset)
        return True

    def accepts(self, epoch: LeaderEpoch, offset: Offset) -> bool:
        """Whether a batch of `epoch` at `offset` may follow the history, which never goes back."""
        if epoch < 0 or offset < 0:
            return False
        return not self._epochs or (epoch >= self._epochs[-1] and offset >= self._start_offsets[-1])

    def epoch_for(self, offset: Offset) -> LeaderEpoch | None:
        """Epoch of the present or next record at `offset`. None below the first entry."""
        index = bisect_right(self._start_offsets, offset) - 1
        return self._epochs[index] if index >= 0 else None

    def end_offset_for(self, epoch: LeaderEpoch, log_end_offset: Offset) -> EpochEndOffset | None:
        """End offset of the largest known epoch not above `epoch` (KIP-279).

        None means that the history is empty, or that `epoch` is newer than all known epochs, so the
        requesting replica knows more than this replica. An epoch older than all known epochs is
        returned itself, with the first known start, because all its records lie below.
        """
        if not self._epochs or epoch < 0 or epoch > self._epochs[-1]:
            return None
        if epoch == self._epochs[-1]:
            return EpochEndOffset(epoch, log_end_offset)
        following = bisect_right(self._epochs, epoch)
        end_offset = self._start_offsets[following]
        if following == 0:
            return EpochEndOffset(epoch, end_offset)
        return EpochEndOffset(self._epochs[following - 1], end_offset)

    def truncate_from_end(self, end_offset: Offset) -> bool:
        """Truncate the history to `end_offset` and forget epochs that start there or later.

        True if the history changed. Needed after every truncation, and at every opening with the
        log end offset found, since an entry may have been written just before its batch was lost.
        """
        keep = bisect_left(self._start_offsets, end_offset)
        changed = keep < len(self._epochs)
        del self._epochs[keep:]
        del self._start_offsets[keep:]
        return changed

    def truncate_from_start(self, log_start_offset: Offset) -> bool:
        """Start the history at `log_start_offset` and forget epochs that ended at or before it.

        True if the history changed. The epoch containing `log_start_offset` stays, and now starts
        there. The newest epoch also stays, even of an emptied log, since a leader must know its
        epoch.
        """
        holding = bisect_right(self._start_offsets, log_start_offset) - 1
        if holding < 0 or (holding == 0 and self._start_offsets[0] == log_start_offset):
            return False
        del self._epochs[:holding]
        del self._start_offsets[:holding]
        self._start_offsets[0] = log_start_offset
        return True

    def to_bytes(self) -> bytes:
        """The content of `leader-epoch-checkpoint`, 12 bytes an entry, oldest first."""
        pairs = zip(self._epochs, self._start_offsets, strict=True)
        return wrap(KIND, VERSION, b"".join(_ENTRY.pack(epoch, start) for epoch, start in pairs))

    @classmethod
    def from_bytes(cls, data: bytes) -> LeaderEpochs | Damaged:
        """Read `to_bytes` back.

        After Damaged, rebuild by `assign` for every batch of the whole log.
        """
        content = unwrap(KIND, VERSION, data)
        if isinstance(content, Damaged):
            return content
        if len(content) % _ENTRY.size:
            return Damaged(f"{len(content)} bytes are no whole number of entries")
        history = cls()
        for epoch, start_offset in _ENTRY.iter_unpack(content):
            if not history.accepts(epoch, start_offset) or not history.assign(epoch, start_offset):
                return Damaged(f"epoch {epoch} at {start_offset} is out of order")
        if len(history) * _ENTRY.size != len(content):
            return Damaged("two epochs begin at one offset")
        return history
