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

    What is not known is None; `broker_epoch` and `fenced`, if it never registered.
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


@dataclass(frozen=True, slots=True)
class NodeList:
    """The nodes of the cluster, by number."""

    nodes: tuple[NodeInfo, ...]


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Topic configs set for the whole cluster, as of an index of the metadata log."""

    values: Mapping[str, str]
    index: int


def decoded(answer: Any, kind: type[_T], what: str) -> _T:
    """An answer's JSON as a value of `kind`. Raises RaftlogClientError if it is malformed."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise RaftlogClientError(f"Malformed answer about {what}: {error}") from error
