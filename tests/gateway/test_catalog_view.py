"""The catalog in a gateway, and the steps towards stub topics."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.api.catalog import CatalogEntry, encode_entry
from raftlog.gateway import catalog_view
from raftlog.gateway.catalog_view import (
    CatalogView,
    CreateStub,
    GrowStub,
    HomeTopic,
    NoStub,
    StubReady,
    StubStep,
    merged_addresses,
    stub_step,
)
from raftlog.record.errors import UNKNOWN_TOPIC, LogError

STUB = {"max.message.bytes": "1", "retention.ms": "1"}
TOPIC = {"max.message.bytes": "1048588"}


def entry(log: str = "orders", **changes: Any) -> CatalogEntry:
    values = {"cluster": "c", "cluster_id": "x", "addresses": ("h:1",), "state": "online"}
    return CatalogEntry(**{"log": log, **values, **changes})


def put(view: CatalogView, one: CatalogEntry) -> bool:
    return view.apply(one.log.encode(), encode_entry(one))


def test_the_newest_entry_of_a_log_counts() -> None:
    view = CatalogView()
    assert put(view, entry())
    assert not put(view, entry()), "the same again is no change"
    assert put(view, entry(partitions=3))
    assert view.find("orders").partitions == 3
    assert view.apply(b"orders", None)
    assert not view.apply(b"orders", None)
    with pytest.raises(LogError) as caught:
        view.find("orders")
    assert caught.value.entry is UNKNOWN_TOPIC


def test_a_removed_log_is_not_served() -> None:
    view = CatalogView()
    put(view, entry())
    put(view, entry("users", state="removed"))
    assert [one.log for one in view.logs()] == ["orders"]
    with pytest.raises(LogError, match="users"):
        view.find("users")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"\xff", encode_entry(entry())),
        (b"orders", b"{"),
        (b"orders", b"{}"),
        (b"orders", b'{"log":"orders","cluster":"c","state":"lost"}'),
        (b"users", encode_entry(entry())),
        (b"orders", encode_entry(entry(addresses=("h:1", "h:1/path?x=")))),
        (b"orders", encode_entry(entry(addresses=("no port",)))),
    ],
)
def test_a_record_that_is_no_entry_changes_nothing(key: bytes | None, value: bytes) -> None:
    view = CatalogView()
    put(view, entry(partitions=7))
    with pytest.raises(ValueError, match=r"\w"):
        view.apply(key, value)
    assert view.logs() == [entry(partitions=7)]


def test_the_number_of_logs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_view, "LOGS_MAX", 2)
    view = CatalogView()
    put(view, entry("a"))
    put(view, entry("b"))
    with pytest.raises(ValueError, match="as many as it may"):
        put(view, entry("c"))
    assert put(view, entry("a", partitions=2)), "logs that are known may change"
    view.apply(b"b", None)
    assert put(view, entry("c"))


records = st.tuples(
    st.sampled_from("abc"),
    st.none() | st.tuples(st.integers(1, 3), st.sampled_from(["online", "degraded", "removed"])),
)


@given(st.lists(records))
def test_a_view_has_the_last_record_of_each_key(written: list[Any]) -> None:
    view, model = CatalogView(), {}
    for log, value in written:
        one = None if value is None else entry(log, partitions=value[0], state=value[1])
        view.apply(log.encode(), None if one is None else encode_entry(one))
        model[log] = one
    expected = [one for _, one in sorted(model.items()) if one and one.state != "removed"]
    assert view.logs() == expected


@pytest.mark.parametrize(
    ("one", "found", "step"),
    [
        (entry(partitions=2), None, CreateStub(2)),
        (entry(), HomeTopic(1, STUB), StubReady()),
        (entry(partitions=3), HomeTopic(2, STUB), GrowStub(3)),
        (entry(partitions=1), HomeTopic(2, STUB), StubReady()),
        (entry(cluster_id="home"), HomeTopic(1, TOPIC), StubReady()),
    ],
)
def test_steps_towards_a_stub(one: CatalogEntry, found: HomeTopic | None, step: StubStep) -> None:
    assert stub_step(one, found, "home") == step


@pytest.mark.parametrize(
    ("one", "found", "reason"),
    [
        (entry(cluster_id=""), None, "being created"),
        (entry(cluster_id="home"), None, "no topic of that name yet"),
        (entry(), HomeTopic(1, TOPIC), "records of its own"),
    ],
)
def test_reasons_for_no_stub(one: CatalogEntry, found: HomeTopic | None, reason: str) -> None:
    step = stub_step(one, found, "home")
    assert isinstance(step, NoStub)
    assert reason in step.reason


def test_given_addresses_come_before_learned_ones() -> None:
    assert merged_addresses(["b:1", "a:1"], ["a:1", "c:1", "d:1"], 3) == ("b:1", "a:1", "c:1")
