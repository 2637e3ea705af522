"""Producers that pipeline, as Kafka's do, and clients that die in the middle of a request.

An idempotent producer has up to five requests in flight on a connection. After an error or the end
of a connection the producer waits for the rest in flight of that partition, then repeats in order
and with the same sequences, at the leader named by Metadata. Errors that end such a producer (45
and 59 of the first batch in line, 47, and all that are not retriable) are complaints: nothing in
these histories explains them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from raftlog.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from raftlog.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from raftlog.kafka.messages.transactions import InitProducerIdRequest
from raftlog.record.types import ProducerEpoch, ProducerId
from tests.simulation.data.clients import Part, encode
from tests.simulation.kafka.clients import (
    DUPLICATE_SEQUENCE,
    NONE,
    NOT_LEADER,
    OUT_OF_ORDER_SEQUENCE,
    PAUSE_S,
    REQUEST_S,
    RETRIABLE,
    UNKNOWN_PRODUCER_ID,
    Client,
)
from tests.simulation.kafka.wire import Cut, DisconnectedError, Exchange, How, Wire
from tests.verification.log_history import Outcome, Send

PRODUCE: Final = 11
FETCH: Final = 12
INIT: Final = 4
"""Versions."""
IN_FLIGHT_MAX: Final = 5
"""Requests of one connection, and batches of one partition, as with Kafka's clients."""
UNRESOLVED_MAX: Final = 8
"""Batches of one partition that wait for their answer, sent or not."""
PARTITIONS_MAX: Final = 3
"""In one request."""
TIMEOUT_MS: Final = 1_500
UNREAD: Final = 0.4
"""Share of a dying client's connections that take nothing of a large answer."""
UNREAD_S: Final = 1_000.0
SIZES: Final = (0, 0, 0, 100, 1_000, 3_000)
"""By how much a value is longer than its name."""


@dataclass(slots=True, eq=False)
class Batch:
    """One batch of a partition, with its sequence."""

    part: Part
    values: list[str]
    data: bytes
    invoked: int
    begun_s: float
    tries: int = 0
    is_in_flight: bool = False
    passed: int = 0
    """Later batches that were acknowledged meanwhile."""
    wire: Wire | None = None
    """By which it was sent last."""


@dataclass(slots=True)
class Line:
    """The batches of one partition without a final answer, in the order of their sequences."""

    batches: deque[Batch] = field(default_factory=deque)
    sequence: int = 0
    """Of the next batch."""
    is_stopped: bool = False
    """After a failure: nothing is sent until all in flight have come back."""


@dataclass
class Producer(Client):
    """An idempotent producer of all partitions."""

    delivery_s: float = 30.0
    """After so long with a batch it goes on with another producer id."""
    acknowledged: int = 0
    repeated: int = 0
    lines: dict[Part, Line] = field(default_factory=dict)
    _identity: tuple[ProducerId, ProducerEpoch] | None = None
    _session: int = 0
    _written: int = 0
    _wakeup: asyncio.Event = field(default_factory=asyncio.Event)
    _is_stale: bool = True
    """Leaders are to be looked up."""

    # The application

    async def run(self, until_s: float, mean_s: float) -> None:
        """Write until `until`, with such pauses."""
        loop = self.history.world.loop
        while loop.now < until_s:
            await asyncio.sleep(self.chance.expovariate(1 / mean_s))
            if self._identity is None:
                continue
            for _ in range(self.chance.choice((1, 1, 2, 5))):
                part = self.chance.choice(self.history.data.parts)
                line = self.lines.setdefault(part, Line())
                if len(line.batches) < UNRESOLVED_MAX:
                    self._append(part, line)
            self._wakeup.set()

    def _append(self, part: Part, line: Line) -> None:
        values = []
        for _ in range(self.chance.randint(1, 3)):
            self._written += 1
            values.append(f"{self.name}/{self._written}" + "-" * self.chance.choice(SIZES))
        data = encode(values, self._identity, line.sequence)[0].data
        history = self.history
        line.batches.append(
            Batch(part, values, bytes(data), history.data.step(), history.world.loop.now)
        )
        line.sequence += len(values)

    @property
    def is_idle(self) -> bool:
        """Whether every batch has its answer."""
        return not any(line.batches for line in self.lines.values())

    # The sender

    async def send_all(self) -> None:
        """Send until cancelled."""
        while True:
            if self._identity is None:
                await self._begin_session()
                continue
            if self._is_stale and await self.refresh():
                self._is_stale = False
            self._expire()
            await self._send_due()
            self._wakeup.clear()
            try:
                async with asyncio.timeout(PAUSE_S):
                    await self._wakeup.wait()
            except TimeoutError:
                pass

    async def _begin_session(self) -> None:
        try:
            answer = await self.ask(self.any_node(), InitProducerIdRequest(None, 1_000), INIT)
        except DisconnectedError:
            await asyncio.sleep(PAUSE_S)
            return
        if answer.error_code == NONE:
            self._identity = answer.producer_id, answer.producer_epoch
            self._session += 1
            self._is_stale = True
        else:
            await asyncio.sleep(PAUSE_S)

    def _expire(self) -> None:
        """Give up the sequences after too long with one batch."""
        oldest = min(
            (line.batches[0].begun_s for line in self.lines.values() if line.batches),
            default=self.history.world.loop.now,
        )
        if self.history.world.loop.now - oldest > self.delivery_s:
            self.end_session()

    def end_session(self) -> None:
        """Go on under another name and producer id."""
        for line in self.lines.values():
            for batch in line.batches:
                self._note(batch, "unknown" if batch.tries else "refused", None)
        self.lines.clear()
        self._identity = None

    async def _send_due(self) -> None:
        by_node: dict[int, list[Part]] = {}
        for part, line in sorted(self.lines.items(), key=lambda item: str(item[0])):
            in_flight = sum(batch.is_in_flight for batch in line.batches)
            if line.is_stopped and not in_flight:
                line.is_stopped = False
            if line.batches and not line.is_stopped and (leader := self.leader(part)) is not None:
                by_node.setdefault(leader, []).append(part)
            elif line.batches and self.leader(part) is None:
                self._is_stale = True
        for node_id, parts in sorted(by_node.items()):
            wire = await self.wire(node_id)
            if wire is None:
                self._is_stale = True
                continue
            while len(wire.exchanges) < IN_FLIGHT_MAX and self._send_one(wire, parts):
                pass

    def _send_one(self, wire: Wire, parts: list[Part]) -> bool:
        """Send one request with the next batch of some partitions; whether there was one."""
        if wire.is_over:
            return False
        chosen: list[Batch] = []
        for part in self.chance.sample(parts, len(parts)):
            line = self.lines.get(part)
            if line is None or line.is_stopped or len(chosen) == PARTITIONS_MAX:
                continue
            in_flight = sum(batch.is_in_flight for batch in line.batches)
            if in_flight and line.batches[0].wire is not wire:
                # Another node may have the ones before, and answer later.
                continue
            if in_flight < min(len(line.batches), IN_FLIGHT_MAX):
                chosen.append(line.batches[in_flight])
        if not chosen:
            return False
        for batch in chosen:
            batch.is_in_flight = True
            batch.tries += 1
            batch.wire = wire
            self.repeated += batch.tries > 1
        exchange = wire.begin(produce_request(chosen, acks=-1), PRODUCE)
        loop = asyncio.get_running_loop()
        patience = loop.call_later(REQUEST_S, self._timed_out, wire, exchange)
        exchange.answered.add_done_callback(
            partial(self._answered, chosen, self._session, patience)
        )
        return True

    def _timed_out(self, wire: Wire, exchange: Exchange) -> None:
        if not exchange.answered.done():
            self.give_up(wire)

    # Answers

    def _answered(
        self,
        batches: list[Batch],
        session: int,
        patience: asyncio.TimerHandle,
        answered: asyncio.Future[Any],
    ) -> None:
        patience.cancel()
        self._wakeup.set()
        if session != self._session or self._identity is None:
            return
        for batch in batches:
            batch.is_in_flight = False
        if answered.cancelled() or answered.exception() is not None:
            self._is_stale = True
            for batch in batches:
                self.lines[batch.part].is_stopped = True
            return
        rows = {
            Part(topic.name, row.index): row
            for topic in answered.result().responses
            for row in topic.partition_responses
        }
        if set(rows) != {batch.part for batch in batches}:
            self.complain(f"an answer for {list(rows)}, not for {batches}")
            return
        for batch in batches:
            if self._identity is None:
                return
            self._judge(batch, rows[batch.part])

    def _judge(self, batch: Batch, row: Any) -> None:
        line = self.lines[batch.part]
        is_first = line.batches[0] is batch
        if row.error_code == NONE:
            # The first one may have failed without a known outcome, and be in the log.
            for earlier in line.batches:
                if earlier is batch:
                    break
                earlier.passed += 1
            self._done(batch, int(row.base_offset))
            return
        if row.error_code == DUPLICATE_SEQUENCE and batch.passed:
            # In the log, behind more batches than are remembered: success for Kafka's clients.
            self._done(batch, None)
            return
        line.is_stopped = True
        if row.error_code == NOT_LEADER and row.current_leader.leader_id >= 0:
            self.heard(batch.part, row.current_leader.leader_epoch, row.current_leader.leader_id)
        self._is_stale = True
        may_pass = row.error_code in RETRIABLE
        if row.error_code in {OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER_ID}:
            # A batch before it has failed, perhaps the producer's first one here; without such a
            # batch it is the end of the producer.
            may_pass = not is_first
        if not may_pass:
            self.complain(
                f"{batch.part}: {batch.values[0][:20]} ended the producer: error "
                f"{row.error_code}: {row.error_message}"
            )
            self.end_session()

    def _done(self, batch: Batch, offset: int | None) -> None:
        self.lines[batch.part].batches.remove(batch)
        self.acknowledged += 1
        self._note(batch, "ok", offset)

    def _note(self, batch: Batch, outcome: Outcome, offset: int | None) -> None:
        self.history.data.history.append(
            Send(
                partition=str(batch.part),
                producer=f"{self.name}.{self._session}",
                values=tuple(batch.values),
                invoked=batch.invoked,
                completed=self.history.data.step(),
                outcome=outcome,
                offset=offset,
                repeated=batch.tries > 1,
            )
        )


def produce_request(
    batches: list[Batch], *, acks: int, transactional_id: str | None = None
) -> ProduceRequest:
    """A request with these batches, each of another partition."""
    topics: dict[str, list[PartitionProduceData]] = {}
    for batch in batches:
        row = PartitionProduceData(batch.part.number, batch.data)
        topics.setdefault(batch.part.topic, []).append(row)
    data = tuple(TopicProduceData(name, None, tuple(rows)) for name, rows in topics.items())
    return ProduceRequest(transactional_id, acks, TIMEOUT_MS, data)


@dataclass
class DyingClient(Client):
    """Sends one request a connection, without sequences, dies meanwhile, and never repeats it.

    Some of its connections only fetch, and take nothing of the answer.

    A request whose last byte never left must not have taken place: not even one of its partitions.
    """

    unread: int = 0
    """Fetches of which nothing was read."""
    cut_off: int = 0
    """Requests that were not sent whole."""
    _written: int = 0

    async def run(self, until_s: float, mean_s: float) -> None:
        """Live and die until `until`."""
        loop = self.history.world.loop
        while loop.now < until_s:
            await asyncio.sleep(self.chance.expovariate(1 / mean_s))
            if not self.leaders or self.chance.random() < 0.3:
                self.is_calm = True
                await self.refresh()
                self.leave()
            parts = [part for part in self.history.data.parts if self.leader(part) is not None]
            if parts:
                await self._live(parts)

    async def _live(self, parts: list[Part]) -> None:
        node_id = self.leader(self.chance.choice(parts))
        assert node_id is not None
        led = [part for part in parts if self.leader(part) == node_id]
        wire = await self.wire(node_id)
        if wire is None:
            return
        if self.chance.random() < UNREAD:
            self._read_nothing(wire, led)
            return
        batches = []
        data = self.history.data
        for part in self.chance.sample(led, min(len(led), self.chance.randint(1, 3))):
            self._written += 1
            value = f"{self.name}/{self._written}" + "-" * self.chance.choice(SIZES)
            content = bytes(encode([value])[0].data)
            batches.append(Batch(part, [value], content, data.step(), 0.0))
        acks = self.chance.choice((0, 1, -1))
        request = produce_request(batches, acks=acks)
        how: How = self.chance.choice(("reset", "close", "half-close"))
        size = sum(len(batch.data) for batch in batches)
        at = self.chance.randint(0, int(1.2 * size) + 100)
        wire.cut = Cut(how, request_byte=wire.sent + at, is_late=self.chance.random() < 0.7)
        exchange = wire.begin(request, PRODUCE, has_answer=acks != 0)
        self.cut_off += not exchange.is_whole
        offsets: dict[Part, int] = {}
        try:
            async with asyncio.timeout(REQUEST_S):
                answer = await exchange.answered
                for topic in answer.responses if answer is not None else ():
                    for row in topic.partition_responses:
                        if row.error_code == NONE:
                            offsets[Part(topic.name, row.index)] = int(row.base_offset)
        except (DisconnectedError, TimeoutError):
            pass
        finally:
            for batch in batches:
                is_known = batch.part in offsets
                unknown: Outcome = "unknown" if exchange.is_whole else "refused"
                data.history.append(
                    Send(
                        partition=str(batch.part),
                        producer=f"{self.name}.{self._written}",
                        values=tuple(batch.values),
                        invoked=batch.invoked,
                        completed=data.step(),
                        outcome="ok" if is_known else unknown,
                        offset=offsets.get(batch.part),
                        acks=acks,
                        idempotent=False,
                    )
                )
        self._die(wire)

    def _read_nothing(self, wire: Wire, parts: list[Part]) -> None:
        """Fetch all there is, and take nothing of the answer."""
        self.unread += 1
        wire.pace_s = UNREAD_S
        rows = tuple(
            FetchPartition(part.number, -1, 0, partition_max_bytes=1 << 20) for part in parts
        )
        topic = FetchTopic(parts[0].topic, None, rows)
        wire.begin(FetchRequest(max_wait_ms=100, min_bytes=1, topics=(topic,)), FETCH)
        later_s = self.chance.uniform(0.0, 1.0)
        asyncio.get_running_loop().call_later(later_s, self._die, wire)
        # The next one is another connection.
        self.wires.clear()

    def _die(self, wire: Wire) -> None:
        how = self.chance.choice(("reset", "close", "vanish"))
        self.cuts += how == "vanish"
        wire.end(how)
