"""A transactional producer of version 2 (KIP-890), over the wire."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from raftlog.kafka.messages.groups import FindCoordinatorRequest
from raftlog.kafka.messages.transactions import EndTxnRequest, InitProducerIdRequest
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.record.types import ProducerEpoch, ProducerId
from tests.simulation.data.clients import TIME_MS, Part
from tests.simulation.kafka.clients import NONE, PAUSE_S, RETRIABLE, Client
from tests.simulation.kafka.producers import Batch, produce_request
from tests.simulation.kafka.wire import DisconnectedError
from tests.simulation.transactions.clients import Record
from tests.verification.log_history import Outcome, Send

FIND, INIT, PRODUCE, END = 4, 4, 12, 5
"""Versions; transactions of version 2 need these of Produce and EndTxn."""
TRANSACTION: Final = 1
"""Type of a coordinator's key."""
PASSING: Final = RETRIABLE | {14, 15, 16, 51}
"""With COORDINATOR_LOAD_IN_PROGRESS, -_NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS."""
ENDING: Final = frozenset({47, 48, 49, 90})
"""Of a producer that was fenced, or whose transaction has timed out."""
INSIST_S: Final = 6.0
ABORTS: Final = 0.25
ABANDONS: Final = 0.1
BATCH_BYTES_MAX: Final = 1 << 16


class OverError(Exception):
    """This incarnation is over: the next one begins with InitProducerId."""


@dataclass
class TransactionalProducer(Client):
    """One transactional id, one incarnation after the other."""

    timeout_ms: int = 1_500
    records: list[Record] = field(default_factory=list)
    committed: int = 0
    _producer: tuple[ProducerId, ProducerEpoch] | None = None
    _coordinator: int | None = None
    _written: int = 0

    async def run(self, until_s: float, mean_s: float) -> None:
        """Write transactions until `until`."""
        loop = self.history.world.loop
        while loop.now < until_s:
            await asyncio.sleep(self.chance.expovariate(1 / mean_s))
            try:
                if self._producer is None:
                    await self._init()
                else:
                    await self._transact()
            except OverError as error:
                self.history.world.trace(f"{self.name}: {error}")
                self._producer = None

    async def _init(self) -> None:
        await self.refresh()
        answer = await self._insist(
            InitProducerIdRequest(self.name, self.timeout_ms), INIT, at_coordinator=True
        )
        self._producer = answer.producer_id, answer.producer_epoch

    async def _transact(self) -> None:
        assert self._producer is not None
        self._written += 1
        record = Record(f"{self.name}/{self._written}")
        self.records.append(record)
        parts = self.history.data.parts
        chosen = self.chance.sample(parts, self.chance.randint(1, min(3, len(parts))))
        for number, part in enumerate(chosen):
            await self._write(record, part, number)
        if self.chance.random() < ABANDONS:
            raise OverError("abandoned")
        is_commit = self.chance.random() >= ABORTS
        if is_commit:
            # Unknown until an answer.
            record.doubts += 1
            record.ending = self.history.data.step()
        request = EndTxnRequest(self.name, *self._producer, is_commit)
        answer = await self._insist(request, END, at_coordinator=True)
        if is_commit:
            record.is_committed, record.completed = True, self.history.data.step()
            self.committed += 1
        else:
            record.is_aborted = True
        self._producer = answer.producer_id, answer.producer_epoch

    async def _write(self, record: Record, part: Part, number: int) -> None:
        assert self._producer is not None
        values = [f"{record.name}/{number}.{each}" for each in range(self.chance.randint(1, 2))]
        builder = BatchBuilder(
            Compression.NONE,
            BATCH_BYTES_MAX,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=0,
            transactional=True,
        )
        for value in values:
            assert builder.append(TIME_MS, None, value.encode(), [])
        data = self.history.data
        batch = Batch(part, values, bytes(builder.build()), data.step(), 0.0)
        outcome: Outcome = "unknown"
        offset = None
        try:
            offset = await self._produce(batch)
            outcome = "ok"
        finally:
            data.history.append(
                Send(
                    partition=str(part),
                    producer=record.name,
                    values=tuple(values),
                    invoked=batch.invoked,
                    completed=data.step(),
                    outcome=outcome,
                    offset=offset,
                    repeated=batch.tries > 1,
                    identity=(int(self._producer[0]), int(self._producer[1])),
                    transaction=record.name,
                )
            )

    async def _produce(self, batch: Batch) -> int:
        deadline = self.history.world.loop.now + INSIST_S
        request = produce_request([batch], acks=-1, transactional_id=self.name)
        while self.history.world.loop.now < deadline:
            leader = self.leader(batch.part)
            try:
                if leader is not None:
                    batch.tries += 1
                    answer = await self.ask(leader, request, PRODUCE)
                    row = answer.responses[0].partition_responses[0]
                    if row.error_code == NONE:
                        return int(row.base_offset)
                    self._require_passing(row.error_code, f"{batch.part}: {row.error_message}")
            except DisconnectedError:
                pass
            await asyncio.sleep(self.chance.uniform(0.0, 2 * PAUSE_S))
            await self.refresh()
        raise OverError("a batch without an answer")

    async def _insist(self, request: msgspec.Struct, version: int, *, at_coordinator: bool) -> Any:
        """Repeat a request until it succeeds. Raises OverError."""
        deadline = self.history.world.loop.now + INSIST_S
        while self.history.world.loop.now < deadline:
            try:
                node_id = self._coordinator if at_coordinator else self.any_node()
                if node_id is None:
                    await self._find()
                    continue
                answer = await self.ask(node_id, request, version)
            except DisconnectedError:
                self._coordinator = None
            else:
                if answer.error_code == NONE:
                    return answer
                if isinstance(request, EndTxnRequest) and answer.error_code in ENDING:
                    # Ended by its timeout, or committed by a request whose answer was lost: the
                    # outcome stays unknown.
                    raise OverError(f"error {answer.error_code} of EndTxn")
                self._require_passing(answer.error_code, type(request).__name__)
                self._coordinator = None
            await asyncio.sleep(self.chance.uniform(0.0, 2 * PAUSE_S))
        raise OverError("no answer")

    async def _find(self) -> None:
        request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=(self.name,))
        answer = await self.ask(self.any_node(), request, FIND)
        (found,) = answer.coordinators
        if found.error_code == NONE:
            self._coordinator = found.node_id
        else:
            self._require_passing(found.error_code, "FindCoordinator")
            await asyncio.sleep(PAUSE_S)

    def _require_passing(self, error_code: int, what: str) -> None:
        if error_code in ENDING:
            raise OverError(f"error {error_code}")
        if error_code not in PASSING:
            self.complain(f"{what}: error {error_code}")
            raise OverError(f"error {error_code}")
