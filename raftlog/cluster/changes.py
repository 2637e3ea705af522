"""Changes of the cluster's nodes (add, replace, forget), with steps in their safe order.

A failed step ends the change. Earlier steps stay done, and the error names the next step by hand. A
replacement is one start, by `raftlog serve --replace`. The node itself gets place and vote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raftlog_client import RaftlogClientError

from raftlog.cluster import membership
from raftlog.cluster.errors import ClusterError
from raftlog.record.errors import counted

if TYPE_CHECKING:
    from raftlog.cluster.local import LocalCluster
    from raftlog.cluster.manifest import NodeEntry

COPY_TIMEOUT_S: Final = 3_600.0
"""Seconds for the replicas of a lost node. The node continues the copies after an impatient
command."""


async def add_node(cluster: LocalCluster, *, voter: bool = False) -> int:
    """Add an empty node. Return its id once the node serves. Raises ClusterError."""
    await _require_controller(cluster)
    entry = cluster.add_entry()
    await _start_new(cluster, entry)
    if voter:
        async with membership.admin_of(cluster.addresses) as admin:
            await membership.give_vote(admin, entry.node_id)
        cluster.tell(f"node {entry.node_id} has a vote")
    return entry.node_id


async def forget_node(cluster: LocalCluster, node_id: int) -> None:
    """Stop a node for good.

    Its manifest entry is dropped and its data directory moved to `lost/`. The cluster's metadata is
    not changed. Raises ClusterError.
    """
    await _drop(cluster, node_id)


async def replace_node(cluster: LocalCluster, node_id: int) -> int:
    """Put an empty data directory in the place of a lost directory.

    Returns the node's id. The node gets its vote again, and copies of its replicas. The old data
    directory is moved to `lost/`, never deleted. Raises ClusterError.
    """
    cluster.manifest.node(node_id)
    await _check_majority(cluster, node_id)
    aside = await cluster.empty_directory(node_id)
    where = f"its data directory is kept as {aside}" if aside else "it had no data directory"
    cluster.tell(f"node {node_id} is stopped; {where}")
    cluster.launch(node_id)
    cluster.tell(f"starting node {node_id} empty: its replicas are copied from the others")
    await cluster.wait_ready(node_id, timeout_s=COPY_TIMEOUT_S)
    cluster.tell(f"node {node_id} is whole again")
    return node_id


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


async def _check_majority(cluster: LocalCluster, node_id: int) -> None:
    """Raise ClusterError if the others have no majority."""
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
