"""Hide control batches and batches of aborted transactions from readers.

The decision is per batch header, never per record. A fetch response names the aborted transactions
of its data by producer id and first offset. Each lasts until its producer's abort marker. Data
without any transaction costs one test of a header's attributes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from raftlog.record.batch import RecordBatch
from raftlog.record.header import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from raftlog.record.types import AbortedTransaction, ProducerId

_TRANSACTION_BITS: Final = CONTROL_BIT | TRANSACTIONAL_BIT


class TransactionFilter:
    """Decides for successive batches whether a reader may see them."""

    __slots__ = ("_aborting", "_to_come")

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        """`aborted` lists the transactions aborted in the data, in any order.

        Data of several frames take the lists of all, since a transaction may be in several frames.
        """
        self._to_come = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._aborting: set[ProducerId] = set()

    def is_readable(self, header: BatchHeader) -> bool:
        """Whether the batch is neither a control batch nor aborted. Call once per batch, in order.

        A commit marker of an aborted producer cannot come before its abort marker, so every control
        batch ends the producer's transaction.
        """
        if not header.attributes & _TRANSACTION_BITS:
            return True
        while self._to_come and self._to_come[0].first_offset <= header.last_offset:
            self._aborting.add(self._to_come.popleft().producer_id)
        if header.is_control:
            self._aborting.discard(header.producer_id)
            return False
        return header.producer_id not in self._aborting


def readable_batches(
    batches: Iterator[RecordBatch], aborted: Sequence[AbortedTransaction]
) -> Iterator[RecordBatch]:
    """Return the batches of one frame that are neither control batches nor aborted."""
    is_readable = TransactionFilter(aborted).is_readable
    return (batch for batch in batches if is_readable(batch.header))
