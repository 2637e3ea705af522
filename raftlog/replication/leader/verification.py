"""The first batch of a transaction waits for the coordinator, in one leader epoch (KIP-890).

Before a batch opens a transaction in this partition, its leader queries the coordinator whether the
transaction is open and includes the partition. The response counts only if no marker of the
producer was written since the query. Otherwise a late batch would open a transaction that has
ended, and no marker would end it again. A guard stands for one query, and the marker ends it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from raftlog.record.errors import PRODUCER_FENCED, LogError
from raftlog.record.types import ProducerEpoch, ProducerId

GUARDS_MAX: Final = 10_000
"""Most guards of one partition. Beyond it the oldest guard ends, and its producer's batch is
refused, to be sent again."""


class VerificationGuard:
    """One question to the coordinator. Pass it to the append."""

    __slots__ = ("producer_epoch", "producer_id")

    def __init__(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


class Verifications:
    """The guards of one partition in one leader epoch."""

    def __init__(self) -> None:
        self._guards: OrderedDict[ProducerId, VerificationGuard] = OrderedDict()

    def __len__(self) -> int:
        return len(self._guards)

    def begin(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> VerificationGuard:
        """A guard for a query sent from now on. Concurrent queries share the guard. Raises LogError
        PRODUCER_FENCED if a newer epoch has a guard."""
        known = self._guards.get(producer_id)
        if known is not None and known.producer_epoch == producer_epoch:
            return known
        if known is not None and known.producer_epoch > producer_epoch:
            raise LogError(
                PRODUCER_FENCED,
                f"Producer {producer_id} has epoch {producer_epoch}; epoch {known.producer_epoch} "
                "has begun to write since.",
            )
        guard = self._guards[producer_id] = VerificationGuard(producer_id, producer_epoch)
        self._guards.move_to_end(producer_id)
        if len(self._guards) > GUARDS_MAX:
            self._guards.popitem(last=False)
        return guard

    def is_current(
        self, guard: VerificationGuard, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> bool:
        """Whether the guard is this producer's, and has not ended."""
        return guard.producer_epoch == producer_epoch and self._guards.get(producer_id) is guard

    def end(self, producer_id: ProducerId) -> None:
        """The producer's transaction has begun here, or a marker is being written."""
        self._guards.pop(producer_id, None)
