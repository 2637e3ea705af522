"""Requests add to plain counters, which become Prometheus families at scrape time.

Names are the field's (Kafka's JMX exporter) where the meaning is equal, so that its dashboards
work. Other names start with `raftlog_`.

Label sets are bounded. Routes and statuses are finite, and topics have the labels of
broker/metrics.py. `ServerMetrics` has the counters of requests. `service_metrics` and
`quorum_metrics` read the node's state.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from raftlog.broker.metrics import OTHER_TOPICS, Histogram, TopicMetrics, counter, gauge, histograms
from raftlog.broker.node import NodeServices, unready
from raftlog.metadata.image import NO_LEADER_ID
from raftlog.world import Backoff, Clock

if TYPE_CHECKING:
    from raftlog.coordinator.shard.status import CoordinatorStatus
    from raftlog.replication.manager import ReplicationStatus

UNROUTED = "none"
LAG_INTERVAL_S = 0.02
"""Seconds between measurements of lag while the event loop works. On an idle process, 50 timers a
second would take 1 % of a core."""
LAG_INTERVALS = Backoff(LAG_INTERVAL_S, 0.16)
"""Seconds between measurements while the event loop is idle."""
BUSY_SHARE = 0.1
"""Processor time of a loop that works, as a share of the interval."""

_TOPIC_FAMILIES = {
    "messages_in": ("messagesin", "Records appended."),
    "bytes_in": ("bytesin", "Bytes of record batches appended."),
    "bytes_out": ("bytesout", "Bytes of record batches read."),
    "produce_requests": ("totalproducerequests", "Produce requests, by topic named in them."),
    "fetch_requests": ("totalfetchrequests", "Read requests, by topic named in them."),
    "failed_produce_requests": ("failedproducerequests", "Produce requests that failed."),
    "failed_fetch_requests": ("failedfetchrequests", "Read requests that failed."),
}

Source = Callable[[], Iterable[Metric]]


class _RouteCounters:
    __slots__ = ("aborted", "seconds", "statuses")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.seconds = Histogram()
        self.aborted = 0


class ServerMetrics(Collector):
    """The numbers of one server. Everything runs in the event loop, so nothing is locked."""

    def __init__(self, topics: TopicMetrics) -> None:
        self._topics = topics
        self._routes: dict[str | None, _RouteCounters] = {}
        self._sources: list[Source] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def answered(self, route: str | None, status: int, seconds: float) -> None:
        """Count a request with a response. `route` is its name, or None if no route matched."""
        counters = self._routes.get(route) or self._routes.setdefault(route, _RouteCounters())
        counters.statuses[status] = counters.statuses.get(status, 0) + 1
        counters.seconds.add(seconds)

    def aborted(self, route: str | None) -> None:
        """Count a request that its peer aborted before the response."""
        counters = self._routes.get(route) or self._routes.setdefault(route, _RouteCounters())
        counters.aborted += 1

    def add_source(self, source: Source) -> None:
        """Add the families of `source` at each scrape."""
        self._sources.append(source)

    def render(self) -> bytes:
        """All metrics, in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The families, for the registry."""
        yield from self._topic_families()
        yield from self._route_families()
        for source in self._sources:
            yield from source()

    def _topic_families(self) -> Iterator[Metric]:
        rows = list(self._topics.rows())
        for attribute, (name, text) in _TOPIC_FAMILIES.items():
            family = CounterMetricFamily(
                f"kafka_server_brokertopicmetrics_{name}", text, labels=["topic"]
            )
            for topic, counters in rows:
                family.add_metric([topic], getattr(counters, attribute))
            yield family

    def _route_families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "raftlog_http_requests", "Requests with a response.", labels=["route", "status"]
        )
        aborted = CounterMetricFamily(
            "raftlog_http_requests_aborted", "Requests aborted by their peer.", labels=["route"]
        )
        for route, counters in self._routes.items():
            name = route or UNROUTED
            for status, count in sorted(counters.statuses.items()):
                requests.add_metric([name, str(status)], count)
            if counters.aborted:
                aborted.add_metric([name], counters.aborted)
        yield from (requests, aborted)
        yield histograms(
            "raftlog_http_request_seconds",
            "Time from the end of the headers to the start of the response, long polls included.",
            "route",
            ((route or UNROUTED, counters.seconds) for route, counters in self._routes.items()),
        )


class LoopLag:
    """Measures the delay of due timers of the event loop, and the loop's share.

    A delay is the time of the steps before the timer, or a wait for a processor that other threads
    and processes have. The processor time of the loop's thread separates the two.
    """

    def __init__(self, clock: Clock, thread_time: Callable[[], float] = time.thread_time) -> None:
        """`thread_time` is the processor time of the event loop's thread, in seconds."""
        self._clock = clock
        self._thread_time = thread_time
        self._lags = Histogram()
        self._holds = Histogram()

    async def measure(self) -> None:
        """Measure until cancelled. A delay shorter than the interval may pass undetected."""
        clock = self._clock
        idle = 0
        while True:
            interval_s = LAG_INTERVALS.delay_s(idle)
            due, begin_s = clock.monotonic() + interval_s, self._thread_time()
            await clock.sleep(interval_s)
            lag_s = max(clock.monotonic() - due, 0.0)
            busy_s = self._thread_time() - begin_s
            self._lags.add(lag_s)
            self._holds.add(min(lag_s, busy_s))
            idle = 0 if busy_s > BUSY_SHARE * interval_s else idle + 1

    def metrics(self) -> Iterator[Metric]:
        """The families of the histograms."""
        yield self._lags.family(
            "raftlog_event_loop_lag_seconds",
            "Delay of the event loop's timers, caused by other work or by a machine without a "
            "free processor.",
        )
        yield self._holds.family(
            "raftlog_event_loop_hold_seconds",
            "Processor time of the event loop within that delay, caused by its own work.",
        )


MANAGER: Final = "kafka_server_replicamanager"
TRANSACTION_STATES: Final = ("ongoing", "prepared", "prepare-commit", "prepare-abort")
CONTROLLER: Final = "kafka_controller_kafkacontroller"


@dataclass(slots=True)
class _Counts:
    """Counts of partitions in the applied metadata."""

    partitions: int = 0
    offline: int = 0
    not_preferred: int = 0
    replicas: int = 0
    leaders: int = 0
    under_replicated: int = 0


def _count(services: NodeServices) -> _Counts:
    """One pass over the image, which may have 100,000 partitions."""
    node_id = services.node_id
    counts = _Counts()
    for topic in services.metadata.image.topics_by_id.values():
        counts.partitions += len(topic.partitions)
        for row in topic.partitions:
            leader, replicas = row.leader, row.replicas
            if leader == NO_LEADER_ID:
                counts.offline += 1
            if leader != replicas[0]:
                counts.not_preferred += 1
            if node_id in replicas:
                counts.replicas += 1
                if leader == node_id:
                    counts.leaders += 1
                    if len(row.isr) < len(replicas):
                        counts.under_replicated += 1
    return counts


def service_metrics(services: NodeServices, topic_labels_max: int) -> Iterator[Metric]:
    """Families about replicas, the cluster and the disk, as of now."""
    counts = _count(services)
    status = services.replication()
    yield from _partition_metrics(counts, status)
    yield from _replication_metrics(status)
    yield from _repair_metrics(status)
    yield from _cluster_metrics(services, counts)
    yield _log_sizes(services, topic_labels_max)
    yield from _storage_metrics(services)


def _partition_metrics(counts: _Counts, status: ReplicationStatus) -> Iterator[Metric]:
    yield gauge(f"{MANAGER}_partitioncount", "Replicas on this node.", counts.replicas)
    yield gauge(f"{MANAGER}_leadercount", "Partitions led by this node.", counts.leaders)
    yield gauge(
        f"{MANAGER}_underreplicatedpartitions",
        "Partitions led by this node with replicas that are not in sync.",
        counts.under_replicated,
    )
    yield gauge(
        f"{MANAGER}_underminisrpartitioncount",
        "Partitions led by this node with fewer in-sync replicas than min.insync.replicas.",
        status.under_min_isr,
    )
    yield gauge(
        f"{MANAGER}_atminisrpartitioncount",
        "Partitions led by this node at min.insync.replicas, which can lose no further replica.",
        status.at_min_isr,
    )


def _cluster_metrics(services: NodeServices, counts: _Counts) -> Iterator[Metric]:
    image = services.metadata.image
    yield gauge(f"{CONTROLLER}_globaltopiccount", "Topics.", len(image.topics_by_id))
    yield gauge(f"{CONTROLLER}_globalpartitioncount", "Partitions.", counts.partitions)
    yield gauge(
        f"{CONTROLLER}_offlinepartitionscount", "Partitions without a leader.", counts.offline
    )
    yield gauge(
        f"{CONTROLLER}_preferredreplicaimbalancecount",
        "Partitions that their first replica does not lead.",
        counts.not_preferred,
    )
    fenced = sum(broker.fenced for broker in image.brokers.values())
    yield gauge(
        f"{CONTROLLER}_activebrokercount",
        "Brokers that are not fenced.",
        len(image.brokers) - fenced,
    )
    yield gauge(f"{CONTROLLER}_fencedbrokercount", "Brokers that are fenced.", fenced)
    yield gauge(
        "raftlog_metadata_applied_index", "Last metadata command applied.", image.applied_index
    )
    yield gauge("raftlog_ready", "1 while /ready succeeds, else 0.", int(unready(services) is None))


def _storage_metrics(services: NodeServices) -> Iterator[Metric]:
    totals = services.logs.totals()
    yield gauge("raftlog_log_segments", "Segments of all replicas.", totals.segments)
    yield gauge("raftlog_log_open_files", "Files held open by the storage.", totals.open_files)
    yield counter("raftlog_log_syncs", "fsync calls that returned.", totals.syncs)
    yield gauge("raftlog_log_failed_replicas", "Replicas with a failed disk.", totals.failed)
    yield gauge("raftlog_log_damaged_replicas", "Replicas with damaged data.", totals.damaged)
    yield counter("raftlog_log_scrubbed_bytes", "Bytes read by the scrub.", totals.scrubbed_bytes)
    yield counter(
        "raftlog_log_scrub_damage", "Damaged segments found by the scrub.", totals.scrub_damage
    )
    yield gauge("raftlog_log_producer_ids", "Remembered producer ids.", totals.producers)
    yield counter(
        "raftlog_log_producer_ids_refused",
        "Appends rejected because a partition had no room for their new producer ids.",
        totals.refused_producers,
    )
    yield gauge(
        "raftlog_clock_skew_seconds",
        "How far the wall clock is ahead of the cluster time, the median of the brokers' clocks.",
        totals.clock_skew_ms / 1000,
    )
    yield gauge("raftlog_disk_free_bytes", "Room left in the data directory.", totals.free_bytes)
    yield gauge(
        "raftlog_disk_writable",
        "1, or 0 while the disk is full or stalled and this node resigns its leadership.",
        int(services.disk.can_write()),
    )


def _replication_metrics(status: ReplicationStatus) -> Iterator[Metric]:
    topics = "kafka_server_brokertopicmetrics"
    prefix = "raftlog_replication"
    yield counter(
        f"{MANAGER}_isrshrinks",
        "Changes that removed replicas from the ISR of partitions led by this node.",
        status.isr_shrinks,
    )
    yield counter(
        f"{MANAGER}_isrexpands",
        "Changes that added replicas to the ISR of partitions led by this node.",
        status.isr_expands,
    )
    yield gauge(
        f"{MANAGER}_offlinereplicacount",
        "Replicas on this node that serve no client (failed, damaged, or not open).",
        status.offline,
    )
    yield counter(
        f"{topics}_replicationbytesin",
        "Bytes of record batches received from leaders.",
        status.bytes_in,
    )
    yield counter(
        f"{topics}_replicationbytesout",
        "Bytes of record batches sent to followers.",
        status.bytes_out,
    )
    yield gauge(
        f"{prefix}_leaders_connected",
        "Connections to leaders that this node follows.",
        status.leaders_connected,
    )
    yield gauge(
        f"{prefix}_followers_connected",
        "Connections of followers of this node.",
        status.followers_connected,
    )
    lags = GaugeMetricFamily(
        f"{prefix}_follower_lag_records_max",
        "Most records of one partition led here that a follower lacks on disk.",
        labels=["follower"],
    )
    # Bounded by the nodes of the cluster.
    for broker_id, lag in sorted(status.lag_records.items()):
        lags.add_metric([str(broker_id)], lag)
    yield lags


def _repair_metrics(status: ReplicationStatus) -> Iterator[Metric]:
    prefix = "raftlog_replication"
    yield gauge(
        f"{prefix}_opening_replicas",
        "Replicas on this node that are being created or opened.",
        status.opening,
    )
    yield gauge(
        f"{prefix}_distrusted_replicas",
        "Replicas on this node that may have lost acknowledged records, until the cluster knows.",
        status.distrusted,
    )
    yield gauge(f"{prefix}_repairs", "Replicas on this node that are under repair.", status.repairs)
    yield gauge(
        f"{prefix}_repairs_postponed",
        "Replicas under repair that were replaced too often within an hour, and wait.",
        status.repairs_postponed,
    )
    yield counter(
        "raftlog_forwarding_requests_sent",
        "Requests forwarded to the leader.",
        status.requests_forwarded,
    )
    yield counter(
        "raftlog_forwarding_requests_taken",
        "Requests executed for other nodes.",
        status.requests_taken,
    )


def _log_sizes(services: NodeServices, topic_labels_max: int) -> Metric:
    """Bytes per topic. The largest are by name, the others summed."""
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


def coordinator_metrics(services: NodeServices, labels_max: int) -> Iterator[Metric]:
    """Families about the groups and transactions coordinated here, and partitions led here."""
    status = services.coordination()
    by_state = GaugeMetricFamily(
        "raftlog_groups", "Groups coordinated by this node.", labels=["kind", "state"]
    )
    # A family has a sample also without any groups.
    groups = {("consumer", "stable"): 0, **status.groups}
    for (kind, state), count in sorted(groups.items()):
        by_state.add_metric([kind, state], count)
    yield by_state
    yield gauge(
        "raftlog_consumer_instances",
        "REST consumer instances coordinated by this node.",
        status.consumer_instances,
    )
    yield _group_lags(status, labels_max)
    yield counter(
        "raftlog_group_rebalances",
        "Assignments and generations begun in groups coordinated by this node.",
        status.rebalances,
    )
    yield counter(
        "raftlog_group_offset_commits",
        "Offsets committed at this node as coordinator, one for each partition.",
        status.offset_commits,
    )
    open_by_state = GaugeMetricFamily(
        "raftlog_transactions",
        "Transactions coordinated by this node that are open, or without all of their markers.",
        labels=["state"],
    )
    for label in TRANSACTION_STATES:
        open_by_state.add_metric([label], status.transactions[label])
    yield open_by_state
    yield gauge(
        "raftlog_transaction_seconds_max",
        "Age of the oldest of these transactions, or 0 without any.",
        status.oldest_transaction_ms / 1000,
    )
    yield gauge(
        "raftlog_transactions_parked",
        "Decided transactions whose marker a partition's leader rejects. The log has the reasons.",
        status.parked_transactions,
    )
    yield counter(
        "raftlog_transaction_timeouts",
        "Transactions aborted by this node because their producer was silent for its timeout.",
        status.transaction_timeouts,
    )
    yield counter(
        "raftlog_producers_fenced",
        "Requests to this node as coordinator that were rejected for their producer's old epoch.",
        status.producers_fenced,
    )
    yield _stable_lags(services, labels_max)


def _group_lags(status: CoordinatorStatus, labels_max: int) -> Metric:
    """Lag per group and topic. The largest are by name, the others summed."""
    family = GaugeMetricFamily(
        "raftlog_group_lag_records",
        "Records that a group coordinated by this node has not committed yet, measured every 10 s"
        " or less often.",
        labels=["group", "topic"],
    )
    for lag in sorted(status.lags[:labels_max]):
        family.add_metric([lag.group, lag.topic], lag.records)
    others = status.other_lags + sum(lag.records for lag in status.lags[labels_max:])
    family.add_metric([OTHER_TOPICS, OTHER_TOPICS], others)
    return family


def _stable_lags(services: NodeServices, labels_max: int) -> Metric:
    """Records that open transactions hold back, in the topics with most of them."""
    family = GaugeMetricFamily(
        "raftlog_last_stable_offset_lag_records",
        "Most committed records of one partition led by this node that an open transaction holds "
        "back. Topics without any are in `__other__`.",
        labels=["topic"],
    )
    lags: dict[str, int] = {}
    for partition in services.replicas.led():
        lag = partition.high_watermark - partition.last_stable_offset
        if lag:
            lags[partition.topic] = max(lag, lags.get(partition.topic, 0))
    ranked = sorted(lags.items(), key=lambda item: (-item[1], item[0]))
    for topic, lag in sorted(ranked[:labels_max]):
        family.add_metric([topic], lag)
    family.add_metric([OTHER_TOPICS], max((lag for _, lag in ranked[labels_max:]), default=0))
    return family


def quorum_metrics(services: NodeServices) -> Iterator[Metric]:
    """Families about this node's member of the quorum, as of now."""
    quorum = services.quorum
    status = quorum.status()
    prefix = "raftlog_quorum"
    yield gauge(f"{prefix}_term", "Raft's term.", status.term)
    yield gauge(
        f"{prefix}_leader_id",
        "The leader as this node knows it, -1 if unknown.",
        NO_LEADER_ID if status.leader_id is None else status.leader_id,
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
        "Committed entries not applied here yet.",
        max(status.commit_index - status.applied_index, 0),
    )
    yield counter(f"{prefix}_elections", "Elections started by this node.", status.elections)
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
        f"{prefix}_peers_connected", "Other members connected to this member.", len(quorum.peers())
    )
    yield gauge(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "1 if this node is the active controller, else 0.",
        int(quorum.is_active),
    )
