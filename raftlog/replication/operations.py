"""What operators decide about leaders, replicas and brokers: plans, carried out.

Each call returns when what it asks for is in the metadata and this node acts by it. What takes
longer (copying records to other brokers, moving leaders away) is begun by then, and the active
controller goes on with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from typing import TypeAlias

from raftlog.metadata import decommission, leadership, reassignment
from raftlog.metadata.commands import Command
from raftlog.metadata.image import MetadataImage
from raftlog.record.types import BrokerId

CarryOut: TypeAlias = Callable[[Callable[[], Iterable[Command]]], Awaitable[None]]
"""Proposes what a plan gives, and makes the plan anew if some of it was stale."""


class Operations:
    """Every call raises LogError for what is not possible, and NO_CONTROLLER or RETRIABLE."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        carry_out: CarryOut,
        unwritable: Callable[[], Set[BrokerId]] = frozenset,
    ) -> None:
        """`image` gives the applied metadata, `unwritable` the brokers that take no writes."""
        self._image = image
        self._unwritable = unwritable
        self._carry_out = carry_out

    async def transfer_leader(
        self, name: str, partition: int, broker_id: BrokerId | None, *, unclean: bool = False
    ) -> None:
        """Have that broker lead, or the best other one; `unclean`: though it may lack records.

        LogError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, NOT_FOUND, NO_LEADER, ILLEGAL_STATE.
        """

        def plan() -> Iterable[Command]:
            image = self._image()
            if unclean:
                return (
                    leadership.plan_unclean_election(
                        image, name=name, partition=partition, broker_id=broker_id
                    ),
                )
            command = leadership.plan_leader_transfer(
                image,
                name=name,
                partition=partition,
                broker_id=broker_id,
                unwritable=self._unwritable(),
            )
            return () if command is None else (command,)

        await self._carry_out(plan)

    async def reassign(self, moves: Sequence[reassignment.Move]) -> None:
        """Begin to move partitions to other brokers; all are checked before any is moved.

        LogError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, INVALID_PARTITIONS.
        """
        await self._carry_out(lambda: reassignment.plan_reassignments(self._image(), moves))

    async def cancel_reassignment(self, name: str, partition: int) -> None:
        """Leave a partition to the replicas that it had.

        LogError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, ILLEGAL_STATE.
        """
        await self._carry_out(
            lambda: (reassignment.plan_cancellation(self._image(), name=name, partition=partition),)
        )

    async def decommission(self, broker_id: BrokerId) -> None:
        """Have all that a broker holds moved to others.

        LogError: NOT_FOUND; ILLEGAL_STATE if too few others would be left.
        """
        await self._carry_out(lambda: (decommission.plan_decommission(self._image(), broker_id),))

    async def recommission(self, broker_id: BrokerId) -> None:
        """Cancel a decommission; what has moved stays where it is. LogError: NOT_FOUND."""
        await self._carry_out(lambda: decommission.plan_recommission(self._image(), broker_id))

    async def set_maintenance(self, broker_id: BrokerId, *, wanted: bool) -> None:
        """Have a broker lead nothing that others can, or end that. LogError: NOT_FOUND."""
        await self._carry_out(
            lambda: (decommission.plan_maintenance(self._image(), broker_id, wanted=wanted),)
        )
