"""Settings of groups: those of the cluster, their units and bounds."""

from __future__ import annotations

from dataclasses import fields

import pytest

from raftlog.coordinator.groups.settings import _CLUSTER_SETTINGS, GroupSettings
from raftlog.metadata.configs.broker import BROKER_CONFIG_TABLE
from tests.coordinator.group_harness import one_topic


def test_every_setting_of_the_cluster_has_its_field() -> None:
    named = {name for name, _ in _CLUSTER_SETTINGS.values()}
    assert named == {
        name for name in BROKER_CONFIG_TABLE if name.startswith(("consumer.", "group.", "offsets."))
    }
    assert set(_CLUSTER_SETTINGS) <= {field.name for field in fields(GroupSettings)}


@pytest.mark.parametrize("field", sorted(_CLUSTER_SETTINGS))
def test_a_default_is_the_table_s(field: str) -> None:
    name, unit = _CLUSTER_SETTINGS[field]
    default = int(BROKER_CONFIG_TABLE[name].default) * unit
    assert getattr(GroupSettings(), field) == default
    assert getattr(GroupSettings().following({name: str(default // unit)}), field) == default


def test_a_setting_that_is_set_for_the_cluster_counts_within_its_bounds() -> None:
    settings = GroupSettings(groups_max=3)
    assert settings.following({}) is settings
    assert settings.following({"unclean.leader.election.enable": "true"}) is settings
    changed = settings.following({"offsets.retention.minutes": "2", "group.max.size": "1000000"})
    assert (changed.retention_ms, changed.members_max) == (120_000, 5_000)
    assert changed.groups_max == 3


def test_a_shard_follows_a_change_and_its_end() -> None:
    one = one_topic(session_timeout_ms=20_000)
    first = {"member_id": "m", "subscribed_names": ("a",)}
    one.shard.follow_settings({"group.consumer.session.timeout.ms": "30000"})
    assert one.heartbeat(member_epoch=0, **first).session_timeout_ms == 30_000
    one.shard.follow_settings({})
    assert one.heartbeat(member_epoch=1, **first).session_timeout_ms == 20_000
