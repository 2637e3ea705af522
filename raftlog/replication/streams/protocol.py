"""The messages between follower and leader on a stream, and their bytes. Pure.

The follower dials, and names each partition by a *handle*, a number that counts up and is never
used twice on a connection. Late messages cannot pass for those of a new subscription.

==========  ========================  ===========================================================
follower    `Subscribe`               partitions, each from an offset on
            `Unsubscribe`             end subscriptions
            `Acks`                    durable ends
leader      `Data`                    batches, also accepts the subscription
            `Marks`                   high watermark and log start, also accepts
            `Diverged`                not accepted: truncate the log's end
            `Restart`                 not accepted: empty the log, start with these producers
            `Refused`                 not accepted, or not any more: an error of the table
both        `Ping`                    keep-alive
==========  ========================  ===========================================================

`Data` is a fixed head and the batches as stored in the log, so that batches are copied once by the
sender and never by the receiver:

    position  size  field
           0     1  0xc1: begins no MessagePack value
           1     1  flags: 1 more pieces of the same run follow, 2 continues the piece before
           2     4  handle
           6     8  base offset: the follower's log end offset before the append
          14     8  next offset: the log end offset after the append
          22     8  high watermark of the leader
          30     8  log start offset of the leader
          38     …  record batches, the first may begin behind the base offset, where compaction
                    has removed records

Each other message is a MessagePack array of the number of the kind, then the fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from raftlog.peer.hello import Hello, Name, ProtocolError, decode_hello
from raftlog.record.types import BrokerEpoch, Buffer, LeaderEpoch, Offset, TopicId
from raftlog.storage.compaction.plan import DeletionHorizon

_T = TypeVar("_T")

CHANNEL: Final = "replication"
PROTOCOL: Final = 4
"""Version of these messages and the hello. Nodes of different protocols do not replicate."""
ENTRIES_MAX: Final = 500
"""Partitions in one message."""
HANDLE_MAX: Final = 2**32 - 1
CONTROL_BYTES_MAX: Final = 256 * 1024
"""Bound of messages other than `Data`, refused unread above. 500 entries take a fifth."""
PRODUCERS_PIECE_BYTES: Final = 128 * 1024
"""Bytes of producers in one message."""
PRODUCERS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of producers of one partition, more than the storage remembers."""

DATA: Final = 0xC1
MORE: Final = 1
CONTINUES: Final = 2

_HEAD: Final = struct.Struct("!BBIqqqq")
HEADER_BYTES: Final = _HEAD.size

_Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
_Epoch: TypeAlias = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
_Handle: TypeAlias = Annotated[int, Meta(ge=1, le=HANDLE_MAX)]


class StreamHello(Hello, frozen=True, kw_only=True):
    """A broker's facts when the connection opens. `node_id` is the broker id."""

    channel: str = CHANNEL
    protocol: int = PROTOCOL
    cluster_id: Name
    broker_epoch: Annotated[BrokerEpoch, Meta(ge=0, le=2**62)]
    """The only incarnation whose acknowledgements count."""
    directory_id: Name
    """Identity of its data directory."""


class Subscription(
    msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True
):
    """One requested partition. See `FetchPosition` for the fields behind `partition`."""

    handle: _Handle
    topic_id: Annotated[TopicId, Meta(min_length=1, max_length=64)]
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    leader_epoch: Annotated[LeaderEpoch, Meta(ge=-1, le=2**31 - 1)]
    offset: Annotated[Offset, Meta(ge=0, le=2**62)]
    last_epoch: Annotated[LeaderEpoch, Meta(ge=-1, le=2**31 - 1)]
    durable_end: Annotated[Offset, Meta(ge=0, le=2**62)]
    log_start_offset: Annotated[Offset, Meta(ge=0, le=2**62)]
    horizon: DeletionHorizon


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class Subscribe(_Message, frozen=True, tag=1):
    """Send these partitions from their offsets on."""

    subscriptions: Annotated[list[Subscription], Meta(max_length=ENTRIES_MAX)]


class Unsubscribe(_Message, frozen=True, tag=2):
    """Send nothing more for these handles."""

    handles: Annotated[list[_Handle], Meta(max_length=ENTRIES_MAX)]


class Acks(_Message, frozen=True, tag=3):
    """Handle, durable end and log start offset. Everything below the durable end is durable."""

    ends: Annotated[list[tuple[_Handle, _Number, _Number]], Meta(max_length=ENTRIES_MAX)]


class Diverged(_Message, frozen=True, tag=4):
    """Not accepted. The leader's `epoch`, the largest not above the requested, ended there."""

    handle: _Handle
    epoch: _Epoch
    end_offset: _Number


class Restart(_Message, frozen=True, tag=5):
    """Not accepted. Restart at the leader's log start. Comes in pieces, one by one."""

    handle: _Handle
    log_start_offset: _Number
    producers: Annotated[bytes, Meta(max_length=PRODUCERS_PIECE_BYTES)]
    """Producer state of the records below, or a piece of the state (`Log.producers_below`). The
    remaining records do not yield this state."""
    has_more: bool
    """Another piece follows."""
    horizon: DeletionHorizon
    """The leader's, as the copy begins."""
    is_outrun: bool
    """Whether only tombstones are missing (`divergence.Outrun`)."""


class Refused(_Message, frozen=True, tag=6):
    """Not accepted, or ended. `code` is of the error table."""

    handle: _Handle
    code: int
    message: Annotated[str, Meta(max_length=1000)]


class Marks(_Message, frozen=True, tag=7):
    """Handle, high watermark, log start offset of the leader."""

    marks: Annotated[list[tuple[_Handle, _Number, _Number]], Meta(max_length=ENTRIES_MAX)]


class Ping(_Message, frozen=True, tag=8):
    """Keep-alive."""


FromFollower: TypeAlias = Subscribe | Unsubscribe | Acks | Ping
FromLeader: TypeAlias = Diverged | Restart | Refused | Marks | Ping
Message: TypeAlias = FromFollower | FromLeader

_ENCODER = msgspec.msgpack.Encoder()
_FROM_FOLLOWER: msgspec.msgpack.Decoder[FromFollower] = msgspec.msgpack.Decoder(FromFollower)
_FROM_LEADER: msgspec.msgpack.Decoder[FromLeader] = msgspec.msgpack.Decoder(FromLeader)


class Data(NamedTuple):
    """Batches for one partition, or a piece of them."""

    flags: int
    handle: int
    base_offset: Offset
    next_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    payload: memoryview
    """A view of the message."""


def encode(message: Message) -> bytes:
    """The message's bytes."""
    return _ENCODER.encode(message)


def encode_data(  # noqa: PLR0917 (the order is the layout)
    handle: int,
    base_offset: Offset,
    next_offset: Offset,
    high_watermark: Offset,
    log_start_offset: Offset,
    buffers: Iterable[Buffer],
    flags: int = 0,
) -> bytes:
    """A `Data` message. The only copy of the batches on their way out."""
    head = _HEAD.pack(
        DATA, flags, handle, base_offset, next_offset, high_watermark, log_start_offset
    )
    return b"".join((head, *buffers))


def is_data(message: bytes) -> bool:
    """Whether this is `Data`, for `decode_data`."""
    return message[:1] == b"\xc1"


def decode_data(message: bytes) -> Data:
    """The `Data` of a message for which `is_data` holds. Raises ProtocolError."""
    if len(message) <= HEADER_BYTES:
        raise ProtocolError("data without batches")
    _, flags, handle, base_offset, next_offset, high_watermark, log_start_offset = (
        _HEAD.unpack_from(message)
    )
    if not (
        0 <= base_offset < next_offset
        and flags <= MORE | CONTINUES
        and handle > 0
        and high_watermark >= 0
        and log_start_offset >= 0
    ):
        raise ProtocolError("the head of data is impossible")
    payload = memoryview(message)[HEADER_BYTES:]
    return Data(
        flags=flags,
        handle=handle,
        base_offset=base_offset,
        next_offset=next_offset,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        payload=payload,
    )


def decode_from_follower(message: bytes) -> FromFollower:
    """A follower's message. Raises ProtocolError."""
    return _decode(_FROM_FOLLOWER, message)


def decode_from_leader(message: bytes) -> FromLeader:
    """A leader's message other than `Data`. Raises ProtocolError."""
    return _decode(_FROM_LEADER, message)


def decode_stream_hello(content: bytes) -> StreamHello:
    """The other side's hello. Raises RejectedError ILLEGAL_STATE for another protocol, else
    BAD_REQUEST."""
    return decode_hello(content, StreamHello, CHANNEL, PROTOCOL)


def _decode(decoder: msgspec.msgpack.Decoder[_T], message: bytes) -> _T:
    if len(message) > CONTROL_BYTES_MAX:
        raise ProtocolError(f"a message of {len(message)} bytes that is no data")
    try:
        return decoder.decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a message of a stream: {error}") from error
