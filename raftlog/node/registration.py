"""A node enters its cluster by registering its start, and ends on a rejection.

A registration begins a new incarnation of the broker (a new broker epoch). The node repeats it
while the quorum has no leader, postpones it while the disk is full, and ends when the cluster
rejects it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

from raftlog import __version__
from raftlog.controller.messages import RefusalReason
from raftlog.controller.service import ControllerService
from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.commands import ClusterCreated, RegisterBroker
from raftlog.metadata.decisions.liveness import (
    brokers_without_kafka_addresses,
    registration_command,
)
from raftlog.metadata.delta import MetadataDelta
from raftlog.metadata.image import BrokerImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.node.directory import Identity
from raftlog.node.settings import split_address
from raftlog.node.start import Begin, Join, Restart, Start
from raftlog.peer.hello import is_passing
from raftlog.raft import RaftMember
from raftlog.raft.peers import joining
from raftlog.raft.peers.hello import QuorumHello
from raftlog.raft.voters import NO_VOTERS, Voter, VoterSet
from raftlog.record.errors import (
    DISK_FULL,
    ILLEGAL_STATE,
    NO_CONTROLLER,
    OVERLOADED,
    RETRIABLE,
    LogError,
    when_directory_is_lost,
)
from raftlog.record.types import BrokerEpoch, BrokerId
from raftlog.replication.cluster_metadata import propose
from raftlog.world import Clock, Network, Randomness

REGISTRATION_RETRY_S: Final = 0.2
REPORT_S: Final = 10.0
"""Interval of log lines with the same reason for not being registered."""
DISK_FULL_RETRY_S: Final = 2.0
KAFKA_ADDRESS_RETRY_S: Final = 2.0
"""Interval of looks whether all brokers run a release that knows Kafka addresses."""
JOIN_TIMEOUT_S: Final = 30.0
"""How long a joining node looks for its cluster."""
REJECTED_S_MAX: Final = 3.0
"""A node ends after rejections by all reached nodes of the cluster for so long."""
SERVING_TIMEOUT_S: Final = 5.0
"""How long a start waits for its unfencing before serving all the same."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Registration:
    """The registration of one start of a node."""

    def __init__(
        self,
        *,
        node_id: BrokerId,
        quorum: RaftMember[ApplyResult],
        state_machine: MetadataStateMachine,
        controller: ControllerService,
        clock: Clock,
        on_fatal: Callable[[str], None],
    ) -> None:
        """`on_fatal` receives the reason when the cluster rejects the node for good."""
        self._node_id = node_id
        self._quorum = quorum
        self._state_machine = state_machine
        self._controller = controller
        self._clock = clock
        self._on_fatal = on_fatal

    def listen(self) -> None:
        """End the node when the controller rejects its incarnation."""
        self._controller.on_refused(self._rejected)

    async def register(self, command: RegisterBroker) -> BrokerEpoch:
        """Register this start. Retry while no leader responds.

        Raises LogError DISK_FULL without room for the entry, or ILLEGAL_STATE when the cluster
        rejects this node, or each reached node rejects the connection.
        """
        return await _first_of(self._register(command), self._rejected_for_good())

    async def register_when_room(
        self, command: RegisterBroker, on_registered: Callable[[BrokerEpoch], Awaitable[None]]
    ) -> None:
        """Register once the disk has room, then await `on_registered`. Fatal when rejected."""
        while True:
            await self._clock.sleep(DISK_FULL_RETRY_S)
            try:
                await on_registered(await self._register(command))
            except LogError as error:
                if error.entry is DISK_FULL:
                    continue
                self._on_fatal(f"The cluster refuses this node: {error}")
            return

    async def add_kafka_address(self, command: RegisterBroker) -> None:
        """Add the Kafka address to this start's registration, if an older release kept it out.
        Waits until all registered brokers know such addresses. Fatal when rejected."""
        is_logged = False
        while True:
            own = self._own_broker()
            if own is not None and own.incarnation == command.incarnation:
                if own.kafka_host is not None:
                    return
                older = brokers_without_kafka_addresses(self._state_machine.image, self._node_id)
                if not older:
                    try:
                        await self._register(command)
                    except LogError as error:
                        if error.entry is not DISK_FULL:
                            self._on_fatal(f"The cluster refuses this node: {error}")
                            return
                elif not is_logged:
                    is_logged = True
                    logger.warning(
                        "Kafka clients do not find this node yet: node %d runs an older release, "
                        "or did at its last start; upgrade it, or unregister it by "
                        "`raftlog cluster remove-node`",
                        older[0],
                    )
            await self._clock.sleep(KAFKA_ADDRESS_RETRY_S)

    async def wait_unfenced(self) -> None:
        """Wait until the controller has unfenced this node, and its lease is valid. Gives up after
        SERVING_TIMEOUT_S."""
        deadline = self._clock.monotonic() + SERVING_TIMEOUT_S
        while self._clock.monotonic() < deadline:
            broker = self._own_broker()
            if broker is not None and not broker.fenced and not self._controller.permit.is_cut_off:
                return
            await self._clock.sleep(REGISTRATION_RETRY_S / 10)
        logger.warning("serving, although the controller still has this node fenced")

    async def wait_known(self) -> None:
        """Wait until the applied metadata names this node. Before, an unknown topic may merely not
        have been applied yet, and no broker is known."""
        while self._own_broker() is None:
            await self._clock.sleep(REGISTRATION_RETRY_S / 10)

    def forget_directories(self, delta: MetadataDelta) -> None:
        """Forget the data directories of brokers that were unregistered or replaced.

        A known directory would keep out the next node of its id. A delta made of a snapshot shows
        an unregistered broker only as another directory under the same id.
        """
        for broker_id in delta.brokers_gone:
            self._quorum.forget(broker_id)
        brokers = self._state_machine.image.brokers
        for broker_id in delta.brokers:
            self._quorum.forget(broker_id, unless=brokers[broker_id].directory_id)

    async def _register(self, command: RegisterBroker) -> BrokerEpoch:
        reported, report_at = "", 0.0
        while True:
            try:
                if command.kafka_host is not None:
                    # Behind it the image holds all registrations, with the versions they know.
                    await self._quorum.read_barrier()
                known = registration_command(self._state_machine.image, command)
                broker = (await propose(self._quorum, known)).broker()
            except LogError as error:
                # The incarnation makes a repeat harmless.
                if error.entry not in (NO_CONTROLLER, RETRIABLE, OVERLOADED):
                    raise
                if self._quorum.lacks_room:
                    # The command may be committed, but this node lacks room for its entry.
                    raise LogError(DISK_FULL, "The disk is full.") from error
                reason, now = self._missing_voters() or str(error), self._clock.monotonic()
                if reason != reported or now >= report_at:
                    logger.info("not registered yet: %s", reason)
                    reported, report_at = reason, now + REPORT_S
                await self._clock.sleep(REGISTRATION_RETRY_S)
            else:
                return broker.broker_epoch

    async def _rejected_for_good(self) -> NoReturn:
        """Raise LogError once all nodes reached have rejected this one for a while."""
        since: float | None = None
        while True:
            now = self._clock.monotonic()
            rejections = self._quorum.rejected_by.values()
            lasting = [error for error in rejections if not is_passing(error)]
            if not lasting or self._quorum.peers():
                since = None
            elif since is None:
                since = now
            elif now - since >= REJECTED_S_MAX:
                raise LogError(ILLEGAL_STATE, lasting[0].message)
            await self._clock.sleep(REGISTRATION_RETRY_S)

    def _own_broker(self) -> BrokerImage | None:
        return self._state_machine.image.brokers.get(self._node_id)

    def _missing_voters(self) -> str:
        reached = len(self._quorum.peers())
        others = len(self._quorum.voters.ids - {self._node_id})
        rejections = "; ".join(
            f"{where}: {error.message}" for where, error in sorted(self._quorum.rejected_by.items())
        )
        return f"{reached} of {others} other voters are reached. {rejections}".strip()

    def _rejected(self, reason: RefusalReason, message: str) -> None:
        self._on_fatal(f"The controller refuses this node ({reason.name.lower()}): {message}")


async def create_cluster(
    quorum: RaftMember[ApplyResult], clock: Clock, randomness: Randomness
) -> None:
    """Give a new cluster its id. The active member of a quorum without one calls this."""
    created = ClusterCreated(cluster_id=randomness.token(16).hex(), created_ms=clock.time_ms())
    try:
        await propose(quorum, created)
    except LogError as error:
        # Another member leads by now, and does the same.
        logger.info("the cluster is not created yet: %s", error)


async def find_cluster(
    start: Start, identity: Identity, address: str, network: Network, clock: Clock
) -> tuple[str | None, VoterSet]:
    """The cluster's id, if known, and the first voters of a new journal.

    `address` (`host:port`) is where other nodes reach this one. Raises LogError if this node
    already is a voter of the cluster to join.
    """
    match start:
        case Begin(voters=None):
            host, port = split_address(address)
            alone = Voter(identity.node_id, host, port, identity.directory_id)
            return None, VoterSet((alone,))
        case Begin(voters=VoterSet() as voters):
            return None, voters
        case Join(addresses=addresses):
            hello = QuorumHello(
                node_id=identity.node_id,
                directory_id=identity.directory_id,
                cluster_id=None,
                bootstrap_id=None,
                address=address,
                software_version=__version__,
                voters=NO_VOTERS,
            )
            theirs = await joining.find_cluster(
                network, addresses, hello, clock=clock, timeout_s=JOIN_TIMEOUT_S
            )
            if theirs.voters.find(identity.node_id) is not None:
                # With an empty log the voter would vote against entries that it has acknowledged.
                raise LogError(
                    ILLEGAL_STATE,
                    f"Node {identity.node_id} has a vote in this cluster, and its log is in "
                    "another data directory. Start it with that one. "
                    f"{when_directory_is_lost(identity.node_id)}",
                )
            return theirs.cluster_id, theirs.voters
        case Restart():
            return None, NO_VOTERS
    raise AssertionError(start)


async def _first_of(*works: Coroutine[Any, Any, T]) -> T:
    """Run works until the first has ended. Return its result or raise its error."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return next(iter(done)).result()
