"""Reconciliation moves a member from its present to its target assignment (KIP-848). Pure.

A member first gives up partitions and acknowledges this. Only then do its epoch and its assignment
advance. A partition that any other member has, assigned or to be given up, waits. So no partition
ever has two owners, and a partition that need not move never stops.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final

from raftlog.coordinator.groups.assignors import Assignment, Pair, assignment_of, pairs
from raftlog.coordinator.shard.records import ConsumerGroupCurrentMemberAssignmentValue


class MemberState(IntEnum):
    """The states of a member, with Kafka's numbers."""

    STABLE = 0
    """The member has its part of the target assignment of its epoch."""
    UNREVOKED_PARTITIONS = 1
    """The member has partitions to give up, and keeps its epoch until it acknowledges."""
    UNRELEASED_PARTITIONS = 2
    """The member has the target epoch, and waits for partitions of other members."""


UNASSIGNED: Final = ConsumerGroupCurrentMemberAssignmentValue(
    member_epoch=0,
    previous_member_epoch=0,
    state=MemberState.STABLE,
    assigned_partitions=(),
    partitions_pending_revocation=(),
)
"""Assignment of a member that is joining."""


def reconcile(
    current: ConsumerGroupCurrentMemberAssignmentValue,
    target: Assignment,
    assignment_epoch: int,
    *,
    shown_epoch: int,
    owned: Assignment | None,
    is_free: Callable[[Pair], bool],
) -> ConsumerGroupCurrentMemberAssignmentValue:
    """The member's next assignment, or `current` itself if there is nothing to do yet.

    `shown_epoch` and `owned` are from the heartbeat. The member is known to have this epoch. With
    None as `owned` it owns as before. `is_free` is true if no other member has the partition.
    """
    if current.state == MemberState.STABLE and current.member_epoch == assignment_epoch:
        return current
    still_owned = None if owned is None else set(pairs(owned))

    def owns_any(partitions: set[Pair]) -> bool:
        return still_owned is None or not still_owned.isdisjoint(partitions)

    if current.state == MemberState.UNREVOKED_PARTITIONS and owns_any(
        set(pairs(current.partitions_pending_revocation))
    ):
        return current
    wanted = set(pairs(target))
    assigned = set(pairs(current.assigned_partitions))
    kept = assigned & wanted
    if assigned != kept and owns_any(assigned - kept):
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=current.member_epoch,
            previous_member_epoch=current.previous_member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned_partitions=assignment_of(kept),
            partitions_pending_revocation=assignment_of(assigned - kept),
        )
    reached = kept | {pair for pair in wanted - kept if is_free(pair)}
    state = MemberState.STABLE if reached == wanted else MemberState.UNRELEASED_PARTITIONS
    if (
        state == current.state
        and reached == assigned
        and current.member_epoch == assignment_epoch
        and not current.partitions_pending_revocation
    ):
        return current
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=assignment_epoch,
        # Not the previous epoch of the log, since several responses in a row may be lost.
        previous_member_epoch=shown_epoch,
        state=state,
        assigned_partitions=assignment_of(reached),
        partitions_pending_revocation=(),
    )
