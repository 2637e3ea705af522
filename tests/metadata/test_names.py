from __future__ import annotations

import pytest

from raftlog.metadata.image import check_topic_name, topic_name_fault
from raftlog.record.errors import INVALID_TOPIC, LogError


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "__internal", "0", "x" * 249])
def test_legal_names(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "x" * 250, "a/b", "../a", "a\\b", "a b", "a\n", "a\x00", "ä", "٣", "a:b",
        "%2e%2e", "\ud800",
    ],
)  # fmt: skip
def test_illegal_names(name: str) -> None:
    with pytest.raises(LogError) as raised:
        check_topic_name(name)
    assert raised.value.entry is INVALID_TOPIC
    assert raised.value.message.isprintable()


def test_message_about_a_huge_name_stays_small() -> None:
    fault = topic_name_fault("/" * 10_000_000)
    assert fault is not None and len(fault) < 200
