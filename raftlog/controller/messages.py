"""What brokers and the active controller say to each other, and its bytes. Pure.

Each message is one JSON object whose `type` names it, sent as a control message of the quorum.
Unknown fields are ignored: a newer node may say more; and what an older one does not say yet has a
default. Nothing in a message is a type, a path or code to be looked up.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from raftlog.metadata.broker_configs import SESSION_TIMEOUT_S_DEFAULT
from raftlog.record.types import BrokerEpoch, BrokerId

HEARTBEAT_S: Final = 0.3
"""Between two heartbeats of a broker. Losing one must not cost a lease."""
MESSAGE_BYTES_MAX: Final = 4096
"""Of a whole message; the largest is a refusal."""
EXPLANATION_CHARACTERS_MAX: Final = 512
UNWRITABLE_MAX: Final = 100
"""Brokers that an answer names as taking no writes: those of the lowest ids, of more."""

_Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
_BrokerId: TypeAlias = Annotated[BrokerId, Meta(ge=1, le=2**31 - 1)]
_BrokerEpoch: TypeAlias = Annotated[BrokerEpoch, Meta(ge=1, le=2**62)]


class RefusalReason(StrEnum):
    """Why a heartbeat does not count."""

    NOT_ACTIVE = "not_active"
    """This node is not the active controller, or not up to date yet: ask again soon."""
    STALE_EPOCH = "stale_epoch"
    """The broker has been started again since: whoever still uses this epoch must end."""
    UNKNOWN_BROKER = "unknown_broker"
    """The broker was unregistered: it must register anew before it can take part."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    sequence: _Number
    """The sender of the heartbeat numbers them; an answer repeats the number."""
    broker_epoch: _BrokerEpoch
    """The broker's; an answer repeats it."""


class Heartbeat(_Message, frozen=True, tag="heartbeat"):
    """A broker is there, in this incarnation, and has applied the metadata up to that index."""

    broker_id: _BrokerId
    applied_index: _Number
    stopping: bool
    """It is about to stop, and asks to be relieved of what it leads."""
    can_write: bool = True
    """Its disk takes writes; if not, others should lead what they can."""


class HeartbeatAnswer(_Message, frozen=True, tag="heartbeat_answer"):
    """The active controller has heard it."""

    term: _Number
    """Of the controller, in Raft's sense: an answer of an older one than known is out of date."""
    applied_index: _Number
    """Of the controller, as it answered."""
    fenced: bool
    """Whether the broker is fenced, or about to be."""
    drained: bool
    """To a broker that is stopping: whoever can take over from it has done so."""
    confirmed_age_s: Annotated[float, Meta(ge=0.0, le=3600.0)]
    """Seconds since appends left that a majority of the voters has answered: for so long, at most,
    there can have been a newer controller."""
    unwritable: Annotated[tuple[_BrokerId, ...], Meta(max_length=UNWRITABLE_MAX)] = ()
    """Brokers whose disks take no writes, as far as the controller knows."""
    session_timeout_ms: Annotated[int, Meta(ge=1, le=3_600_000)] | UnsetType = UNSET
    """The session timeout that this answer grants; unset: the default."""


def answered_timeout_s(answer: HeartbeatAnswer) -> float:
    """The session timeout, in seconds, that an answer grants."""
    timeout_ms = answer.session_timeout_ms
    return SESSION_TIMEOUT_S_DEFAULT if timeout_ms is UNSET else timeout_ms / 1000


def granted_timeout_ms(timeout_s: float) -> int | UnsetType:
    """The session timeout as an answer states it."""
    return UNSET if timeout_s == SESSION_TIMEOUT_S_DEFAULT else round(timeout_s * 1000)


class HeartbeatRefusal(_Message, frozen=True, tag="heartbeat_refusal"):
    """The heartbeat does not count."""

    reason: RefusalReason
    explanation: Annotated[str, Meta(max_length=EXPLANATION_CHARACTERS_MAX)]


HeartbeatReply: TypeAlias = HeartbeatAnswer | HeartbeatRefusal
ControllerMessage: TypeAlias = Heartbeat | HeartbeatAnswer | HeartbeatRefusal

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[ControllerMessage] = msgspec.json.Decoder(ControllerMessage)


class ControllerMessageError(Exception):
    """Bytes that are no message of this version: the peer is broken or newer."""


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
