"""Log end queries fetch the ends of replicas' logs before unclean elections.

The active controller sends a query before it elects, an operator's node before it proposes an
unclean election, and a broker before it gives up the last replica with all records. Each queries
the living brokers of some partitions, and uses the responses that come within ANSWER_S. A broker of
an older release does not respond.

Messages use the quorum's connections. Two nodes without a vote have none between them. Their
messages take one step by way of the quorum's leader, which keeps nothing of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from raftlog.controller.messages import (
    LOG_ENDS_MAX,
    LogEndsAnswer,
    LogEndsMessage,
    LogEndsRequest,
    encode_message,
)
from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.decisions.elections import (
    LogEnd,
    LogEnds,
    PartitionKey,
    available_brokers,
)
from raftlog.metadata.image import MetadataImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.raft import RaftMember
from raftlog.record.errors import OVERLOADED, LogError
from raftlog.record.types import BrokerId
from raftlog.world import Clock, Wakeup

ANSWER_S: Final = 1.0
"""How long brokers may take to answer. They have the ends in memory."""
QUERIES_MAX: Final = 256
"""Queries under way on one node, from the controller, operators and repairs."""

logger = logging.getLogger(__name__)


class LogEndQuery:
    """The partitions of one query, and the responses so far."""

    def __init__(
        self,
        image: MetadataImage,
        keys: Collection[PartitionKey],
        deadline: float,
        on_complete: Callable[[], None],
    ) -> None:
        """`on_complete` is called once all brokers have answered."""
        self.keys = tuple(keys)
        self.deadline = deadline
        self.ends: dict[PartitionKey, dict[BrokerId, LogEnd]] = {key: {} for key in keys}
        available = available_brokers(image)
        self.waiting: set[tuple[BrokerId, PartitionKey]] = {
            (broker_id, key)
            for key in keys
            for broker_id in available.intersection(_replicas(image, key))
        }
        """Brokers and partitions without an answer."""
        self._on_complete = on_complete

    def is_over(self, now: float) -> bool:
        """Whether all brokers have answered, or the time is up."""
        return not self.waiting or now >= self.deadline

    def by_broker(self) -> dict[BrokerId, list[PartitionKey]]:
        """The partitions to query each broker for."""
        wanted: dict[BrokerId, list[PartitionKey]] = {}
        for broker_id, key in sorted(self.waiting):
            wanted.setdefault(broker_id, []).append(key)
        return wanted

    def take(self, broker_id: BrokerId, ends: Mapping[PartitionKey, LogEnd]) -> None:
        """Take a broker's answer, as far as this query waits for it."""
        for key, end in ends.items():
            if (broker_id, key) in self.waiting:
                self.waiting.remove((broker_id, key))
                self.ends[key][broker_id] = end
                if not self.waiting:
                    self._on_complete()


class LogEndQueries:
    """The queries of one node, and its answers to those of others. Lives in the event loop."""

    def __init__(
        self,
        *,
        quorum: RaftMember[ApplyResult],
        state_machine: MetadataStateMachine,
        clock: Clock,
        broker_id: BrokerId,
        log_end: Callable[[PartitionKey], LogEnd],
    ) -> None:
        """`log_end` returns the end of this node's own log, NO_LOG_END without a usable log."""
        self._quorum = quorum
        self._state_machine = state_machine
        self._clock = clock
        self._broker_id = broker_id
        self._log_end = log_end
        self._open: list[LogEndQuery] = []

    def begin(self, keys: Collection[PartitionKey], on_complete: Callable[[], None]) -> LogEndQuery:
        """Query the living brokers with replicas of these partitions. Never waits. A broker that
        cannot be reached counts as a broker that does not respond."""
        now = self._clock.monotonic()
        self._open = [query for query in self._open if not query.is_over(now)]
        query = LogEndQuery(self._state_machine.image, keys, now + ANSWER_S, on_complete)
        self._open.append(query)
        for broker_id, wanted in query.by_broker().items():
            if broker_id == self._broker_id:
                query.take(broker_id, {key: self._log_end(key) for key in wanted})
                continue
            for start in range(0, len(wanted), LOG_ENDS_MAX):
                partitions = tuple(wanted[start : start + LOG_ENDS_MAX])
                request = LogEndsRequest(
                    origin=self._broker_id, broker_id=broker_id, partitions=partitions
                )
                self._send(broker_id, request)
        return query

    async def collect(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, LogEnds]:
        """The ends of the living replicas' logs, as far as their brokers answer within ANSWER_S.
        Raises LogError OVERLOADED with too many queries under way."""
        if len(self._open) >= QUERIES_MAX:
            now = self._clock.monotonic()
            if sum(not query.is_over(now) for query in self._open) >= QUERIES_MAX:
                raise LogError(OVERLOADED, "Too many elections are under way: try again.")
        wakeup = Wakeup(self._clock)
        query = self.begin(keys, wakeup.set)
        while not query.is_over(self._clock.monotonic()):
            await wakeup.wait(query.deadline)
        return query.ends

    def received(self, sender: int, message: LogEndsMessage) -> None:
        """Answer a request, take an answer, or pass either on to its receiver."""
        if isinstance(message, LogEndsRequest):
            if message.broker_id == self._broker_id:
                self._quorum.send(sender, encode_message(self._answer(message)))
            elif sender == message.origin:
                self._quorum.send(message.broker_id, encode_message(message))
        elif message.origin == self._broker_id:
            ends = {
                (topic_id, partition): LogEnd(last_epoch, end_offset)
                for topic_id, partition, last_epoch, end_offset in message.ends
            }
            for query in self._open:
                query.take(message.broker_id, ends)
        elif sender == message.broker_id:
            self._quorum.send(message.origin, encode_message(message))

    def _send(self, broker_id: BrokerId, request: LogEndsRequest) -> None:
        encoded = encode_message(request)
        if self._quorum.send(broker_id, encoded):
            return
        leader_id = self._quorum.leader_id
        if leader_id in {None, self._broker_id} or not self._quorum.send(leader_id, encoded):
            logger.info("no connection to broker %d to query the ends of its logs", broker_id)

    def _answer(self, request: LogEndsRequest) -> LogEndsAnswer:
        return LogEndsAnswer(
            origin=request.origin,
            broker_id=self._broker_id,
            ends=tuple((*key, *self._log_end(key)) for key in request.partitions),
        )


def _replicas(image: MetadataImage, key: PartitionKey) -> Sequence[BrokerId]:
    topic = image.topics_by_id.get(key[0])
    known = topic is not None and 0 <= key[1] < len(topic.partitions)
    return topic.partitions[key[1]].replicas if topic is not None and known else ()
