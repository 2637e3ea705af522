"""A follower on a stage: its network, clock and leader are played by the test."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from raftlog.metadata.image import BrokerImage
from raftlog.peer.hello import encode_hello
from raftlog.record.types import BrokerEpoch, BrokerId, Offset, PartitionId
from raftlog.replication.streams.follower_streams import FollowerStreams
from raftlog.replication.streams.protocol import (
    FromFollower,
    FromLeader,
    Ping,
    StreamHello,
    Subscribe,
    decode_from_follower,
    encode,
    encode_data,
)
from raftlog.replication.streams.replica_fetcher import FollowState
from raftlog.replication.streams.settings import StreamSettings
from raftlog.world.network import Acceptor, Opened, Receiver, RejectedError
from raftlog.world.randomness import SystemRandomness
from raftlog.world.time import SystemClock
from tests.replication.streams_world import TOPIC_ID, Batch, FakePartition, row
from tests.waiting import until

LEADER = BrokerImage(
    broker_id=BrokerId(1),
    broker_epoch=BrokerEpoch(3),
    directory_id="d1",
    incarnation="x",
    host="::1",
    port=8082,
    rack=None,
    software_version="1",
    command_version=1,
    fenced=False,
)
THEIR_HELLO = StreamHello(node_id=1, broker_epoch=BrokerEpoch(3), directory_id="d1", cluster_id="c")
FAST = StreamSettings(retry_s_min=0.001, retry_s_max=0.002, redial_s_min=0.001, redial_s_max=0.002)


REDIALS = StreamSettings(redial_s_min=0.001, redial_s_max=0.01, ping_s=3600)
DELAYS_S = (0.001, 0.002, 0.004, 0.008, 0.01, 0.01, 0.01)
"""Delays between failed calls, by these settings."""


class Clock(SystemClock):
    """Records its sleeps."""

    def __init__(self) -> None:
        self.slept_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds < 3600:
            self.slept_s.append(seconds)
        await super().sleep(seconds)

    def has_doubled(self) -> bool:
        """Whether each sleep was longer than the one before, up to the limit."""
        slept_s = self.slept_s[: len(DELAYS_S)]
        # Jitter takes up to half of a delay.
        return all(
            longest / 2 <= slept <= longest
            for slept, longest in zip(slept_s, DELAYS_S, strict=True)
        )


class Connection:
    def __init__(self, hello: bytes) -> None:
        self.hello = hello
        self.address = "there"
        self.queued_bytes = 0
        self.sent: list[bytes] = []
        self.is_closed = False

    def send(self, message: bytes) -> None:
        if not self.is_closed:
            self.sent.append(message)

    def close(self) -> None:
        self.is_closed = True


class Network:
    """Opens every connection at once, unless set to fail."""

    def __init__(self) -> None:
        self.hello = THEIR_HELLO
        self.failure: Exception | None = None
        self.calls: list[tuple[str, str, StreamHello]] = []
        self.opened: list[tuple[Connection, Receiver]] = []
        self.rejections: list[RejectedError] = []

    def has_opened(self, number: int) -> bool:
        return len(self.opened) == number

    def accept(self, channel: str, acceptor: Acceptor) -> None:
        raise AssertionError

    async def is_refused(self, address: str, *, timeout_s: float) -> bool:
        raise AssertionError

    async def connect(
        self, address: str, channel: str, hello: bytes, opened: Opened, *, timeout_s: float
    ) -> None:
        self.calls.append((address, channel, msgspec.json.decode(hello, type=StreamHello)))
        if self.failure is not None:
            raise self.failure
        connection = Connection(encode_hello(self.hello))
        try:
            self.opened.append((connection, opened(connection)))
        except RejectedError as error:
            self.rejections.append(error)
            raise


class Stage:
    """A follower of some partitions of one leader."""

    def __init__(self, partitions: int = 1, settings: StreamSettings = FAST) -> None:
        self.network = Network()
        self.clock = Clock()
        self.epoch: int | None = 7
        self.fatal: list[str] = []
        self.streams = FollowerStreams(
            network=self.network,
            clock=self.clock,
            randomness=SystemRandomness(),
            broker_id=BrokerId(2),
            directory_id="d2",
            cluster_id=lambda: "c",
            own_epoch=lambda: None if self.epoch is None else BrokerEpoch(self.epoch),
            on_fatal=self.fatal.append,
            settings=settings,
        )
        self.replicas = [FakePartition(2, row(1, 1, number=each)) for each in range(partitions)]
        for replica in self.replicas:
            replica.sync_s = None
        self.heard: list[FromFollower] = []

    async def follow(self) -> None:
        for replica in self.replicas:
            self.streams.follow(replica, LEADER)
        await self.until(lambda: len(self.subscribed()) == len(self.replicas))

    async def until(self, condition: Callable[[], object]) -> None:
        await until(condition)

    @property
    def connection(self) -> Connection:
        return self.network.opened[-1][0]

    def say(self, message: FromLeader | bytes) -> None:
        content = message if isinstance(message, bytes) else encode(message)
        self.network.opened[-1][1].received(content)

    def take(self) -> list[FromFollower]:
        """The messages since the last call, without pings."""
        if not self.network.opened:
            return []
        sent, self.connection.sent = self.connection.sent, []
        new = [each for each in map(decode_from_follower, sent) if each != Ping()]
        self.heard += new
        return new

    def subscribed(self) -> list[int]:
        """The handles of all subscriptions so far."""
        self.take()
        return [
            each.handle
            for message in self.heard
            if isinstance(message, Subscribe)
            for each in message.subscriptions
        ]

    def state(self, number: int = 0) -> FollowState | None:
        return self.streams.state_of(TOPIC_ID, PartitionId(number))


def batch(base: int, content: bytes = b"x", count: int = 1) -> bytes:
    return Batch(base, base + count, 1, content).data


def data(handle: int, base: int, following: int, payload: bytes, flags: int = 0) -> bytes:
    return encode_data(
        handle,
        Offset(base),
        Offset(following),
        Offset(0),
        Offset(0),
        [payload],
        flags,
    )
