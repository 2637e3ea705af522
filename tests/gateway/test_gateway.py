"""Two gateways before a home cluster and clusters of one log each: real processes, killed."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from bench.node import MeasuredNode
from tests.gateway.processes import Fleet, GatewayProcess, fleet
from tests.waiting import wait_until

TIMEOUT_S = 60.0


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path) as found:
        yield found


def names(gateway: GatewayProcess) -> Any:
    return gateway.request("GET", "/topics")


def groups_of(gateway: GatewayProcess, *logs: str) -> bool:
    """Whether the gateway serves these logs, to groups, too."""
    status = gateway.request("GET", "/healthy")
    return names(gateway) == sorted(logs) and not status["logs_without_groups"]


def served(gateway: GatewayProcess, *logs: str) -> None:
    def condition() -> bool:
        try:
            return groups_of(gateway, *logs)
        except HTTPError as error:
            error.close()
            return False

    gateway.wait_ready()
    wait_until(condition, f"gateway with {logs}")


def produce(gateway: MeasuredNode, log: str, *values: int) -> list[int]:
    body = {"records": [{"value": value} for value in values]}
    answer = gateway.request("POST", f"/topics/{log}", body)
    return [row["offset"] for row in answer["offsets"]]


class Instance:
    """A client of one consumer instance, through any gateway."""

    def __init__(self, name: str, group: str = "g") -> None:
        self.name = name
        self.path = f"/consumers/{group}/instances/{name}"
        self.group = group
        self.found: list[tuple[str, int]] = []

    def create(self, gateway: GatewayProcess, *logs: str) -> Any:
        body = {
            "name": self.name,
            "format": "json",
            "auto.offset.reset": "earliest",
            "auto.commit.enable": "false",
        }
        created = gateway.request("POST", f"/consumers/{self.group}", body)
        gateway.request("POST", f"{self.path}/subscription", {"topics": logs})
        return created

    def read(self, gateway: GatewayProcess, timeout_ms: int = 500) -> None:
        rows = gateway.request("GET", f"{self.path}/records?timeout={timeout_ms}")
        self.found += [(row["topic"], row["value"]) for row in rows]

    def assigned(self, gateway: GatewayProcess) -> list[str]:
        rows = gateway.request("GET", f"{self.path}/assignments")["partitions"]
        return sorted(row["topic"] for row in rows)

    def read_until(self, gateway: GatewayProcess, *expected: tuple[str, int]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.found) < len(expected):
            assert time.monotonic() < deadline, (self.name, self.found)
            self.read(gateway)
        assert sorted(self.found) == sorted(expected)


def test_a_group_reads_logs_of_two_clusters_and_survives_a_killed_gateway(one: Fleet) -> None:
    one.start("orders", "users")
    first, second = one.gateway("a"), one.gateway("b")
    asyncio.run(one.write("orders", one.entry("orders")))
    asyncio.run(one.write("users", one.entry("users")))
    for log, node in one.clusters.items():
        node.create_topic(log, 1)
    for gateway in (first, second):
        served(gateway, "orders", "users")

    assert produce(first, "orders", 1, 2) == [0, 1]
    assert produce(first, "users", 11, 12) == [0, 1]
    assert one.clusters["orders"].request("GET", "/topics/orders/partitions/0/records")[0] == {
        **one.clusters["orders"].request("GET", "/topics/orders/partitions/0/records")[0],
        "topic": "orders",
        "value": 1,
    }

    i, j = Instance("i"), Instance("j")
    created = i.create(first, "orders", "users")
    assert created["base_uri"] == f"http://{first.address}/consumers/g/instances/i"
    j.create(second, "orders", "users")
    wait_until(
        lambda: len(i.assigned(first)) == 1 and len(j.assigned(second)) == 1,
        "log for each instance",
    )
    values = {"orders": (1, 2), "users": (11, 12)}
    for instance, gateway in ((i, first), (j, second)):
        [log] = instance.assigned(gateway)
        instance.read_until(gateway, *((log, value) for value in values[log]))
        gateway.request("POST", f"{instance.path}/offsets")
    assert sorted(i.found + j.found) == [
        ("orders", 1), ("orders", 2), ("users", 11), ("users", 12)
    ]  # fmt: skip

    assert produce(first, "orders", 3) == [2]
    assert produce(first, "users", 13) == [2]
    first.end(signal.SIGKILL)
    # The instance of the killed gateway lives in the home cluster: the other gateway serves on.
    [log] = i.assigned(second)
    i.found.clear()
    i.read_until(second, (log, 3 if log == "orders" else 13))

    # Its client is gone, too: uncommitted, its record is read again by the remaining instance.
    i_log = log
    second.request("DELETE", i.path)
    j.found.clear()
    j.read_until(second, ("orders", 3), ("users", 13))
    assert j.assigned(second) == ["orders", "users"]
    second.request("POST", f"{j.path}/offsets")
    committed = second.request("GET", f"{j.path}/offsets")["offsets"]
    assert {row["topic"]: row["offset"] for row in committed} == {"orders": 3, "users": 3}
    # And in the home cluster, where no record is.
    found = one.home.request("GET", "/v1/groups/g")["offsets"]
    assert {row["topic"]: row["offset"] for row in found} == {"orders": 3, "users": 3}
    assert one.home.request("GET", f"/topics/{i_log}/partitions/0/offsets")["end_offset"] == 0
    assert second.end(signal.SIGTERM) == 0


def test_logs_come_and_go_while_a_gateway_runs(one: Fleet) -> None:
    one.start("orders", "users")
    for log, node in one.clusters.items():
        node.create_topic(log, 1)
    gateway = one.gateway("a")
    asyncio.run(one.write("orders", one.entry("orders")))
    served(gateway, "orders")
    assert gateway.error("GET", "/topics/users")[:2] == (404, 40401)
    i = Instance("i")
    i.create(gateway, "orders", "users")

    asyncio.run(one.write("users", one.entry("users")))
    served(gateway, "orders", "users")
    produce(gateway, "users", 1)
    produce(gateway, "orders", 2)
    i.read_until(gateway, ("users", 1), ("orders", 2))

    # More partitions: the stub follows, and so does the group.
    one.clusters["users"].request("PATCH", "/v3/clusters/-/topics/users", {"partitions_count": 3})
    asyncio.run(one.write("users", one.entry("users", partitions=3)))
    wait_until(
        lambda: i.assigned(gateway) == ["orders", "users", "users", "users"],
        "group with the new partitions",
    )
    gateway.request("POST", "/topics/users/partitions/2", {"records": [{"value": 3}]})
    i.found.clear()
    i.read_until(gateway, ("users", 3))

    # Positions by the offsets and times of the log's own cluster.
    place = {"topic": "users", "partition": 0}
    gateway.request("POST", f"{i.path}/positions/beginning", {"partitions": [place]})
    i.found.clear()
    i.read_until(gateway, ("users", 1))
    when = {**place, "timestamp": "2000-01-01T00:00:00Z"}
    gateway.request("POST", f"{i.path}/positions", {"timestamps": [when]})
    i.found.clear()
    i.read_until(gateway, ("users", 1))
    gateway.request("POST", f"{i.path}/positions/end", {"partitions": [place]})
    produce(gateway, "orders", 4)
    i.found.clear()
    i.read_until(gateway, ("orders", 4))

    asyncio.run(one.write("users", one.entry("users", state="removed")))
    wait_until(lambda: names(gateway) == ["orders"], "gateway without the log")
    assert gateway.error("POST", "/topics/users", {"records": [{"value": 1}]})[:2] == (404, 40401)
    asyncio.run(one.write("orders", None))
    wait_until(lambda: names(gateway) == [], "gateway without logs")
    i.found.clear()
    i.read(gateway)
    assert i.found == [], "none of its logs is served"


def test_what_cannot_be_reached_is_named_and_the_rest_goes_on(one: Fleet) -> None:
    one.start("orders", "users")
    for log, node in one.clusters.items():
        node.create_topic(log, 1)
    # A topic of the home cluster has the name of a log: groups must not mix the two.
    one.home.create_topic("taken", 1)
    gateway = one.gateway("a")
    for log in ("orders", "users"):
        asyncio.run(one.write(log, one.entry(log)))
    asyncio.run(one.write("taken", one.entry("orders", log="taken", cluster="other")))

    def is_served() -> bool:
        status = gateway.request("GET", "/healthy")
        return status["logs"] == 3 and list(status["logs_without_groups"]) == ["taken"]

    gateway.wait_ready()
    wait_until(is_served, "three logs, one without groups")
    i = Instance("i")
    i.create(gateway, "orders", "users")
    produce(gateway, "orders", 1)
    produce(gateway, "users", 2)
    i.read_until(gateway, ("orders", 1), ("users", 2))
    refused = Instance("r", "other")
    refused.create(gateway, "taken")
    status, code, message = gateway.error("GET", f"{refused.path}/records?timeout=2000")
    assert (status, code) == (503, 50304)
    assert "records of its own" in message

    one.clusters["users"].kill()
    status, code, message = gateway.error("POST", "/topics/users", {"records": [{"value": 3}]})
    assert (status, code) == (503, 50301)
    assert "users" in message
    assert gateway.error("GET", "/topics/users/partitions/0/records")[:2] == (503, 50301)
    produce(gateway, "orders", 4)
    i.found.clear()
    i.read_until(gateway, ("orders", 4))
    assert gateway.error("GET", f"{i.path}/records?timeout=300")[:2] == (503, 50301)

    one.home.kill()
    assert produce(gateway, "orders", 5) == [2]
    rows = gateway.request("GET", "/topics/orders/partitions/0/records?offset=2")
    assert [row["value"] for row in rows] == [5]
    assert gateway.error("GET", f"{i.path}/records")[:2] == (503, 50304)
    assert gateway.error("POST", "/consumers/new", {})[:2] == (503, 50304)
    assert gateway.request("GET", "/ready")["status"] == "ready"
    wait_until(
        lambda: "home" in gateway.request("GET", "/healthy")["catalog_failure"].lower(),
        "failure in the status",
    )

    one.home.relaunch()
    one.home.wait_ready()
    one.clusters["users"].relaunch()
    one.clusters["users"].wait_ready()
    wait_until(
        lambda: gateway.request("GET", "/healthy")["catalog_failure"] == "",
        "catalog that is read again",
    )
    produce(gateway, "users", 6)
    # Nothing was committed: the position of the instance begins again.
    i.found.clear()
    i.read_until(
        gateway,
        ("orders", 1), ("orders", 4), ("orders", 5), ("users", 2), ("users", 6),
    )  # fmt: skip
