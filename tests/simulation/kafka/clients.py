"""Kafka's clients in the simulated world: connections to the nodes that lead, and metadata.

A client knows leaders by Metadata alone, keeps the newest leader epoch that it has heard of, and
gives up a connection whose answer does not come in time. Its connections are cut at random bytes,
split, stalled and read slowly, as the history's cast draws.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from raftlog.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.simulation.data.clients import Part
from tests.simulation.kafka.front import PORT, host
from tests.simulation.kafka.wire import Cut, DisconnectedError, Wire

if TYPE_CHECKING:
    from tests.simulation.kafka.histories import History

REQUEST_S: Final = 2.0
"""A client's patience with one request."""
CALM_S: Final = 10.0
"""The same, once the faults are over: narrow streams are slow."""
CONNECT_S: Final = 1.0
PAUSE_S: Final = 0.05
METADATA: Final = 12
"""Version."""
NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC: Final = 3
NOT_LEADER: Final = 6
REQUEST_TIMED_OUT: Final = 7
NOT_ENOUGH_REPLICAS: Final = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = 20
OUT_OF_ORDER_SEQUENCE: Final = 45
DUPLICATE_SEQUENCE: Final = 46
STORAGE_FAILED: Final = 56
UNKNOWN_PRODUCER_ID: Final = 59
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
RETRIABLE: Final = frozenset(
    {
        UNKNOWN_TOPIC,
        5,  # LEADER_NOT_AVAILABLE
        NOT_LEADER,
        REQUEST_TIMED_OUT,
        13,  # NETWORK_EXCEPTION
        NOT_ENOUGH_REPLICAS,
        NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        STORAGE_FAILED,
        FENCED_LEADER_EPOCH,
        UNKNOWN_LEADER_EPOCH,
        84,  # PREFERRED_LEADER_NOT_AVAILABLE
        89,  # THROTTLING_QUOTA_EXCEEDED
    }
)
"""Codes after which Kafka's clients try again by themselves."""


@dataclass(frozen=True, slots=True)
class Roughness:
    """How clients' connections fare."""

    cuts: float = 0.0
    """Share of connections that are cut, ..."""
    cut_bytes_mean: float = 2_000.0
    """... after so many bytes."""
    slow: float = 0.0
    """Share of connections that are read slowly."""
    slow_bytes_max: int = 200
    """Bytes that a slow reader takes at once."""


@dataclass
class Client:
    """One client, with a connection to each node."""

    history: History
    number: int
    name: str
    wires: dict[int, Wire] = field(default_factory=dict)
    leaders: dict[Part, tuple[int, int]] = field(default_factory=dict)
    """The leader epoch and leader of each partition, as heard last."""
    chance: random.Random = field(init=False)
    is_calm: bool = False
    """From the healing on: connections are whole, and read at once."""
    cuts: int = 0
    """Connections with an end planned."""
    _connecting: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.chance = self.history.world.random(f"kafka client {self.name}")

    # Connections

    async def wire(self, node_id: int) -> Wire | None:
        """The connection to a node; None if there is none now."""
        wire = self.wires.get(node_id)
        if wire is not None and not wire.is_over:
            return wire
        if node_id in self._connecting:
            return None
        self._connecting.add(node_id)
        try:
            async with asyncio.timeout(CONNECT_S):
                stream = await self.history.front.streams.connect(-self.number, host(node_id), PORT)
        except (OSError, TimeoutError):
            await asyncio.sleep(PAUSE_S)
            return None
        finally:
            self._connecting.discard(node_id)
        rough = self.history.cast.roughness
        wire = Wire(stream, self.complain, self._cut())
        if not self.is_calm and self.chance.random() < rough.slow:
            wire.pace_s = self.chance.uniform(0.001, 0.1)
            wire.read_bytes_max = self.chance.randint(1, rough.slow_bytes_max)
        self.wires[node_id] = wire
        self.history.wires += 1
        return wire

    def _cut(self) -> Cut | None:
        rough, chance = self.history.cast.roughness, self.chance
        if self.is_calm or chance.random() >= rough.cuts:
            return None
        how = chance.choice(("reset", "reset", "close", "half-close", "vanish"))
        at = int(chance.expovariate(1 / rough.cut_bytes_mean))
        self.cuts += 1
        if chance.random() < 0.5:
            return Cut(how, answer_byte=at)
        return Cut(how, request_byte=at, is_late=chance.random() < 0.5)

    async def ask(self, node_id: int, request: msgspec.Struct, version: int) -> Any:
        """The answer of a node. Raises DisconnectedError, also if none comes in time."""
        wire = await self.wire(node_id)
        if wire is None:
            raise DisconnectedError
        try:
            async with asyncio.timeout(CALM_S if self.is_calm else REQUEST_S):
                return await wire.ask(request, version)
        except TimeoutError:
            self.give_up(wire)
            raise DisconnectedError from None

    def give_up(self, wire: Wire) -> None:
        """End a connection whose answers do not come."""
        wire.end(self.chance.choice(("close", "reset")))

    def calm(self) -> None:
        """Cut no more connections, and read at once."""
        self.is_calm = True
        for wire in self.wires.values():
            wire.cut, wire.pace_s, wire.read_bytes_max = None, 0.0, 1 << 16

    @property
    def has_vanished(self) -> bool:
        """Whether a node may still hold something for a connection that is gone."""
        return self.cuts > 0

    def leave(self) -> None:
        """End all connections."""
        for wire in self.wires.values():
            wire.end("close")

    def complain(self, what: str) -> None:
        """Note a wrong answer."""
        self.history.data.complain(f"{self.name}: {what}")

    # Metadata

    def any_node(self) -> int:
        """A node to start with."""
        return self.chance.choice(self.history.data.nodes.node_ids)

    async def refresh(self) -> bool:
        """Learn the leaders from any node; whether there was an answer."""
        names = dict.fromkeys(part.topic for part in self.history.data.parts)
        request = MetadataRequest(
            tuple(MetadataRequestTopic(name=name) for name in names),
            allow_auto_topic_creation=False,
        )
        try:
            answer = await self.ask(self.any_node(), request, METADATA)
        except DisconnectedError:
            await asyncio.sleep(self.chance.uniform(0.0, 2 * PAUSE_S))
            return False
        for topic in answer.topics:
            for row in topic.partitions:
                part = Part(topic.name, row.partition_index)
                self.heard(part, row.leader_epoch, row.leader_id)
        return True

    def heard(self, part: Part, epoch: int, leader: int) -> None:
        """Take a leader for the newest, unless a newer one is known."""
        if epoch >= self.leaders.get(part, (-1, -1))[0]:
            self.leaders[part] = epoch, leader

    def leader(self, part: Part) -> int | None:
        """The leader, as far as known."""
        leader = self.leaders.get(part, (-1, -1))[1]
        return None if leader < 0 else leader
