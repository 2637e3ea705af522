"""The plan: its order in examples, its safety and its end by random histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.api.catalog import CatalogEntry
from raftlog.fleet import plan, steps
from raftlog.fleet.deploy import cluster_of
from raftlog.fleet.errors import FleetError
from raftlog.fleet.safety import PartitionState
from raftlog.fleet.spec import ClusterSpec, FleetSpec, TopicSpec, parse
from raftlog.fleet.state import ClusterState, NodeState, TopicState
from tests.examples import examples

TOPIC = TopicSpec("orders", 1, 1, {"retention.ms": "1000"})
EMPTY = ClusterState(is_created=False, is_led=False)


def spec(nodes: int = 3, **changes: Any) -> ClusterSpec:
    return ClusterSpec(driver="local", name="c", nodes=nodes, dir="/d", **changes)


def ssh_spec(*hosts: str, **changes: Any) -> ClusterSpec:
    return ClusterSpec(driver="ssh", name="c", hosts=hosts, **changes)


def running(count: int = 3, voters: int = 3, **changes: Any) -> ClusterState:
    nodes = tuple(
        NodeState(node_id=n, is_voter=n <= voters, address=f"h{n}:1", version="1", host="")
        for n in range(1, count + 1)
    )
    return replace(ClusterState(nodes=nodes, controller_id=1, cluster_id="id"), **changes)


def changed(state: ClusterState, node_id: int, **changes: Any) -> ClusterState:
    return replace(
        state,
        nodes=tuple(
            replace(node, **changes) if node.node_id == node_id else node for node in state.nodes
        ),
    )


def lines(found: Sequence[steps.Step]) -> list[str]:
    return [steps.line(step).strip() for step in found]


def planned(
    written: ClusterSpec, state: ClusterState, topics: Sequence[TopicSpec] = (), lost: Any = ()
) -> list[str]:
    return lines(plan.plan_cluster(written, state, topics, lost)[0])


# Examples


def test_new_cluster_begins_with_its_voters_and_then_grows() -> None:
    assert planned(spec(5), EMPTY, [TOPIC]) == [
        "+ c: create the cluster: 3 voters",
        "+ c: add a node, number 4",
        "+ c: add a node, number 5",
        "+ c: create topic orders: 1 partition, 1 replica each",
    ]
    assert planned(ssh_spec("h1", "h2"), EMPTY) == ["+ c: create the cluster: 2 voters on h1, h2"]


def test_nothing_is_to_do_once_all_is_as_written() -> None:
    assert planned(spec(), running()) == []


def test_upgrade_restarts_one_node_after_the_other_and_the_controller_last() -> None:
    assert planned(spec(version="2"), running()) == [
        "~ c: restart node 2: version 1 → 2",
        "~ c: restart node 3: version 1 → 2",
        "~ c: restart node 1: version 1 → 2",
    ]


def test_new_settings_are_rolled_out_only_where_they_are_missing() -> None:
    assert planned(spec(), changed(running(), 2, has_settings=False)) == [
        "~ c: restart node 2: new settings"
    ]


def test_node_that_leaves_is_emptied_before_its_stop() -> None:
    state = changed(running(4), 4, held=7)
    assert planned(spec(3), state) == [
        "- c: decommission node 4: move its replicas to others",
        "- c: stop node 4 for good (its data directory is kept)",
        "- c: unregister node 4",
    ]


def test_interrupted_removal_goes_on_where_it_was() -> None:
    state = changed(running(4), 4, is_decommissioning=True)
    assert planned(spec(3), state) == [
        "- c: stop node 4 for good (its data directory is kept)",
        "- c: unregister node 4",
    ]
    stopped = changed(state, 4, is_managed=False, is_running=False, is_ready=False)
    assert planned(spec(3), stopped) == ["- c: unregister node 4"]
    assert planned(spec(4), state) == ["~ c: end the decommission of node 4"]


def test_vote_is_given_before_one_is_taken() -> None:
    state = running(4)
    hosts = [replace(node, host=f"h{node.node_id}") for node in state.nodes]
    found = planned(ssh_spec("h1", "h3", "h4"), replace(state, nodes=tuple(hosts)))
    assert found[:2] == ["+ c: give node 4 a vote", "- c: take the vote of node 2"]
    assert "- c: decommission node 2: move its replicas to others" in found


def test_vote_of_a_dead_node_that_leaves_is_taken_first() -> None:
    state = running(4)
    hosts = tuple(replace(node, host=f"h{node.node_id}") for node in state.nodes)
    dead = changed(replace(state, nodes=hosts), 2, is_running=False, is_ready=False, held=1)
    assert planned(ssh_spec("h1", "h3", "h4", version="2"), dead)[:2] == [
        "- c: take the vote of node 2",
        "~ c: restart node 3: version 1 → 2",
    ]


def test_nothing_is_stopped_while_a_node_is_down() -> None:
    state = changed(running(4), 2, is_running=False, is_ready=False)
    found = planned(spec(3, version="2"), state)
    assert found[0] == "+ c: start node 2"
    late = changed(running(4), 2, is_ready=False)
    assert planned(spec(3), late)[0] == "~ c: wait until ready: node 2"


def test_node_that_cannot_become_ready_gets_the_new_settings_first() -> None:
    state = changed(running(), 2, is_ready=False, has_settings=False)
    assert planned(spec(), state) == ["~ c: restart node 2: new settings"]


def test_whole_cluster_is_started_at_once() -> None:
    state = running(4)
    for node_id in range(1, 5):
        state = changed(state, node_id, is_running=False, is_ready=False, is_registered=False)
    # Without a leader the fourth, which is to leave, may be needed.
    down = replace(state, is_led=False)
    # The plan ends there: nothing else is known.
    assert planned(spec(3), down, [TOPIC]) == ["+ c: start nodes 1, 2, 3, 4"]


def test_empty_data_directory_is_never_taken_for_a_lost_disk() -> None:
    state = changed(running(), 3, is_running=False, is_ready=False, has_data=False)
    with pytest.raises(FleetError, match="directory is empty") as caught:
        planned(spec(), state)
    assert "--replace c/3" in (caught.value.hint or "")
    replacement = ["~ c: start node 3 on an empty disk, and copy its replicas"]
    assert planned(spec(), state, lost=[3]) == replacement
    assert planned(spec(replace=(3,)), state) == replacement
    # A node that is named in the file, but has its data, is started as any other.
    whole = changed(state, 3, has_data=True)
    assert planned(spec(replace=(3,)), whole) == ["+ c: start node 3"]
    assert planned(spec(replace=(3,)), running()) == []


def test_cluster_that_lost_every_disk_is_not_begun_again() -> None:
    state = running(1, is_led=False)
    state = changed(state, 1, is_running=False, is_ready=False, has_data=False)
    with pytest.raises(FleetError, match="every node is empty"):
        planned(spec(1), state)


def test_without_a_leader_nodes_with_data_are_started_first() -> None:
    state = running(is_led=False)
    for node_id in (1, 2, 3):
        state = changed(state, node_id, is_running=False, is_ready=False, has_data=node_id < 3)
    assert planned(spec(), state, lost=[3]) == ["+ c: start nodes 1, 2"]


def test_without_a_leader_no_node_with_a_lost_disk_is_waited_for() -> None:
    state = changed(running(is_led=False), 3, is_running=False, is_ready=False, has_data=False)
    late = changed(state, 2, is_ready=False)
    assert planned(spec(), late) == ["~ c: wait until ready: node 2"]
    assert planned(spec(), state) == ["~ c: wait until ready: nodes 1, 2"]


def test_node_that_never_was_a_member_may_be_empty() -> None:
    state = changed(
        running(4), 4, is_running=False, is_ready=False, has_data=False, is_registered=False
    )
    assert planned(spec(4), state) == ["+ c: start node 4"]


def test_topic_is_kept_as_written() -> None:
    known = TopicState(1, 2, {"retention.ms": "5"})
    state = running(topics={"orders": known}, partitions={"orders": 1})
    wanted = TopicSpec("orders", 3, 3, {"retention.ms": "1000", "cleanup.policy": "delete"})
    assert planned(spec(), state, [wanted]) == [
        "~ c: grow topic orders to 3 partitions",
        "~ c: give each partition of orders 3 replicas",
        "~ c: set retention.ms=1000, cleanup.policy=delete of topic orders",
    ]


def test_partitions_never_shrink_and_other_topics_are_named() -> None:
    state = running(
        topics={"orders": TopicState(5, 1, {})}, partitions={"orders": 5, "other": 1, "more": 1}
    )
    log = ClusterSpec(driver="local", log="orders", name="c", nodes=3, dir="/d")
    fewer = TopicSpec("orders", 3, 1, {})
    assert planned(log, state, [fewer]) == []
    first, second = plan.problems(log, state, [fewer])
    assert "partitions never shrink" in first
    assert "more, other" in second
    # Any number of topics is right in a cluster without `log`.
    assert plan.problems(spec(), state) == ()


def test_fewer_replicas_come_before_nodes_leave() -> None:
    state = running(5, topics={"orders": TopicState(1, 5, {})}, partitions={"orders": 1})
    found = planned(spec(3), state, [TopicSpec("orders", 1, 3, {})])
    shrunk = found.index("~ c: give each partition of orders 3 replicas")
    assert shrunk < min(i for i, text in enumerate(found) if "decommission" in text)


def hosted(*hosts: str, **changes: Any) -> ClusterState:
    """A cluster with a node on each host; node 1 is the controller, the first three vote."""
    state = running(len(hosts))
    nodes = (replace(node, host=host) for node, host in zip(state.nodes, hosts, strict=True))
    return replace(state, nodes=tuple(nodes), **changes)


def test_without_a_file_votes_decommissions_and_other_nodes_stay_as_found() -> None:
    written = cluster_of(["h1", "h2", "h3"])
    state = changed(hosted("h1", "h2", "h3", "h4"), 1, is_voter=False)
    state = changed(state, 2, is_decommissioning=True, version="2")
    away = {"is_managed": False, "is_running": False, "is_ready": False, "is_voter": True}
    assert planned(written, changed(state, 4, **away)) == []
    # Only the release is that of the command.
    assert planned(msgspec.structs.replace(written, version="2"), changed(state, 4, **away)) == [
        "~ node: restart node 3: version 1 → 2",
        "~ node: restart node 1: version 1 → 2",
    ]


def test_without_a_file_a_host_without_settings_has_lost_its_member() -> None:
    written = cluster_of(["h1", "h2", "h3"])
    state = changed(hosted("h1", "h2", "h3"), 3, is_managed=False, is_ready=False)
    with pytest.raises(FleetError, match="node 3 was at h3:1, and its host") as caught:
        planned(written, state)
    assert "scripts/deploy --replace 3" in (caught.value.hint or "")
    # In its place, or in that of another host.
    for words in (["h1", "h2", "h3"], ["h1", "h2", "h9"]):
        found, end = plan.plan_cluster(cluster_of(words), state, (), {3})
        assert found == (steps.ReplaceNode(cluster="node", node_id=3, host=words[2]),)
        assert end.node(3).host == words[2] and end.node(3).is_managed
    with pytest.raises(FleetError, match="node 3 is alive at h3:1"):
        planned(cluster_of(["h1", "h2", "h9"]), changed(state, 3, is_ready=True), lost={3})
    with pytest.raises(FleetError, match="there is no node 7 to replace"):
        planned(written, state, lost={7})


# The catalog

LOG = ClusterSpec(driver="local", log="orders", name="c", nodes=3, dir="/d")


def entry(**changes: Any) -> CatalogEntry:
    values = {
        "log": "orders",
        "cluster": "c",
        "cluster_id": "id",
        "addresses": ("h1:1", "h2:1", "h3:1"),
        "state": "online",
    }
    return CatalogEntry(**{**values, **changes})


def listed(state: ClusterState, catalog: Any = None) -> str:
    return plan.wanted_entries(LOG, state, catalog or {})["orders"].state


def test_entry_follows_the_state_of_its_cluster() -> None:
    whole = running(partitions={"orders": 1})
    assert plan.wanted_entries(LOG, whole, {})["orders"] == entry()
    assert listed(EMPTY) == "creating"
    assert listed(running()) == "creating"
    assert listed(changed(whole, 2, is_ready=False)) == "degraded"
    under = PartitionState("orders", 0, (1, 2, 3), (1,), 2)
    assert listed(replace(whole, under_min_isr=(under,))) == "degraded"


def test_cluster_without_a_leader_keeps_what_the_catalog_knows() -> None:
    blind = running(is_led=False, cluster_id="")
    known = {"orders": entry(partitions=7)}
    assert plan.wanted_entries(LOG, blind, known)["orders"] == entry(partitions=7, state="degraded")


def test_log_under_creation_stays_so_until_its_cluster_has_a_leader() -> None:
    blind = running(is_led=False, cluster_id="")
    assert listed(blind, {"orders": entry(state="creating")}) == "creating"
    assert listed(blind) == "degraded"


def test_only_entries_that_differ_are_written() -> None:
    whole = running(partitions={"orders": 1})
    assert plan.catalog_steps(LOG, whole, {"orders": entry()}) == ()
    (step,) = plan.catalog_steps(LOG, whole, {"orders": entry(addresses=("h1:1",))})
    assert steps.line(step) == "  ~ c: list log orders as online in the catalog"


def test_cluster_out_of_the_file_is_listed_as_removed_and_stopped_only_by_prune() -> None:
    catalog = {"orders": entry()}
    left = lines(plan.removal_steps(FleetSpec(), [LOG], catalog, prune=False))
    assert left == ["- c: list log orders as removed in the catalog"]
    removed = {"orders": entry(state="removed")}
    assert plan.removal_steps(FleetSpec(), [LOG], removed, prune=False) == ()
    assert lines(plan.removal_steps(FleetSpec(), [LOG], removed, prune=True)) == [
        "- c: stop the cluster (its data directories are kept)",
        "- c: forget log orders in the catalog",
    ]


def test_entries_of_other_fleets_are_left_alone() -> None:
    catalog = {"orders": entry(cluster="another"), "x": entry(log="x", cluster="theirs")}
    assert plan.removal_steps(FleetSpec(), [LOG], catalog, prune=False) == ()


def test_log_that_leaves_its_clusters_list_is_removed() -> None:
    text = '[[cluster]]\nname = "c"\ndriver = "local"\nlogs = ["a"]\n'
    fleet = parse(text, Path("/d"))
    old = fleet.cluster[0]
    old = ClusterSpec(driver="local", name="c", logs=("a", "b"), dir=old.dir)
    catalog = {log: entry(log=log) for log in ("a", "b")}
    assert lines(plan.removal_steps(fleet, [old], catalog, prune=True)) == [
        "- c: list log b as removed in the catalog"
    ]


# Random histories

HOSTS = ("h1", "h2", "h3", "h4", "h5", "h6")
SPECS = st.one_of(
    st.builds(
        spec,
        st.integers(1, 6),
        version=st.sampled_from(("1", "2")),
        voters=st.sampled_from((1, 3, 5)),
    ),
)
SSH_SPECS = st.builds(
    lambda hosts, version, voters: ssh_spec(*hosts, version=version, voters=voters),
    st.lists(st.sampled_from(HOSTS), min_size=1, max_size=6, unique=True),
    st.sampled_from(("1", "2")),
    st.sampled_from((1, 3, 5)),
)
FAULTS = st.sampled_from(
    ("kill", "late", "settings", "decommission", "disk", "vote", "unmanaged", "controller", "none")
)
HISTORIES = st.lists(
    st.tuples(st.integers(0, 12), FAULTS, st.integers(0, 9)), min_size=1, max_size=4
)


def with_fault(state: ClusterState, fault: str, choice: int) -> ClusterState:
    if not state.nodes:
        return state
    node = state.nodes[choice % len(state.nodes)]
    down = {"is_running": False, "is_ready": False}
    changes: dict[str, dict[str, Any]] = {
        "kill": down,
        "late": {"is_ready": False},
        "settings": {"has_settings": False},
        "decommission": {"is_decommissioning": True, "held": choice},
        "disk": {**down, "has_data": False},
        "vote": {"is_voter": True},
        "unmanaged": {**down, "is_managed": False},
    }
    if fault == "controller":
        return replace(state, controller_id=node.node_id)
    found = changed(state, node.node_id, **changes.get(fault, {}))
    alive = sum(one.is_running for one in found.voters)
    is_led = 2 * alive > len(found.voters)
    if fault == "unmanaged" and not is_led:
        return state  # only metadata, of a led cluster, know such a node
    if 2 * sum(one.has_data for one in found.voters) <= len(found.voters):
        return state  # no step brings back the data of a majority
    return replace(found, is_led=is_led)


def check_step(written: ClusterSpec, state: ClusterState, step: steps.ClusterStep) -> None:
    kept = plan.kept_nodes(written, state)
    match step:
        case steps.RestartNode(node_id=node_id):
            node = state.node(node_id)
            # One node at a time: every other is ready, unless this one is down anyway.
            assert not node.is_ready or all(one.is_ready for one in kept)
        case steps.Decommission(node_id=node_id):
            assert all(one.is_ready for one in kept)
            assert state.node(node_id) not in kept
        case steps.RetireNode(node_id=node_id) | steps.ForgetNode(node_id=node_id):
            node = state.node(node_id)
            assert node not in kept
            assert not node.is_registered or (node.is_decommissioning and not node.held)
            assert not node.is_voter
        case steps.TakeVote(node_id=node_id):
            assert len(state.voters) > 1
            assert not state.node(node_id).is_running or all(one.is_ready for one in kept)
        case steps.CreateCluster():
            assert not state.nodes
        case _:
            pass


def walk(written: ClusterSpec, state: ClusterState, limit: int) -> ClusterState:
    """Take up to so many steps, each one checked."""
    lost = {node.node_id for node in state.nodes if not node.has_data}
    for _ in range(limit):
        step = plan.next_step(written, state, [TOPIC], lost)
        if step is None:
            return state
        check_step(written, state, step)
        following = plan.after(written, state, step)
        given = {one.node_id for one in state.voters} ^ {one.node_id for one in following.voters}
        assert isinstance(step, steps.CreateCluster) or len(given) <= 1
        state = following
    return state


def check_end(written: ClusterSpec, state: ClusterState) -> None:
    kept = plan.kept_nodes(written, state)
    assert state.nodes == tuple(sorted(kept, key=lambda node: node.node_id))
    assert len(kept) == written.size
    assert len(state.voters) == written.voter_count
    assert all(node.is_ready and node.has_settings and node.version for node in kept)
    assert all(node.version == written.version for node in kept)
    assert not any(node.is_decommissioning for node in kept)
    assert state.topics[TOPIC.name].config == TOPIC.config
    assert plan.next_step(written, state, [TOPIC]) is None


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(SPECS, min_size=4, max_size=4), HISTORIES)
def test_every_history_of_a_local_cluster_ends_as_written(
    written: list[ClusterSpec], history: list[tuple[int, str, int]]
) -> None:
    check_history(written, history)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(SSH_SPECS, min_size=4, max_size=4), HISTORIES)
def test_every_history_of_hosts_ends_as_written(
    written: list[ClusterSpec], history: list[tuple[int, str, int]]
) -> None:
    check_history(written, history)


def check_history(written: list[ClusterSpec], history: list[tuple[int, str, int]]) -> None:
    state = EMPTY
    for one, (count, fault, choice) in zip(written, history, strict=False):
        state = with_fault(walk(one, state, count), fault, choice)
    last = written[-1]
    state = walk(last, state, plan.STEPS_MAX)
    check_end(last, state)
