"""The active controller receives heartbeats, decides, and proposes one command after the other.

A *controller term* is the time in which this node is the active controller, within one Raft term.
State about brokers is kept per controller term, and each proposal first checks for the term's end.
A replaced controller that does not know of its replacement cannot commit. As its commands name
epochs, at worst its proposals are in vain.

Each step examines the whole table of sessions and the present image. Interrupted work (the end of a
term, an unknown outcome) is not remembered but found again in the image.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Set
from functools import partial
from typing import Final, Protocol, TypeAlias

from msgspec import UNSET

from raftlog.controller.log_ends import LogEndQueries, LogEndQuery
from raftlog.controller.messages import (
    UNWRITABLE_MAX,
    Heartbeat,
    HeartbeatAnswer,
    HeartbeatRefusal,
    HeartbeatReply,
    RefusalReason,
    granted_timeout_ms,
)
from raftlog.controller.partition_work import PartitionWork
from raftlog.controller.sessions import Action, DeadBrokers, Decision, Sessions
from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.apply.partitions import PartitionsChanged
from raftlog.metadata.commands import (
    AlterClusterSettings,
    Command,
    FenceBroker,
    encode_command,
)
from raftlog.metadata.configs.broker import SESSION_TIMEOUT, lease_bound_change
from raftlog.metadata.decisions.elections import plan_elections
from raftlog.metadata.decisions.liveness import (
    plan_controlled_shutdown,
    plan_fencing,
    plan_unfencing,
)
from raftlog.metadata.delta import MetadataDelta
from raftlog.metadata.image import BrokerImage, MetadataImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.raft import Applied, ConnectionEvent, RaftMember, Refused, Unknown
from raftlog.record.types import BrokerId
from raftlog.world import Backoff, Clock, Randomness, Wakeup

BACKOFF: Final = Backoff(0.05, 1.0)
"""Pauses after failed proposals, of which chance takes up to half away."""
PLAN_ROUNDS_MAX: Final = 10
"""Most successive plans for one purpose. Stale changes are planned again, but other work needs a
turn."""
CATCH_UP_S: Final = 0.01
"""Seconds between two checks whether a new term has applied the log before its start."""
CONFIRMATION_S: Final = 0.02
"""Seconds between two reads of the voters' confirmations. With many brokers, heartbeats come more
often."""

logger = logging.getLogger(__name__)


_Plan: TypeAlias = Callable[[MetadataImage], Iterator[Command]]


class _BrokerPlan(Protocol):
    """A plan about one broker. It elects `unwritable` brokers only if no other can lead."""

    def __call__(
        self, image: MetadataImage, broker_id: BrokerId, /, *, unwritable: Set[BrokerId]
    ) -> Iterator[Command]: ...


class _TermEndedError(Exception):
    """The controller term has ended, or another has begun. Never leaves this module."""


class _NotProposedError(Exception):
    """A proposal failed, or may have. Never leaves this module."""


class _MoreUrgentError(Exception):
    """A broker must be fenced, and the present work can wait. Never leaves this module."""


class _ControllerTerm:
    """The state of one controller term.

    A node may be active, inactive, and active again in the same Raft term, and its earlier
    proposals may still commit. So a controller term knows nothing, and grants no lease, before the
    log as of its start is applied.
    """

    def __init__(self, number: int, sessions: Sessions, work: PartitionWork) -> None:
        self.number = number
        self.sessions = sessions
        self.work = work
        self.log_ends: LogEndQuery | None = None
        """The query to the brokers under way, for unclean elections."""
        self.retry_at = -math.inf
        self.failures = 0
        """Failed steps since the last complete step."""


class ActiveController:
    """The active controller's part of this node. Lives in the event loop."""

    def __init__(
        self,
        *,
        quorum: RaftMember[ApplyResult],
        state_machine: MetadataStateMachine,
        clock: Clock,
        randomness: Randomness,
        broker_id: BrokerId,
        log_ends: LogEndQueries,
    ) -> None:
        self._quorum = quorum
        self._state_machine = state_machine
        self._clock = clock
        self._randomness = randomness
        self._broker_id = broker_id
        self._log_ends = log_ends
        self._dead_brokers = DeadBrokers()
        self._controller_term: _ControllerTerm | None = None
        self._wakeup = Wakeup(clock)
        self._confirmed_at = -math.inf
        """Time until which, at least, a majority of the voters knew of no later controller."""
        self._confirmed_until = -math.inf

    def role_changed(self) -> None:
        """Leader, term or activity of the quorum's member have changed."""
        self._current_term()
        self._wakeup.set()

    def applied(self, delta: MetadataDelta) -> None:
        """The metadata has changed."""
        term = self._controller_term
        if term is None:
            return
        is_due = term.work.applied(delta, self._image, self._clock.monotonic())
        if is_due or SESSION_TIMEOUT in delta.cluster_settings:
            self._wakeup.set()

    def connection_changed(self, node_id: int, event: ConnectionEvent) -> None:
        """Note a changed connection. Call it on every node, active or not (`DeadBrokers`)."""
        broker_id = BrokerId(node_id)
        broker = self._image.brokers.get(broker_id)
        broker_epoch = None if broker is None else broker.broker_epoch
        if event is ConnectionEvent.UP:
            self._dead_brokers.returned(broker_id)
        elif event is ConnectionEvent.DOWN:
            self._dead_brokers.ended(broker_id, broker_epoch)
        else:
            dead = self._dead_brokers.refused(broker_id, broker_epoch)
            term = self._current_term()
            if dead is not None and term is not None:
                logger.warning("broker %d is dead: its address refuses connections", broker_id)
                term.sessions.proven_dead(broker_id, dead, self._image, self._clock.monotonic())
                self._wakeup.set()

    def handle_heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Record a heartbeat and answer it."""
        term = self._current_term()
        confirmed_age_s = self._confirmed_age_s()
        image = self._image
        if term is None or confirmed_age_s > term.sessions.timeout_s:
            return _refusal(heartbeat, RefusalReason.NOT_ACTIVE, "This node is no controller.")
        if self._is_behind(term) or heartbeat.broker_epoch > image.applied_index:
            return _refusal(heartbeat, RefusalReason.NOT_ACTIVE, "The controller is behind.")
        broker = image.brokers.get(heartbeat.broker_id)
        if broker is None:
            return _refusal(
                heartbeat,
                RefusalReason.UNKNOWN_BROKER,
                f"Broker {heartbeat.broker_id} is not registered in this cluster any more.",
            )
        if broker.broker_epoch != heartbeat.broker_epoch:
            return _refusal(
                heartbeat,
                RefusalReason.STALE_EPOCH,
                f"Broker {heartbeat.broker_id} was started again at {broker.host}:{broker.port} "
                f"(broker epoch {broker.broker_epoch} after {heartbeat.broker_epoch}): there "
                "must not be two nodes of one id.",
            )
        self._dead_brokers.returned(heartbeat.broker_id)
        term.sessions.heartbeat_received(
            heartbeat.broker_id,
            heartbeat.broker_epoch,
            applied_index=heartbeat.applied_index,
            stopping=heartbeat.stopping,
            can_write=heartbeat.can_write,
            time_ms=None if heartbeat.time_ms is UNSET else heartbeat.time_ms,
            image=image,
            now=self._clock.monotonic(),
        )
        unwritable = term.sessions.unwritable
        if term.work.note_unwritable(unwritable, image, self._clock.monotonic()):
            logger.warning("brokers without a writable disk: %s", sorted(unwritable) or "none")
            self._wakeup.set()
        drained = heartbeat.stopping and term.sessions.is_drained(heartbeat.broker_id)
        if broker.fenced or (heartbeat.stopping and not drained):
            self._wakeup.set()
        times_ms = term.sessions.cluster_times_ms(image, self._clock.monotonic())
        return HeartbeatAnswer(
            sequence=heartbeat.sequence,
            broker_epoch=heartbeat.broker_epoch,
            term=term.number,
            applied_index=self._quorum.applied_index,
            fenced=broker.fenced or term.sessions.is_fencing(heartbeat.broker_id),
            drained=drained,
            confirmed_age_s=confirmed_age_s,
            unwritable=tuple(sorted(unwritable)[:UNWRITABLE_MAX]),
            session_timeout_ms=granted_timeout_ms(term.sessions.timeout_s),
            cluster_time_ms=UNSET if times_ms is None else max(times_ms[0], 0),
            cluster_latest_ms=UNSET if times_ms is None else max(times_ms[1], 0),
        )

    async def run(self) -> None:
        """Act, without end. An exception is a broken invariant and must end the node."""
        while True:
            term = self._current_term()
            if term is not None and self._is_behind(term):
                term.retry_at = self._clock.monotonic() + CATCH_UP_S
            elif term is not None and self._clock.monotonic() >= term.retry_at:
                try:
                    await self._step(term)
                    term.failures = 0
                except _TermEndedError:
                    continue
                except _MoreUrgentError:
                    term.work.mark_all_due()
                    continue
                except _NotProposedError as error:
                    # The progress of the step is unknown.
                    term.work.mark_all_due()
                    term.retry_at = self._clock.monotonic() + self._backoff_s(term)
                    logger.warning("controller: proposal failed, retrying: %s", error)
            await self._wakeup.wait(self._wake_at(term))

    @property
    def _image(self) -> MetadataImage:
        return self._state_machine.image

    def _current_term(self) -> _ControllerTerm | None:
        """The current controller term. Starts a new term or ends the old term."""
        if not self._quorum.is_active:
            if self._controller_term is not None:
                logger.info("node %d is no longer the active controller", self._broker_id)
            self._controller_term = None
        elif self._controller_term is None or self._controller_term.number != self._quorum.term:
            now = self._clock.monotonic()
            image = self._image
            last_index = self._quorum.status().last_index
            sessions = Sessions(image, now, first_index=last_index)
            for broker in image.brokers.values():
                if self._dead_brokers.is_dead(broker.broker_id, broker.broker_epoch):
                    sessions.proven_dead(broker.broker_id, broker.broker_epoch, image, now)
            # The previous controller may have died between a change and the changes due to it.
            work = PartitionWork(image, now)
            self._controller_term = _ControllerTerm(self._quorum.term, sessions, work)
            logger.info(
                "node %d is the active controller of term %d", self._broker_id, self._quorum.term
            )
        return self._controller_term

    def _is_behind(self, term: _ControllerTerm) -> bool:
        """Whether some of the log before the controller term's start is not applied yet."""
        return self._quorum.applied_index < term.sessions.first_index

    def _confirmed_age_s(self) -> float:
        """Upper bound on how long another controller may have existed. Infinite when unknown."""
        now = self._clock.monotonic()
        if now >= self._confirmed_until:
            self._confirmed_until = now + CONFIRMATION_S
            self._confirmed_at = now - self._majority_age_s()
        return now - self._confirmed_at

    def _majority_age_s(self) -> float:
        voters = self._quorum.voters
        ages = [
            peer.confirmed_age_s
            for peer in self._quorum.peers().values()
            if voters.find(peer.node_id) is not None
        ]
        if voters.find(self._broker_id) is not None:
            ages.append(0.0)
        ages.sort()
        return ages[voters.majority - 1] if len(ages) >= voters.majority else math.inf

    def _wake_at(self, term: _ControllerTerm | None) -> float | None:
        if term is None:
            return None
        if term.retry_at > self._clock.monotonic():
            return term.retry_at
        answers_at = math.inf if term.log_ends is None else term.log_ends.deadline
        return min(term.sessions.next_deadline(), term.work.next_at(), answers_at)

    def _backoff_s(self, term: _ControllerTerm) -> float:
        backoff_s = BACKOFF.delay_s(term.failures) * self._randomness.uniform(0.5, 1.0)
        term.failures += 1
        return backoff_s

    async def _step(self, term: _ControllerTerm) -> None:
        """Carry out all due work."""
        decisions = term.sessions.due(self._image, self._clock.monotonic())
        fences = [each for each in decisions if each.action is Action.FENCE]
        # Fence all first, otherwise one dead broker would take over from another.
        for decision in fences:
            await self._fence(term, decision)
        for decision in fences:
            await self._execute(term, self._planned(term, decision, plan_fencing), can_wait=False)
            term.sessions.fenced(decision, self._image.applied_index)
        for decision in decisions:
            if decision.action is Action.DRAIN:
                await self._drain(term, decision)
            elif decision.action is Action.UNFENCE and self._broker(decision) is not None:
                logger.info("broker %d is back: unfencing", decision.broker_id)
                await self._execute(term, self._planned(term, decision, plan_unfencing))
        await self._follow_session_timeout(term)
        for plan in term.work.due(self._image, self._clock.monotonic()):
            await self._execute(term, plan)
            # Each may have looked at every partition there is.
            await asyncio.sleep(0)
        await self._elect_longest_logs(term)

    async def _elect_longest_logs(self, term: _ControllerTerm) -> None:
        """Start the unclean elections due. Query the brokers now, elect in a later step. Never
        waits for a response, because fencings must continue."""
        query = term.log_ends
        if query is not None and query.is_over(self._clock.monotonic()):
            term.log_ends = None
            if query.waiting:
                silent = sorted({broker_id for broker_id, _ in query.waiting})
                logger.warning("unclean elections without the logs of brokers %s", silent)
            await self._execute(
                term,
                partial(
                    plan_elections,
                    keys=query.keys,
                    unwritable=term.sessions.unwritable,
                    ends=query.ends,
                ),
            )
        if term.log_ends is None and (keys := term.work.undecided(self._image)):
            logger.warning(
                "no replica in sync lives: electing %d partitions uncleanly, by the longest log",
                len(keys),
            )
            term.log_ends = self._log_ends.begin(keys, self._wakeup.set)

    async def _follow_session_timeout(self, term: _ControllerTerm) -> None:
        """Propose the lease bound for the present session timeout."""
        timeout_s = term.sessions.due_lease_bound(self._image, self._clock.monotonic())
        if timeout_s is None:
            return
        values, removals = lease_bound_change(timeout_s)
        result = await self._propose(term, AlterClusterSettings(values=values, removals=removals))
        if result.refusal is not None:
            raise _NotProposedError(result.refusal.message)
        term.sessions.lease_bound_applied(self._image, self._clock.monotonic())
        logger.info("session timeout of brokers: %g s", timeout_s)

    async def _fence(self, term: _ControllerTerm, decision: Decision) -> None:
        broker = self._broker(decision)
        if broker is None or broker.fenced:
            return
        logger.warning(
            "broker %d fenced: session expired or connection refused", decision.broker_id
        )
        await self._propose(
            term, FenceBroker(broker_id=decision.broker_id, broker_epoch=decision.broker_epoch)
        )

    async def _drain(self, term: _ControllerTerm, decision: Decision) -> None:
        broker = self._broker(decision)
        if broker is None:
            return
        if not broker.controlled_shutdown:
            logger.info("broker %d is about to stop: moving its leaderships", decision.broker_id)
        await self._execute(term, self._planned(term, decision, plan_controlled_shutdown))
        term.sessions.drained(decision)

    def _broker(self, decision: Decision) -> BrokerImage | None:
        """The decision's broker. None after a restart or an unregistration."""
        broker = self._image.brokers.get(decision.broker_id)
        if broker is None or broker.broker_epoch != decision.broker_epoch:
            return None
        return broker

    def _planned(self, term: _ControllerTerm, decision: Decision, plan: _BrokerPlan) -> _Plan:
        """The plan for the decision's broker. Empty after a restart of the broker."""

        def planned(image: MetadataImage) -> Iterator[Command]:
            # Plans name brokers. Without this check a new incarnation would get the change of the
            # old incarnation.
            if self._broker(decision) is None:
                return iter(())
            return plan(image, decision.broker_id, unwritable=term.sessions.unwritable)

        return planned

    async def _execute(self, term: _ControllerTerm, plan: _Plan, *, can_wait: bool = True) -> None:
        """Propose the commands of `plan`. Plan again after stale changes. Raises _MoreUrgentError,
        between two commands, if the plan `can_wait` and a fencing cannot."""
        for _ in range(PLAN_ROUNDS_MAX):
            stale = False
            for command in plan(self._image):
                result = await self._propose(term, command)
                stale = stale or _is_stale(result)
                now = self._clock.monotonic()
                if can_wait and term.sessions.is_fencing_due(self._image, now):
                    raise _MoreUrgentError
                if result.refusal is not None:
                    # Later commands of a plan depend on earlier commands.
                    break
            if not stale:
                return
        raise _NotProposedError("others changed the same partitions again and again")

    async def _propose(self, term: _ControllerTerm, command: Command) -> ApplyResult:
        """Put a command through the quorum, if the controller term has not ended. Raises
        _TermEndedError or _NotProposedError."""
        if self._current_term() is not term:
            raise _TermEndedError
        outcome = await self._quorum.propose(encode_command(command))
        match outcome:
            case Applied(result=result):
                return result
            case Refused(message=message) | Unknown(message=message):
                raise _NotProposedError(message)


def _is_stale(result: ApplyResult) -> bool:
    """Whether the command, or a part of it, was decided on an outdated image."""
    if result.refusal is not None:
        logger.info("change refused as stale: %s", result.refusal.message)
        return True
    return isinstance(result.value, PartitionsChanged) and bool(result.value.stale)


def _refusal(heartbeat: Heartbeat, reason: RefusalReason, explanation: str) -> HeartbeatRefusal:
    return HeartbeatRefusal(
        sequence=heartbeat.sequence,
        broker_epoch=heartbeat.broker_epoch,
        reason=reason,
        explanation=explanation,
    )
