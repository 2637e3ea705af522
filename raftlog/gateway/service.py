"""`Gateway` is the state that all handlers share. Nothing outlives the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from raftlog.api.catalog import CatalogEntry
from raftlog.broker.metrics import counter, gauge
from raftlog.broker.shared import ListenedService
from raftlog.gateway.catalog_view import CatalogView
from raftlog.gateway.links import Link, Links
from raftlog.http.settings import ServerSettings
from raftlog.record.errors import NOT_READY, LogError
from raftlog.world import Clock

NOT_CHECKED: Final = "its stub topic is being checked"
STATES: Final = ("creating", "online", "degraded")
"""States of served logs, as labels."""


class GatewayStatus(msgspec.Struct, frozen=True):
    """The response of /healthy and /ready."""

    status: str
    logs: int
    """Served logs."""
    catalog_age_s: float
    """Seconds since the home cluster last responded, or -1 before the first response."""
    catalog_failure: str
    """The last failure, or empty while the home cluster responds."""
    logs_without_groups: dict[str, str]
    """Logs that groups cannot read, and the reasons."""


class Gateway(ListenedService):
    """The state of one gateway, with the latest catalog and links to all clusters."""

    noun = "gateway"

    def __init__(self, home: Sequence[str], settings: ServerSettings, clock: Clock) -> None:
        """`home` are the addresses of nodes of the home cluster."""
        super().__init__(settings.for_broker(), clock)
        self.settings = settings
        self.links = Links()
        self.home_seeds = tuple(home)
        self.home = Link(self.links, "The home cluster", home, unreachable=NOT_READY)
        self.catalog = CatalogView()
        self.catalog_seen_s: float | None = None
        """Monotonic seconds of the last response about the catalog, or None before the first
        load."""
        self.catalog_failure = "the catalog has not been read yet"
        """The last failure, or empty."""
        self.rejected_entries = 0
        self.stubs: frozenset[str] = frozenset()
        """Logs that groups may read."""
        self.without_stub: dict[str, str] = {}
        """Logs with a failed step towards their stubs, and the reason."""
        self._log_links: dict[str, Link] = {}

    # Checks for the listeners

    def check_ready(self) -> None:
        """Raise LogError NOT_READY until the catalog has been loaded once.

        Later the gateway continues with the catalog as last seen.
        """
        if self.catalog_seen_s is None:
            raise LogError(NOT_READY, f"The gateway has no catalog: {self.catalog_failure}.")

    def check_whole(self) -> None:
        """Raise LogError NOT_READY until the catalog has been loaded once."""
        self.check_ready()

    def status(self, text: str) -> GatewayStatus:
        """The body of the responses of /healthy and /ready."""
        return GatewayStatus(
            status=text,
            logs=len(self.catalog.logs()),
            catalog_age_s=round(self.catalog_age_s, 3),
            catalog_failure=self.catalog_failure,
            logs_without_groups=self.logs_without_groups(),
        )

    def hosts(self) -> Iterable[str]:
        """None, because a gateway has no advertised name besides its settings."""
        return ()

    # Logs

    def link(self, log: str) -> Link:
        """The link to the cluster of a log. Raises LogError UNKNOWN_TOPIC."""
        entry = self.catalog.find(log)
        return self._log_links.get(log) or self._add_link(entry)

    def use_catalog(self, catalog: CatalogView) -> None:
        """Serve the logs of this view, which may be the present view after changes."""
        self.catalog = catalog
        entries = {entry.log: entry for entry in catalog.logs()}
        for log in [log for log in self._log_links if log not in entries]:
            del self._log_links[log]
        for log, link in self._log_links.items():
            link.replace_addresses(entries[log].addresses)

    def _add_link(self, entry: CatalogEntry) -> Link:
        # Each log of the catalog has at most one link. Connections belong to the session.
        link = Link(self.links, f"The cluster of log {entry.log!r}", entry.addresses)
        self._log_links[entry.log] = link
        return link

    def logs_without_groups(self) -> dict[str, str]:
        """Served logs that groups cannot read, or whose stub could not grow, with the reasons."""
        found = {
            entry.log: NOT_CHECKED for entry in self.catalog.logs() if entry.log not in self.stubs
        }
        return {**found, **self.without_stub}

    @property
    def catalog_age_s(self) -> float:
        """Seconds since the home cluster last responded about the catalog, or -1 before that."""
        seen_s = self.catalog_seen_s
        return -1.0 if seen_s is None else self.clock.monotonic() - seen_s

    def metrics(self) -> Iterator[Metric]:
        """The families of the gateway."""
        yield gauge(
            "raftlog_gateway_catalog_age_seconds",
            "Time since the home cluster last responded about the catalog, or -1 before that.",
            self.catalog_age_s,
        )
        states = dict.fromkeys(STATES, 0)
        for entry in self.catalog.logs():
            states[entry.state] += 1
        logs = GaugeMetricFamily(
            "raftlog_gateway_logs", "Logs of the catalog that are served.", labels=["state"]
        )
        for state, count in states.items():
            logs.add_metric([state], count)
        yield logs
        yield gauge(
            "raftlog_gateway_logs_without_groups",
            "Logs that groups cannot read, for want of a stub topic in the home cluster.",
            len(self.logs_without_groups()),
        )
        yield counter(
            "raftlog_gateway_catalog_rejected",
            "Records of the catalog that are no entries.",
            self.rejected_entries,
        )
        calls = self.links.counters
        yield counter(
            "raftlog_gateway_cluster_answers",
            "Answers of clusters, errors included.",
            calls.answered,
        )
        yield counter(
            "raftlog_gateway_cluster_failures",
            "Requests to nodes that failed or timed out.",
            calls.failed,
        )
        yield counter(
            "raftlog_gateway_cluster_unreachable",
            "Connections to nodes that could not be made.",
            calls.unreachable,
        )
