"""Decides over the in-sync replicas of its partitions whether a node may stop. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition and its replicas, as the cluster's metadata has them."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int
    """The topic's min.insync.replicas."""

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    @property
    def is_under_min_isr(self) -> bool:
        """Whether acks=all is refused. A topic with fewer replicas needs all of them."""
        return len(self.isr) < min(self.min_isr, len(self.replicas))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Partitions that the stop of a node would leave below min.insync.replicas."""

    blocked: tuple[PartitionState, ...]
    """Partitions where other replicas can come back in sync. Wait for these before the stop."""
    passed: tuple[PartitionState, ...]
    """Partitions with too few replicas to wait. These are refused or offline during the stop."""


def may_stop(node_id: int, partitions: Iterable[PartitionState]) -> Verdict:
    """Judge the stop of a node by every partition with a replica on the node.

    A replica out of sync also counts. Its stop would delay the recovery of a partition that is
    below min.insync.replicas already. The stop is safe once nothing is `blocked`.
    """
    blocked: list[PartitionState] = []
    passed: list[PartitionState] = []
    for state in partitions:
        if node_id not in state.replicas:
            continue
        left = sum(replica != node_id for replica in state.isr)
        # A partition without any other replica in sync has no leader during the stop.
        needed = max(1, state.min_isr)
        if left >= needed:
            continue
        can_recover = len(state.replicas) - 1 >= needed
        (blocked if can_recover else passed).append(state)
    return Verdict(tuple(blocked), tuple(passed))
