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
from raftlog.record.header import CONTROL_BIT, TRANSACTIONAL_BIT
from raftlog.record.types import AbortedTransaction, ProducerId

_TRANSACTION_BITS: Final = CONTROL_BIT | TRANSACTIONAL_BIT


def readable_batches(
    batches: Iterator[RecordBatch], aborted: Sequence[AbortedTransaction]
) -> Iterator[RecordBatch]:
    """The batches of one frame without control batches and without aborted ones.

    `aborted` is the frame's own list. A commit marker of an aborted producer cannot come before
    its abort marker, so every control batch ends the producer's transaction.
    """
    to_come = deque(sorted(aborted, key=lambda one: one.first_offset))
    aborting: set[ProducerId] = set()
    for batch in batches:
        header = batch.header
        if not header.attributes & _TRANSACTION_BITS:
            yield batch
            continue
        while to_come and to_come[0].first_offset <= header.last_offset:
            aborting.add(to_come.popleft().producer_id)
        if header.is_control:
            aborting.discard(header.producer_id)
        elif header.producer_id not in aborting:
            yield batch
