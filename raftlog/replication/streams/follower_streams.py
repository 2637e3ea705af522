"""The follower's side of the streams holds the followed partitions and their leaders.

A connection goes to each node that leads partitions followed here. Each partition on it is a
separate state machine (streams/replica_fetcher.py). `follow` and `unfollow` are called as metadata
is applied, and never wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raftlog.metadata.image import BrokerImage
from raftlog.peer.channel import Channel
from raftlog.peer.tasks import TaskGroup
from raftlog.record.types import BrokerEpoch, BrokerId, PartitionId, TopicId
from raftlog.replication.partition import Partition
from raftlog.replication.streams.leader_connection import FollowerStream, LeaderConnection
from raftlog.replication.streams.protocol import CHANNEL, StreamHello
from raftlog.replication.streams.replica_fetcher import FollowState, ReplicaFetcher
from raftlog.replication.streams.settings import StreamSettings
from raftlog.world import Clock, Randomness
from raftlog.world.network import Network


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """The connection to one leader, for metrics and status."""

    broker_id: BrokerId
    is_connected: bool
    replicas: int
    following: int
    """Replicas with an accepted subscription."""
    failed: int
    """Replicas with failed storage."""
    bytes_held: int
    """Bytes received and not appended yet."""
    corrupt_count: int
    """Batches that were damaged, or did not belong at their offsets."""
    rejection: str | None
    """The reason of the leader's present rejection."""


class FollowerStreams:
    """All partitions that this node follows. Lives in the event loop, not for other threads."""

    def __init__(
        self,
        *,
        network: Network,
        clock: Clock,
        randomness: Randomness,
        broker_id: BrokerId,
        directory_id: str,
        cluster_id: Callable[[], str | None],
        own_epoch: Callable[[], BrokerEpoch | None],
        on_fatal: Callable[[str], None],
        settings: StreamSettings | None = None,
    ) -> None:
        """`own_epoch` is the epoch of this node. None before its registration, when no leader is
        dialled."""
        self._randomness = randomness
        self._settings = settings or StreamSettings()
        self._tasks = TaskGroup(on_fatal)
        self._channel: Channel[FollowerStream] = Channel(
            CHANNEL,
            node_id=broker_id,
            network=network,
            clock=clock,
            tasks=self._tasks,
            settings=self._settings,
        )
        self._broker_id = broker_id
        self._directory_id = directory_id
        self._cluster_id = cluster_id
        self._own_epoch = own_epoch
        self._links: dict[BrokerId, LeaderConnection] = {}
        self._replicas: dict[tuple[TopicId, PartitionId], ReplicaFetcher] = {}
        self._is_closed = False
        self._bytes_received = 0
        """Bytes received on closed connections."""

    def follow(self, partition: Partition, leader: BrokerImage) -> None:
        """Fetch the replica's records from its leader from now on. Call whenever the leader, its
        epoch, or the leader's broker has changed in the metadata. Harmless without a change."""
        assert leader.broker_id != self._broker_id
        if self._is_closed:
            return
        link = self._links.get(leader.broker_id)
        if link is None:
            link = self._links[leader.broker_id] = self._connection(leader)
        elif leader != link.leader:
            link.retarget(leader)
        key = (partition.topic_id, partition.partition)
        replica = self._replicas.get(key)
        if replica is not None and replica.partition is not partition:
            # The repair made a new log. The old log's task ends by itself.
            self._unfollow(replica)
            replica = None
        if replica is None:
            replica = self._replicas[key] = ReplicaFetcher(partition, link)
            link.add(replica)
            replica.maybe_subscribe()
        elif (
            replica.is_stopped
            or replica.link is not link
            or replica.leader_epoch != partition.image.leader_epoch
        ):
            old_link = replica.link
            replica.switch_leader(link)
            if old_link is not link:
                old_link.remove(replica)
            link.add(replica)

    def unfollow(self, partition: Partition) -> None:
        """Stop fetching for the replica. Harmless if it is not followed. A started change of its
        log finishes."""
        replica = self._replicas.get((partition.topic_id, partition.partition))
        if replica is not None and replica.partition is partition:
            self._unfollow(replica)

    async def close(self) -> None:
        """End all connections and tasks. Harmless if done already."""
        self._is_closed = True
        for link in list(self._links.values()):
            link.close("this node is stopping")
        for replica in list(self._replicas.values()):
            replica.stop()
        self._links.clear()
        await self._tasks.close()

    def state_of(self, topic_id: TopicId, partition: PartitionId) -> FollowState | None:
        """State of a replica. None if it is not followed."""
        replica = self._replicas.get((topic_id, partition))
        return None if replica is None or replica.is_stopped else replica.state

    def error_of(self, topic_id: TopicId, partition: PartitionId) -> str:
        """The replica's last error. Empty while it follows, or without an error."""
        replica = self._replicas.get((topic_id, partition))
        return "" if replica is None else replica.error

    @property
    def connected_count(self) -> int:
        """Leaders with an open connection."""
        return sum(link.stream is not None for link in self._links.values())

    @property
    def bytes_received(self) -> int:
        """Bytes of batches received since the start."""
        return self._bytes_received + sum(link.bytes_received for link in self._links.values())

    def describe(self) -> list[LinkStatus]:
        """All links, ascending by the leader's id."""
        return [
            LinkStatus(
                broker_id=broker_id,
                is_connected=link.stream is not None,
                replicas=len(link.replicas),
                following=_count(link, FollowState.FOLLOWING),
                failed=_count(link, FollowState.FAILED),
                bytes_held=link.held_bytes,
                corrupt_count=link.corrupt_count,
                rejection=link.rejection,
            )
            for broker_id, link in sorted(self._links.items())
        ]

    # Inner parts

    def _connection(self, leader: BrokerImage) -> LeaderConnection:
        return LeaderConnection(
            leader,
            channel=self._channel,
            tasks=self._tasks,
            randomness=self._randomness,
            settings=self._settings,
            hello=self._hello,
            replica_over=self._on_replica_over,
            link_over=self._on_link_over,
        )

    def _hello(self) -> StreamHello | None:
        epoch, cluster_id = self._own_epoch(), self._cluster_id()
        if epoch is None or cluster_id is None:
            return None
        return StreamHello(
            node_id=self._broker_id,
            broker_epoch=epoch,
            directory_id=self._directory_id,
            cluster_id=cluster_id,
        )

    def _on_replica_over(self, replica: ReplicaFetcher) -> None:
        if self._replicas.get(replica.key) is replica:
            del self._replicas[replica.key]

    def _on_link_over(self, link: LeaderConnection) -> None:
        del self._links[link.leader.broker_id]
        self._bytes_received += link.bytes_received
        link.close("no partition is followed there")

    def _unfollow(self, replica: ReplicaFetcher) -> None:
        replica.stop()
        replica.link.remove(replica)
        if not replica.is_working:
            del self._replicas[replica.key]


def _count(link: LeaderConnection, state: FollowState) -> int:
    return sum(1 for replica in link.replicas.values() if replica.state is state)
