"""Which unknown producers may start in a partition with any sequence (KIP-360).

A producer that a partition has forgotten continues with its next sequence. The partition cannot
tell this batch from the second of two pipelined batches whose first was rejected for the moment. If
it took the second as the start, the first could never be written. So a batch may start anywhere
only if no earlier batch of its producer for the partition is undecided at this node, or was
rejected here a moment ago. The rejected batch itself may. An older leader may have rejected the
first batch, so a new leader lets no producer start anywhere for a while (`LeaderRole`). Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeAlias

from raftlog.record.types import NO_SEQUENCE, PartitionId, ProducerId

REJECTED_S: Final = 60.0
"""Seconds for which a rejected batch counts. Clients have sent the batches behind it before they
read its rejection, for which they wait 30 s."""
REJECTED_MAX: Final = 10_000
"""Most rejected batches remembered."""

Place: TypeAlias = tuple[ProducerId, str, PartitionId]
"""Producer, name or id of a topic, and partition."""


class FirstSequences:
    """The undecided and the rejected batches of idempotent producers at one node."""

    def __init__(self) -> None:
        self._undecided: dict[Place, int] = {}
        """Number of appends under way."""
        self._rejected: OrderedDict[Place, tuple[int, float]] = OrderedDict()
        """Base sequence of the first rejected batch, and the time, oldest first."""

    def __len__(self) -> int:
        return len(self._undecided) + len(self._rejected)

    def begin(self, place: Place, topic_id: str, sequence: int, now: float) -> bool:
        """Begin an append. Returns whether its batch may start anywhere. `end` must follow."""
        before = self._undecided.get(place, 0)
        self._undecided[place] = before + 1
        if before:
            return False
        rejected = self._first_rejected(place, topic_id, now)
        return rejected is None or rejected == sequence

    def end(self, place: Place, topic_id: str, sequence: int, *, is_written: bool) -> None:
        """End an append that began. Once a rejected batch is written, it counts no more."""
        left = self._undecided[place] - 1
        if left:
            self._undecided[place] = left
        else:
            del self._undecided[place]
        if is_written and self._rejected:
            for key in _keys(place, topic_id):
                if self._rejected.get(key, (NO_SEQUENCE, 0.0))[0] == sequence:
                    del self._rejected[key]

    def reject(self, place: Place, topic_id: str, sequence: int, now: float) -> None:
        """Remember a rejected batch, unless an earlier batch of the place still counts."""
        if self._first_rejected(place, topic_id, now) is not None:
            return
        self._rejected[place] = (sequence, now)
        self._rejected.move_to_end(place)
        if len(self._rejected) > REJECTED_MAX:
            self._rejected.popitem(last=False)

    def _first_rejected(self, place: Place, topic_id: str, now: float) -> int | None:
        """Base sequence of the rejected batch that counts, or None."""
        if self._rejected:
            for key in _keys(place, topic_id):
                sequence, at = self._rejected.get(key, (NO_SEQUENCE, -REJECTED_S))
                if now - at < REJECTED_S and sequence != NO_SEQUENCE:
                    return sequence
        return None


def _keys(place: Place, topic_id: str) -> tuple[Place, Place]:
    """The place by its topic's name and id. A request by an id is rejected by that while the id is
    not known here yet."""
    producer_id, _, partition = place
    return place, (producer_id, topic_id, partition)
