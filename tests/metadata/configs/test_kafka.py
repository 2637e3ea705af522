"""Kafka's topic configs that raftlog keeps, and does not act on."""

from __future__ import annotations

import pytest

from raftlog.metadata.configs.broker import find_cluster_setting
from raftlog.metadata.configs.kafka import INERT_CONFIG_TABLE, KAFKA_TOPIC_CONFIGS
from raftlog.metadata.configs.topic import (
    CONFIG_TABLE,
    TOPIC_CONFIG_TABLE,
    ConfigSource,
    TopicConfig,
    describe,
    validate,
    validate_all,
    validate_defaults,
)
from raftlog.record.errors import INVALID_CONFIG, LogError

OURS = {"flush", "leader.replication.throttled.rate"}

OF_CONNECT_STREAMS_AND_TOOLS = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "CreateTime",
    "segment.bytes": "52428800",
    "max.compaction.lag.ms": "86400000",
    "segment.index.bytes": "10485760",
    "preallocate": "false",
    "leader.replication.throttled.replicas": "0:1,0:2",
}


def test_every_topic_config_of_kafka_is_known() -> None:
    assert set(TOPIC_CONFIG_TABLE) == KAFKA_TOPIC_CONFIGS | OURS
    assert INERT_CONFIG_TABLE.keys() == KAFKA_TOPIC_CONFIGS - CONFIG_TABLE.keys()


@pytest.mark.parametrize("name", sorted(INERT_CONFIG_TABLE))
def test_each_explains_itself_and_says_that_it_has_no_effect(name: str) -> None:
    entry = INERT_CONFIG_TABLE[name]
    assert len(entry.doc) > 20
    assert not entry.has_effect
    assert "does not act on it" in entry.note
    assert entry.documentation == f"{entry.doc} {entry.note}"
    assert validate(name, entry.default) == entry.default


def test_a_config_in_effect_has_no_note() -> None:
    assert {entry.note for entry in CONFIG_TABLE.values()} == {""}
    entry = CONFIG_TABLE["retention.ms"]
    assert entry.documentation == entry.doc


def test_what_kafkas_tools_set_is_taken() -> None:
    assert validate_all(OF_CONNECT_STREAMS_AND_TOOLS) == OF_CONNECT_STREAMS_AND_TOOLS


@pytest.mark.parametrize(
    ("name", "value", "normalised"),
    [
        ("segment.jitter.ms", " 07 ", "7"),
        ("preallocate", "TRUE", "true"),
        ("local.retention.ms", "-2", "-2"),
        ("compression.zstd.level", "-5", "-5"),
        ("leader.replication.throttled.replicas", "", ""),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("follower.replication.throttled.replicas", "1:2, 0:3,1:2", "0:3,1:2"),
    ],
)
def test_values_are_normalised(name: str, value: str, normalised: str) -> None:
    assert validate(name, value) == normalised
    assert validate(name, normalised) == normalised


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("segment.jitter.ms", "soon", "a whole number from 0"),
        ("segment.jitter.ms", "-1", "a whole number from 0"),
        ("flush.messages", "0", "a whole number from 1"),
        ("local.retention.bytes", "-3", "a whole number from -2"),
        ("compression.lz4.level", "18", "from 1 to 17"),
        ("preallocate", "maybe", "true or false"),
        ("remote.storage.enable", "", "true or false"),
        ("follower.replication.throttled.replicas", "0:1,x", "partition:broker"),
        ("follower.replication.throttled.replicas", "0:1,", "partition:broker"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: str, expected: str) -> None:
    with pytest.raises(LogError, match=expected) as raised:
        validate(name, value)
    assert raised.value.entry is INVALID_CONFIG


def test_a_list_of_replicas_is_as_long_as_a_large_topic_needs_and_bounded() -> None:
    name = "leader.replication.throttled.replicas"
    replicas = ",".join(
        sorted(f"{partition}:{broker}" for partition in range(500) for broker in (1, 2, 3))
    )
    assert validate(name, replicas) == replicas
    with pytest.raises(LogError, match="characters"):
        validate(name, replicas * 5)


def test_a_topic_keeps_them_and_acts_as_without() -> None:
    configs = validate_all({"segment.jitter.ms": "7", "retention.ms": "5"})
    plain = TopicConfig.from_configs({"retention.ms": "5"}, {}, replication_factor=1)
    assert TopicConfig.from_configs(configs, {}, replication_factor=1) == plain
    described = {one.entry.name: one for one in describe(configs, {}, replication_factor=1)}
    assert described.keys() == TOPIC_CONFIG_TABLE.keys()
    jitter = described["segment.jitter.ms"]
    assert (jitter.value, jitter.source) == ("7", ConfigSource.TOPIC)
    assert jitter.entry.note
    assert described["preallocate"].is_default


def test_unknown_names_stay_errors() -> None:
    with pytest.raises(LogError, match=r"Did you mean segment\.jitter\.ms") as raised:
        validate("segment.jiter.ms", "7")
    assert raised.value.entry is INVALID_CONFIG
    with pytest.raises(LogError, match="There is no topic config"):
        validate("message.format.version", "2.8")


@pytest.mark.parametrize(
    "check", [find_cluster_setting, lambda name: validate_defaults({name: "7"})]
)
def test_an_operator_is_told_rather_than_ignored(check: object) -> None:
    """Tools set these configs on topics; a default of the operator's would silently do nothing."""
    assert callable(check)
    with pytest.raises(LogError, match=r"segment\.jitter\.ms has no effect") as raised:
        check("segment.jitter.ms")
    assert raised.value.entry is INVALID_CONFIG
