"""The order and the repeats of one partition's batches: what is sent next, what an answer means.

Decisions only, without I/O. A partition's share of a request is a frame of one or more batches,
which a node writes whole or not at all. The rules:

1. One frame of a partition is in flight at a time. Requests on different connections may overtake
   each other, so a second one could arrive first. Nothing is lost in throughput: what gathers while
   one frame is under way travels in the next, and the node syncs them as one, too.
2. A batch keeps its bytes, producer id and sequence through every repeat, so that a node which has
   it answers with its offset instead of writing it again.
3. A frame that may be written is repeated as it was: its batches then stand one after the other,
   and one base offset says where each is. One that is certainly not written may be made up anew.
4. A node remembers the last five batches of a producer, so an idempotent frame has at most five.
5. Given up is final. A batch that is given up leaves a gap in the sequence, so the batches after it
   take a new identity; no frame is in flight then, and none of theirs can be written already,
   because a frame is given up as a whole.
6. A node that has forgotten the producer (idle for long, or displaced by many others) refuses the
   next sequence. A frame that is certainly not written then begins anew, under a new identity.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from raftlog.record.errors import DUPLICATE_SEQUENCE, OUT_OF_ORDER_SEQUENCE
from raftlog_client.batches import (
    NO_OFFSET,
    Acknowledged,
    PendingBatch,
    ProducerIdentity,
)
from raftlog_client.errors import (
    ConnectionLostError,
    DeliveryTimeoutError,
    RaftlogClientError,
    ServerError,
)
from raftlog_client.types import TopicPartition

BATCHES_REMEMBERED: Final = 5
"""Batches of one producer in one partition that a node can recognise."""
BATCHES_PER_FRAME_MAX: Final = 100
"""Batches in a frame that need not be recognised."""
SEQUENCE_MASK: Final = 2**31 - 1
"""Sequence numbers go on from 0 after 2^31 - 1."""


class Settlement(NamedTuple):
    """What an answer asks to be done for the partition."""

    must_retry: bool = False
    must_refresh: bool = False


class PartitionQueue:
    """Batches of one partition that are not settled yet, in order."""

    __slots__ = (
        "_next_sequence",
        "_repeat_count",
        "attempts",
        "identity",
        "in_flight",
        "is_idempotent",
        "is_queued",
        "is_waiting",
        "open",
        "sealed",
        "target",
    )

    def __init__(self, target: TopicPartition, *, is_idempotent: bool) -> None:
        self.target = target
        self.is_idempotent = is_idempotent
        self.open: PendingBatch | None = None
        """The batch that takes records."""
        self.sealed: deque[PendingBatch] = deque()
        """Batches that wait for their first or next attempt. Bounded by the send buffer."""
        self.in_flight: Sequence[PendingBatch] = ()
        self.is_queued = False
        """Whether the sender has the partition in its list of those to send."""
        self.is_waiting = False
        """Whether the partition pauses before its next attempt."""
        self.attempts = 0
        """Attempts in a row that led to nothing."""
        self.identity: ProducerIdentity | None = None
        self._next_sequence = 0
        self._repeat_count = 0
        """How many of the sealed batches are a frame that may be written, and travels as it is."""

    @property
    def has_due(self) -> bool:
        """Whether there is something to send now."""
        return bool(self.sealed) or (self.open is not None and self.open.is_due)

    @property
    def can_be_queued(self) -> bool:
        """Whether the sender may take the partition on."""
        return not (self.is_queued or self.is_waiting or self.in_flight) and self.has_due

    def seal(self) -> None:
        """Close the open batch."""
        if self.open is not None:
            self.sealed.append(self.open)
            self.open = None

    def take(self, bytes_max: int, *, identity: ProducerIdentity | None) -> list[PendingBatch]:
        """The batches of the next frame, stamped; at least one, and more up to `bytes_max`.

        `identity` is the producer's present one, for a partition that has none. The batches count
        as in flight until `settle` is told what became of them.
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
        """Batches that are certainly not written, stamped."""
        count_max = BATCHES_REMEMBERED if self.is_idempotent else BATCHES_PER_FRAME_MAX
        taken: list[PendingBatch] = []
        size = 0
        while self.sealed and len(taken) < count_max:
            batch = self.sealed[0]
            if taken and size + batch.size_bytes() > bytes_max:
                break
            if self.identity is not None and batch.identity is None:
                batch.stamp(self.identity, self._next_sequence)
                self._next_sequence = (self._next_sequence + batch.record_count) & SEQUENCE_MASK
            size += len(batch.data())
            taken.append(self.sealed.popleft())
        return taken

    def settle(self, outcome: Acknowledged | RaftlogClientError, now: float) -> Settlement:
        """Apply the outcome of the frame in flight."""
        batches, self.in_flight = self.in_flight, ()
        assert batches
        if isinstance(outcome, Acknowledged):
            self._acknowledge(batches, outcome)
            return Settlement()
        if isinstance(outcome, ServerError) and outcome.entry is DUPLICATE_SEQUENCE:
            # It is written, so long ago that its place is forgotten.
            self._acknowledge(batches, Acknowledged(NO_OFFSET, NO_OFFSET))
            return Settlement()
        for batch in batches:
            batch.last_error = outcome
            batch.outcome_unknown = batch.outcome_unknown or outcome.outcome_unknown
        may_be_written = batches[0].outcome_unknown
        if not self._may_retry(outcome, may_be_written=may_be_written):
            for batch in batches:
                batch.fail(with_known_outcome(outcome, batch))
            self._repeat_count = 0
            self.attempts = 0
            self._start_over()
            return Settlement(must_refresh=is_stale(outcome))
        self.sealed.extendleft(reversed(batches))
        self._repeat_count = len(batches) if may_be_written else 0
        self.attempts += 1
        if _is_forgotten(outcome):
            self._start_over()
        self.expire(now)
        return Settlement(must_retry=bool(self.sealed), must_refresh=is_stale(outcome))

    def expire(self, now: float) -> None:
        """Give up the batches whose time is over. Those in flight get their answer first.

        A frame that may be written is given up as a whole: its batches can travel only together.
        """
        assert not self.in_flight
        if self.open is not None and self.open.deadline <= now:
            self.seal()
        if not self.sealed or self.sealed[0].deadline > now:
            return
        gave_up_stamped = False
        while self.sealed and (self._repeat_count or self.sealed[0].deadline <= now):
            self._repeat_count = max(self._repeat_count - 1, 0)
            batch = self.sealed.popleft()
            gave_up_stamped = gave_up_stamped or batch.identity is not None
            batch.fail(timed_out(batch))
        self.attempts = 0
        if gave_up_stamped:
            self._start_over()

    def fail_all(self, error: RaftlogClientError) -> None:
        """Give up all that is not in flight."""
        self.seal()
        self._repeat_count = 0
        while self.sealed:
            batch = self.sealed.popleft()
            batch.fail(with_known_outcome(error, batch))
        self.identity = None

    def forget_identity(self) -> None:
        """Begin anew in a topic that is another one of the same name."""
        if not self.in_flight and not self._repeat_count:
            self._start_over()

    def _acknowledge(self, batches: Sequence[PendingBatch], outcome: Acknowledged) -> None:
        self._repeat_count = 0
        self.attempts = 0
        for batch, base_offset in zip(batches, base_offsets(batches, outcome), strict=True):
            batch.acknowledge(base_offset, outcome.log_append_time_ms)

    def _may_retry(self, error: RaftlogClientError, *, may_be_written: bool) -> bool:
        if may_be_written and not self.is_idempotent:
            # Nobody would recognise the repeat.
            return False
        if isinstance(error, ServerError):
            if error.entry is OUT_OF_ORDER_SEQUENCE:
                return self.is_idempotent and not may_be_written
            return error.retriable or error.entry.refresh_metadata
        return error.retriable

    def _start_over(self) -> None:
        """Let the batches that are left take a new identity: the sequence has a gap (rule 5)."""
        assert not self._repeat_count
        self.identity = None
        for batch in self.sealed:
            if batch.identity is not None:
                batch.unstamp()


def base_offsets(batches: Sequence[PendingBatch], outcome: Acknowledged) -> list[int]:
    """Where each batch of an acknowledged frame begins; NO_OFFSET where nobody knows."""
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


def _is_forgotten(error: RaftlogClientError) -> bool:
    """Whether the node does not know the producer any more."""
    return isinstance(error, ServerError) and error.entry is OUT_OF_ORDER_SEQUENCE


def is_stale(error: RaftlogClientError) -> bool:
    """Whether the error suggests that the leader is another node by now."""
    if isinstance(error, ServerError):
        return error.entry.refresh_metadata
    return isinstance(error, ConnectionLostError)


def _name(batch: PendingBatch) -> str:
    return f"{batch.target.topic}-{batch.target.partition}"


def timed_out(batch: PendingBatch) -> DeliveryTimeoutError:
    """The error of a batch that is given up because its time is over: what is known of it."""
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
    """The error as it is, unless an earlier attempt may have written the batch all the same."""
    if error.outcome_unknown or not batch.outcome_unknown:
        return error
    unknown = DeliveryTimeoutError(
        f"{_name(batch)}: refused ({error}), but an earlier attempt may have written it.",
        outcome_unknown=True,
    )
    unknown.__cause__ = error
    return unknown
