"""Replicated states of real processes on real nodes: killed, paused, handed over, restarted."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from bench.cluster import Cluster
from bench.state.processes import REPLICAS, Store, running_store
from tests.soak.state_clients import TOKEN_HEADER, LostError, Service
from tests.waiting import SLOW_POLL_S, until

LEASE_S = 1.5


class Kv(Store):
    """A store with the clients' calls, which repeat a put until it is acknowledged."""

    def __init__(
        self, cluster: Cluster, name: str, directory: Path, layout: str = "shared"
    ) -> None:
        super().__init__(cluster.servers, name, directory, layout=layout)
        self.service = Service(list(self.addresses.values()), random.Random(1))

    async def put(self, key: str, value: str) -> None:
        """A put that is repeated until it is acknowledged, and happens once."""
        answer = await self.service.write("PUT", f"/kv/{key}", value.encode(), f"{key}-{value}")
        assert answer.status == 200, answer

    async def get(self, name: str, key: str, consistency: str = "linearizable") -> str | None:
        """A key's value at one replica, once it answers."""

        async def found() -> list[str | None]:
            with suppress(LostError):
                path = f"/kv/{key}?consistency={consistency}"
                answer = await self.service.call("GET", self.addresses[name], path)
                if answer.status in {200, 404}:
                    return [answer.body.decode() if answer.status == 200 else None]
            return []

        return (await until(found, poll_s=SLOW_POLL_S))[0]


@asynccontextmanager
async def running_kv(
    cluster: Cluster, name: str, directory: Path, layout: str = "shared"
) -> AsyncIterator[Kv]:
    kv = Kv(cluster, name, directory, layout)
    async with running_store(kv):
        try:
            yield kv
        finally:
            await kv.service.close()


@pytest.mark.parametrize(
    "layout", ["shared", pytest.param("per-replica", marks=pytest.mark.full)]
)  # the simulator runs both layouts
async def test_a_killed_primary_is_replaced_and_nothing_is_lost(
    cluster: Cluster, tmp_path: Path, layout: str
) -> None:
    async with running_kv(cluster, f"killed-{layout}", tmp_path, layout) as kv:
        for number in range(20):
            await kv.put(f"key{number}", "1")
        for turn in range(3):
            victim = await kv.primary()
            kv.signal(signal.SIGKILL, victim)
            await kv.put(f"turn{turn}", "1")
            others = [name for name in REPLICAS if name != victim]
            assert await kv.primary(*others) != victim
            kv.start(victim)
            await kv.caught_up()
        for name in REPLICAS:
            keys = [f"key{number}" for number in range(20)] + [f"turn{turn}" for turn in range(3)]
            assert [await kv.get(name, key) for key in keys] == ["1"] * len(keys)


async def test_a_primary_paused_past_its_lease_writes_and_answers_nothing_stale(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with running_kv(cluster, "paused", tmp_path) as kv:
        await kv.put("x", "old")
        paused = await kv.primary()
        address = kv.addresses[paused]
        assert await kv.get(paused, "x", "lease") == "old"
        kv.signal(signal.SIGSTOP, paused)
        # Both are in its socket when it wakes up, before anything that ends its lease.
        late_read = asyncio.create_task(kv.service.call("GET", address, "/kv/x?consistency=lease"))
        late_write = asyncio.create_task(kv.service.call("PUT", address, "/kv/x", b"zombie"))
        kv.service.primary = kv.addresses[next(name for name in REPLICAS if name != paused)]
        # The calls time out here, and stay in the socket.
        assert isinstance((await asyncio.gather(late_read, return_exceptions=True))[0], LostError)
        assert isinstance((await asyncio.gather(late_write, return_exceptions=True))[0], LostError)
        await kv.put("x", "new")
        kv.signal(signal.SIGCONT, paused)
        with suppress(LostError):
            answer = await kv.service.call("GET", address, "/kv/x?consistency=lease")
            assert answer.status in {307, 503} or answer.body == b"new"
        await kv.caught_up()
        for name in REPLICAS:
            assert await kv.get(name, "x") == "new"


@pytest.mark.full  # the simulator has this fault too
async def test_all_replicas_and_all_nodes_are_killed_and_each_put_is_there_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with running_kv(cluster, "all", tmp_path) as kv:
        for number in range(30):
            await kv.put(f"key{number}", "1")
        before = (await kv.status(await kv.primary()) or {})["position"]
        kv.signal(signal.SIGKILL, *REPLICAS)
        nodes = list(cluster.nodes)
        await asyncio.to_thread(cluster.kill, *nodes)
        await asyncio.to_thread(cluster.restart, *nodes)
        await asyncio.to_thread(cluster.wait_active)
        kv.start(*REPLICAS)
        await kv.caught_up()
        await kv.primary()
        for number in range(30):
            assert await kv.get("c", f"key{number}") == "1"
        # A repeated request is answered by its result, and changes nothing.
        await kv.put("key0", "1")
        await kv.caught_up()
        after = (await kv.status("a") or {})["position"]
        # One fence for the new primary, one entry for the repeated request.
        assert isinstance(before, int)
        assert after == before + 2


async def test_a_hand_over_moves_the_primary_at_once(cluster: Cluster, tmp_path: Path) -> None:
    async with running_kv(cluster, "moved", tmp_path) as kv:
        await kv.put("x", "1")
        primary = await kv.primary()
        heir = next(name for name in REPLICAS if name != primary)
        begun = time.monotonic()
        answer = await kv.service.call("POST", kv.addresses[primary], f"/hand-over/{heir}")
        assert answer.status == 204
        assert await kv.primary(heir) == heir
        assert time.monotonic() - begun < LEASE_S
        await kv.put("x", "2")
        refused = await kv.service.call("POST", kv.addresses[heir], "/hand-over/unknown")
        assert refused.status == 503
        assert await kv.primary() == heir
        members = json.loads((await kv.service.call("GET", kv.addresses[primary], "/members")).body)
        assert {one["replica_id"]: one["endpoint"] for one in members} == kv.addresses
        assert [one["replica_id"] for one in members if one["is_primary"]] == [heir]


@pytest.mark.full  # the simulator has this fault too
async def test_a_stopped_replica_holds_up_nobody_and_tokens_go_with_the_client(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with running_kv(cluster, "slow", tmp_path) as kv:
        primary = await kv.primary()
        stopped, other = (name for name in REPLICAS if name != primary)
        kv.signal(signal.SIGSTOP, stopped)
        kv.service.primary = kv.addresses[primary]
        answer = await kv.service.write("PUT", "/kv/x", b"1", None)
        token = answer.token
        assert token is not None
        path, headers = "/kv/x?consistency=session", {TOKEN_HEADER: token}
        seen = await kv.service.call("GET", kv.addresses[other], path, headers=headers)
        assert seen.body == b"1"
        kv.signal(signal.SIGCONT, stopped)

        async def read() -> bool:
            with suppress(LostError):
                found = await kv.service.call("GET", kv.addresses[stopped], path, headers=headers)
                assert found.status != 200 or found.body == b"1"
                return found.status == 200
            return False

        await until(read)
