"""The /v1 routes list and change the metadata quorum and the nodes.

Both reads use only this node's knowledge, so they work when nothing else does. They also work on a
node that has started and waits for a quorum. Only the leader knows the progress of other nodes. On
any other node, `match_index` and `lag` are null for all but the node itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec
from aiohttp import web

from raftlog import __version__
from raftlog.api import cluster as api
from raftlog.broker.admin import NODE_ID_MAX, ClusterMembership
from raftlog.http.body import read_json
from raftlog.http.request import Request, ServerContext, whole_number
from raftlog.http.responses import empty_response, json_response
from raftlog.http.routing import Route
from raftlog.metadata.image import NO_LEADER_ID, BrokerImage, MetadataImage
from raftlog.record.errors import ILLEGAL_STATE, NO_CONTROLLER, NOT_FOUND, RETRIABLE, LogError
from raftlog.record.types import BrokerId

_NEW_VOTER = msgspec.json.Decoder(api.NewVoter)
_NEW_DIRECTORY = msgspec.json.Decoder(api.NewDirectory)
_TRANSFER = msgspec.json.Decoder(api.LeadershipTransfer)


async def greet(request: Request, context: ServerContext) -> web.StreamResponse:
    """The server's identity, for a first inspection."""
    membership = context.broker.admin.membership(request.principal)
    return json_response(
        api.Greeting(
            version=__version__,
            cluster_id=membership.cluster_id,
            node_id=membership.node_id,
            links=dict(LINKS),
        )
    )


async def describe_cluster(request: Request, context: ServerContext) -> web.StreamResponse:
    """The cluster's identity and controller, and the access to this node."""
    membership = context.broker.admin.membership(request.principal)
    leader_id = membership.status.leader_id
    return json_response(
        api.ClusterInfo(
            cluster_id=membership.cluster_id,
            node_id=membership.node_id,
            version=__version__,
            controller_id=NO_LEADER_ID if leader_id is None else leader_id,
            open_access=context.settings.is_beyond_loopback or context.settings.other_open_access,
            clock_skew_ms=membership.clock_skew_ms,
            replicas=_partition_counts(membership.image)[1][membership.node_id],
            replicas_open=membership.replicas_open,
            opening=membership.opening,
        )
    )


async def get_quorum(request: Request, context: ServerContext) -> web.StreamResponse:
    """This node's view of the quorum."""
    return json_response(_Members(context.broker.admin.membership(request.principal)).view())


async def list_nodes(request: Request, context: ServerContext) -> web.StreamResponse:
    """Every node that is registered, a voter, or connected."""
    return json_response(_Members(context.broker.admin.membership(request.principal)).nodes())


async def add_voter(request: Request, context: ServerContext) -> web.StreamResponse:
    """Make an observer a voter."""
    new = await read_json(request, context, _NEW_VOTER)
    await context.broker.admin.add_voter(request.principal, new.node_id)
    return empty_response()


async def remove_voter(request: Request, context: ServerContext) -> web.StreamResponse:
    """Make a voter an observer."""
    node_id = node_number(request.path_parameters["node"])
    await context.broker.admin.remove_voter(request.principal, node_id)
    return empty_response()


async def remove_node(request: Request, context: ServerContext) -> web.StreamResponse:
    """Forget a node that is gone for good. Its id may return with another directory."""
    node_id = BrokerId(node_number(request.path_parameters["node"]))
    await context.broker.admin.unregister_broker(request.principal, node_id)
    return empty_response()


async def replace_node(request: Request, context: ServerContext) -> web.StreamResponse:
    """Give the place of a node with a lost data directory to an empty node."""
    node_id = BrokerId(node_number(request.path_parameters["node"]))
    new = await read_json(request, context, _NEW_DIRECTORY)
    await context.broker.admin.replace_directory(request.principal, node_id, new.directory_id)
    return empty_response()


async def transfer_leadership(request: Request, context: ServerContext) -> web.StreamResponse:
    """Transfer the quorum's leadership, and with it the controller, to another voter."""
    target = await read_json(request, context, _TRANSFER)
    await context.broker.admin.transfer_controller(request.principal, target.node_id)
    return empty_response()


def _partition_counts(image: MetadataImage) -> tuple[Counter[int], Counter[int]]:
    """Numbers of led partitions and of replicas, by broker."""
    # Many partitions share few combinations of leader and replicas.
    combinations = Counter(
        (row.leader, row.replicas)
        for topic in image.topics_by_id.values()
        for row in topic.partitions
    )
    led: Counter[int] = Counter()
    held: Counter[int] = Counter()
    for (leader, replicas), count in combinations.items():
        led[leader] += count
        for broker_id in replicas:
            held[broker_id] += count
    return led, held


class _Members:
    """Shapes the quorum's view and the list of nodes as of one moment."""

    def __init__(self, membership: ClusterMembership) -> None:
        self._cluster_id = membership.cluster_id
        self._node_id = membership.node_id
        self._status = membership.status
        self._peers = membership.peers
        self._voters = membership.voters
        self._image = membership.image
        self._brokers = membership.image.brokers
        self._unwritable = membership.unwritable
        self._warnings = membership.warnings
        self._membership = membership

    def view(self) -> api.QuorumInfo:
        status = self._status
        voter_ids = self._voters.ids
        others = (self._peers.keys() | {self._node_id}) - voter_ids
        return api.QuorumInfo(
            cluster_id=self._cluster_id,
            node_id=self._node_id,
            leader_id=status.leader_id,
            term=status.term,
            is_active=status.is_active,
            last_index=status.last_index,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            voters=tuple(self._member(node_id) for node_id in sorted(voter_ids)),
            observers=tuple(self._member(node_id) for node_id in sorted(others)),
            warnings=self._warnings,
        )

    def nodes(self) -> api.NodeList:
        known = self._brokers.keys() | self._voters.ids | self._peers.keys()
        led, held = _partition_counts(self._image)
        return api.NodeList(
            tuple(self._node(each, led[each], held[each]) for each in sorted(known))
        )

    def _member(self, node_id: int) -> api.QuorumMember:
        status, peer = self._status, self._peers.get(node_id)
        is_here = node_id == self._node_id
        match_index = status.last_index if is_here else peer.match_index if peer else None
        heard_ms = 0 if is_here else round(peer.last_heard_s * 1000) if peer else None
        host, port = self._address(node_id)
        return api.QuorumMember(
            node_id=node_id,
            host=host,
            port=port,
            directory_id=self._directory_id(node_id),
            is_leader=node_id == status.leader_id,
            connected=is_here or peer is not None,
            match_index=match_index,
            lag=None if match_index is None else max(status.last_index - match_index, 0),
            last_heard_ms=heard_ms,
        )

    def _node(self, node_id: int, led: int, held: int) -> api.NodeInfo:
        broker = self._broker(node_id)
        host, port = self._address(node_id)
        here = self._membership if node_id == self._node_id else None
        return api.NodeInfo(
            node_id=node_id,
            host=host,
            port=port,
            kafka=_kafka_address(broker) if broker else None,
            rack=broker.rack if broker else None,
            directory_id=self._directory_id(node_id),
            broker_epoch=broker.broker_epoch if broker else None,
            fenced=broker.fenced if broker else None,
            maintenance=broker.maintenance if broker else None,
            can_write=node_id not in self._unwritable if broker else None,
            decommissioning=broker.decommissioning if broker else None,
            led=led,
            held=held,
            opening=here.opening if here else None,
            replicas_open=here.replicas_open if here else None,
            clock_skew_ms=here.clock_skew_ms if here else None,
            is_voter=self._voters.find(node_id) is not None,
            is_controller=node_id == self._status.leader_id,
            connected=node_id == self._node_id or node_id in self._peers,
            software_version=broker.software_version if broker else None,
        )

    def _broker(self, node_id: int) -> BrokerImage | None:
        return self._brokers.get(BrokerId(node_id))

    def _address(self, node_id: int) -> tuple[str | None, int | None]:
        """The node's address as registered, in the voter set, or of its connection."""
        for place in (self._broker(node_id), self._voters.find(node_id)):
            if place is not None:
                return place.host, place.port
        peer = self._peers.get(node_id)
        return (None, None) if peer is None else _split(peer.address)

    def _directory_id(self, node_id: int) -> str | None:
        voter = self._voters.find(node_id)
        if voter is not None and voter.directory_id is not None:
            return voter.directory_id
        broker = self._broker(node_id)
        return broker.directory_id if broker else None


def node_number(text: str) -> int:
    """Parse the number of a node in a path. Raises LogError NOT_FOUND for any other text."""
    node_id = whole_number(text)
    if node_id is None or not 1 <= node_id <= NODE_ID_MAX:
        raise LogError(NOT_FOUND, f"There is no node {text[:40]!r}.")
    return node_id


def _kafka_address(broker: BrokerImage) -> str | None:
    if broker.kafka_host is None or broker.kafka_port is None:
        return None
    host = f"[{broker.kafka_host}]" if ":" in broker.kafka_host else broker.kafka_host
    return f"{host}:{broker.kafka_port}"


def _split(address: str) -> tuple[str | None, int | None]:
    host, _, port = address.rpartition(":")
    number = whole_number(port)
    return (host.strip("[]"), number) if host and number is not None else (None, None)


_CHANGE_ERRORS: Final = (ILLEGAL_STATE, NO_CONTROLLER, RETRIABLE)

LINKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "topics": "/topics",
        "cluster": "/v1/cluster",
        "nodes": "/v1/nodes",
        "health": "/healthy",
        "ready": "/ready",
        "metrics": "/metrics",
        "description": "/openapi.json",
    }
)

_get = partial(Route, "GET", tag="v1", serves_always=True)
_delete = partial(Route, "DELETE", tag="v1", status=204)
_post = partial(Route, "POST", tag="v1", status=204)

ROUTES: Final = (
    _get("/", greet, "The server, and links to its resources", response_type=api.Greeting),
    _get(
        "/v1/cluster",
        describe_cluster,
        "The cluster, its controller, and whether access to this node is open",
        response_type=api.ClusterInfo,
    ),
    _get(
        "/v1/quorum",
        get_quorum,
        "The metadata quorum in this node's view",
        response_type=api.QuorumInfo,
    ),
    _get("/v1/nodes", list_nodes, "The nodes of the cluster", response_type=api.NodeList),
    _delete(
        "/v1/nodes/{node}",
        remove_node,
        "Unregister a node that is gone for good",
        errors=(NOT_FOUND, *_CHANGE_ERRORS),
    ),
    _post(
        "/v1/nodes/{node}/replace",
        replace_node,
        "Give the place of a node with a lost disk to an empty data directory",
        request_type=api.NewDirectory,
        errors=(NOT_FOUND, *_CHANGE_ERRORS),
    ),
    _post(
        "/v1/quorum/voters",
        add_voter,
        "Make a node a voter",
        request_type=api.NewVoter,
        errors=_CHANGE_ERRORS,
    ),
    _delete(
        "/v1/quorum/voters/{node}",
        remove_voter,
        "Make a voter an observer",
        errors=(NOT_FOUND, *_CHANGE_ERRORS),
    ),
    _post(
        "/v1/quorum/transfer",
        transfer_leadership,
        "Hand the quorum's leadership to another voter",
        request_type=api.LeadershipTransfer,
        errors=_CHANGE_ERRORS,
    ),
)
