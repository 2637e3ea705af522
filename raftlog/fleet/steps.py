"""Steps of the reconciler, from one state of a cluster to the next. Values.

Every step may be repeated. The next run repeats an interrupted step. No step deletes a topic, a
record or a data directory.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from raftlog.api.catalog import LogState
from raftlog.record.errors import counted


class _Step(msgspec.Struct, frozen=True, kw_only=True, tag_field="step"):
    cluster: str


class CreateCluster(_Step, frozen=True, kw_only=True, tag="create_cluster"):
    """Start the first voters of a new cluster together."""

    nodes: int
    hosts: tuple[str, ...] = ()


class StartNodes(_Step, frozen=True, kw_only=True, tag="start_nodes"):
    """Start stopped nodes together, as a single node may lack a quorum."""

    node_ids: tuple[int, ...]


class AwaitReady(_Step, frozen=True, kw_only=True, tag="await_ready"):
    """Wait until running nodes are ready."""

    node_ids: tuple[int, ...]


class ReplaceNode(_Step, frozen=True, kw_only=True, tag="replace_node"):
    """Start a node with a lost disk on an empty disk. Its replicas are copied."""

    node_id: int
    host: str = ""
    """The host that takes the node. Empty for the host with the node's settings."""


class RestartNode(_Step, frozen=True, kw_only=True, tag="restart_node"):
    """Restart a node with the version and the settings of the file."""

    node_id: int
    reason: str
    was_ready: bool = True


class JoinNode(_Step, frozen=True, kw_only=True, tag="join_node"):
    """Add an empty node without a vote."""

    number: int
    """Number of nodes of the file after the step."""
    host: str = ""


class GiveVote(_Step, frozen=True, kw_only=True, tag="give_vote"):
    """Make a node a voter."""

    node_id: int


class TakeVote(_Step, frozen=True, kw_only=True, tag="take_vote"):
    """Make a voter an observer."""

    node_id: int


class CancelDecommission(_Step, frozen=True, kw_only=True, tag="cancel_decommission"):
    """Let a node keep its replicas after all."""

    node_id: int


class Decommission(_Step, frozen=True, kw_only=True, tag="decommission"):
    """Move every replica of a node to others, and wait for the last."""

    node_id: int


class RetireNode(_Step, frozen=True, kw_only=True, tag="retire_node"):
    """Stop a decommissioned node for good. Its data directory is kept."""

    node_id: int


class ForgetNode(_Step, frozen=True, kw_only=True, tag="forget_node"):
    """Unregister a stopped, empty node."""

    node_id: int


class CreateTopic(_Step, frozen=True, kw_only=True, tag="create_topic"):
    """Create a topic of the file."""

    topic: str
    partitions: int
    replication_factor: int
    config: dict[str, str]


class GrowTopic(_Step, frozen=True, kw_only=True, tag="grow_topic"):
    """Give a topic more partitions."""

    topic: str
    partitions: int


class SetReplication(_Step, frozen=True, kw_only=True, tag="set_replication"):
    """Give every partition of a topic so many replicas."""

    topic: str
    replication_factor: int


class AlterTopic(_Step, frozen=True, kw_only=True, tag="alter_topic"):
    """Set topic configs."""

    topic: str
    config: dict[str, str]


class PublishLog(_Step, frozen=True, kw_only=True, tag="publish_log"):
    """Write a log's entry in the catalog."""

    log: str
    state: LogState


class ForgetLog(_Step, frozen=True, kw_only=True, tag="forget_log"):
    """Write a tombstone for a log in the catalog."""

    log: str


class StopCluster(_Step, frozen=True, kw_only=True, tag="stop_cluster"):
    """Stop a cluster that is no longer in the file. Its data directories are kept."""


ClusterStep: TypeAlias = (
    CreateCluster
    | StartNodes
    | AwaitReady
    | ReplaceNode
    | RestartNode
    | JoinNode
    | GiveVote
    | TakeVote
    | CancelDecommission
    | Decommission
    | RetireNode
    | ForgetNode
    | CreateTopic
    | GrowTopic
    | SetReplication
    | AlterTopic
)
Step: TypeAlias = ClusterStep | PublishLog | ForgetLog | StopCluster


def line(step: Step) -> str:
    """The step as a line of a plan. `+` adds, `~` changes, `-` takes away."""
    sign, text = _described(step)
    return f"  {sign} {step.cluster}: {text}"


def _described(step: Step) -> tuple[str, str]:  # noqa: PLR0911, PLR0912 - one for each kind
    match step:
        case CreateCluster(nodes=nodes, hosts=hosts):
            where = f" on {', '.join(hosts)}" if hosts else ""
            return "+", f"create the cluster: {counted(nodes, 'voter')}{where}"
        case StartNodes(node_ids=node_ids):
            return "+", f"start {_nodes(node_ids)}"
        case AwaitReady(node_ids=node_ids):
            return "~", f"wait until ready: {_nodes(node_ids)}"
        case JoinNode(number=number, host=host):
            return "+", f"add a node, number {number}{f', on {host}' if host else ''}"
        case CreateTopic(topic=topic, partitions=partitions, replication_factor=factor):
            copies = counted(factor, "replica")
            return "+", f"create topic {topic}: {counted(partitions, 'partition')}, {copies} each"
        case GrowTopic(topic=topic, partitions=partitions):
            return "~", f"grow topic {topic} to {counted(partitions, 'partition')}"
        case SetReplication(topic=topic, replication_factor=factor):
            return "~", f"give each partition of {topic} {counted(factor, 'replica')}"
        case AlterTopic(topic=topic, config=config):
            values = ", ".join(f"{name}={value}" for name, value in config.items())
            return "~", f"set {values} of topic {topic}"
        case PublishLog(log=log, state=state):
            sign = {"creating": "+", "removed": "-"}.get(state, "~")
            return sign, f"list log {log} as {state} in the catalog"
        case ForgetLog(log=log):
            return "-", f"forget log {log} in the catalog"
        case StopCluster():
            return "-", "stop the cluster (its data directories are kept)"
        case RestartNode(node_id=node_id, reason=reason):
            return "~", f"restart node {node_id}: {reason}"
        case _:
            sign, text = _OF_ONE_NODE[type(step)]
            return sign, text.format(step.node_id)


_OF_ONE_NODE: Final[dict[type[Step], tuple[str, str]]] = {
    ReplaceNode: ("~", "start node {} on an empty disk, and copy its replicas"),
    GiveVote: ("+", "give node {} a vote"),
    TakeVote: ("-", "take the vote of node {}"),
    CancelDecommission: ("~", "end the decommission of node {}"),
    Decommission: ("-", "decommission node {}: move its replicas to others"),
    RetireNode: ("-", "stop node {} for good (its data directory is kept)"),
    ForgetNode: ("-", "unregister node {}"),
}


def _nodes(node_ids: tuple[int, ...]) -> str:
    noun = "node" if len(node_ids) == 1 else "nodes"
    return f"{noun} {', '.join(map(str, node_ids))}"
