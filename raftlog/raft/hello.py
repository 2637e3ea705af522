"""What two nodes tell each other when a connection opens, and whether they may talk. Pure.

Both sides make the same checks, each against what it knows itself. So a node that nobody calls
still learns from the answer to its own call that it is not wanted, and why.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from raftlog.raft.voters import NODE_ID_MAX, VoterSet
from raftlog.record.errors import (
    BAD_REQUEST,
    ERROR_TABLE,
    ILLEGAL_STATE,
    NOT_FOUND,
    when_directory_is_lost,
)
from raftlog.world.network import RejectedError

PROTOCOL: Final = 1
"""Of the messages between members. Nodes of different protocols do not talk."""
HELLO_BYTES_MAX: Final = 16 * 1024
"""Nine voters and the longest of all names take less than half of it."""

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class Hello(msgspec.Struct, frozen=True):
    """What a node says of itself, as of the moment a connection opens."""

    protocol: int
    node_id: Annotated[int, msgspec.Meta(ge=0, le=NODE_ID_MAX)]
    directory_id: _Name
    """Identity of its data directory."""
    cluster_id: _Name | None
    """None: it does not know yet, having just begun or not joined."""
    bootstrap_id: _Name | None
    """Digest of the list of voters that it was started with; None if it was given none."""
    address: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
    """`host:port` where other nodes reach it."""
    software_version: Annotated[str, msgspec.Meta(max_length=128)]
    voters: VoterSet
    """The newest set in its log; NO_VOTERS before it has joined."""


class _Front(msgspec.Struct):
    """The part of a hello that every version has."""

    protocol: int
    software_version: str = "unknown"


def encode_hello(hello: Hello) -> bytes:
    """The hello as it is sent: JSON."""
    return msgspec.json.encode(hello)


def decode_hello(content: bytes) -> Hello:
    """What the other side sent.

    Raises RejectedError: ILLEGAL_STATE if it speaks another protocol, else BAD_REQUEST.
    """
    if len(content) > HELLO_BYTES_MAX:
        raise RejectedError(BAD_REQUEST.code, f"A hello of {len(content)} bytes is too long.")
    try:
        # Another version may have changed all the rest, and should be told so.
        front = msgspec.json.decode(content, type=_Front)
        _check_protocol(PROTOCOL, front.protocol, front.software_version)
        return msgspec.json.decode(content, type=Hello)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RejectedError(BAD_REQUEST.code, f"The hello is malformed: {error}.") from error


def is_passing(error: RejectedError) -> bool:
    """Whether time may change the other side's mind; else a person has to act.

    A node that does not serve the channel is one that is starting, if it is one of ours.
    """
    entry = ERROR_TABLE.get(error.code)
    return entry is not None and (entry.retriable or entry is NOT_FOUND)


def check_hello(mine: Hello, theirs: Hello, pinned: str | None, *, live: str | None = None) -> None:
    """Raise RejectedError(ILLEGAL_STATE) if these two nodes must not talk.

    `pinned` is the data directory that the other's node id is known with here; what the newest
    voter set says goes before it, as a voter may have been removed and added again while this node
    was away. `live` is the data directory of a node of that id that is connected right now.
    """
    _check_protocol(mine.protocol, theirs.protocol, theirs.software_version)
    _check_cluster(mine, theirs)
    if theirs.node_id == mine.node_id:
        _reject_own_id(mine, theirs)
    _check_directory(mine, theirs, pinned, live)


def _check_protocol(mine: int, theirs: int, software_version: str) -> None:
    if mine != theirs:
        _reject(
            f"A node of version {software_version} speaks protocol {theirs}, this one protocol "
            f"{mine}: run versions of raftlog on both that go together."
        )


def _check_cluster(mine: Hello, theirs: Hello) -> None:
    if mine.cluster_id is not None and theirs.cluster_id is not None:
        if mine.cluster_id != theirs.cluster_id:
            _reject(
                f"Node {theirs.node_id} at {theirs.address} belongs to cluster "
                f"{theirs.cluster_id}, node {mine.node_id} at {mine.address} to cluster "
                f"{mine.cluster_id}: check the addresses that they were given."
            )
        return
    if (
        mine.bootstrap_id is not None
        and theirs.bootstrap_id is not None
        and mine.bootstrap_id != theirs.bootstrap_id
    ):
        # Two lists could elect two leaders, each by a majority of its own.
        _reject(
            f"Nodes {mine.node_id} and {theirs.node_id} were started with different lists of "
            "voters: give all of them the same."
        )


def _reject_own_id(mine: Hello, theirs: Hello) -> None:
    if theirs.directory_id == mine.directory_id:
        _reject(
            f"At {theirs.address} answers node {mine.node_id}, which is this very node or one "
            "with a copy of its data directory: check the addresses, and never start a copy."
        )
    _reject(
        f"Node id {mine.node_id} is in use twice, at {mine.address} and at {theirs.address}: give "
        "one of them another id."
    )


def _check_directory(mine: Hello, theirs: Hello, pinned: str | None, live: str | None) -> None:
    listed = mine.voters.find(theirs.node_id)
    known = pinned if listed is None or listed.directory_id is None else listed.directory_id
    if known != theirs.directory_id and live not in (None, theirs.directory_id):
        _reject(
            f"Node id {theirs.node_id} is in use twice: such a node is connected, and another one "
            f"at {theirs.address} has another data directory. Give that one another id."
        )
    if known not in (None, theirs.directory_id):
        _reject(
            f"Node {theirs.node_id} at {theirs.address} has another data directory than before: "
            "its disk was wiped, or another node uses its id. Give it its old directory back or "
            f"another id. {when_directory_is_lost(theirs.node_id)} If that was done while "
            f"node {mine.node_id} was away, and node {theirs.node_id} leads: transfer leadership."
        )
    # The same of oneself, as the other sees it: who is only ever called would not be told.
    seen = theirs.voters.find(mine.node_id)
    if seen is not None and seen.directory_id not in (None, mine.directory_id):
        _reject(
            f"The cluster knows node {mine.node_id} at {mine.address} with another data directory: "
            "its disk was wiped, or another node has that id. Give it its old directory back or "
            f"another id. {when_directory_is_lost(mine.node_id)}"
        )


def _reject(message: str) -> None:
    raise RejectedError(ILLEGAL_STATE.code, message)
