"""The messages of the channel `data`, with users' requests forwarded to the leader.

A message is the length of its head (u32, big endian), the head (msgpack), and raw bytes, which are
record batches or a part of them. A body over PIECE_BYTES comes in several messages. The first has
the head with the length of the whole body, and each other message is a Piece.

The called side only responds. Every request has exactly one response, unless cancelled or ended
with the connection. Responses come in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from raftlog.peer.channel import PieceBuffer
from raftlog.peer.hello import Hello, ProtocolError, check_peer, decode_hello
from raftlog.record.errors import (
    MAYBE_CHANGED,
    MAYBE_DELETED,
    MAYBE_ENDED,
    LogError,
    outcome_unknown_error,
)
from raftlog.record.types import AbortedTransaction, Buffer, Offset, ProducerId
from raftlog.storage.producers.state import ProducerDescription
from raftlog.world.network import MESSAGE_BYTES_MAX

CHANNEL: Final = "data"
PROTOCOL: Final = 3
"""Version of these messages and the hello. Nodes of different versions do not connect."""
PIECE_BYTES: Final = 4 * 1024 * 1024
HEAD_BYTES_MAX: Final = 256 * 1024
REQUESTS_MAX: Final = 1_000
"""Requests in flight from one node to another, apart from waits. Both sides hold the bound."""
WAITS_MAX: Final = 1_000
"""Waits in flight. They count apart, because waiting readers must not block writers."""
BODY_BYTES_MAX: Final = 48 * 1024 * 1024
"""Bytes of one request or answer. A connection ends at 64 MiB that its peer has not read."""
ABORTED_MAX: Final = BODY_BYTES_MAX // 16
"""Aborted transactions of one answer. The partition's producers and the bytes read bound them far
below."""
WANTS_MAX: Final = 1_000
"""Partitions of one request for many."""

REMAINING_MS_MAX: Final = 24 * 3_600_000
"""A day. A request that may wait for longer ends then, at its leader."""

_LENGTH: Final = Struct(">I")
assert _LENGTH.size + HEAD_BYTES_MAX + PIECE_BYTES <= MESSAGE_BYTES_MAX

_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_NumberOrNone = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
_PartitionNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_TopicId = Annotated[str, Meta(min_length=1, max_length=64)]
_Milliseconds = Annotated[int, Meta(ge=0, le=REMAINING_MS_MAX)]
_BodyBytes = Annotated[int, Meta(ge=0, le=BODY_BYTES_MAX)]
_Isolation = Annotated[int, Meta(ge=0, le=1)]
_ABORTED: Final = Struct(">qq")
ABORTED_BYTES: Final = _ABORTED.size
"""Bytes of an aborted transaction in a body."""


class _Base(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Heads are arrays of the fields in order, the tag first."""


class _OfPartition(_Base, frozen=True):
    topic_id: _TopicId
    partition: _PartitionNumber


class Append(_OfPartition, frozen=True, tag=1):
    """Append the body's batches, whole or not at all."""

    acks: Annotated[int, Meta(ge=-1, le=1)]
    transactional_id: Annotated[str, Meta(max_length=255)] | None = None
    """Id of the transaction that the batches belong to, or open."""
    adds_partition: bool = True
    """Whether the first batch of a transaction adds its partition, as in `LeaderTransactions`."""
    may_start_anywhere: bool = False
    """Whether an unknown producer may start with any sequence, as in `LeaderRole.append`."""


class Read(_OfPartition, frozen=True, tag=2):
    """Read committed batches."""

    offset: _Number
    max_bytes: Annotated[int, Meta(ge=0, le=BODY_BYTES_MAX)]
    end_offset: _Number | None
    isolation: _Isolation = 0


class Bounds(_OfPartition, frozen=True, tag=3):
    """Query log start offset, high watermark and last stable offset."""


class Wait(_Base, frozen=True, tag=4):
    """Wait until any partition has a record at its offset, or the time is up."""

    wants: Annotated[
        tuple[tuple[_TopicId, _PartitionNumber, _Number], ...],
        Meta(min_length=1, max_length=WANTS_MAX),
    ]
    isolation: _Isolation = 0


class FindTime(_OfPartition, frozen=True, tag=5):
    """Find the first committed record at or after a time."""

    timestamp_ms: _Number
    isolation: _Isolation = 0


class Delete(_OfPartition, frozen=True, tag=6):
    """Delete the records below an offset, or (-1) all committed records."""

    before: _NumberOrNone


class BoundsOfMany(_Base, frozen=True, tag=7):
    """Query the readable offsets of many partitions."""

    wants: Annotated[
        tuple[tuple[_TopicId, _PartitionNumber], ...], Meta(min_length=1, max_length=WANTS_MAX)
    ]


class FindTimeInMany(_Base, frozen=True, tag=8):
    """Find the first committed record at or after a time, for many partitions and times."""

    wants: Annotated[
        tuple[tuple[_TopicId, _PartitionNumber, _Number], ...],
        Meta(min_length=1, max_length=WANTS_MAX),
    ]
    isolation: _Isolation = 0


class ReadReplica(_OfPartition, frozen=True, tag=9):
    """Read batches of any replica, or of its damaged files, to repair another replica."""

    offset: _Number
    max_bytes: Annotated[int, Meta(ge=0, le=BODY_BYTES_MAX)]


class Coordinate(_OfPartition, frozen=True, tag=10):
    """Carry out the body's request at the coordinator that leads the partition."""

    may_change: bool
    """Whether the outcome is unknown if the answer is lost."""
    is_held: bool
    """Whether the coordinator may hold the request open, which counts as a wait."""


class WriteMarker(_OfPartition, frozen=True, tag=11):
    """End a producer's transaction in a partition."""

    producer_id: _Number
    producer_epoch: Annotated[int, Meta(ge=0, le=2**15 - 1)]
    coordinator_epoch: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    commit: bool
    is_epoch_next: bool = False
    coordinator: _PartitionNumber | None = None
    """Partition of the coordinator, or None, as in `Marker`."""


class ReadMany(_Base, frozen=True, tag=12):
    """Read committed batches of many partitions, in this order."""

    wants: Annotated[
        tuple[tuple[_TopicId, _PartitionNumber, _Number, _BodyBytes], ...],
        Meta(min_length=1, max_length=WANTS_MAX),
    ]
    """Each with its offset, and the bytes wanted of it."""
    max_bytes: _BodyBytes
    """Bytes of all partitions together. 0 requests only the marks."""
    isolation: _Isolation = 0


class FindNewest(_OfPartition, frozen=True, tag=13):
    """Find the first readable record with the largest timestamp."""

    isolation: _Isolation = 0


class FindEpochEnd(_OfPartition, frozen=True, tag=14):
    """Find the end of the largest leader epoch not above this one."""

    leader_epoch: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class DescribeProducers(_OfPartition, frozen=True, tag=15):
    """Describe the producers of the leader's log."""

    count_max: _PartitionNumber


Operation: TypeAlias = (
    Append
    | Read
    | Bounds
    | Wait
    | FindTime
    | Delete
    | BoundsOfMany
    | FindTimeInMany
    | ReadReplica
    | Coordinate
    | WriteMarker
    | ReadMany
    | FindNewest
    | FindEpochEnd
    | DescribeProducers
)


class Appended(_Base, frozen=True, tag=1):
    """Base offset, last offset, append time (or -1) and is-duplicate flag of each batch."""

    results: tuple[tuple[_Number, _Number, int, bool], ...]


class Marks(_Base, frozen=True, tag=2):
    """Response to Read and ReadReplica, with the batches as body, and to Bounds and Delete.

    `next_offset` is 0 for Bounds and Delete. All fields are 0 for ReadReplica.
    """

    next_offset: _Number
    high_watermark: _Number
    log_start_offset: _Number
    last_stable_offset: _Number
    aborted_count: Annotated[int, Meta(ge=0, le=ABORTED_MAX)] = 0
    """Aborted transactions before the batches in the body, as `with_aborted` writes them."""


class Waited(_Base, frozen=True, tag=3):
    """There may be records."""


class FoundTime(_Base, frozen=True, tag=4):
    """The record's offset and timestamp, or None if there is no such record."""

    found: tuple[_Number, int] | None


class Failure(_Base, frozen=True, tag=5):
    """A LogError, by its code."""

    code: int
    message: str


class MarksOfMany(_Base, frozen=True, tag=6):
    """Log start offset, high watermark and last stable offset, or error code, by partition.

    Codes have no messages, because a thousand messages would not fit into a head.
    """

    rows: Annotated[tuple[tuple[_Number, _Number, _Number] | int, ...], Meta(max_length=WANTS_MAX)]


class FoundTimes(_Base, frozen=True, tag=7):
    """The record's offset and timestamp, None, or an error code, by partition."""

    rows: Annotated[tuple[tuple[_Number, int] | int | None, ...], Meta(max_length=WANTS_MAX)]


class Coordinated(_Base, frozen=True, tag=8):
    """The body is the coordinator's response."""


class MarkerWritten(_Base, frozen=True, tag=9):
    """The marker is committed."""


class ReadsOfMany(_Base, frozen=True, tag=10):
    """Marks, as `Marks`, and bytes of the batches, or an error code, by partition.

    The body has, for each in turn, its aborted transactions and its batches.
    """

    rows: Annotated[
        tuple[tuple[_Number, _Number, _Number, _Number, _Number, _BodyBytes] | int, ...],
        Meta(max_length=WANTS_MAX),
    ]


class FoundEpochEnd(_Base, frozen=True, tag=11):
    """The epoch and its end, or None if no such epoch is known."""

    found: tuple[int, _Number] | None


class DescribedProducers(_Base, frozen=True, tag=12):
    """The body has the descriptions, because a head has no room for many."""


Outcome: TypeAlias = (
    Appended
    | Marks
    | Waited
    | FoundTime
    | Failure
    | MarksOfMany
    | FoundTimes
    | Coordinated
    | MarkerWritten
    | ReadsOfMany
    | FoundEpochEnd
    | DescribedProducers
)


class Request(_Base, frozen=True, tag=1):
    """Carry out an operation. The ids of a connection's requests are never used again."""

    id: _Number
    remaining_ms: _Milliseconds
    """The rest of the caller's timeout."""
    operation: Operation
    body_bytes: _BodyBytes = 0


class Cancel(_Base, frozen=True, tag=2):
    """The caller no longer waits. An append that has started still continues."""

    id: _Number


class Piece(_Base, frozen=True, tag=3):
    """More of the body of a request or an answer."""

    id: _Number


class Answer(_Base, frozen=True, tag=4):
    """The outcome of a request."""

    id: _Number
    outcome: Outcome
    body_bytes: _BodyBytes = 0


Message: TypeAlias = Request | Cancel | Piece | Answer

_encoder = msgspec.msgpack.Encoder()
_producers_decoder = msgspec.msgpack.Decoder(list[ProducerDescription])
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message, body: Sequence[Buffer] = ()) -> Iterator[bytes]:
    """The messages of a head and its body, of the length in the head. Copies the body once."""
    room = PIECE_BYTES
    parts: list[Buffer] = _head(message)
    for buffer in body:
        view = memoryview(buffer)
        position = 0
        while position < view.nbytes:
            if not room:
                yield b"".join(parts)
                parts, room = _head(Piece(message.id)), PIECE_BYTES
            part = view[position : position + room]
            parts.append(part)
            position += part.nbytes
            room -= part.nbytes
    yield b"".join(parts)


def decode(message: bytes) -> tuple[Message, memoryview]:
    """The head, and its part of the body. Raises ProtocolError."""
    view = memoryview(message)
    if view.nbytes < _LENGTH.size:
        raise ProtocolError(f"a message of {view.nbytes} bytes has no head")
    start = _LENGTH.size
    end = start + _LENGTH.unpack_from(view)[0]
    if end > view.nbytes or end - start > HEAD_BYTES_MAX:
        raise ProtocolError(f"a head of {end - start} bytes is cut off or too long")
    try:
        head = _decoder.decode(view[start:end])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a message of the channel: {error}") from error
    return head, view[end:]


def _head(message: Message) -> list[Buffer]:
    head = _encoder.encode(message)
    assert len(head) <= HEAD_BYTES_MAX
    return [_LENGTH.pack(len(head)), head]


def with_aborted(aborted: Sequence[AbortedTransaction], data: Buffer) -> tuple[Buffer, ...]:
    """The body of a read, with 16 bytes for each aborted transaction, then the batches.

    They are in the body, because a head has no room for many.
    """
    if not aborted:
        return (data,)
    return b"".join(_ABORTED.pack(*transaction) for transaction in aborted), data


def split_aborted(
    count: int, body: memoryview
) -> tuple[tuple[AbortedTransaction, ...], memoryview]:
    """The aborted transactions and the batches of a body."""
    end = count * _ABORTED.size
    aborted = tuple(
        AbortedTransaction(ProducerId(producer_id), Offset(first_offset))
        for producer_id, first_offset in _ABORTED.iter_unpack(body[:end])
    )
    return aborted, body[end:]


def encode_producers(found: Sequence[ProducerDescription]) -> bytes:
    """The body of descriptions of producers."""
    return _encoder.encode(found)


def decode_producers(body: memoryview) -> list[ProducerDescription]:
    """The descriptions in a body. Raises ProtocolError."""
    try:
        return _producers_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"no descriptions of producers: {error}") from error


class Assembly:
    """The body of a request or an answer, arriving in pieces."""

    __slots__ = ("_pieces", "head")

    def __init__(self, head: Request | Answer) -> None:
        self.head = head
        self._pieces = PieceBuffer(head.body_bytes)

    def take(self, part: memoryview) -> memoryview | None:
        """Add a part. Returns the whole body with the last part. Raises ProtocolError."""
        pieces = self._pieces
        is_last = pieces.size_bytes + part.nbytes == self.head.body_bytes
        body = pieces.add(part, is_last=is_last)
        return None if body is None else memoryview(body)


def own_hello(cluster_id: str | None, node_id: int, peer_id: int) -> Hello:
    """This node's hello, for the node `peer_id`."""
    return Hello(
        channel=CHANNEL,
        protocol=PROTOCOL,
        cluster_id=cluster_id,
        node_id=node_id,
        peer_id=peer_id,
    )


def check_hello(content: bytes, own: Hello) -> Hello:
    """The other side's hello, if the two nodes may connect.

    Raises RejectedError ILLEGAL_STATE for another protocol, cluster or node, else BAD_REQUEST.
    """
    theirs = decode_hello(content, Hello, CHANNEL, PROTOCOL)
    check_peer(theirs, own)
    return theirs


def outcome_unknown_if_changing(operation: Operation, error: LogError) -> LogError:
    """`error` for reads, or `outcome_unknown_error(error)` for any operation that changes."""
    match operation:
        case Append():
            return outcome_unknown_error(error)
        case Delete():
            return outcome_unknown_error(error, MAYBE_DELETED)
        case Coordinate(may_change=True):
            return outcome_unknown_error(error, MAYBE_CHANGED)
        case WriteMarker():
            return outcome_unknown_error(error, MAYBE_ENDED)
    return error


def is_held(operation: Operation) -> bool:
    """Whether the operation waits for an event, and counts among the waits."""
    return isinstance(operation, Wait) or (isinstance(operation, Coordinate) and operation.is_held)
