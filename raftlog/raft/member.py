"""A member of the quorum, with its core, log, connections and pending requests.

Everything happens in turns of one event loop. A message, a proposal or a tick changes the core and
the log in memory (`_pump`). The writer makes the change durable. Then messages that rest on it
leave (`Outbox.release`), and entries that are committed and durable are applied. No await lies
between reading the core's state and acting on it.

Any exception in this module or in the state machine ends the member for good (`_fail`), since its
further actions could not be trusted. So does any failure of the disk except a full disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Generic

from raftlog.peer.tasks import TaskGroup
from raftlog.raft.core import RaftCore
from raftlog.raft.interface import (
    DISK_RESERVE_BYTES,
    Applied,
    ConnectionEvent,
    MemberIdentity,
    MemberSettings,
    Outcome,
    PeerStatus,
    QuorumStatus,
    R,
    Refused,
    StateMachine,
)
from raftlog.raft.kernel import PickleForbiddenError
from raftlog.raft.log.journal_writer import JournalWriter
from raftlog.raft.log.log import REGULAR, RaftLog
from raftlog.raft.log.store import QuorumStore
from raftlog.raft.membership import VoterChanges
from raftlog.raft.messages import (
    CONTROL_BYTES_MAX,
    Control,
    Forward,
    Forwarded,
    Message,
    MessageError,
    Ping,
    PreVote,
    RequestKind,
    SnapshotAnswer,
    SnapshotChunk,
    decode_message,
    encode_message,
)
from raftlog.raft.outbox import Outbox
from raftlog.raft.peers.hello import QuorumHello
from raftlog.raft.peers.identity import KnownPeers
from raftlog.raft.peers.keep_alive import KeepAlive
from raftlog.raft.peers.peers import Peers
from raftlog.raft.proposals.proposals import raise_unless_applied
from raftlog.raft.proposals.router import ProposalRouter
from raftlog.raft.snapshots.snapshots import SnapshotManager
from raftlog.raft.status import member_status, peer_statuses
from raftlog.raft.voters import VoterSet
from raftlog.record.errors import (
    BODY_TOO_LARGE,
    NOT_READY,
    STORAGE_FAILED,
)
from raftlog.world import Clock, Disk, Randomness
from raftlog.world.network import Network, RejectedError

CALLBACKS_MAX: Final = 64
RESIGN_INTERVAL_S: Final = 10.0
"""Seconds between two resignations of a leader without room on its disk. Other voters may have
none."""

logger = logging.getLogger(__name__)


class RaftMember(Generic[R]):
    """One member of the quorum, voter or observer. Made by `open`. Takes part from `start` on."""

    def __init__(
        self,
        *,
        disk: Disk,
        store: QuorumStore,
        state_machine: StateMachine[R],
        log: RaftLog,
        applied_index: int,
        known: KnownPeers,
        identity: MemberIdentity,
        network: Network,
        clock: Clock,
        randomness: Randomness,
        settings: MemberSettings,
        cluster_id: Callable[[], str | None],
    ) -> None:
        self._disk = disk
        self._store = store
        self._state_machine = state_machine
        self._log = log
        self._identity = identity
        self._clock = clock
        self._settings = settings
        self._cluster_id = cluster_id
        self._address = ""
        self._tasks = TaskGroup(self._fail)
        self._writing = TaskGroup(self._fail)
        self._outbox = Outbox(log, self._transmit, lambda: self._writer.is_stuck)
        self._core = RaftCore(
            identity.node_id,
            log,
            applied_index,
            send=self.send_message,
            apply=self.apply,
            snapshot_wanted=self.snapshot_wanted,
            clock=clock,
            randomness=randomness,
            timing=settings.timing,
        )
        self._writer = JournalWriter(disk, store, log, clock, self._on_durable)
        self._peers = Peers(
            network=network,
            clock=clock,
            randomness=randomness,
            handler=self,
            known=known,
            on_fatal=self._fail,
        )
        self._keep_alive = KeepAlive(self._core, self._peers, clock)
        self._changes = VoterChanges(self._core, clock, self._hello_of, self._wake)
        self._snapshots = self._new_snapshots()
        self._router = self._new_router(int.from_bytes(randomness.token(6), "big"))
        self._pump_due = False
        self._role: tuple[int | None, int, bool] = (None, 0, False)
        self._resign_at = 0.0
        self._failure: str | None = None
        self._closing = False
        self._closed = False
        self._on_failed: list[Callable[[str], None]] = []
        self._on_role: list[Callable[[], None]] = []
        self._on_message: list[Callable[[int, bytes], None]] = []
        self._on_connection: list[Callable[[int, ConnectionEvent], None]] = []
        log.on_voters_changed(self._voters_changed)

    def _new_snapshots(self) -> SnapshotManager:
        return SnapshotManager(
            core=self._core,
            log=self._log,
            store=self._store,
            disk=self._disk,
            clock=self._clock,
            settings=self._settings,
            state_machine=self._state_machine,
            writer=self._writer,
            send=self.send_message,
            installed=self._on_installed,
            failed=self._failed,
        )

    def _new_router(self, request_id: int) -> ProposalRouter[R]:
        return ProposalRouter(
            core=self._core,
            store=self._store,
            changes=self._changes,
            clock=self._clock,
            settings=self._settings,
            send=self.send_message,
            spawn=self._tasks.spawn,
            wake=self._wake,
            request_id=request_id,
        )

    @classmethod
    async def open(
        cls,
        *,
        disk: Disk,
        directory: str,
        initial: VoterSet,
        state_machine: StateMachine[R],
        identity: MemberIdentity,
        network: Network,
        clock: Clock,
        randomness: Randomness,
        cluster_id: Callable[[], str | None],
        settings: MemberSettings | None = None,
    ) -> RaftMember[R]:
        """Recover the log and snapshot in `directory`, and `state_machine` from these.

        `initial` are the voters if the directory is empty. They are the same on all nodes that
        start a cluster together, and the cluster's voters for a node that joins. A log with this
        node as the only voter is applied at once. Any other log is applied as far as its snapshot
        goes, and further when a leader sends its commit index. Raises LogError(STORAGE_FAILED) if
        durable data is damaged or missing, DiskError, and the state machine's errors at a snapshot
        or command that it cannot read.
        """
        store = QuorumStore(disk, directory)
        try:
            loaded = await disk.run(lambda: store.load(initial))
            log = RaftLog(loaded)
            applied_index = log.first_index
            restored = await disk.run(store.read_snapshot)
            if restored is not None:
                meta, pieces = restored
                install = await disk.run(lambda: state_machine.restore(meta.index, pieces))
                install()
                applied_index = meta.index
            known = await KnownPeers.open(disk, directory)
            member = cls(
                disk=disk,
                store=store,
                state_machine=state_machine,
                log=log,
                applied_index=applied_index,
                known=known,
                identity=identity,
                network=network,
                clock=clock,
                randomness=randomness,
                settings=settings or MemberSettings(),
                cluster_id=cluster_id,
            )
            is_behind = True
            while is_behind:
                is_behind = member._core.apply_durable()
                # Other tasks of the event loop get their turn.
                await clock.sleep(0)
        except BaseException:
            store.close()
            raise
        return member

    def start(self, address: str) -> None:
        """Take part. `address` (`host:port`) is this node's listener for its peers."""
        self._address = address
        self._peers.start()
        self._keep_alive.retarget()
        self._writing.spawn(self._writer.run(), "quorum-writer")
        self._tasks.spawn(self._tick(), "quorum-tick")
        self._wake()

    # State

    @property
    def applied_index(self) -> int:
        """Index of the newest applied entry. 0 without any."""
        return self._core.applied_index

    @property
    def leader_id(self) -> int | None:
        """The leader known to this member, or None while unknown. May be out of date."""
        return None if self._failure is not None else self._core.leader_id

    @property
    def term(self) -> int:
        """Raft's term, as far as this member knows. Never falls."""
        return self._core.term

    @property
    def is_active(self) -> bool:
        """Whether this member leads, has every committed entry, and is not isolated.

        It has applied an entry of its current term, and heard from a majority within the fallback
        timeout. Only then does its node act as the controller. Another member may nevertheless have
        become active already, so commands name the epochs that they were decided on.
        """
        if self._failure is not None or self._closing:
            return False
        return self._core.is_active and self._core.has_majority()

    @property
    def lacks_room(self) -> bool:
        """Whether its disk is too full to lead, or even to follow."""
        return self._writer.is_full or self._store.free_bytes() < DISK_RESERVE_BYTES

    @property
    def voters(self) -> VoterSet:
        """The newest voter set in this member's log, committed or not."""
        return self._log.voters

    @property
    def rejected_by(self) -> dict[str, RejectedError]:
        """Nodes that reject this node's connections, by address, with their reasons."""
        return self._peers.rejections

    def peers(self) -> dict[int, PeerStatus]:
        """Members connected to this member, by node id. Never this member itself."""
        return peer_statuses(self._core, self._peers, self._keep_alive)

    def status(self) -> QuorumStatus:
        """The member's present state, for operators and metrics."""
        return member_status(
            self._core,
            self._store,
            leader_id=self.leader_id,
            is_active=self.is_active,
            syncs=self._writer.sync_times,
            failure=self._failure,
        )

    # Requests

    async def propose(self, command: bytes) -> Outcome[R]:
        """Append a command to the log and wait until it is applied here.

        If the wait is cancelled, the command is not withdrawn and its outcome is unknown.
        """
        if len(command) > self._settings.command_bytes_max:
            return Refused(
                BODY_TOO_LARGE,
                f"A metadata change of {len(command)} bytes is over the limit of "
                f"{self._settings.command_bytes_max}.",
            )
        outcome = await self._router.submit(RequestKind.COMMAND, command)
        if isinstance(outcome, Applied):
            assert outcome.result is not None
            return Applied(outcome.index, outcome.result)
        return outcome

    async def read_barrier(self) -> int:
        """Wait until every change acknowledged before this call is applied here.

        The barrier writes nothing and needs no room on any disk. All callers share a round of
        heartbeats. Returns the applied index. Raises LogError if no leader confirms it in time.
        """
        raise_unless_applied(await self._router.barrier())
        return self._core.applied_index

    async def add_voter(self, node_id: int) -> None:
        """Give a connected observer a vote. Returns once the change is committed.

        Any member forwards the request to the leader. Raises LogError with ILLEGAL_STATE (the node
        has a vote, is not connected, does not catch up, or another change is under way),
        NO_CONTROLLER (there is no leader, and nothing was done), or RETRIABLE (outcome unknown,
        read the voters).
        """
        await self._router.change(
            RequestKind.ADD_VOTER, node_id, lambda: node_id in self.voters.ids
        )

    async def remove_voter(self, node_id: int) -> None:
        """Remove a voter's vote. The node stays as an observer. Raises as `add_voter` does."""
        await self._router.change(
            RequestKind.REMOVE_VOTER, node_id, lambda: node_id not in self.voters.ids
        )

    async def transfer_leadership(self, node_id: int | None) -> None:
        """Transfer leadership to a voter. None stands for the voter with the newest log.

        Returns once the voter leads, or at once if it already leads. Raises as `add_voter` does.
        """
        before = self.leader_id

        def is_done() -> bool:
            now = self.leader_id
            return now == node_id if node_id is not None else now not in (None, before)

        await self._router.change(RequestKind.TRANSFER, node_id or 0, is_done)

    def send(self, node_id: int, message: bytes) -> bool:
        """Send a control message (at most 1 MiB) to a connected member. Never blocks.

        Returns False if the member is not connected. True promises nothing, since the message is
        lost with its connection.
        """
        assert len(message) <= CONTROL_BYTES_MAX
        if self._failure is not None:
            return False
        return self._peers.send(node_id, encode_message(Control(self._core.term, message)))

    def forget(self, node_id: int, *, unless: str | None = None) -> None:
        """Accept another data directory of a node without a vote from now on.

        Nothing happens if its known directory is `unless`.
        """
        self._peers.forget(node_id, unless=unless)

    def on_role_changed(self, callback: Callable[[], None]) -> None:
        """Call back, from the event loop, when leader, term or `is_active` have changed."""
        _register(self._on_role, callback)

    def on_message(self, handler: Callable[[int, bytes], None]) -> None:
        """Call `handler` with each control message, and its sender's node id."""
        _register(self._on_message, handler)

    def on_connection(self, handler: Callable[[int, ConnectionEvent], None]) -> None:
        """Call `handler` when a connection to another member begins or ends."""
        _register(self._on_connection, handler)

    def on_failed(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the reason, once, when this member stops for good."""
        _register(self._on_failed, callback)
        if self._failure is not None:
            callback(self._failure)

    async def resign_leadership(self) -> None:
        """If this member leads, transfer leadership, so that its stop interrupts no client."""
        if self._failure is None:
            await self._changes.resign_leadership()

    async def close(self) -> None:
        """Make the log durable, refuse pending requests, release the disk."""
        self._closing = True
        self._router.end(NOT_READY, "The node is stopping.")
        await self._peers.close()
        self._writer.finish()
        await self._tasks.close()
        await self._writing.wait()
        self._closed = True
        await self._snapshots.close()
        self._store.close()

    # Callbacks of the core

    def send_message(self, peer: int, message: Message) -> None:
        """Send a message once everything in the log is durable."""
        if self._failure is None:
            self._outbox.send(peer, message)

    def apply(self, index: int, term: int, command: bytes) -> None:
        """Apply a committed entry."""
        result: R | None = None
        if command[0] == REGULAR:
            result = self._state_machine.apply(index, command[1:])
        self._router.applied(index, term, result)

    def snapshot_wanted(self, peer: int) -> None:
        """Send the snapshot to a peer that needs it for its next entry."""
        self._snapshots.send_to(peer)

    # Callbacks of the connections

    def hello(self) -> QuorumHello:
        """This member's facts for the hello."""
        return QuorumHello(
            node_id=self._identity.node_id,
            directory_id=self._identity.directory_id,
            cluster_id=self._cluster_id(),
            bootstrap_id=self._identity.bootstrap_id,
            address=self._address,
            software_version=self._identity.software_version,
            voters=self._log.voters,
        )

    def ping(self, node_id: int) -> None:
        """Send a sign of life to a peer."""
        self._guarded(lambda: self.send_message(node_id, self._keep_alive.ping()))

    def peer_up(self, node_id: int) -> None:
        """Take note of a new connection to a member."""
        self._keep_alive.heard(node_id)
        self._outbox.connected(node_id)
        self._guarded(lambda: self._core.peer_up(node_id))
        self._notify_connection(node_id, ConnectionEvent.UP)

    def peer_down(self, node_id: int, *, refused: bool) -> None:
        """Take note that a connection has ended. With `refused`, the process is gone."""
        self._outbox.disconnected(node_id)
        self._keep_alive.lost(node_id)
        self._snapshots.stop_sending_to(node_id)
        if node_id == self._core.leader_id:
            self._router.leader_unreachable()

        def lose() -> None:
            self._core.peer_down(node_id)
            if refused:
                self._core.peer_dead(node_id)

        self._guarded(lose)
        event = ConnectionEvent.REFUSED if refused else ConnectionEvent.DOWN
        self._notify_connection(node_id, event)

    def received(self, node_id: int, frame: bytes) -> None:
        """Handle a message from a connected member."""
        if self._failure is not None or self._closing:
            return
        try:
            message = decode_message(frame)
        except MessageError as error:
            logger.error("node %d: %s", node_id, error)
            self._peers.disconnect(node_id, str(error))
            return
        self._guarded(lambda: self._handle(node_id, message))

    def _handle(self, node_id: int, message: Message) -> None:
        is_installing = self._snapshots.is_installing
        if message.term > self.term and not is_installing and not isinstance(message, PreVote):
            # The sender does not count as heard yet, because a deposed leader must not count it for
            # itself.
            self._core.hear_term(message.term)
        self._keep_alive.heard(node_id)
        match message:
            case Control(payload=payload):
                for handler in self._on_message:
                    handler(node_id, payload)
            case Ping():
                self._keep_alive.learn_voters(node_id, message)
            case Forward():
                self._router.handle_forwarded(node_id, message)
            case Forwarded():
                self._router.answered(message)
            case SnapshotChunk():
                self._tasks.spawn(self._snapshots.received(node_id, message), "quorum-chunk")
            case SnapshotAnswer():
                if self._core.heard_follower(node_id, message.term):
                    self._snapshots.answered(node_id, message)
            case _:
                if not is_installing:
                    self._core.receive(node_id, message)
        self._wake()

    # Turns

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(self._settings.timing.tick_s)
            self._router.tick()
            self._guarded(self._run_periodic)
            self._pump()

    def _run_periodic(self) -> None:
        if self._keep_alive.is_due():
            self._changes.refresh()
            self._keep_alive.run()
            may_resign = self._clock.monotonic() >= self._resign_at
            if self._core.is_leader and may_resign and self.lacks_room:
                # This leader refuses every change. Another voter may have room.
                self._resign_at = self._clock.monotonic() + RESIGN_INTERVAL_S
                self._tasks.spawn(self.resign_leadership(), "quorum-resign")

    def _wake(self) -> None:
        """Schedule one pump for everything that this turn of the event loop brings."""
        if not self._pump_due and self._failure is None:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        if self._failure is None and not self._closed:
            self._guarded(self._advance)

    def _advance(self) -> None:
        core = self._core
        if not self._snapshots.is_installing:
            core.tick()
            self._router.advance()
            self._snapshots.snapshot_if_due()
            self._snapshots.stop_idle_senders()
        self._outbox.release()
        if self._log.lsn > self._log.durable_lsn:
            self._writer.wake()
        if core.applied_index < min(core.commit_index, self._log.durable_index):
            self._wake()
        self._keep_alive.forget_dropped_voters()
        self._notify_role()

    def _on_durable(self) -> None:
        """Called by the writer when further records are durable."""
        if self._failure is None:
            self._outbox.release()
            self._wake()

    def _on_installed(self, index: int) -> None:
        """Called when a leader's snapshot has replaced the state."""
        self._router.snapshot_installed(index)
        self._wake()

    def _notify_role(self) -> None:
        role = (self.leader_id, self.term, self.is_active)
        if role == self._role:
            return
        before, self._role = self._role, role
        if role[:2] != before[:2]:
            logger.info("term %d, the leader is %s", role[1], role[0] or "unknown")
            self._router.leader_changed()
        self._router.retry_parked()
        for callback in self._on_role:
            callback()

    def _notify_connection(self, node_id: int, event: ConnectionEvent) -> None:
        for handler in self._on_connection:
            self._guarded(lambda handler=handler: handler(node_id, event))  # type: ignore[misc]
        self._wake()

    def _voters_changed(self) -> None:
        logger.info("the voters are %s", sorted(self._log.voters.ids))
        if self._address:
            self._keep_alive.retarget()

    def _hello_of(self, node_id: int) -> QuorumHello | None:
        is_own = node_id == self._identity.node_id
        return self.hello() if is_own else self._peers.connected.get(node_id)

    def _transmit(self, peer: int, message: Message) -> None:
        self._peers.send(peer, encode_message(message))

    # Ends

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a piece of work. Any exception ends this member."""
        if self._failure is not None:
            return
        try:
            work()
        except (Exception, PickleForbiddenError) as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        logger.error("the metadata quorum failed", exc_info=error)
        self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        if self._failure is not None:
            return
        self._failure = reason
        self._outbox.clear()
        self._router.end(STORAGE_FAILED, f"The metadata quorum has stopped: {reason}")
        for changed in self._on_role:
            changed()
        for callback in self._on_failed:
            callback(reason)


def _register(callbacks: list[Any], callback: Any) -> None:
    assert len(callbacks) < CALLBACKS_MAX
    callbacks.append(callback)
