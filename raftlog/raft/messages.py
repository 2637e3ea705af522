"""Messages between members of a quorum, and their bytes. Pure.

Every message is one MessagePack array, a number for its kind and then its fields. `term` is always
the sender's current term. No bytes from the network are ever unpickled, and no message carries a
type, name or path to look up.

The kinds are Raft's (Ongaro, "Consensus, Bridging Theory and Practice", 2014, figure 3.1, section
3.10 for TimeoutNow, 9.6 for PreVote), with pysyncobj's additions. A response to an append has the
index to continue from, whether the leader must go back there (`reset`), and the number of that
append (`sequence`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

COMMAND_BYTES_MAX = 1024 * 1024
"""Bytes of one command, so that 10,000 partitions of ten replicas fit."""
ENTRIES_PER_APPEND_MAX = 4096
APPEND_BYTES_MAX = 256 * 1024
"""Bytes of entries' commands in one append, unless a single command is longer."""
CHUNK_BYTES_MAX = 512 * 1024
CONTROL_BYTES_MAX = 1024 * 1024

Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
"""A term, an index, a sequence number."""


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    term: Number


class RequestVote(_Message, frozen=True, tag=1):
    """A candidate's request for a vote, with its log's last entry."""

    last_index: Number
    last_term: Number


class Vote(_Message, frozen=True, tag=2):
    """A vote for the receiver in this term. There is no message for a refusal."""


class PreVote(_Message, frozen=True, tag=3):
    """A request for a pre-vote, that is, whether the receiver would vote for the sender.

    Changes nothing at either end.
    """

    last_index: Number
    last_term: Number
    round: Number


class PreVoteGranted(_Message, frozen=True, tag=4):
    """A pre-vote granted, in that round."""

    round: Number


class Append(_Message, frozen=True, tag=5):
    """Entries after `previous`, which must match. Without entries it is a heartbeat.

    An entry is its term and its command. Indexes follow from `previous_index`.
    """

    previous_index: Number
    previous_term: Number
    commit_index: Number
    sequence: Number
    entries: Annotated[
        list[tuple[Number, Annotated[bytes, Meta(max_length=COMMAND_BYTES_MAX + 1)]]],
        Meta(max_length=ENTRIES_PER_APPEND_MAX),
    ]


class AppendAnswer(_Message, frozen=True, tag=6):
    """The response to an append, or to a snapshot that turned out to be covered.

    With `success`, everything below `next_index` matches the leader's log and is durable here. With
    `reset`, the leader goes back to `next_index`.
    """

    next_index: Number
    success: bool
    reset: bool
    sequence: Number


class TimeoutNow(_Message, frozen=True, tag=7):
    """Start an election at once. The leader transfers its leadership to the receiver."""


class SnapshotChunk(_Message, frozen=True, tag=8):
    """A part of the snapshot file of entry (`index`, `last_term`), from byte `position` on.

    Without data it is the leader's heartbeat, and the receiver responds with its position.
    """

    index: Number
    last_term: Number
    position: Number
    size: Number
    data: Annotated[bytes, Meta(max_length=CHUNK_BYTES_MAX)]


class SnapshotAnswer(_Message, frozen=True, tag=9):
    """The receiver's position in bytes of that snapshot file received so far."""

    index: Number
    last_term: Number
    position: Number


class RequestKind(IntEnum):
    """The kind of a request that a member forwards to the leader."""

    COMMAND = 0
    BARRIER = 1
    ADD_VOTER = 2
    REMOVE_VOTER = 3
    TRANSFER = 4


READ: Final = b"read"
"""A barrier's argument if the caller needs the confirmed commit index and no entry. Releases
without it put the barrier into the log, and respond with its entry."""


def is_read(kind: RequestKind, argument: bytes) -> bool:
    """Whether such a request changes nothing, not even the log."""
    return kind is RequestKind.BARRIER and argument == READ


class Forward(_Message, frozen=True, tag=10):
    """A request for the leader.

    `argument` is the command, a node id in decimal digits, or for a barrier `READ`. It is empty if
    the barrier must go through the log.
    """

    request_id: Number
    kind: RequestKind
    argument: Annotated[bytes, Meta(max_length=COMMAND_BYTES_MAX)]


class Forwarded(_Message, frozen=True, tag=11):
    """The leader's response to a request.

    With `error_code` 0, the request is the log's entry (`index`, `entry_term`), which may still be
    replaced. Without an `entry_term`, which every entry has, everything up to `index` is committed,
    and a read must apply up to there. With another code, which is from the error table, the request
    was refused and will never be executed.
    """

    request_id: Number
    index: Number
    entry_term: Number
    error_code: int
    message: str


class Control(_Message, frozen=True, tag=12):
    """A message of the quorum's users (heartbeats of brokers)."""

    payload: Annotated[bytes, Meta(max_length=CONTROL_BYTES_MAX)]


class Ping(_Message, frozen=True, tag=13):
    """A sign of life, with the sender's newest voter set and that set's log index.

    A member without a leader finds in it the addresses to call.
    """

    voters_index: Number
    voters: Annotated[bytes, Meta(max_length=16 * 1024)]


Message: TypeAlias = (
    RequestVote
    | Vote
    | PreVote
    | PreVoteGranted
    | Append
    | AppendAnswer
    | TimeoutNow
    | SnapshotChunk
    | SnapshotAnswer
    | Forward
    | Forwarded
    | Control
    | Ping
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class MessageError(Exception):
    """The bytes are no message of this version. The peer is broken or newer."""


def encode_message(message: Message) -> bytes:
    """Encode a message."""
    return _ENCODER.encode(message)


def decode_message(frame: bytes) -> Message:
    """Decode a message. Raises MessageError."""
    try:
        return _DECODER.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MessageError(f"not a quorum message: {error}") from error
