"""Clients see the cluster's brokers, leaders and coordinators, or one gateway.

A gateway node names one broker, with the address of a load balancer, as the leader of every
partition and as every coordinator. Its id is the same on all nodes, and is not the id of a node,
because node ids begin with 1. Replicas and in-sync replicas keep the nodes' ids.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from raftlog.kafka.call import Call
from raftlog.kafka.handlers.names import LISTENER_NOT_FOUND, NONE
from raftlog.metadata.image import NO_LEADER_ID, BrokerImage, PartitionImage
from raftlog.record.errors import LogError
from raftlog.record.types import BrokerId, LeaderEpoch, PartitionId

GATEWAY_ID: Final = BrokerId(0)
"""Broker id of the gateway. Clients accept it as a node's, and take -1 for none."""
LEADER_NOT_AVAILABLE: Final = 5
NO_CONTROLLER: Final = BrokerId(-1)


class Endpoint(NamedTuple):
    """Where Kafka clients reach a broker."""

    broker_id: BrokerId
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False


class KnownLeader(NamedTuple):
    """A partition's leader, for the response to a client that knows an older leader (KIP-951)."""

    endpoint: Endpoint
    epoch: LeaderEpoch


class Brokers:
    """The brokers of one response."""

    def __init__(self, call: Call, *, with_fenced: bool = False, with_recent: bool = False) -> None:
        """`with_fenced` also describes the brokers that the controller considers fenced.

        `with_recent` limits that to brokers that are away only for seconds.
        """
        admin = call.broker.admin
        nodes = sorted(admin.brokers().items())
        gateway = _gateway(call)
        self._controller = admin.controller_id()
        self._is_gateway = gateway is not None
        self.endpoints: tuple[Endpoint, ...]
        if gateway is not None:
            self.endpoints = (gateway,)
            self._serving: Collection[BrokerId] = {n for n, image in nodes if not image.fenced}
        else:
            left_out = {number for number, image in nodes if image.fenced}
            recent = call.fences.recent(left_out, call.broker.clock.monotonic())
            if with_fenced:
                left_out = set()
            elif with_recent:
                left_out -= recent
            known = (_own_endpoint(image) for number, image in nodes if number not in left_out)
            self.endpoints = tuple(endpoint for endpoint in known if endpoint is not None)
            self._serving = {
                endpoint.broker_id for endpoint in self.endpoints if not endpoint.is_fenced
            }

    @property
    def controller(self) -> BrokerId:
        """The broker that clients take for the controller. Any node does its work."""
        controller = self._controller
        if controller is None or not (self._is_gateway or controller in self._serving):
            return NO_CONTROLLER
        return GATEWAY_ID if self._is_gateway else BrokerId(controller)

    def leader(self, row: PartitionImage) -> tuple[int, BrokerId]:
        """Error code and leader of a partition."""
        if row.leader == NO_LEADER_ID:
            return LEADER_NOT_AVAILABLE, row.leader
        if self._is_gateway:
            return NONE, GATEWAY_ID
        return (NONE if row.leader in self._serving else LISTENER_NOT_FOUND), row.leader

    def offline(self, row: PartitionImage) -> tuple[BrokerId, ...]:
        """The replicas that serve no client."""
        return tuple(replica for replica in row.replicas if replica not in self._serving)


def current_leader(call: Call, topic: str, number: int) -> KnownLeader | None:
    """The partition's leader by the applied metadata, or None if no client reaches it."""
    try:
        epoch, node = call.broker.produce.current_leader(topic, PartitionId(number))
    except LogError:
        return None
    found = None if node is None else endpoint(call, node)
    return None if found is None else KnownLeader(found, epoch)


def endpoint(call: Call, image: BrokerImage) -> Endpoint | None:
    """The address of a broker for clients, or None if it has no Kafka listener."""
    return _gateway(call) or _own_endpoint(image)


def _gateway(call: Call) -> Endpoint | None:
    return None if call.gateway is None else Endpoint(GATEWAY_ID, *call.gateway)


def _own_endpoint(image: BrokerImage) -> Endpoint | None:
    if image.kafka_host is None or image.kafka_port is None:
        return None
    return Endpoint(
        image.broker_id, image.kafka_host, image.kafka_port, image.rack, is_fenced=image.fenced
    )
