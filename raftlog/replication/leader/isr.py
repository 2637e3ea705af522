"""Each leader proposes the ISR of its partitions, and the quorum decides.

A check of all led partitions, several times within the allowed lag, finds followers that fall
behind. An acknowledgement finds followers that have caught up. A proposal counts with its new
members as soon as it is in flight, and without its old members only once applied (leader/state.py).
Each partition has at most one proposal in flight.

A proposal of unknown outcome may be applied at any later time, as long as the partition epoch that
it names stands. If a new member has died, every commit would wait for it. The leader then starts a
new leader epoch, after which the proposal is stale, whatever its outcome.

A row may also have an ELR beside an ISR that is large enough, by a command with an outdated minimum
(leader/state.py). The same change empties the ELR, and commits continue.

A leader below the minimum that does not reach living followers hands over the lead (`handover`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.commands import AlterIsr, Command, encode_command
from raftlog.metadata.configs.topic import min_isr_default
from raftlog.metadata.decisions.elections import change_command, change_of, plan_handover
from raftlog.metadata.image import MetadataImage
from raftlog.raft import Applied, RaftMember, Unknown
from raftlog.record.types import BrokerId, PartitionId, TopicId
from raftlog.replication.leader.handover import Handovers, successor
from raftlog.replication.leader.state import IsrProposal, LeaderState
from raftlog.replication.partition import Partition
from raftlog.world import Clock

CHECK_INTERVAL_S: Final = 0.5
"""Seconds between two checks of all led partitions, less than any allowed lag."""
CHECKED_PER_TURN_MAX: Final = 500
"""Most led partitions checked in one turn of the event loop, about 3 ms."""
STARTS_PER_TURN_MAX: Final = 64
"""Most proposals started in one turn of the event loop, 0.1 ms each. A returning follower catches
up with thousands of partitions at once."""
PROPOSALS_MAX: Final = 128
"""Most proposals in flight at once."""
RETRY_S: Final = 0.1
"""Seconds between a failed proposal and the next attempt for the same partition."""

logger = logging.getLogger(__name__)


class IsrKeeper:
    """Proposes the ISR of each partition led here. Lives in the event loop."""

    def __init__(
        self,
        *,
        quorum: RaftMember[ApplyResult],
        image: Callable[[], MetadataImage],
        broker_id: BrokerId,
        clock: Clock,
        led: Callable[[], Iterable[Partition]],
        on_failed: Callable[[str], None],
        lag_max_s: Callable[[], float],
    ) -> None:
        """`led` returns the partitions that this node leads. `lag_max_s` returns the time for which
        a member may lack records (replica.lag.time.max.ms). `on_failed` gets the reason when an
        invariant is broken and the node must end."""
        self._quorum = quorum
        self._image = image
        self._broker_id = broker_id
        self._clock = clock
        self._led = led
        self._on_failed = on_failed
        self._lag_max_s = lag_max_s
        self._busy: dict[tuple[TopicId, PartitionId], asyncio.Task[None]] = {}
        self._due: dict[tuple[TopicId, PartitionId], Partition] = {}
        """Led partitions to be examined again in the next turns, when proposals may begin."""
        self._started_in_turn = 0
        self._gate = asyncio.Semaphore(PROPOSALS_MAX)
        self._handovers = Handovers()
        self._is_closed = False

    async def run(self) -> None:
        """Check all led partitions, until cancelled."""
        while True:
            await self._clock.sleep(CHECK_INTERVAL_S)
            led = list(self._led())
            for number, partition in enumerate(led, start=1):
                self.maybe_propose(partition)
                self._maybe_hand_over(partition)
                if number % CHECKED_PER_TURN_MAX == 0:
                    await asyncio.sleep(0)
            keys = {(partition.topic_id, partition.partition) for partition in led}
            self._handovers.retain(keys, self._clock.monotonic())

    def maybe_propose(self, partition: Partition) -> None:
        """Propose the partition's ISR, if it must change."""
        key = (partition.topic_id, partition.partition)
        role = partition.leader_role
        if role is None or key in self._busy or self._is_closed:
            # The running task checks again before it ends.
            return
        if self._epoch_reason(partition, role.state) is None and (
            role.desired_isr(self._lag_max_s()) is None
        ):
            return
        if self._started_in_turn == STARTS_PER_TURN_MAX:
            self._due[key] = partition
            return
        if not self._started_in_turn:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._started_in_turn += 1
        self._spawn(key, self._propose_all(partition))

    def _begin_turn(self) -> None:
        self._started_in_turn = 0
        for key in list(islice(self._due, STARTS_PER_TURN_MAX)):
            self.maybe_propose(self._due.pop(key))
        if self._due and not self._started_in_turn:
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _maybe_hand_over(self, partition: Partition) -> None:
        """Hand the lead to another replica, if this one has not reached enough for long."""
        key = (partition.topic_id, partition.partition)
        role = partition.leader_role
        if role is None or key in self._busy or self._is_closed:
            return
        row = role.state.row
        candidate = successor(
            row,
            min_insync_replicas=partition.min_insync_replicas,
            brokers=self._image().brokers,
            attached=role.feeds.keys(),
        )
        is_due = self._handovers.is_due(
            key,
            row.leader_epoch,
            candidate,
            now=self._clock.monotonic(),
            patience_s=self._lag_max_s(),
        )
        if candidate is None or not is_due:
            return
        command = plan_handover(self._image(), key, row, candidate)
        if command is not None:
            logger.warning(
                "%s: below min.insync.replicas and without a stream of living followers: "
                "handing the lead to broker %d",
                partition.name,
                candidate,
            )
            self._spawn(key, self._hand_over(command))

    async def _hand_over(self, command: Command) -> None:
        # Propose once. The next check repeats a lost or refused command.
        async with self._gate:
            await self._quorum.propose(encode_command(command))

    def _spawn(self, key: tuple[TopicId, PartitionId], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._busy[key] = task
        task.add_done_callback(lambda done: self._on_proposed(key, done))

    def _on_proposed(self, key: tuple[TopicId, PartitionId], task: asyncio.Task[None]) -> None:
        self._busy.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("proposing an ISR failed", exc_info=error)
            self._on_failed(f"Proposing an ISR failed: {error!r}")

    async def close(self) -> None:
        """Stop. Proposals in flight may still be committed."""
        self._is_closed = True
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _propose_all(self, partition: Partition) -> None:
        """Propose until the ISR is right, or the partition is not led here any more."""
        while True:
            async with self._gate:
                is_over = await self._propose_once(partition)
            if is_over is None:
                return
            if not is_over:
                # Outside of the gate, so that other partitions propose during the pause.
                await self._clock.sleep(RETRY_S)

    async def _propose_once(self, partition: Partition) -> bool | None:
        """Whether the proposal was applied, None if there is nothing to propose."""
        role = partition.leader_role
        if role is None:
            return None
        state, desired = role.state, role.desired_isr(self._lag_max_s())
        if desired is None:
            reason = self._epoch_reason(partition, state)
            if reason is None:
                return None
            return await self._begin_leader_epoch(partition, state, reason)
        command = self._command(partition, desired)
        if command is None:
            return None
        members = [broker_id for broker_id, _ in desired.isr]
        is_only = state.propose(members, desired.late)
        outcome = await self._quorum.propose(encode_command(command))
        if isinstance(outcome, Applied):
            if (refusal := outcome.result.refusal) is None:
                return True
            logger.info(
                "%s-%d: ISR %s refused: %s",
                partition.topic,
                partition.partition,
                members,
                refusal.message,
            )
        if is_only and not isinstance(outcome, Unknown):
            # No proposal on this partition epoch can be committed any more.
            role.withdraw_proposals()
        return False

    def _epoch_reason(self, partition: Partition, state: LeaderState) -> str | None:
        """Why the partition needs a new leader epoch of this leader, else None."""
        if state.has_pending_proposal:
            return "the outcome of an ISR proposal is unknown"
        if state.has_outdated_elr(partition.min_insync_replicas):
            return "its ELR is of another min.insync.replicas"
        return None

    async def _begin_leader_epoch(
        self, partition: Partition, state: LeaderState, reason: str
    ) -> bool | None:
        """Make all earlier proposals stale, and the ELR right, by a new leader epoch."""
        topic = self._image().topics_by_id.get(partition.topic_id)
        if topic is None:
            return None
        logger.info("%s-%d: new leader epoch, as %s", partition.topic, partition.partition, reason)
        # A leader is in the ISR, so naming it ineligible for the ELR changes no set. Such a change
        # starts a leader epoch.
        change = replace(change_of(topic, state.row), not_eligible=(self._broker_id,))
        await self._quorum.propose(encode_command(change_command(self._image(), [change])))
        return False

    def _command(self, partition: Partition, desired: IsrProposal) -> AlterIsr | None:
        image = self._image()
        own = image.brokers.get(self._broker_id)
        topic = image.topics_by_id.get(partition.topic_id)
        if own is None or topic is None or own.fenced:
            return None
        return AlterIsr(
            broker_id=self._broker_id,
            broker_epoch=own.broker_epoch,
            topic_id=partition.topic_id,
            partition=partition.partition,
            leader_epoch=partition.image.leader_epoch,
            partition_epoch=desired.partition_epoch,
            isr=desired.isr,
            min_isr_default=min_isr_default(topic.replication_factor),
        )
