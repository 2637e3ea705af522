"""The partitions that a consumer reads, with their states and positions.

A subscription, `Consumer.assign` or the group's coordinator chooses them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

from raftlog_client.errors import ConnectionLostError
from raftlog_client.fetch.fetcher import Fetcher
from raftlog_client.fetch.record_buffer import RecordBuffer
from raftlog_client.fetch.subscription import OffsetReset, PartitionState
from raftlog_client.metadata import ClusterMetadata
from raftlog_client.offsets import partition_offsets
from raftlog_client.types import PartitionOffsets, TopicPartition


class Assignment:
    """States of the assigned partitions, aligned with buffer and fetcher."""

    def __init__(self, metadata: ClusterMetadata, buffer: RecordBuffer, fetcher: Fetcher) -> None:
        self.states: dict[TopicPartition, PartitionState] = {}
        self._metadata = metadata
        self._buffer = buffer
        self._fetcher = fetcher

    def state(self, partition: TopicPartition) -> PartitionState:
        """Return the partition's state. Raises ValueError if it is not assigned."""
        state = self.states.get(partition)
        if state is None:
            raise ValueError(f"{partition[0]}-{partition[1]} is not assigned")
        return state

    def replace(
        self,
        partitions: Iterable[TopicPartition],
        reset: OffsetReset,
        *,
        awaits_commit: bool = False,
    ) -> None:
        """Read these partitions and no others. Known partitions keep their states.

        With `awaits_commit` new partitions start at the group's committed offset.
        """
        wanted = dict.fromkeys(partitions)
        self._forget([source for source in self.states if source not in wanted])
        for source in wanted:
            if source not in self.states:
                state = self.states[source] = PartitionState(source, reset)
                state.awaits_commit = awaits_commit
        self._fetcher.assign(self.states)

    def add(self, partitions: Mapping[TopicPartition, str], resets: Iterable[OffsetReset]) -> None:
        """Also read these partitions, by topic id, each from the group's committed offset.

        `resets` gives the start of each partition without a committed offset.
        """
        for (source, topic_id), reset in zip(partitions.items(), resets, strict=True):
            state = self.states[source] = PartitionState(source, reset)
            state.topic_id = topic_id
            state.awaits_commit = True
        self._fetcher.assign(self.states)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions, and forget all their state."""
        self._forget([source for source in partitions if source in self.states])
        self._fetcher.assign(self.states)

    def hold_all_but(self, readable: Collection[TopicPartition]) -> None:
        """Hold back the records of all other partitions without losing the positions."""
        for source, state in self.states.items():
            is_revoked = source not in readable
            if is_revoked == state.is_revoked:
                continue
            state.is_revoked = is_revoked
            if is_revoked:
                self._buffer.set_aside(state)
            else:
                self._buffer.refresh(state)
                self._fetcher.want(state)

    def jump(self, state: PartitionState, offset: int, *, topic_id: str | None = None) -> None:
        """Continue from an offset. `topic_id` is its topic's id, if known."""
        self._buffer.drop(state)
        self._fetcher.abandon(state)
        state.jump(offset)
        if topic_id is not None:
            state.topic_id = topic_id
        self._fetcher.want(state)

    async def find_positions(self, partitions: Sequence[TopicPartition]) -> None:
        """Return once these partitions have a position or an error to raise."""
        try:
            async with asyncio.timeout(self._metadata.request_timeout_s):
                await self._fetcher.positions_known(partitions)
        except TimeoutError:
            raise ConnectionLostError(
                "No leader answered with the partitions' offsets within request_timeout_ms.",
                outcome_unknown=False,
            ) from self._fetcher.position_error

    async def offsets_of(
        self, partitions: Sequence[TopicPartition]
    ) -> list[tuple[PartitionState, PartitionOffsets]]:
        """Return states and offsets of these partitions, or of all."""
        states = [self.state(partition) for partition in partitions] or list(self.states.values())
        offsets = await partition_offsets(self._metadata, [state.source for state in states])
        return [(state, offsets[state.source]) for state in states]

    def position(self, source: TopicPartition) -> int:
        """Return the offset of the next record for the application, or -1 while unknown."""
        state = self.states.get(source)
        return -1 if state is None or state.reset is not None else self._buffer.position(state)

    def processed_position(self, source: TopicPartition) -> int:
        """Return the offset up to which all records are processed, or -1 while unknown."""
        state = self.states.get(source)
        if state is None or state.reset is not None:
            return -1
        return self._buffer.processed_position(state)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for source in partitions:
            state = self.states.pop(source)
            self._buffer.drop(state)
            self._fetcher.abandon(state)
