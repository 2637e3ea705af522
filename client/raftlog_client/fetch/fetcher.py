"""Keeps the buffer filled by fetching each node's partitions ahead of the reader.

Each partition is in at most one request. With enough data buffered, a partition is not fetched
until some is taken. A node gets up to `FETCHES_PER_NODE_MAX` requests at once, so that busy
partitions do not wait behind a long poll for idle partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from raftlog.api.records import FetchPartition, FetchRequest
from raftlog.record import errors
from raftlog.record.frames import FetchFrame
from raftlog.record.types import Offset
from raftlog_client.errors import (
    ConnectionLostError,
    NoOffsetError,
    RaftlogClientError,
    ServerError,
    TopicChangedError,
    TopicNotFoundError,
    server_error,
)
from raftlog_client.fetch.protocol import BufferPool, FetchConnectionPool
from raftlog_client.fetch.record_buffer import RecordBuffer
from raftlog_client.fetch.requests import FetchInFlight, FetchSettings, NodeFetches, ReplicaSelector
from raftlog_client.fetch.subscription import Chunk, OffsetReset, PartitionState
from raftlog_client.metadata import ClusterMetadata
from raftlog_client.offsets import offsets_query
from raftlog_client.routing import SLOW_S, LeaderCalls
from raftlog_client.transport import NodeAddress
from raftlog_client.types import PartitionOffsets, TopicPartition

FETCHES_PER_NODE_MAX: Final = 2
PARTITIONS_PER_FETCH_MAX: Final = 1_000
POOLED_MAX: Final = 16
"""Most buffers kept for reuse. A node's frames are about 256 KiB, so this is a few MiB."""
BROKEN_ATTEMPTS_MAX: Final = 40
"""Attempts (about 10 s) after a storage failure before the reader gets the error. Until then
another replica may be elected."""
UNKNOWN_ATTEMPTS_MAX: Final = 3
"""Responses before an unknown topic is an error. A new topic may not be known on every node yet."""

logger = logging.getLogger("raftlog_client")


class Fetcher:
    """Fetches the assigned partitions."""

    def __init__(
        self,
        pool: FetchConnectionPool,
        metadata: ClusterMetadata,
        buffer: RecordBuffer,
        *,
        settings: FetchSettings,
        on_data: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._metadata = metadata
        self._buffer = buffer
        self._settings = settings
        self._leaders = LeaderCalls(metadata, on_view=self._viewed, on_unanswered=self._unanswered)
        self._replicas = ReplicaSelector(metadata, settings.rack, self._leaders.refresh_soon)
        self._unknown: Counter[str] = Counter()
        """Consecutive metadata responses that lacked a topic, by topic."""
        self._buffers = BufferPool(POOLED_MAX)
        self._on_data = on_data
        """Called when the buffer has new data or a position became known."""
        self._nodes: dict[NodeAddress, NodeFetches] = {}
        self._assigned: Mapping[TopicPartition, PartitionState] = {}
        self._asked_bytes = 0
        """Bytes that requests under way may bring."""
        self._resetting: asyncio.Task[None] | None = None
        self._offsets = offsets_query(metadata)
        self._positions_asked = asyncio.Event()
        """Set, and replaced, after each query for positions."""
        self.position_error: RaftlogClientError | None = None
        """Reason why some partition has no position yet."""
        self._unanswered_error: RaftlogClientError | None = None
        """Error when no node has responded for the request timeout. Cleared when a node responds or
        the reader has it."""
        self._is_scheduled = False
        self._is_running = False

    def start(self) -> None:
        """Start to fetch the assigned partitions. Call it inside the event loop."""
        self._is_running = True
        self.assign(self._assigned)

    async def close(self) -> None:
        """End all requests."""
        self._is_running = False
        tasks = [task for node in self._nodes.values() for task in node.requests]
        tasks += [] if self._resetting is None else [self._resetting]
        for task in tasks:
            task.cancel()
        await self._leaders.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def assign(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Fetch these partitions and no others. The mapping is kept, not copied."""
        self._assigned = states
        topics = {source.topic for source in states}
        self._unknown = Counter({name: n for name, n in self._unknown.items() if name in topics})
        for state in states.values():
            self.want(state)

    def want(self, state: PartitionState) -> None:
        """Fetch the partition soon, if it is due."""
        if not self._is_running or self._assigned.get(state.source) is not state:
            return
        if state.reset is not None:
            if not state.awaits_commit:
                self._want_position()
            return
        if (
            state.in_flight is not None
            or state.is_wanted
            or state.is_waiting
            or state.is_stopped
            or state.error is not None
            or state.buffered_bytes >= self._settings.partition_max_bytes
        ):
            return
        address = self._replicas.address(state.source)
        if address is None:
            topic = state.source.topic
            # Attempts do not count, because a topic is not unknown without a response.
            is_unknown = self._unknown[topic] >= UNKNOWN_ATTEMPTS_MAX
            if is_unknown and topic not in self._metadata.view.topics:
                self._tell(
                    state,
                    TopicNotFoundError(errors.UNKNOWN_TOPIC, f"Topic {topic!r} does not exist."),
                )
            self._leaders.refresh_soon(topic)
            self._park(state)
            return
        node = self._nodes.get(address)
        if node is None:
            # Bounded by the cluster's size, because addresses come only from its metadata.
            node = self._nodes[address] = NodeFetches(address)
        state.is_wanted = True
        node.wanted[state] = None
        self._schedule()

    def abandon(self, state: PartitionState) -> None:
        """Drop the partition's part of the request under way.

        The partition has jumped or is no longer read. A request without partitions is cancelled,
        because it may be a long poll.
        """
        request = state.in_flight
        state.in_flight = None
        if isinstance(request, FetchInFlight):
            request.leave(state.source)
            if not request.states and request.task is not None:
                request.task.cancel()

    def placed(self, state: PartitionState) -> None:
        """Note that the group's committed offset of the partition is known, or absent."""
        state.awaits_commit = False
        self._positions_changed()
        self.want(state)
        self._on_data()

    def failed_to_place(self, state: PartitionState, error: RaftlogClientError) -> None:
        """Give the reader the error, because the group's committed offset is unavailable."""
        self._tell(state, error)
        self._positions_changed()

    def _positions_changed(self) -> None:
        self._positions_asked.set()
        self._positions_asked = asyncio.Event()

    def taken(self, state: PartitionState) -> None:
        """Note that data was taken, so there may be room for this partition or others."""
        self.want(state)
        self._schedule()

    def check_answered(self) -> None:
        """Raise the error, once, if no node has responded for the request timeout."""
        error, self._unanswered_error = self._unanswered_error, None
        if error is not None:
            raise error

    async def positions_known(self, sources: Iterable[TopicPartition]) -> None:
        """Return once these have a position, have an error, or are no longer assigned."""
        while self._is_running:
            states = [self._assigned.get(source) for source in sources]
            if not any(state is not None and _lacks_position(state) for state in states):
                return
            self._want_position()
            await self._positions_asked.wait()

    def _schedule(self) -> None:
        if not self._is_scheduled and self._is_running:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._fetch_wanted)

    def _fetch_wanted(self) -> None:
        self._is_scheduled = False
        if not self._is_running:
            return
        settings = self._settings
        # A partition that has moved in the meantime may add its new leader.
        for node in list(self._nodes.values()):
            while node.wanted and len(node.requests) < FETCHES_PER_NODE_MAX:
                room = settings.buffer_bytes_max - self._buffer.buffered_bytes - self._asked_bytes
                if node.requests and room < settings.partition_max_bytes:
                    # Each node keeps one request even with a full buffer, so that none starves.
                    break
                states = self._collect(node)
                if not states:
                    break
                max_bytes = min(
                    settings.max_bytes,
                    max(room, settings.partition_max_bytes),
                    settings.partition_max_bytes * len(states),
                )
                self._asked_bytes += max_bytes
                request = self._request(node, states)
                for state in states:
                    state.in_flight = request
                request.task = asyncio.ensure_future(self._fetch(node, request, max_bytes))
                node.requests.add(request.task)

    def _request(self, node: NodeFetches, states: Sequence[PartitionState]) -> FetchInFlight:
        sources = {state.source: (state, state.generation) for state in states}
        leader_address = self._metadata.leader_address
        followers = {source for source in sources if leader_address(*source) != node.address}
        request = FetchInFlight(sources, self._take_frame, self._buffers, followers)
        request.call = self._leaders.follow(
            node.address,
            request.states,
            on_moved=partial(self._moved, request),
            patience_s=self._settings.max_wait_ms / 1000 + SLOW_S,
            progress=(lambda: request.progress) if followers else None,
        )
        for source in followers:
            # Another node leads. Once the follower is silent and suspect, the leader is called.
            request.call.seen[source] = None
        return request

    def _collect(self, node: NodeFetches) -> list[PartitionState]:
        states: list[PartitionState] = []
        while node.wanted and len(states) < PARTITIONS_PER_FETCH_MAX:
            state = next(iter(node.wanted))
            del node.wanted[state]
            state.is_wanted = False
            if (
                state.is_stopped
                or state.reset is not None
                or self._assigned.get(state.source) is not state
            ):
                continue
            if self._replicas.address(state.source) != node.address:
                self.want(state)
                continue
            states.append(state)
        return states

    async def _fetch(self, node: NodeFetches, request: FetchInFlight, max_bytes: int) -> None:
        settings = self._settings
        body = msgspec.json.encode(
            FetchRequest(
                [
                    FetchPartition(
                        source.topic,
                        source.partition,
                        Offset(state.fetch_offset),
                        settings.partition_max_bytes,
                        topic_id=self._topic_id(state),
                    )
                    for source, (state, _) in request.states.items()
                ],
                max_bytes,
                settings.min_bytes,
                settings.max_wait_ms,
                any_replica=bool(request.followers),
                isolation=settings.isolation,
            )
        )
        timeout_s = self._metadata.request_timeout_s + settings.max_wait_ms / 1000
        try:
            with request.call:
                await self._pool.fetch(node.address, body, request, timeout_s)
            self._unanswered_error = None
        except RaftlogClientError as error:
            if isinstance(error, ConnectionLostError):
                self._metadata.suspect(node.address)
            for state, generation in list(request.states.values()):
                if state.generation == generation:
                    self._failed(state, error)
        finally:
            self._asked_bytes -= max_bytes
            assert request.task is not None
            node.requests.discard(request.task)
            request.task = None
            self._schedule()
        for state, _ in list(request.states.values()):
            state.in_flight = None
            self.want(state)

    def _topic_id(self, state: PartitionState) -> str | None:
        """Return the id of the topic to read, fixed by a position's first fetch."""
        if state.topic_id is None:
            known = self._metadata.view.topics.get(state.source.topic)
            state.topic_id = None if known is None else known.topic_id
        return state.topic_id

    def _moved(self, request: FetchInFlight, moved: Collection[TopicPartition]) -> bool:
        """Fetch these partitions from their new leaders. Returns whether the request is useless."""
        for source in moved:
            state, _ = request.states[source]
            request.leave(source)
            state.in_flight = None
            self.want(state)
        return not request.states

    def _take_frame(self, state: PartitionState, frame: FetchFrame) -> None:
        if frame.error_code:
            self._failed(state, server_error(frame.error_code, frame.message))
            return
        state.attempts = 0
        state.high_watermark = frame.high_watermark
        state.log_start_offset = frame.log_start_offset
        size = len(frame.data)
        if not size and frame.next_offset <= state.fetch_offset:
            return
        if frame.next_offset <= state.fetch_offset:
            # A repeat for the same offset would never end.
            self._failed(
                state,
                ConnectionLostError(
                    f"{state.source.topic}-{state.source.partition}: a node sent data from "
                    f"{state.fetch_offset} on, but names {frame.next_offset} as the next offset.",
                    outcome_unknown=False,
                ),
            )
            return
        state.fetch_offset = frame.next_offset
        state.chunks.append(
            Chunk(
                frame.data,
                frame.next_offset,
                check_crc=self._settings.check_crcs,
                aborted=frame.aborted,
            )
        )
        state.buffered_bytes += size
        self._buffer.buffered_bytes += size
        self._buffer.refresh(state)
        self._on_data()

    def _failed(self, state: PartitionState, error: RaftlogClientError) -> None:
        """Report a partition's failure to the reader, or retry after a pause."""
        name = f"{state.source.topic}-{state.source.partition}"
        request = state.in_flight
        if isinstance(request, FetchInFlight) and state.source in request.followers:
            # The leader has the records or knows the reason. Called once this request has ended.
            logger.info("%s: reading from the leader, not from its rack: %s", name, error)
            self._replicas.leave(state.source)
            return
        state.attempts += 1
        if isinstance(error, ServerError):
            if error.entry is errors.OFFSET_OUT_OF_RANGE:
                self._out_of_range(state, error)
                return
            if error.entry is errors.UNKNOWN_TOPIC_ID:
                self._topic_changed(state, error)
                return
            is_lagging = (
                isinstance(error, TopicNotFoundError) and state.attempts < UNKNOWN_ATTEMPTS_MAX
            )
            # A node that starts, stops, or has failed storage does not lead for long.
            is_leaving = error.entry is errors.NOT_READY or (
                error.entry is errors.STORAGE_FAILED
                and self._metadata.is_replicated(*state.source)
                and state.attempts < BROKEN_ATTEMPTS_MAX
            )
            if error.entry.refresh_metadata or is_leaving:
                self._leaders.refresh_soon(state.source.topic)
            may_pass = error.retriable or error.entry.refresh_metadata or is_leaving
            if not may_pass or (isinstance(error, TopicNotFoundError) and not is_lagging):
                self._tell(state, error)
        else:
            self._leaders.refresh_soon(state.source.topic)
        logger.info("%s cannot be fetched: %s", name, error)
        self._park(state)

    def _out_of_range(self, state: PartitionState, error: ServerError) -> None:
        if self._settings.reset is OffsetReset.NONE:
            self._tell(state, error)
            self._park(state)
            return
        if state.has_records:
            # Buffered records were read in time and are served before the position jumps.
            self._park(state)
            return
        logger.warning(
            "%s-%d: offset %d is out of range, continuing at the %s offset (auto_offset_reset): %s",
            *state.source,
            state.fetch_offset,
            self._settings.reset.value,
            error,
        )
        self.restart(state, self._settings.reset)

    def _topic_changed(self, state: PartitionState, error: ServerError) -> None:
        """Restart in the leader's new topic of that name, unless a node is behind.

        The restart is at the beginning even with "latest", because all records of the new topic
        were written after the subscription.
        """
        topic, partition = state.source
        self._leaders.refresh_soon(topic)
        known = self._metadata.view.topics.get(topic)
        if (
            known is None
            or known.topic_id == state.topic_id
            or state.attempts < UNKNOWN_ATTEMPTS_MAX
            or state.has_records
        ):
            # Buffered records are of the former topic and are served first.
            logger.info("%s-%d cannot be fetched: %s", topic, partition, error)
            self._park(state)
            return
        changed = (
            f"{topic}-{partition}: the topic of id {state.topic_id} was deleted, and there is "
            f"another topic of that name, {known.topic_id}"
        )
        if self._settings.reset is OffsetReset.NONE:
            state.is_replaced = True
            self._tell(
                state,
                TopicChangedError(
                    f"{changed}; seek to an offset in it.",
                    topic=topic,
                    topic_id=state.topic_id or "",
                    found_id=known.topic_id,
                ),
            )
            self._park(state)
            return
        logger.warning("%s: reading it from its beginning (auto_offset_reset)", changed)
        self.restart(state, OffsetReset.EARLIEST)

    def restart(self, state: PartitionState, reset: OffsetReset) -> None:
        """Drop all data of the partition and find a new position."""
        self._buffer.drop(state)
        self.abandon(state)
        state.jump_by(reset)
        self._want_position()

    def _tell(self, state: PartitionState, error: RaftlogClientError) -> None:
        """Give the reader the error after the records before it."""
        state.error = error
        self._buffer.refresh(state)
        self._on_data()

    def _unanswered(self, error: RaftlogClientError) -> None:
        """Report to the reader that no node has responded in time, and keep trying."""
        if isinstance(error, ConnectionLostError):
            error = ConnectionLostError(
                f"No node has answered for {self._metadata.request_timeout_s:.3g} s: "
                f"{error.reason}. The next read goes on waiting for the cluster.",
                outcome_unknown=False,
                reason=error.reason,
            )
        self._unanswered_error = error
        self._on_data()

    def _viewed(self, topics: Collection[str]) -> None:
        for topic in topics:
            if topic in self._metadata.view.topics:
                del self._unknown[topic]
            else:
                self._unknown[topic] += 1

    def _park(self, state: PartitionState) -> None:
        """Retry the partition after its back-off, or when another node leads it."""
        state.is_waiting = True
        self._leaders.park(state, state.source, state.attempts, partial(self._resume, state))

    def _resume(self, state: PartitionState) -> None:
        state.is_waiting = False
        if self._metadata.leader_address(*state.source) is None:
            state.attempts += 1
        self.want(state)

    def _want_position(self) -> None:
        if (self._resetting is None or self._resetting.done()) and self._is_running:
            self._resetting = asyncio.ensure_future(self._find_positions())

    async def _find_positions(self) -> None:
        """Find positions for partitions that lack a position, until each has one or an error."""
        attempt = 0
        while lacking := [
            s for s in self._assigned.values() if _lacks_position(s) and not s.awaits_commit
        ]:
            try:
                has_all = await self._ask_positions(lacking)
            finally:
                self._positions_changed()
            if not has_all:
                await asyncio.sleep(self._metadata.backoff.delay_s(attempt))
                attempt += 1

    async def _ask_positions(self, lacking: Sequence[PartitionState]) -> bool:
        """Query positions once. Returns False if a repeat may help."""
        self.position_error = None
        asked: dict[TopicPartition, tuple[PartitionState, int]] = {}
        for state in lacking:
            if state.reset is OffsetReset.NONE:
                name = f"{state.source.topic}-{state.source.partition}"
                self._tell(
                    state,
                    NoOffsetError(
                        f'{name} has no position, and auto_offset_reset is "none": seek to an '
                        "offset first."
                    ),
                )
            else:
                asked[state.source] = state, state.generation

        def settle(source: TopicPartition, outcome: PartitionOffsets | RaftlogClientError) -> None:
            state, generation = asked[source]
            # Otherwise the application has sought elsewhere during the query.
            if state.generation == generation and state.reset is not None:
                self._set_position(state, outcome)

        timeout_s = self._metadata.request_timeout_s
        await self._leaders.query_once(self._offsets, asked, settle, timeout_s=timeout_s)
        return self.position_error is None

    def _set_position(
        self, state: PartitionState, outcome: PartitionOffsets | RaftlogClientError
    ) -> None:
        if isinstance(outcome, RaftlogClientError):
            if outcome.retriable:
                self.position_error = outcome
            else:
                self._tell(state, outcome)
            return
        is_earliest = state.reset is OffsetReset.EARLIEST
        end_offset = outcome.end_for(self._settings.isolation)
        state.jump(outcome.beginning_offset if is_earliest else end_offset)
        state.topic_id = outcome.topic_id
        state.high_watermark = outcome.high_watermark
        state.log_start_offset = outcome.beginning_offset
        self.want(state)
        self._on_data()


def _lacks_position(state: PartitionState) -> bool:
    return state.reset is not None and state.error is None
