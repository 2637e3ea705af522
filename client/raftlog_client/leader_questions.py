"""Questions that only a partition's leader answers: split by leader, asked at once, merged.

A question is a function that asks one node about some partitions and returns an answer, or an
error, for each. Here is what is common to all of them: who leads what, what to do when that was not
true any more, and when to give up. All of them may be repeated without harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from raftlog.record.errors import NO_LEADER, STORAGE_FAILED
from raftlog_client.errors import (
    ConnectionLostError,
    RaftlogClientError,
    ServerError,
    TopicNotFoundError,
    server_error,
)
from raftlog_client.metadata import ClusterMetadata
from raftlog_client.transport import NodeAddress
from raftlog_client.types import TopicPartition

PARTITIONS_PER_QUESTION_MAX: Final = 1_000
"""Partitions in one request; a leader of more is asked by one request after the other."""
SILENCE_SHARE: Final = 0.5
"""Of the time that is left, how much a node may be silent for. The rest is for its successor."""

logger = logging.getLogger("raftlog_client")

T = TypeVar("T")

Question = Callable[
    [NodeAddress, Sequence[TopicPartition], float],
    Awaitable[Mapping[TopicPartition, T | RaftlogClientError]],
]
"""Asks one node, within so many seconds. Raises RaftlogClientError for all of the partitions."""
Settle = Callable[[TopicPartition, T | RaftlogClientError], None]
"""Told what became of one partition."""


class LeaderQuestions(Generic[T]):
    """One question, asked of the leaders of changing sets of partitions."""

    def __init__(self, metadata: ClusterMetadata, question: Question[T]) -> None:
        self._metadata = metadata
        self._question = question
        self._stale: set[str] = set()
        """Topics whose leaders were not those that we took them for."""

    async def ask(
        self,
        partitions: Iterable[TopicPartition],
        *,
        timeout_s: float,
        must_settle: bool = True,
    ) -> dict[TopicPartition, T | RaftlogClientError]:
        """Ask, again and again where that may help, until all is settled or the time is up.

        Returns the answer for each partition, or the last error. Without `must_settle` what the
        time was too short for is left out.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        outcomes: dict[TopicPartition, T | RaftlogClientError] = dict.fromkeys(
            partitions, ConnectionLostError("There was no time to ask.", outcome_unknown=False)
        )
        attempt = 0
        while pending := [one for one, outcome in outcomes.items() if _may_change(outcome)]:
            remaining_s = max(deadline - loop.time(), 0.01)
            try:
                async with asyncio.timeout(remaining_s):
                    await self.ask_once(
                        pending, outcomes.__setitem__, timeout_s=remaining_s * SILENCE_SHARE
                    )
            except TimeoutError:
                break
            delay_s = self._metadata.backoff.delay_s(attempt)
            attempt += 1
            if loop.time() + delay_s >= deadline:
                break
            if any(_may_change(outcome) for outcome in outcomes.values()):
                await asyncio.sleep(delay_s)
        if must_settle:
            return outcomes
        return {one: outcome for one, outcome in outcomes.items() if not _may_change(outcome)}

    async def ask_once(
        self, partitions: Iterable[TopicPartition], settle: Settle[T], *, timeout_s: float
    ) -> None:
        """Ask each leader once; `settle` is told of each partition as soon as it is known.

        An error that is retriable may be another one, or none, next time.
        """
        wanted = list(partitions)
        await self._refresh({one.topic for one in wanted})
        by_node: dict[NodeAddress, list[TopicPartition]] = {}
        doubtful: list[TopicPartition] = []
        for one in wanted:
            address = self._metadata.leader_address(*one)
            if address is not None:
                by_node.setdefault(address, []).append(one)
            elif self._metadata.has_partition(*one):
                self._stale.add(one.topic)
                settle(one, _no_leader(f"Nobody leads {one.topic}-{one.partition} at the moment."))
            else:
                doubtful.append(one)
        await asyncio.gather(
            self._look_up(doubtful, settle),
            *(self._ask_node(node, led, settle, timeout_s) for node, led in by_node.items()),
        )

    async def _look_up(self, partitions: Iterable[TopicPartition], settle: Settle[T]) -> None:
        """Partitions that the metadata does not have: new ones, or none at all."""
        for one in partitions:
            try:
                await self._metadata.check_partition(*one)
            except RaftlogClientError as error:
                settle(one, error)
            else:
                settle(one, _no_leader(f"{one.topic}-{one.partition} is only just there."))

    async def _ask_node(
        self,
        address: NodeAddress,
        partitions: Sequence[TopicPartition],
        settle: Settle[T],
        timeout_s: float,
    ) -> None:
        for start in range(0, len(partitions), PARTITIONS_PER_QUESTION_MAX):
            some = partitions[start : start + PARTITIONS_PER_QUESTION_MAX]
            outcomes: Mapping[TopicPartition, T | RaftlogClientError]
            try:
                outcomes = await self._question(address, some, timeout_s)
            except RaftlogClientError as error:
                if isinstance(error, ConnectionLostError):
                    self._metadata.suspect(address)
                if len(some) > 1 and _is_of_one_partition(error):
                    # One that is offline must not keep the others' answers from us.
                    middle = len(some) // 2
                    await self._ask_node(address, some[:middle], settle, timeout_s)
                    await self._ask_node(address, some[middle:], settle, timeout_s)
                    continue
                outcomes = dict.fromkeys(some, error)
            for one in some:
                settle(one, self._judged(address, one, outcomes[one]))

    def _judged(
        self, address: NodeAddress, one: TopicPartition, outcome: T | RaftlogClientError
    ) -> T | RaftlogClientError:
        """What an outcome means: a view that proved stale is noted."""
        if not isinstance(outcome, RaftlogClientError):
            return outcome
        if isinstance(outcome, TopicNotFoundError) or outcome.retriable:
            self._stale.add(one.topic)
        if isinstance(outcome, TopicNotFoundError):
            # The metadata named this leader. Either it has not heard of the topic yet, or the topic
            # is gone: then the next look at the metadata says so.
            return _no_leader(f"{address} knows no {one.topic}-{one.partition}: {outcome}")
        return outcome

    async def _refresh(self, topics: set[str]) -> None:
        stale = {topic for topic in topics if topic in self._stale}
        stale |= topics - self._metadata.view.topics.keys()
        if not stale:
            return
        self._stale -= stale
        try:
            await self._metadata.refresh(stale)
        except RaftlogClientError as error:
            # Those who were wrong are asked again: we know of nobody else.
            logger.warning("No metadata of %s: %s", ", ".join(sorted(stale)), error)
            self._stale |= stale


def answers(outcomes: Mapping[TopicPartition, T | RaftlogClientError]) -> dict[TopicPartition, T]:
    """The answers, if there is one for each partition. Raises the first one's error."""
    found: dict[TopicPartition, T] = {}
    for one, outcome in outcomes.items():
        if isinstance(outcome, RaftlogClientError):
            raise outcome
        found[one] = outcome
    return found


def _may_change(outcome: object) -> bool:
    return isinstance(outcome, RaftlogClientError) and outcome.retriable


def _is_of_one_partition(error: RaftlogClientError) -> bool:
    return isinstance(error, ServerError) and error.entry is STORAGE_FAILED


def _no_leader(message: str) -> RaftlogClientError:
    return server_error(NO_LEADER.code, message)
