"""The Kafka listener adds to plain counts, which become Prometheus families at scrape time.

Label sets are bounded by the names and versions of the API table, and `EndReason`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, Metric

from raftlog.broker.metrics import Histogram, counter, gauge, histograms

if TYPE_CHECKING:
    from raftlog.kafka.apis import Api


class EndReason(StrEnum):
    """The reason why a connection ended."""

    CLIENT = "client"
    """The client closed the connection, or is gone."""
    ERROR = "error"
    """A request failed without a response, by acks=0, an unready node, or a defect."""
    IDLE = "idle"
    MALFORMED = "malformed"
    """The bytes are no request of a served API and version, or are too many."""
    SLOW_READER = "slow-reader"
    SLOW_SENDER = "slow-sender"
    STOPPING = "stopping"
    TOO_MANY = "too-many"
    """The connection is over a limit, and is closed at once."""


class _ApiCounts:
    """Requests of one API."""

    __slots__ = ("bytes_in", "bytes_out", "durations", "name", "versions")

    def __init__(self, api: Api) -> None:
        self.name = api.name
        self.versions: dict[int, int] = {}
        """Requests by version."""
        self.durations = Histogram()
        self.bytes_in = 0
        self.bytes_out = 0


class KafkaMetrics:
    """The counts of one listener. Everything runs in the event loop, so nothing is locked."""

    def __init__(self) -> None:
        self.accepted = 0
        self.ended = dict.fromkeys(EndReason, 0)
        self._apis: dict[int, _ApiCounts] = {}

    def handled(
        self, api: Api, version: int, seconds: float, *, bytes_in: int, bytes_out: int
    ) -> None:
        """Count a request. `seconds` is the time from its last byte to its response."""
        counts = self._apis.get(api.key) or self._apis.setdefault(api.key, _ApiCounts(api))
        versions = counts.versions
        versions[version] = versions.get(version, 0) + 1
        counts.durations.add(seconds)
        counts.bytes_in += bytes_in
        counts.bytes_out += bytes_out

    def families(self, *, connections: int, in_flight: int, waiting: int) -> Iterator[Metric]:
        """All families, with the present numbers of connections and requests."""
        yield gauge("raftlog_kafka_connections", "Connections of Kafka clients.", connections)
        yield counter(
            "raftlog_kafka_connections_accepted",
            "Connections of Kafka clients since the start, those over a limit included.",
            self.accepted,
        )
        ended = CounterMetricFamily(
            "raftlog_kafka_connections_ended",
            "Ended connections of Kafka clients, by the reason.",
            labels=["reason"],
        )
        for reason, count in self.ended.items():
            ended.add_metric([reason], count)
        yield ended
        yield gauge(
            "raftlog_kafka_requests_in_flight",
            "Requests of Kafka clients being handled, held ones included.",
            in_flight,
        )
        yield gauge(
            "raftlog_kafka_requests_waiting_for_memory",
            "Large requests that are not received yet, as bytes in flight are at their limit.",
            waiting,
        )
        yield from self._api_families()

    def _api_families(self) -> Iterator[Metric]:
        apis = sorted(self._apis.values(), key=lambda api: api.name)
        requests = CounterMetricFamily(
            "raftlog_kafka_requests", "Requests of Kafka clients.", labels=["api", "version"]
        )
        bytes_in = CounterMetricFamily(
            "raftlog_kafka_request_bytes", "Bytes of these requests.", labels=["api"]
        )
        bytes_out = CounterMetricFamily(
            "raftlog_kafka_response_bytes", "Bytes of their responses.", labels=["api"]
        )
        for api in apis:
            for version, count in sorted(api.versions.items()):
                requests.add_metric([api.name, str(version)], count)
            bytes_in.add_metric([api.name], api.bytes_in)
            bytes_out.add_metric([api.name], api.bytes_out)
        yield from (requests, bytes_in, bytes_out)
        yield histograms(
            "raftlog_kafka_request_seconds",
            "Time from the last byte of the request to its response, long polls included.",
            "api",
            ((api.name, api.durations) for api in apis),
        )
