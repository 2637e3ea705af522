"""`Broker`: all operations that one node offers its clients, with their shared state.

The node constructs one `Broker`, and gives it to every listener. So limits, batches of small
requests, the round robin and the metrics are common to all protocols. A listener

1. calls `check_ready` for each request.
2. authenticates the client, which gives a `Principal`.
3. reserves the request in `requests_in_flight` and its bytes in `bytes_in_flight`, and releases
   both after the response. Takes a turn of `turns` for each piece of long synchronous work.
4. calls an operation, and shapes its outcome.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from raftlog.api.common import Status
from raftlog.broker.admin import AdminService
from raftlog.broker.authorize import Authorize, allow_all, guard_internal_topics
from raftlog.broker.classic_groups import ClassicGroupService
from raftlog.broker.consumer_instances import ConsumerInstanceService
from raftlog.broker.fetch import FetchService
from raftlog.broker.groups import CoordinatorLookup, GroupService
from raftlog.broker.limits import BrokerSettings
from raftlog.broker.node import NodeServices, cluster_hosts, unready
from raftlog.broker.offsets import OffsetService
from raftlog.broker.produce import ProduceService
from raftlog.broker.shared import ListenedService
from raftlog.broker.transactions import TransactionService
from raftlog.record.errors import NOT_READY, LogError
from raftlog.world.threads import Threads

DECOMPRESSION_THREADS: Final = 1
"""Threads that decompress stored batches. One thread is faster than the event loop writes the
batches out as JSON. More threads would only take processors from syncs and from other clients."""


class Broker(ListenedService):
    """One node's operations. Lives in the event loop."""

    noun = "node"

    def __init__(
        self, services: NodeServices, settings: BrokerSettings, authorize: Authorize = allow_all
    ) -> None:
        super().__init__(settings, services.clock)
        authorize = guard_internal_topics(authorize)
        self.services = services
        """Node's services, for health and metrics pages, not for operations."""
        self.decompression = Threads(DECOMPRESSION_THREADS, "decompress")
        self.produce = ProduceService(services, settings, self.topics, authorize, self.turns)
        self.fetch = FetchService(services, settings, self.topics, authorize, self.closing)
        self.offsets = OffsetService(services, settings, authorize)
        self.transactions = TransactionService(services, authorize)
        self.groups = GroupService(services, self.offsets, authorize, self.closing)
        self.classic_groups = ClassicGroupService(services, self.groups, authorize)
        self.coordinators = CoordinatorLookup(services, authorize)
        self.consumer_instances = ConsumerInstanceService(
            services, self.groups, self.fetch, self.offsets, authorize
        )
        self.admin = AdminService(services, settings, authorize)

    def record_time_ms(self) -> int:
        """The cluster's time, because the record expires by its timestamp."""
        return self.services.cluster_clock.estimate_ms()

    @property
    def cluster_id(self) -> str:
        """The cluster's identity, empty before this node knows it."""
        return self.services.cluster_id

    @property
    def node_id(self) -> int:
        """This node's broker id."""
        return self.services.node_id

    def close(self) -> None:
        """End the threads, once the listeners have closed."""
        self.decompression.close()

    def hosts(self) -> Iterable[str]:
        """The hosts of the cluster's nodes."""
        return cluster_hosts(self.services)

    def check_ready(self) -> None:
        """Raise LogError NOT_READY, with the reason, unless the node serves.

        A starting node may merely not have read an unknown topic from disk yet.
        """
        reason = self.services.readiness.reason
        if reason is not None:
            raise LogError(NOT_READY, reason)

    def check_whole(self) -> None:
        """Raise LogError unless the node serves and knows the active controller."""
        error = unready(self.services)
        if error is not None:
            raise error

    def status(self, text: str) -> Status:
        """The body of the responses of /healthy and /ready."""
        return Status(text, self.node_id, self.cluster_id)

    def keep_metrics(self) -> None:
        """Drop the counters of deleted topics."""
        self.topics.keep_topics(self.services.metadata.image.topics_by_name)
