from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from raftlog.metadata import state_machine
from raftlog.metadata.apply.topics import put_topic
from raftlog.metadata.image import MetadataImage
from raftlog.metadata.state_machine import check_invariants, invariant_steps
from raftlog.record.types import BrokerId
from tests.metadata.strategies import create, register


def three() -> MetadataImage:
    image = MetadataImage()
    for number in (1, 2, 3):
        register(image, number)
    create(image, "t", 1, *[(1, 2, 3)] * 10)
    return image


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"replicas": ()}, "without replicas"),
        ({"replicas": (1, 2, 4)}, "unknown broker"),
        ({"replicas": (1, 2, 3, 3)}, "replica twice"),
        ({"isr": (1, 3, 2)}, "isr is no part"),
        ({"replicas": (1, 2)}, "isr is no part"),
        ({"isr": (1, 1)}, "isr is no part"),
        ({"isr": (1,), "elr": (3, 2)}, "elr is no part"),
        ({"elr": (2,)}, "both in isr and elr"),
        ({"adding": (2,), "removing": (2,)}, "both adding and removing"),
        ({"adding": (3, 2)}, "adding is no part"),
        ({"removing": (4,)}, "removing is no part"),
        ({"adding": (1, 2, 3)}, "none stays"),
        ({"removing": (1, 2, 3)}, "none stays"),
        ({"isr": (2, 3)}, "leader out of sync"),
        ({"leader_epoch": 1}, "epochs"),
        ({"leader_epoch": -1}, "epochs"),
        ({"unclean_epoch": 1}, "epochs"),
        ({"unclean_epoch": -2}, "epochs"),
    ],
)
def test_contradictions_of_a_partition_are_found(fields: dict[str, Any], words: str) -> None:
    image = three()
    check_invariants(image)
    topic = image.topic("t")
    row = replace(topic.partitions[9], **fields)
    put_topic(image, replace(topic, partitions=(*topic.partitions[:9], row)))
    with pytest.raises(AssertionError, match=words):
        check_invariants(image)


def test_contradictions_of_the_tables_are_found() -> None:
    image = three()
    image.brokers[BrokerId(4)] = image.brokers[BrokerId(3)]
    with pytest.raises(AssertionError):
        check_invariants(image)
    image = three()
    image.topics_by_name["u"] = image.topics_by_name.pop("t")
    with pytest.raises(AssertionError):
        check_invariants(image)
    image = three()
    image.cluster_settings = {str(number): "" for number in range(501)}
    with pytest.raises(AssertionError):
        check_invariants(image)


def test_check_goes_in_steps_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_machine, "ROWS_PER_STEP", 3)
    assert len(list(invariant_steps(three()))) == 4


def test_half_of_a_kafka_address_is_found() -> None:
    image = three()
    one = BrokerId(1)
    image.brokers[one] = replace(image.brokers[one], kafka_host="k")
    with pytest.raises(AssertionError, match="half"):
        check_invariants(image)
