"""Cluster metadata with nodes, topics and leaders, and calls to any node.

A view may always be out of date. A node rejects a misrouted request, and the caller then calls
`refresh`. Concurrent refreshes share one request. A partition's leader epoch never goes back,
because the responding node may be behind the others.

An unreachable or silent node is *suspect* for a while, and others are tried first.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from raftlog.api.cluster import MetadataResponse, MetadataTopic, TopicsToProduce
from raftlog.record.coordinators import partition_of
from raftlog.record.errors import METHOD_NOT_ALLOWED, NOT_FOUND, UNKNOWN_PARTITION, UNKNOWN_TOPIC
from raftlog_client.errors import (
    ConnectionLostError,
    NoNodeAvailableError,
    RaftlogClientError,
    ServerError,
    TopicNotFoundError,
    server_error,
)
from raftlog_client.transport import NodeAddress, Startable, Transport, parse_bootstrap
from raftlog_client.types import (
    BrokerInfo,
    ClusterInfo,
    PartitionInfo,
    TopicDescription,
    require_at_least,
)

TOPICS_PER_REQUEST_MAX: Final = 50
"""Most names in one query. Request lines have a limit, and names may have 249 characters."""
METADATA_PATIENCE_S: Final = 2.0
"""Seconds of silence after which the next node is tried. Nodes respond from memory, so a node that
is silent for so long is in trouble."""
REFRESH_PATIENCE_S: Final = 0.5
"""Seconds of silence for partition leaders. Requests wait for these. Doubles with each round."""
COORDINATOR_PATIENCE_S: Final = 4.0
"""Seconds of silence after which another node is tried. A node forwards to the coordinator, or
queries all coordinators, and these wait for their replicas."""
BOOTSTRAP_TIMEOUT_MS: Final = 4_000
"""Milliseconds for the first response to a client, from a starting or paused node. After that the
address is probably wrong, and the user waits for the error."""
WAIT_REPORTED_S: Final = 2.0
"""Seconds without a useful response after which the client logs what it waits for."""
SUSPECT_S: Final = 10.0
"""Seconds for which other nodes are tried first."""
UNKNOWN_TOPIC_ATTEMPTS: Final = 3
"""Refreshes before a topic is unknown. A topic just created may not be known on every node yet."""
COORDINATOR_LOOKUP_S: Final = 0.5
"""Seconds between two lookups of coordinators that are not known or have failed."""
COORDINATOR_AVOIDED_S: Final = 1.0
"""Seconds for which any node is called instead of a failed coordinator, about an election."""
COORDINATOR_AGE_S: Final = 60.0
"""Seconds between lookups of coordinators. They also move without an error. Any node forwards, but
that costs a second hop."""
JITTER: Final = 0.2
"""Share by which a pause varies at random. Many clients must not return in step."""
DOUBLINGS_MAX: Final = 16
"""Doublings after which the pause cannot grow, whatever its bound. Keeps the shift small."""

logger = logging.getLogger("raftlog_client")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts, which start at about `first_ms` and double up to `max_ms`."""

    first_ms: float
    max_ms: float
    jitter: float = JITTER
    """Share by which chance shortens or lengthens a pause."""

    def delay_s(self, attempt: int) -> float:
        """Return the seconds to wait after failed attempt number `attempt`, counted from 0."""
        nominal_ms = min(self.max_ms, self.first_ms * (1 << min(attempt, DOUBLINGS_MAX)))
        chance = random.uniform(1 - self.jitter, 1 + self.jitter) if self.jitter else 1.0
        return nominal_ms * chance / 1000


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One state of knowledge. Replaced whole, never changed."""

    cluster_id: str = ""
    controller_id: int | None = None
    brokers: Mapping[int, BrokerInfo] = field(default_factory=dict)
    topics: Mapping[str, TopicDescription] = field(default_factory=dict)

    def cluster_info(self) -> ClusterInfo:
        """Return the part about the cluster."""
        return ClusterInfo(self.cluster_id, self.controller_id, tuple(self.brokers.values()))


class CoordinatorKey(NamedTuple):
    """Key of a request to a coordinator in an internal topic."""

    topic: str
    key: str
    """Group or transactional id. A sink's id is coordinated elsewhere and is forwarded."""


class Leadership(NamedTuple):
    """A partition's leader, or None, and its leader epoch."""

    leader: int | None
    epoch: int


class ClusterMetadata:
    """Keeps a `ClusterView` with each partition's leader and its address."""

    def __init__(
        self,
        transport: Transport,
        bootstrap: Sequence[NodeAddress],
        backoff: Backoff,
        *,
        bootstrap_timeout_ms: float = BOOTSTRAP_TIMEOUT_MS,
    ) -> None:
        """`bootstrap_timeout_ms` bounds a call while no node has ever responded."""
        self.view = ClusterView()
        self._transport = transport
        self._bootstrap = list(bootstrap)
        self.backoff = backoff
        self._addresses: dict[int, NodeAddress] = {}
        self._refreshing: dict[frozenset[str] | None, asyncio.Task[ClusterView]] = {}
        self._turn = random.randrange(1 << 16)
        self._bootstrap_timeout_s = bootstrap_timeout_ms / 1000
        self._has_answer = False
        """Whether any node has ever responded."""
        self._suspects: dict[NodeAddress, float] = {}
        """End of each node's suspicion. Bounded by the cluster's size."""
        self._looked_up_at: dict[str, float] = {}
        """Time of the last lookup of coordinators, by internal topic."""
        self._avoided_until: dict[str, float] = {}
        """Time until which coordinators are not called directly, by internal topic."""
        self._lookups: set[asyncio.Task[ClusterView]] = set()

    @property
    def request_timeout_s(self) -> float:
        """Seconds for a request, over all its attempts."""
        return self._transport.request_timeout_s

    def leader_address(self, topic: str, partition: int) -> NodeAddress | None:
        """Return the known address of the partition's leader."""
        description = self.view.topics.get(topic)
        if description is None or not 0 <= partition < len(description.partitions):
            return None
        leader = description.partitions[partition].leader
        return None if leader is None else self._addresses.get(leader)

    def in_sync_addresses(self, topic: str, partition: int, *, rack: str) -> list[NodeAddress]:
        """Return the addresses of the partition's in-sync replicas in that rack.

        Suspect nodes are left out.
        """
        description = self.view.topics.get(topic)
        if description is None or not 0 <= partition < len(description.partitions):
            return []
        now = asyncio.get_running_loop().time()
        brokers = [
            self.view.brokers.get(node_id) for node_id in description.partitions[partition].isr
        ]
        addresses = [
            self._addresses[broker.broker_id]
            for broker in brokers
            if broker is not None and broker.rack == rack
        ]
        return [address for address in addresses if self._suspects.get(address, -math.inf) <= now]

    def leadership(self, topic: str, partition: int) -> Leadership | None:
        """Return the partition's leader and epoch, or None for an unknown partition."""
        description = self.view.topics.get(topic)
        if description is None or not 0 <= partition < len(description.partitions):
            return None
        info = description.partitions[partition]
        return Leadership(info.leader, info.leader_epoch)

    def has_moved(self, topic: str, partition: int, seen: Leadership | None) -> bool:
        """Return whether there is a leader that differs from `seen` in node or epoch."""
        present = self.leadership(topic, partition)
        return present is not None and present != seen and present.leader is not None

    def is_replicated(self, topic: str, partition: int) -> bool:
        """Return whether another node may take over the partition, as far as known."""
        description = self.view.topics.get(topic)
        if description is None or not 0 <= partition < len(description.partitions):
            return False
        return len(description.partitions[partition].replicas) > 1

    def suspect(self, address: NodeAddress) -> None:
        """Try other nodes first for a while, because this node is unreachable or silent."""
        self._suspects[address] = asyncio.get_running_loop().time() + SUSPECT_S

    def may_ask_others(self, address: NodeAddress) -> bool:
        """Return whether there is any other node to call."""
        return any(other != address for other in self.addresses())

    def has_partition(self, topic: str, partition: int) -> bool:
        """Return whether the partition exists, as far as known."""
        description = self.view.topics.get(topic)
        return description is not None and 0 <= partition < len(description.partitions)

    async def topic(self, name: str, *, to_produce: bool = False) -> TopicDescription:
        """Return a topic, from memory if possible. Raises TopicNotFoundError if unknown.

        A topic `to_produce` to is created if the cluster creates topics automatically. Raises
        ServerError if that fails.
        """
        for attempt in range(UNKNOWN_TOPIC_ATTEMPTS):
            known = self.view.topics.get(name)
            if known is None:
                if attempt:
                    await asyncio.sleep(self.backoff.delay_s(attempt - 1))
                known = (await self.refresh((name,))).topics.get(name)
            if known is None and to_produce and not attempt:
                known = await self._topic_to_produce(name)
            if known is not None:
                return known
        raise TopicNotFoundError(UNKNOWN_TOPIC, f"Topic {name!r} does not exist.")

    async def _topic_to_produce(self, name: str) -> TopicDescription | None:
        """Return the topic, created if the cluster creates topics automatically, or None."""
        try:
            answer = await self.call_any(
                "POST", "/v1/metadata", MetadataResponse, TopicsToProduce([name])
            )
        except ServerError as error:
            if error.entry not in (METHOD_NOT_ALLOWED, NOT_FOUND):
                raise
            return None  # a node of an older release
        self._apply(answer, [name])
        return self.view.topics.get(name)

    async def check_partition(
        self, topic: str, partition: int, *, to_produce: bool = False
    ) -> TopicDescription:
        """Return the topic once it is known to have the partition. Raises TopicNotFoundError."""
        description = await self.topic(topic, to_produce=to_produce)
        if partition >= len(description.partitions):
            description = (await self.refresh((topic,))).topics.get(topic, description)
        if not 0 <= partition < len(description.partitions):
            raise TopicNotFoundError(
                UNKNOWN_PARTITION,
                f"Topic {topic!r} has {len(description.partitions)} partitions, no {partition}.",
            )
        return description

    async def refresh(self, topics: Iterable[str] | None) -> ClusterView:
        """Fetch metadata of these topics and return the new view.

        None fetches all topics, and an empty list only nodes. Unknown topics vanish from the view.
        Raises RaftlogClientError if no node responds.
        """
        wanted = None if topics is None else frozenset(topics)
        task = self._refreshing.get(wanted)
        if task is None:
            task = asyncio.ensure_future(self._refresh(wanted))
            self._refreshing[wanted] = task
            task.add_done_callback(lambda _: self._refreshing.pop(wanted, None))
        # A caller's cancellation must not fail the others.
        return await asyncio.shield(task)

    async def call_any(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: msgspec.Struct | None = None,
        *,
        is_idempotent: bool = True,
        patience_s: float = math.inf,
        coordinator: CoordinatorKey | None = None,
    ) -> T:
        """Send a request to each node in turn, with pauses, until a node responds.

        The first call goes to the `coordinator`, if known, because any other node would forward to
        it.

        A request that is not idempotent is repeated only if it certainly reached no node. The next
        node is tried after `patience_s` of silence. Gives up with the last error after the request
        timeout. While no node has ever responded, gives up after `bootstrap_timeout_ms` with
        NoNodeAvailableError.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        attempt = 0
        is_reported = False
        while True:
            patience_now_s = patience_s * (1 << min(attempt // len(self.addresses()), 16))
            timeout_s = min(max(started + self._total_s - loop.time(), 0.01), patience_now_s)
            try:
                return await self.call_next(
                    method,
                    path,
                    kind,
                    body,
                    timeout_s=timeout_s,
                    coordinator=None if attempt else coordinator,
                )
            except (ConnectionLostError, ServerError) as error:
                may_repeat = error.retriable and (is_idempotent or not error.outcome_unknown)
                # Each known node gets one attempt at once before the first pause.
                attempt += 1
                rounds = attempt // len(self.addresses())
                delay_s = self.backoff.delay_s(rounds - 1) if rounds else 0.0
                if not may_repeat or loop.time() + delay_s >= started + self._total_s:
                    if isinstance(error, ConnectionLostError) and not self._has_answer:
                        raise self._unreached(error) from error
                    raise
                if not is_reported and loop.time() - started >= WAIT_REPORTED_S:
                    is_reported = True
                    logger.warning("waiting for the cluster: %s", error)
            await asyncio.sleep(delay_s)

    async def call_next(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: msgspec.Struct | None = None,
        *,
        timeout_s: float,
        coordinator: CoordinatorKey | None = None,
    ) -> T:
        """Send a request once, to the known coordinator or to the next node in turn.

        Raises as `Transport.call`. After a failure the coordinator is looked up again, and the next
        requests take their turn.
        """
        direct = None if coordinator is None else self._coordinator_address(coordinator)
        address = self._next_address() if direct is None else direct
        try:
            answer = await self._transport.call(
                address, method, path, kind, body, timeout_s=timeout_s
            )
        except ConnectionLostError:
            self.suspect(address)
            if coordinator is not None:
                self._avoid_coordinator(coordinator)
            raise
        except ServerError as error:
            self._has_answer = True
            if direct is not None and coordinator is not None and error.retriable:
                self._avoid_coordinator(coordinator)
            raise
        self._has_answer = True
        self._suspects.pop(address, None)
        return answer

    async def call_node(
        self,
        address: NodeAddress,
        method: str,
        path: str,
        kind: type[T],
        body: msgspec.Struct | None = None,
        *,
        timeout_s: float,
    ) -> T:
        """Send a node a request once. Raises as `Transport.call`."""
        return await self._transport.call(address, method, path, kind, body, timeout_s=timeout_s)

    def addresses(self) -> list[NodeAddress]:
        """Return every node worth calling, from the cluster and the bootstrap list."""
        return list(dict.fromkeys((*self._addresses.values(), *self._bootstrap)))

    async def close(self) -> None:
        """Cancel refreshes under way."""
        tasks = [*self._lookups, *self._refreshing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _total_s(self) -> float:
        """Return the seconds to try nodes for one response."""
        total_s = self._transport.request_timeout_s
        return total_s if self._has_answer else min(total_s, self._bootstrap_timeout_s)

    def _unreached(self, error: ConnectionLostError) -> NoNodeAvailableError:
        where = ", ".join(self._bootstrap)
        return NoNodeAvailableError(
            f"No raftlog node answers at {where}: {error.reason}. Is it running? `raftlog serve` "
            "starts one; bootstrap_servers names the nodes to ask.",
            outcome_unknown=error.outcome_unknown,
            reason=error.reason,
        )

    def _coordinator_address(self, coordinator: CoordinatorKey) -> NodeAddress | None:
        """Return the address of the key's partition leader if it is trusted. Never waits."""
        topic, key = coordinator
        now = asyncio.get_running_loop().time()
        description = self.view.topics.get(topic)
        is_avoided = now < self._avoided_until.get(topic, -math.inf)
        interval_s = COORDINATOR_AGE_S
        if is_avoided or description is None:
            interval_s = COORDINATOR_LOOKUP_S
        if now - self._looked_up_at.get(topic, -math.inf) >= interval_s:
            self._looked_up_at[topic] = now
            lookup = asyncio.ensure_future(self.refresh((topic,)))
            self._lookups.add(lookup)
            lookup.add_done_callback(self._looked_up)
        if is_avoided or description is None or not description.partitions:
            return None
        number = partition_of(key, len(description.partitions))
        address = self.leader_address(topic, number)
        if address is None or now < self._suspects.get(address, -math.inf):
            return None
        return address

    def _looked_up(self, lookup: asyncio.Task[ClusterView]) -> None:
        self._lookups.discard(lookup)
        # Any node forwards to the coordinator and reports failures to its callers.
        if not lookup.cancelled() and (error := lookup.exception()) is not None:
            logger.debug("the coordinators could not be looked up: %r", error)

    def _avoid_coordinator(self, coordinator: CoordinatorKey) -> None:
        """Route its requests by turn for a while, and look it up again."""
        now = asyncio.get_running_loop().time()
        self._avoided_until[coordinator.topic] = now + COORDINATOR_AVOIDED_S

    def _next_address(self) -> NodeAddress:
        addresses = self.addresses()
        now = asyncio.get_running_loop().time()
        # Nodes gone from the metadata are also dropped.
        self._suspects = {
            address: until
            for address, until in self._suspects.items()
            if until > now and address in addresses
        }
        trusted = [address for address in addresses if address not in self._suspects] or addresses
        self._turn += 1
        return trusted[self._turn % len(trusted)]

    async def _refresh(self, wanted: frozenset[str] | None) -> ClusterView:
        if wanted is None:
            self._apply(await self._ask("/v1/metadata"), None)
            return self.view
        names = sorted(wanted)
        for start in range(0, max(len(names), 1), TOPICS_PER_REQUEST_MAX):
            part = names[start : start + TOPICS_PER_REQUEST_MAX]
            query = quote(",".join(part), safe=",")
            self._apply(await self._ask(f"/v1/metadata?topics={query}"), part)
        return self.view

    async def _ask(self, path: str) -> MetadataResponse:
        return await self.call_any("GET", path, MetadataResponse, patience_s=REFRESH_PATIENCE_S)

    def _apply(self, answer: MetadataResponse, asked: Sequence[str] | None) -> None:
        """Apply a metadata response about these topics, or about all for None."""
        topics = {} if asked is None else dict(self.view.topics)
        for name in asked or ():
            topics.pop(name, None)
        brokers = {
            broker.broker_id: BrokerInfo(broker.broker_id, broker.host, broker.port, broker.rack)
            for broker in answer.brokers
        }
        for topic in answer.topics:
            if not topic.error_code:
                fresh = _description(topic)
                topics[fresh.name] = _newest(self.view.topics.get(fresh.name), fresh)
            elif topic.error_code != UNKNOWN_TOPIC.code:
                raise server_error(topic.error_code, topic.message or None)
        controller_id = None if answer.controller_id < 0 else answer.controller_id
        self.view = ClusterView(answer.cluster_id, controller_id, brokers, topics)
        self._addresses = {
            broker.broker_id: node_address(broker.host, broker.port) for broker in brokers.values()
        }


def node_address(host: str, port: int) -> NodeAddress:
    """Return `host:port`, with the brackets of an IPv6 address in a URL."""
    return NodeAddress(f"[{host}]:{port}" if ":" in host and host[0] != "[" else f"{host}:{port}")


def _newest(known: TopicDescription | None, fresh: TopicDescription) -> TopicDescription:
    """Return the newest row of each partition, because the responding node may be behind."""
    if known is None or known.topic_id != fresh.topic_id:
        return fresh
    rows = [
        info if info.leader_epoch >= old.leader_epoch else old
        for old, info in zip(known.partitions, fresh.partitions, strict=False)
    ]
    # Partitions are only ever added.
    longer = max(known.partitions, fresh.partitions, key=len)
    return TopicDescription(fresh.name, fresh.topic_id, (*rows, *longer[len(rows) :]))


def _description(topic: MetadataTopic) -> TopicDescription:
    """Return the topic with its partitions in order.

    Raises RaftlogClientError if any is missing.
    """
    infos = tuple(
        PartitionInfo(
            topic=topic.name,
            partition=row.partition,
            leader=None if row.leader < 0 else row.leader,
            leader_epoch=row.leader_epoch,
            replicas=row.replicas,
            isr=row.isr,
        )
        for row in sorted(topic.partitions, key=lambda row: row.partition)
    )
    if topic.topic_id is None or [info.partition for info in infos] != list(range(len(infos))):
        raise RaftlogClientError(
            f"A node's metadata answer is malformed: topic {topic.name} lacks its id or partitions"
        )
    return TopicDescription(topic.name, topic.topic_id, infos)


class ClusterClient(Startable):
    """A client with its connections and its view of the cluster."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        client_id: str,
        *,
        request_timeout_ms: float,
        bootstrap_timeout_ms: float,
        retry_backoff_ms: float,
        retry_backoff_max_ms: float,
    ) -> None:
        require_at_least(1, request_timeout_ms=request_timeout_ms)
        require_at_least(1, bootstrap_timeout_ms=bootstrap_timeout_ms)
        require_at_least(1, retry_backoff_ms=retry_backoff_ms)
        self._transport = Transport(client_id=client_id, request_timeout_ms=request_timeout_ms)
        self._metadata = ClusterMetadata(
            self._transport,
            parse_bootstrap(bootstrap_servers),
            Backoff(retry_backoff_ms, max(retry_backoff_ms, retry_backoff_max_ms)),
            bootstrap_timeout_ms=bootstrap_timeout_ms,
        )

    async def _disconnect(self) -> None:
        await self._metadata.close()
        await self._transport.close()
