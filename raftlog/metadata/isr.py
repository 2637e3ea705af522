"""The arithmetic of in-sync sets. Part of command version 1: every node must come to the same.

Safety of the ELR (KIP-966) rests on one rule, which partition leaders must keep: nothing is
committed while the ISR has fewer than `min(min.insync.replicas, replicas)` members. So whoever was
in the ISR when it fell below has all that was committed until it is filled up again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from raftlog.metadata.configs import MIN_ISR
from raftlog.metadata.image import PartitionImage
from raftlog.record.types import BrokerId

MIN_ISR_DIGITS_MAX = 10


def in_order(replicas: tuple[BrokerId, ...], members: Collection[BrokerId]) -> tuple[BrokerId, ...]:
    """Those of `replicas` that are among `members`. All of them: the same tuple, for its memory."""
    chosen = tuple(broker_id for broker_id in replicas if broker_id in members)
    return replicas if len(chosen) == len(replicas) else chosen


def min_isr_in_force(
    configs: Mapping[str, str], cluster_settings: Mapping[str, str], default: int
) -> int:
    """min.insync.replicas of a topic: its own, else the cluster's, else `default`.

    `default` comes with the command, because releases may differ in it. A value that is no number
    counts as 1, the safest for the ELR: it leaves the fewest members eligible.
    """
    value = configs.get(MIN_ISR, cluster_settings.get(MIN_ISR))
    if value is None:
        return default
    if value.isascii() and value.isdigit() and len(value) <= MIN_ISR_DIGITS_MAX:
        return max(1, int(value))
    return 1


def next_elr(
    row: PartitionImage,
    *,
    replicas: tuple[BrokerId, ...],
    isr: tuple[BrokerId, ...],
    min_isr: int,
    not_eligible: Collection[BrokerId] = (),
) -> tuple[BrokerId, ...]:
    """The ELR when the ISR becomes `isr`: empty while enough are in sync, else who was before.

    Whoever leaves the last, so that nobody is in sync any more, is eligible in any case: the ISR
    is then below every minimum.
    """
    if len(isr) >= min_isr:
        return ()
    were = {*row.isr, *row.elr}.difference(isr, not_eligible)
    return in_order(replicas, were) if were else ()
