"""The consumer reads records of topics in the order of each partition."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Generic, Literal

from raftlog.api.records import Isolation
from raftlog_client.errors import ClientClosedError, IllegalStateError, RaftlogClientError
from raftlog_client.fetch.assignment import Assignment
from raftlog_client.fetch.fetcher import Fetcher
from raftlog_client.fetch.protocol import FetchConnectionPool
from raftlog_client.fetch.record_buffer import RecordBuffer, RecordDecoder
from raftlog_client.fetch.requests import FetchSettings
from raftlog_client.fetch.subscription import OffsetReset, PartitionState, Subscription
from raftlog_client.groups.consumer import ConsumerGroup, GroupSettings
from raftlog_client.metadata import BOOTSTRAP_TIMEOUT_MS, ClusterClient
from raftlog_client.offsets import offsets_for_times, partition_offsets
from raftlog_client.types import (
    GroupMetadata,
    K,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RebalanceListener,
    Record,
    TopicPartition,
    V,
    require_at_least,
)


class Consumer(ClusterClient, Generic[K, V]):
    """Reads records of topics. An async context manager and an async iterable.

    Reads every partition of the topics given here or to `subscribe`, or the partitions given to
    `assign`. With a `group_id`, the consumers of the group share the partitions of the subscribed
    topics. Each partition starts at the group's committed offset, and records are processed at
    least once. Rebalances happen inside read calls (`async for`, `getone`, `getmany`).

    Meaning of the settings:

    - `group_id`: the consumer group. With `assign` it only keeps committed offsets.
    - `group_instance_id`: makes the member static. After a restart within the session it gets its
      partitions back without a rebalance.
    - `auto_commit_interval_ms`: interval of commits of processed records, which are the records
      given out before the present call. Offsets are also committed when partitions are given up or
      the consumer closes. With None, only `commit` or a transaction commits.
    - `session_timeout_ms`: silence after which the coordinator gives the partitions to others.
    - `max_poll_interval_ms`: time without a read after which the consumer leaves the group. Its
      next read rejoins. Also the longest time for giving up partitions.
    - `assignor`: "uniform" (sticky) or "range". None uses the group's.

    - `auto_offset_reset`: start of a partition without a position, or with a position out of range.
      "latest", "earliest", or "none", which raises. A partition added while its topic is
      subscribed is read from its beginning, so "latest" misses nothing. The same holds for a topic
      that was deleted and created again under its name, with a warning in the log. With "none",
      TopicChangedError is raised.
    - `isolation`: "read_committed" reads up to the last stable offset, without records of aborted
      transactions. "read_uncommitted" reads all records up to the high watermark.
    - `client_rack`: the rack of this consumer. A partition with an in-sync replica in that rack is
      read from the replica, other partitions from their leaders (KIP-392). The records and their
      order are the same, perhaps a little later.
    - `fetch_max_bytes`, `max_partition_fetch_bytes`: size of a response, and of one partition's
      share. A single larger batch is still fetched.
    - `fetch_min_bytes`, `fetch_max_wait_ms`: data that a node waits for, and the longest wait.
    - `max_poll_records`: most records in one `getmany`. None returns all buffered records.
    - `buffer_bytes_max`: data fetched ahead of the application.
    - `decompressed_bytes_max`: a larger batch is rejected.
    - `key_deserializer`, `value_deserializer`: from bytes to keys and values. None stays None.
    - `check_crcs`: verify every batch. Damage is raised as CorruptDataError, never served.
    - `metadata_max_age_ms`: longest time until new partitions and topics are noticed.

    Raises ValueError for a setting out of bounds.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Sequence[str] = "localhost:8082",
        client_id: str = "raftlog-client",
        group_id: str | None = None,
        group_instance_id: str | None = None,
        auto_commit_interval_ms: float | None = 5_000,
        session_timeout_ms: int = 10_000,
        max_poll_interval_ms: int = 300_000,
        assignor: Literal["uniform", "range"] | None = None,
        auto_offset_reset: Literal["latest", "earliest", "none"] = "latest",
        isolation: Isolation = "read_committed",
        client_rack: str | None = None,
        fetch_max_bytes: int = 8 * 1024 * 1024,
        max_partition_fetch_bytes: int = 1024 * 1024,
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        max_poll_records: int | None = None,
        buffer_bytes_max: int = 32 * 1024 * 1024,
        decompressed_bytes_max: int = 64 * 1024 * 1024,
        key_deserializer: Callable[[bytes], K] | None = None,
        value_deserializer: Callable[[bytes], V] | None = None,
        check_crcs: bool = True,
        request_timeout_ms: float = 15_000,
        bootstrap_timeout_ms: float = BOOTSTRAP_TIMEOUT_MS,
        retry_backoff_ms: float = 20,
        retry_backoff_max_ms: float = 250,
        metadata_max_age_ms: float = 30_000,
    ) -> None:
        reset = OffsetReset.of(auto_offset_reset)
        groups = GroupSettings(
            group_id=group_id,
            instance_id=group_instance_id,
            client_id=client_id,
            assignor=assignor,
            session_timeout_ms=session_timeout_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            auto_commit_interval_s=auto_commit_interval_ms and auto_commit_interval_ms / 1000,
            reset=reset,
        )
        fetches = FetchSettings(
            max_bytes=fetch_max_bytes,
            partition_max_bytes=max_partition_fetch_bytes,
            min_bytes=fetch_min_bytes,
            max_wait_ms=fetch_max_wait_ms,
            buffer_bytes_max=buffer_bytes_max,
            check_crcs=check_crcs,
            reset=reset,
            isolation=isolation,
            rack=client_rack,
        )
        decoder = RecordDecoder(key_deserializer, value_deserializer, decompressed_bytes_max)
        if max_poll_records is not None:
            require_at_least(1, max_poll_records=max_poll_records)
        if auto_commit_interval_ms is not None:
            require_at_least(1, auto_commit_interval_ms=auto_commit_interval_ms)
        require_at_least(1, metadata_max_age_ms=metadata_max_age_ms)
        super().__init__(
            bootstrap_servers,
            client_id,
            request_timeout_ms=request_timeout_ms,
            bootstrap_timeout_ms=bootstrap_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
        )
        self._prepare(topics, groups, fetches, decoder)
        self._max_poll_records = max_poll_records
        self._metadata_max_age_s = metadata_max_age_ms / 1000

    def _prepare(
        self,
        topics: Sequence[str],
        groups: GroupSettings,
        fetches: FetchSettings,
        decoder: RecordDecoder,
    ) -> None:
        """Make the parts of the consumer. Nothing is sent yet."""
        self._buffer = RecordBuffer(decoder, on_taken=self._taken)
        self._pool = FetchConnectionPool(groups.client_id)
        self._fetcher = Fetcher(
            self._pool, self._metadata, self._buffer, settings=fetches, on_data=self._wake
        )
        self._reset = fetches.reset
        self._isolation: Isolation = fetches.isolation
        self._subscription = Subscription(topics)
        self._listener = RebalanceListener()
        self._has_source = bool(topics)
        """Whether topics or partitions were ever chosen, even an empty choice."""
        self._assignment = Assignment(self._metadata, self._buffer, self._fetcher)
        self._states = self._assignment.states
        self._group: ConsumerGroup | None = None
        if groups.group_id is not None:
            self._group = ConsumerGroup(
                groups,
                metadata=self._metadata,
                assignment=self._assignment,
                fetcher=self._fetcher,
                buffer=self._buffer,
                wake=self._wake,
            )
        self._follower: asyncio.Task[None] | None = None
        self._has_data = asyncio.Event()
        self._is_started = False

    async def start(self) -> None:
        """Connect and find the start positions.

        After the return, "latest" is fixed, so every record written later is read. Raises
        TopicNotFoundError for an unknown topic, ConnectionLostError without a cluster.
        """
        if self._is_started:
            return
        self._transport.start()
        self._is_started = True
        try:
            await self._metadata.refresh({source.topic for source in self._states})
            self._fetcher.start()
            if self._group is not None:
                self._group.start()
            await self._follow_subscription(is_first=True)
            await self._fix_positions()
        except BaseException:
            await self._close(is_clean=False)
            raise
        self._follower = asyncio.ensure_future(self._keep_following())

    async def close(self) -> None:
        """Commit processed records, leave the group, close the connections. Iterations end.

        With automatic commits, all records given out count as processed. After an exception in an
        `async with`, the records in work do not count. Closing twice is allowed. Raises what the
        listener raises.
        """
        await self._close(is_clean=True)

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self._close(is_clean=error is None)

    async def _close(self, *, is_clean: bool) -> None:
        if not self._is_started:
            return
        self._is_started = False
        self._wake()
        try:
            if self._group is not None:
                await self._group.close(is_clean=is_clean)
        finally:
            if self._follower is not None:
                self._follower.cancel()
                await asyncio.gather(self._follower, return_exceptions=True)
            await self._fetcher.close()
            self._pool.close()
            await self._disconnect()

    def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Record[K, V]]:
        """Yield records until the consumer is closed. Raises as `getmany` does."""
        self._require_source()
        while self._is_started:
            # The event loop gets a turn between two units, so the next fetch continues.
            await asyncio.sleep(0)
            await self._begin_read()
            unit = self._buffer.next_unit()
            if unit is None:
                self._fetcher.check_answered()
                await self._wait_for_data(None)
                continue
            # A bare loop over a list iterator does no other work per record.
            for record in unit.iterator:
                yield record

    async def getone(self) -> Record[K, V]:
        """Wait for the next record. Raises as `getmany` does."""
        while True:
            self._require_source()
            await self._begin_read()
            unit = self._buffer.next_unit()
            if unit is None:
                self._fetcher.check_answered()
                await self._wait_for_data(None)
                continue
            for record in unit.iterator:
                return record

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record[K, V]]]:
        """Return buffered records by partition. Waits up to `timeout_ms` if there are none.

        `partitions` limits the result to these. Without `max_records` (or `max_poll_records`) each
        partition gives the records of one fetch, about `max_partition_fetch_bytes` at most.

        Raises CorruptDataError, OffsetOutOfRangeError, NoOffsetError, SerializationError,
        TopicNotFoundError, TopicChangedError or another RaftlogClientError of a partition. The next
        call continues with the other partitions. With no records left, also raises once no node has
        given a useful response for `request_timeout_ms`. The error is ConnectionLostError if the
        nodes are gone, a retriable ServerError if they are starting. The next call waits again.
        Raises IllegalStateError before any topic or partition is chosen.
        """
        limit = self._max_poll_records if max_records is None else max_records
        if limit is not None and limit < 1:
            raise ValueError(f"max_records must be at least 1, not {limit}")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        await asyncio.sleep(0)
        while True:
            self._require_source()
            await self._begin_read()
            if taken := self._buffer.take_many(limit, partitions):
                return taken
            self._fetcher.check_answered()
            remaining_s = deadline - loop.time()
            if remaining_s <= 0:
                return {}
            await self._wait_for_data(remaining_s, partitions)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions and no others. Ends a subscription.

        Partitions assigned before keep their positions. May be called before `start`. Raises
        IllegalStateError while the consumer is a member of its group. Call `unsubscribe` first.
        """
        if self._group is not None and self._group.is_member:
            raise IllegalStateError(
                "The group's coordinator assigns the partitions: unsubscribe() before assign(…)."
            )
        self._subscription = Subscription(())
        self._has_source = True
        self._assign(
            dict.fromkeys(TopicPartition(*partition) for partition in partitions), self._reset
        )

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return set(self._states)

    async def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read all partitions of these topics, or of all topics that match a whole pattern.

        In a group, read this member's share of them. The pattern is then an RE2 pattern. Replaces
        an earlier subscription or assignment. Partitions in both keep their positions. Raises
        TopicNotFoundError, ValueError.
        """
        self._require_started()
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        self._subscription = Subscription(names, pattern)
        self._has_source = True
        self._listener = listener or RebalanceListener()
        await self._follow_subscription(is_first=True)
        await self._fix_positions()

    def subscription(self) -> set[str]:
        """Return the subscribed topics, or the present matches of a pattern."""
        return self._subscription.topics(self._metadata.view)

    async def unsubscribe(self) -> None:
        """Stop reading and leave the group."""
        if self._group is not None:
            await self._group.leave()
        self.assign(())

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue reading the partition from `offset`. Raises ValueError."""
        state = self._assignment.state(partition)
        if offset < 0:
            raise ValueError(f"offset must be at least 0, not {offset}")
        self._assignment.jump(state, offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read these partitions, or all if none is given, from their first record."""
        self._require_started()
        for state, offsets in await self._assignment.offsets_of(partitions):
            self._assignment.jump(state, offsets.beginning_offset, topic_id=offsets.topic_id)

    async def seek_to_end(self, *partitions: TopicPartition, last: int = 0) -> None:
        """Read these partitions, or all if none is given, from their present end.

        With `last`, start that many offsets before the end. `last=1` reads the latest record again.
        This counts offsets, not records. A transaction's marker has an offset, and compaction
        leaves gaps. A partition with fewer offsets is read from its beginning. Raises ValueError.
        """
        self._require_started()
        if last < 0:
            raise ValueError(f"last must be at least 0, not {last}")
        for state, offsets in await self._assignment.offsets_of(partitions):
            offset = offsets.before_end(last, self._isolation)
            self._assignment.jump(state, offset, topic_id=offsets.topic_id)

    async def seek_to_timestamp(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Read these partitions, or all if none is given, from the first record since then.

        A partition without a record at or after `timestamp_ms` is read from its end.
        """
        self._require_started()
        ends = await self._assignment.offsets_of(partitions)
        found = await offsets_for_times(
            self._metadata, {state.source: timestamp_ms for state, _ in ends}
        )
        for state, offsets in ends:
            record = found[state.source]
            offset = offsets.end_for(self._isolation) if record is None else record.offset
            self._assignment.jump(state, offset, topic_id=offsets.topic_id)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return each partition's first record at or after a timestamp (ms), or None."""
        self._require_started()
        return await offsets_for_times(self._metadata, timestamps)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the first readable offset of each partition."""
        self._require_started()
        offsets = await partition_offsets(self._metadata, partitions)
        return {partition: found.beginning_offset for partition, found in offsets.items()}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last readable record of each partition."""
        self._require_started()
        offsets = await partition_offsets(self._metadata, partitions)
        return {partition: found.end_for(self._isolation) for partition, found in offsets.items()}

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record for the application."""
        self._require_started()
        state = self._assignment.state(partition)
        if state.reset is not None and state.error is None:
            await self._assignment.find_positions((partition,))
        if state.error is not None and state.reset is not None:
            raise state.error
        return self._buffer.position(state)

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the readable log's end in the last response, or None before the first."""
        return self._assignment.state(partition).high_watermark

    def pause(self, *partitions: TopicPartition) -> None:
        """Stop returning records of these partitions. Positions and buffered records stay."""
        for partition in partitions:
            state = self._assignment.state(partition)
            state.is_paused = True
            self._buffer.set_aside(state)

    def resume(self, *partitions: TopicPartition) -> None:
        """End the pause of these partitions."""
        for partition in partitions:
            state = self._assignment.state(partition)
            state.is_paused = False
            self._buffer.refresh(state)
            self._fetcher.want(state)
        self._wake()

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return {source for source, state in self._states.items() if state.is_paused}

    async def topics(self) -> set[str]:
        """Return the names of all topics of the cluster."""
        self._require_started()
        return set((await self._metadata.refresh(None)).topics)

    async def partitions_for_topic(self, topic: str) -> set[int]:
        """Return the numbers of a topic's partitions. Raises TopicNotFoundError."""
        self._require_started()
        return {info.partition for info in (await self._metadata.topic(topic)).partitions}

    # Groups

    async def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None
    ) -> None:
        """Commit the group's next offsets to read, by default after all records given out.

        Repeated until `request_timeout_ms`. Raises CommitFailedError for a partition that this
        consumer no longer owns, ServerError, and ConnectionLostError with an unknown outcome.
        """
        await self._require_group().commit(offsets)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets, or None where there is none.

        An offset that an open transaction may change is awaited, up to `request_timeout_ms`.
        """
        group = self._require_group()
        return await group.offsets.committed(
            [TopicPartition(*partition) for partition in partitions]
        )

    async def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Read these partitions, or all if none is given, from the committed offsets.

        After a failed transaction this reads its input again. A partition without a committed
        offset starts according to `auto_offset_reset`.
        """
        group = self._require_group()
        states = [self._assignment.state(partition) for partition in partitions] or list(
            self._states.values()
        )
        await group.seek_to_committed(states)

    def group_metadata(self) -> GroupMetadata:
        """Return this consumer's membership, for `Transaction.commit_offsets`."""
        return self._require_group().metadata()

    def transaction_source(self) -> ConsumerGroup:
        """Return this consumer's offsets, for `Transaction.commit_offsets`."""
        return self._require_group()

    def _require_group(self) -> ConsumerGroup:
        self._require_started()
        if self._group is None:
            raise IllegalStateError("The consumer has no group: give it a group_id.")
        return self._group

    async def _begin_read(self) -> None:
        """Start a read call, or continue it after a wait. Rebalances happen here."""
        self._buffer.begin_call()
        if self._group is not None:
            await self._group.begin_read()

    def _assign(self, partitions: Iterable[TopicPartition], reset: OffsetReset) -> None:
        """Keep the states of known partitions, add new partitions, drop the others."""
        group = self._group
        self._assignment.replace(partitions, reset, awaits_commit=group is not None)
        if group is not None and self._is_started:
            group.assigned()

    async def _follow_subscription(self, *, is_first: bool) -> None:
        """Align the assignment with the subscription and the cluster's topics."""
        subscription = self._subscription
        if not subscription.is_active or (self._group is not None and not is_first):
            return
        view = await self._metadata.refresh(subscription.names_to_ask)
        if subscription is not self._subscription:
            return
        if is_first:
            for name in subscription.names:
                if name not in view.topics:
                    # A second request, because a new topic may not be known on every node yet.
                    await self._metadata.topic(name)
        if self._group is not None:
            await self._group.subscribe(subscription, self._listener)
            return
        # All records of a later partition were written after the subscription.
        reset = self._reset
        if not is_first and reset is OffsetReset.LATEST:
            reset = OffsetReset.EARLIEST
        self._assign(subscription.partitions(self._metadata.view), reset)

    async def _keep_following(self) -> None:
        while True:
            await asyncio.sleep(self._metadata_max_age_s)
            try:
                await self._follow_subscription(is_first=False)
            except RaftlogClientError:
                # Fetching notices and reports it if the cluster is gone.
                continue

    async def _fix_positions(self) -> None:
        """Return once "latest" is a fixed offset. Other positions are found during reads."""
        if self._reset is OffsetReset.LATEST:
            await self._assignment.find_positions(tuple(self._states))

    def _taken(self, state: PartitionState) -> None:
        self._fetcher.taken(state)

    def _wake(self) -> None:
        self._has_data.set()

    async def _wait_for_data(
        self, timeout_s: float | None, only: Sequence[TopicPartition] = ()
    ) -> None:
        """Return when data arrived, the time is up, or the consumer closes."""
        self._has_data.clear()
        group = self._group
        if (not only and not self._buffer.is_empty) or (group is not None and group.is_due):
            return
        if group is not None:
            group.is_waiting(waits=True)
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_data.wait()
        except TimeoutError:
            return
        finally:
            if group is not None:
                group.is_waiting(waits=False)

    def _require_source(self) -> None:
        self._require_started()
        if not self._has_source:
            raise IllegalStateError(
                "The consumer has nothing to read: name topics in Consumer(…) or subscribe(…), or "
                "partitions in assign(…)."
            )

    def _require_started(self) -> None:
        if not self._is_started:
            raise ClientClosedError("The consumer is closed, or was never started.")
