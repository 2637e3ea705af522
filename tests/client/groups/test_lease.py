"""Leases of the primary of a group: grants, ends, returns after every failure."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from raftlog_client import Admin, ConnectionLostError, GroupLease, ServerError
from raftlog_client.groups import lease as leases

from bench.node import LoneNode
from raftlog.api.groups import LEAVE_EPOCH, HeartbeatRequest, MemberReport
from raftlog.record.errors import (
    FENCED_INSTANCE_ID,
    FENCED_MEMBER_EPOCH,
    ILLEGAL_STATE,
    INVALID_BODY,
    NOT_COORDINATOR,
    OVERLOADED,
    UNKNOWN_MEMBER,
)
from tests.client.fake_groups import FakeGroup
from tests.client.fake_node import FakeCluster, Fault
from tests.waiting import SLOW_POLL_S, until

HEARTBEAT = "/v1/groups/{group}/heartbeat"
GROUP = "state.x"
SESSION_MS = 1_000
DISCONNECT_MS = SESSION_MS // 5
TIMEOUT_S = 20.0

_names = count(1)


class Clock:
    """The monotonic clock, with a part that tests add: the process was paused for so long."""

    def __init__(self) -> None:
        self.paused_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.paused_s


class Listener:
    """Keeps the calls; each runs `at_call` first."""

    def __init__(self) -> None:
        self.applied = 0
        self.events: list[str] = []
        self.errors: list[Exception | None] = []
        self.at_call: Callable[[str], None] = lambda _event: None

    def position(self) -> int:
        return self.applied

    def primaries(self) -> int:
        return 2

    def lease_granted(self) -> None:
        self.at_call("granted")
        self.events.append("granted")

    def lease_lost(self, error: Exception | None) -> None:
        self.at_call("lost")
        self.events.append("lost")
        self.errors.append(error)


class Member:
    """A lease with its listener and its clock."""

    def __init__(self, servers: str, name: str, topic: str = "t", group: str = GROUP) -> None:
        self.listener = Listener()
        self.clock = Clock()
        self.lease = GroupLease(
            group,
            topic,
            name,
            listener=self.listener,
            endpoint=f"{name}:1",
            bootstrap_servers=servers,
            session_timeout_ms=SESSION_MS,
            clock=self.clock,
        )

    @property
    def events(self) -> list[str]:
        return self.listener.events


@asynccontextmanager
async def members(servers: str, *names: str, **where: str) -> AsyncIterator[list[Member]]:
    """Members, started one after the other: the first one has the lease."""
    found = [Member(servers, name, **where) for name in names]
    try:
        for number, member in enumerate(found):
            await member.lease.start()
            if not number:
                await until(lambda first=member: first.lease.is_primary)
        yield found
    finally:
        for member in reversed(found):
            await member.lease.close()


def group(cluster: FakeCluster) -> FakeGroup:
    return cluster.coordinator.group(GROUP)


def joined(cluster: FakeCluster) -> set[str | None]:
    return {one.instance_id for one in group(cluster).members.values()}


def heartbeats(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> list[HeartbeatRequest]:
    """The heartbeats that reach the group from now on."""
    seen: list[HeartbeatRequest] = []
    heartbeat = FakeGroup.heartbeat

    def noted(self: FakeGroup, request: HeartbeatRequest, now: float) -> Any:
        seen.append(request)
        return heartbeat(self, request, now)

    monkeypatch.setattr(FakeGroup, "heartbeat", noted)
    return seen


async def test_one_member_has_the_lease_and_all_report(single: FakeCluster) -> None:
    async with members(single.bootstrap, "a", "b") as (first, second):
        await until(lambda: joined(single) == {"a", "b"})
        first.listener.applied = 41
        await until(
            lambda: (
                {one.report for one in group(single).members.values()}
                == {
                    MemberReport(41, 2, "a:1", DISCONNECT_MS),
                    MemberReport(0, 2, "b:1", DISCONNECT_MS),
                }
            )
        )
        assert first.lease.is_exclusive
        assert (first.events, second.events) == (["granted"], [])
        assert not second.lease.is_primary
        assert not second.lease.is_exclusive
    assert first.events == ["granted", "lost"]
    assert not joined(single)


async def test_a_member_joins_as_the_rules_of_the_lease_need(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = heartbeats(single, monkeypatch)
    async with members(single.bootstrap, "a"):
        join = seen[0]
        assert (join.assignor, join.instance_id, join.topics) == ("primary", "a", ["t"])
        assert join.session_timeout_ms == SESSION_MS
        assert join.rebalance_timeout_ms is not None
        assert join.rebalance_timeout_ms > SESSION_MS, "rule 4: silent for a session by then"
        await until(lambda: len(seen) > 3)
        assert all(one.report is not None for one in seen)
        assert {one.max_wait_ms for one in seen} == {0, SESSION_MS // 15}


async def test_a_member_that_closes_loses_the_lease_before_it_leaves_for_good(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = heartbeats(single, monkeypatch)
    async with members(single.bootstrap, "a", "b") as (first, second):
        await until(lambda: joined(single) == {"a", "b"})
        begun = time.monotonic()
        await first.lease.close()
        await first.lease.close()
        await until(lambda: second.lease.is_primary)
        assert time.monotonic() - begun < SESSION_MS / 1000
        assert (first.events, first.listener.errors) == (["granted", "lost"], [None])
        assert [one.member_epoch for one in seen].count(LEAVE_EPOCH) == 1
        await first.lease.start()
        await until(lambda: joined(single) == {"a", "b"})
        await second.lease.close()
        await until(lambda: first.lease.is_primary)


@pytest.mark.parametrize("is_closing", [True, False])
async def test_the_coordinator_learns_of_a_loss_after_the_listener(
    single: FakeCluster, is_closing: bool
) -> None:
    held: list[bool] = []

    def at_call(event: str) -> None:
        if event == "lost":
            (holder,) = (one for one in group(single).members.values() if one.instance_id == "a")
            held.append(bool(holder.assigned or holder.pending))

    async with members(single.bootstrap, "a", "b") as (first, second):
        first.listener.at_call = at_call
        await until(lambda: joined(single) == {"a", "b"})
        if is_closing:
            await first.lease.close()
        else:
            await first.lease.hand_over("b")
        await until(lambda: second.lease.is_primary)
    assert held == [True]


# The clock


async def test_a_paused_process_sees_at_once_that_its_lease_is_over(single: FakeCluster) -> None:
    async with members(single.bootstrap, "a") as (member,):
        await until(lambda: member.lease.is_exclusive)
        member.clock.paused_s += 0.8 * DISCONNECT_MS / 1000
        assert not member.lease.is_exclusive, "another one may have been chosen"
        assert member.lease.is_primary
        await until(lambda: member.lease.is_exclusive)
        member.clock.paused_s += SESSION_MS / 1000
        assert not member.lease.is_primary
        assert not member.lease.is_exclusive
        await until(lambda: member.lease.is_exclusive)


async def test_the_lease_ends_while_a_request_hangs_and_comes_back(single: FakeCluster) -> None:
    async with members(single.bootstrap, "a") as (member,):
        over = single.nodes[0].stopped = asyncio.Event()
        stopped_at = time.monotonic()
        await until(lambda: member.events == ["granted", "lost"])
        silence_s = time.monotonic() - stopped_at
        assert SESSION_MS / 1000 - 0.2 <= silence_s <= SESSION_MS / 1000 + 0.5
        (error,) = member.listener.errors
        assert isinstance(error, ConnectionLostError)
        single.nodes[0].stopped = None
        over.set()
        await until(lambda: member.events == ["granted", "lost", "granted"])


async def test_a_silent_node_does_not_cost_the_lease(cluster: FakeCluster) -> None:
    async with members(cluster.bootstrap, "a", topic="t") as (member,):
        for node in cluster.nodes:
            over = node.stopped = asyncio.Event()
            ended = time.monotonic() + 2 * SESSION_MS / 1000
            while time.monotonic() < ended:
                assert member.lease.is_primary
                await asyncio.sleep(0.01)
            node.stopped = None
            over.set()
        assert member.events == ["granted"]


async def test_an_answer_after_the_time_that_it_grants_grants_nothing(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "JOIN_S", 10.0)
    single.fail(HEARTBEAT, Fault(delay_s=SESSION_MS / 1000 + 0.1))
    member = Member(single.bootstrap, "a")
    valid: list[bool] = []
    member.listener.at_call = lambda _event: valid.append(member.lease.is_primary)
    await member.lease.start()
    await until(lambda: bool(member.events))
    assert valid == [True]
    await member.lease.close()


def test_the_system_s_clock_counts_suspended_time(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = {time.CLOCK_BOOTTIME: 7_000.0, time.CLOCK_MONOTONIC: 100.0}
    with monkeypatch.context() as patched:
        patched.setattr(time, "clock_gettime", lambda clock_id: readings[clock_id])
        assert leases.elapsed_s() == 7_000.0
        patched.delattr(time, "CLOCK_BOOTTIME")
        patched.setattr(time, "monotonic", lambda: 100.0)
        assert leases.elapsed_s() == 100.0


# Faults


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(drop_before=True)] * 2,
        [Fault(drop_after=True)] * 2,
        [Fault(), Fault(drop_after=True), Fault(error=OVERLOADED)],
        [Fault(error=NOT_COORDINATOR)] * 3,
        [Fault(answer=b"nonsense")],
        [Fault(delay_s=0.4)],
        [Fault(error=FENCED_MEMBER_EPOCH)],
        [Fault(error=INVALID_BODY)],
    ],
    ids=str,
)
async def test_a_heartbeat_that_fails_is_sent_again_and_costs_no_lease(
    single: FakeCluster, faults: list[Fault]
) -> None:
    async with members(single.bootstrap, "a") as (member,):
        # In the middle of a session's life: idle heartbeats.
        await single.wait_for_requests(HEARTBEAT, single.requests[HEARTBEAT] + 3)
        single.fail(HEARTBEAT, *faults)
        await until(lambda: not single.faults[HEARTBEAT])
        await single.wait_for_requests(HEARTBEAT, single.requests[HEARTBEAT] + 3)
        assert member.lease.is_primary
        assert member.events == ["granted"]


@pytest.mark.parametrize("entry", [UNKNOWN_MEMBER, FENCED_INSTANCE_ID], ids=str)
async def test_a_lost_membership_is_a_lost_lease_and_the_member_joins_again(
    single: FakeCluster, entry: Any
) -> None:
    async with members(single.bootstrap, "a") as (member,):
        single.fail(HEARTBEAT, Fault(error=entry))
        await until(lambda: member.events == ["granted", "lost", "granted"])
        (error,) = member.listener.errors
        assert isinstance(error, ServerError)
        assert error.entry is entry


async def test_the_session_of_an_earlier_process_is_waited_out(single: FakeCluster) -> None:
    now = asyncio.get_running_loop().time()
    earlier = HeartbeatRequest("old", 0, "a", topics=["t"], session_timeout_ms=SESSION_MS)
    group(single).heartbeat(earlier, now)
    begun = time.monotonic()
    async with members(single.bootstrap, "a") as (member,):
        assert SESSION_MS / 1000 - 0.2 <= time.monotonic() - begun <= SESSION_MS / 1000 + 0.5
        assert "old" not in group(single).members
        assert member.events == ["granted"]


async def test_a_start_returns_at_once_and_the_member_joins_when_a_node_is_there() -> None:
    cluster = FakeCluster(1)
    cluster.create_topic("t", 1)
    await cluster.nodes[0].start()
    await cluster.nodes[0].stop()
    member = Member(cluster.bootstrap, "a")
    begun = time.monotonic()
    await member.lease.start()
    await member.lease.start()
    assert time.monotonic() - begun < 0.5
    await asyncio.sleep(0)
    await cluster.nodes[0].start()
    await until(lambda: member.lease.is_primary)
    await member.lease.close()
    await cluster.nodes[0].stop()


async def test_a_node_that_holds_no_heartbeats_open_is_not_flooded(single: FakeCluster) -> None:
    single.coordinator.holds_heartbeats = False
    async with members(single.bootstrap, "a"):
        sent, begun = single.requests[HEARTBEAT], time.monotonic()
        await single.wait_for_requests(HEARTBEAT, sent + 10)
        # The first ones may bring the news of the join. A late answer, as on a busy machine, counts
        # as held from half of the hold on.
        assert time.monotonic() - begun >= 6 * (SESSION_MS // 15) / 1000 / 2 * 0.9


async def test_a_heartbeat_is_held_at_each_moment(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process killed in between would be missed for a whole session."""
    held: set[object] = set()
    followed: list[bool] = []
    answer = FakeGroup.heartbeat
    has_news = FakeGroup.has_news

    def look(self: FakeGroup, member_id: str, now: float) -> bool:
        held.add(asyncio.current_task())
        return has_news(self, member_id, now)

    def note(self: FakeGroup, request: HeartbeatRequest, now: float) -> Any:
        held.discard(asyncio.current_task())
        if request.max_wait_ms:
            followed.append(bool(held))
        return answer(self, request, now)

    monkeypatch.setattr(FakeGroup, "has_news", look)
    monkeypatch.setattr(FakeGroup, "heartbeat", note)
    async with members(single.bootstrap, "a"):
        await until(lambda: len(followed) >= 10)
        # The first ones end at once, with the news of the join.
        assert followed[-8:] == [True] * 8


@pytest.mark.parametrize("silent", [0, 1])
async def test_a_silent_node_does_not_hold_up_a_join(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    monkeypatch.setattr(leases, "JOIN_S", 0.2)
    over = cluster.nodes[silent].stopped = asyncio.Event()
    begun = time.monotonic()
    async with members(cluster.bootstrap, "a"):
        assert time.monotonic() - begun < SESSION_MS / 1000
        cluster.nodes[silent].stopped = None
        over.set()


async def test_long_failures_are_logged_once(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "WARN_S", 0.0)
    single.fail(HEARTBEAT, *[Fault(error=INVALID_BODY)] * 5)
    async with members(single.bootstrap, "a"):
        warnings = [one for one in caplog.records if "heartbeats have failed" in one.message]
    assert len(warnings) == 1


async def test_a_close_without_answer_is_bounded(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LEAVE_S", 0.2)
    async with members(single.bootstrap, "a") as (member,):
        over = single.nodes[0].stopped = asyncio.Event()
        begun = time.monotonic()
        await member.lease.close()
        assert time.monotonic() - begun < 1.0
        assert member.events == ["granted", "lost"]
        over.set()


async def test_a_member_whose_join_is_not_answered_yet_leaves(single: FakeCluster) -> None:
    over = single.nodes[0].stopped_after = asyncio.Event()
    member = Member(single.bootstrap, "a")
    await member.lease.start()
    await until(lambda: joined(single) == {"a"})
    single.nodes[0].stopped_after = None
    await member.lease.close()
    assert not joined(single)
    over.set()


async def test_a_lease_that_was_never_started_closes() -> None:
    await Member("127.0.0.1:1", "a").lease.close()


# Hand-overs


@pytest.mark.parametrize(
    "faults",
    [[], [Fault(drop_after=True)], [Fault(drop_before=True)], [Fault(error=OVERLOADED)]],
    ids=str,
)
async def test_a_primary_hands_over_by_a_report(
    single: FakeCluster, faults: list[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = heartbeats(single, monkeypatch)
    async with members(single.bootstrap, "a", "b") as (first, second):
        await until(lambda: joined(single) == {"a", "b"})
        single.fail(HEARTBEAT, *faults)
        await first.lease.hand_over("b")
        await until(lambda: second.lease.is_primary)
        assert (first.events, first.listener.errors) == (["granted", "lost"], [None])
        await second.lease.hand_over("a")
        await until(lambda: first.lease.is_primary)
    assert all(one.sequence for one in seen if one.hand_over_to is not None)


async def test_a_hand_over_waits_for_the_report_under_way(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "HOLD_SHARE", 3)
    seen = heartbeats(single, monkeypatch)
    async with members(single.bootstrap, "a") as (first,):
        other = HeartbeatRequest("m", 0, "b", topics=["t"], session_timeout_ms=60_000)
        group(single).heartbeat(other, asyncio.get_running_loop().time())
        await until(lambda: bool(seen) and seen[-1].max_wait_ms > 0)
        # The answer to an idle heartbeat is lost: the next one repeats all state, and is slow.
        single.fail(HEARTBEAT, Fault(drop_after=True), Fault(delay_s=0.1))
        await until(lambda: not single.faults[HEARTBEAT])
        await first.lease.hand_over("b")
        (request,) = (one for one in seen if one.hand_over_to)
        assert (request.sequence, request.max_wait_ms) == (seen[-1].sequence, 0)
        assert request.sequence > 0
        await until(lambda: first.events == ["granted", "lost"])


async def test_a_hand_over_ends_a_held_heartbeat(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "HOLD_SHARE", 2)
    async with members(single.bootstrap, "a", "b") as (first, _):
        await until(lambda: joined(single) == {"a", "b"})
        await single.wait_for_requests(HEARTBEAT, single.requests[HEARTBEAT] + 2)
        begun = time.monotonic()
        await first.lease.hand_over("b")
        assert time.monotonic() - begun < SESSION_MS / 2_000 - 0.1


async def test_a_hand_over_that_is_refused_changes_nothing(single: FakeCluster) -> None:
    async with members(single.bootstrap, "a", "b") as (first, second):
        await until(lambda: joined(single) == {"a", "b"})
        for lease, heir in ((first.lease, "none"), (second.lease, "a")):
            with pytest.raises(ServerError) as caught:
                await lease.hand_over(heir)
            assert caught.value.entry is ILLEGAL_STATE
        await single.wait_for_requests(HEARTBEAT, single.requests[HEARTBEAT] + 3)
        assert (first.events, second.events) == (["granted"], [])


@pytest.mark.parametrize("is_closing", [True, False])
async def test_a_hand_over_ends_with_the_lease(single: FakeCluster, is_closing: bool) -> None:
    async with members(single.bootstrap, "a", "b") as (first, _):
        await until(lambda: joined(single) == {"a", "b"})
        over = single.nodes[0].stopped = asyncio.Event()
        handing = asyncio.ensure_future(first.lease.hand_over("b"))
        await asyncio.sleep(0)
        with pytest.raises(ServerError):
            await first.lease.hand_over("b")
        single.nodes[0].stopped = None if is_closing else over
        if is_closing:
            await first.lease.close()
        with pytest.raises(ConnectionLostError) as caught:
            await handing
        assert caught.value.outcome_unknown
        single.nodes[0].stopped = None
        over.set()


# A real node

PROCESS = """
import asyncio, os, signal, sys
from tests.client.groups.test_lease import Member
from tests.waiting import until

async def run(servers, name, topic, group):
    member = Member(servers, name, topic, group)
    member.listener.at_call = lambda event: print(event, flush=True)
    await member.lease.start()
    await asyncio.to_thread(sys.stdin.readline)
    sent = member.lease._sent
    await until(lambda: member.lease._sent != sent)
    await asyncio.sleep(0.02)  # In the middle of the next heartbeat, held for 66 ms.
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(run(*sys.argv[1:]))
"""
ROOT = Path(__file__).parents[3]


async def test_a_killed_primary_is_replaced_well_before_its_session_ends(
    real_node: LoneNode,
) -> None:
    number = next(_names)
    topic, name = f"log-{number}", f"state-{number}"
    servers = real_node.address
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic(topic, partitions=1)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROCESS, servers, "a", topic, name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert process.stdout is not None
        assert process.stdin is not None
        second = Member(servers, "b", topic, name)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                assert await process.stdout.readline() == b"granted\n"
                second.listener.applied = 7
                await second.lease.start()
                await until_described(admin, name, {("a", "a:1", 0, True), ("b", "b:1", 7, False)})
                process.stdin.write(b"\n")
                assert await process.stdout.readline() == b""
                died_at = time.monotonic()
                await until(lambda: second.lease.is_primary)
            assert time.monotonic() - died_at < 0.6 * SESSION_MS / 1000
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await second.lease.close()


async def until_described(
    admin: Admin, name: str, wanted: set[tuple[str | None, str | None, int | None, bool]]
) -> None:
    async def described() -> bool:
        members = (await admin.describe_group(name)).members
        return wanted == {
            (one.instance_id, one.endpoint, one.position, bool(one.assignment)) for one in members
        }

    await until(described, poll_s=SLOW_POLL_S)


async def test_a_real_coordinator_takes_hand_overs_and_leaves(real_node: LoneNode) -> None:
    number = next(_names)
    topic, name = f"log-{number}", f"state-{number}"
    async with Admin(bootstrap_servers=real_node.address) as admin:
        await admin.create_topic(topic, partitions=1)
    async with members(real_node.address, "a", "b", topic=topic, group=name) as (first, second):
        with pytest.raises(ServerError) as caught:
            await first.lease.hand_over("none")
        assert caught.value.entry is ILLEGAL_STATE
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    await first.lease.hand_over("b")
                    break
                except ServerError:
                    await asyncio.sleep(0.02)
        await until(lambda: second.lease.is_primary)
        assert first.events == ["granted", "lost"]
        begun = time.monotonic()
        await second.lease.close()
        await until(lambda: first.lease.is_primary)
        assert time.monotonic() - begun < SESSION_MS / 1000
