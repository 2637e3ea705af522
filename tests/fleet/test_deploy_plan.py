"""Which node each host runs."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raftlog.cli.main import cli
from raftlog.fleet.deploy_plan import (
    HOSTS_MAX,
    HostState,
    NodePlan,
    Target,
    common_secret,
    next_to_restart,
    plan,
    plan_replacement,
)
from raftlog.fleet.errors import FleetError

PORT = 8082


def empty(*words: str) -> list[HostState]:
    """Hosts from nothing."""
    return [HostState(Target.parse(word), {}, None, None) for word in words]


def deployed(nodes: tuple[NodePlan, ...]) -> list[HostState]:
    """The hosts after these nodes were set up."""
    return [HostState(node.target, {node.name: node.settings}, "s", "1.0") for node in nodes]


def settings(node: NodePlan) -> dict[str, Any]:
    return tomllib.loads(node.settings)


@pytest.mark.parametrize(
    ("word", "ssh", "host"),
    [
        ("h1", "h1", "h1"),
        ("admin@h1:22", "admin@h1:22", "h1"),
        ("admin@h1=10.0.0.1", "admin@h1", "10.0.0.1"),
        ("admin@[fd00::1]:22", "admin@[fd00::1]:22", "fd00::1"),
    ],
)
def test_a_host_has_an_ssh_address_and_one_for_nodes(word: str, ssh: str, host: str) -> None:
    assert Target.parse(word) == Target(ssh, host)


def test_the_first_three_hosts_vote_and_later_ones_join() -> None:
    nodes = plan(empty("h1", "h2", "root@h3:22", "h4=10.0.0.4", "h5"), PORT)
    assert [node.node_id for node in nodes] == [1, 2, 3, 4, 5]
    assert [node.address for node in nodes][3] == "10.0.0.4:8082"
    voters = "1@h1:8082,2@h2:8082,3@h3:8082"
    assert [settings(node).get("voters") for node in nodes] == [voters] * 3 + [None] * 2
    joins = [settings(node).get("join") for node in nodes]
    assert joins == [None] * 3 + ["h1:8082,h2:8082,h3:8082"] * 2


def test_a_single_host_is_a_cluster() -> None:
    (node,) = plan(empty("h1"), 9000)
    assert settings(node)["voters"] == "1@h1:9000"


@pytest.mark.parametrize("word", ["h1", "[fd00::1]"])
def test_serve_understands_the_settings(word: str, tmp_path: Path) -> None:
    states = [replace(state, rack='ü "b"') for state in empty(word, "h2", "h3", "h4")]
    for node in plan(states, PORT):
        path = tmp_path / f"{node.name}.toml"
        path.write_text(node.settings)
        command = [
            "serve",
            "--config",
            str(path),
            "--data-dir",
            str(tmp_path / "d"),
            "--show-settings",
        ]
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 0, result.output
        assert json.loads(result.output)["rack"] == 'ü "b"'


def test_a_repeated_plan_changes_nothing_whatever_the_order() -> None:
    nodes = plan(empty("h1", "h2", "h3", "h4"), PORT)
    again = plan(list(reversed(deployed(nodes))), 9999)
    assert again == tuple(replace(node, is_new=False) for node in reversed(nodes))


def test_changes_of_an_operator_stay() -> None:
    (state,) = deployed(plan(empty("h1"), PORT))
    text = state.settings["node-1"] + 'rack = "mine"\n'
    (node,) = plan([replace(state, settings={"node-1": text})], PORT)
    assert node.settings == text and not node.is_new


def test_a_new_host_joins_with_the_next_free_number() -> None:
    states = deployed(plan(empty("h1", "h2", "h3"), PORT)) + empty("h4")
    node = plan(states, PORT)[-1]
    assert (node.node_id, node.is_new) == (4, True)
    assert settings(node)["join"] == "h1:8082,h2:8082,h3:8082"
    assert "voters" not in settings(node)


def test_a_voter_without_settings_is_a_lost_one_and_no_new_one() -> None:
    states = deployed(plan(empty("h1", "h2", "h3"), PORT))
    states[2] = replace(states[2], settings={})
    with pytest.raises(FleetError, match=r"node 3 was at h3:8082.*--replace 3"):
        plan(states, PORT)


def test_a_lost_node_takes_its_place_once() -> None:
    states = deployed(plan(empty("h1", "h2", "h3"), PORT))
    states[1] = replace(states[1], settings={})
    planned = plan_replacement(states, 2, PORT)
    assert [node.node_id for node in planned.others] == [1, 3]
    assert settings(planned.first) == {**settings(planned.later), "replace": 2}
    later = settings(planned.later)
    assert (later["node_id"], later["advertised"]) == (2, "h2:8082")
    assert (later["join"], later.get("voters")) == ("h1:8082,h3:8082", None)


def test_a_lost_node_with_its_settings_keeps_its_address() -> None:
    states = deployed(plan(empty("h1", "h2", "h3"), 9000))
    assert plan_replacement(states, 2, PORT).first.address == "h2:9000"


def test_a_lost_node_may_come_back_on_another_host() -> None:
    states = deployed(plan(empty("h1", "h2", "h3"), PORT))[:2] + empty("h9")
    planned = plan_replacement(states, 3, PORT)
    assert planned.first.target.ssh == "h9" and planned.first.address == "h9:8082"


def test_a_replacement_needs_one_host_for_it_and_others_to_join() -> None:
    states = deployed(plan(empty("h1", "h2", "h3"), PORT))
    with pytest.raises(FleetError, match="there are 0"):
        plan_replacement(states[:2], 3, PORT)
    with pytest.raises(FleetError, match="there are 2"):
        plan_replacement([*states, *empty("h4")], 3, PORT)
    with pytest.raises(FleetError, match="no other node is left"):
        plan_replacement(empty("h1"), 1, PORT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node_id =", "is not TOML"),
        ("node_id = 2", "differ"),
        ("node_id = 1", "advertised"),
    ],
)
def test_settings_of_another_origin_are_refused(text: str, message: str) -> None:
    states = [HostState(Target("h1", "h1"), {"node-1": text}, None, None)]
    with pytest.raises(FleetError, match=message):
        plan(states, PORT)


def test_hosts_of_several_nodes_or_clusters_are_refused() -> None:
    (one,) = deployed(plan(empty("h1"), PORT))
    (two,) = deployed(plan(empty("h2"), PORT))
    with pytest.raises(FleetError, match="several hosts run node 1"):
        plan([one, two], PORT)
    with pytest.raises(FleetError, match="one node a host"):
        plan([replace(one, settings={**one.settings, "orders-1": ""})], PORT)


def test_hosts_are_named_once_and_are_not_too_many() -> None:
    with pytest.raises(FleetError, match="h1 is named more than once"):
        plan(empty("h1", "root@h1"), PORT)
    with pytest.raises(FleetError, match=f"1 to {HOSTS_MAX} hosts"):
        plan(empty(*(f"h{number}" for number in range(HOSTS_MAX + 1))), PORT)
    with pytest.raises(FleetError, match=f"1 to {HOSTS_MAX} hosts"):
        plan([], PORT)


def test_all_hosts_have_the_secret_of_the_first_that_has_one() -> None:
    states = empty("h1", "h2", "h3")
    assert common_secret(states) is None
    states[1] = replace(states[1], secret="a")
    assert common_secret(states) == "a"
    states[2] = replace(states[2], secret="b")
    with pytest.raises(FleetError, match="the secrets of h2, h3 differ"):
        common_secret(states)
    assert "secret" not in repr(states[1])


def test_the_controller_is_restarted_last() -> None:
    nodes = list(plan(empty("h1", "h2", "h3"), PORT))
    order = []
    while nodes:
        node = next_to_restart(nodes, controller=1)
        nodes.remove(node)
        order.append(node.node_id)
    assert order == [2, 3, 1]
