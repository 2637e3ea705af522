"""Which brokers are proven dead: nobody listens any more where they were connected. Pure.

Every node keeps this, whether it is the active controller or not: a controller that dies is found
dead by its peers before one of them has become its successor.

A connection is known by node only, and a process may have been started anew at the same place since
it ended. So the proof counts for the incarnation that the metadata named when the connection ended,
and only as long as the metadata names that one and nothing has been heard from the node.
"""

from __future__ import annotations

from typing import Final

from raftlog.record.types import BrokerEpoch, BrokerId

DEPARTURES_MAX: Final = 1_000
"""Brokers of which the end of the connection is remembered; the oldest are forgotten first."""


class Departures:
    """The ends of connections to brokers."""

    def __init__(self) -> None:
        self._ended: dict[BrokerId, BrokerEpoch] = {}
        """Brokers whose connection has ended, and their epoch at that time."""
        self._dead: dict[BrokerId, BrokerEpoch] = {}

    def returned(self, broker_id: BrokerId) -> None:
        """The node is connected, or something was heard from it."""
        self._ended.pop(broker_id, None)
        self._dead.pop(broker_id, None)

    def ended(self, broker_id: BrokerId, broker_epoch: BrokerEpoch | None) -> None:
        """The connection has ended; `broker_epoch` is by the metadata, None for no broker."""
        if broker_epoch is not None:
            _put(self._ended, broker_id, broker_epoch)

    def refused(self, broker_id: BrokerId, broker_epoch: BrokerEpoch | None) -> BrokerEpoch | None:
        """Nobody listens there; return the epoch that is proven dead, if one is.

        `broker_epoch` is by the present metadata. Without an end that came before, the connection
        has ended now.
        """
        epoch = self._ended.get(broker_id, broker_epoch)
        if epoch is None or epoch != broker_epoch:
            return None
        _put(self._dead, broker_id, epoch)
        return epoch

    def is_dead(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Whether that incarnation is proven dead."""
        return self._dead.get(broker_id) == broker_epoch


def _put(
    table: dict[BrokerId, BrokerEpoch], broker_id: BrokerId, broker_epoch: BrokerEpoch
) -> None:
    table.pop(broker_id, None)
    table[broker_id] = broker_epoch
    if len(table) > DEPARTURES_MAX:
        del table[next(iter(table))]
