"""Readers by Fetch and ListOffsets: what they are given is the log, without a gap."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from raftlog.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from raftlog.kafka.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from raftlog.record.batch import iterate_batches
from raftlog.record.errors import LogError
from raftlog.record.types import AbortedTransaction, Offset, ProducerId
from tests.simulation.data.clients import Part, decode_all
from tests.simulation.kafka.clients import (
    NONE,
    NOT_LEADER,
    OFFSET_OUT_OF_RANGE,
    PAUSE_S,
    RETRIABLE,
    Client,
)
from tests.simulation.kafka.wire import DisconnectedError
from tests.verification.log_history import Assign, End, Poll

FETCH: Final = 12
LIST_OFFSETS: Final = 7
"""Versions."""
LATEST: Final = -1
WAITS_MS: Final = (0, 50, 500, 1_500)
BYTES: Final = (1, 300, 2_000, 50_000)
CALM_BYTES: Final = 10_000
SEEKS: Final = 0.02
HELD_MS: Final = 20_000


@dataclass
class Fetcher(Client):
    """Reads all partitions from their leaders."""

    is_committed: bool = False
    """Records of committed transactions only."""
    positions: dict[Part, int] = field(default_factory=dict)
    polls: int = 0
    records: int = 0

    async def run(self, until_s: float, mean_s: float) -> None:
        """Read until `until`, with such pauses."""
        loop = self.history.world.loop
        for part in self.history.data.parts:
            self.seek(part, 0)
        while loop.now < until_s:
            await asyncio.sleep(self.chance.expovariate(1 / mean_s))
            await self.poll(self.chance.choice(WAITS_MS))
            if self.chance.random() < SEEKS:
                part = self.chance.choice(self.history.data.parts)
                self.seek(part, self.chance.randint(0, self.positions[part]))
            if self.chance.random() < 0.1:
                await self.ask_end(self.chance.choice(self.history.data.parts))

    def _consumer(self, part: Part) -> str:
        return f"{self.name}-{part}"

    def seek(self, part: Part, offset: int) -> None:
        """Go on from there."""
        self.positions[part] = offset
        self.history.data.history.append(
            Assign(partition=str(part), consumer=self._consumer(part), offset=offset)
        )

    async def poll(self, wait_ms: int = 0) -> None:
        """Read on, once at some leader."""
        by_node: dict[int, list[Part]] = {}
        for part in self.history.data.parts:
            leader = self.leader(part)
            if leader is not None:
                by_node.setdefault(leader, []).append(part)
        if len(by_node) == 0:
            await self.refresh()
            return
        node_id = self.chance.choice(sorted(by_node))
        parts = by_node[node_id]
        topics = tuple(
            FetchTopic(name, None, tuple(self._wanted(p) for p in parts if p.topic == name))
            for name in dict.fromkeys(part.topic for part in parts)
        )
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=self._bytes(),
            isolation_level=int(self.is_committed),
            topics=topics,
        )
        invoked = self.history.data.step()
        try:
            answer = await self.ask(node_id, request, FETCH)
        except DisconnectedError:
            await self.refresh()
            return
        found = [
            (Part(topic.topic, row.partition_index), row)
            for topic in answer.responses
            for row in topic.partitions
        ]
        if [part for part, _ in found] != [
            Part(topic.topic, wanted.partition) for topic in topics for wanted in topic.partitions
        ]:
            self.complain(f"an answer for {[str(part) for part, _ in found]}, not for {topics}")
            return
        failed = [self._take(part, row, invoked, node_id) for part, row in found]
        if any(failed):
            await asyncio.sleep(self.chance.uniform(0.0, PAUSE_S))
            await self.refresh()

    def begin_held(self) -> None:
        """Send a fetch to each node that is held back, and ends with the connection."""
        for node_id, wire in sorted(self.wires.items()):
            parts = [part for part in self.history.data.parts if self.leader(part) == node_id]
            if parts and not wire.is_over:
                topic = FetchTopic(parts[0].topic, None, tuple(map(self._wanted, parts)))
                request = FetchRequest(max_wait_ms=HELD_MS, min_bytes=1, topics=(topic,))
                wire.begin(request, FETCH)

    def _wanted(self, part: Part) -> FetchPartition:
        return FetchPartition(
            part.number,
            self.leaders[part][0],
            self.positions[part],
            partition_max_bytes=self._bytes(),
        )

    def _bytes(self) -> int:
        return CALM_BYTES if self.is_calm else self.chance.choice(BYTES)

    def _take(self, part: Part, row: Any, invoked: int, node_id: int) -> bool:
        """Take a partition's records; whether it failed."""
        if row.error_code != NONE:
            if row.error_code == NOT_LEADER and row.current_leader.leader_id >= 0:
                self.heard(part, row.current_leader.leader_epoch, row.current_leader.leader_id)
            if row.error_code == OFFSET_OUT_OF_RANGE:
                self.complain(f"{part}: {self.positions[part]} is out of range at n{node_id}")
            elif row.error_code not in RETRIABLE:
                self.complain(f"{part}: error {row.error_code} of a fetch")
            return True
        start = self.positions[part]
        aborted = [
            AbortedTransaction(ProducerId(each.producer_id), Offset(each.first_offset))
            for each in row.aborted_transactions or ()
        ]
        data = bytes(row.records or b"")
        position = start
        try:
            for batch in iterate_batches(data):
                header = batch.header
                is_first = position == start
                if header.base_offset > position or not (
                    is_first or header.base_offset == position
                ):
                    self.complain(f"{part}: a batch at {header.base_offset}, not at {position}")
                position = int(header.next_offset)
            records = decode_all(data, start, aborted)
        except LogError as error:
            self.complain(f"{part}: bytes that are no batches: {error.message}")
            return True
        readable = row.last_stable_offset if self.is_committed else row.high_watermark
        # Without data it may be: a new leader learns late how far the one before had committed.
        if position > max(readable, start):
            self.complain(f"{part}: read up to {position}, beyond {readable}")
        if position > start:
            self.polls += 1
            self.records += len(records)
            self.positions[part] = position
            data_world = self.history.data
            data_world.history.append(
                Poll(
                    partition=str(part),
                    consumer=self._consumer(part),
                    node=f"n{node_id}",
                    invoked=invoked,
                    completed=data_world.step(),
                    start=start,
                    next_offset=position,
                    records=records,
                    is_committed=self.is_committed,
                )
            )
        return False

    async def ask_end(self, part: Part) -> None:
        """Query the leader for the end of a partition."""
        leader = self.leader(part)
        if leader is None:
            return
        wanted = ListOffsetsPartition(part.number, self.leaders[part][0], timestamp=LATEST)
        request = ListOffsetsRequest(
            isolation_level=int(self.is_committed),
            topics=(ListOffsetsTopic(part.topic, (wanted,)),),
        )
        invoked = self.history.data.step()
        try:
            answer = await self.ask(leader, request, LIST_OFFSETS)
        except DisconnectedError:
            return
        (row,) = answer.topics[0].partitions
        if row.error_code == NONE:
            self.history.data.history.append(
                End(
                    partition=str(part),
                    node=f"n{leader}",
                    invoked=invoked,
                    completed=self.history.data.step(),
                    offset=int(row.offset),
                    is_committed=self.is_committed,
                )
            )
        elif row.error_code not in RETRIABLE:
            self.complain(f"{part}: error {row.error_code} of ListOffsets")
