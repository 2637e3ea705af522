"""The programs of docs/recipes.md and of pages beside it, run against a real node."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from raftlog_client import Admin, Consumer, Producer, TopicPartition

from bench.node import LoneNode
from raftlog.cluster.process import free_ports
from tests.language import ROOT

BLOCK: Final = re.compile(r"^```(?:python|bash) (\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneNode]:
    node = LoneNode(tmp_path_factory.mktemp("node") / "data", flush="async")
    node.start()
    for topic in ("orders", "clicks", "amounts", "rides", "trips", "copies"):
        node.create_topic(topic, 2)
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture(autouse=True)
def _forget_modules() -> Iterator[None]:
    yield
    sys.modules.pop("sync_producer", None)


def source_of(name: str, address: str, page: str = "docs/recipes.md") -> str:
    """One block of the page, with the node's address."""
    blocks = dict(BLOCK.findall((ROOT / page).read_text(encoding="utf-8")))
    source: str = blocks[name]
    return source.replace("localhost:8082", address)


def recipe(name: str, address: str) -> Any:
    """The module of one block of the page."""
    module = ModuleType(name)
    source = source_of(name, address)
    exec(compile(source, f"docs/recipes.md, {name}", "exec"), module.__dict__)
    return module


async def records_of(address: str, topic: str, count: int) -> list[Any]:
    async with Consumer(topic, bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        return [await consumer.getone() for _ in range(count)]


async def committed_values(address: str, topic: str) -> list[bytes | None]:
    """All values up to the end as of now, sorted: a duplicate shows."""
    found: list[bytes | None] = []
    async with Consumer(topic, bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        ends = await consumer.end_offsets([TopicPartition(topic, number) for number in range(2)])
        while [one for one, end in ends.items() if await consumer.position(one) < end]:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += [record.value for record in records]
    return sorted(found, key=lambda value: value or b"")


def test_every_recipe_is_run() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    names = [name for name, _ in BLOCK.findall(text)]
    assert text.count("```python") + text.count("```bash") == len(names)
    own = Path(__file__).read_text(encoding="utf-8")
    calls = ('recipe("{}"', 'source_of("{}"')
    assert [name for name in names if not any(call.format(name) in own for call in calls)] == []


def test_fastapi(node: LoneNode) -> None:
    from fastapi.testclient import TestClient

    app = recipe("fastapi", node.address).app
    with TestClient(app) as client:
        first = client.post("/orders/ada", json={"total": 3})
        second = client.post("/orders/ada", json={"total": 4})
    assert first.status_code == second.status_code == 201
    assert second.json()["partition"] == first.json()["partition"]
    assert second.json()["offset"] == first.json()["offset"] + 1


async def test_sync_producer_and_flask(node: LoneNode) -> None:
    sync = sys.modules["sync_producer"] = recipe("sync", node.address)
    with sync.SyncProducer(bootstrap_servers=node.address) as producer:
        assert producer.send_many("clicks", [b"%d" % number for number in range(100)]).count == 100
    with pytest.raises(Exception, match="No raftlog node answers"):
        sync.SyncProducer(bootstrap_servers="127.0.0.1:1", request_timeout_ms=100)
    module = recipe("flask", node.address)
    answer = module.app.test_client().post("/clicks", data=b"here")
    module.producer().close()
    assert answer.status_code == 201
    values = [record.value for record in await records_of(node.address, "clicks", 101)]
    assert sorted(values) == sorted([*(b"%d" % number for number in range(100)), b"here"])


async def test_outbox(node: LoneNode) -> None:
    outbox = recipe("outbox", node.address)
    db = sqlite3.connect(":memory:")
    db.executescript(outbox.SCHEMA)
    outbox.place_order(db, "a", 1)
    with pytest.raises(sqlite3.IntegrityError):
        outbox.place_order(db, "a", 2)
    outbox.place_order(db, "b", 3)
    before = await end_of(node.address, "orders")
    async with Producer(bootstrap_servers=node.address) as producer:
        await outbox.relay(db, producer, once=True)
        await outbox.relay(db, producer, once=True)
    found = await records_of(node.address, "orders", before + 2)
    events = [one for one in found if one.headers]
    assert {one.value for one in events} == {
        b'{"order":"a","total":1}',
        b'{"order":"b","total":3}',
    }
    assert len(events) == 2
    assert db.execute("SELECT count(*) FROM outbox").fetchone() == (0,)


async def end_of(address: str, topic: str) -> int:
    async with Admin(bootstrap_servers=address) as admin:
        count = len((await admin.describe_topic(topic)).partitions)
    async with Consumer(bootstrap_servers=address) as consumer:
        ends = await consumer.end_offsets([TopicPartition(topic, n) for n in range(count)])
    return sum(ends.values())


async def test_exactly_once_into_a_database(node: LoneNode) -> None:
    module = recipe("exactly_once", node.address)
    db = sqlite3.connect(":memory:")
    db.executescript(module.SCHEMA)
    sources = [TopicPartition("amounts", 0), TopicPartition("amounts", 1)]
    async with Producer(bootstrap_servers=node.address) as producer:
        await producer.send_many("amounts", [(b"ada", b"5"), (b"bob", b"7"), (b"ada", b"-2")])
        for _ in range(2):  # the second time as after a crash: nothing is counted twice
            consumer = Consumer(bootstrap_servers=node.address, auto_offset_reset="earliest")
            async with consumer:
                await module.run(db, consumer, sources, until_idle=True)
        await producer.send_and_wait("amounts", b"1", key=b"ada")
    async with Consumer(bootstrap_servers=node.address, auto_offset_reset="earliest") as consumer:
        await module.run(db, consumer, sources, until_idle=True)
    assert dict(db.execute("SELECT account, balance FROM balances")) == {"ada": 4, "bob": 7}


async def test_an_exactly_once_copy_resumes_and_copies_each_record_once(node: LoneNode) -> None:
    source = source_of("copy_trips", node.address, "docs/delivery-modes.md")
    values = [b"%d" % number for number in range(400)]
    async with Producer(bootstrap_servers=node.address) as producer:
        for part in (values[:300], values[300:]):
            await producer.send_many("trips", part)
            command = (sys.executable, "-c", source)
            done = await asyncio.to_thread(subprocess.run, command, timeout=60, check=False)
            assert done.returncode == 0
            assert await committed_values(node.address, "copies") == sorted(
                values[: values.index(part[-1]) + 1]
            )


def test_the_votes_of_a_replicated_state_count_once(node: LoneNode) -> None:
    source = source_of("votes", node.address, "docs/replicated-state.md")
    for _ in range(2):  # the second time as after a crash: the ballot has its id
        done = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout == "ada has 1\n{'ada': 1}\n"


def test_the_example_store_survives_a_kill(node: LoneNode) -> None:
    source = source_of("store", node.address, "docs/replicated-state.md")
    for number, port in enumerate(free_ports("127.0.0.1", 3), 1):
        source = source.replace(f"localhost:900{number}", f"localhost:{port}")
        source = f"port{number}={port}\n{source}"
    source = source.replace("127.0.0.1:900$id", "127.0.0.1:$(eval echo \\$port$id)")
    source = source.replace("python -m", f"{sys.executable} -m")
    done = subprocess.run(
        ["bash", "-c", source], capture_output=True, text=True, timeout=120, check=True
    )
    put, got, members, again, read = done.stdout.splitlines()
    assert json.loads(put) == {"done": True, "before": None}
    assert got == "soup"
    # A replica that started last may not be a member yet.
    assert {one["replica_id"] for one in json.loads(members)} <= {"1", "2", "3"}
    assert any(one["is_primary"] for one in json.loads(members))
    assert json.loads(again) == {"done": True, "before": "soup"}
    assert read == "salad"


def test_consumer_in_curl(node: LoneNode) -> None:
    body = {"records": [{"value": {"km": 12}}, {"value": {"km": 7}}]}
    node.request("POST", "/topics/rides/partitions/0", body)
    done = subprocess.run(
        ["bash", "-c", source_of("curl_consumer", node.address)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    created, records, _committed = map(json.loads, done.stdout.splitlines())
    assert created["instance_id"] == "worker-1"
    assert [record["value"] for record in records] == [{"km": 12}, {"km": 7}]
    group = node.request("GET", "/v1/groups/billing")
    assert group["members"] == []
    offsets = {row["partition"]: row["offset"] for row in group["offsets"]}
    assert offsets[0] == 2
