"""In-sync sets: each leader here says who should be in sync, and the quorum decides.

Who falls behind is found by a look at all partitions led here, several times within the lag that is
allowed; who has caught up is found when it says so. A proposal counts with its new members as soon
as it is on its way, and without its old ones only once it is applied (state.py). One of a partition
is under way at a time.

A proposal of unknown outcome may be applied at any later time, as long as the partition epoch that
it names stands. If the leader does not want those members any more (they died over it), it would
wait for them with every commit. Then it begins a new leader epoch of its own: that ends the doubt,
whatever becomes of the proposal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from raftlog.metadata.apply import ApplyResult
from raftlog.metadata.commands import AlterIsr, ChangePartitions, encode_command
from raftlog.metadata.configs import min_isr_default
from raftlog.metadata.elections import change_of
from raftlog.metadata.image import MetadataImage
from raftlog.raft import Applied, Quorum, Unknown
from raftlog.record.types import BrokerId, PartitionId, TopicId
from raftlog.replication.leader_state import IsrProposal, LeaderState
from raftlog.replication.partition import Partition
from raftlog.world import Clock

LAG_MAX_S: Final = 2.0
"""A follower that has lacked records for longer is not in sync (replica.lag.time.max)."""
CHECKS_PER_LAG: Final = 4
"""Times within that lag at which all partitions are looked at."""
PROPOSALS_MAX: Final = 128
"""Proposals under way at once."""
RETRY_S: Final = 0.1
"""Until a proposal that failed is thought over again."""

logger = logging.getLogger(__name__)


class IsrKeeper:
    """Proposes the in-sync sets that the leaders of this node want. Lives in the event loop."""

    def __init__(
        self,
        *,
        quorum: Quorum[ApplyResult],
        image: Callable[[], MetadataImage],
        broker_id: BrokerId,
        clock: Clock,
        led: Callable[[], Iterable[Partition]],
        on_failed: Callable[[str], None],
        lag_max_s: float = LAG_MAX_S,
    ) -> None:
        """`led` gives the partitions that this node leads. `on_failed` is given the reason if an
        invariant is broken, and the node must end."""
        self._quorum = quorum
        self._image = image
        self._broker_id = broker_id
        self._clock = clock
        self._led = led
        self._on_failed = on_failed
        self._lag_max_s = lag_max_s
        self._busy: dict[tuple[TopicId, PartitionId], asyncio.Task[None]] = {}
        self._gate = asyncio.Semaphore(PROPOSALS_MAX)
        self._is_closed = False

    async def run(self) -> None:
        """Look at all partitions, for ever."""
        while True:
            await self._clock.sleep(self._lag_max_s / CHECKS_PER_LAG)
            for partition in self._led():
                role = partition.leader_role
                if role is not None and (
                    role.state.has_pending_proposal or role.desired_isr(self._lag_max_s) is not None
                ):
                    self.maybe_propose(partition)

    def maybe_propose(self, partition: Partition) -> None:
        """The partition may want another in-sync set."""
        key = (partition.topic_id, partition.partition)
        if key in self._busy or self._is_closed:
            # It looks again when it is done.
            return
        task = asyncio.get_running_loop().create_task(self._propose_all(partition))
        self._busy[key] = task
        task.add_done_callback(lambda done: self._on_proposed(key, done))

    def _on_proposed(self, key: tuple[TopicId, PartitionId], task: asyncio.Task[None]) -> None:
        self._busy.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("proposing in-sync sets failed", exc_info=error)
            self._on_failed(f"Proposing in-sync sets failed: {error!r}")

    async def close(self) -> None:
        """Stop. What is under way may still be committed."""
        self._is_closed = True
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _propose_all(self, partition: Partition) -> None:
        """Propose until the partition is content, or is not led here any more."""
        while True:
            async with self._gate:
                is_over = await self._propose_once(partition)
            if is_over is None:
                return
            if not is_over:
                # Outside of the gate: others have their turn.
                await self._clock.sleep(RETRY_S)

    async def _propose_once(self, partition: Partition) -> bool | None:
        """Whether it was carried out; None if there is nothing to propose."""
        role = partition.leader_role
        if role is None:
            return None
        state, desired = role.state, role.desired_isr(self._lag_max_s)
        if desired is None:
            if not state.has_pending_proposal:
                return None
            return await self._begin_leader_epoch(partition, state)
        command = self._command(partition, desired)
        if command is None:
            return None
        members = [broker_id for broker_id, _ in desired.isr]
        is_only = state.propose(members)
        outcome = await self._quorum.propose(encode_command(command))
        if isinstance(outcome, Applied):
            if (refusal := outcome.result.refusal) is None:
                return True
            logger.info(
                "%s-%d: in-sync set %s refused: %s",
                partition.topic,
                partition.partition,
                members,
                refusal.message,
            )
        if is_only and not isinstance(outcome, Unknown):
            # Nothing of this partition epoch can be committed any more.
            state.withdraw()
        return False

    async def _begin_leader_epoch(self, partition: Partition, state: LeaderState) -> bool | None:
        """Have nothing proposed before be applied any more, by a new leader epoch."""
        topic = self._image().topics_by_id.get(partition.topic_id)
        if topic is None:
            return None
        logger.info(
            "%s-%d: a new leader epoch, as it is not known whether others are in sync",
            partition.topic,
            partition.partition,
        )
        # A leader is in sync, so that it is not eligible besides takes nothing from anybody; but
        # such a change begins a leader epoch.
        change = replace(change_of(topic, state.row), not_eligible=(self._broker_id,))
        await self._quorum.propose(encode_command(ChangePartitions(changes=(change,))))
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
