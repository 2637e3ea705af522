"""Shapes of the local cluster manager's control socket."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec


class GetStatus(msgspec.Struct, frozen=True, tag="status"):
    """Requests a `ClusterStatus` at once."""


class AwaitReady(msgspec.Struct, frozen=True, tag="await_ready"):
    """Requests a `ClusterStatus` once the cluster serves."""


class StopCluster(msgspec.Struct, frozen=True, tag="stop_cluster"):
    """Stop all nodes, then the manager."""


class AddNode(msgspec.Struct, frozen=True, tag="add_node"):
    """Add a node with or without a vote."""

    voter: bool = False


class ReplaceNode(msgspec.Struct, frozen=True, tag="replace_node"):
    """Replace a lost data directory with an empty directory."""

    node_id: int


class StopNode(msgspec.Struct, frozen=True, tag="stop_node"):
    """Stop a node until a `StartNode`."""

    node_id: int
    forget: bool = False
    """Whether the node leaves the cluster's manifest for good."""


class StartNode(msgspec.Struct, frozen=True, tag="start_node"):
    """Start a stopped node."""

    node_id: int


class Reconfigure(msgspec.Struct, frozen=True, tag="reconfigure"):
    """Give each node other settings, which apply from its next start."""

    arguments: tuple[str, ...]
    """Additional arguments of `raftlog serve`."""
    flush: Literal["sync", "async"]


ControlRequest: TypeAlias = (
    GetStatus
    | AwaitReady
    | StopCluster
    | AddNode
    | ReplaceNode
    | StopNode
    | StartNode
    | Reconfigure
)


class Step(msgspec.Struct, frozen=True, tag="step"):
    """Progress of the request, or an event in the cluster. More responses follow."""

    text: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The last response of a request that succeeded. `result` is JSON."""

    result: Any = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The last response of a request that failed. `hint` names the next step, if there is one."""

    message: str
    hint: str | None = None


ControlAnswer: TypeAlias = Step | Done | Failed


class NodeStatus(msgspec.Struct, frozen=True):
    """One node as the manager sees it."""

    node_id: int
    address: str
    pid: int | None
    state: str
    """running, paused, restarting, failing, stopped or unmanaged (without a manager)."""
    ready: bool
    why: str | None
    """Reason why the node is not ready."""
    restarts: int
    last_end: str | None
    """Description of its last process's end, if a process has ended."""
    log: str
    """Path of its log file."""
    kafka: str | None = None
    """Address of its Kafka listener, if there is one."""


class ClusterStatus(msgspec.Struct, frozen=True):
    """The cluster as its manager sees it. Also the document of `--format json`."""

    directory: str
    manager_pid: int | None
    """Process id of the manager, or None if no manager runs."""
    flush: str
    servers: str
    """The nodes' addresses in the form of RAFTLOG_SERVERS."""
    controller_id: int | None
    nodes: tuple[NodeStatus, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every node that should run is managed and ready, and a controller is active."""
        return (
            self.manager_pid is not None
            and self.controller_id is not None
            and all(node.ready for node in self.nodes if node.state != "stopped")
        )
