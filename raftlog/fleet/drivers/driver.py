"""The interface to the machines of a cluster, for all that a driver must do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from raftlog.fleet.state import NodeState

Tell: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Machines:
    """The nodes of one cluster, as its driver finds them."""

    nodes: tuple[NodeState, ...] = ()
    """Nodes by id, with the fields that a driver knows. It knows neither readiness nor metadata."""
    is_created: bool = False
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Hosts of the file without a response (driver ssh), and why."""


class Watched(Protocol):
    """The processes of nodes."""

    async def failure(self, node_id: int) -> str | None:
        """Why a node does not stay up, with the end of its log.

        None while its process runs.
        """
        ...

    async def log_end(self, node_id: int) -> str:
        """The end of a node's log, with its title."""
        ...


class Driver(Watched, Protocol):
    """Starts and stops the nodes of one cluster.

    Every method may be repeated, and raises FleetError. A start uses the version and the settings
    of the file, and returns without waiting for readiness.
    """

    async def inspect(self) -> Machines:
        """Find the nodes."""
        ...

    async def create(self) -> None:
        """Start the first voters of a new cluster, and wait until all are ready."""
        ...

    async def start(self, node_ids: Sequence[int]) -> None:
        """Start stopped nodes."""
        ...

    async def restart(self, node_id: int) -> None:
        """Stop a node cleanly, and start the node again."""
        ...

    async def join(self, host: str, servers: Sequence[str], known_ids: Sequence[int]) -> None:
        """Start a new node, which joins by `servers`. Its id is above all `known_ids`."""
        ...

    async def replace(self, node_id: int, servers: Sequence[str], host: str) -> None:
        """Start a node with a lost disk on an empty data directory. `host` may be empty."""
        ...

    async def retire(self, node_id: int) -> str:
        """Stop a node for good. Return where its data directory is kept."""
        ...

    async def stop_cluster(self) -> None:
        """Stop all nodes. Their data directories are kept."""
        ...

    async def close(self) -> None:
        """End connections to machines."""
        ...
