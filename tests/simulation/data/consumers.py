"""Consumers: each reads one partition, from any node, and records the results."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from raftlog.node.assembly import NodeCore
from raftlog.record.errors import OFFSET_OUT_OF_RANGE, LogError
from raftlog.record.types import Offset
from raftlog.replication.partition import Isolation
from tests.simulation.data.clients import Part, ask, decode_all
from tests.simulation.life import NodeDiedError
from tests.verification.log_history import Assign, End, Lookup, Pairs, Poll

if TYPE_CHECKING:
    from tests.simulation.data.data_world import DataWorld

READ_BYTES: Final = 2_000
LOOKUPS: Final = 0.3
"""Share of the reads before which a time is looked up."""


@dataclass
class Consumer:
    """Reads one partition from any node, and seeks back at times."""

    data: DataWorld
    name: str
    part: Part
    near: float = 0.5
    """Share of reads served by a follower."""
    seeks: float = 0.03
    looks_up: bool = False
    """Looks times up during the faults, too."""
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    position: int = 0
    polls: int = 0
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = self.data.world.random(f"consumer {self.name}")

    async def run(self, until_s: float, mean_s: float) -> None:
        """Read until `until`, with such pauses."""
        self.seek(0)
        while self.data.world.loop.now < until_s:
            await asyncio.sleep(self._chance.expovariate(1 / mean_s))
            if self._chance.random() < self.seeks:
                self.seek(self._chance.randint(0, self.position))
            node_id = self._chance.choice(self.data.nodes.node_ids)
            if self._chance.random() < 0.2:
                await self.ask_end(node_id)
            if self.looks_up and self._chance.random() < LOOKUPS:
                await self.look_up(node_id, self.data.time_ms() - self._chance.randint(0, 8_000))
            await self.poll(node_id, near=self._chance.random() < self.near)

    @property
    def is_committed(self) -> bool:
        """Whether it reads committed transactions only."""
        return self.isolation is Isolation.READ_COMMITTED

    def seek(self, offset: int) -> None:
        """Go on from there."""
        self.position = offset
        self.data.history.append(
            Assign(partition=str(self.part), consumer=self.name, offset=offset)
        )

    async def poll(self, node_id: int, *, near: bool = False) -> Pairs | None:
        """Read on at that node; None after an error."""

        async def work(core: NodeCore) -> Any:
            partitions = core.services.partitions
            found = partitions.find(self.part.topic, self.part.number, any_replica=near)
            self.part.require(found.topic_id)
            return await found.read(
                Offset(self.position), max_bytes=READ_BYTES, isolation=self.isolation
            )

        start, invoked = self.position, self.data.step()
        if self._may_be_shown_losses(node_id):
            return None
        try:
            fetched = await ask(self.data, node_id, work)
        except (NodeDiedError, TimeoutError):
            return None
        except LogError as error:
            if error.entry is OFFSET_OUT_OF_RANGE:
                # A follower may be behind this consumer, or the records are deleted.
                self.data.out_of_range += 1
                await self.skip_deleted(node_id)
            return None
        if self._may_be_shown_losses(node_id):
            return None
        records = decode_all(fetched.data, start, fetched.aborted)
        if fetched.next_offset > start:
            self.polls += 1
            self.position = int(fetched.next_offset)
            self.data.history.append(
                Poll(
                    partition=str(self.part),
                    consumer=self.name,
                    node=f"n{node_id}",
                    invoked=invoked,
                    completed=self.data.step(),
                    start=start,
                    next_offset=self.position,
                    records=records,
                    is_committed=self.is_committed,
                )
            )
        return records

    def _may_be_shown_losses(self, node_id: int) -> bool:
        """A deposed leader shows what an unclean election has given up, until it has followed."""
        return self.data.has_losses and not self.data.has_newest_epoch(node_id, self.part)

    async def skip_deleted(self, node_id: int) -> None:
        """Go on where the partition begins, if that is later."""

        async def work(core: NodeCore) -> int:
            found = core.services.partitions.find(self.part.topic, self.part.number)
            self.part.require(found.topic_id)
            return int((await found.bounds())[0])

        try:
            start: int = await ask(self.data, node_id, work)
        except (NodeDiedError, TimeoutError, LogError):
            return
        self.data.note_start(self.part, start)
        if start > self.position:
            self.seek(start)

    async def ask_end(self, node_id: int) -> int | None:
        """Query the leader for the end of the partition."""

        async def work(core: NodeCore) -> int:
            found = core.services.partitions.find(self.part.topic, self.part.number)
            self.part.require(found.topic_id)
            return int((await found.bounds(self.isolation))[1])

        invoked = self.data.step()
        try:
            offset: int = await ask(self.data, node_id, work)
        except (NodeDiedError, TimeoutError, LogError):
            return None
        self.data.history.append(
            End(
                partition=str(self.part),
                node=f"n{node_id}",
                invoked=invoked,
                completed=self.data.step(),
                offset=offset,
                is_committed=self.is_committed,
            )
        )
        return offset

    async def look_up(self, node_id: int, time_ms: int) -> bool:
        """Query the leader for the first record at or after a time; return whether it answered."""

        async def work(core: NodeCore) -> Any:
            found = core.services.partitions.find(self.part.topic, self.part.number)
            self.part.require(found.topic_id)
            return await found.offset_for_timestamp(time_ms)

        invoked = self.data.step()
        try:
            answer: tuple[int, int] | None = await ask(self.data, node_id, work)
        except (NodeDiedError, TimeoutError, LogError) as error:
            self.data.world.trace(f"{self.part} looked up in vain: {error!r}")
            return False
        offset, found_ms = (None, None) if answer is None else (int(answer[0]), int(answer[1]))
        self.data.history.append(
            Lookup(
                partition=str(self.part),
                node=f"n{node_id}",
                invoked=invoked,
                completed=self.data.step(),
                time_ms=time_ms,
                offset=offset,
                found_ms=found_ms,
            )
        )
        return True
