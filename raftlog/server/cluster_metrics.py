"""What the node's services say of themselves to Prometheus, under Kafka's names where they fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric

from raftlog.metadata.image import NO_LEADER_ID
from raftlog.server.metrics import OTHER_TOPICS, counter, gauge
from raftlog.server.readiness import unready

if TYPE_CHECKING:
    from raftlog.replication.services import Services


def service_metrics(services: Services, topic_labels_max: int) -> Iterator[Metric]:
    """Families about replicas, the cluster and the disk, as of now. One pass over the image."""
    image = services.metadata.image
    node_id = services.node_id
    counts: Counter[str] = Counter()
    for topic in image.topics_by_id.values():
        for row in topic.partitions:
            counts["partitions"] += 1
            counts["replicas"] += node_id in row.replicas
            counts["leaders"] += row.leader == node_id
            counts["offline"] += row.leader == NO_LEADER_ID
            counts["under_replicated"] += row.leader == node_id and len(row.isr) < len(row.replicas)
    manager = "kafka_server_replicamanager"
    controller = "kafka_controller_kafkacontroller"
    yield gauge(f"{manager}_partitioncount", "Replicas on this node.", counts["replicas"])
    yield gauge(f"{manager}_leadercount", "Partitions led by this node.", counts["leaders"])
    yield gauge(
        f"{manager}_underreplicatedpartitions",
        "Partitions led by this node with replicas that are not in sync.",
        counts["under_replicated"],
    )
    yield gauge(f"{controller}_globaltopiccount", "Topics.", len(image.topics_by_id))
    yield gauge(f"{controller}_globalpartitioncount", "Partitions.", counts["partitions"])
    yield gauge(
        f"{controller}_offlinepartitionscount", "Partitions without a leader.", counts["offline"]
    )
    fenced = sum(broker.fenced for broker in image.brokers.values())
    yield gauge(
        f"{controller}_activebrokercount",
        "Brokers that are not fenced.",
        len(image.brokers) - fenced,
    )
    yield gauge(f"{controller}_fencedbrokercount", "Brokers that are fenced.", fenced)
    yield gauge(
        "raftlog_metadata_applied_index", "Last metadata command applied.", image.applied_index
    )
    yield gauge("raftlog_ready", "1 if /ready says so, else 0.", int(unready(services) is None))
    yield _log_sizes(services, topic_labels_max)
    totals = services.logs.totals()
    yield gauge("raftlog_log_segments", "Segments of all replicas.", totals.segments)
    yield gauge("raftlog_log_open_files", "Files held open by the storage.", totals.open_files)
    yield counter("raftlog_log_syncs", "fsync calls that returned.", totals.syncs)
    yield gauge("raftlog_log_failed_replicas", "Replicas whose disk failed.", totals.failed)
    yield gauge("raftlog_log_damaged_replicas", "Replicas with damaged data.", totals.damaged)
    yield gauge("raftlog_disk_free_bytes", "Room left in the data directory.", totals.free_bytes)


def _log_sizes(services: Services, topic_labels_max: int) -> Metric:
    """Bytes per topic, the largest ones by name and the others together."""
    names = services.metadata.image.topics_by_id
    sizes: Counter[str] = Counter()
    for (topic_id, _), log in services.logs.logs().items():
        topic = names.get(topic_id)
        sizes[topic.name if topic else OTHER_TOPICS] += log.size_bytes
    family = GaugeMetricFamily("kafka_log_log_size", "Bytes of log on disk.", labels=["topic"])
    other = sizes.pop(OTHER_TOPICS, 0)
    ranked = sizes.most_common()
    for name, size in sorted(ranked[:topic_labels_max]):
        family.add_metric([name], size)
    other += sum(size for _, size in ranked[topic_labels_max:])
    family.add_metric([OTHER_TOPICS], other)
    return family
