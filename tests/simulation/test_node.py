"""One whole node over a simulated disk, through many lives: promises 1, 2 and 5.

One seed is one history of appends, crashes and restarts, in either flush mode.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from raftlog.node.assembly import NodeCore
from raftlog.record.errors import LogError
from raftlog.replication.partition import Acks
from raftlog.replication.waiters import CommitWaiters
from tests.simulation.life import NodeDiedError
from tests.simulation.node_world import NodeWorld
from tests.simulation.records import Ledger
from tests.simulation.world import World, run

SEEDS: Final = range(120)
LIVES: Final = 6
STEPS: Final = 12
TOPIC: Final = "t"
PARTITIONS: Final = 2
PAUSE_S_MAX: Final = 0.005
"""Between two appends: a few appends share a sync."""
FUSE_STEPS_MAX: Final = 40
FUSE_CALLBACKS_MAX: Final = 400


class LossReports(logging.Handler):
    """Collects possible losses from log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lost_from: dict[int, int] = {}
        """By partition, the lowest offset since the last query."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("%s: power was lost"):
            assert isinstance(record.args, tuple)
            number = int(str(record.args[0]).rpartition("/")[2])
            offset = int(str(record.args[1]))
            self.lost_from[number] = min(offset, self.lost_from.get(number, offset))


@dataclass
class Lives:
    """One node's disk and its users' memory, over many lives of the node."""

    world: World
    flush: str
    losses: LossReports
    ledgers: list[Ledger] = field(default_factory=lambda: [Ledger() for _ in range(PARTITIONS)])
    lives: int = 0

    def __post_init__(self) -> None:
        self.random: random.Random = self.world.random("user")
        self.nodes = NodeWorld(
            self.world,
            node_count=1,
            voter_count=1,
            topic_defaults={"segment.bytes": "1024", "index.interval.bytes": "128"},
            overrides={1: {"flush": self.flush}},
        )

    async def live_all(self) -> None:
        for _ in range(LIVES - 1):
            await _unless_dead(self._live())
            self.world.disk(1).forget_orders()
        await self._begin()
        await self.nodes.stop(1)

    async def _begin(self, *, ordered: Callable[[], object] | None = None) -> None:
        process = self.nodes.start(1)
        if ordered is not None:
            ordered()
        await self.nodes.until(lambda: not process.alive or self.nodes.is_ready(1))
        if process.alive and TOPIC not in self.nodes.image(1).topics_by_name:
            # The loss of a power cut is accepted beforehand: it would wait for an operator.
            accepted = {"unclean.leader.election.enable": str(self.flush == "async").lower()}
            await self.nodes.create_topic(1, TOPIC, partitions=PARTITIONS, configs=accepted)
        await self.nodes.until(lambda: not process.alive or self._is_led())
        await self.nodes.call(1, self._check)

    def _is_led(self) -> bool:
        rows = self.nodes.image(1).topics_by_name[TOPIC].partitions
        return all(row.leader == 1 for row in rows)

    async def _check(self, core: NodeCore) -> None:
        count = len(core.services.metadata.image.topic(TOPIC).partitions)
        partitions = [core.services.replicas.partition(TOPIC, n) for n in range(count)]
        for partition, ledger in zip(partitions, self.ledgers, strict=True):
            # A life that ended before this query may have logged one, too.
            lost_from = self.losses.lost_from.pop(partition.partition, None)
            assert lost_from is None or self.flush == "async"
            await ledger.check(partition, lost_from=lost_from)

    async def _live(self) -> None:
        """Check the log, write, and die somewhere in between, or stop at the end.

        Raises NodeDiedError if the node died before writing.
        """
        chance, power = self.random, self.random.random() < 0.5
        self.lives += 1

        def order() -> None:
            if chance.random() < 0.6:
                self.world.crash_in(1, chance.randint(1, FUSE_STEPS_MAX), power=power)
            else:
                self.world.crash_after(1, chance.randint(1, FUSE_CALLBACKS_MAX), power=power)

        early = chance.random() < 0.2
        await self._begin(ordered=order if early else None)
        if not early and chance.random() < 0.75:
            order()
        writers: list[asyncio.Task[None]] = []
        for _ in range(STEPS):
            number = chance.randrange(PARTITIONS)
            acks = chance.choice([Acks.ALL, Acks.ALL, Acks.LEADER])
            writers.append(self.world.loop.create_task(self._write(number, acks)))
            await asyncio.sleep(chance.choice((0.0, PAUSE_S_MAX)) * chance.random())
        if self.world.is_up(1) and chance.random() < 0.3:
            await asyncio.gather(*writers)
            await _unless_dead(self.nodes.stop(1))
        if self.world.is_up(1):
            self.nodes.kill(1, power=power)
        await asyncio.gather(*writers)

    async def _write(self, number: int, acks: Acks) -> None:
        def work(core: NodeCore) -> Coroutine[Any, Any, None]:
            partition = core.services.replicas.partition(TOPIC, number)
            return self.ledgers[number].append(partition, acks, self.random)

        try:
            await _unless_dead(self.nodes.call(1, work))
        except LogError as error:
            assert error.entry.outcome_unknown, error


async def _unless_dead(work: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(NodeDiedError):
        await work


@pytest.fixture
def losses() -> Iterator[LossReports]:
    logger, handler = logging.getLogger("raftlog.storage.log.opening"), LossReports()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_acknowledged_records_survive_every_crash(
    seed: int, flush: str, losses: LossReports
) -> None:
    async def main(world: World) -> None:
        lives = Lives(world, flush, losses)
        await lives.live_all()
        lives.nodes.check_endings()
        assert lives.lives == LIVES - 1

    run(seed, main)


def test_records_that_are_answered_before_they_are_durable_are_missed(
    losses: LossReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def committed(waiters: CommitWaiters, last_offset: int, timeout_s: float) -> None:
        """The planted mistake of promise 1."""

    monkeypatch.setattr(CommitWaiters, "wait", committed)
    with pytest.raises(AssertionError, match=r"lost|given out twice"):
        for seed in SEEDS:
            run(seed, lambda world: Lives(world, "sync", losses).live_all())
