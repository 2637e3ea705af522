"""Order and repeats of one partition's batches, with the meaning of responses.

Decisions only, without I/O. A partition's share of a request is a frame of one or more batches,
which a node writes whole or not at all. The rules:

1. One frame of a partition is in flight at a time. Requests on different connections may overtake
   each other, so a second frame could arrive first. No throughput is lost, because records gathered
   while one frame is in flight travel in the next, and the node also syncs them together.
2. A frame that may be written is repeated unchanged, with the same batches, bytes, producer id and
   sequences. A node with the frame then returns its offsets instead of writing a second copy.
3. A frame that is certainly not written gives its sequences back, and may be composed again. Only
   the frame in flight, or with unknown outcome, has sequences, and the sequence never has a gap.
4. A node remembers the last five batches of a producer, so an idempotent frame has at most five.
5. Giving up is final. After a frame with unknown outcome is given up, the node's next expected
   sequence is also unknown. The partition takes a new identity and starts with sequence 0.
6. A node without the producer's state (idle for long, or displaced by many others) rejects the next
   sequence. A frame that is certainly not written then restarts at 0, under a new identity.
7. A frame too large for the topic is split into batches, then each batch into halves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from raftlog.record import errors
from raftlog.record.header import BATCH_LENGTH_MAX
from raftlog_client.errors import (
    ConnectionLostError,
    DeliveryTimeoutError,
    RaftlogClientError,
    ServerError,
)
from raftlog_client.produce.batches import NO_OFFSET, Acknowledged, PendingBatch, ProducerIdentity
from raftlog_client.types import TopicPartition

BATCHES_REMEMBERED: Final = 5
"""Batches of one producer in one partition that a node recognises."""
BATCHES_PER_FRAME_MAX: Final = 100
"""Batches in a frame of a producer without idempotence."""
SEQUENCE_MASK: Final = 2**31 - 1
"""Largest sequence number. The next is 0."""


class Settlement(NamedTuple):
    """Next steps for the partition after a response."""

    must_retry: bool = False
    must_refresh: bool = False


@dataclass(eq=False, repr=False, slots=True)
class PartitionQueue:
    """Batches of one partition without an outcome, in order."""

    target: TopicPartition
    is_idempotent: bool = field(kw_only=True)
    open: PendingBatch | None = None
    """Batch for new records."""
    sealed: deque[PendingBatch] = field(default_factory=deque)
    """Batches before their first or next attempt. Bounded by the send buffer."""
    in_flight: Sequence[PendingBatch] = ()
    is_queued: bool = False
    """Whether the sender has the partition in its list to send."""
    is_waiting: bool = False
    """Whether the partition pauses before its next attempt."""
    attempts: int = 0
    """Consecutive failed attempts."""
    identity: ProducerIdentity | None = None
    _next_sequence: int = 0
    _repeat_count: int = 0
    """Sealed batches that form a frame with unknown outcome and are repeated unchanged."""
    _alone_count: int = 0
    """Number of sealed batches that travel in separate frames."""
    batch_bytes_max: int = BATCH_LENGTH_MAX
    """Largest batch that the topic is known to accept, lowered by refusals."""

    @property
    def has_due(self) -> bool:
        """Whether there is something to send now."""
        return bool(self.sealed) or (self.open is not None and self.open.is_due)

    @property
    def can_be_queued(self) -> bool:
        """Whether the sender may add the partition to its list."""
        return not (self.is_queued or self.is_waiting or self.in_flight) and self.has_due

    def seal(self) -> None:
        """Close the open batch."""
        if self.open is not None:
            self.sealed.append(self.open)
            self.open = None

    def take(self, bytes_max: int, *, identity: ProducerIdentity | None) -> list[PendingBatch]:
        """Return the next frame's stamped batches, at least one, and more up to `bytes_max`.

        `identity` is the producer's present identity, for a partition without any. The batches
        count as in flight until `settle` gets their outcome.
        """
        assert not self.in_flight
        if not self.sealed and self.open is not None and self.open.is_due:
            self.seal()
        if self.is_idempotent and self.identity is None:
            assert identity is not None
            self.identity = identity
            self._next_sequence = 0
        if self._repeat_count:
            taken = [self.sealed.popleft() for _ in range(self._repeat_count)]
        else:
            taken = self._take_new(bytes_max)
        self.in_flight = taken
        return taken

    def _take_new(self, bytes_max: int) -> list[PendingBatch]:
        """Stamp and return batches that are certainly not written."""
        count_max = BATCHES_REMEMBERED if self.is_idempotent else BATCHES_PER_FRAME_MAX
        if self._alone_count:
            count_max = 1
            self._alone_count -= 1
        taken: list[PendingBatch] = []
        size = 0
        sequence = self._next_sequence
        while self.sealed and len(taken) < count_max:
            batch = self.sealed[0]
            if taken and size + batch.size_bytes() > bytes_max:
                break
            if self.identity is not None:
                batch.stamp(self.identity, sequence)
                sequence = (sequence + batch.record_count) & SEQUENCE_MASK
            size += len(batch.data())
            taken.append(self.sealed.popleft())
        return taken

    def settle(self, outcome: Acknowledged | RaftlogClientError, now: float) -> Settlement:
        """Apply the outcome of the frame in flight."""
        batches, self.in_flight = self.in_flight, ()
        assert batches
        if isinstance(outcome, ServerError) and outcome.entry is errors.DUPLICATE_SEQUENCE:
            # Written so long ago that the node has forgotten the offsets.
            outcome = Acknowledged(NO_OFFSET, NO_OFFSET)
        if isinstance(outcome, Acknowledged):
            self._acknowledge(batches, outcome)
            return Settlement()
        for batch in batches:
            batch.last_error = outcome
            batch.outcome_unknown = batch.outcome_unknown or outcome.outcome_unknown
        may_be_written = batches[0].outcome_unknown
        if self._may_retry(outcome, may_be_written=may_be_written):
            self.sealed.extendleft(reversed(batches))
            self._repeat_count = len(batches) if may_be_written else 0
            self.attempts += 1
        elif (
            not may_be_written
            and isinstance(outcome, ServerError)
            and outcome.entry is errors.RECORD_TOO_LARGE
            and (len(batches) > 1 or batches[0].record_count > 1)
        ):
            self._part(batches)
        else:
            self._give_up(batches, outcome)
        if _must_begin_anew(outcome) and not may_be_written:
            self.identity = None
        self.expire(now)
        return Settlement(
            must_retry=self.attempts > 0 and bool(self.sealed), must_refresh=is_stale(outcome)
        )

    def expire(self, now: float) -> None:
        """Give up batches past their deadline. Batches in flight get their response first.

        A frame that may be written is given up as a whole, because its batches travel only
        together.
        """
        assert not self.in_flight
        if self.open is not None and self.open.deadline <= now:
            self.seal()
        if not self.sealed or self.sealed[0].deadline > now:
            return
        if self._repeat_count:
            doubtful = [self.sealed.popleft() for _ in range(self._repeat_count)]
            self._give_up(doubtful, None)
        while self.sealed and self.sealed[0].deadline <= now:
            self._give_up([self.sealed.popleft()], None)

    def fail_all(self, error: RaftlogClientError) -> None:
        """Give up all batches not in flight."""
        self.seal()
        self._repeat_count = 0
        while self.sealed:
            batch = self.sealed.popleft()
            batch.fail(with_known_outcome(error, batch))
        self.identity = None

    def abandon(self, error: RaftlogClientError) -> None:
        """Give up all batches at the end of their transaction. No request is under way any more."""
        self.seal()
        batches = [*self.in_flight, *self.sealed]
        self.in_flight = ()
        self.sealed.clear()
        self.attempts = self._repeat_count = self._alone_count = 0
        self.identity = None
        for batch in batches:
            batch.fail(error)

    def forget_identity(self) -> None:
        """Restart in another topic of the same name."""
        if not self.in_flight and not self._repeat_count:
            self.identity = None

    def _acknowledge(self, batches: Sequence[PendingBatch], outcome: Acknowledged) -> None:
        self._repeat_count = 0
        self.attempts = 0
        if self.is_idempotent:
            last = batches[-1]
            self._next_sequence = (last.base_sequence + last.record_count) & SEQUENCE_MASK
        for batch, base_offset in zip(batches, base_offsets(batches, outcome), strict=True):
            batch.acknowledge(base_offset, outcome.log_append_time_ms)

    def _give_up(self, batches: Sequence[PendingBatch], refusal: RaftlogClientError | None) -> None:
        """Fail batches that are finally refused, or (None) whose time is over."""
        if batches[0].outcome_unknown:
            self.identity = None
        self._repeat_count = 0
        self.attempts = 0
        for batch in batches:
            batch.fail(timed_out(batch) if refusal is None else with_known_outcome(refusal, batch))

    def _part(self, batches: Sequence[PendingBatch]) -> None:
        """Split a frame that was too large into single batches, or a batch into halves.

        New batches of the partition are then limited to the size of a half.
        """
        if len(batches) > 1:
            parts = list(batches)
        else:
            parts = batches[0].split()
            self.batch_bytes_max = min(self.batch_bytes_max, len(batches[0].data()) // 2)
        self._alone_count = len(parts)
        self.sealed.extendleft(reversed(parts))

    def _may_retry(self, error: RaftlogClientError, *, may_be_written: bool) -> bool:
        if may_be_written and not self.is_idempotent:
            # No node would recognise the repeat.
            return False
        if isinstance(error, ServerError):
            if error.entry in {
                errors.OUT_OF_ORDER_SEQUENCE,
                errors.UNKNOWN_PRODUCER_ID,
                errors.INVALID_PRODUCER_ID,
            }:
                return self.is_idempotent and not may_be_written
            return error.retriable or error.entry.refresh_metadata
        return error.retriable


def base_offsets(batches: Sequence[PendingBatch], outcome: Acknowledged) -> list[int]:
    """Return the start of each batch of an acknowledged frame, NO_OFFSET if unknown."""
    counts = [batch.record_count for batch in batches]
    if outcome.base_offset == NO_OFFSET:
        return [NO_OFFSET] * len(batches)
    if outcome.last_offset - outcome.base_offset + 1 == sum(counts):
        return [outcome.base_offset + before for before in accumulate(counts[:-1], initial=0)]
    # A crash cut the frame in two, and another producer wrote between its first part and the repeat
    # of the rest. Only the ends are known.
    offsets = [NO_OFFSET] * len(batches)
    offsets[-1] = outcome.last_offset - counts[-1] + 1
    offsets[0] = outcome.base_offset
    return offsets


def _must_begin_anew(error: RaftlogClientError) -> bool:
    """Return whether the node accepts nothing more under the present identity."""
    return isinstance(error, ServerError) and error.entry in {
        errors.INVALID_PRODUCER_ID,
        errors.OUT_OF_ORDER_SEQUENCE,
        errors.PRODUCER_FENCED,
        errors.UNKNOWN_PRODUCER_ID,
    }


def is_stale(error: RaftlogClientError) -> bool:
    """Return whether the error suggests another leader."""
    if isinstance(error, ServerError):
        # A starting or stopping node does not lead for long.
        return error.entry.refresh_metadata or error.entry is errors.NOT_READY
    return isinstance(error, ConnectionLostError)


def _name(batch: PendingBatch) -> str:
    return f"{batch.target.topic}-{batch.target.partition}"


def timed_out(batch: PendingBatch) -> DeliveryTimeoutError:
    """Return the error of a batch given up at its deadline, with its known outcome."""
    if batch.outcome_unknown:
        what = "it may or may not be written"
    elif batch.was_sent:
        what = "it is not written"
    else:
        what = "it was never sent"
    last = f" Last error: {batch.last_error}" if batch.last_error is not None else ""
    error = DeliveryTimeoutError(
        f"{_name(batch)}: not acknowledged within delivery_timeout_ms; {what}.{last}",
        retriable=not batch.outcome_unknown,
        outcome_unknown=batch.outcome_unknown,
    )
    error.__cause__ = batch.last_error
    return error


def with_known_outcome(error: RaftlogClientError, batch: PendingBatch) -> RaftlogClientError:
    """Add to the error whether this or an earlier attempt may have written the batch."""
    if error.outcome_unknown:
        return _in_doubt(error, batch)
    if not batch.outcome_unknown:
        return error
    unknown = DeliveryTimeoutError(
        f"{_name(batch)}: refused ({error}), but an earlier attempt may have written it.",
        outcome_unknown=True,
    )
    unknown.__cause__ = error
    return unknown


def _in_doubt(error: RaftlogClientError, batch: PendingBatch) -> RaftlogClientError:
    words = f"{_name(batch)}: not acknowledged; it may or may not be written. {error}"
    worded: RaftlogClientError
    if isinstance(error, ServerError):
        worded = type(error)(error.entry, words)
    elif isinstance(error, ConnectionLostError):
        worded = ConnectionLostError(words, outcome_unknown=True)
    else:
        # The client's errors name their outcome.
        return error
    worded.__cause__ = error
    return worded
