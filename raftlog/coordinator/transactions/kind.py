"""The transaction coordinator as a kind of shard, with its topic, record codec and requests.

A refusal with records (an `init` that must abort first) is a `Failure` in the state machine's
response. `successful` raises the error, once the records are committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

from raftlog.coordinator.shard.decision import CoordinatorRecord, Decision, Event, Timers
from raftlog.coordinator.shard.messages import Messages
from raftlog.coordinator.shard.record_codec import (
    decode_transaction_record,
    encode_record,
    known_record,
)
from raftlog.coordinator.shard.shard import Kind, Moment, Shard
from raftlog.coordinator.transactions.messages import (
    AddPartitions,
    CommitSinkEpoch,
    DescribeSink,
    DescribeTransaction,
    EndTransaction,
    Failure,
    InitProducer,
    ListTransactions,
    Request,
    Response,
    Verified,
    VerifyOrAdd,
)
from raftlog.coordinator.transactions.shard import TimerKey, TransactionShard
from raftlog.coordinator.transactions.transaction import (
    ProducerIdRequiredError,
    TransactionSettings,
)
from raftlog.record.coordinators import TRANSACTIONS_TOPIC
from raftlog.record.errors import (
    CONCURRENT_TRANSACTIONS,
    PRODUCER_FENCED,
    LogError,
)
from raftlog.record.types import ProducerEpoch, ProducerId

NAME: Final = "transaction"
TOPIC: Final = TRANSACTIONS_TOPIC

HELD_S: Final = 2.0
"""Longest wait for markers of the transaction before, by an `init`, addition or end."""
SINK_HELD_S: Final = 5.0
"""Longest wait for the markers of a sink epoch."""
VERIFICATION_HELD_S: Final = 0.5
"""Longest wait of a leader's questions. The leader then repeats them, with its news since."""

TransactionCoordinator: TypeAlias = Shard[TransactionShard, TimerKey]
AllocateProducerId: TypeAlias = Callable[[], Awaitable[tuple[ProducerId, ProducerEpoch]]]
"""Allocates an unused producer id. Raises LogError."""

MESSAGES: Final[Messages[Request, Response]] = Messages.of(NAME, Request, Response)


class TransactionKind(Kind[TransactionShard, TimerKey, Request, Response]):
    """The transaction coordinator, for all shards of a node."""

    name = NAME
    topic = TOPIC
    messages = MESSAGES

    def __init__(
        self,
        allocate_producer_id: AllocateProducerId,
        write_markers: Callable[[TransactionCoordinator], Coroutine[Any, Any, None]],
        settings: TransactionSettings,
    ) -> None:
        """`write_markers` writes the markers of a loaded shard, until the shard ends."""
        super().__init__()
        self._allocate_producer_id = allocate_producer_id
        self._write_markers = write_markers
        self._settings = settings

    def create(self, changed: Callable[[Hashable], None]) -> TransactionShard:
        """See `Kind`."""
        return TransactionShard(self._settings, changed, self.counts)

    def timers(self, state: TransactionShard) -> Timers[TimerKey]:
        """See `Kind`."""
        return state.timers

    def loaded(self, state: TransactionShard, moment: Moment) -> None:
        """See `Kind`."""
        state.loaded(moment.now_ms)

    def follow_settings(self, state: TransactionShard, settings: Mapping[str, str]) -> None:
        """See `Kind`."""
        state.follow_settings(settings)

    async def handle(self, shard: TransactionCoordinator, request: Request) -> Response:
        """See `Kind`."""
        if isinstance(request, ListTransactions | DescribeTransaction | DescribeSink):
            return await shard.query(lambda state: _decide(shard, state, request, None).response)
        if isinstance(request, VerifyOrAdd):
            await _until_one_may_begin(shard, request)
        if isinstance(request, CommitSinkEpoch):
            committed = await self._execute(shard, request)
            await _until_readable(shard, request)
            return committed
        if not isinstance(request, InitProducer | AddPartitions | EndTransaction):
            return await self._execute(shard, request)
        try:
            response = await self._execute(shard, request)
            if not isinstance(response, Failure):
                return response
            refusal = response.error()
        except LogError as error:
            refusal = error
        transactional_id = request.transactional_id
        if refusal.entry is not CONCURRENT_TRANSACTIONS or not await shard.wait_until(
            (transactional_id,), partial(_has_ended, transactional_id), HELD_S
        ):
            raise refusal
        return await self._execute(shard, request)

    async def _execute(self, shard: TransactionCoordinator, request: Request) -> Response:
        producer_id: ProducerId | None = None
        while True:
            try:
                return await shard.execute(
                    lambda state, unused=producer_id: _decide(shard, state, request, unused)  # type: ignore[misc]
                )
            except ProducerIdRequiredError:
                producer_id, _ = await self._allocate_producer_id()

    def expire(self, state: TransactionShard, key: TimerKey, moment: Moment) -> Decision[object]:
        """See `Kind`."""
        decision = state.expire(key, moment.now_ms, moment.time_ms, moment.expiry_ms)
        return Decision(None, decision.records)

    def refused(self, state: TransactionShard, decision: Decision[object], moment: Moment) -> None:
        """See `Kind`."""
        state.loaded(moment.now_ms)

    def beside(self, shard: TransactionCoordinator) -> Coroutine[Any, Any, None]:
        """See `Kind`."""
        return self._write_markers(shard)

    def encode_record(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        """See `Kind`."""
        return encode_record(record)

    def decode_record(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        """See `Kind`."""
        return known_record(TOPIC, decode_transaction_record, key, value)


async def _until_one_may_begin(shard: TransactionCoordinator, request: VerifyOrAdd) -> None:
    """Hold questions while all of them would get CONCURRENT_TRANSACTIONS.

    So a producer's next transaction starts as soon as all markers of its last transaction are
    confirmed, and no question waits for the markers of another producer. Raises LogError as
    `wait_until`.
    """
    ids = tuple({verification.transactional_id: None for verification in request.verifications})
    if ids:
        await shard.wait_until(
            ids, lambda state: not all(map(state.is_ending, ids)), VERIFICATION_HELD_S
        )


async def _until_readable(shard: TransactionCoordinator, request: CommitSinkEpoch) -> None:
    """Hold the response to a sink epoch until all its partitions have their markers.

    A batch job reads what the job before has written, so the answer comes once committed records
    are readable. They become readable later if a leader is missing for long, another coordinator
    takes over, or too many requests are held. The epoch is committed all the same.
    """
    time = asyncio.get_running_loop().time
    end = time() + SINK_HELD_S
    with suppress(LogError):
        for name in request.transactional_ids:
            if not await shard.wait_until((name,), partial(_has_ended, name), end - time()):
                break


def _has_ended(transactional_id: str, state: TransactionShard) -> bool:
    return not state.is_ending(transactional_id)


def _decide(
    shard: TransactionCoordinator,
    state: TransactionShard,
    request: Request,
    producer_id: ProducerId | None,
) -> Decision[Response]:
    moment, counts = shard.moment(), shard.kind.counts
    try:
        decision = state.decide(request, moment.now_ms, moment.time_ms, producer_id)
    except LogError as error:
        counts[Event.PRODUCER_FENCED] += error.entry is PRODUCER_FENCED
        raise
    if isinstance(decision.response, Verified):
        counts[Event.PRODUCER_FENCED] += sum(
            outcome is not None and outcome.code == PRODUCER_FENCED.code
            for outcome in decision.response.outcomes
        )
    return decision
