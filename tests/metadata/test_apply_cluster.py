from __future__ import annotations

import pytest

from raftlog.metadata import apply_cluster
from raftlog.metadata.apply import apply
from raftlog.metadata.commands import (
    AlterClusterSettings,
    ClusterCreated,
)
from raftlog.metadata.delta import NO_CHANGE, MetadataDelta
from raftlog.metadata.image import MetadataImage
from raftlog.record.errors import (
    ILLEGAL_STATE,
    INVALID_CONFIG,
)
from tests.metadata.strategies import (
    carry_out,
    refusal_of,
)


def test_cluster_id_is_given_once() -> None:
    image = MetadataImage()
    first = ClusterCreated(cluster_id="one", created_ms=5)
    assert apply(image, 1, first).value == "one"
    assert apply(image, 2, first).value == "one"
    other = ClusterCreated(cluster_id="two", created_ms=6)
    assert refusal_of(image, other) is ILLEGAL_STATE
    assert (image.cluster_id, image.created_ms) == ("one", 5)


def test_settings_are_set_and_removed_even_if_this_release_does_not_know_them() -> None:
    image = MetadataImage()
    values = {"from.the.future": "on", "flush": "async"}
    result = carry_out(image, AlterClusterSettings(values=values))
    assert result.cluster_settings() == image.cluster_settings == values
    assert result.delta == MetadataDelta(cluster_settings=("flush", "from.the.future"))
    remove = AlterClusterSettings(values={}, removals=("flush", "absent"))
    assert carry_out(image, remove).cluster_settings() == {"from.the.future": "on"}
    assert carry_out(image, remove).delta is NO_CHANGE
    assert result.cluster_settings() == values, "what was read before does not change"


def test_number_of_settings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_cluster, "CLUSTER_SETTINGS_MAX", 2)
    image = MetadataImage()
    carry_out(image, AlterClusterSettings(values={"a": "1", "b": "2"}))
    assert refusal_of(image, AlterClusterSettings(values={"c": "3"})) is INVALID_CONFIG
    carry_out(image, AlterClusterSettings(values={"c": "3"}, removals=("a",)))
    assert image.cluster_settings == {"b": "2", "c": "3"}
