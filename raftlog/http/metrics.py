"""Metrics: plain counters that requests add to, turned into Prometheus families when asked.

The hot path adds to integers; prometheus_client's own counters take a lock and a label lookup each
time. Names are the field's (Kafka's JMX exporter) where the meaning is the same, so that its
dashboards work, and `raftlog_…` where there is none.

Label sets are bounded: routes and statuses are finite, and of the topics the first
`topic_labels_max` in use have labels; all others are summed under `__other__`, which is no topic's
name. A deleted topic's counts move there, too, and its place becomes free.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, fields

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from raftlog.http.routing import Route

OTHER_TOPICS = "__other__"
UNROUTED = "none"
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

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


@dataclass(slots=True)
class TopicCounters:
    """What went through one topic (or all without labels of their own) since the start."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    produce_requests: int = 0
    fetch_requests: int = 0
    failed_produce_requests: int = 0
    failed_fetch_requests: int = 0

    def add(self, other: TopicCounters) -> None:
        """Take over another's counts."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


class _RouteCounters:
    __slots__ = ("aborted", "buckets", "seconds", "statuses")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.seconds = 0.0
        self.aborted = 0


class ServerMetrics(Collector):
    """The numbers of one server. Everything runs in the event loop; nothing is locked."""

    def __init__(self, topic_labels_max: int) -> None:
        self._topic_labels_max = topic_labels_max
        self._topics: dict[str, TopicCounters] = {}
        self._other = TopicCounters()
        self._routes: dict[Route | None, _RouteCounters] = {}
        self._sources: list[Source] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def topic(self, name: str) -> TopicCounters:
        """Where to count for a topic, which must exist: else anyone could fill the labels."""
        counters = self._topics.get(name)
        if counters is None:
            if len(self._topics) >= self._topic_labels_max:
                return self._other
            counters = self._topics[name] = TopicCounters()
        return counters

    def keep_topics(self, existing: Container[str]) -> None:
        """Take the labels of all other topics away."""
        for name in [name for name in self._topics if name not in existing]:
            self._other.add(self._topics.pop(name))

    def answered(self, route: Route | None, status: int, seconds: float) -> None:
        """Count a request that was answered; `route` is None if it had none."""
        counters = self._routes.get(route) or self._routes.setdefault(route, _RouteCounters())
        counters.statuses[status] = counters.statuses.get(status, 0) + 1
        counters.buckets[bisect_left(BUCKETS_S, seconds)] += 1
        counters.seconds += seconds

    def aborted(self, route: Route | None) -> None:
        """Count a request whose peer left before its answer."""
        counters = self._routes.get(route) or self._routes.setdefault(route, _RouteCounters())
        counters.aborted += 1

    def add_source(self, source: Source) -> None:
        """Ask `source` for families, too, at each scrape."""
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
        rows = [*sorted(self._topics.items()), (OTHER_TOPICS, self._other)]
        for attribute, (name, text) in _TOPIC_FAMILIES.items():
            family = CounterMetricFamily(
                f"kafka_server_brokertopicmetrics_{name}", text, labels=["topic"]
            )
            for topic, counters in rows:
                family.add_metric([topic], getattr(counters, attribute))
            yield family

    def _route_families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "raftlog_http_requests", "Requests answered.", labels=["route", "status"]
        )
        aborted = CounterMetricFamily(
            "raftlog_http_requests_aborted", "Requests whose peer left early.", labels=["route"]
        )
        seconds = HistogramMetricFamily(
            "raftlog_http_request_seconds",
            "From the end of the headers to the start of the answer, long polls included.",
            labels=["route"],
        )
        for route, counters in self._routes.items():
            name = route.name if route else UNROUTED
            for status, count in sorted(counters.statuses.items()):
                requests.add_metric([name, str(status)], count)
            if counters.aborted:
                aborted.add_metric([name], counters.aborted)
            cumulative = 0
            buckets = []
            for bound, count in zip((*BUCKETS_S, "+Inf"), counters.buckets, strict=True):
                cumulative += count
                buckets.append((str(bound), cumulative))
            seconds.add_metric([name], buckets, sum_value=counters.seconds)
        yield from (requests, aborted, seconds)


def gauge(name: str, text: str, value: float) -> Metric:
    """A gauge without labels."""
    return GaugeMetricFamily(name, text, value=value)


def counter(name: str, text: str, value: float) -> Metric:
    """A counter without labels."""
    return CounterMetricFamily(name, text, value=value)
