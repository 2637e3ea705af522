"""Traffic counters per topic, and the Prometheus families of a listener's metrics page.

The hot path adds to integers, because prometheus_client's own counters take a lock and a label
lookup each time. Listeners build the families at scrape time.

Label sets are bounded. The first `labels_max` topics in use have separate counters, and all others
share one. A deleted topic's counts move to the shared counters, and its place becomes free.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

OTHER_TOPICS: Final = "__other__"
"""Label of the shared counters. No topic can have this name."""
BUCKETS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0
)  # fmt: skip
"""Upper bounds of the buckets of durations."""


@dataclass(slots=True)
class TopicCounters:
    """Traffic of one topic, or of all topics without labels, since the start."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    produce_requests: int = 0
    fetch_requests: int = 0
    failed_produce_requests: int = 0
    failed_fetch_requests: int = 0

    def add(self, other: TopicCounters) -> None:
        """Add the counts of `other`."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


class TopicMetrics:
    """The counters of all topics. Everything runs in the event loop, without a lock."""

    def __init__(self, labels_max: int) -> None:
        self._labels_max = labels_max
        self._topics: dict[str, TopicCounters] = {}
        self._other = TopicCounters()

    def topic(self, name: str) -> TopicCounters:
        """The counters of an existing topic. Unknown names would let any client fill the labels."""
        counters = self._topics.get(name)
        if counters is None:
            if len(self._topics) >= self._labels_max:
                return self._other
            counters = self._topics[name] = TopicCounters()
        return counters

    def keep_topics(self, existing: Container[str]) -> None:
        """Drop the labels of all other topics."""
        for name in [name for name in self._topics if name not in existing]:
            self._other.add(self._topics.pop(name))

    def rows(self) -> Iterator[tuple[str, TopicCounters]]:
        """Label and counters of topics by name, then of the shared counters."""
        yield from sorted(self._topics.items())
        yield OTHER_TOPICS, self._other


class Histogram:
    """Counts of durations by bucket."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.seconds = 0.0
        """Sum of all durations."""

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds

    def family(self, name: str, text: str) -> Metric:
        """The family of this histogram alone."""
        return HistogramMetricFamily(
            name, text, buckets=cumulative(self.counts), sum_value=self.seconds
        )


def histograms(
    name: str, text: str, label: str, rows: Iterable[tuple[str, Histogram]]
) -> HistogramMetricFamily:
    """A family of histograms with one label."""
    family = HistogramMetricFamily(name, text, labels=[label])
    for value, histogram in rows:
        family.add_metric([value], cumulative(histogram.counts), sum_value=histogram.seconds)
    return family


def cumulative(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Cumulative counts by bucket, as Prometheus expects them."""
    bounds = (*map(str, BUCKETS_S), "+Inf")
    return list(zip(bounds, accumulate(counts), strict=True))


def gauge(name: str, text: str, value: float) -> Metric:
    """A gauge without labels."""
    return GaugeMetricFamily(name, text, value=value)


def counter(name: str, text: str, value: float) -> Metric:
    """A counter without labels."""
    return CounterMetricFamily(name, text, value=value)
