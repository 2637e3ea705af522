"""Changes of one cluster by the client, such as moved replicas and unregistered nodes.

Each may be repeated. The state is read before a change is requested, and after its response was
lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from raftlog_client import Admin, PartitionInfo, RaftlogClientError, ServerError, TopicPartition

from raftlog.fleet.drivers.driver import Tell
from raftlog.fleet.errors import FleetError
from raftlog.fleet.partitions import partition_states
from raftlog.fleet.safety import PartitionState, may_stop
from raftlog.fleet.steps import CreateTopic, SetReplication
from raftlog.record.errors import ILLEGAL_STATE, NOT_FOUND, TOPIC_EXISTS, counted

SAFE_TIMEOUT_S: Final = 600.0
"""Seconds for partitions to come back in sync, before a node may stop."""
MOVE_TIMEOUT_S: Final = 24 * 3600.0
STALL_TIMEOUT_S: Final = 600.0
"""Seconds without a moved replica that need an operator. A large replica takes minutes."""
FORGET_TIMEOUT_S: Final = 60.0
"""Seconds to forget a node. A stopped node counts as dead after a session, which is shorter."""
REQUEST_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.2
NAMED_MAX: Final = 5
"""Partitions named in a message."""


async def await_may_stop(
    admin: Admin,
    node_id: int,
    tell: Tell,
    *,
    is_serving: bool = True,
    timeout_s: float = SAFE_TIMEOUT_S,
) -> None:
    """Wait until no partition needs the node to stay at min.insync.replicas.

    Partitions with too few replicas for that are named, and passed, since waiting never helps. A
    node that does not serve is needed only where it is in sync. Raises FleetError after the
    timeout.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    named: str | None = None
    while True:
        try:
            states = await partition_states(admin, await admin.describe_topics())
        except RaftlogClientError as error:
            if not error.retriable:
                raise
            reason = f"the cluster does not answer: {error}"
        else:
            if not is_serving:
                states = tuple(state for state in states if node_id in state.isr)
            verdict = may_stop(node_id, states)
            if not verdict.blocked:
                if verdict.passed:
                    tell(
                        f"node {node_id} stops although {_named(verdict.passed)} then refuse "
                        "acks=all: with so few replicas waiting never helps"
                    )
                return
            reason = f"{_named(verdict.blocked)} would fall below min.insync.replicas"
        if reason != named:
            named = reason
            tell(f"node {node_id} must not stop yet: {reason}")
        if loop.time() >= deadline_s:
            raise FleetError(
                f"node {node_id} cannot stop: {reason}",
                "`raftlog cluster health` shows which replicas are out of sync.",
            )
        await asyncio.sleep(POLL_S)


async def move_away(admin: Admin, node_id: int, tell: Tell) -> None:
    """Decommission a node, and wait until it holds no replica. Raises FleetError."""
    loop = asyncio.get_running_loop()
    moved_s = loop.time()
    deadline_s = moved_s + MOVE_TIMEOUT_S
    left: int | None = None
    is_requested = False
    while True:
        try:
            if not is_requested:
                await admin.decommission_node(node_id)
                is_requested = True
            progress = await admin.describe_decommission(node_id)
        except RaftlogClientError as error:
            if not error.retriable or loop.time() >= moved_s + REQUEST_TIMEOUT_S:
                raise
        else:
            if progress.partitions_left == 0:
                return
            if progress.partitions_left != left:
                left, moved_s = progress.partitions_left, loop.time()
                tell(f"{counted(left, 'replica')} of node {node_id} left to move")
        if loop.time() >= min(moved_s + STALL_TIMEOUT_S, deadline_s):
            raise FleetError(
                f"{counted(left or 0, 'replica')} of node {node_id} left to move, without progress",
                "`raftlog cluster reassign` shows which.",
            )
        await asyncio.sleep(POLL_S)


async def forget(admin: Admin, node_id: int) -> None:
    """Unregister a stopped, empty node without a vote, once its session has ended.

    Raises FleetError.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + FORGET_TIMEOUT_S
    while True:
        try:
            await admin.remove_node(node_id)
        except ServerError as error:
            if error.entry is NOT_FOUND:
                return
            if error.entry is not ILLEGAL_STATE and not error.retriable:
                raise
            reason: RaftlogClientError = error
        except RaftlogClientError as error:
            if not (error.retriable or error.outcome_unknown):
                raise
            reason = error
        else:
            return
        if loop.time() >= deadline_s:
            raise FleetError(
                f"the cluster does not unregister node {node_id}: {reason}",
                "If its process still runs, where the driver cannot stop it, stop it by hand.",
            )
        await asyncio.sleep(POLL_S)


async def create_topic(admin: Admin, step: CreateTopic) -> None:
    """Create a topic. An existing topic is as good. Raises RaftlogClientError."""
    try:
        await admin.create_topic(
            step.topic,
            partitions=step.partitions,
            replication_factor=step.replication_factor,
            configs=step.config,
        )
    except ServerError as error:
        if error.entry is not TOPIC_EXISTS:
            raise


async def set_replication(
    admin: Admin, step: SetReplication, allowed: Collection[int], tell: Tell
) -> None:
    """Give a topic's partitions as many replicas as written.

    Waits until all are in sync. `allowed` are the nodes that may get replicas. Raises FleetError,
    RaftlogClientError.
    """
    racks = {node.node_id: node.rack for node in await admin.describe_nodes()}
    partitions = (await admin.describe_topic(step.topic)).partitions
    targets = resized(
        partitions, step.replication_factor, {node_id: racks.get(node_id) for node_id in allowed}
    )
    if targets:
        await admin.reassign(targets)
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + MOVE_TIMEOUT_S
    left: int | None = None
    while True:
        moves = (await admin.describe_reassignments()).reassignments
        now = sum(move.topic == step.topic for move in moves)
        if not now:
            return
        if now != left:
            left = now
            tell(f"{counted(now, 'partition')} of {step.topic} left to copy")
        if loop.time() >= deadline_s:
            raise FleetError(
                f"{counted(now, 'partition')} of {step.topic} left to copy, without progress",
                "`raftlog cluster reassign` shows which.",
            )
        await asyncio.sleep(POLL_S)


def resized(
    partitions: Sequence[PartitionInfo], factor: int, racks: Mapping[int, str | None]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Replicas for each partition with another number of them than `factor`. Pure.

    `racks` has the nodes that may get replicas. Replicas in sync stay before others, the preferred
    leader first. Added replicas go to unused racks, then to the nodes with the fewest replicas.
    """
    load = Counter(node_id for info in partitions for node_id in info.replicas)
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for info in partitions:
        if len(info.replicas) == factor:
            continue
        ordered = sorted(info.replicas, key=lambda node_id: node_id not in info.isr)
        chosen = ordered[:factor]
        while len(chosen) < factor:
            used = {racks.get(node_id) for node_id in chosen}
            free = [node_id for node_id in racks if node_id not in chosen]
            if not free:
                raise FleetError(
                    f"{info.topic}/{info.partition} cannot have {factor} replicas on "
                    f"{counted(len(racks), 'node')}"
                )
            best = min(free, key=lambda n: (racks[n] in used, load[n], n))
            chosen.append(best)
            load[best] += 1
        found[TopicPartition(info.topic, info.partition)] = tuple(chosen)
    return found


def _named(partitions: Sequence[PartitionState]) -> str:
    names = ", ".join(str(state) for state in partitions[:NAMED_MAX])
    left = len(partitions) - NAMED_MAX
    return names + (f" and {left} more" if left > 0 else "")
