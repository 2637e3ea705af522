from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.metadata.configs.broker import find_broker_config, find_cluster_setting
from raftlog.metadata.configs.topic import (
    CONFIG_TABLE,
    THROTTLED_RATE,
    TOPIC_CONFIG_TABLE,
    ConfigSource,
    TopicConfig,
    describe,
    find_entry,
    is_unclean_election_enabled,
    throttled_rate,
    validate,
    validate_all,
)
from raftlog.record.errors import INVALID_CONFIG, LogError


def in_force(
    configs: dict[str, str], defaults: dict[str, str] | None = None, replicas: int = 1
) -> TopicConfig:
    return TopicConfig.from_configs(configs, defaults or {}, replication_factor=replicas)


def test_defaults_are_kafkas() -> None:
    assert in_force({}) == TopicConfig(
        cleanup_policy=frozenset({"delete"}),
        delete_retention_ms=86_400_000,
        flush="sync",
        index_interval_bytes=4096,
        leader_replication_throttled_rate=0,
        max_message_bytes=1_048_588,
        message_timestamp_type="CreateTime",
        min_cleanable_dirty_ratio=0.5,
        min_compaction_lag_ms=0,
        min_insync_replicas=1,
        retention_bytes=-1,
        retention_ms=604_800_000,
        segment_bytes=1_073_741_824,
        segment_ms=604_800_000,
        unclean_leader_election_enable=False,
    )


def test_every_config_of_the_table_takes_effect_and_explains_itself() -> None:
    typed = {field.name for field in fields(TopicConfig)}
    assert typed == {name.replace(".", "_") for name in CONFIG_TABLE}
    for entry in CONFIG_TABLE.values():
        assert len(entry.doc) > 20
        assert validate(entry.name, entry.default) == entry.default


@pytest.mark.parametrize(
    ("name", "value", "normalised"),
    [
        ("retention.ms", " 0042 ", "42"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "+7", "7"),
        ("segment.bytes", str(2**31 - 1), str(2**31 - 1)),
        ("cleanup.policy", "delete, compact", "compact,delete"),
        ("cleanup.policy", "compact,compact", "compact"),
        ("unclean.leader.election.enable", "TRUE", "true"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("min.cleanable.dirty.ratio", ".25", "0.25"),
        ("flush", " async ", "async"),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
    ],
)
def test_values_are_normalised(name: str, value: str, normalised: str) -> None:
    assert validate(name, value) == normalised
    assert validate(name, normalised) == normalised


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "1e3"),
        ("retention.ms", "1_000"),
        ("retention.ms", "٣"),
        ("retention.ms", ""),
        ("retention.ms", str(2**63)),
        ("retention.ms", "9" * 5000),
        ("segment.bytes", "1023"),
        ("segment.bytes", str(2**31)),
        ("max.message.bytes", "0"),
        ("min.insync.replicas", "0"),
        ("min.cleanable.dirty.ratio", "1.01"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "inf"),
        ("min.cleanable.dirty.ratio", "1e999"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "delete,"),
        ("cleanup.policy", "burn"),
        ("compression.type", "brotli"),
        ("flush", "never"),
        ("unclean.leader.election.enable", "yes"),
        ("message.timestamp.type", "createtime"),
        ("no.such.config", "1"),
        ("\ud800" * 200, "1"),
    ],
)
def test_bad_values_are_refused_with_a_reason(name: str, value: str) -> None:
    with pytest.raises(LogError) as raised:
        validate(name, value)
    assert raised.value.entry is INVALID_CONFIG
    assert raised.value.message.isprintable() and len(raised.value.message) < 300


def test_refusal_says_what_is_expected() -> None:
    with pytest.raises(LogError, match="'x' is not a valid value of flush: expected 'sync' or"):
        validate("flush", "x")
    with pytest.raises(LogError, match="a whole number from -1 to"):
        validate("retention.ms", "x")
    with pytest.raises(LogError, match="true or false"):
        validate("unclean.leader.election.enable", "x")
    with pytest.raises(LogError, match="a number from 0 to 1"):
        validate("min.cleanable.dirty.ratio", "x")
    with pytest.raises(LogError, match="comma-separated"):
        validate("cleanup.policy", "x")


@given(st.sampled_from(sorted(CONFIG_TABLE)), st.text(max_size=30))
def test_whatever_is_accepted_can_be_read(name: str, value: str) -> None:
    try:
        normalised = validate(name, value)
    except LogError as error:
        assert error.entry is INVALID_CONFIG
    else:
        in_force({name: normalised})


def test_all_or_none_are_validated() -> None:
    assert validate_all({"retention.ms": "07", "flush": "async"}) == {
        "retention.ms": "7",
        "flush": "async",
    }
    with pytest.raises(LogError):
        validate_all({"retention.ms": "7", "flush": "never"})


def test_topic_goes_before_node_goes_before_default() -> None:
    defaults = {"flush": "async", "retention.ms": "5"}
    config = in_force({"retention.ms": "9"}, defaults)
    assert (config.flush, config.retention_ms, config.segment_ms) == ("async", 9, 604_800_000)
    sources = {
        described.entry.name: (described.value, described.source)
        for described in describe({"retention.ms": "9"}, defaults, replication_factor=1)
    }
    assert sources["retention.ms"] == ("9", ConfigSource.TOPIC)
    assert sources["flush"] == ("async", ConfigSource.NODE)
    assert sources["segment.ms"] == ("604800000", ConfigSource.DEFAULT)
    assert set(sources) == set(TOPIC_CONFIG_TABLE)


def test_cluster_goes_before_node_and_after_topic() -> None:
    configs, cluster = {"flush": "sync"}, {"flush": "async", "retention.ms": "5"}
    node = {"retention.ms": "6", "segment.ms": "7", "flush": "async"}
    config = TopicConfig.from_configs(configs, node, replication_factor=1, cluster=cluster)
    assert (config.flush, config.retention_ms, config.segment_ms) == ("sync", 5, 7)
    sources = {
        description.entry.name: (description.value, description.source, description.is_default)
        for description in describe(configs, node, replication_factor=1, cluster=cluster)
    }
    assert sources["flush"] == ("sync", ConfigSource.TOPIC, False)
    assert sources["retention.ms"] == ("5", ConfigSource.CLUSTER, False)
    assert sources["segment.ms"] == ("7", ConfigSource.NODE, False)
    assert sources["segment.bytes"][1:] == (ConfigSource.DEFAULT, True)


def test_unclean_elections_take_a_clear_yes() -> None:
    name = "unclean.leader.election.enable"
    for value, expected in (("true", True), ("TRUE", True), ("false", False), ("yes", False)):
        assert is_unclean_election_enabled({name: value}, {}) is expected
        assert is_unclean_election_enabled({}, {name: value}) is expected
    assert not is_unclean_election_enabled({name: "false"}, {name: "true"})
    assert not is_unclean_election_enabled({}, {})


@pytest.mark.parametrize(("replicas", "expected"), [(1, 1), (2, 1), (3, 2), (5, 2)])
def test_default_of_min_insync_replicas_follows_the_replicas(replicas: int, expected: int) -> None:
    assert in_force({}, replicas=replicas).min_insync_replicas == expected
    assert in_force({"min.insync.replicas": "3"}, replicas=replicas).min_insync_replicas == 3


def test_what_a_newer_release_has_set_is_read_as_far_as_it_is_known() -> None:
    # An unknown name, and a value beyond today's bounds.
    config = in_force({"from.the.future": "x", "segment.bytes": str(2**40)})
    assert config.segment_bytes == 2**40


def test_value_that_cannot_be_read_is_never_guessed() -> None:
    for name in ("retention.ms", "min.cleanable.dirty.ratio", "unclean.leader.election.enable"):
        with pytest.raises(LogError) as raised:
            in_force({name: "a week"})
        assert raised.value.entry is INVALID_CONFIG


@pytest.mark.parametrize(("value", "rate"), [(None, 0), ("1000", 1000), ("-5", 0), ("fast", 0)])
def test_throttle_is_the_clusters(value: str | None, rate: int) -> None:
    assert throttled_rate({} if value is None else {THROTTLED_RATE: value}) == rate
    if value == "1000":
        assert validate(THROTTLED_RATE, value) == value
    elif value is not None:
        with pytest.raises(LogError):
            validate(THROTTLED_RATE, value)


@pytest.mark.parametrize(
    ("find", "name", "advice"),
    [
        (find_entry, "retention.m", " Did you mean retention.ms?"),
        (find_entry, "retention_ms", " Did you mean retention.ms?"),
        (find_entry, "grün", ""),
        (find_broker_config, "session.timeout.ms", " Did you mean broker.session.timeout.ms?"),
        (
            find_cluster_setting,
            "broker.session.timeout",
            " Did you mean broker.session.timeout.ms?",
        ),
        (find_cluster_setting, "cleanup.polisy", " Did you mean cleanup.policy?"),
    ],
)
def test_unknown_name_is_shown_as_typed_with_the_likeliest_one(
    find: Callable[[str], object], name: str, advice: str
) -> None:
    with pytest.raises(LogError) as caught:
        find(name)
    assert caught.value.message.endswith(f" config '{name}'.{advice}")


def test_long_or_unprintable_name_is_shown_in_part_and_escaped() -> None:
    with pytest.raises(LogError) as caught:
        find_entry("x" * 100_000)
    assert len(caught.value.message) < 200
    with pytest.raises(LogError, match=r"'\\x1b\[2J'"):
        find_entry("\x1b[2J")
