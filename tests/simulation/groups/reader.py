"""The reading part of a simulated consumer, in the place of the client's `Fetcher`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from raftlog_client.errors import RaftlogClientError
from raftlog_client.fetch.record_buffer import RecordBuffer
from raftlog_client.fetch.subscription import Chunk, PartitionState
from raftlog_client.types import TopicPartition

from raftlog.node.assembly import NodeCore
from raftlog.record.errors import NOT_READY, UNKNOWN_TOPIC_ID, LogError
from raftlog.record.types import Offset
from tests.simulation.groups.transport import Deferred
from tests.simulation.life import NodeDiedError
from tests.simulation.node_world import NodeWorld

READ_BYTES: Final = 1_000
READ_S: Final = 2.0
EMPTY_S: Final = 0.3
"""Pause at the end of a partition, and after an error."""


class Reader:
    """Fetches the assigned partitions, one request for each at a time."""

    def __init__(
        self, nodes: NodeWorld, chance: random.Random, on_data: Callable[[], None]
    ) -> None:
        self.position_error: RaftlogClientError | None = None
        self.buffer: RecordBuffer
        self._nodes = nodes
        self._chance = chance
        self._on_data = on_data
        self._states: Mapping[TopicPartition, PartitionState] = {}

    def assign(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Fetch these partitions, and no others."""
        self._states = states
        for state in states.values():
            self.want(state)

    def want(self, state: PartitionState) -> None:
        """Fetch the partition, if it is due."""
        may_begin = state.reset is None or not state.awaits_commit
        if (
            self._states.get(state.source) is state
            and may_begin
            and state.in_flight is None
            and not state.is_stopped
            and not state.has_data
        ):
            state.in_flight = asyncio.ensure_future(self._fetch(state))

    def abandon(self, state: PartitionState) -> None:
        """The partition has jumped, or is read no more."""
        task, state.in_flight = state.in_flight, None
        if isinstance(task, asyncio.Task):
            task.cancel()

    def placed(self, state: PartitionState) -> None:
        """The group's committed offset is known, or that there is none."""
        state.awaits_commit = False
        self.want(state)

    def failed_to_place(self, state: PartitionState, error: RaftlogClientError) -> None:
        """The group's committed offset cannot be had."""
        state.error = error
        self.buffer.refresh(state)
        self._on_data()

    async def _fetch(self, state: PartitionState) -> None:
        """Until there is data."""
        task = asyncio.current_task()
        while state.in_flight is task and not state.is_stopped:
            generation = state.generation
            try:
                if state.reset is not None:
                    start = await self._call(state, _beginning)
                    if state.generation == generation:
                        state.jump(start)
                        state.in_flight = task
                    continue
                fetched = await self._call(state, _read)
            except (LogError, NodeDiedError, TimeoutError):
                await asyncio.sleep(EMPTY_S)
                continue
            if state.generation != generation or state.in_flight is not task:
                continue
            if fetched.next_offset == state.fetch_offset:
                await asyncio.sleep(EMPTY_S)
                continue
            data = bytes(fetched.data)
            state.chunks.append(Chunk(data, int(fetched.next_offset), check_crc=False))
            state.buffered_bytes += len(data)
            self.buffer.buffered_bytes += len(data)
            state.fetch_offset = int(fetched.next_offset)
            state.in_flight = None
            self.buffer.refresh(state)
            self._on_data()
        if state.in_flight is task:
            state.in_flight = None

    async def _call(
        self,
        state: PartitionState,
        work: Callable[[NodeCore, PartitionState], Coroutine[Any, Any, Any]],
    ) -> Any:
        async def serve(core: NodeCore) -> Any:
            if core.not_ready is not None:
                raise LogError(NOT_READY, core.not_ready)
            return await work(core, state)

        node_id = self._chance.choice(self._nodes.node_ids)
        async with asyncio.timeout(READ_S):
            return await self._nodes.call(node_id, lambda core: Deferred(serve, core))  # type: ignore[arg-type,return-value]


def _found(core: NodeCore, state: PartitionState) -> Any:
    found = core.services.partitions.find(*state.source)
    if state.topic_id not in (None, found.topic_id):
        raise LogError(UNKNOWN_TOPIC_ID)
    return found


async def _beginning(core: NodeCore, state: PartitionState) -> int:
    return int((await _found(core, state).bounds())[0])


async def _read(core: NodeCore, state: PartitionState) -> Any:
    found = _found(core, state)
    return await found.read(Offset(state.fetch_offset), max_bytes=READ_BYTES)
