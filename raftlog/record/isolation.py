"""Batches that a reader must not see: control batches, and those of aborted transactions.

Decided per batch header, never per record. A fetch answer names the aborted transactions of its
data by producer id and first offset; each lasts until its producer's abort marker. Data without
any transaction costs one test of a header's attributes.
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
    """Says of successive batches whether a reader may see them."""

    __slots__ = ("_aborting", "_to_come")

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        """`aborted`: those of the data, in any order.

        Data of several frames take the lists of all: a transaction may be in more than one.
        """
        self._to_come = deque(sorted(aborted, key=lambda one: one.first_offset))
        self._aborting: set[ProducerId] = set()

    def is_readable(self, header: BatchHeader) -> bool:
        """Whether it is neither a control batch nor aborted. Ask once for each batch, in order.

        A commit marker of an aborted producer cannot come before its abort marker, so every
        control batch ends the producer's transaction.
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
    """The batches of one frame without control batches and without aborted ones."""
    is_readable = TransactionFilter(aborted).is_readable
    return (batch for batch in batches if is_readable(batch.header))
