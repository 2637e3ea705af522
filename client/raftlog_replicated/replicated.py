"""`Replicated`: a replica over the log of a raftlog cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raftlog_replicated.logs.per_replica_log import PerReplicaLog
from raftlog_replicated.logs.shared_log import SharedLog
from raftlog_replicated.logs.topics import Layout, StateTopics
from raftlog_replicated.replica import Machine, Replica
from raftlog_replicated.types import Codec, Command, Host, Result

LEASE_MS: Final = 1_500
SNAPSHOT_BYTES: Final = 64 << 20


class Replicated(Replica[Machine, Command, Result]):
    """A service's state, kept on several replicas by a log. An async context manager.

    `machine` is the service's `StateMachine`. One of its replicas, the primary, takes commands.

    - `name`: of the state. Its topics are `state.<name>` and `state.<name>.snapshots`.
    - `replica_id`: of this replica, kept over restarts. Only one process at a time has it.
    - `endpoint`: HOST:PORT of the service at this replica, for redirects.
    - `codec`: commands and results as bytes, a `StructCodec` for instance.
    - `lease_ms`: a primary that is silent for so long is replaced. After the end of its process,
      a fifth of that.
    - `layout`: "shared", one partition that all replicas read; "per-replica", one partition each,
      written together in a transaction.
    - `snapshot_bytes`: least size of the log since the newest snapshot before the next snapshot.
    - `host`: shared by replicas of several states in one process, so that primaries are spread.

    Raises ValueError for a setting out of bounds.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        name: str,
        replica_id: str,
        codec: Codec[Command, Result],
        endpoint: str | None = None,
        bootstrap_servers: str | Sequence[str] = "localhost:8082",
        lease_ms: int = LEASE_MS,
        layout: Layout = "shared",
        snapshot_bytes: int = SNAPSHOT_BYTES,
        host: Host | None = None,
    ) -> None:
        topics = StateTopics(name, layout, bootstrap_servers)
        make = SharedLog if layout == "shared" else PerReplicaLog
        log = make(
            topics, bootstrap_servers, replica_id=replica_id, endpoint=endpoint, lease_ms=lease_ms
        )
        super().__init__(
            machine,
            log,
            name=name,
            replica_id=replica_id,
            endpoint=endpoint,
            codec=codec,
            host=host or Host(),
            snapshot_bytes=snapshot_bytes,
        )
