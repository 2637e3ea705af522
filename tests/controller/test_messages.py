from __future__ import annotations

import msgspec
import pytest

from raftlog.controller.messages import (
    EXPLANATION_CHARACTERS_MAX,
    LOG_ENDS_MAX,
    MESSAGE_BYTES_MAX,
    UNWRITABLE_MAX,
    ControllerMessage,
    ControllerMessageError,
    Heartbeat,
    HeartbeatAnswer,
    HeartbeatRefusal,
    LogEndsAnswer,
    LogEndsRequest,
    RefusalReason,
    decode_message,
    encode_message,
)
from raftlog.record.types import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionId,
    TopicId,
)

LARGE = 2**62
HEARTBEAT = Heartbeat(
    sequence=LARGE,
    broker_id=BrokerId(7),
    broker_epoch=BrokerEpoch(LARGE),
    applied_index=LARGE,
    stopping=True,
)


@pytest.mark.parametrize(
    "message",
    [
        HEARTBEAT,
        HeartbeatAnswer(
            sequence=1,
            broker_epoch=BrokerEpoch(2),
            term=3,
            applied_index=4,
            fenced=True,
            drained=False,
            confirmed_age_s=0.25,
        ),
        HeartbeatAnswer(
            sequence=LARGE,
            broker_epoch=BrokerEpoch(LARGE),
            term=LARGE,
            applied_index=LARGE,
            fenced=False,
            drained=False,
            confirmed_age_s=3600.0,
            # As many of them as an answer names, of the longest ids.
            unwritable=tuple(BrokerId(2**31 - 1 - n) for n in range(UNWRITABLE_MAX)),
        ),
        HeartbeatRefusal(
            sequence=1,
            broker_epoch=BrokerEpoch(2),
            reason=RefusalReason.STALE_EPOCH,
            # The longest possible text, in the characters with the most bytes.
            explanation="\0" * EXPLANATION_CHARACTERS_MAX,
        ),
        LogEndsRequest(
            origin=BrokerId(2**31 - 1),
            broker_id=BrokerId(2**31 - 2),
            partitions=((TopicId("f" * 32), PartitionId(2**31 - 1)),) * LOG_ENDS_MAX,
        ),
        LogEndsAnswer(
            origin=BrokerId(2**31 - 1),
            broker_id=BrokerId(2**31 - 2),
            ends=(
                (
                    TopicId("f" * 32),
                    PartitionId(2**31 - 1),
                    LeaderEpoch(2**31 - 1),
                    Offset(2**63 - 1),
                ),
            )
            * LOG_ENDS_MAX,
        ),
    ],
)
def test_message_survives_encoding(message: ControllerMessage) -> None:
    encoded = encode_message(message)
    assert len(encoded) <= MESSAGE_BYTES_MAX
    assert decode_message(encoded) == message


def test_bytes_of_a_heartbeat_do_not_change() -> None:
    heartbeat = Heartbeat(
        sequence=1,
        broker_id=BrokerId(2),
        broker_epoch=BrokerEpoch(3),
        applied_index=4,
        stopping=False,
    )
    assert encode_message(heartbeat) == (
        b'{"type":"heartbeat","broker_id":2,"applied_index":4,"stopping":false,"can_write":true,'
        b'"sequence":1,"broker_epoch":3}'
    )


def test_what_older_nodes_do_not_say_has_a_default() -> None:
    heartbeat = decode_message(
        b'{"type":"heartbeat","broker_id":2,"applied_index":4,"stopping":false,'
        b'"sequence":1,"broker_epoch":3}'
    )
    assert isinstance(heartbeat, Heartbeat) and heartbeat.can_write
    answer = decode_message(
        b'{"type":"heartbeat_answer","sequence":1,"broker_epoch":3,"term":5,"applied_index":4,'
        b'"fenced":false,"drained":false,"confirmed_age_s":0.5}'
    )
    assert isinstance(answer, HeartbeatAnswer) and answer.unwritable == ()


def test_unknown_field_is_ignored() -> None:
    said = msgspec.json.decode(encode_message(HEARTBEAT))
    assert decode_message(msgspec.json.encode({**said, "later": [1]})) == HEARTBEAT


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\x80",
        b"[]",
        b'{"type":"other"}',
        b'{"type":"heartbeat","sequence":1}',
        encode_message(HEARTBEAT).replace(b'"broker_id":7', b'"broker_id":0'),
        encode_message(HEARTBEAT).replace(b'"broker_id":7', b'"broker_id":"7"'),
        encode_message(HEARTBEAT).replace(b'"stopping":true', b'"stopping":1'),
        encode_message(HEARTBEAT) + b" " * MESSAGE_BYTES_MAX,
    ],
)
def test_anything_else_is_a_typed_error(encoded: bytes) -> None:
    with pytest.raises(ControllerMessageError):
        decode_message(encoded)
