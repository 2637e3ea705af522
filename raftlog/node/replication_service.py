"""The replication of a node has replicas, streams, ISR, repair and forwarding.

To start, `open` the replicas, then `join` (report possible losses, then begin replication). The
node must not be electable before `join` has returned. Until then ISR and ELR may count on records
that were lost in a power cut. To stop, `close`, then close the logs.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from raftlog.controller.lead_permit import LeadPermit
from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.configs.broker import replica_lag_max_s
from raftlog.metadata.configs.topic import throttled_rate
from raftlog.metadata.delta import MetadataDelta
from raftlog.metadata.image import BrokerImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.peer.tasks import TaskGroup
from raftlog.raft import RaftMember
from raftlog.record.coordinators import TRANSACTIONS_TOPIC
from raftlog.record.types import BrokerEpoch, BrokerId, PartitionId, TopicId
from raftlog.replication.cluster_metadata import ClusterMetadata, CollectLogEnds
from raftlog.replication.leader.isr import IsrKeeper
from raftlog.replication.manager import ReplicaManager, ReplicationStatus, count_led
from raftlog.replication.partition import Host
from raftlog.replication.repair import Repairs
from raftlog.replication.replica import TopicSettings
from raftlog.replication.streams.follower_streams import FollowerStreams
from raftlog.replication.streams.leader_streams import LeaderStreams
from raftlog.routing.forwarding import Forwarder
from raftlog.routing.forwarding_server import ForwardingServer
from raftlog.routing.leader_gate import LeaderGate
from raftlog.routing.router import PartitionRouter
from raftlog.storage.manager import LogManager
from raftlog.world import Clock, Network, Randomness


class ReplicationService:
    """All parts between a node's metadata and its logs. Lives in the event loop."""

    def __init__(
        self,
        *,
        state_machine: MetadataStateMachine,
        quorum: RaftMember[ApplyResult],
        logs: LogManager,
        settings: TopicSettings,
        broker_id: BrokerId,
        directory_id: str,
        permit: LeadPermit,
        gate: LeaderGate,
        unwritable: Callable[[], Set[BrokerId]],
        log_ends: CollectLogEnds,
        clock: Clock,
        randomness: Randomness,
        network: Network,
        on_fatal: Callable[[str], None],
    ) -> None:
        """The node's coordinators register with the `gate`. `unwritable` returns the brokers with
        unwritable disks, as known here. `log_ends` queries the brokers, before unclean elections.
        `on_fatal` gets the reason when the node must end."""
        self._state_machine = state_machine
        self._broker_id = broker_id
        self._tasks = TaskGroup(on_fatal)

        def own_epoch() -> BrokerEpoch | None:
            return permit.broker_epoch

        def broker(broker_id: BrokerId) -> BrokerImage | None:
            return state_machine.image.brokers.get(broker_id)

        def cluster_id() -> str | None:
            return state_machine.image.cluster_id

        self.streams = FollowerStreams(
            network=network,
            clock=clock,
            randomness=randomness,
            broker_id=broker_id,
            directory_id=directory_id,
            cluster_id=cluster_id,
            own_epoch=own_epoch,
            on_fatal=on_fatal,
        )
        self.replicas = ReplicaManager(
            state_machine,
            logs,
            settings,
            Host(
                broker_id=broker_id,
                clock=clock,
                cluster_clock=logs.cluster_clock,
                permit=permit,
                brokers=lambda: state_machine.image.brokers,
                on_isr_change_due=self._propose_isr,
                confirm=quorum.read_barrier,
                next_producer_id=lambda: state_machine.image.next_producer_id,
                newest_coordinator=lambda partition: state_machine.image.newest_leader_epoch(
                    TRANSACTIONS_TOPIC, partition
                ),
            ),
            self.streams,
            on_fatal=on_fatal,
        )
        self.feeds = LeaderStreams(
            network=network,
            clock=clock,
            broker_id=broker_id,
            directory_id=directory_id,
            cluster_id=cluster_id,
            own_epoch=own_epoch,
            brokers=broker,
            find=self.replicas.replica,
            on_fatal=on_fatal,
            adding_bytes_per_s=lambda: throttled_rate(state_machine.image.cluster_settings),
        )
        self.metadata = ClusterMetadata(
            state_machine=state_machine,
            quorum=quorum,
            broker_id=broker_id,
            randomness=randomness,
            settings=settings,
            settled=self.replicas.settled,
            unwritable=unwritable,
            log_ends=log_ends,
        )
        self.isr = IsrKeeper(
            quorum=quorum,
            image=lambda: state_machine.image,
            broker_id=broker_id,
            clock=clock,
            led=self.replicas.led,
            lag_max_s=lambda: replica_lag_max_s(state_machine.image.cluster_settings),
            on_failed=on_fatal,
        )
        self._forwarder = Forwarder(
            network,
            clock=clock,
            node_id=broker_id,
            cluster_id=cluster_id,
            broker=broker,
            on_fatal=on_fatal,
        )
        self.repairs = Repairs(
            replicas=self.replicas,
            broker_id=broker_id,
            clock=clock,
            fail_replicas=self.metadata.fail_replicas,
            read_replica=self._forwarder.read_replica,
            on_fatal=on_fatal,
        )
        self.forwarding = ForwardingServer(
            self.replicas,
            gate,
            network=network,
            clock=clock,
            node_id=broker_id,
            cluster_id=cluster_id,
            on_fatal=on_fatal,
        )
        self.partitions = PartitionRouter(
            self.replicas,
            broker_id=broker_id,
            max_message_bytes=lambda topic: settings.topic_config(topic).max_message_bytes,
            gate=gate,
            forwarder=self._forwarder,
        )

    async def open(self) -> None:
        """Open all replicas, and apply metadata changes from now on."""
        await self.replicas.start()
        # After the replicas, because this callback needs their new roles.
        self._state_machine.subscribe(self._applied)

    async def join(self) -> None:
        """Report possible losses to the metadata, and begin replication."""
        await self.repairs.report_losses()
        self.feeds.start()
        self.forwarding.start()
        self._tasks.spawn(self.isr.run(), "isr-keeper")

    async def close(self) -> None:
        """Stop serving, streaming and following."""
        await self._tasks.close()
        await self.isr.close()
        await self.repairs.close()
        self._forwarder.close()
        await self.replicas.close()
        await self.forwarding.close()
        await self.feeds.close()
        await self.streams.close()

    def status(self) -> ReplicationStatus:
        """Sums over all replicas, for metrics."""
        replicas = self.replicas
        led = count_led(replicas.led())
        return ReplicationStatus(
            isr_shrinks=replicas.isr_shrinks,
            isr_expands=replicas.isr_expands,
            bytes_in=self.streams.bytes_received,
            bytes_out=self.feeds.bytes_sent,
            leaders_connected=self.streams.connected_count,
            followers_connected=self.feeds.session_count,
            lag_records=led.lag_records,
            under_min_isr=led.under_min_isr,
            at_min_isr=led.at_min_isr,
            offline=replicas.offline_count,
            opening=replicas.opening_count,
            distrusted=sum(replica.loss_gate.may_have_lost_data for replica in replicas.replicas()),
            repairs=self.repairs.under_way,
            repairs_postponed=self.repairs.postponed,
            requests_forwarded=self._forwarder.requests,
            requests_taken=self.forwarding.requests,
        )

    def _propose_isr(self, topic_id: TopicId, number: PartitionId) -> None:
        partition = self.replicas.replica(topic_id, number)
        if partition is not None:
            self.isr.maybe_propose(partition)

    def _applied(self, delta: MetadataDelta) -> None:
        for broker_id in (*delta.brokers, *delta.brokers_gone):
            self.feeds.broker_changed(broker_id)
        self.partitions.on_metadata_applied()
