"""What nodes say of the cluster itself: the quorum, its members, its settings. All immutable.

Decoded by their fields' types; fields that a newer node adds are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from raftlog_client.errors import RaftlogClientError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class QuorumMember:
    """A member of the metadata quorum, as the node asked sees it. None: not known there.

    `match_index` is the newest entry of the metadata log known to be durable on it, `lag` how many
    it lacks, `last_heard_ms` how long ago anything came from it. Only a leader knows the first two
    of others.
    """

    node_id: int
    host: str | None
    port: int | None
    directory_id: str | None
    is_leader: bool
    connected: bool
    match_index: int | None
    lag: int | None
    last_heard_ms: int | None


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    """The metadata quorum as node `node_id` sees it. `leader_id` is None if it knows of none."""

    cluster_id: str
    node_id: int
    leader_id: int | None
    term: int
    is_active: bool
    last_index: int
    commit_index: int
    applied_index: int
    voters: tuple[QuorumMember, ...]
    observers: tuple[QuorumMember, ...]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node of the cluster. `fenced`: it is kept from leading partitions until it is heard of.

    `maintenance` and `decommissioning` are an operator's wishes: that it leads nothing, that it
    holds nothing. It leads `led` partitions, and has a replica of `held`. `can_write` is false
    while its disk is full or hangs: others lead what they can. What is not known is None;
    `broker_epoch` and `fenced`, if it never registered.
    """

    node_id: int
    host: str | None
    port: int | None
    rack: str | None
    directory_id: str | None
    broker_epoch: int | None
    fenced: bool | None
    is_voter: bool
    is_controller: bool
    connected: bool
    software_version: str | None
    maintenance: bool | None = None
    decommissioning: bool | None = None
    led: int | None = None
    held: int | None = None
    can_write: bool | None = None


@dataclass(frozen=True, slots=True)
class NodeList:
    """The nodes of the cluster, by number."""

    nodes: tuple[NodeInfo, ...]


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Topic configs set for the whole cluster, as of an index of the metadata log."""

    values: Mapping[str, str]
    index: int


@dataclass(frozen=True, slots=True)
class DecommissionProgress:
    """How far a node's decommission has got: `partitions_left` are still held by it,
    `partitions_moving` of them are on their way. With none left it may be stopped and removed."""

    node_id: int
    decommissioning: bool
    partitions_left: int
    partitions_moving: int


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition whose replicas are being moved: `adding` are still to join `replicas`, `removing`
    leave them once those are in sync."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReassignmentList:
    """Partitions whose replicas are being moved: as many of `total` as a node tells at once."""

    total: int
    reassignments: tuple[Reassignment, ...]


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica as the partition's leader sees it: `lag` records behind the leader's log end. None:
    not known."""

    broker_id: int
    log_end_offset: int | None = None
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the leader of a partition knows of it beyond the metadata. `elr` are replicas that are
    not in sync but may lead, as they have all that was committed; None: not known."""

    partition: int
    replicas: tuple[ReplicaState, ...] = ()
    elr: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PartitionStates:
    """The partitions of a topic, by number."""

    partitions: tuple[PartitionState, ...]


def decoded(answer: Any, kind: type[_T], what: str) -> _T:
    """An answer's JSON as a value of `kind`. Raises RaftlogClientError if it is malformed."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise RaftlogClientError(f"Malformed answer about {what}: {error}") from error
