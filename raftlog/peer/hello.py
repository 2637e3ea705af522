"""The first message of each side on every channel, and its typed refusals. Pure.

`Hello` has the facts for every channel. A protocol derives a separate struct for more
(`raft.hello.QuorumHello`, `replication.stream_protocol.StreamHello`). A hello is a JSON object.
Decoding skips unknown fields of a newer version.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from raftlog.record.decoders import json_decoder
from raftlog.record.errors import BAD_REQUEST, ERROR_TABLE, ILLEGAL_STATE, NOT_FOUND
from raftlog.world.network import RejectedError

HELLO_BYTES_MAX: Final = 16 * 1024
"""Longest hello. Nine voters and the longest names take less than half of it."""

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]


class ProtocolError(Exception):
    """Bytes or a message order that a peer of the same protocol does not send."""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """One node's facts at the opening of a connection."""

    channel: Annotated[str, Meta(min_length=1, max_length=32)]
    protocol: int
    """Version of the channel's messages. Nodes with different versions cannot use the channel."""
    node_id: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    cluster_id: Name | None
    """Cluster id, or None before the node has joined."""
    peer_id: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """Node id expected on the other side, or None for any."""
    software_version: Annotated[str, Meta(max_length=128)] = "unknown"


HelloT = TypeVar("HelloT", bound=Hello)


class _Front(msgspec.Struct):
    """The part of a hello that every version of every protocol has."""

    protocol: int
    channel: str = ""
    software_version: str = "unknown"


def encode_hello(hello: Hello) -> bytes:
    """Encode a hello."""
    content = msgspec.json.encode(hello)
    assert len(content) <= HELLO_BYTES_MAX
    return content


def decode_hello(content: bytes, hello_type: type[HelloT], channel: str, protocol: int) -> HelloT:
    """Decode the other side's hello on `channel`, which must have the same protocol.

    Raises RejectedError, with ILLEGAL_STATE for another protocol and BAD_REQUEST for malformed
    bytes.
    """
    if len(content) > HELLO_BYTES_MAX:
        raise RejectedError(BAD_REQUEST.code, f"A hello of {len(content)} bytes is too long.")
    try:
        # Another protocol may have changed all other fields, and must get a readable refusal.
        front = json_decoder(_Front).decode(content)
        check_protocol(front.protocol, protocol, front.software_version)
        if front.channel != channel:
            raise RejectedError(
                BAD_REQUEST.code, f"A hello for channel {front.channel!r} came on {channel!r}."
            )
        return json_decoder(hello_type).decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RejectedError(BAD_REQUEST.code, f"The hello is malformed: {error}.") from error


def check_protocol(theirs: int, mine: int, software_version: str) -> None:
    """Raise RejectedError(ILLEGAL_STATE) if the two sides speak different protocols."""
    if theirs != mine:
        raise RejectedError(
            ILLEGAL_STATE.code,
            f"A node of version {software_version} speaks protocol {theirs}, this one protocol "
            f"{mine}: run versions of raftlog on both that go together.",
        )


def check_peer(theirs: Hello, mine: Hello) -> None:
    """Raise RejectedError(ILLEGAL_STATE) for another cluster, or if another node was expected."""
    if theirs.cluster_id != mine.cluster_id:
        raise RejectedError(ILLEGAL_STATE.code, f"It belongs to cluster {theirs.cluster_id}.")
    if theirs.peer_id not in (None, mine.node_id):
        raise RejectedError(
            ILLEGAL_STATE.code, f"This is node {mine.node_id}, not {theirs.peer_id}."
        )


def is_passing(error: RejectedError) -> bool:
    """Return whether time may lift the rejection. Otherwise an operator has to act.

    A node of the cluster that does not serve the channel is starting. A rejection without a proof
    of the secret ends nothing permanently, because anything on the path can send 401, 400 or 404.
    """
    if not error.is_proven:
        return True
    entry = ERROR_TABLE.get(error.code)
    return entry is not None and (entry.retriable or entry is NOT_FOUND)
