"""Committed offsets keep their bytes between nodes, so nodes of two releases serve one group."""

from __future__ import annotations

from typing import Final

import pytest

from raftlog.coordinator.groups.kind import MESSAGES
from raftlog.coordinator.groups.messages import FetchedOffsets, GroupRequest
from raftlog.coordinator.groups.offset_messages import (
    NO_OFFSET,
    CommitOffsets,
    Committer,
    FetchedOffset,
    FetchOffsets,
    OffsetToCommit,
    TopicPartition,
)
from raftlog.coordinator.instances.messages import CommitInstance
from raftlog.record.errors import UNSTABLE_OFFSET_COMMIT
from raftlog.record.types import TopicId

TOPIC_ID: Final = TopicId("00112233445566778899aabbccddeeff")
ID: Final = "d920" + TOPIC_ID.encode().hex()
OFFSETS: Final = (
    OffsetToCommit("t", 2, 100, leader_epoch=5, metadata="meta", topic_id=TOPIC_ID, expected=99),
    OffsetToCommit("u", 0, 7),
)
OFFSETS_BYTES: Final = f"92 97 a174 02 64 05 a46d657461 {ID} 63 97 a175 00 07 ff a0 c0 fe"

REQUESTS: Final[dict[str, tuple[GroupRequest, str]]] = {
    "commit": (
        CommitOffsets("g", OFFSETS, Committer("m", 3)),
        f"98 14 a167 {OFFSETS_BYTES} 93 a16d 03 c0 c0 ff a0 c3",
    ),
    "commit of an instance": (
        CommitInstance("g", "i", OFFSETS),
        f"94 44 a167 a169 {OFFSETS_BYTES}",
    ),
    "fetch": (
        FetchOffsets("g", (TopicPartition("t", 2, TOPIC_ID), TopicPartition("u", 0)), True),
        f"95 15 a167 92 93 a174 02 {ID} 93 a175 00 c0 c3 93 a0 ff c0",
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_have_fixed_bytes(name: str) -> None:
    request, encoded = REQUESTS[name]
    data = bytes.fromhex(encoded)
    assert MESSAGES.encode_request(request) == data
    assert MESSAGES.decode_request(data) == request
    assert MESSAGES.checked(request) is request


def test_responses_have_fixed_bytes() -> None:
    response = FetchedOffsets(
        (
            FetchedOffset("t", 2, 100, leader_epoch=5, metadata="meta", topic_id=TOPIC_ID),
            FetchedOffset("u", 0, NO_OFFSET),
            FetchedOffset("u", 1, NO_OFFSET, error_code=UNSTABLE_OFFSET_COMMIT.code),
        )
    )
    data = bytes.fromhex(
        f"92 15 93 97 a174 02 64 05 a46d657461 {ID} 00"
        "97 a175 00 ff ff a0 c0 00"
        "97 a175 01 ff ff a0 c0 cd9fe6"
    )
    assert MESSAGES.encode_response(response) == data
    assert MESSAGES.decode_response(data) == response
