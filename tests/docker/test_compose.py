"""The compose file: its services, their translation for runc, and the names of `raftlog serve`."""

from __future__ import annotations

import copy
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest
import yaml

from raftlog.http.settings import ServerLimits
from tests.containers.compose import (
    SECRETS_DIRECTORY,
    ComposeError,
    Project,
    Service,
    duration_s,
    parse_project,
    size_bytes,
)
from tests.containers.oci import (
    DEFAULT_CAPABILITIES,
    ImageConfig,
    Places,
    capabilities,
    image_config,
    runtime_config,
)
from tests.docker.kustomization import build
from tests.docker.serve_names import (
    DOCKER,
    HEALTH_PATHS,
    KUBERNETES,
    read,
    settings_from,
    unknown_flags,
    unknown_variables,
)

COMPOSE: Final = DOCKER / "compose.yaml"
IMAGE_ENVIRONMENT: Final = {
    "PATH": "/opt/raftlog/bin:/bin",
    "RAFTLOG_DATA_DIR": "/var/lib/raftlog/node",
    "RAFTLOG_LISTEN": "0.0.0.0:8082",
}
IMAGE: Final = ImageConfig(
    entrypoint=("raftlog", "serve"),
    command=(),
    environment=IMAGE_ENVIRONMENT,
    user="10001:10001",
    working_directory="/",
    volumes=frozenset({"/var/lib/raftlog"}),
    stop_signal="SIGTERM",
    has_health_check=True,
)
MINIMAL: Final = {
    "name": "p",
    "services": {
        "a": {"image": "i", "build": {"context": ".", "dockerfile": "Dockerfile"}},
    },
}


@pytest.fixture
def document() -> Any:
    return yaml.safe_load(read(COMPOSE))


@pytest.fixture
def project(document: Any) -> Project:
    return parse_project(document)


def places(root: Path) -> Places:
    return Places(
        root=root / "root",
        namespace=root / "ns",
        hosts=root / "hosts",
        volumes={f"node-{number}": root / f"v{number}" for number in (1, 2, 3)},
        secrets={"cluster_secret": root / "secret"},
    )


def test_three_nodes_with_a_volume_each(project: Project) -> None:
    assert [one.name for one in project.services] == ["node-1", "node-2", "node-3"]
    assert len({volume for one in project.services for volume in one.volumes.values()}) == 3
    assert {volume for one in project.services for volume in one.volumes.values()} == {
        *project.volumes
    }
    for one in project.services:
        context = (COMPOSE.parent / one.build.context).resolve()
        assert (context / one.build.dockerfile).samefile(DOCKER / "Dockerfile")
        assert one.image == "raftlog:local"


def test_services_are_confined_and_restarted(project: Project) -> None:
    for one in project.services:
        assert one.is_read_only
        assert one.dropped_capabilities == ("ALL",)
        assert not one.has_new_privileges
        assert one.user == "10001:10001"
        assert one.restart == "unless-stopped"
        assert one.health is not None
        assert all(port.host == "127.0.0.1" for port in one.ports)


def test_compose_names_only_what_serve_has(project: Project) -> None:
    voters = set()
    for one in project.services:
        assert one.command is not None
        assert unknown_flags(" ".join(one.command)) == set()
        assert unknown_variables(one.environment) == set()
        settings = settings_from({**IMAGE_ENVIRONMENT, **one.environment})
        assert settings.data_dir.startswith(tuple(one.volumes))
        assert PurePosixPath(settings.cluster_secret_file or "").parent == PurePosixPath(
            SECRETS_DIRECTORY
        )
        assert settings.cluster_secret_file == f"{SECRETS_DIRECTORY}/{one.secrets[0]}"
        port = settings.listen_address()[1]
        assert [published.port for published in one.ports] == [port]
        assert one.health is not None
        (url,) = [word for word in one.health.command[-1].split("'") if word.startswith("http")]
        assert url.partition(f"http://127.0.0.1:{port}")[2] == "/healthy"
        assert "/healthy" in HEALTH_PATHS
        ids = one.command[one.command.index("--node-id") + 1]
        assert one.hostname == f"node-{ids}"
        voters.add(settings.voters)
    assert voters == {",".join(f"{n}@node-{n}:8082" for n in (1, 2, 3))}


def test_limits_are_those_of_kubernetes_and_leave_room(project: Project) -> None:
    (nodes,) = [one for one in build(KUBERNETES / "base") if one["kind"] == "StatefulSet"]
    pod = nodes["spec"]["template"]["spec"]
    memory = pod["containers"][0]["resources"]["limits"]["memory"]
    limits = ServerLimits()
    for one in project.services:
        assert one.memory_bytes_max == size_bytes(memory.removesuffix("i"), "memory")
        assert one.stop_grace_s == pod["terminationGracePeriodSeconds"] >= 3 * limits.shutdown_s
        # A connection takes a file; replicas and peers have the rest.
        assert one.limits["nofile"] >= 2 * limits.connections_max
        assert one.image == pod["containers"][0]["image"]


def test_container_is_as_the_file_says(project: Project, tmp_path: Path) -> None:
    service = project.services[1]
    config = runtime_config(service, IMAGE, places(tmp_path))
    process = config["process"]
    assert process["args"] == ["raftlog", "serve", "--node-id", "2"]
    assert process["user"] == {"uid": 10001, "gid": 10001}
    assert process["noNewPrivileges"] is True
    assert {*map(tuple, process["capabilities"].values())} == {()}
    assert f"RAFTLOG_VOTERS={service.environment['RAFTLOG_VOTERS']}" in process["env"]
    assert "RAFTLOG_DATA_DIR=/var/lib/raftlog/node" in process["env"]
    assert process["rlimits"] == [{"type": "RLIMIT_NOFILE", "soft": 16384, "hard": 16384}]
    assert config["root"] == {"path": str(tmp_path / "root"), "readonly": True}
    assert config["hostname"] == "node-2"
    writable = {
        mount["destination"]: mount["source"]
        for mount in config["mounts"]
        if mount["type"] == "bind" and "rw" in mount["options"]
    }
    assert writable == {"/var/lib/raftlog": str(tmp_path / "v2")}
    resources = config["linux"]["resources"]
    assert resources["memory"] == {"limit": 2 << 30}
    assert resources["pids"] == {"limit": 256}


def test_what_the_file_leaves_out_is_the_engines_default(document: Any, tmp_path: Path) -> None:
    service = document["services"]["node-1"]
    for key in ("read_only", "cap_drop", "security_opt", "user", "mem_limit", "pids_limit"):
        del service[key]
    loose = parse_project(document).services[0]
    config = runtime_config(loose, IMAGE, places(tmp_path))
    assert config["root"]["readonly"] is False
    assert config["process"]["noNewPrivileges"] is False
    assert config["process"]["user"] == {"uid": 10001, "gid": 10001}
    assert tuple(config["process"]["capabilities"]["effective"]) == DEFAULT_CAPABILITIES
    assert config["linux"]["resources"].keys() == {"devices"}


def test_single_capabilities_are_dropped(document: Any) -> None:
    document["services"]["node-1"]["cap_drop"] = ["CHOWN", "KILL"]
    service = parse_project(document).services[0]
    assert {*DEFAULT_CAPABILITIES} - {*capabilities(service)} == {"CAP_CHOWN", "CAP_KILL"}


def test_a_volume_of_the_image_must_have_a_name(document: Any, tmp_path: Path) -> None:
    document["services"]["node-1"]["volumes"] = []
    service = parse_project(document).services[0]
    with pytest.raises(ValueError, match="no volume"):
        runtime_config(service, IMAGE, places(tmp_path))


def changed(**keys: Any) -> Any:
    document = copy.deepcopy(MINIMAL)
    document["services"]["a"].update(keys)  # type: ignore[index]
    return document


def minimal(**keys: Any) -> Service:
    return parse_project(changed(**keys)).services[0]


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"privileged": True}, "privileged"),
        ({"security_opt": ["seccomp:unconfined"]}, "seccomp"),
        ({"restart": "sometimes"}, "sometimes"),
        ({"command": "serve"}, "no list"),
        ({"command": [1]}, "quote"),
        ({"environment": {"A": 1}}, "quote"),
        ({"volumes": ["./host:/data"]}, "VOLUME"),
        ({"volumes": ["v:/data"]}, "undeclared"),
        ({"secrets": ["s"]}, "undeclared"),
        ({"ports": ["8082:8082"]}, "ADDRESS"),
        ({"mem_limit": 5}, "no size"),
        ({"read_only": "yes"}, "neither"),
        ({"pids_limit": True}, "no number"),
        ({"healthcheck": {"test": "curl x"}}, "no list"),
        ({"healthcheck": {"test": ["CMD-SHELL", "x"]}}, "CMD"),
        ({"healthcheck": {"test": ["CMD", "x"], "interval": 5}}, "no duration"),
        ({"healthcheck": {"test": ["CMD", "x"], "disable": True}}, "disable"),
    ],
)
def test_forms_that_are_not_understood_are_errors(keys: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ComposeError, match=complaint):
        minimal(**keys)


@pytest.mark.parametrize("top", [{"networks": {}}, {"volumes": {"v": {"driver": "x"}}}])
def test_unknown_parts_of_the_file_are_errors(top: dict[str, Any]) -> None:
    with pytest.raises(ComposeError):
        parse_project({**MINIMAL, **top})


def test_durations_and_sizes() -> None:
    assert [duration_s(text, "x") for text in ("90s", "1m30s", "2h")] == [90, 90, 7200]
    assert [size_bytes(text, "x") for text in ("5b", "1k", "512M", "2gb")] == [
        5,
        1024,
        512 << 20,
        2 << 30,
    ]
    for text in ("", "5", "s5", "1.5s"):
        with pytest.raises(ComposeError):
            duration_s(text, "x")


def test_image_configuration_is_read_from_buildah() -> None:
    config = {
        "User": "10001:10001",
        "Env": ["PATH=/bin", "A=b=c"],
        "Entrypoint": ["raftlog", "serve"],
        "Cmd": [],
        "Volumes": {"/var/lib/raftlog": {}},
        "WorkingDir": "",
        "StopSignal": "SIGQUIT",
        "Healthcheck": {"Test": ["CMD", "x"]},
    }
    found = image_config({"Docker": {"config": config}})
    assert found.environment == {"PATH": "/bin", "A": "b=c"}
    assert (found.working_directory, found.stop_signal) == ("/", "SIGQUIT")
    assert found.has_health_check
