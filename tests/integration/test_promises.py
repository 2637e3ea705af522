"""The promises of docs/promises.md, kept by real processes.

Power cuts are in tests/simulation/test_node.py.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from raftlog_client import Consumer, Producer, TopicPartition
from raftlog_client.errors import RaftlogClientError

from bench.node import LoneNode

KILLS = 4


def refusal(error: pytest.ExceptionInfo[urllib.error.HTTPError]) -> tuple[int, str]:
    with error.value as answer:
        body = json.loads(answer.read())
    return body["error_code"], body["message"]


async def read_values(node: LoneNode, topic: str, partition: int, count: int) -> list[bytes]:
    values: list[bytes] = []
    async with Consumer(bootstrap_servers=node.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        async with asyncio.timeout(30):
            while len(values) < count:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    for record in records:
                        assert record.offset == len(values)
                        assert isinstance(record.value, bytes)
                        values.append(record.value)
    return values


async def write_until_killed(node: LoneNode, topic: str, kill_after: int) -> list[bytes]:
    """Send records, several at a time; kill the node halfway; return the acknowledged ones."""
    acknowledged: list[tuple[int, bytes]] = []
    async with Producer(
        bootstrap_servers=node.address, delivery_timeout_ms=1500, request_timeout_ms=1000
    ) as producer:

        async def send(number: int) -> None:
            value = b"%s-%d" % (topic.encode(), number)
            metadata = await producer.send_and_wait(topic, value, partition=0)
            acknowledged.append((metadata.offset, value))

        async with asyncio.timeout(30):
            number = 0
            pending: set[asyncio.Task[None]] = set()
            while len(acknowledged) < kill_after:
                pending.add(asyncio.create_task(send(number)))
                number += 1
                if len(pending) >= 20:
                    _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            node.kill()
            for outcome in await asyncio.gather(*pending, return_exceptions=True):
                assert outcome is None or isinstance(outcome, RaftlogClientError)
    acknowledged.sort()
    assert [offset for offset, _ in acknowledged] == list(range(len(acknowledged)))
    return [value for _, value in acknowledged]


def test_promise_1_what_was_acknowledged_survives_kill_minus_nine(tmp_path: Path) -> None:
    node = LoneNode(tmp_path / "data", flush="sync")
    node.start()
    for life in range(KILLS):
        topic = f"life{life}"
        node.create_topic(topic, 1)
        acknowledged = asyncio.run(write_until_killed(node, topic, 200))
        node.start()
        stored = asyncio.run(read_values(node, topic, 0, len(acknowledged)))
        assert stored[: len(acknowledged)] == acknowledged
    node.stop()


def test_promise_2_with_async_flush_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    node = LoneNode(tmp_path / "data", flush="async")
    node.start()
    node.create_topic("t", 1)
    acknowledged = asyncio.run(write_until_killed(node, "t", 500))
    node.start()
    stored = asyncio.run(read_values(node, "t", 0, len(acknowledged)))
    assert stored[: len(acknowledged)] == acknowledged
    node.stop()


def test_promise_4_a_retry_with_the_same_sequence_never_duplicates(node: LoneNode) -> None:
    node.create_topic("t", 1)
    identity = node.request("POST", "/v1/producer-ids", None)
    path = (
        f"/topics/t/partitions/0?producer_id={identity['producer_id']}"
        f"&producer_epoch={identity['producer_epoch']}&sequence="
    )
    first = {"records": [{"value": 1}, {"value": 2}]}
    once = node.request("POST", path + "0", first)
    again = node.request("POST", path + "0", first)
    node.kill()
    node.start()
    after_restart = node.request("POST", path + "0", first)
    assert once["offsets"] == again["offsets"] == after_restart["offsets"]
    then = node.request("POST", path + "2", {"records": [{"value": 3}]})
    assert [entry["offset"] for entry in then["offsets"]] == [2]
    records = node.request("GET", "/topics/t/partitions/0/records?offset=earliest", None)
    assert [record["value"] for record in records] == [1, 2, 3]


def test_promise_5_damaged_data_is_never_served(node: LoneNode) -> None:
    node.create_topic("t", 1)
    for number in range(3):
        records: dict[str, Any] = {"records": [{"value": {"number": number, "text": "x" * 100}}]}
        node.request("POST", "/topics/t/partitions/0", records)
    node.stop()
    (segment,) = node.data_dir.glob("replicas/*/0/*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    node.start()
    intact = node.request("GET", "/topics/t/partitions/0/records?offset=0&max_records=1", None)
    assert intact[0]["value"]["number"] == 0
    with pytest.raises(urllib.error.HTTPError) as caught:
        node.request("GET", "/topics/t/partitions/0/records?offset=1", None)
    code, message = refusal(caught)
    assert code // 100 == 503, message


def test_promise_6_below_min_insync_replicas_writes_are_refused(node: LoneNode) -> None:
    body = {
        "topic_name": "t",
        "partitions_count": 1,
        "configs": [{"name": "min.insync.replicas", "value": "2"}],
    }
    node.request("POST", "/v3/clusters/-/topics", body)
    with pytest.raises(urllib.error.HTTPError) as caught:
        node.request("POST", "/topics/t", {"records": [{"value": 1}]})
    code, message = refusal(caught)
    assert code == 50302
    assert "in-sync" in message
    assert node.request("GET", "/topics/t/partitions/0/offsets", None)["end_offset"] == 0


def test_a_clean_stop_is_quick_and_keeps_everything(node: LoneNode) -> None:
    node.create_topic("t", 1)
    node.request("POST", "/topics/t", {"records": [{"value": number} for number in range(100)]})
    node.stop()
    node.start()
    records = node.request("GET", "/topics/t/partitions/0/records?offset=0", None)
    assert [record["value"] for record in records] == list(range(100))


def test_two_nodes_never_share_a_data_directory(node: LoneNode) -> None:
    second = LoneNode(node.data_dir, flush="sync")
    with pytest.raises(RuntimeError, match="the node ended"):
        second.start()
    assert node.request("GET", "/ready", None)["status"] == "ready"
