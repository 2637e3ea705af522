"""What is told of a local cluster: one document for the control socket and `--format json`."""

from __future__ import annotations

import msgspec


class NodeStatus(msgspec.Struct, frozen=True):
    """One node, as the manager sees it."""

    node_id: int
    address: str
    pid: int | None
    state: str
    """running, paused, restarting, failing or stopped; unmanaged: it runs without a manager."""
    ready: bool
    why: str | None
    """Why it is not ready."""
    restarts: int
    last_end: str | None
    """How its last process ended, if one has."""
    log: str


class ClusterStatus(msgspec.Struct, frozen=True):
    """The cluster, as its manager sees it."""

    directory: str
    manager_pid: int | None
    """None: nobody manages it."""
    flush: str
    servers: str
    """The nodes' addresses, as RAFTLOG_SERVERS takes them."""
    controller_id: int | None
    nodes: tuple[NodeStatus, ...]

    @property
    def is_whole(self) -> bool:
        """Whether all that is to run is managed and ready, and the cluster has a controller."""
        return (
            self.manager_pid is not None
            and self.controller_id is not None
            and all(node.ready for node in self.nodes if node.state != "stopped")
        )
