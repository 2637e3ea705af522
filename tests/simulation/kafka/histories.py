"""One random history of Kafka's clients on whole nodes, made of a seed.

Run by tests/simulation/runner.py: `scripts/simulate kafka 486`, or `0:2000`.

Idempotent producers pipeline, readers fetch at both isolation levels, some histories have a
transactional producer, and some clients die in the middle of a request. Their connections are
split, cut, half-closed and read slowly; nodes crash, pause, stop and are cut off, and leads move.
Sizes at which the listener changes its ways (a large frame, a full transport) are drawn, so that
small requests meet all of them.

Judged: no client gets a wrong answer, or an error that would end it; the clients' history by
tests/verification/; each producer's batches are in the log once, in order, without one missing in
between; and once all clients have left, the listeners hold nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from unittest import mock

from raftlog.coordinator.shard import service
from raftlog.coordinator.transactions.kind import TOPIC as TRANSACTIONS_TOPIC
from raftlog.http.settings import ServerSettings
from raftlog.kafka import listener
from raftlog.kafka.metrics import EndReason
from raftlog.kafka.settings import KafkaSettings
from raftlog.record.errors import LogError
from tests.simulation import runner
from tests.simulation.data import final_checks
from tests.simulation.data.clients import Part, ask
from tests.simulation.data.data_world import DataWorld
from tests.simulation.data.invariants import watching
from tests.simulation.faults import FaultRates, Nemesis
from tests.simulation.kafka.clients import Client, Roughness
from tests.simulation.kafka.fetchers import Fetcher
from tests.simulation.kafka.front import KafkaFront
from tests.simulation.kafka.producers import DyingClient, Producer
from tests.simulation.kafka.transactional import TransactionalProducer
from tests.simulation.life import NodeDiedError
from tests.simulation.node_world import NodeWorld
from tests.simulation.streams import StreamManner
from tests.simulation.world import World, run
from tests.verification.log_history import FinalRead, Poll, Send
from tests.verification.transaction_checker import require_sound

FAULTS_S: Final = 6.0
TOPIC: Final = "t"
COORDINATORS: Final = 2
"""Partitions of `__transaction_state`."""
WRITE_S_MEAN: Final = 0.05
READ_S_MEAN: Final = 0.03
DIE_S_MEAN: Final = 0.3
TRANSACTION_S_MEAN: Final = 0.15
MOVES_PER_S: Final = 1.0
STOPS_PER_S: Final = 0.15
STOP_S: Final = 4.0
"""A node that has not stopped by then is killed."""
FLUSH_S_MAX: Final = 30.0
"""From the healing until every batch has its answer."""
STABLE_S_MAX: Final = 30.0
DRAIN_S_MAX: Final = 120.0
HELD_S: Final = 0.5
"""For the last fetches to be held back."""
SWEEPS_S: Final = 5.0
"""Until a listener has given back the bytes of all answers that were taken."""
LEAVE_S_MAX: Final = 60.0
"""From the last client's leave until the listeners hold nothing: clients that have vanished are
noticed by their silence."""
STEPS_MAX: Final = 3_000_000
TIME_S_MAX: Final = 400.0


@dataclass(frozen=True, slots=True)
class Cast:
    """The participants of a seed's history, and their manner."""

    faults: FaultRates
    moves_per_s: float
    stops_per_s: float
    partitions: int
    producers: tuple[float, ...]
    """The delivery timeout of each, in seconds."""
    fetchers: tuple[bool, ...]
    """Whether each reads committed transactions only."""
    has_transactions: bool
    has_dying: bool
    roughness: Roughness
    manner: StreamManner
    settings: KafkaSettings
    large_bytes: int
    write_buffer_bytes: int
    receive_buffer_bytes: int
    bytes_in_flight_max: int
    client_links_per_s: float
    """Of blocked links between a client and a node."""
    watches_replicas: bool

    @classmethod
    def draw(cls, seed: int) -> Cast:
        """Most histories know a few kinds of faults only."""
        chance = random.Random(f"kafka cast {seed}")
        pick = chance.choice
        is_calm = chance.random() < 0.25
        faults = FaultRates(latency_s=pick((0.0005, 0.002))) if is_calm else FaultRates.draw(chance)
        receive_bytes = pick((64, 1_000, 1 << 16))
        return cls(
            faults=replace(faults, clock_jump_per_s=0.0),
            moves_per_s=0.0 if is_calm else pick((0.0, MOVES_PER_S)),
            stops_per_s=0.0 if is_calm else pick((0.0, 0.0, STOPS_PER_S)),
            partitions=pick((1, 3, 3)),
            producers=tuple(pick((2.0, 60.0, 60.0)) for _ in range(pick((1, 2, 3)))),
            fetchers=pick(((False,), (False, True), (False, True, False))),
            has_transactions=chance.random() < 0.35,
            has_dying=chance.random() < 0.5,
            roughness=Roughness(
                cuts=pick((0.0, 0.3, 0.8)),
                cut_bytes_mean=pick((200.0, 2_000.0, 20_000.0)),
                slow=pick((0.0, 0.3)),
                slow_bytes_max=pick((20, 500)),
            ),
            manner=StreamManner(
                piece_bytes_max=pick((100, 1_500, 1 << 16)),
                read_bytes_max=pick((100, 1 << 16)),
                is_split=chance.random() < 0.8,
                sent_bytes_max=pick((500, 10_000, 1 << 16)),
                unread_bytes_max=pick((2_000, 10_000, 1 << 16)),
            ),
            settings=KafkaSettings(
                requests_per_connection_max=pick((2, 5, 16)),
                receive_s=pick((1.0, 10.0)),
                bytes_per_second_min=pick((1_000, 10_000)),
                write_stall_s=pick((1.0, 5.0)),
                idle_s=pick((2.0, 5.0)),
                shutdown_s=pick((0.5, 5.0)),
            ),
            large_bytes=pick((100, 1_000, listener.LARGE_BYTES)),
            write_buffer_bytes=pick((200, 5_000, listener.WRITE_BUFFER_BYTES)),
            receive_buffer_bytes=receive_bytes,
            bytes_in_flight_max=pick((120_000, 1 << 26)),
            client_links_per_s=0.0 if is_calm else pick((0.0, 1.0)),
            watches_replicas=chance.random() < 0.15,
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a history."""

    seed: int
    digest: str
    steps: int
    acknowledged: int
    """Batches."""
    repeated: int
    polls: int
    records: int
    """Read by the readers."""
    committed: int
    """Transactions."""
    wires: int
    cuts: int
    cut_off: int
    """Requests that were never sent whole."""
    refused: int
    """Connections closed by an error of a request without an answer."""
    flush_s: float
    leave_s: float
    events: tuple[tuple[str, int], ...]


@dataclass
class History:
    """One run."""

    data: DataWorld
    cast: Cast
    front: KafkaFront
    wires: int = 0
    flush_s: float = 0.0
    leave_s: float = 0.0
    nonsense: list[str] = field(default_factory=list)
    """Why connections were closed for frames that make no sense: all of these clients' do."""
    refused: int = 0
    """Connections closed by an error of a request without an answer."""
    events: Counter[str] = field(default_factory=Counter)
    producers: list[Producer] = field(default_factory=list)
    fetchers: list[Fetcher] = field(default_factory=list)
    dying: list[DyingClient] = field(default_factory=list)
    transactional: list[TransactionalProducer] = field(default_factory=list)
    internal: list[Part] = field(default_factory=list)
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    @property
    def world(self) -> World:
        """The simulated world."""
        return self.data.world

    def clients(self) -> list[Client]:
        """All of them."""
        return [*self.producers, *self.fetchers, *self.dying, *self.transactional]

    async def play(self) -> None:
        """The whole history. Raises AssertionError."""
        nodes, loop, cast = self.data.nodes, self.world.loop, self.cast
        self.world.network.latency_s = cast.faults.latency_s
        self.front.streams.latency_s = cast.faults.latency_s
        nodes.start_all()
        await nodes.ready()
        await self._create_topics()
        self._make_clients()
        nemesis = Nemesis(self.world, nodes.node_ids, nodes.start, cast.faults, focus=self._focus)
        nemesis.start()
        end_s = loop.now + FAULTS_S
        senders = [loop.create_task(each.send_all()) for each in self.producers]
        self._repeat(cast.moves_per_s, self._move_lead)
        self._repeat(cast.stops_per_s, self._stop)
        self._repeat(cast.client_links_per_s, self._block_link)
        await asyncio.gather(*self._run_clients(end_s))
        for task in self._tasks:
            task.cancel()
        nemesis.heal_all()
        self.front.streams.heal()
        for client in self.clients():
            client.calm()
        with self.data.supervised():
            await self._finish(senders)

    async def _create_topics(self) -> None:
        chance = self.world.random("topics")
        nodes = self.data.nodes.node_ids
        if self.cast.has_transactions:
            assignments = [chance.sample(nodes, 3) for _ in range(COORDINATORS)]
            await self.data.create(
                TRANSACTIONS_TOPIC, assignments, service.TOPIC_CONFIGS, small_segments=False
            )
            # Only coordinators write there.
            self.internal, self.data.parts = self.data.parts, []
        assignments = [chance.sample(nodes, 3) for _ in range(self.cast.partitions)]
        await self.data.create(TOPIC, assignments, {"segment.bytes": "20000"})

    def _make_clients(self) -> None:
        numbers = iter(range(1, 100))
        for each, delivery_s in enumerate(self.cast.producers):
            self.producers.append(Producer(self, next(numbers), f"p{each}", delivery_s=delivery_s))
        for each, is_committed in enumerate(self.cast.fetchers):
            name = f"{'committed' if is_committed else 'all'}{each}"
            fetcher = Fetcher(self, next(numbers), name, is_committed=is_committed)
            self.fetchers.append(fetcher)
        if self.cast.has_dying:
            self.dying.append(DyingClient(self, next(numbers), "dying"))
        if self.cast.has_transactions:
            self.transactional.append(TransactionalProducer(self, next(numbers), "tx"))

    def _run_clients(self, end_s: float) -> Iterator[Coroutine[Any, Any, None]]:
        for producer in self.producers:
            yield producer.run(end_s, WRITE_S_MEAN)
        for fetcher in self.fetchers:
            yield fetcher.run(end_s, READ_S_MEAN)
        for dying in self.dying:
            yield dying.run(end_s, DIE_S_MEAN)
        for each in self.transactional:
            yield each.run(end_s, TRANSACTION_S_MEAN)

    # Faults beside the nemesis'

    def _repeat(self, per_s: float, fault: Any) -> None:
        if not per_s:
            return
        chance = self.world.random(f"faults {fault.__name__}")

        async def go_on() -> None:
            while True:
                await asyncio.sleep(chance.expovariate(per_s))
                await fault(chance)

        self._tasks.append(self.world.loop.create_task(go_on()))

    def _focus(self) -> int | None:
        try:
            return self.data.leader(self.data.parts[0])
        except LogError:
            return None

    async def _move_lead(self, chance: random.Random) -> None:
        part = chance.choice([*self.data.parts, *self.internal])
        node_id = chance.choice(self.data.nodes.node_ids)
        try:
            await ask(
                self.data,
                node_id,
                lambda core: core.services.metadata.operations.transfer_leader(
                    part.topic, part.number, None
                ),
            )
            self.events["move"] += 1
        except (LogError, NodeDiedError, TimeoutError) as error:
            self.world.trace(f"no move: {error!r}")

    async def _stop(self, chance: random.Random) -> None:
        """Stop a node like SIGTERM: its listener answers what it has begun."""
        node_id = chance.choice(self.data.nodes.node_ids)
        try:
            async with asyncio.timeout(STOP_S):
                await self.data.nodes.stop(node_id)
            self.events["stop"] += 1
        except (NodeDiedError, TimeoutError) as error:
            self.world.trace(f"no clean stop of {node_id}: {error!r}")
        finally:
            # Also in the middle of a stop, at the end of the faults.
            self.data.nodes.kill(node_id)

    async def _block_link(self, chance: random.Random) -> None:
        """One direction between a client and a node, for a while."""
        client, node_id = chance.choice(self.clients()), chance.choice(self.data.nodes.node_ids)
        pair = (-client.number, node_id)
        source, target = pair if chance.random() < 0.5 else pair[::-1]
        self.front.streams.link(source, target).block()
        self.events["block"] += 1
        await asyncio.sleep(chance.uniform(0.1, 1.5))
        self.front.streams.link(source, target).unblock()

    # The end

    def note_refusals(self) -> Any:
        """Note why listeners close connections."""
        refuse = listener.Connection._refuse

        def noted(
            one: listener.Connection,
            complaint: str,
            reason: EndReason = EndReason.MALFORMED,
        ) -> None:
            self.world.trace("refused:", complaint)
            # An error of the request, not of its bytes: acks=0, or a node that is not ready.
            if reason is EndReason.ERROR:
                self.refused += 1
            else:
                self.nonsense.append(complaint)
            refuse(one, complaint, reason)

        return mock.patch.object(listener.Connection, "_refuse", noted)

    async def _finish(self, senders: Sequence[asyncio.Task[None]]) -> None:
        nodes, loop = self.data.nodes, self.world.loop
        healed_s = loop.now
        await nodes.until(lambda: all(each.is_idle for each in self.producers), FLUSH_S_MAX)
        self.flush_s = loop.now - healed_s
        for task in senders:
            task.cancel()
        await self.data.settle()
        await nodes.until(self._is_stable, STABLE_S_MAX)
        await self._drain()
        has_vanished = any(each.has_vanished for each in self.clients())
        if not has_vanished:
            # The clients are there, and have all their answers.
            await nodes.until(self._has_no_bytes, SWEEPS_S)
        for fetcher in self.fetchers:
            fetcher.begin_held()
        await asyncio.sleep(HELD_S)
        for client in self.clients():
            client.leave()
        left_s = loop.now
        await nodes.until(self._has_no_leaks, LEAVE_S_MAX if has_vanished else SWEEPS_S)
        self.leave_s = loop.now - left_s
        await self._judge()

    def _has_no_leaks(self) -> bool:
        found = self.front.leaks()
        if found:
            self.world.trace("held", *found)
        return not found

    def _has_no_bytes(self) -> bool:
        return not any(
            self.front.listeners[node_id].broker.bytes_in_flight.used
            for node_id in self.data.nodes.cores
        )

    def _is_stable(self) -> bool:
        """Whether no replica knows of an open transaction, and all are equal."""
        return self.data.replicas_agree(self.data.parts)

    async def _drain(self) -> None:
        """Let each reader read to the end."""
        deadline_s = self.world.loop.now + DRAIN_S_MAX
        for fetcher in self.fetchers:
            await fetcher.refresh()
            while any(fetcher.positions[part] < self._end_of(part) for part in self.data.parts):
                assert self.world.loop.now < deadline_s, (
                    f"{fetcher.name} stays at {fetcher.positions}\n{self.data.describe()}"
                )
                await fetcher.poll()
                assert not self.data.complaints, self.data.complaints

    def _end_of(self, part: Part) -> int:
        leader = self.data.leader(part)
        replica = None if leader is None else self.data.replica(leader, part)
        return 0 if replica is None else int(replica.high_watermark)

    async def _judge(self) -> None:
        self.data.replicas.follow_all()
        await final_checks.read_to_the_end(self.data)
        for part in self.data.parts:
            for member in map(int, self.data.row(part).replicas):
                self.data.history.append(
                    await final_checks.read_replica(
                        self.data, member, part, final_checks.Isolation.READ_COMMITTED
                    )
                )
        transactions = [each.operation() for one in self.transactional for each in one.records]
        require_sound([*self.data.history, *transactions])
        self._judge_sessions()
        assert not self.nonsense, f"frames that make sense were refused: {self.nonsense[:5]}"

    def _judge_sessions(self) -> None:
        """Of each idempotent producer the log has what it sent: a first part, once, in order."""
        sent: dict[tuple[str, str], list[str]] = {}
        for send in self.data.history:
            if isinstance(send, Send) and send.idempotent and not send.transaction:
                sent.setdefault((send.partition, send.producer), []).extend(send.values)
        writers = {value: key for key, values in sent.items() for value in values}
        for values in sent.values():
            values.sort(key=_number)
        for final in self.data.history:
            if not isinstance(final, FinalRead) or final.is_committed:
                continue
            found: dict[tuple[str, str], list[str]] = {}
            for _, value in final.records:
                if value in writers:
                    found.setdefault(writers[value], []).append(value)
            for key, values in found.items():
                expected = sent[key][: len(values)]
                assert values == expected, f"{key} at {final.node}: {_difference(values, expected)}"

    def report(self, seed: int) -> Report:
        """The result of this history."""
        polls = [each for each in self.data.history if isinstance(each, Poll)]
        return Report(
            seed,
            self.world.digest(),
            self.world.loop.steps,
            sum(each.acknowledged for each in self.producers),
            sum(each.repeated for each in self.producers),
            len(polls),
            sum(len(each.records) for each in polls),
            sum(each.committed for each in self.transactional),
            self.wires,
            sum(each.cuts for each in self.clients()),
            sum(each.cut_off for each in self.dying),
            self.refused,
            self.flush_s,
            self.leave_s,
            tuple(sorted(self.events.items())),
        )


def _number(value: str) -> int:
    """The place of a value among all of its producer."""
    return int(value.partition("/")[2].rstrip("-"))


def _difference(values: Sequence[str], expected: Sequence[str]) -> str:
    """The first place at which two lists differ."""
    for at, (value, wanted) in enumerate(zip(values, expected, strict=False)):
        if value != wanted:
            return f"{value[:40]!r} in place of {wanted[:40]!r}, at {at} of {len(values)}"
    return f"{len(values)} values, {len(expected)} expected"


@contextlib.contextmanager
def sizes(cast: Cast) -> Iterator[None]:
    """The sizes at which the listener changes its ways."""
    with (
        mock.patch.object(listener, "LARGE_BYTES", cast.large_bytes),
        mock.patch.object(listener, "WRITE_BUFFER_BYTES", cast.write_buffer_bytes),
        mock.patch.object(listener, "RECEIVE_BUFFER_BYTES", cast.receive_buffer_bytes),
        mock.patch.object(service, "PARTITIONS", COORDINATORS),
    ):
        yield


def replay(seed: int) -> Report:
    """Run one seed's history. Raises AssertionError after a violation."""
    cast = Cast.draw(seed)
    limits = replace(
        ServerSettings().for_broker(),
        bytes_in_flight_max=cast.bytes_in_flight_max,
        auto_create_topics=False,
    )

    async def main(world: World) -> History:
        nodes = NodeWorld(world)
        front = KafkaFront(nodes, cast.settings, limits, cast.manner)
        history = History(DataWorld(nodes), cast, front)
        with history.note_refusals():
            await history.play()
        nodes.check_endings()
        return history

    with watching() if cast.watches_replicas else contextlib.nullcontext(), sizes(cast):
        return run(seed, main, steps_max=STEPS_MAX, time_s_max=TIME_S_MAX).report(seed)


def summary(reports: Sequence[Report]) -> str:
    """The results of many histories."""
    events: Counter[str] = Counter()
    for report in reports:
        events.update(dict(report.events))
    total = partial(_total, reports)
    return (
        f"{total('acknowledged')} batches acknowledged, {total('repeated')} sent again, "
        f"{total('records')} records read by {total('polls')} fetches, "
        f"{total('committed')} transactions committed, {total('wires')} connections, "
        f"{total('cuts')} to be cut, {total('cut_off')} requests cut off, {dict(events)}, "
        f"all answered within {max((each.flush_s for each in reports), default=0):.1f} s, nothing "
        f"held after {max((each.leave_s for each in reports), default=0):.1f} s, "
        f"{total('steps')} events"
    )


def _total(reports: Sequence[Report], name: str) -> int:
    return sum(getattr(report, name) for report in reports)


if __name__ == "__main__":
    sys.exit(runner.main(replay, summary, sys.argv[1:]))
