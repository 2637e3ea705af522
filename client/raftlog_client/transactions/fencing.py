"""A stable producer identity without transactions. Each start fences the previous producer.

The transaction coordinator gives the id's producer id with the next epoch. Batches are ordinary
idempotent batches. A partition with a batch of the newer epoch rejects every older batch. The
rules:

1. The fence of a partition is the newer producer's first record there, not its start. Write a
   record to each partition before relying on it.
2. A failed batch, or a batch of unknown outcome, breaks the producer, because a later batch must
   not follow a missing batch. Nothing is sent after it, and no other identity takes its place.
3. A coordinator forgets an id without changes after `transactional.id.expiration.ms` (7 days). The
   next start would get another producer id, which fences nothing. So the producer renews its epoch
   long before.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from raftlog.api.transactions import InitRequest
from raftlog.record.errors import (
    INVALID_PRODUCER_ID,
    OUT_OF_ORDER_SEQUENCE,
    UNKNOWN_PRODUCER_ID,
)
from raftlog_client.errors import (
    FencedError,
    ProducerBrokenError,
    RaftlogClientError,
    ServerError,
)
from raftlog_client.metadata import ClusterMetadata
from raftlog_client.produce.batches import ProducerIdentity
from raftlog_client.produce.sender import Sender
from raftlog_client.transactions.state import FENCING_ENTRIES
from raftlog_client.transactions.transactions import identity_of, init_producer

RENEWAL_S: Final = 12 * 3_600.0
"""Seconds between two renewals of the epoch, a fraction of the shortest sensible expiration."""
RENEWAL_RETRY_S: Final = 60.0
"""Seconds before a failed renewal is repeated."""

_ENDING: Final = frozenset({INVALID_PRODUCER_ID, OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER_ID})
"""Refusals after which an ordinary producer continues under another identity."""

logger = logging.getLogger("raftlog_client")


class Fencing:
    """The identity and the failure of a producer with a `fencing_id`."""

    def __init__(self, fencing_id: str, metadata: ClusterMetadata, sender: Sender) -> None:
        self._fencing_id = fencing_id
        self._metadata = metadata
        self._sender = sender
        self._failure: RaftlogClientError | None = None
        """Failure of the first failed batch."""
        self._renewal: asyncio.Task[None] | None = None
        sender.judge = self.judge

    async def start(self) -> None:
        """Get the next epoch of the id's producer. Raises RaftlogClientError."""
        identity = await self._init(None)
        self._sender.use_identity(identity)
        self._renewal = asyncio.ensure_future(self._keep_renewed(identity))

    async def close(self) -> None:
        """End the renewals. Closing twice is allowed."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)

    def check_write(self) -> None:
        """Raise FencedError or ProducerBrokenError once the producer is broken."""
        if self._failure is not None:
            raise self._broken(self._failure)

    def batch_failed(self, error: RaftlogClientError) -> None:
        """Break the producer. Called for every batch that is given up."""
        if self._failure is None:
            self._failure = error
            self._sender.break_off(self._broken(error))

    def judge(self, refusal: ServerError) -> RaftlogClientError:
        """Return the error of a refused frame, final if another identity would be needed."""
        if refusal.entry in FENCING_ENTRIES:
            return self._fenced(refusal)
        if refusal.entry in _ENDING:
            error = RaftlogClientError(str(refusal), outcome_unknown=refusal.outcome_unknown)
            error.__cause__ = refusal
            return error
        return refusal

    def _broken(self, failure: RaftlogClientError) -> RaftlogClientError:
        """Return a new error of the same type, because raised errors collect tracebacks."""
        fence = failure if isinstance(failure, FencedError) else failure.__cause__
        error: RaftlogClientError
        if isinstance(fence, FencedError):
            error = FencedError(str(fence))
        else:
            error = ProducerBrokenError(
                f"The producer with fencing id {self._fencing_id!r} is broken by an earlier batch, "
                f"and sends nothing more: close it and start another one. ({failure})"
            )
        error.__cause__ = failure
        return error

    def _fenced(self, cause: ServerError) -> FencedError:
        error = FencedError(
            f"Another producer with fencing id {self._fencing_id!r} has taken over: close this "
            f"one. ({cause})"
        )
        error.__cause__ = cause
        return error

    async def _init(self, known: ProducerIdentity | None) -> ProducerIdentity:
        """Return the next epoch. With `known`, fail if another producer has started since."""
        request = (
            InitRequest()
            if known is None
            else InitRequest(producer_id=known.producer_id, producer_epoch=known.producer_epoch)
        )
        answer = await init_producer(self._metadata, self._fencing_id, request)
        return identity_of(answer)

    async def _keep_renewed(self, identity: ProducerIdentity) -> None:
        pause_s = RENEWAL_S
        while self._failure is None:
            await asyncio.sleep(pause_s)
            try:
                identity = await self._init(identity)
            except RaftlogClientError as error:
                if isinstance(error, ServerError) and error.entry in FENCING_ENTRIES:
                    self.batch_failed(self._fenced(error))
                    return
                logger.warning(
                    "fencing id %s: the producer's epoch could not be renewed, next attempt in "
                    "%.0f s: %s",
                    self._fencing_id,
                    RENEWAL_RETRY_S,
                    error,
                )
                pause_s = RENEWAL_RETRY_S
            else:
                pause_s = RENEWAL_S
                # A partition with a batch in flight continues in the previous epoch, just as
                # safely. No other producer has written there, or the partition rejects both epochs.
                self._sender.use_identity(identity)
