"""Subscriptions: patterns in linear time, without internal topics; the hash of the topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.coordinator.groups.subscriptions import (
    PATTERN_CHARACTERS_MAX,
    check_pattern,
    matched_topics,
    metadata_hash,
    partition_counts,
    resolved_again,
)
from raftlog.coordinator.shard.records import ConsumerGroupRegularExpressionValue
from raftlog.record.errors import INVALID_PATTERN, LogError
from tests.coordinator.images import id_of, image_of, put_topic, remove_topic


def test_pattern_matches_whole_names_and_no_internal_topic() -> None:
    names = ["orders", "orders-eu", "reorders", "__consumer_offsets"]
    assert matched_topics("orders.*", names) == ("orders", "orders-eu")
    assert matched_topics("orders", names) == ("orders",)
    assert matched_topics(".*", names) == ("orders", "orders-eu", "reorders")


@pytest.mark.parametrize(
    "pattern",
    [
        "(a",
        "a{2,1}",
        r"(a)\1",
        "(?=a)",
        "a{1001}",
        "x" * (PATTERN_CHARACTERS_MAX + 1),
        "(x{500}){500}",
    ],
)
def test_invalid_or_oversized_pattern_is_refused(
    pattern: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LogError) as caught:
        check_pattern(pattern)
    assert caught.value.entry is INVALID_PATTERN
    assert capfd.readouterr() == ("", "")


def test_pattern_that_is_exponential_elsewhere_is_fast() -> None:
    assert matched_topics("(a*)*b", ["a" * 200]) == ()


def test_hash_follows_ids_and_counts_only() -> None:
    image = image_of(a=3, b=2)
    first = metadata_hash(partition_counts(image, ["a", "b", "missing"]))
    assert first == metadata_hash(partition_counts(image, ["b", "a"])) != 0
    put_topic(image, "a", 4)
    more = metadata_hash(partition_counts(image, ["a", "b"]))
    remove_topic(image, "a")
    put_topic(image, "a", 4, topic_id=id_of("again"))
    assert len({first, more, metadata_hash(partition_counts(image, ["a", "b"]))}) == 3
    assert metadata_hash({}) == 0


topic_names = st.sets(st.sampled_from(["a", "ab", "abc", "b", "__a"]))


@given(topic_names, topic_names)
def test_resolving_the_changed_topics_equals_resolving_all(
    before: set[str], after: set[str]
) -> None:
    old, new = image_of(**dict.fromkeys(before, 1)), image_of(**dict.fromkeys(after, 1))
    pattern = "a.*"
    patterns = {
        pattern: ConsumerGroupRegularExpressionValue(
            matched_topics(pattern, old.topics_by_name), 0, 0
        )
    }
    found = resolved_again(patterns, new, before ^ after, 0)
    assert found == resolved_again(patterns, new, None, 0)
    topics = found.get(pattern, patterns[pattern]).topics
    assert topics == matched_topics(pattern, new.topics_by_name)
