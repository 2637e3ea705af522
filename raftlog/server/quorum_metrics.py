"""What the quorum says of itself to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric, SummaryMetricFamily

from raftlog.server.metrics import counter, gauge

if TYPE_CHECKING:
    from raftlog.replication.services import Services

NO_LEADER = -1


def quorum_metrics(services: Services) -> Iterator[Metric]:
    """Families about this node's member of the quorum, as of now."""
    quorum = services.quorum
    status = quorum.status()
    prefix = "raftlog_quorum"
    yield gauge(f"{prefix}_term", "Raft's term.", status.term)
    yield gauge(
        f"{prefix}_leader_id",
        "Node that this one takes for the leader, -1 if it knows of none.",
        NO_LEADER if status.leader_id is None else status.leader_id,
    )
    yield gauge(
        f"{prefix}_is_leader",
        "1 if this node leads the quorum, else 0.",
        int(status.leader_id == services.node_id),
    )
    yield gauge(f"{prefix}_commit_index", "Last entry known to be committed.", status.commit_index)
    yield gauge(f"{prefix}_applied_index", "Last entry applied here.", status.applied_index)
    yield gauge(
        f"{prefix}_applied_lag",
        "Entries known to be committed that are not applied here yet.",
        max(status.commit_index - status.applied_index, 0),
    )
    yield counter(f"{prefix}_elections", "Elections that this node began.", status.elections)
    yield SummaryMetricFamily(
        f"{prefix}_fsync_seconds",
        "Syncs of the metadata journal.",
        count_value=status.syncs.count,
        sum_value=status.syncs.seconds_sum,
    )
    yield gauge(
        f"{prefix}_fsync_seconds_max",
        "The longest sync of the metadata journal since the start.",
        status.syncs.seconds_max,
    )
    yield gauge(f"{prefix}_journal_bytes", "Size of the metadata journal.", status.journal_bytes)
    yield gauge(
        f"{prefix}_peers_connected", "Other members connected to this one.", len(quorum.peers())
    )
    yield gauge(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "1 if this node is the active controller, else 0.",
        int(quorum.is_active),
    )
