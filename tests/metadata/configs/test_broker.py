"""Broker configs: bounds, defaults, and readers of values beyond every plan."""

from __future__ import annotations

import pytest

from raftlog.metadata.configs.broker import (
    BROKER_CONFIG_TABLE,
    DISK_RESERVE,
    LEASE_BOUND,
    REBALANCE_DELAY,
    REPLICA_LAG,
    SCRUB_RATE,
    SESSION_TIMEOUT,
    SESSION_TIMEOUT_S_DEFAULT,
    describe_broker_configs,
    disk_reserve_bytes,
    find_broker_config,
    lease_bound_change,
    lease_bound_s,
    operator_settings,
    rebalance_delay_s,
    replica_lag_max_s,
    scrub_bytes_per_s,
    session_timeout_s,
    validate_cluster_settings,
)
from raftlog.metadata.configs.topic import ConfigSource
from raftlog.record.errors import INVALID_CONFIG, LogError
from raftlog.storage.types import StorageSettings


def test_defaults_are_those_of_a_cluster_without_settings() -> None:
    assert session_timeout_s({}) == lease_bound_s({}) == SESSION_TIMEOUT_S_DEFAULT == 1.5
    assert rebalance_delay_s({}) == 30.0
    assert replica_lag_max_s({}) == 2.0
    assert scrub_bytes_per_s({}) == StorageSettings().scrub_bytes_per_s
    assert disk_reserve_bytes({}) == StorageSettings().reserve_bytes
    assert {config.source for config in describe_broker_configs({})} == {ConfigSource.DEFAULT}


def test_values_are_read_in_seconds_and_bytes() -> None:
    settings = {
        SESSION_TIMEOUT: "9000",
        REBALANCE_DELAY: "500",
        REPLICA_LAG: "30000",
        SCRUB_RATE: "0",
        DISK_RESERVE: "1073741824",
    }
    assert validate_cluster_settings(settings) == settings
    assert session_timeout_s(settings) == 9.0
    assert rebalance_delay_s(settings) == 0.5
    assert replica_lag_max_s(settings) == 30.0
    assert scrub_bytes_per_s(settings) == 0
    assert disk_reserve_bytes(settings) == 1 << 30
    described = {config.entry.name: config for config in describe_broker_configs(settings)}
    assert {name: described[name].value for name in settings} == settings
    assert rebalance_delay_s({REBALANCE_DELAY: "-1"}) is None


@pytest.mark.parametrize("name", sorted(BROKER_CONFIG_TABLE))
def test_values_out_of_bounds_are_rejected_with_the_bounds(name: str) -> None:
    entry = BROKER_CONFIG_TABLE[name]
    assert entry.lower is not None
    assert entry.upper is not None
    for bound in (entry.lower, entry.upper):
        assert validate_cluster_settings({name: str(bound)}) == {name: str(bound)}
    for value in (entry.lower - 1, entry.upper + 1, "a second"):
        with pytest.raises(LogError, match=f"from {entry.lower} to {entry.upper}") as caught:
            validate_cluster_settings({name: str(value)})
        assert caught.value.entry is INVALID_CONFIG


def test_readers_take_the_default_or_the_nearest_bound_of_a_bad_value() -> None:
    assert session_timeout_s({SESSION_TIMEOUT: "soon"}) == SESSION_TIMEOUT_S_DEFAULT
    assert session_timeout_s({SESSION_TIMEOUT: "1"}) == 1.0
    assert lease_bound_s({LEASE_BOUND: "99999999"}) == 60.0


def test_lease_bound_of_the_default_timeout_is_no_setting() -> None:
    assert lease_bound_change(9.0) == ({LEASE_BOUND: "9000"}, ())
    assert lease_bound_change(SESSION_TIMEOUT_S_DEFAULT) == ({}, (LEASE_BOUND,))
    settings = {SESSION_TIMEOUT: "9000", LEASE_BOUND: "9000"}
    assert operator_settings(settings) == {SESSION_TIMEOUT: "9000"}


def test_unknown_name_is_rejected() -> None:
    with pytest.raises(LogError, match="no broker config") as caught:
        find_broker_config("retention.ms")
    assert caught.value.entry is INVALID_CONFIG
