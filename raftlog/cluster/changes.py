"""Changes of the cluster's nodes (add, replace, forget): the steps in their safe order.

A failed step ends the change; earlier steps stay done, and the error names the next step by hand.
The order of a replacement: the lost node's vote is removed before a new voter is added, because
votes change one at a time and a dead voter counts against the majority; its replicas are moved to
the new node before the lost one is unregistered, because each must have another holder first.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from raftlog_client import RaftlogClientError

from raftlog.cluster import membership
from raftlog.cluster.errors import ClusterError
from raftlog.record.errors import counted

if TYPE_CHECKING:
    from raftlog_client import Admin

    from raftlog.cluster.local import LocalCluster
    from raftlog.cluster.manifest import NodeEntry

STALL_TIMEOUT_S: Final = 600.0
"""So long without a moved replica needs an operator. The copy of a large one takes minutes."""
LOST_TIMEOUT_S: Final = 10.0
"""So long without any source to copy from: no other node will appear with the data."""
NAMED_MAX: Final = 10
"""Partitions named in a message."""


async def add_node(cluster: LocalCluster, *, voter: bool = False) -> int:
    """Add an empty node; return its id once the node serves. Raises ClusterError."""
    await _require_controller(cluster)
    entry = cluster.add_entry()
    await _start_new(cluster, entry)
    if voter:
        async with membership.admin_of(cluster.addresses) as admin:
            await membership.give_vote(admin, entry.node_id)
        cluster.tell(f"node {entry.node_id} has a vote")
    return entry.node_id


async def forget_node(cluster: LocalCluster, node_id: int) -> None:
    """Stop a node for good: drop its manifest entry, move its data directory to `lost/`.

    The cluster's metadata is not changed. Raises ClusterError.
    """
    await _drop(cluster, node_id)


async def replace_node(cluster: LocalCluster, node_id: int) -> int:
    """Put a new, empty node in the place of one with lost data; return its id.

    The new node takes over vote and replicas. The old data directory is moved to `lost/`, never
    deleted. Raises ClusterError.
    """
    cluster.manifest.node(node_id)
    had_vote = await _check_majority(cluster, node_id)
    others = [cluster.address(other) for other in cluster.node_ids if other != node_id]
    await cluster.stop_node(node_id)
    cluster.tell(f"node {node_id} is stopped")
    async with membership.admin_of(others) as admin:
        if had_vote:
            try:
                await membership.take_vote(admin, node_id)
            except ClusterError as error:
                raise ClusterError(
                    f"node {node_id} is stopped, but {error}",
                    f"`raftlog cluster start-node {node_id}` undoes that; `replace-node` tries on.",
                ) from error
            cluster.tell(f"node {node_id} has no vote any more")
        new = cluster.add_entry()
        await _drop(cluster, node_id)
        await _start_new(cluster, new)
    async with membership.admin_of([*others, cluster.address(new.node_id)]) as admin:
        if had_vote:
            await membership.give_vote(admin, new.node_id)
            cluster.tell(f"node {new.node_id} has a vote")
        if not await membership.forget_if_empty(admin, node_id):
            await _hand_over(cluster, admin, node_id)
            await membership.forget(admin, node_id)
    cluster.tell(f"the cluster has forgotten node {node_id}; node {new.node_id} is in its place")
    return new.node_id


async def _drop(cluster: LocalCluster, node_id: int) -> None:
    aside = await cluster.drop_entry(node_id)
    where = f"its data directory is kept as {aside}" if aside else "it had no data directory"
    cluster.tell(f"node {node_id} is out of the manifest; {where}")


async def _start_new(cluster: LocalCluster, entry: NodeEntry) -> None:
    address = cluster.manifest.address(entry)
    cluster.tell(f"starting node {entry.node_id} at {address}")
    cluster.launch(entry.node_id)
    try:
        await cluster.wait_ready(entry.node_id)
    except ClusterError as error:
        raise ClusterError(
            f"node {entry.node_id} is not ready: {error}",
            "It belongs to the cluster now and is tried on; `raftlog cluster status` shows it.",
        ) from error
    cluster.tell(f"node {entry.node_id} serves at {address}")


async def _require_controller(cluster: LocalCluster) -> None:
    if await cluster.controller() is None:
        raise ClusterError(
            "the cluster has no active controller, so its nodes cannot change",
            "`raftlog quorum describe` shows which voters are missing.",
        )


async def _check_majority(cluster: LocalCluster, node_id: int) -> bool:
    """Whether the node has a vote. Raises ClusterError if the others have no majority."""
    others = [other for other in cluster.node_ids if other != node_id]
    if not others:
        raise ClusterError(
            f"node {node_id} is the only one: no other node has its data",
            "A cluster of one begins anew in an empty directory: `raftlog cluster up --dir …`.",
        )
    addresses = [cluster.address(other) for other in others]
    try:
        async with membership.admin_of(addresses) as admin:
            voters = await membership.voter_ids(admin)
    except RaftlogClientError as error:
        raise ClusterError(f"no other node answers with the voters: {error}") from error
    answering = [
        voter
        for voter in sorted(voters - {node_id})
        if voter in others and await cluster.probes.quorum(cluster.address(voter)) is not None
    ]
    needed = len(voters) // 2 + 1
    if len(answering) < needed:
        raise ClusterError(
            f"without node {node_id} there is no majority: of {counted(len(voters), 'voter')} "
            f"only {len(answering)} of the others answer, {needed} are needed",
            "Bring the others back first: `raftlog cluster status` shows them.",
        )
    return node_id in voters


async def _hand_over(cluster: LocalCluster, admin: Admin, node_id: int) -> None:
    """Move a dead node's replicas to other nodes, and wait. Raises ClusterError."""
    later = (
        f"When nothing is left to move (`raftlog cluster decommission {node_id} --wait`), "
        f"`raftlog cluster remove-node {node_id}` ends the replacement."
    )
    loop = asyncio.get_running_loop()
    moved_s = loop.time()
    deadline_s = moved_s + membership.MOVE_TIMEOUT_S
    left: int | None = None
    lost: list[str] = []
    is_asked = False
    while True:
        try:
            known = await membership.node(admin, node_id)
            if known is None or known.broker_epoch is None:
                return
            if not is_asked:
                await admin.decommission_node(node_id)
                is_asked = True
            progress = await admin.describe_decommission(node_id)
            moves = (await admin.describe_reassignments()).reassignments
        except RaftlogClientError as error:
            if not error.retriable or loop.time() >= moved_s + membership.CHANGE_TIMEOUT_S:
                what = f"the replicas of node {node_id} are not moved: {error}"
                raise ClusterError(what, later) from error
        else:
            if progress.partitions_left == 0:
                return
            if progress.partitions_left != left:
                left, moved_s = progress.partitions_left, loop.time()
                cluster.tell(f"{counted(left, 'replica')} of node {node_id} left to move")
            lost = [
                f"{move.topic}/{move.partition}"
                for move in moves
                if node_id in move.removing and not move.isr
            ]
        stalled_s = loop.time() - moved_s
        if lost and len(lost) == left and stalled_s >= LOST_TIMEOUT_S:
            named = ", ".join(lost[:NAMED_MAX]) + (", …" if len(lost) > NAMED_MAX else "")
            raise ClusterError(
                f"all is in place but {counted(len(lost), 'partition')} of which node {node_id} "
                f"had the only good replica: {named}",
                "If its disk cannot be saved, delete their topics (`raftlog topic delete`); then "
                f"`raftlog cluster remove-node {node_id}` ends the replacement.",
            )
        if stalled_s >= STALL_TIMEOUT_S or loop.time() >= deadline_s:
            raise ClusterError(
                f"{counted(left or 0, 'replica')} of node {node_id} left to move, and it does not "
                "go on; `raftlog cluster reassign` shows which",
                later,
            )
        await asyncio.sleep(membership.MOVE_POLL_S)
