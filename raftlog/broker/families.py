"""Prometheus families as the listeners of a node build them at scrape time.

The hot path adds to integers, because prometheus_client's own counters take a lock and a label
lookup each time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

BUCKETS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0
)  # fmt: skip
"""Upper bounds of the buckets of durations."""


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
