"""Calls to partition leaders, which find and follow the leader, back off and retry.

The parts shared by all callers:

- **follow** a request. While its node is silent, the leader is looked up at other nodes, every
  `SLOW_S`. Once another node leads, or the same node in another leader epoch, the request is
  abandoned. A hanging node never responds, and waiting for the request timeout would be the outage.
- **park** a partition between two attempts. It resumes after its back-off, or as soon as the
  metadata names another leader or epoch.
- **refresh** metadata soon. Concurrent requests are coalesced.
- **query** many partitions. Queries are split by leader, sent to all leaders at once, and merged.
  They are repeated for partitions with a moved, dead or unknown leader until the timeout.

The leader of a partition of an internal topic is the coordinator of its groups and transactional
ids, so a call to a coordinator is a call to a leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

from raftlog.record.errors import NO_LEADER, STORAGE_FAILED
from raftlog_client.errors import (
    ConnectionLostError,
    RaftlogClientError,
    ServerError,
    TopicNotFoundError,
    server_error,
)
from raftlog_client.metadata import ClusterMetadata, Leadership
from raftlog_client.transport import NodeAddress
from raftlog_client.types import TopicPartition

SLOW_S: Final = 0.5
"""Seconds of silence after which a node may have died without closing its connections. Also the
interval at which the leader is then looked up at other nodes."""
PARTITIONS_PER_QUERY_MAX: Final = 1_000
"""Most partitions in one request. A leader of more gets several requests in turn."""
SILENCE_SHARE: Final = 0.5
"""Share of the remaining time for one attempt. The rest is for a new leader."""
NAMES_LOGGED_MAX: Final = 10

logger = logging.getLogger("raftlog_client")

T = TypeVar("T")

LeaderQuery: TypeAlias = Callable[
    [NodeAddress, Sequence[TopicPartition], float],
    Awaitable[Mapping[TopicPartition, T | RaftlogClientError]],
]
"""Sends a node a request about some partitions, with a timeout in seconds. Returns a result or an
error for each. Raises RaftlogClientError for all of them. Must be harmless to repeat."""
Settle: TypeAlias = Callable[[TopicPartition, T | RaftlogClientError], None]
"""Called with the outcome of one partition."""


class LeaderCall:
    """One request to a node, with its partitions' leaders at that time. A context manager.

    The block sends the request and awaits the response. Raises ConnectionLostError in place of the
    block's CancelledError once the call is abandoned.
    """

    __slots__ = (
        "_calls",
        "_cancel_count",
        "_is_write",
        "_on_moved",
        "_patience_s",
        "_progress",
        "_task",
        "_timer",
        "_watch",
        "address",
        "is_abandoned",
        "received_bytes",
        "seen",
    )

    def __init__(
        self,
        calls: LeaderCalls,
        address: NodeAddress,
        partitions: Iterable[TopicPartition],
        *,
        on_moved: Callable[[Collection[TopicPartition]], bool],
        patience_s: float,
        is_write: bool,
        progress: Callable[[], int] | None,
    ) -> None:
        self.address = address
        leadership = calls.metadata.leadership
        self.seen: dict[TopicPartition, Leadership | None] = {
            partition: leadership(*partition) for partition in partitions
        }
        """Partitions that wait for the response, with their leaders when the call was made."""
        self.is_abandoned = False
        self.received_bytes = 0
        self._calls = calls
        self._on_moved = on_moved
        self._patience_s = patience_s
        self._is_write = is_write
        self._progress = progress
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None
        self._cancel_count = 0

    def __enter__(self) -> Self:
        task = self._task = asyncio.current_task()
        assert task is not None
        self._cancel_count = task.cancelling()
        if self._progress is not None:
            self.received_bytes = self._progress()
        self._timer = asyncio.get_running_loop().call_later(self._patience_s, self._is_slow)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._timer is not None
        assert self._task is not None
        self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()
        if not self.is_abandoned:
            return
        # A cancellation by the caller's caller stays a cancellation, as in asyncio.timeout.
        if self._task.uncancel() <= self._cancel_count and kind is asyncio.CancelledError:
            raise ConnectionLostError(
                f"{self.address} has not answered, and other nodes lead by now.",
                outcome_unknown=self._is_write,
            ) from error

    def _is_slow(self) -> None:
        self._watch = asyncio.ensure_future(self._calls.watch(self))

    def is_silent(self) -> bool:
        """Whether nothing was received since the last check."""
        if self._progress is None:
            return True
        before, self.received_bytes = self.received_bytes, self._progress()
        return self.received_bytes == before

    def leaders_moved(self, moved: Collection[TopicPartition]) -> None:
        """Abandon the call if it is useless, because other nodes lead these partitions."""
        if self._on_moved(moved) and not self.is_abandoned:
            self.is_abandoned = True
            assert self._task is not None
            self._task.cancel()


class _Parked(NamedTuple):
    """A partition that waits for its next attempt."""

    partition: TopicPartition
    seen: Leadership | None
    """The partition's leader at the last attempt."""
    timer: asyncio.TimerHandle
    resume: Callable[[], None]


class LeaderCalls:
    """Routes one part of a client (its sender, fetcher, offset queries) to partition leaders.

    `close` it if it was used for anything but queries.
    """

    def __init__(
        self,
        metadata: ClusterMetadata,
        *,
        on_view: Callable[[Collection[str]], None] | None = None,
        on_unanswered: Callable[[RaftlogClientError], None] | None = None,
    ) -> None:
        """`on_view` is called with each new view, before parked partitions resume.

        It gets the topics of a `refresh_soon`, or none after a lookup of other leaders.
        `on_unanswered` is called when no node has given metadata within the request timeout, and
        when a node has refused.
        """
        self.metadata = metadata
        self._on_view = on_view
        self._on_unanswered = on_unanswered
        self._parked: dict[Hashable, _Parked] = {}
        """Parked partitions by owner. Bounded by the partitions that the client uses."""
        self._refresh_names: set[str] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._stale: set[str] = set()
        """Topics with other leaders than in the metadata, as queries have shown."""
        self._is_closed = False

    async def close(self) -> None:
        """End back-offs and refreshes. Nothing resumes after it. Calls end with their tasks."""
        self._is_closed = True
        for parked in self._parked.values():
            parked.timer.cancel()
        self._parked.clear()
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    # One request

    def follow(
        self,
        address: NodeAddress,
        partitions: Iterable[TopicPartition],
        *,
        on_moved: Callable[[Collection[TopicPartition]], bool] = bool,
        patience_s: float = SLOW_S,
        is_write: bool = False,
        progress: Callable[[], int] | None = None,
    ) -> LeaderCall:
        """Make a call that is abandoned once its node is silent and others lead.

        Silence starts after `patience_s`. With `progress` (bytes received so far), any byte ends
        it. `on_moved` gets the partitions whose leader moved, and returns whether to abandon the
        call. By default the first moved partition abandons it.
        """
        return LeaderCall(
            self,
            address,
            partitions,
            on_moved=on_moved,
            patience_s=patience_s,
            is_write=is_write,
            progress=progress,
        )

    async def watch(self, call: LeaderCall) -> None:
        """Look up the leaders of a silent call's partitions at other nodes.

        The end of the call cancels it.
        """
        metadata = self.metadata
        while True:
            if call.is_silent() and metadata.may_ask_others(call.address):
                metadata.suspect(call.address)
                try:
                    await metadata.refresh({partition.topic for partition in call.seen})
                except RaftlogClientError as error:
                    logger.info(
                        "%s is slow, and no other node has metadata: %s", call.address, error
                    )
                    self._unanswered(error)
                if self._on_view is not None:
                    self._on_view(())
                self.resume_moved()
                moved = [
                    partition
                    for partition, seen in call.seen.items()
                    if metadata.has_moved(*partition, seen)
                ]
                if moved:
                    logger.warning(
                        "%s does not answer, and other nodes lead by now: %s",
                        call.address,
                        _names(moved),
                    )
                    call.leaders_moved(moved)
            await asyncio.sleep(SLOW_S)

    # Back-off

    def park(
        self, owner: Hashable, partition: TopicPartition, attempts: int, resume: Callable[[], None]
    ) -> None:
        """Call `resume` after the back-off of that many failed attempts, or once the leader moved.

        An `owner` already parked restarts its wait.
        """
        if (before := self._parked.pop(owner, None)) is not None:
            before.timer.cancel()
        delay_s = self.metadata.backoff.delay_s(max(attempts - 1, 0))
        timer = asyncio.get_running_loop().call_later(delay_s, self._resume, owner)
        seen = self.metadata.leadership(*partition)
        self._parked[owner] = _Parked(partition, seen, timer, resume)

    def resume_moved(self) -> None:
        """Resume partitions with a new leader, to which the last failure does not apply."""
        for owner, parked in list(self._parked.items()):
            if self.metadata.has_moved(*parked.partition, parked.seen):
                parked.timer.cancel()
                self._resume(owner)

    def _resume(self, owner: Hashable) -> None:
        parked = self._parked.pop(owner, None)
        if parked is not None:
            parked.resume()

    # Metadata

    def refresh_soon(self, topic: str) -> None:
        """Refresh the topic's metadata in the background, together with other requested topics."""
        self._refresh_names.add(topic)
        if not self._is_closed and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.ensure_future(self._refresh_wanted())

    async def _refresh_wanted(self) -> None:
        while self._refresh_names:
            names, self._refresh_names = self._refresh_names, set()
            try:
                await self.metadata.refresh(names)
            except RaftlogClientError as error:
                # Parked partitions request it again after their back-off.
                logger.warning("No metadata of %s: %s", ", ".join(sorted(names)), error)
                self._unanswered(error)
                return
            if self._on_view is not None:
                self._on_view(names)
            self.resume_moved()

    # Queries

    async def query(
        self,
        query: LeaderQuery[T],
        partitions: Iterable[TopicPartition],
        *,
        timeout_s: float,
        must_settle: bool = True,
    ) -> dict[TopicPartition, T | RaftlogClientError]:
        """Query leaders, repeatedly if that may help, until all is settled or time is up.

        Returns the result for each partition, or the last error. Without `must_settle` the
        partitions that were not settled in time are left out.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        outcomes: dict[TopicPartition, T | RaftlogClientError] = dict.fromkeys(
            partitions, ConnectionLostError("There was no time to ask.", outcome_unknown=False)
        )
        attempt = 0
        while pending := [
            partition for partition, outcome in outcomes.items() if _may_change(outcome)
        ]:
            remaining_s = max(deadline - loop.time(), 0.01)
            try:
                async with asyncio.timeout(remaining_s):
                    await self.query_once(
                        query, pending, outcomes.__setitem__, timeout_s=remaining_s * SILENCE_SHARE
                    )
            except TimeoutError:
                break
            delay_s = self.metadata.backoff.delay_s(attempt)
            attempt += 1
            if loop.time() + delay_s >= deadline:
                break
            if any(_may_change(outcome) for outcome in outcomes.values()):
                await asyncio.sleep(delay_s)
        if must_settle:
            return outcomes
        return {
            partition: outcome
            for partition, outcome in outcomes.items()
            if not _may_change(outcome)
        }

    async def query_once(
        self,
        query: LeaderQuery[T],
        partitions: Iterable[TopicPartition],
        settle: Settle[T],
        *,
        timeout_s: float,
    ) -> None:
        """Query each leader once. `settle` gets each partition's outcome as soon as it is known.

        A retriable error may change or disappear with the next query.
        """
        wanted = list(partitions)
        await self._refresh_stale({partition.topic for partition in wanted})
        by_node: dict[NodeAddress, list[TopicPartition]] = {}
        unknown: list[TopicPartition] = []
        for partition in wanted:
            address = self.metadata.leader_address(*partition)
            if address is not None:
                by_node.setdefault(address, []).append(partition)
            elif self.metadata.has_partition(*partition):
                self._stale.add(partition.topic)
                settle(
                    partition,
                    _no_leader(
                        f"{partition.topic}-{partition.partition} has no leader at the moment."
                    ),
                )
            else:
                unknown.append(partition)
        await asyncio.gather(
            self._look_up(unknown, settle),
            *(
                self._query_node(query, node, led, settle, timeout_s)
                for node, led in by_node.items()
            ),
        )

    async def _look_up(self, partitions: Iterable[TopicPartition], settle: Settle[T]) -> None:
        """Settle partitions that the metadata lacks, which are new or do not exist."""
        for partition in partitions:
            try:
                await self.metadata.check_partition(*partition)
            except RaftlogClientError as error:
                settle(partition, error)
            else:
                settle(
                    partition,
                    _no_leader(f"{partition.topic}-{partition.partition} was created just now."),
                )

    async def _query_node(
        self,
        query: LeaderQuery[T],
        address: NodeAddress,
        partitions: Sequence[TopicPartition],
        settle: Settle[T],
        timeout_s: float,
    ) -> None:
        for start in range(0, len(partitions), PARTITIONS_PER_QUERY_MAX):
            some = partitions[start : start + PARTITIONS_PER_QUERY_MAX]
            outcomes: Mapping[TopicPartition, T | RaftlogClientError]
            try:
                outcomes = await query(address, some, timeout_s)
            except RaftlogClientError as error:
                if isinstance(error, ConnectionLostError):
                    self.metadata.suspect(address)
                if len(some) > 1 and _is_of_one_partition(error):
                    # Responses are all or nothing, so one offline partition must not hide the
                    # others.
                    middle = len(some) // 2
                    await self._query_node(query, address, some[:middle], settle, timeout_s)
                    await self._query_node(query, address, some[middle:], settle, timeout_s)
                    continue
                outcomes = dict.fromkeys(some, error)
            for partition in some:
                settle(partition, self._judged(address, partition, outcomes[partition]))

    def _judged(
        self, address: NodeAddress, partition: TopicPartition, outcome: T | RaftlogClientError
    ) -> T | RaftlogClientError:
        """Return the outcome for the caller, and note metadata that proved stale."""
        if not isinstance(outcome, RaftlogClientError):
            return outcome
        if isinstance(outcome, TopicNotFoundError) or outcome.retriable:
            self._stale.add(partition.topic)
        if isinstance(outcome, TopicNotFoundError):
            # The metadata named this leader. Either it has not applied the topic yet, or the topic
            # was deleted and the next refresh shows that.
            return _no_leader(
                f"{address} knows no {partition.topic}-{partition.partition}: {outcome}"
            )
        return outcome

    async def _refresh_stale(self, topics: set[str]) -> None:
        stale = {topic for topic in topics if topic in self._stale}
        stale |= topics - self.metadata.view.topics.keys()
        if not stale:
            return
        self._stale -= stale
        try:
            await self.metadata.refresh(stale)
        except RaftlogClientError as error:
            # The same nodes are queried again, because no others are known.
            logger.warning("No metadata of %s: %s", ", ".join(sorted(stale)), error)
            self._stale |= stale
            self._unanswered(error)

    def _unanswered(self, error: RaftlogClientError) -> None:
        if self._on_unanswered is not None:
            self._on_unanswered(error)


def all_answers(
    outcomes: Mapping[TopicPartition, T | RaftlogClientError],
) -> dict[TopicPartition, T]:
    """Return the results if there are no errors. Raises the first partition's error."""
    found: dict[TopicPartition, T] = {}
    for partition, outcome in outcomes.items():
        if isinstance(outcome, RaftlogClientError):
            raise outcome
        found[partition] = outcome
    return found


def _may_change(outcome: object) -> bool:
    return isinstance(outcome, RaftlogClientError) and outcome.retriable


def _is_of_one_partition(error: RaftlogClientError) -> bool:
    return isinstance(error, ServerError) and error.entry is STORAGE_FAILED


def _no_leader(message: str) -> RaftlogClientError:
    return server_error(NO_LEADER.code, message)


def _names(partitions: Sequence[TopicPartition]) -> str:
    names = [
        f"{partition.topic}-{partition.partition}" for partition in partitions[:NAMES_LOGGED_MAX]
    ]
    return ", ".join(names) + (", …" if len(partitions) > NAMES_LOGGED_MAX else "")
