"""The plan of steps from the observed state of a cluster to the file. Pure.

`next_step` decides one step, `after` predicts its effect, and a plan is both in turn until nothing
is left to do. `apply` observes again before each step, so a wrong prediction costs nothing.

The order of the rules is the safety:

1. Create, start, replace: until every node of the file is up, nothing is stopped.
2. The vote of a dead node that leaves is removed first, as a dead voter counts against the
   majority.
3. A node that is not ready is restarted with the settings of the file, or waited for.
4. Restarts, one node at a time, the controller last.
5. New nodes, then votes: given before taken, one at a time.
6. Topics: more replicas need the new nodes, and fewer must be reached before nodes leave.
7. Nodes that leave: emptied, stopped, unregistered, one at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never

import msgspec

from raftlog.api.catalog import CatalogEntry, LogState
from raftlog.fleet.errors import FleetError
from raftlog.fleet.spec import ClusterSpec, FleetSpec, TopicSpec
from raftlog.fleet.state import ClusterState, NodeState, TopicState
from raftlog.fleet.steps import (
    AlterTopic,
    AwaitReady,
    CancelDecommission,
    ClusterStep,
    CreateCluster,
    CreateTopic,
    Decommission,
    ForgetLog,
    ForgetNode,
    GiveVote,
    GrowTopic,
    JoinNode,
    PublishLog,
    ReplaceNode,
    RestartNode,
    RetireNode,
    SetReplication,
    StartNodes,
    Step,
    StopCluster,
    TakeVote,
)

STEPS_MAX: Final = 1_000
"""Steps of one cluster. A longer plan does not converge."""
TOPICS_NAMED_MAX: Final = 10


def kept_nodes(spec: ClusterSpec, state: ClusterState) -> tuple[NodeState, ...]:
    """The nodes that stay, by the file's hosts, or those with the lowest ids."""
    managed = [node for node in state.nodes if node.is_managed]
    if spec.driver == "local":
        return tuple(managed[: spec.size])
    first: dict[str, NodeState] = {}
    for node in managed:
        first.setdefault(node.host, node)
    return tuple(first[machine.name] for machine in spec.machines if machine.name in first)


def missing_hosts(spec: ClusterSpec, state: ClusterState) -> tuple[str, ...]:
    """Hosts in the file without a node (driver ssh)."""
    have = {node.host for node in kept_nodes(spec, state)}
    return tuple(machine.name for machine in spec.machines if machine.name not in have)


def difference(spec: ClusterSpec, node: NodeState) -> str | None:
    """Why a node must be restarted to be as written. None if nothing differs."""
    reasons = []
    if spec.version is not None and node.version not in (None, spec.version):
        reasons.append(f"version {node.version} → {spec.version}")
    if not node.has_settings:
        reasons.append("new settings")
    return ", ".join(reasons) or None


def wanted_voters(spec: ClusterSpec, state: ClusterState) -> set[int]:
    """The nodes that should vote, present voters first, then the lowest ids."""
    kept = kept_nodes(spec, state)
    ordered = sorted(kept, key=lambda node: (not node.is_voter, node.node_id))
    return {node.node_id for node in ordered[: spec.voter_count]}


def next_step(
    spec: ClusterSpec,
    state: ClusterState,
    topics: Sequence[TopicSpec] = (),
    lost: Collection[int] = (),
) -> ClusterStep | None:
    """The next step for a cluster, or None if all is as written.

    `topics` are those of the file. `lost` are nodes to start on an empty disk if they are not
    ready. Raises FleetError if data may be lost and the operator has not confirmed it.
    """
    rules = (
        _bring_up(spec, state, lost),
        _take_dead_votes(spec, state),
        _repair(spec, state),
        _restart(spec, state),
        _grow(spec, state),
        _move_votes(spec, state),
        _keep_topics(spec, state, topics),
        _shrink(spec, state),
    )
    return next((step for rule in rules for step in rule), None)


def _bring_up(
    spec: ClusterSpec, state: ClusterState, lost: Collection[int]
) -> Iterator[ClusterStep]:
    name = spec.name
    if not state.is_created:
        hosts = tuple(machine.name for machine in spec.machines[: spec.voter_count])
        yield CreateCluster(cluster=name, nodes=spec.voter_count, hosts=hosts)
        return
    kept = kept_nodes(spec, state)
    # Without a leader a node that is to leave may be the missing vote.
    needed = kept if state.is_led else [node for node in state.nodes if node.is_managed]
    for node in kept:
        is_lost = node.node_id in lost or (node.node_id in spec.replace and not node.has_data)
        if is_lost and not node.is_ready and state.is_led:
            yield ReplaceNode(cluster=name, node_id=node.node_id)
    if state.is_led:
        yield from _replace_elsewhere(spec, state, lost)
    stopped = [node for node in needed if not node.is_running]
    _require_data(spec, state, stopped)
    if not state.is_led:
        # Only a leader knows whether an empty node has been a member.
        stopped = [node for node in stopped if node.has_data]
    if stopped:
        yield StartNodes(cluster=name, node_ids=tuple(node.node_id for node in stopped))
    if not state.is_led:
        # A node that may have lost its disk is not awaited. A leader comes without it, or not at
        # all.
        awaited = [node for node in needed if node.is_running or node.has_data]
        late = [node for node in awaited if not node.is_ready]
        yield AwaitReady(cluster=name, node_ids=tuple(n.node_id for n in late or awaited))


def _replace_elsewhere(
    spec: ClusterSpec, state: ClusterState, lost: Collection[int]
) -> Iterator[ReplaceNode]:
    """Give a lost node without settings the only host that runs no other node."""
    hosts = missing_hosts(spec, state)
    away = {node.node_id: node for node in state.nodes if not node.is_managed}
    for node_id in sorted(lost):
        if len(hosts) == 1 and node_id in away and not away[node_id].is_ready:
            yield ReplaceNode(cluster=spec.name, node_id=node_id, host=hosts[0])
        elif hosts and spec.keeps_found:
            # A new node on the host would be a mistake.
            raise FleetError(
                f"{spec.name}: node {node_id} is alive at {away[node_id].address}, so it cannot be "
                "replaced"
                if node_id in away
                else f"{spec.name}: there is no node {node_id} to replace"
            )


def _require_data(spec: ClusterSpec, state: ClusterState, stopped: Sequence[NodeState]) -> None:
    """Raise FleetError if a start would take an empty directory for a node's own."""
    if stopped and not state.is_led and not any(node.has_data for node in state.nodes):
        raise FleetError(
            f"{spec.name}: the data directory of every node is empty",
            "If the disks are not mounted, mount them. If the cluster never served, or all of its "
            f"data is lost, {_begin_again(spec)}.",
        )
    for node in stopped:
        if state.is_led and node.is_registered and not node.has_data:
            raise FleetError(
                f"{spec.name}: node {node.node_id} has been a member, and its data directory is "
                "empty",
                "If its disk is not mounted, mount it. If it is lost: "
                f"`{spec.replacing(node.node_id)}` copies its replicas again.",
            )


def _begin_again(spec: ClusterSpec) -> str:
    if spec.keeps_found:
        return f"remove {spec.name}-*.toml in /etc/raftlog on every host, and run the command again"
    return "begin a new one under another name"


def _take_dead_votes(spec: ClusterSpec, state: ClusterState) -> Iterator[ClusterStep]:
    if spec.keeps_found or len(state.voters) < 2:
        return
    kept = kept_nodes(spec, state)
    for node in state.voters:
        if node not in kept and not node.is_running:
            yield TakeVote(cluster=spec.name, node_id=node.node_id)


def _repair(spec: ClusterSpec, state: ClusterState) -> Iterator[ClusterStep]:
    kept = kept_nodes(spec, state)
    for node in kept:
        if not node.is_ready and (reason := difference(spec, node)) is not None:
            yield RestartNode(
                cluster=spec.name, node_id=node.node_id, reason=reason, was_ready=False
            )
    late = tuple(node.node_id for node in kept if not node.is_ready)
    if late:
        yield AwaitReady(cluster=spec.name, node_ids=late)


def _restart(spec: ClusterSpec, state: ClusterState) -> Iterator[ClusterStep]:
    # The controller is last, as every other order elects its successor twice.
    for node in sorted(
        kept_nodes(spec, state), key=lambda n: (n.node_id == state.controller_id, n.node_id)
    ):
        if (reason := difference(spec, node)) is not None:
            yield RestartNode(cluster=spec.name, node_id=node.node_id, reason=reason)


def _grow(spec: ClusterSpec, state: ClusterState) -> Iterator[ClusterStep]:
    kept = kept_nodes(spec, state)
    for node in kept:
        if node.is_decommissioning and not spec.keeps_found:
            yield CancelDecommission(cluster=spec.name, node_id=node.node_id)
    if len(kept) < spec.size:
        host = next(iter(missing_hosts(spec, state)), "")
        _require_new(spec, state, host)
        yield JoinNode(cluster=spec.name, number=len(kept) + 1, host=host)


def _require_new(spec: ClusterSpec, state: ClusterState, host: str) -> None:
    """Raise FleetError for the host of a member, whose votes and replicas stay as found."""
    for node in state.nodes:
        is_member = (node.is_registered or node.is_voter) and not node.is_decommissioning
        if spec.keeps_found and node.host == host and not node.is_managed and is_member:
            raise FleetError(
                f"{spec.name}: node {node.node_id} was at {node.address}, and its host has no "
                "settings any more",
                f"If its disk is lost: `{spec.replacing(node.node_id)}` takes its place.",
            )


def _move_votes(spec: ClusterSpec, state: ClusterState) -> Iterator[ClusterStep]:
    if spec.keeps_found:
        return
    wanted = wanted_voters(spec, state)
    present = {node.node_id for node in state.voters}
    for node_id in sorted(wanted - present):
        yield GiveVote(cluster=spec.name, node_id=node_id)
    for node_id in sorted(present - wanted, reverse=True):
        yield TakeVote(cluster=spec.name, node_id=node_id)


def _keep_topics(
    spec: ClusterSpec, state: ClusterState, topics: Sequence[TopicSpec]
) -> Iterator[ClusterStep]:
    for topic in topics:
        known = state.topics.get(topic.name)
        if known is None:
            yield CreateTopic(
                cluster=spec.name,
                topic=topic.name,
                partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                config=dict(topic.config),
            )
            continue
        if known.partitions < topic.partitions:
            yield GrowTopic(cluster=spec.name, topic=topic.name, partitions=topic.partitions)
        if known.replication_factor != topic.replication_factor:
            yield SetReplication(
                cluster=spec.name, topic=topic.name, replication_factor=topic.replication_factor
            )
        changes = {
            name: value for name, value in topic.config.items() if known.config.get(name) != value
        }
        if changes:
            yield AlterTopic(cluster=spec.name, topic=topic.name, config=changes)


def _shrink(spec: ClusterSpec, state: ClusterState) -> Iterator[ClusterStep]:
    if spec.keeps_found:
        return
    kept = kept_nodes(spec, state)
    for node in state.nodes:
        if node in kept:
            continue
        is_empty = node.is_decommissioning and not node.held
        if node.is_registered and not is_empty:
            yield Decommission(cluster=spec.name, node_id=node.node_id)
        if node.is_managed:
            yield RetireNode(cluster=spec.name, node_id=node.node_id)
        yield ForgetNode(cluster=spec.name, node_id=node.node_id)


def problems(
    spec: ClusterSpec, state: ClusterState, topics: Sequence[TopicSpec] = ()
) -> tuple[str, ...]:
    """Differences from the file that no step removes, so that an operator must."""
    found = []
    for topic in topics:
        known = state.topics.get(topic.name)
        if known is not None and known.partitions > topic.partitions:
            found.append(
                f"topic {topic.name} has {known.partitions} partitions, the file says "
                f"{topic.partitions}: partitions never shrink, so write {known.partitions}"
            )
    others = sorted(state.partitions.keys() - {topic.name for topic in topics})
    if spec.log is not None and others:
        named = ", ".join(others[:TOPICS_NAMED_MAX])
        found.append(
            f"a cluster of exactly one log has other topics: {named}; "
            "`raftlog topic delete` deletes them"
        )
    return tuple(found)


def plan_cluster(
    spec: ClusterSpec,
    state: ClusterState,
    topics: Sequence[TopicSpec] = (),
    lost: Collection[int] = (),
) -> tuple[tuple[ClusterStep, ...], ClusterState]:
    """All steps of a cluster, and its state after these. Raises FleetError without an end.

    In a cluster without a leader, membership and topics are not known, and the plan ends with it.
    """
    steps: list[ClusterStep] = []
    is_blind = state.is_created and not state.is_led
    while not (is_blind and state.is_led):
        step = next_step(spec, state, topics, lost)
        if step is None:
            break
        if len(steps) >= STEPS_MAX:
            raise FleetError(f"cluster {spec.name}: the plan has no end; its last step is {step}")
        steps.append(step)
        state = after(spec, state, step)
    return tuple(steps), state


def after(spec: ClusterSpec, state: ClusterState, step: ClusterStep) -> ClusterState:  # noqa: PLR0911, PLR0912 - one branch for each kind
    """The predicted state after a step."""
    match step:
        case CreateCluster(nodes=count, hosts=hosts):
            nodes = [
                _started(
                    spec,
                    NodeState(
                        node_id=number, is_voter=True, host=hosts[number - 1] if hosts else ""
                    ),
                )
                for number in range(1, count + 1)
            ]
            return replace(state, nodes=tuple(nodes), is_created=True, is_led=True)
        case StartNodes(node_ids=node_ids):
            started = tuple(
                _started(spec, node) if node.node_id in node_ids else node for node in state.nodes
            )
            return replace(state, nodes=started, is_led=True)
        case AwaitReady(node_ids=node_ids):
            ready = tuple(
                replace(node, is_ready=True, why=None) if node.node_id in node_ids else node
                for node in state.nodes
            )
            return replace(state, nodes=ready, is_led=True)
        case RestartNode(node_id=node_id):
            return _with(state, _started(spec, state.node(node_id)))
        case ReplaceNode(node_id=node_id, host=host):
            node = state.node(node_id)
            back = replace(node, host=host or node.host, is_managed=True)
            return _with(state, _started(spec, back))
        case JoinNode(host=host):
            new = NodeState(node_id=_next_id(state), host=host)
            return replace(state, nodes=(*state.nodes, _started(spec, new)))
        case GiveVote(node_id=node_id):
            return _with(state, replace(state.node(node_id), is_voter=True))
        case TakeVote(node_id=node_id):
            return _with(state, replace(state.node(node_id), is_voter=False))
        case CancelDecommission(node_id=node_id):
            return _with(state, replace(state.node(node_id), is_decommissioning=False))
        case Decommission(node_id=node_id):
            return _with(state, replace(state.node(node_id), is_decommissioning=True, held=0))
        case RetireNode(node_id=node_id):
            node = state.node(node_id)
            if not node.is_registered:
                return _without(state, node_id)
            stopped = replace(node, is_managed=False, is_running=False, is_ready=False)
            return _with(state, stopped)
        case ForgetNode(node_id=node_id):
            return _without(state, node_id)
        case CreateTopic(topic=topic):
            made = TopicState(step.partitions, step.replication_factor, step.config)
            return _with_topic(state, topic, made)
        case GrowTopic(topic=topic, partitions=partitions):
            known = state.topics[topic]
            return _with_topic(state, topic, replace(known, partitions=partitions))
        case SetReplication(topic=topic, replication_factor=factor):
            known = state.topics[topic]
            return _with_topic(state, topic, replace(known, replication_factor=factor))
        case AlterTopic(topic=topic, config=config):
            known = state.topics[topic]
            return _with_topic(state, topic, replace(known, config={**known.config, **config}))
        case _:
            assert_never(step)


def _started(spec: ClusterSpec, node: NodeState) -> NodeState:
    version = spec.version or node.version
    return replace(
        node,
        is_running=True,
        is_ready=True,
        why=None,
        has_settings=True,
        has_data=True,
        version=version,
    )


def _next_id(state: ClusterState) -> int:
    return max((node.node_id for node in state.nodes), default=0) + 1


def _with(state: ClusterState, changed: NodeState) -> ClusterState:
    return replace(
        state,
        nodes=tuple(changed if node.node_id == changed.node_id else node for node in state.nodes),
    )


def _without(state: ClusterState, node_id: int) -> ClusterState:
    return replace(state, nodes=tuple(node for node in state.nodes if node.node_id != node_id))


def _with_topic(state: ClusterState, name: str, topic: TopicState) -> ClusterState:
    partitions = {**state.partitions, name: topic.partitions}
    return replace(state, topics={**state.topics, name: topic}, partitions=partitions)


# The catalog


def log_state(spec: ClusterSpec, state: ClusterState, log: str) -> LogState:
    """The state of one of the cluster's logs, for the catalog."""
    if not state.is_created or (state.is_led and log not in state.partitions):
        return "creating"
    is_ready = all(node.is_ready for node in kept_nodes(spec, state))
    is_whole = state.is_led and is_ready and not state.under_min_isr
    return "online" if is_whole else "degraded"


def wanted_entries(
    spec: ClusterSpec, state: ClusterState, catalog: Mapping[str, CatalogEntry]
) -> dict[str, CatalogEntry]:
    """The entries of a cluster's logs. For an unknown part, the known entry is kept."""
    addresses = tuple(node.address for node in kept_nodes(spec, state))
    found = {}
    for log in spec.listed:
        entry = CatalogEntry(
            log=log,
            cluster=spec.name,
            cluster_id=state.cluster_id,
            addresses=addresses,
            partitions=state.partitions.get(log, spec.partitions),
            state=log_state(spec, state, log),
        )
        known = catalog.get(log)
        if not state.is_led and known is not None and known.cluster == spec.name:
            # Without a leader the rest is not known. A log that was never usable is not usable
            # either.
            was_usable = known.state != "creating"
            entry = msgspec.structs.replace(
                entry,
                cluster_id=known.cluster_id,
                partitions=known.partitions,
                state=entry.state if was_usable else known.state,
            )
        found[log] = entry
    return found


def catalog_steps(
    spec: ClusterSpec, state: ClusterState, catalog: Mapping[str, CatalogEntry]
) -> tuple[PublishLog, ...]:
    """The entries of a cluster's logs that differ and must be written."""
    return tuple(
        PublishLog(cluster=spec.name, log=log, state=entry.state)
        for log, entry in wanted_entries(spec, state, catalog).items()
        if catalog.get(log) != entry
    )


def removal_steps(
    fleet: FleetSpec,
    applied: Sequence[ClusterSpec],
    catalog: Mapping[str, CatalogEntry],
    *,
    prune: bool,
) -> tuple[Step, ...]:
    """The steps for clusters and logs that are applied and left the file.

    A cluster is stopped, and its logs forgotten, only with `prune`. Entries of other fleets that
    share the home cluster are left alone.
    """
    steps: list[Step] = []
    present = {spec.name: spec for spec in fleet.cluster}
    for old in applied:
        new = present.get(old.name)
        gone = [log for log in old.listed if new is None or log not in new.listed]
        entries = [
            entry for log in gone if (entry := catalog.get(log)) and entry.cluster == old.name
        ]
        if new is None and prune:
            steps.append(StopCluster(cluster=old.name))
            steps += [ForgetLog(cluster=old.name, log=entry.log) for entry in entries]
        else:
            steps += [
                PublishLog(cluster=old.name, log=entry.log, state="removed")
                for entry in entries
                if entry.state != "removed"
            ]
    return tuple(steps)
