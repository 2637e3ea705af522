"""Reads of consumer instances with records fetched by another process, over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.http.http_peers import Reply
from tests.rest.v2.test_consumers import Client, instance
from tests.waiting import until

FORMATS = ["json", "binary"]


async def call(client: Client, name: str, **body: Any) -> Reply:
    path = f"/v1/groups/{client.group}/instances/{client.name}/{name}"
    return await client.peer.request("POST", path, json.dumps(body).encode())


async def begin(client: Client, **body: Any) -> dict[str, Any]:
    reply = await call(client, "begin-read", formats=FORMATS, **body)
    assert reply.status == 200, reply.body
    answer: dict[str, Any] = reply.json
    return answer


async def end(client: Client, *moves: dict[str, Any], **body: Any) -> list[Any]:
    reply = await call(client, "end-read", moves=moves, **body)
    assert reply.status == 200, reply.body
    lost: list[Any] = reply.json["lost"]
    return lost


def move(one: dict[str, Any], following: int, **more: int) -> dict[str, Any]:
    return {
        "topic_id": one["topic_id"],
        "partition": one["partition"],
        "planned": one["offset"],
        "next": following,
        **more,
    }


async def test_positions_move_from_where_they_were_planned_and_are_committed() -> None:
    async with instance(**{"auto.commit.interval.ms": 1}) as client:
        await client.subscribe("one")
        plan = await begin(client, max_wait_ms=10_000)
        topic_id = client.one.node.metadata.image.topic("one").topic_id
        part = {"topic": "one", "topic_id": topic_id, "partition": 0, "offset": -1}
        assert plan == {
            "format": "json",
            "auto_offset_reset": "earliest",
            "fetch_min_bytes": 1,
            "request_timeout_ms": 1_000,
            "partitions": [part],
        }
        # Offsets beyond the log's end: this node holds none of the records.
        assert await end(client, move(part, 107, reset_to=100)) == []
        moved = {**part, "offset": 107}

        async def read_commits() -> bool:
            # A read commits the positions once the interval has passed.
            await begin(client)
            return bool(await client.offsets(0, topic="one") == [107])

        assert (await begin(client))["partitions"] == [moved]
        await until(read_commits, "a read commits the offset")
        lost = [{"topic_id": topic_id, "partition": 0}]
        assert await end(client, move(part, 108)) == lost
        assert (await begin(client))["partitions"] == [moved]


async def test_partitions_that_had_their_turn_are_the_last_of_the_next_read() -> None:
    async with instance() as client:
        await client.subscribe("six")
        parts = (await begin(client, max_wait_ms=10_000))["partitions"]
        assert len(parts) == 6
        had_turns = [{name: one[name] for name in ("topic_id", "partition")} for one in parts[:2]]
        assert await end(client, last=had_turns) == []
        order = [one["partition"] for one in (await begin(client))["partitions"]]
        assert order[-2:] == [one["partition"] for one in parts[:2]]


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("begin-read", {"formats": ["text"]}, 40601),
        ("begin-read", {"formats": ["json"], "max_wait_ms": 10_001}, 42201),
        ("begin-read", {}, 42201),
        ("end-read", {"moves": [{"topic_id": "x", "partition": 0, "planned": 0}]}, 42201),
        ("end-read", {"lasts": []}, 42201),
    ],
)
async def test_bad_requests_are_refused(name: str, body: dict[str, Any], code: int) -> None:
    async with instance() as client:
        assert (await call(client, name, **body)).error_code == code


@pytest.mark.parametrize("name", ["begin-read", "end-read"])
async def test_an_unknown_instance_is_refused(name: str) -> None:
    async with instance() as client:
        other = Client(client.one, name="other")
        body = {"formats": FORMATS} if name == "begin-read" else {}
        assert (await call(other, name, **body)).error_code == 40403
