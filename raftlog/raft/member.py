"""A member of the quorum: the core, the log on the disk, the connections, and those who wait.

Everything happens in turns of one event loop. A message, a proposal or a tick changes the core and
the log in memory (`_pump`); the writer makes that durable; what rests on it then leaves
(`Outbox.release`), and what is committed and durable is applied. No await lies between reading the
core's state and acting on it.

Any exception in here, or in the state machine, and any failure of the disk but a full one, ends the
member for good: what it would still do could not be trusted (`_fail`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic

from raftlog.raft.core import RaftCore
from raftlog.raft.hello import PROTOCOL, Hello
from raftlog.raft.identity import KnownPeers
from raftlog.raft.interface import (
    Applied,
    ConnectionEvent,
    Outcome,
    PeerStatus,
    QuorumStatus,
    R,
    Refused,
    StateMachine,
)
from raftlog.raft.journal_writer import JournalWriter
from raftlog.raft.keep_alive import KeepAlive
from raftlog.raft.kernel import PickleForbiddenError
from raftlog.raft.log import RaftLog
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
from raftlog.raft.peers import Peers
from raftlog.raft.proposal_router import ProposalRouter
from raftlog.raft.proposals import raise_unless_applied
from raftlog.raft.rules import REGULAR
from raftlog.raft.settings import DISK_RESERVE_BYTES, MemberIdentity, MemberSettings
from raftlog.raft.snapshots import SnapshotManager
from raftlog.raft.status import member_status, peer_statuses
from raftlog.raft.store import QuorumStore
from raftlog.raft.voters import VoterSet
from raftlog.record.errors import (
    BODY_TOO_LARGE,
    NOT_READY,
    STORAGE_FAILED,
)
from raftlog.world import Clock, Disk, Randomness
from raftlog.world.network import Network, RejectedError

CALLBACKS_MAX: Final = 64
STEP_ASIDE_AGAIN_S: Final = 10.0
"""After a leader without room has handed over, until it does so again: others may have none."""

logger = logging.getLogger(__name__)


class RaftMember(Generic[R]):
    """One member, voter or observer. Made by `open`; takes part from `start` on.

    Satisfies `raftlog.raft.Quorum[R]`.
    """

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
        self._outbox = Outbox(log, self._transmit, lambda: self._writer.is_stuck)
        self._core = RaftCore(
            identity.node_id,
            log,
            applied_index,
            host=self,
            clock=clock,
            randomness=randomness,
            timing=settings.timing,
        )
        self._writer = JournalWriter(disk, store, log, clock, self._durable)
        self._peers = Peers(
            network=network, clock=clock, randomness=randomness, handler=self, known=known
        )
        self._keep_alive = KeepAlive(self._core, self._peers, clock, self.send_message)
        self._changes = VoterChanges(self._core, clock, self._hello_of, self._wake)
        self._keeper = SnapshotManager(
            core=self._core,
            log=log,
            store=store,
            disk=disk,
            clock=clock,
            settings=settings,
            state_machine=state_machine,
            writer=self._writer,
            send=self.send_message,
            installed=self._installed,
            failed=self._failed,
        )
        self._desk: ProposalRouter[R] = ProposalRouter(
            core=self._core,
            store=store,
            changes=self._changes,
            clock=clock,
            settings=settings,
            send=self.send_message,
            spawn=self._spawn,
            wake=self._wake,
            request_id=int.from_bytes(randomness.token(6), "big"),
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump_due = False
        self._role: tuple[int | None, int, bool] = (None, 0, False)
        self._step_aside_at = 0.0
        self._failure: str | None = None
        self._closing = False
        self._closed = False
        self._on_failed: list[Callable[[str], None]] = []
        self._on_role: list[Callable[[], None]] = []
        self._on_message: list[Callable[[int, bytes], None]] = []
        self._on_connection: list[Callable[[int, ConnectionEvent], None]] = []
        log.on_voters_changed = self._voters_changed

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
        """Recover what `directory` holds into `state_machine`.

        `initial` are the voters if there is nothing yet: the same on all that begin a cluster
        together, and as the cluster says for one that joins. A log of which this node is the only
        voter is applied at once; any other, as far as its snapshot goes, and on from there when a
        leader says what is committed.
        Raises LogError(STORAGE_FAILED) if what was durable is damaged or missing, DiskError, and
        whatever the state machine raises at what it does not understand.
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
                # Others on this event loop get their turn.
                await clock.sleep(0)
        except BaseException:
            store.close()
            raise
        return member

    def start(self, address: str) -> None:
        """Take part, as a node that the others reach at `address` (`host:port`)."""
        self._address = address
        self._peers.start()
        self._keep_alive.retarget()
        self._spawn(self._writer.run(), "quorum-writer")
        self._spawn(self._tick(), "quorum-tick")
        self._wake()

    # What the node asks

    @property
    def applied_index(self) -> int:
        """Index of the newest applied entry."""
        return self._core.applied_index

    @property
    def leader_id(self) -> int | None:
        """Whom this member takes for the leader."""
        return None if self._failure is not None else self._core.leader_id

    @property
    def term(self) -> int:
        """Raft's term, as far as this member knows."""
        return self._core.term

    @property
    def is_active(self) -> bool:
        """Whether it leads, knows all that was committed, and hears a majority."""
        if self._failure is not None or self._closing:
            return False
        return self._core.is_active and self._core.has_majority()

    @property
    def lacks_room(self) -> bool:
        """Whether its disk is too full to lead, or even to follow what is committed."""
        return self._writer.is_full or self._store.free_bytes() < DISK_RESERVE_BYTES

    @property
    def voters(self) -> VoterSet:
        """The newest voter set in the log."""
        return self._log.voters

    @property
    def rejected_by(self) -> dict[str, RejectedError]:
        """The nodes that do not talk to this one, and why, by address."""
        return self._peers.rejections

    def peers(self) -> dict[int, PeerStatus]:
        """The members connected to this one."""
        return peer_statuses(self._core, self._peers, self._keep_alive)

    def status(self) -> QuorumStatus:
        """The member's present state."""
        return member_status(
            self._core,
            self._store,
            self._writer.sync_times,
            leader_id=self.leader_id,
            is_active=self.is_active,
            failure=self._failure,
        )

    async def propose(self, command: bytes) -> Outcome[R]:
        """Put a command into the log and wait until it is applied here."""
        if len(command) > self._settings.command_bytes_max:
            return Refused(
                BODY_TOO_LARGE,
                f"A metadata change of {len(command)} bytes is over the limit of "
                f"{self._settings.command_bytes_max}.",
            )
        outcome = await self._desk.begin(RequestKind.COMMAND, command)
        if isinstance(outcome, Applied):
            assert outcome.result is not None
            return Applied(outcome.index, outcome.result)
        return outcome

    async def read_barrier(self) -> int:
        """Wait until all is applied that anyone was told of before this call. Raises LogError."""
        raise_unless_applied(await self._desk.barrier())
        return self._core.applied_index

    async def add_voter(self, node_id: int) -> None:
        """Give a connected observer a vote; returns once that is committed. Raises LogError."""
        await self._desk.change(RequestKind.ADD_VOTER, node_id, lambda: node_id in self.voters.ids)

    async def remove_voter(self, node_id: int) -> None:
        """Take a voter's vote; returns once that is committed. Raises LogError."""
        await self._desk.change(
            RequestKind.REMOVE_VOTER, node_id, lambda: node_id not in self.voters.ids
        )

    async def transfer_leadership(self, node_id: int | None) -> None:
        """Let another voter lead; returns once it does. Raises LogError."""
        before = self.leader_id

        def is_done() -> bool:
            now = self.leader_id
            return now == node_id if node_id is not None else now not in (None, before)

        await self._desk.change(RequestKind.TRANSFER, node_id or 0, is_done)

    def send(self, node_id: int, message: bytes) -> bool:
        """Send a control message to a connected member; False if it is not connected."""
        assert len(message) <= CONTROL_BYTES_MAX
        if self._failure is not None:
            return False
        return self._peers.send(node_id, encode_message(Control(self._core.term, message)))

    def forget(self, node_id: int, *, unless: str | None = None) -> None:
        """Let a node without a vote come with another data directory than it is known with here.

        Nothing happens if that is the directory `unless`.
        """
        self._peers.forget(node_id, unless=unless)

    def on_role_changed(self, callback: Callable[[], None]) -> None:
        """Call back when leader, term or `is_active` have changed."""
        _register(self._on_role, callback)

    def on_message(self, handler: Callable[[int, bytes], None]) -> None:
        """Give `handler` the control messages of others."""
        _register(self._on_message, handler)

    def on_connection(self, handler: Callable[[int, ConnectionEvent], None]) -> None:
        """Tell `handler` of connections that begin and end."""
        _register(self._on_connection, handler)

    def on_failed(self, callback: Callable[[str], None]) -> None:
        """Have `callback` told the reason, once, when this member stops for good."""
        _register(self._on_failed, callback)
        if self._failure is not None:
            callback(self._failure)

    async def resign_leadership(self) -> None:
        """If this member leads, let another voter lead, so that nobody need notice its end."""
        if self._failure is None:
            await self._changes.resign_leadership()

    async def close(self) -> None:
        """Make durable what was written, refuse the rest, release the disk."""
        self._closing = True
        self._desk.end(NOT_READY, "The node is stopping.")
        await self._peers.close()
        self._writer.finish()
        for task in sorted(self._tasks, key=lambda task: task.get_name()):
            if task.get_name() != "quorum-writer":
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._closed = True
        await self._keeper.close()
        self._store.close()

    # What the core asks (CoreHost)

    def send_message(self, peer: int, message: Message) -> None:
        """Send once everything in the log is durable."""
        if self._failure is None:
            self._outbox.send(peer, message)

    def apply(self, index: int, term: int, command: bytes) -> None:
        """Apply a committed entry."""
        result: R | None = None
        if command[0] == REGULAR:
            result = self._state_machine.apply(index, command[1:])
        self._desk.applied(index, term, result)

    def snapshot_wanted(self, peer: int) -> None:
        """A peer's next entry is only in the snapshot."""
        self._keeper.send_to(peer)

    # What the connections tell (PeersHandler)

    def hello(self) -> Hello:
        """What this member says of itself."""
        return Hello(
            protocol=PROTOCOL,
            node_id=self._identity.node_id,
            directory_id=self._identity.directory_id,
            cluster_id=self._cluster_id(),
            bootstrap_id=self._identity.bootstrap_id,
            address=self._address,
            software_version=self._identity.software_version,
            voters=self._log.voters,
        )

    def peer_up(self, node_id: int) -> None:
        """A connection to a member has been opened."""
        self._keep_alive.heard(node_id)
        self._outbox.connected(node_id)
        self._guarded(lambda: self._core.peer_up(node_id))
        self._tell_connection(node_id, ConnectionEvent.UP)

    def peer_down(self, node_id: int, *, refused: bool) -> None:
        """The connection to a member has ended; `refused`: and its process is gone."""
        self._outbox.disconnected(node_id)
        self._keep_alive.lost(node_id)
        self._keeper.stop_sending_to(node_id)
        if node_id == self._core.leader_id:
            self._desk.leader_unreachable()

        def lose() -> None:
            self._core.peer_down(node_id)
            if refused:
                self._core.peer_dead(node_id)

        self._guarded(lose)
        event = ConnectionEvent.REFUSED if refused else ConnectionEvent.DOWN
        self._tell_connection(node_id, event)

    def received(self, node_id: int, frame: bytes) -> None:
        """A message from a connected member."""
        if self._failure is not None or self._closing:
            return
        try:
            message = decode_message(frame)
        except MessageError as error:
            logger.error("node %d: %s", node_id, error)
            self._peers.disconnect(node_id, str(error))
            return
        self._guarded(lambda: self._take(node_id, message))

    def _take(self, node_id: int, message: Message) -> None:
        is_installing = self._keeper.is_installing
        if message.term > self.term and not is_installing and not isinstance(message, PreVote):
            # Before it counts as heard: a leader whose time is over must not go by such a sign.
            self._core.hear_term(message.term)
        self._keep_alive.heard(node_id)
        match message:
            case Control(payload=payload):
                for handler in self._on_message:
                    handler(node_id, payload)
            case Ping():
                self._keep_alive.heard_of(node_id, message)
            case Forward():
                self._desk.carry_out(node_id, message)
            case Forwarded():
                self._desk.answered(message)
            case SnapshotChunk():
                self._spawn(self._keeper.received(node_id, message), "quorum-chunk")
            case SnapshotAnswer():
                if self._core.heard_follower(node_id, message.term):
                    self._keeper.answered(node_id, message)
            case _:
                if not is_installing:
                    self._core.receive(node_id, message)
        self._wake()

    # Turns

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(self._settings.timing.tick_s)
            self._desk.tick()
            self._guarded(self._keep_up)
            self._pump()

    def _keep_up(self) -> None:
        if self._keep_alive.is_due():
            self._changes.refresh()
            self._keep_alive.run()
            may_step_aside = self._clock.monotonic() >= self._step_aside_at
            if self._core.is_leader and may_step_aside and self.lacks_room:
                # It refuses every change; another voter may have room.
                self._step_aside_at = self._clock.monotonic() + STEP_ASIDE_AGAIN_S
                self._spawn(self.resign_leadership(), "quorum-step-aside")

    def _wake(self) -> None:
        """Have a turn soon: one for all that this turn of the event loop brings."""
        if not self._pump_due and self._failure is None:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        if self._failure is None and not self._closed:
            self._guarded(self._turn)

    def _turn(self) -> None:
        core = self._core
        if not self._keeper.is_installing:
            core.tick()
            self._desk.advance()
            self._keeper.snapshot_if_due()
            self._keeper.stop_idle_senders()
        self._outbox.release()
        if self._log.lsn > self._log.durable_lsn:
            self._writer.wake()
        if core.applied_index < min(core.commit_index, self._log.durable_index):
            self._wake()
        self._keep_alive.forget_dropped_voters()
        self._tell_role()

    def _durable(self) -> None:
        """The writer has made something durable."""
        if self._failure is None:
            self._outbox.release()
            self._wake()

    def _installed(self, index: int) -> None:
        """A leader's snapshot has replaced the state."""
        self._desk.jumped_to(index)
        self._wake()

    def _tell_role(self) -> None:
        role = (self.leader_id, self.term, self.is_active)
        if role == self._role:
            return
        before, self._role = self._role, role
        if role[:2] != before[:2]:
            logger.info("term %d: the leader is %s", role[1], role[0] or "not known")
            self._desk.leader_changed()
        self._desk.try_parked()
        for callback in self._on_role:
            callback()

    def _tell_connection(self, node_id: int, event: ConnectionEvent) -> None:
        for handler in self._on_connection:
            self._guarded(lambda handler=handler: handler(node_id, event))  # type: ignore[misc]
        self._wake()

    def _voters_changed(self) -> None:
        self._core.refresh_members()
        logger.info("the voters are %s", sorted(self._log.voters.ids))
        if self._address:
            self._keep_alive.retarget()

    def _hello_of(self, node_id: int) -> Hello | None:
        is_own = node_id == self._identity.node_id
        return self.hello() if is_own else self._peers.connected.get(node_id)

    def _transmit(self, peer: int, message: Message) -> None:
        self._peers.send(peer, encode_message(message))

    # Ends

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do a piece of work of which no failure may pass unnoticed."""
        if self._failure is not None:
            return
        try:
            work()
        except (Exception, PickleForbiddenError) as error:
            self._failed(error)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task whose failure is this member's."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        logger.error("the metadata quorum failed", exc_info=error)
        self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        if self._failure is not None:
            return
        self._failure = reason
        self._outbox.clear()
        self._desk.end(STORAGE_FAILED, f"The metadata quorum has stopped: {reason}")
        for changed in self._on_role:
            changed()
        for callback in self._on_failed:
            callback(reason)


def _register(callbacks: list[Any], callback: Any) -> None:
    assert len(callbacks) < CALLBACKS_MAX
    callbacks.append(callback)
