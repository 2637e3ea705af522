"""One connection with a fixed pipeline of requests, cut at one byte after the other.

After each cut another connection repeats all that was not answered, as an idempotent producer does,
with the same sequences. Judged after each: the log has what was sent whole, once and in order, and
nothing of a request whose last byte never left; answers come in order and say the right offsets;
the listener holds nothing for connections that have ended.

    python -m tests.simulation.kafka.pipeline requests      every byte of the requests
    python -m tests.simulation.kafka.pipeline answers 2     every byte of the answers, 2 processes
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import msgspec

from raftlog.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from raftlog.kafka.messages.metadata import (
    ApiVersionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from raftlog.kafka.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from raftlog.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from raftlog.kafka.messages.transactions import InitProducerIdRequest
from raftlog.record.types import ProducerEpoch, ProducerId
from tests.simulation.data.clients import decode_all, encode
from tests.simulation.kafka.front import PORT, KafkaFront, host
from tests.simulation.kafka.wire import Cut, DisconnectedError, Exchange, How, Wire, frame_of
from tests.simulation.node_world import NodeWorld
from tests.simulation.streams import StreamManner, exactly
from tests.simulation.world import World, run

Side = Literal["requests", "answers"]

TOPIC: Final = "t"
OLD: Final = "old"
"""A topic that nothing is written to meanwhile: its answers are the same each time."""
LARGE_BYTES: Final = 33 * 1024
PRODUCE, METADATA, FETCH, LIST_OFFSETS, API_VERSIONS, INIT = 9, 12, 12, 7, 3, 4
"""Versions."""
TRIALS_PER_WORLD: Final = 128
CLIENT: Final = -1
TIMEOUT_MS: Final = 10_000
MANNER: Final = StreamManner(read_bytes_max=5_000, piece_bytes_max=9_000)
WHOLE: Final = StreamManner()


@dataclass(slots=True)
class Log:
    """One partition, as it has to be."""

    values: list[str] = field(default_factory=list)
    sequence: int = 0
    """Of the next batch."""


@dataclass(slots=True)
class Step:
    """One request of the pipeline."""

    request: msgspec.Struct
    version: int
    writes: list[tuple[int, list[str]]] = field(default_factory=list)
    """Partition and values of each batch."""
    acks: int = -1


@dataclass
class Trials:
    """Connections to one node, one after the other."""

    world: World
    front: KafkaFront
    producer: tuple[ProducerId, ProducerEpoch] = (ProducerId(-1), ProducerEpoch(-1))
    logs: list[Log] = field(default_factory=lambda: [Log(), Log(), Log()])
    complaints: list[str] = field(default_factory=list)
    number: int = 0

    async def open(self) -> None:
        """Start the node, and write what is read later."""
        nodes = self.front.nodes
        nodes.start_all()
        await nodes.ready()
        await nodes.create_topic(1, TOPIC, partitions=3)
        await nodes.create_topic(1, OLD, partitions=1)
        await nodes.until(lambda: nodes.takes_writes(1, TOPIC) and nodes.takes_writes(1, OLD))
        wire = await self.connect()
        answer = await wire.ask(InitProducerIdRequest(None, 1000), INIT)
        assert not answer.error_code, answer
        self.producer = answer.producer_id, answer.producer_epoch
        data = encode(["a", "b", "c"])[0].data
        topic = TopicProduceData(OLD, None, (PartitionProduceData(0, bytes(data)),))
        answer = await wire.ask(ProduceRequest(None, -1, TIMEOUT_MS, (topic,)), PRODUCE)
        assert not answer.responses[0].partition_responses[0].error_code, answer
        wire.end("close")

    async def connect(self, cut: Cut | None = None, manner: StreamManner | None = None) -> Wire:
        """A connection to the node."""
        stream = await self.front.streams.connect(CLIENT, host(1), PORT, manner)
        return Wire(stream, self.complaints.append, cut, keeps_answers=True)

    # The pipeline

    def steps(self) -> list[Step]:
        """The requests of the next trial."""
        self.number += 1
        large = f"{self.number}/large" + "x" * LARGE_BYTES
        sequences = [log.sequence for log in self.logs]

        def produce(*writes: tuple[int, list[str]]) -> Step:
            rows = []
            for number, values in writes:
                batch = encode(values, self.producer, sequences[number])[0]
                sequences[number] += len(values)
                rows.append(PartitionProduceData(number, bytes(batch.data)))
            topic = TopicProduceData(TOPIC, None, tuple(rows))
            request = ProduceRequest(None, -1, TIMEOUT_MS, (topic,))
            return Step(request, PRODUCE, list(writes))

        name = str(self.number)
        unanswered = f"{name}/unanswered"
        row = PartitionProduceData(2, bytes(encode([unanswered])[0].data))
        acks_0 = ProduceRequest(None, 0, TIMEOUT_MS, (TopicProduceData(TOPIC, None, (row,)),))
        place = FetchPartition(0, -1, 0, partition_max_bytes=1 << 20)
        latest = ListOffsetsPartition(0, timestamp=-1)
        return [
            Step(ApiVersionsRequest("test", "1"), API_VERSIONS),
            Step(MetadataRequest((MetadataRequestTopic(name=TOPIC),)), METADATA),
            produce((0, [f"{name}/0", f"{name}/1"]), (1, [f"{name}/2"])),
            produce((0, [f"{name}/3"])),
            produce((1, [f"{name}/4"]), (0, [f"{name}/5", f"{name}/6"])),
            Step(acks_0, PRODUCE, [(2, [unanswered])], acks=0),
            Step(
                FetchRequest(min_bytes=1, topics=(FetchTopic(OLD, None, (place,)),)),
                FETCH,
            ),
            produce((0, [large])),
            Step(ListOffsetsRequest(topics=(ListOffsetsTopic(OLD, (latest,)),)), LIST_OFFSETS),
        ]

    def begin(self, wire: Wire, steps: Sequence[Step]) -> list[Exchange]:
        """Send all requests at once."""
        return [
            wire.begin(each.request, each.version, has_answer=bool(each.acks)) for each in steps
        ]

    # One trial

    async def trial(self, cut: Cut) -> None:
        """One connection that is cut, and one that repeats what was not answered."""
        steps = self.steps()
        # Mostly split by the cut alone, which costs less; `streams` splits in all ways.
        wire = await self.connect(cut, exactly(WHOLE) if self.number % 4 else None)
        exchanges = self.begin(wire, steps)
        answers = await self._answers(exchanges)
        self._require_prefix(steps, answers)
        if all(
            answer is not None for answer, step in zip(answers, steps, strict=True) if step.acks
        ):
            # The cut is behind the last answer.
            wire.end("close")
        await self._settled()
        done = self._require_effect(steps, exchanges, answers, cut)
        repeated = [
            step
            for step, answer in zip(steps, answers, strict=True)
            if answer is None and step.acks
        ]
        again = await self.connect()
        for step, answer in zip(
            repeated, await self._answers(self.begin(again, repeated)), strict=True
        ):
            assert answer is not None, f"{step.request} is not answered on a whole connection"
            self._judge(step, answer)
        again.end("close")
        wire.end("close")
        await self._settled()
        for step in steps:
            for number, values in step.writes:
                if step.acks or done:
                    log = self.logs[number]
                    log.values += values
                    log.sequence += len(values)
        self._require_ends()
        assert not self.complaints, self.complaints

    async def _answers(self, exchanges: Sequence[Exchange]) -> list[Any]:
        """The answers; None for none."""
        answers: list[Any] = []
        async with asyncio.timeout(30):
            for exchange in exchanges:
                try:
                    answers.append(await exchange.answered)
                except DisconnectedError:
                    answers.append(None)
        return answers

    async def _settled(self) -> None:
        """Wait until the listener has forgotten the connections."""
        deadline = self.world.loop.now + 5.0
        while leaks := self.front.leaks():
            assert self.world.loop.now < deadline, leaks
            await asyncio.sleep(0.001)

    def _require_prefix(self, steps: Sequence[Step], answers: Sequence[Any]) -> None:
        """The first requests are answered, and right; the others are not."""
        with_answers = [
            (step, answer) for step, answer in zip(steps, answers, strict=True) if step.acks
        ]
        is_over = False
        for step, answer in with_answers:
            assert not (is_over and answer is not None), "an answer behind a missing one"
            is_over = answer is None
            if answer is not None:
                self._judge(step, answer)

    def _require_effect(
        self,
        steps: Sequence[Step],
        exchanges: Sequence[Exchange],
        answers: Sequence[Any],
        cut: Cut,
    ) -> bool:
        """What was not sent whole has not happened; whether the acks=0 request has."""
        ends = self._ends()
        most, least = ([len(log.values) for log in self.logs] for _ in range(2))
        is_read = cut.is_late or cut.how != "reset"
        for step, exchange, answer in zip(steps, exchanges, answers, strict=True):
            for number, values in step.writes:
                most[number] += len(values) * exchange.is_whole
                is_known = (answer is not None and step.acks) or (exchange.is_whole and is_read)
                least[number] += len(values) * bool(is_known and cut.request_byte is not None)
        for number, end in enumerate(ends):
            assert least[number] <= end <= most[number], (
                f"partition {number} ends at {end}, not within {least[number]} and {most[number]}"
            )
        return ends[2] > len(self.logs[2].values)

    def _judge(self, step: Step, answer: Any) -> None:
        """The answer is right: no error, and each batch at its place."""
        if not step.writes:
            return
        ends = [log.sequence for log in self.logs]
        rows = answer.responses[0].partition_responses
        for (number, values), row in zip(step.writes, rows, strict=True):
            assert not row.error_code, f"error {row.error_code} of {values[0][:40]}: {row}"
            offset = ends[number] + self._before(number, values[0])
            assert row.base_offset == offset, f"{values[0][:40]} is at {row.base_offset}"

    def _before(self, number: int, first: str) -> int:
        """Values of this trial that come before one of a partition."""
        name = first.partition("/")[0]
        of_trial = {
            0: ["0", "1", "3", "5", "6", "large"],
            1: ["2", "4"],
        }[number]
        kind = first.removeprefix(f"{name}/")
        return of_trial.index("large" if kind.startswith("large") else kind)

    def _ends(self) -> list[int]:
        replicas = self.front.nodes.cores[1].services.replicas
        return [int(replicas.partition(TOPIC, number).log_end_offset) for number in range(3)]

    def _require_ends(self) -> None:
        expected = [len(log.values) for log in self.logs]
        assert self._ends() == expected, f"the logs end at {self._ends()}, not at {expected}"

    async def judge(self) -> None:
        """Every value is in its log, once and in order."""
        replicas = self.front.nodes.cores[1].services.replicas
        for number, log in enumerate(self.logs):
            # Without acks the last record may be in the log, and not yet committed.
            replica: Any = replicas.partition(TOPIC, number)
            await self.front.nodes.until(
                lambda replica=replica: replica.high_watermark == replica.log_end_offset
            )
            found: list[str] = []
            while len(found) < len(log.values):
                fetched = await self._read(number, len(found))
                pairs = decode_all(fetched.data, len(found))
                assert pairs, f"partition {number} ends at {len(found)}"
                assert [offset for offset, _ in pairs] == list(
                    range(len(found), len(found) + len(pairs))
                )
                found += [value for _, value in pairs]
            assert found == log.values

    async def _read(self, number: int, offset: int) -> Any:
        core = self.front.nodes.cores[1]
        replica: Any = core.services.replicas.partition(TOPIC, number)
        return await self.world.processes[1].run(replica.read(offset, max_bytes=1 << 20))


def simulate(seed: int, work: Any, manner: StreamManner = MANNER) -> Any:
    """Run `work(trials)` with one node."""

    async def main(world: World) -> Any:
        nodes = NodeWorld(world, node_count=1, voter_count=1)
        trials = Trials(world, KafkaFront(nodes, manner=manner))
        await trials.open()
        result = await work(trials)
        nodes.check_endings()
        return result

    return run(seed, main)


def streams(seed: int, manner: StreamManner) -> tuple[bytes, bytes]:
    """All bytes of the first trial's requests and answers, with no cut."""

    async def work(trials: Trials) -> tuple[bytes, bytes]:
        steps = trials.steps()
        wire = await trials.connect()
        answers = await trials._answers(trials.begin(wire, steps))
        for step, answer in zip(steps, answers, strict=True):
            if step.acks:
                trials._judge(step, answer)
        sent = [frame_of(step.request, step.version, at) for at, step in enumerate(steps)]
        wire.end("close")
        await trials._settled()
        return b"".join(sent), bytes(wire.answers)

    found: tuple[bytes, bytes] = simulate(seed, work, manner)
    return found


def cut_at(side: Side, how: How, *, is_late: bool, positions: Sequence[int]) -> int:
    """Cut a connection at each of these bytes. Raises AssertionError; returns the trials."""

    async def work(trials: Trials) -> int:
        for at in positions:
            if side == "requests":
                cut = Cut(how, request_byte=at, is_late=is_late)
            else:
                cut = Cut(how, answer_byte=at)
            try:
                await trials.trial(cut)
            except AssertionError as error:
                error.add_note(f"{cut}")
                raise
        await trials.judge()
        return len(positions)

    result: int = simulate(positions[0], work)
    return result


def main(arguments: Sequence[str]) -> int:
    """See the module."""
    side: Any = arguments[0]
    workers = int(arguments[1]) if len(arguments) > 1 else None
    whole = streams(0, exactly(MANNER))[side == "answers"]
    # Numbers of trials get longer: some bytes more.
    positions = range(len(whole) + 40)
    parts = [positions[at : at + TRIALS_PER_WORLD] for at in positions[::TRIALS_PER_WORLD]]
    ways: list[Any] = [("reset", False), ("half-close", False)]
    if side == "requests":
        ways.append(("reset", True))
    started, failed = time.time(), 0
    with ProcessPoolExecutor(workers) as pool:
        for how, is_late in ways:
            jobs = [
                pool.submit(partial(cut_at, side, how, is_late=is_late, positions=part))
                for part in parts
            ]
            errors = [error for job in jobs if (error := job.exception()) is not None]
            failed += len(errors)
            print(
                f"{side}, {how}{', late' if is_late else ''}: {len(positions)} bytes, "
                f"{len(errors)} of {len(parts)} worlds failed, {time.time() - started:.0f} s",
                *[
                    f"\n    {error!r} {getattr(error, '__notes__', '')}"[:600]
                    for error in errors[:3]
                ],
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
