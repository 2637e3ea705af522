"""A cluster without Raft, network or disk: one list is the log, and tests name the leader.

Everything else is real: state machines, controller services, and their messages' bytes. A node that
is *cut off* neither sends nor receives, without notice to any node; one that is *killed* is known
as dead at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from raftlog.controller import ControllerService, RefusalReason
from raftlog.controller.disk_watch import DiskWatch
from raftlog.controller.lead_permit import LeadPermit
from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.commands import (
    Command,
    CreateTopic,
    RegisterBroker,
    decode_command,
    encode_command,
)
from raftlog.metadata.decisions.admin_plans import plan_cluster_settings
from raftlog.metadata.decisions.elections import NO_LOG_END, LogEnd
from raftlog.metadata.image import MetadataImage, PartitionImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.raft import (
    Applied,
    ConnectionEvent,
    Outcome,
    PeerStatus,
    QuorumStatus,
    Refused,
    Role,
    SyncTimes,
    Unknown,
)
from raftlog.raft.voters import Voter, VoterSet
from raftlog.record.errors import DISK_FULL, NO_CONTROLLER
from raftlog.record.types import BrokerId, TopicId
from tests.controller.clock import SteppedClock, settle


class Middle:
    """`Randomness` without any."""

    def token(self, length: int) -> bytes:
        return bytes(length)

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


@dataclass
class FakeQuorum:
    """`RaftMember[ApplyResult]` of one node."""

    cluster: Cluster
    node_id: int
    machine: MetadataStateMachine = field(default_factory=MetadataStateMachine)
    applied_index: int = 0
    leader_id: int | None = None
    term: int = 0
    term_since: float = 0.0
    claims_activity: bool = False
    unapplied: int = 0
    """Entries of the node's log that are not applied yet."""
    handlers: list[Callable[[int, bytes], None]] = field(default_factory=list)
    connection_handlers: list[Callable[[int, ConnectionEvent], None]] = field(default_factory=list)
    role_handlers: list[Callable[[], None]] = field(default_factory=list)

    @property
    def is_active(self) -> bool:
        ages = [peer.last_heard_s for peer in self.peers().values() if peer.is_voter]
        heard = 1 + sum(age <= self.cluster.fallback_s for age in ages)
        return self.claims_activity and heard > len(self.cluster.voters) // 2

    @property
    def voters(self) -> VoterSet:
        return VoterSet(tuple(Voter(n, "localhost", 8000 + n) for n in self.cluster.voters))

    def peers(self) -> dict[int, PeerStatus]:
        return {
            peer: PeerStatus(
                peer,
                "",
                peer in self.cluster.voters,
                None,
                self.cluster.heard_ago_s(self.node_id, peer),
                self.cluster.heard_ago_s(self.node_id, peer),
            )
            for peer in self.cluster.nodes
            if peer != self.node_id and peer not in self.cluster.dead
        }

    def send(self, node_id: int, message: bytes) -> bool:
        voters = self.cluster.voters
        if node_id in self.cluster.dead or (self.node_id not in voters and node_id not in voters):
            return False
        asyncio.get_running_loop().call_soon(self.cluster.deliver, self.node_id, node_id, message)
        return True

    async def propose(self, command: bytes) -> Outcome[ApplyResult]:
        self.cluster.proposals.append(decode_command(command))
        await asyncio.sleep(0)
        plan = self.cluster.outcomes.popleft() if self.cluster.outcomes else "applied"
        if plan == "refused":
            return Refused(DISK_FULL, "no room")
        if self.cluster.leader_id != self.node_id:
            return Refused(NO_CONTROLLER, "not the leader")
        if self.cluster.before_commit is not None:
            self.cluster.before_commit(self.cluster.proposals[-1])
        result = None if plan == "lost" else self.cluster.commit(command)
        if plan in {"lost", "unknown"} or result is None:
            return Unknown("nobody knows")
        return Applied(result.index, result)

    def status(self) -> QuorumStatus:
        index = self.applied_index
        return QuorumStatus(
            role=Role.LEADER if self.leader_id == self.node_id else Role.FOLLOWER,
            leader_id=self.leader_id,
            is_active=self.is_active,
            term=self.term,
            last_index=index + self.unapplied,
            commit_index=index,
            applied_index=index,
            snapshot_index=0,
            journal_bytes=0,
            elections=0,
            syncs=SyncTimes(),
            failure=None,
        )

    async def read_barrier(self) -> int:
        raise NotImplementedError

    async def add_voter(self, node_id: int) -> None:
        raise NotImplementedError

    async def remove_voter(self, node_id: int) -> None:
        raise NotImplementedError

    async def transfer_leadership(self, node_id: int | None) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def on_failed(self, callback: Callable[[str], None]) -> None:
        raise NotImplementedError

    def on_message(self, handler: Callable[[int, bytes], None]) -> None:
        self.handlers.append(handler)

    def on_connection(self, handler: Callable[[int, ConnectionEvent], None]) -> None:
        self.connection_handlers.append(handler)

    def on_role_changed(self, callback: Callable[[], None]) -> None:
        self.role_handlers.append(callback)

    def take_role(self, leader_id: int | None, term: int, *, active: bool) -> None:
        """Have another role, and say so."""
        if term != self.term:
            self.term_since = self.cluster.clock.now
        self.leader_id, self.term, self.claims_activity = leader_id, term, active
        for handler in self.role_handlers:
            handler()

    def catch_up(self) -> ApplyResult | None:
        """Apply the rest of the log; return the last result."""
        result = None
        while self.applied_index < len(self.cluster.log):
            index = self.applied_index + 1
            result = self.machine.apply(index, self.cluster.log[index - 1])
            self.applied_index = index
        return result


@dataclass
class FakeDisk:
    """The disk of one node, which a test makes unwritable."""

    unwritable: set[int]
    node_id: int

    def can_write(self) -> bool:
        return self.node_id not in self.unwritable


@dataclass
class FakeNode:
    """One node, in one life of its process."""

    quorum: FakeQuorum
    service: ControllerService
    fatal: list[str]
    lease: list[tuple[float, bool]] = field(default_factory=list)
    """When the lease began and ended."""
    refusals: list[RefusalReason] = field(default_factory=list)

    @property
    def image(self) -> MetadataImage:
        return self.quorum.machine.image


class Cluster:
    """Nodes 1, 2, ... with `voters` of them. Begin with `start`, end with `close`."""

    def __init__(self, voters: int = 3) -> None:
        self.clock = SteppedClock()
        self.voters = tuple(range(1, voters + 1))
        self.nodes: dict[int, FakeNode] = {}
        self.log: list[bytes] = []
        self.leader_id: int | None = None
        self.term = 0
        self.dead: set[int] = set()
        self.cut_off: set[int] = set()
        self.severed: dict[frozenset[int], float] = {}
        """Pairs of nodes without a connection, and since when."""
        self.heard_s = 0.02
        self.fallback_s = 0.6
        """A leader without messages of a majority for so long is not active."""
        self.outcomes: deque[str] = deque()
        """Of the next proposals: applied, refused, lost (unknown, and never applied), unknown."""
        self.proposals: list[Command] = []
        self.before_commit: Callable[[Command], None] | None = None
        """Called with each proposal of a controller before the log holds the command."""
        self.lagging: set[int] = set()
        """Nodes that apply only on `catch_up`."""
        self.unwritable: set[int] = set()
        """Nodes with heartbeats that report a disk without writes."""
        self.log_ends: dict[int, LogEnd] = {}
        """By node: the end of its log of any partition."""
        self._fenced_at: dict[int, float] = {}

    async def start(self, *others: int) -> None:
        """Start all voters, and these; the first voter leads; all are registered and serve."""
        for node_id in (*self.voters, *others):
            self.boot(node_id)
        await self.elect(self.voters[0])
        for node_id in sorted(self.nodes):
            await self.register(node_id)
        await settle()

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.service.close()

    def boot(self, node_id: int) -> FakeNode:
        """Start a process, connected and not registered."""
        quorum = FakeQuorum(self, node_id)
        fatal: list[str] = []
        permit = LeadPermit(quorum=quorum, clock=self.clock, broker_id=BrokerId(node_id))
        service = ControllerService(
            quorum=quorum,
            state_machine=quorum.machine,
            clock=self.clock,
            randomness=Middle(),
            broker_id=BrokerId(node_id),
            permit=permit,
            on_fatal=fatal.append,
            log_end=lambda _: self.log_ends.get(node_id, NO_LOG_END),
            disk=cast(DiskWatch, FakeDisk(self.unwritable, node_id)),
        )
        node = FakeNode(quorum, service, fatal)
        service.on_lease_changed(lambda valid: node.lease.append((self.clock.now, valid)))
        service.on_refused(lambda reason, _: node.refusals.append(reason))
        quorum.leader_id, quorum.term = self.leader_id, self.term
        quorum.catch_up()
        self.nodes[node_id] = node
        self.dead.discard(node_id)
        service.start()
        self._tell(node_id, ConnectionEvent.UP)
        return node

    async def register(self, node_id: int) -> None:
        """Register a node's present life, through the leader, and notify the node."""
        self.commit_registration(node_id)
        node = self.nodes[node_id]
        node.quorum.catch_up()
        node.service.registered(node.image.brokers[BrokerId(node_id)].broker_epoch)
        await settle()

    def commit_registration(self, node_id: int) -> None:
        """Register a node's present life, without notifying the node."""
        self.commit(
            encode_command(
                RegisterBroker(
                    broker_id=BrokerId(node_id),
                    directory_id=f"directory of {node_id}",
                    incarnation=f"start at {len(self.log) + 1}",
                    host="localhost",
                    port=8000 + node_id,
                    software_version="0.1.0",
                )
            )
        )

    async def elect(self, node_id: int) -> None:
        """Elect another leader, known to all reachable nodes."""
        self.term += 1
        self.leader_id = node_id
        self.nodes[node_id].quorum.catch_up()
        for other, node in self.nodes.items():
            if other == node_id or self.reaches(node_id, other):
                node.quorum.take_role(node_id, self.term, active=other == node_id)
        await settle()

    async def depose(self) -> None:
        """Depose the leader; all nodes but the cut off ones know."""
        self.leader_id = None
        for other, node in self.nodes.items():
            if other not in self.cut_off | self.dead:
                node.quorum.take_role(None, self.term, active=False)
        await settle()

    async def kill(self, node_id: int) -> None:
        """End a process; its address refuses connections, and all other nodes notice."""
        await self.nodes[node_id].service.close()
        self.nodes[node_id].quorum.claims_activity = False
        self.dead.add(node_id)
        if self.leader_id == node_id:
            self.leader_id = None
            await self.depose()
        self._tell(node_id, ConnectionEvent.DOWN)
        self._tell(node_id, ConnectionEvent.REFUSED)
        await settle()

    def commit(self, command: bytes) -> ApplyResult:
        """Append a command to the log; all reachable nodes apply the command."""
        assert self.leader_id is not None
        self.log.append(command)
        result = self.nodes[self.leader_id].quorum.catch_up()
        assert result is not None
        loop = asyncio.get_running_loop()
        for node_id, node in self.nodes.items():
            if node_id in self.lagging | {self.leader_id}:
                continue
            if self.reaches(self.leader_id, node_id):
                loop.call_soon(node.quorum.catch_up)
        for broker in self.image.brokers.values():
            if broker.fenced:
                self._fenced_at.setdefault(broker.broker_id, self.clock.now)
            else:
                self._fenced_at.pop(broker.broker_id, None)
        return result

    def reaches(self, one: int, other: int) -> bool:
        """Whether a message between them arrives."""
        unreachable = self.cut_off | self.dead
        return not {one, other} & unreachable and frozenset((one, other)) not in self.severed

    def heard_ago_s(self, node_id: int, peer: int) -> float:
        """Age of the peer's newest message, of the peer's term or an earlier one."""
        now = self.clock.now
        since = [self.severed.get(frozenset((node_id, peer)), now)]
        if self.nodes[peer].quorum.term > self.nodes[node_id].quorum.term:
            # Any message from the peer now makes the node step down.
            since.append(self.nodes[peer].quorum.term_since)
        return self.heard_s + now - min(since)

    def deliver(self, sender: int, receiver: int, message: bytes) -> None:
        if not self.reaches(sender, receiver):
            return
        for handler in self.nodes[receiver].quorum.handlers:
            handler(sender, message)

    def configure(self, **settings: str) -> None:
        """Set broker configs for the cluster; `_` in a name stands for a dot."""
        values = {name.replace("_", "."): value for name, value in settings.items()}
        command = plan_cluster_settings(self.image, values=values)
        assert self.commit(encode_command(command)).refusal is None

    def create_topic(self, number: int, *replicas: tuple[int, ...]) -> None:
        """A topic t<number> with these replicas."""
        result = self.commit(
            encode_command(
                CreateTopic(
                    topic_id=TopicId(f"{number:032x}"),
                    name=f"t{number}",
                    configs={},
                    assignments=tuple(tuple(BrokerId(b) for b in row) for row in replicas),
                )
            )
        )
        assert result.refusal is None, result

    @property
    def image(self) -> MetadataImage:
        """The leader's image."""
        assert self.leader_id is not None
        return self.nodes[self.leader_id].image

    def row(self, number: int, partition: int = 0) -> PartitionImage:
        return self.image.partition(f"t{number}", partition)

    def leaders(self, number: int) -> list[int]:
        return [row.leader for row in self.image.topic(f"t{number}").partitions]

    def fenced(self) -> set[int]:
        return {broker.broker_id for broker in self.image.brokers.values() if broker.fenced}

    def fenced_at(self, node_id: int) -> float:
        """Since when the broker is fenced."""
        return self._fenced_at[node_id]

    def holders(self) -> set[int]:
        """The nodes with a valid lease."""
        return {
            node_id
            for node_id, node in self.nodes.items()
            if node_id not in self.dead and not node.service.permit.is_cut_off
        }

    def _tell(self, node_id: int, event: ConnectionEvent) -> None:
        for other, node in self.nodes.items():
            if other != node_id and other not in self.dead | self.cut_off:
                for handler in node.quorum.connection_handlers:
                    handler(node_id, event)
                if event is ConnectionEvent.UP:
                    for handler in self.nodes[node_id].quorum.connection_handlers:
                        handler(other, event)
