"""The Kubernetes manifests: valid in three minors, and the rules by which a cluster stays alive."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest

from raftlog.http.settings import ServerLimits
from tests.docker.kustomization import Manifest, build
from tests.docker.serve_names import (
    HEALTH_PATHS,
    KUBERNETES,
    OVERLAYS,
    flags_in,
    read,
    settings_from,
    unknown_flags,
    unknown_variables,
)
from tests.language import ROOT

MINORS: Final = ("1.35", "1.36", "1.37")
TREES: Final = {"base": KUBERNETES / "base"} | {
    name: KUBERNETES / "overlays" / name for name in OVERLAYS
}
WITH_NODES: Final = ("base", "single", "zones")
OF_THE_OPERATOR: Final = frozenset({"ServiceMonitor", "PrometheusRule"})
"""Kinds of the Prometheus operator, for which Kubernetes has no schema."""
NAMESPACE: Final = "logs"
UNITS: Final = {"Mi": 1 << 20, "Gi": 1 << 30}


@pytest.fixture(scope="module")
def trees() -> dict[str, list[Manifest]]:
    return {name: build(directory) for name, directory in TREES.items()}


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] == kind]


def stateful_sets(trees: dict[str, list[Manifest]]) -> list[Manifest]:
    found = [one for name in WITH_NODES for one in of_kind(trees[name], "StatefulSet")]
    assert len(found) == 5
    return found


def container_of(stateful_set: Manifest) -> dict[str, Any]:
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    return container


def environment_of(stateful_set: Manifest, ordinal: int, replace: str = "") -> dict[str, str]:
    """The container's variables, as Kubernetes sets them."""
    known = {
        "metadata.name": f"{stateful_set['metadata']['name']}-{ordinal}",
        "metadata.namespace": NAMESPACE,
    }
    found: dict[str, str] = {}
    for one in container_of(stateful_set)["env"]:
        source = one.get("valueFrom", {})
        if "fieldRef" in source:
            found[one["name"]] = known[source["fieldRef"]["fieldPath"]]
        elif "configMapKeyRef" in source:
            assert source["configMapKeyRef"]["optional"] is True
            if replace:
                found[one["name"]] = replace
        else:
            # Kubernetes replaces $(NAME) by an earlier variable of the list.
            found[one["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], one["value"])
    return found


@pytest.mark.parametrize("minor", MINORS)
def test_manifests_are_valid(trees: dict[str, list[Manifest]], minor: str) -> None:
    checked = 0
    for manifests in trees.values():
        for one in manifests:
            if one["kind"] not in OF_THE_OPERATOR:
                assert kubernetes_validate.validate(one, minor, strict=True) == minor
                checked += 1
    assert checked == 5 + 5 + 7 + 1


def test_a_misspelt_field_is_found(trees: dict[str, list[Manifest]]) -> None:
    wrong = copy.deepcopy(of_kind(trees["base"], "StatefulSet")[0])
    wrong["spec"]["podManagmentPolicy"] = wrong["spec"].pop("podManagementPolicy")
    with pytest.raises(kubernetes_validate.ValidationError, match="podManagmentPolicy"):
        kubernetes_validate.validate(wrong, MINORS[0], strict=True)


def test_volumes_are_always_retained(trees: dict[str, list[Manifest]]) -> None:
    for one in stateful_sets(trees):
        policy = one["spec"]["persistentVolumeClaimRetentionPolicy"]
        assert policy == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_nodes_start_together_and_restart_one_by_one(trees: dict[str, list[Manifest]]) -> None:
    for one in stateful_sets(trees):
        assert one["spec"]["podManagementPolicy"] == "Parallel"
    for name in WITH_NODES:
        (budget,) = of_kind(trees[name], "PodDisruptionBudget")
        assert budget["spec"]["maxUnavailable"] == 1
        sets = of_kind(trees[name], "StatefulSet")
        # The controller of one StatefulSet does not wait for the pods of another.
        expected = "RollingUpdate" if len(sets) == 1 else "OnDelete"
        assert {one["spec"]["updateStrategy"]["type"] for one in sets} == {expected}


def test_probes_ask_for_what_they_decide(trees: dict[str, list[Manifest]]) -> None:
    for one in stateful_sets(trees):
        container = container_of(one)
        paths = {
            name: container[f"{name}Probe"]["httpGet"]["path"]
            for name in ("startup", "liveness", "readiness")
        }
        # A liveness probe of the quorum kills the nodes that are left.
        assert paths == {"startup": "/healthy", "liveness": "/healthy", "readiness": "/ready"}
        assert set(paths.values()) <= HEALTH_PATHS
        ports = {port["name"] for port in container["ports"]}
        for name in paths:
            assert container[f"{name}Probe"]["httpGet"]["port"] in ports
        startup = container["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800


def test_the_pod_template_does_not_depend_on_the_number_of_replicas(
    trees: dict[str, list[Manifest]], tmp_path: Path
) -> None:
    (before,) = of_kind(trees["base"], "StatefulSet")
    (tmp_path / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources: [{os.path.relpath(KUBERNETES / 'base', tmp_path)}]\n"
        "patches:\n- target: {kind: StatefulSet, name: raftlog}\n"
        "  patch: '[{op: replace, path: /spec/replicas, value: 7}]'\n"
    )
    (after,) = of_kind(build(tmp_path), "StatefulSet")
    assert after["spec"].pop("replicas") == 7
    assert before["spec"].pop("replicas") == 3
    assert after == before
    before["spec"]["replicas"] = 3


def test_the_secret_is_a_file_for_the_nodes_group(trees: dict[str, list[Manifest]]) -> None:
    for one in stateful_sets(trees):
        pod = one["spec"]["template"]["spec"]
        (volume,) = pod["volumes"]
        assert volume["secret"]["defaultMode"] == 0o440
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
        # Else Kubernetes opens the files of a data directory to the group at each start.
        assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
        mounts = {mount["name"]: mount["mountPath"] for mount in container_of(one)["volumeMounts"]}
        environment = environment_of(one, 0)
        secret = Path(environment["RAFTLOG_CLUSTER_SECRET_FILE"])
        assert secret.parent == Path(mounts["secret"])
        assert "CLUSTER_SECRET" not in {name.removeprefix("RAFTLOG_") for name in environment}
        # Below the mount: the node makes its directory, for its owner alone.
        assert Path(environment["RAFTLOG_DATA_DIR"]).parent == Path(mounts["data"])
        (claim,) = one["spec"]["volumeClaimTemplates"]
        assert claim["metadata"]["name"] == "data"


def test_pods_meet_the_restricted_standard(trees: dict[str, list[Manifest]]) -> None:
    for one in stateful_sets(trees):
        pod, container = one["spec"]["template"]["spec"], container_of(one)
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert (context["runAsUser"], context["runAsGroup"]) == (10001, 10001)
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["automountServiceAccountToken"] is False
        # RAFTLOG_PORT and its like would be read as misspelt settings.
        assert pod["enableServiceLinks"] is False


def test_manifests_name_only_what_serve_has(trees: dict[str, list[Manifest]]) -> None:
    for one in stateful_sets(trees):
        container = container_of(one)
        (script,) = container["args"]
        assert {"--node-id", "--advertised", "--voters", "--join"} <= flags_in(script)
        assert unknown_flags(script) == set()
        assert unknown_variables(variable["name"] for variable in container["env"]) == set()
        settings = settings_from(environment_of(one, 0))
        kafka = settings.kafka_listen_address()
        assert kafka is not None
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports == {
            "http": settings.listen_address()[1],
            "kafka": kafka[1],
            "health": settings.health_port,
        }


def test_services_and_policies_use_the_nodes_ports_and_labels(
    trees: dict[str, list[Manifest]],
) -> None:
    for name in WITH_NODES:
        sets = of_kind(trees[name], "StatefulSet")
        ports = {one["name"]: one["containerPort"] for one in container_of(sets[0])["ports"]}
        services = {one["metadata"]["name"]: one for one in of_kind(trees[name], "Service")}
        for service in services.values():
            for port in service["spec"]["ports"]:
                assert ports[port["targetPort"]] == port["port"]
        headless = services[sets[0]["spec"]["serviceName"]]["spec"]
        assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
        selectors = [service["spec"]["selector"] for service in services.values()]
        selectors += [
            one["spec"]["selector"]["matchLabels"]
            for one in of_kind(trees[name], "PodDisruptionBudget")
        ]
        policies = [*of_kind(trees[name], "NetworkPolicy")]
        policies += of_kind(trees["monitoring"], "NetworkPolicy")
        for policy in policies:
            selectors.append(policy["spec"]["podSelector"]["matchLabels"])
            for rule in policy["spec"]["ingress"]:
                assert {port["port"] for port in rule["ports"]} <= set(ports.values())
        for one in sets:
            labels = one["spec"]["template"]["metadata"]["labels"]
            own = one["spec"]["selector"]["matchLabels"]
            for selector in (*selectors, own):
                assert selector.items() <= labels.items()
            others = [other for other in sets if other is not one]
            for other in others:
                theirs = other["spec"]["template"]["metadata"]["labels"]
                assert not own.items() <= theirs.items()


def test_limits_leave_room_for_what_a_node_may_take(trees: dict[str, list[Manifest]]) -> None:
    for one in stateful_sets(trees):
        resources = container_of(one)["resources"]
        requested, limit = (
            size_bytes(resources[name]["memory"]) for name in ("requests", "limits")
        )
        limits = ServerLimits()
        assert limits.bytes_in_flight_max * 2 <= requested <= limit
        assert "cpu" not in resources["limits"]
        grace = one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace >= 3 * limits.shutdown_s


def size_bytes(text: str) -> int:
    return int(text[:-2]) * UNITS[text[-2:]]


def show_settings(
    stateful_set: Manifest, ordinal: int, directory: Path, replace: str = ""
) -> dict[str, Any]:
    """Run the container's command with the real `raftlog`, up to its settings."""
    program = directory / "raftlog"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m raftlog.cli "$@" --show-settings\n')
    program.chmod(0o755)
    container = container_of(stateful_set)
    environment = {
        **environment_of(stateful_set, ordinal, replace),
        "PATH": f"{directory}:{os.environ['PATH']}",
        "RAFTLOG_DATA_DIR": str(directory / "data"),
    }
    done = subprocess.run(
        [*container["command"], *container["args"]],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    shown = json.loads(done.stdout)
    assert isinstance(shown, dict)
    return shown


def host(name: str) -> str:
    return f"{name}.raftlog-headless.{NAMESPACE}.svc:8082"


def test_first_ordinals_are_voters_and_later_ones_join(
    trees: dict[str, list[Manifest]], tmp_path: Path
) -> None:
    (nodes,) = of_kind(trees["base"], "StatefulSet")
    names = [host(f"raftlog-{ordinal}") for ordinal in range(4)]
    voters = ",".join(f"{node}@{name}" for node, name in enumerate(names[:3], start=1))
    third = show_settings(nodes, 2, tmp_path)
    fourth = show_settings(nodes, 3, tmp_path)
    assert (third["node_id"], third["advertised"], third["voters"]) == (3, names[2], voters)
    assert third["join"] is None
    assert (fourth["node_id"], fourth["advertised"], fourth["voters"]) == (4, names[3], None)
    assert fourth["join"] == ",".join(names[:3])


def test_a_single_node_is_its_only_voter(trees: dict[str, list[Manifest]], tmp_path: Path) -> None:
    (nodes,) = of_kind(trees["single"], "StatefulSet")
    assert nodes["spec"]["replicas"] == 1
    shown = show_settings(nodes, 0, tmp_path)
    assert shown["voters"] == f"1@{host('raftlog-0')}"


def test_zones_have_racks_and_ids_of_their_own(
    trees: dict[str, list[Manifest]], tmp_path: Path
) -> None:
    voters = ",".join(
        f"{first}@{host(f'raftlog-{zone}-0')}" for zone, first in (("a", 1), ("b", 101), ("c", 201))
    )
    firsts = {}
    for nodes in of_kind(trees["zones"], "StatefulSet"):
        environment = environment_of(nodes, 0)
        firsts[environment["RAFTLOG_RACK"]] = int(environment["FIRST_NODE_ID"])
        assert environment["VOTERS"] == voters
        assert nodes["spec"]["template"]["spec"]["nodeSelector"].keys() == {
            "topology.kubernetes.io/zone"
        }
    assert firsts == {"a": 1, "b": 101, "c": 201}
    middle = of_kind(trees["zones"], "StatefulSet")[1]
    shown = show_settings(middle, 1, tmp_path)
    assert (shown["node_id"], shown["rack"]) == (102, "b")
    assert shown["join"] == re.sub(r"\d+@", "", voters)


@pytest.mark.parametrize(("ordinal", "option"), [(1, "--voters"), (2, "--replace")])
def test_only_the_lost_node_is_replaced(
    trees: dict[str, list[Manifest]], tmp_path: Path, ordinal: int, option: str
) -> None:
    (nodes,) = of_kind(trees["base"], "StatefulSet")
    program = tmp_path / "raftlog"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    container = container_of(nodes)
    environment = {**environment_of(nodes, ordinal, replace="3"), "PATH": f"{tmp_path}:/bin"}
    command = [*container["command"], *container["args"]]
    arguments = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    options = {"--voters", "--join", "--replace"} & set(arguments)
    assert options == ({option, "--join"} if option == "--replace" else {option})
    if option == "--replace":
        assert arguments[arguments.index(option) + 1] == "3"


def test_scripts_of_containers_pass_shellcheck(trees: dict[str, list[Manifest]]) -> None:
    program = Path(sys.executable).with_name("shellcheck")
    for one in stateful_sets(trees):
        (script,) = container_of(one)["args"]
        done = subprocess.run(
            [program, "--shell=sh", "-"], input=script, capture_output=True, text=True, check=False
        )
        # SC2153: the variables come from the container's environment.
        assert done.returncode == 0, done.stdout


def test_alerts_are_those_of_the_manual_and_name_metrics_that_exist(
    trees: dict[str, list[Manifest]],
) -> None:
    (rules,) = of_kind(trees["monitoring"], "PrometheusRule")
    assert rules["apiVersion"] == "monitoring.coreos.com/v1"
    known = exposed_metrics()
    used: set[str] = set()
    alerts: list[str] = []
    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
            assert rule["labels"]["severity"] in {"warning", "critical"}
            assert rule["annotations"]["summary"].endswith(".")
            names = set(re.findall(r"\b(?:raftlog|kafka|process)_\w+", rule["expr"]))
            assert names, rule
            used |= names
            alerts.append(rule["alert"])
    assert len(set(alerts)) == len(alerts)
    assert used - set(known) == set()
    watched = re.findall(
        r"`((?:raftlog|kafka)_\w+)`",
        "\n".join(
            line.split("|")[1]
            for line in section(read(ROOT / "docs" / "operations.md"), "## Watch").splitlines()
            if line.startswith("| `")
        ),
    )
    assert len(watched) > 15
    assert set(watched) - {known[name] for name in used} == set()


def test_metrics_are_scraped_from_every_node(trees: dict[str, list[Manifest]]) -> None:
    (monitor,) = of_kind(trees["monitoring"], "ServiceMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert set(monitor["spec"]) == {"selector", "endpoints"}
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["path"] in HEALTH_PATHS
    selector = monitor["spec"]["selector"]["matchLabels"]
    found = [
        service
        for service in of_kind(trees["base"], "Service")
        if selector.items() <= service["metadata"]["labels"].items()
    ]
    assert [one["metadata"]["name"] for one in found] == ["raftlog-headless"]
    assert endpoint["port"] in {port["name"] for port in found[0]["spec"]["ports"]}


def exposed_metrics() -> dict[str, str]:
    """Name of each stored series → the metric in the reference."""
    found: dict[str, str] = {}
    suffixes = {
        "counter": ("_total",),
        "gauge": ("",),
        "histogram": ("_bucket", "_count", "_sum"),
        "summary": ("_count", "_sum"),
    }
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", read(ROOT / "docs/reference/metrics.md"), re.M)
    assert len(rows) > 50
    for name, kind in rows:
        for suffix in suffixes[kind]:
            found[name + suffix] = name
    return found


def section(text: str, heading: str) -> str:
    return text.partition(f"{heading}\n")[2].partition("\n## ")[0]
