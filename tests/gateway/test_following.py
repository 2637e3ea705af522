"""The catalog is followed through failures, and each log gets its stub."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from raftlog.api.catalog import CATALOG_TOPIC, CatalogEntry, encode_entry
from raftlog.gateway import following
from raftlog.gateway.following import CatalogFollower, StubKeeper
from raftlog.gateway.service import Gateway
from raftlog.record.errors import STORAGE_FAILED, LogError
from raftlog.world import Backoff
from tests.gateway.in_process import entry, gateway_server
from tests.rest.data_fakes import DataPeer
from tests.rest.v1.test_groups import group_node
from tests.waiting import until

BINARY = "application/vnd.kafka.binary.v2+json"


@asynccontextmanager
async def followed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[DataPeer, Gateway]]:
    """A home node with an empty catalog, and a gateway with its tasks."""
    monkeypatch.setattr(following, "POLL_S", 0.2)
    monkeypatch.setattr(following, "RETRY_S", 0.05)
    monkeypatch.setattr(following, "STUBS_RETRIES", Backoff(0.05, following.STUBS_CHECK_S))
    async with (
        group_node() as home,
        gateway_server(f"127.0.0.1:{home.server.port}") as (gateway, _),
    ):
        await home.node.metadata.create_topic(CATALOG_TOPIC, partitions=1)
        async with following_tasks(gateway):
            yield home, gateway


@asynccontextmanager
async def following_tasks(gateway: Gateway) -> AsyncIterator[None]:
    """The gateway's tasks, none of which may fail."""
    follower = CatalogFollower(gateway)
    keeper = StubKeeper(gateway, follower.changed)
    tasks = [asyncio.create_task(one.run()) for one in (follower, keeper)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 2, ends


async def write(home: DataPeer, key: bytes, value: bytes | None) -> None:
    def encoded(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode()

    body = {"records": [{"key": encoded(key), "value": encoded(value)}]}
    reply = await home.peer.request(
        "POST", f"/topics/{CATALOG_TOPIC}", json.dumps(body).encode(), Content_Type=BINARY
    )
    assert reply.status == 200, reply.body


async def put(home: DataPeer, one: CatalogEntry) -> None:
    await write(home, one.log.encode(), encode_entry(one))


def logs(gateway: Gateway) -> list[str]:
    return [one.log for one in gateway.catalog.logs()]


async def stub(home: DataPeer, log: str) -> Any:
    return (await home.peer.request("GET", f"/topics/{log}")).json


async def test_logs_come_change_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async with followed(monkeypatch) as (home, gateway):
        await until(lambda: gateway.catalog_seen_s is not None)
        await put(home, entry("a", "h:1"))
        await until(lambda: gateway.stubs == {"a"})
        found = await stub(home, "a")
        assert found["configs"]["max.message.bytes"] == "1"
        assert len(found["partitions"]) == 1
        record = b'{"records":[{"value":1}]}'
        assert (await home.peer.request("POST", "/topics/a", record)).error_code == 41302

        await put(
            home, CatalogEntry(log="a", cluster="c", cluster_id="x", partitions=3, state="online")
        )
        await until(lambda: len(home.node.metadata.image.topic("a").partitions) == 3)
        await write(home, b"a", None)
        await until(lambda: logs(gateway) == [])
        assert len((await stub(home, "a"))["partitions"]) == 3, "no stub is deleted"


async def test_what_is_no_entry_is_counted_and_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with followed(monkeypatch) as (home, gateway):
        await write(home, b"a", b"{}")
        await put(home, entry("b", "h:1"))
        await until(lambda: logs(gateway) == ["b"])
        assert gateway.rejected_entries == 1


async def test_the_last_catalog_is_served_while_the_home_cluster_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with followed(monkeypatch) as (home, gateway):
        await put(home, entry("a", "h:1"))
        await until(lambda: logs(gateway) == ["a"])
        home.node.log(CATALOG_TOPIC, 0).read_error = LogError(STORAGE_FAILED, "no disk today")
        await put(home, entry("b", "h:1"))
        await until(lambda: gateway.catalog_failure == "no disk today")
        gateway.check_ready()
        assert logs(gateway) == ["a"]
        age_s = gateway.catalog_age_s
        await until(lambda: gateway.catalog_age_s > age_s)
        home.node.log(CATALOG_TOPIC, 0).read_error = None
        await until(lambda: logs(gateway) == ["a", "b"])
        assert gateway.catalog_failure == ""


async def test_one_log_that_can_have_no_stub_does_not_keep_others_from_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with followed(monkeypatch) as (home, gateway):
        # `six` is a topic of the home node, and the name of the second is none of a topic.
        for log in ("six", "not a topic", "z"):
            await put(home, entry(log, "h:1"))
        await until(lambda: "z" in gateway.stubs)
        await until(lambda: set(gateway.without_stub) == {"six", "not a topic"})
        assert "records of its own" in gateway.without_stub["six"]
        assert gateway.stubs == {"z"}


async def test_two_gateways_keep_one_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        followed(monkeypatch) as (home, first),
        gateway_server(f"127.0.0.1:{home.server.port}") as (second, _),
        following_tasks(second),
    ):
        names = {f"log{number}" for number in range(20)}
        for log in sorted(names):
            await put(home, entry(log, "h:1"))
        await until(lambda: first.stubs == names and second.stubs == names)
        assert not first.without_stub
        assert not second.without_stub
