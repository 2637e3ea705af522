"""Messages between brokers and the active controller, and their bytes. Pure.

Heartbeats and their responses. Before an unclean election also a query for the ends of the logs of
partitions, which a broker without a connection to another sends by way of the controller.

Each message is one JSON object, named by its `type`, sent as a control message of the quorum.
Unknown fields are ignored, for newer senders. Fields missing from older senders have defaults. No
content of a message is a type, a path or code to be looked up.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from raftlog.metadata.configs.broker import SESSION_TIMEOUT_S_DEFAULT
from raftlog.record.types import BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionId, TopicId

HEARTBEAT_S: Final = 0.3
"""Seconds between two heartbeats of a broker. A lost heartbeat must not cost a lease."""
MESSAGE_BYTES_MAX: Final = 4096
"""Bytes of a whole message. The largest are a refusal and the ends of logs."""
EXPLANATION_CHARACTERS_MAX: Final = 512
UNWRITABLE_MAX: Final = 100
"""Most unwritable brokers in a response, those of the lowest ids."""
LOG_ENDS_MAX: Final = 40
"""Logs in one question, or answer."""

_Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
_BrokerId: TypeAlias = Annotated[BrokerId, Meta(ge=1, le=2**31 - 1)]
_BrokerEpoch: TypeAlias = Annotated[BrokerEpoch, Meta(ge=1, le=2**62)]


class RefusalReason(StrEnum):
    """Why a heartbeat does not count."""

    NOT_ACTIVE = "not_active"
    """This node is not the active controller, or not up to date yet. Retry soon."""
    STALE_EPOCH = "stale_epoch"
    """The broker has been restarted since. The process with the older epoch must end."""
    UNKNOWN_BROKER = "unknown_broker"
    """The broker was unregistered. Register again before taking part."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    sequence: _Number
    """Number of the sender's heartbeat. A response repeats the number."""
    broker_epoch: _BrokerEpoch
    """The broker's incarnation. A response repeats the epoch."""


class Heartbeat(_Message, frozen=True, tag="heartbeat"):
    """A broker is alive, in this incarnation, and has applied the metadata up to
    `applied_index`."""

    broker_id: _BrokerId
    applied_index: _Number
    stopping: bool
    """Whether the broker is about to stop, and must hand over its leaderships."""
    can_write: bool = True
    """Whether the broker's disk takes writes. If not, other brokers should lead its partitions."""
    time_ms: _Number | UnsetType = UNSET
    """The broker's wall clock."""


class HeartbeatAnswer(_Message, frozen=True, tag="heartbeat_answer"):
    """The active controller's answer to a heartbeat."""

    term: _Number
    """Raft term of the controller. A response of an older term than known is out of date."""
    applied_index: _Number
    """The controller's applied index at the time of the answer."""
    fenced: bool
    """Whether the broker is fenced, or about to be."""
    drained: bool
    """Whether a stopping broker has handed over all leaderships with an eligible successor."""
    confirmed_age_s: Annotated[float, Meta(ge=0.0, le=3600.0)]
    """Age in seconds of the newest appends acknowledged by a majority of the voters. The upper
    bound on how long a newer controller may have existed."""
    unwritable: Annotated[tuple[_BrokerId, ...], Meta(max_length=UNWRITABLE_MAX)] = ()
    """Brokers without a writable disk, as far as the controller knows."""
    session_timeout_ms: Annotated[int, Meta(ge=1, le=3_600_000)] | UnsetType = UNSET
    """The session timeout granted by this response. The default if unset."""
    cluster_time_ms: _Number | UnsetType = UNSET
    """The lower median of the brokers' wall clocks. Unset while too few are known."""
    cluster_latest_ms: _Number | UnsetType = UNSET
    """The upper median. Unset by a controller that knows only the lower median."""


def answered_timeout_s(answer: HeartbeatAnswer) -> float:
    """The granted session timeout in seconds."""
    timeout_ms = answer.session_timeout_ms
    return SESSION_TIMEOUT_S_DEFAULT if timeout_ms is UNSET else timeout_ms / 1000


def granted_timeout_ms(timeout_s: float) -> int | UnsetType:
    """The session timeout as the field of an answer."""
    return UNSET if timeout_s == SESSION_TIMEOUT_S_DEFAULT else round(timeout_s * 1000)


class HeartbeatRefusal(_Message, frozen=True, tag="heartbeat_refusal"):
    """The heartbeat does not count."""

    reason: RefusalReason
    explanation: Annotated[str, Meta(max_length=EXPLANATION_CHARACTERS_MAX)]


_TopicId: TypeAlias = Annotated[TopicId, Meta(max_length=32)]
_PartitionId: TypeAlias = Annotated[PartitionId, Meta(ge=0, le=2**31 - 1)]
_LeaderEpoch: TypeAlias = Annotated[LeaderEpoch, Meta(ge=-1, le=2**31 - 1)]
_EndOffset: TypeAlias = Annotated[Offset, Meta(ge=-1, le=2**63 - 1)]


class _LogEndsMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    origin: _BrokerId
    """The broker that needs the ends."""
    broker_id: _BrokerId
    """The broker that holds the logs."""


class LogEndsRequest(_LogEndsMessage, frozen=True, tag="log_ends_request"):
    """A question for the ends of a broker's logs."""

    partitions: Annotated[tuple[tuple[_TopicId, _PartitionId], ...], Meta(max_length=LOG_ENDS_MAX)]


class LogEndsAnswer(_LogEndsMessage, frozen=True, tag="log_ends_answer"):
    """The response with the log of each partition."""

    ends: Annotated[
        tuple[tuple[_TopicId, _PartitionId, _LeaderEpoch, _EndOffset], ...],
        Meta(max_length=LOG_ENDS_MAX),
    ]
    """Leader epoch of the last record and end offset of each partition. -1 without a usable log."""


HeartbeatReply: TypeAlias = HeartbeatAnswer | HeartbeatRefusal
LogEndsMessage: TypeAlias = LogEndsRequest | LogEndsAnswer
ControllerMessage: TypeAlias = Heartbeat | HeartbeatReply | LogEndsMessage

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[ControllerMessage] = msgspec.json.Decoder(ControllerMessage)


class ControllerMessageError(Exception):
    """Bytes of no known message. The peer is broken or newer."""


def encode_message(message: ControllerMessage) -> bytes:
    """The message's bytes."""
    encoded = _ENCODER.encode(message)
    assert len(encoded) <= MESSAGE_BYTES_MAX
    return encoded


def decode_message(encoded: bytes) -> ControllerMessage:
    """The message of these bytes. Raises ControllerMessageError."""
    if len(encoded) > MESSAGE_BYTES_MAX:
        raise ControllerMessageError(f"{len(encoded)} bytes are over {MESSAGE_BYTES_MAX}")
    try:
        return _DECODER.decode(encoded)
    except msgspec.MsgspecError as error:
        raise ControllerMessageError(f"not a message of the controller: {error}") from error
