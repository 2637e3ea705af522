"""A service of a compose file as runc's configuration of a container (OCI runtime spec). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.containers.compose import SECRETS_DIRECTORY, Service

OCI_VERSION: Final = "1.0.2"
DEFAULT_CAPABILITIES: Final = (
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)
"""An engine's default: the capabilities of a service that drops none."""
_CAPABILITY_SETS: Final = ("bounding", "effective", "permitted", "inheritable")
SHM_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The image's own part of a container's configuration."""

    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    environment: dict[str, str]
    user: str
    working_directory: str
    volumes: frozenset[str]
    stop_signal: str
    has_health_check: bool


@dataclass(frozen=True, slots=True)
class Places:
    """The host's side of one container."""

    root: Path
    namespace: Path
    """The network namespace."""
    hosts: Path
    """The file of all services' names and addresses."""
    volumes: dict[str, Path]
    """Volume → directory."""
    secrets: dict[str, Path]
    """Secret → file."""


def image_config(inspected: Mapping[str, Any]) -> ImageConfig:
    """The configuration in the answer of `buildah inspect --type image`."""
    config = inspected["Docker"]["config"]
    environment = dict(text.split("=", 1) for text in config.get("Env") or ())
    return ImageConfig(
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
        environment=environment,
        user=config["User"],
        working_directory=config.get("WorkingDir") or "/",
        volumes=frozenset(config.get("Volumes") or ()),
        stop_signal=config.get("StopSignal") or "SIGTERM",
        has_health_check=bool(config.get("Healthcheck")),
    )


def capabilities(service: Service) -> tuple[str, ...]:
    """The capabilities left to the service."""
    dropped = {f"CAP_{name}" for name in service.dropped_capabilities}
    return () if "CAP_ALL" in dropped else tuple(sorted({*DEFAULT_CAPABILITIES} - dropped))


def runtime_config(service: Service, image: ImageConfig, places: Places) -> dict[str, Any]:
    """The `config.json` of a bundle that runs the service as the compose file says."""
    owner, _, group = (service.user or image.user).partition(":")
    kept = list(capabilities(service))
    command = image.command if service.command is None else service.command
    environment = {**image.environment, "HOSTNAME": service.hostname, **service.environment}
    return {
        "ociVersion": OCI_VERSION,
        "process": {
            "terminal": False,
            "user": {"uid": int(owner), "gid": int(group)},
            "args": [*image.entrypoint, *command],
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": image.working_directory,
            "capabilities": dict.fromkeys(
                ("bounding", "effective", "permitted", "inheritable"), kept
            ),
            "rlimits": [
                {"type": f"RLIMIT_{name.upper()}", "soft": value, "hard": value}
                for name, value in service.limits.items()
            ],
            "noNewPrivileges": not service.has_new_privileges,
        },
        "root": {"path": str(places.root), "readonly": service.is_read_only},
        "hostname": service.hostname,
        "mounts": [*_SYSTEM_MOUNTS, *_mounts(service, image, places)],
        "linux": {
            "namespaces": [
                *({"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup")),
                {"type": "network", "path": str(places.namespace)},
            ],
            "resources": _resources(service),
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"],
        },
    }


def _mounts(service: Service, image: ImageConfig, places: Places) -> list[dict[str, Any]]:
    if unnamed := image.volumes - {*service.volumes}:
        raise ValueError(f"{service.name} gives no volume to {sorted(unnamed)} of its image")
    return [
        *(_bind(places.volumes[name], path) for path, name in service.volumes.items()),
        *(
            _bind(places.secrets[one], f"{SECRETS_DIRECTORY}/{one}", "ro")
            for one in service.secrets
        ),
        _bind(places.hosts, "/etc/hosts", "ro"),
    ]


def _bind(source: Path, target: str, access: str = "rw") -> dict[str, Any]:
    options = ["rbind", "rprivate", "nosuid", "nodev", access]
    return {"destination": target, "type": "bind", "source": str(source), "options": options}


def _resources(service: Service) -> dict[str, Any]:
    # Without device rules of its own a container may use the host's disks.
    resources: dict[str, Any] = {"devices": [{"allow": False, "access": "rwm"}]}
    if service.memory_bytes_max is not None:
        resources["memory"] = {"limit": service.memory_bytes_max}
    if service.processes_max is not None:
        resources["pids"] = {"limit": service.processes_max}
    return resources


def _system(target: str, kind: str, *options: str) -> dict[str, Any]:
    return {
        "destination": target,
        "type": kind,
        "source": kind,
        "options": ["nosuid", *options],
    }


_SYSTEM_MOUNTS: Final = (
    _system("/proc", "proc", "noexec", "nodev"),
    _system("/dev", "tmpfs", "strictatime", "mode=755", "size=65536k"),
    _system("/dev/pts", "devpts", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
    _system("/dev/shm", "tmpfs", "noexec", "nodev", "mode=1777", f"size={SHM_BYTES_MAX}"),
    _system("/sys", "sysfs", "noexec", "nodev", "ro"),
)
