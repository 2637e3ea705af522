"""What the active controller does: hears brokers, decides, proposes, one command after the other.

A *reign* is the time in which this node is the active controller, in one term. What is known of the
brokers is kept per reign; whether it still goes on is asked again before each proposal. A
controller that has been replaced without knowing it cannot commit anything, and its commands name
epochs, so the worst it can do is to propose in vain.

Each step looks at the whole table of sessions and at the image as it is then. Work that is
interrupted (a reign's end, an unknown outcome) is not remembered but found again, from the image.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Set
from typing import Final, Protocol, TypeAlias

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
from raftlog.metadata.apply import ApplyResult
from raftlog.metadata.apply_partitions import PartitionsChanged
from raftlog.metadata.broker_configs import SESSION_TIMEOUT, lease_bound_change
from raftlog.metadata.commands import (
    AlterClusterSettings,
    Command,
    FenceBroker,
    encode_command,
)
from raftlog.metadata.delta import MetadataDelta
from raftlog.metadata.image import BrokerImage, MetadataImage
from raftlog.metadata.liveness import plan_controlled_shutdown, plan_fencing, plan_unfencing
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.raft import Applied, ConnectionEvent, RaftMember, Refused, Unknown
from raftlog.record.types import BrokerId
from raftlog.world import Clock, Randomness, Wakeup

BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0
"""Between two attempts, if proposals fail."""
PLAN_ROUNDS_MAX: Final = 10
"""Plans for one purpose in a row: changes that were stale are planned anew, but others want their
turn, too."""
CATCH_UP_S: Final = 0.01
"""Between two looks whether a new reign has applied all that came before it."""
CONFIRMATION_S: Final = 0.02
"""Between two looks at what the voters confirmed: with many brokers, heartbeats come more often."""

logger = logging.getLogger(__name__)


_Plan: TypeAlias = Callable[[MetadataImage], Iterator[Command]]


class _BrokerPlan(Protocol):
    """A plan about one broker. Those that are `unwritable` are elected only if nobody else is."""

    def __call__(
        self, image: MetadataImage, broker_id: BrokerId, /, *, unwritable: Set[BrokerId]
    ) -> Iterator[Command]: ...


class _TermEndedError(Exception):
    """This node is not the active controller any more, or anew; never leaves this module."""


class _NotProposedError(Exception):
    """A proposal failed, or may have; never leaves this module."""


class _MoreUrgentError(Exception):
    """A broker is to be fenced, and what is being done can wait; never leaves this module."""


class _ControllerTerm:
    """What this node knows as the active controller, from one time on in one term.

    A node may be active, not any more, and again in the same term. What it proposed before may be
    committed yet: before all of its log of the beginning is applied, a reign knows
    nothing, and gives no lease.
    """

    def __init__(self, term: int, sessions: Sessions, work: PartitionWork) -> None:
        self.term = term
        self.sessions = sessions
        self.work = work
        self.retry_at = -math.inf
        self.backoff_s = BACKOFF_MIN_S


class ActiveController:
    """This node's part as the active controller, whenever it is. Lives in the event loop."""

    def __init__(
        self,
        *,
        quorum: RaftMember[ApplyResult],
        state_machine: MetadataStateMachine,
        clock: Clock,
        randomness: Randomness,
        broker_id: BrokerId,
    ) -> None:
        self._quorum = quorum
        self._state_machine = state_machine
        self._clock = clock
        self._randomness = randomness
        self._broker_id = broker_id
        self._departures = DeadBrokers()
        self._reign: _ControllerTerm | None = None
        self._alarm = Wakeup(clock)
        self._confirmed_at = -math.inf
        """Until when, at least, a majority of the voters knew of no later controller."""
        self._confirmed_until = -math.inf

    def role_changed(self) -> None:
        """Leader, term or activity of the quorum's member have changed."""
        self._follow_reign()
        self._alarm.set()

    def applied(self, delta: MetadataDelta) -> None:
        """The metadata has changed."""
        reign = self._reign
        if reign is None:
            return
        is_due = reign.work.applied(delta, self._image, self._clock.monotonic())
        if is_due or SESSION_TIMEOUT in delta.cluster_settings:
            self._alarm.set()

    def connection_changed(self, node_id: int, event: ConnectionEvent) -> None:
        """To be told on every node, active or not: see departures.py."""
        broker_id = BrokerId(node_id)
        broker = self._image.brokers.get(broker_id)
        broker_epoch = None if broker is None else broker.broker_epoch
        if event is ConnectionEvent.UP:
            self._departures.returned(broker_id)
        elif event is ConnectionEvent.DOWN:
            self._departures.ended(broker_id, broker_epoch)
        else:
            dead = self._departures.refused(broker_id, broker_epoch)
            reign = self._follow_reign()
            if dead is not None and reign is not None:
                logger.warning("broker %d is dead: nobody listens at its address", broker_id)
                reign.sessions.lost(broker_id, dead, self._image, self._clock.monotonic())
                self._alarm.set()

    def take(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Hear a heartbeat, and answer it."""
        reign = self._follow_reign()
        confirmed_age_s = self._confirmed_age_s()
        image = self._image
        if reign is None or confirmed_age_s > reign.sessions.timeout_s:
            return _refusal(heartbeat, RefusalReason.NOT_ACTIVE, "This node is no controller.")
        if self._is_behind(reign) or heartbeat.broker_epoch > image.applied_index:
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
        self._departures.returned(heartbeat.broker_id)
        reign.sessions.heard(
            heartbeat.broker_id,
            heartbeat.broker_epoch,
            applied_index=heartbeat.applied_index,
            stopping=heartbeat.stopping,
            can_write=heartbeat.can_write,
            image=image,
            now=self._clock.monotonic(),
        )
        unwritable = reign.sessions.unwritable
        if reign.work.note_unwritable(unwritable, image, self._clock.monotonic()):
            logger.warning("brokers whose disks take no writes: %s", sorted(unwritable) or "none")
            self._alarm.set()
        drained = heartbeat.stopping and reign.sessions.is_drained(heartbeat.broker_id)
        if broker.fenced or (heartbeat.stopping and not drained):
            self._alarm.set()
        return HeartbeatAnswer(
            sequence=heartbeat.sequence,
            broker_epoch=heartbeat.broker_epoch,
            term=reign.term,
            applied_index=self._quorum.applied_index,
            fenced=broker.fenced or reign.sessions.is_fencing(heartbeat.broker_id),
            drained=drained,
            confirmed_age_s=confirmed_age_s,
            unwritable=tuple(sorted(unwritable)[:UNWRITABLE_MAX]),
            session_timeout_ms=granted_timeout_ms(reign.sessions.timeout_s),
        )

    async def run(self) -> None:
        """Act, for ever. Whatever it raises is a broken invariant, and must end the node."""
        while True:
            reign = self._follow_reign()
            if reign is not None and self._is_behind(reign):
                reign.retry_at = self._clock.monotonic() + CATCH_UP_S
            elif reign is not None and self._clock.monotonic() >= reign.retry_at:
                try:
                    await self._step(reign)
                    reign.backoff_s = BACKOFF_MIN_S
                except _TermEndedError:
                    continue
                except _MoreUrgentError:
                    reign.work.everything()
                    continue
                except _NotProposedError as error:
                    # Nobody knows how far the step got.
                    reign.work.everything()
                    reign.retry_at = self._clock.monotonic() + self._backoff_s(reign)
                    logger.warning("the controller could not commit a change: %s", error)
            await self._alarm.wait(self._wake_at(reign))

    @property
    def _image(self) -> MetadataImage:
        return self._state_machine.image

    def _follow_reign(self) -> _ControllerTerm | None:
        """The reign as of now; a new one begins and an old one ends here."""
        if not self._quorum.is_active:
            if self._reign is not None:
                logger.info("node %d is not the active controller any more", self._broker_id)
            self._reign = None
        elif self._reign is None or self._reign.term != self._quorum.term:
            now = self._clock.monotonic()
            image = self._image
            last_index = self._quorum.status().last_index
            sessions = Sessions(image, now, first_index=last_index)
            for broker in image.brokers.values():
                if self._departures.is_dead(broker.broker_id, broker.broker_epoch):
                    sessions.lost(broker.broker_id, broker.broker_epoch, image, now)
            # The controller before may have died between a change and what has to follow it.
            work = PartitionWork(image, now)
            self._reign = _ControllerTerm(self._quorum.term, sessions, work)
            logger.info(
                "node %d is the active controller of term %d", self._broker_id, self._quorum.term
            )
        return self._reign

    def _is_behind(self, reign: _ControllerTerm) -> bool:
        """Whether something of the log that the reign began with is not applied yet."""
        return self._quorum.applied_index < reign.sessions.first_index

    def _confirmed_age_s(self) -> float:
        """For how long, at most, there can have been another controller; inf if nobody knows."""
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

    def _wake_at(self, reign: _ControllerTerm | None) -> float | None:
        if reign is None:
            return None
        if reign.retry_at > self._clock.monotonic():
            return reign.retry_at
        return min(reign.sessions.next_deadline(), reign.work.next_at())

    def _backoff_s(self, reign: _ControllerTerm) -> float:
        backoff_s = reign.backoff_s * self._randomness.uniform(0.5, 1.0)
        reign.backoff_s = min(2 * reign.backoff_s, BACKOFF_MAX_S)
        return backoff_s

    async def _step(self, reign: _ControllerTerm) -> None:
        """Do all that is due now."""
        decisions = reign.sessions.due(self._image, self._clock.monotonic())
        fences = [each for each in decisions if each.action is Action.FENCE]
        # All are fenced before any of them is relieved, or one dead broker would succeed another.
        for decision in fences:
            await self._fence(reign, decision)
        for decision in fences:
            await self._carry_out(
                reign, self._planned(reign, decision, plan_fencing), can_wait=False
            )
            reign.sessions.fenced(decision, self._image.applied_index)
        for decision in decisions:
            if decision.action is Action.DRAIN:
                await self._drain(reign, decision)
            elif decision.action is Action.UNFENCE and self._broker(decision) is not None:
                logger.info("broker %d is back", decision.broker_id)
                await self._carry_out(reign, self._planned(reign, decision, plan_unfencing))
        await self._follow_session_timeout(reign)
        for plan in reign.work.due(self._image, self._clock.monotonic()):
            await self._carry_out(reign, plan)
            # Each may have looked at every partition there is.
            await asyncio.sleep(0)

    async def _follow_session_timeout(self, reign: _ControllerTerm) -> None:
        """Have the metadata hold the lease bound that the session timeout calls for."""
        timeout_s = reign.sessions.take_bound_change(self._image, self._clock.monotonic())
        if timeout_s is None:
            return
        values, removals = lease_bound_change(timeout_s)
        result = await self._propose(reign, AlterClusterSettings(values=values, removals=removals))
        if result.refusal is not None:
            raise _NotProposedError(result.refusal.message)
        reign.sessions.bound_changed(self._image, self._clock.monotonic())
        logger.info("session timeout of brokers: %g s", timeout_s)

    async def _fence(self, reign: _ControllerTerm, decision: Decision) -> None:
        broker = self._broker(decision)
        if broker is None or broker.fenced:
            return
        logger.warning("broker %d is fenced: it is silent or dead", decision.broker_id)
        await self._propose(
            reign, FenceBroker(broker_id=decision.broker_id, broker_epoch=decision.broker_epoch)
        )

    async def _drain(self, reign: _ControllerTerm, decision: Decision) -> None:
        broker = self._broker(decision)
        if broker is None:
            return
        if not broker.controlled_shutdown:
            logger.info("broker %d is about to stop", decision.broker_id)
        await self._carry_out(reign, self._planned(reign, decision, plan_controlled_shutdown))
        reign.sessions.drained(decision)

    def _broker(self, decision: Decision) -> BrokerImage | None:
        """The broker, if it is still the one that was decided about."""
        broker = self._image.brokers.get(decision.broker_id)
        if broker is None or broker.broker_epoch != decision.broker_epoch:
            return None
        return broker

    def _planned(self, reign: _ControllerTerm, decision: Decision, plan: _BrokerPlan) -> _Plan:
        """The plan about the broker of a decision. Empty if it has been started again since."""

        def planned(image: MetadataImage) -> Iterator[Command]:
            # Plans name brokers: without this a new incarnation would get what is not for it.
            if self._broker(decision) is None:
                return iter(())
            return plan(image, decision.broker_id, unwritable=reign.sessions.unwritable)

        return planned

    async def _carry_out(
        self, reign: _ControllerTerm, plan: _Plan, *, can_wait: bool = True
    ) -> None:
        """Propose what `plan` gives; plan anew if some of it turned out to be stale.

        Raises _MoreUrgentError, between two commands, if it `can_wait` and another cannot.
        """
        for _ in range(PLAN_ROUNDS_MAX):
            stale = False
            for command in plan(self._image):
                result = await self._propose(reign, command)
                stale = stale or _is_stale(result)
                now = self._clock.monotonic()
                if can_wait and reign.sessions.is_fencing_due(self._image, now):
                    raise _MoreUrgentError
                if result.refusal is not None:
                    # What follows in a plan counts on what comes before it.
                    break
            if not stale:
                return
        raise _NotProposedError("others changed the same partitions again and again")

    async def _propose(self, reign: _ControllerTerm, command: Command) -> ApplyResult:
        """Put a command through the quorum, if this reign still goes on.

        Raises _TermEndedError or _NotProposedError.
        """
        if self._follow_reign() is not reign:
            raise _TermEndedError
        outcome = await self._quorum.propose(encode_command(command))
        match outcome:
            case Applied(result=result):
                return result
            case Refused(message=message) | Unknown(message=message):
                raise _NotProposedError(message)


def _is_stale(result: ApplyResult) -> bool:
    """Whether a command, or a part of it, was decided on what had changed when it was applied."""
    if result.refusal is not None:
        logger.info("a change came too late: %s", result.refusal.message)
        return True
    return isinstance(result.value, PartitionsChanged) and bool(result.value.stale)


def _refusal(heartbeat: Heartbeat, reason: RefusalReason, explanation: str) -> HeartbeatRefusal:
    return HeartbeatRefusal(
        sequence=heartbeat.sequence,
        broker_epoch=heartbeat.broker_epoch,
        reason=reason,
        explanation=explanation,
    )
