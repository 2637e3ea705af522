"""Members of classic groups: joins, syncs, heartbeats, leaves, in oldest and newest versions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import pytest

from raftlog.kafka.messages.classic import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from raftlog.kafka.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.kafka.peers import DEADLINE_S, KafkaNode, RawClient, group_node

GROUP: Final = "g"
SESSION_MS: Final = 60_000
UNKNOWN_MEMBER, ILLEGAL_GENERATION, REBALANCE, FENCED = 25, 22, 27, 82


@dataclass(frozen=True)
class Versions:
    """Of each API."""

    join: int
    sync: int
    heartbeat: int
    leave: int
    commit: int


OLDEST: Final = Versions(0, 0, 0, 0, 2)
NEWEST: Final = Versions(9, 5, 4, 5, 9)


@dataclass
class Member:
    """A member that follows the protocol, over one connection."""

    client: RawClient
    versions: Versions
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1

    def join_request(self, **fields: Any) -> JoinGroupRequest:
        return JoinGroupRequest(
            **{
                "group_id": GROUP,
                "session_timeout_ms": SESSION_MS,
                "rebalance_timeout_ms": SESSION_MS,
                "member_id": self.member_id,
                "group_instance_id": self.instance_id,
                "protocol_type": "consumer",
                "protocols": (JoinGroupRequestProtocol("range", b"topics"),),
                **fields,
            }
        )

    async def begin_join(self) -> None:
        """Send a join; with a member id, which newer versions ask for."""
        version = self.versions.join
        if version >= 4 and not self.member_id and self.instance_id is None:
            required = await self.client.ask(self.join_request(), version)
            assert (required.error_code, required.generation_id) == (79, -1)
            self.member_id = required.member_id
        await self.client.send(self.join_request(), version)

    async def joined(self) -> JoinGroupResponse:
        """The answer to the join."""
        _, answer = await self.client.receive()
        assert isinstance(answer, JoinGroupResponse)
        if not answer.error_code:
            self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    async def join(self) -> JoinGroupResponse:
        await self.begin_join()
        return await self.joined()

    def sync_request(self, assignments: dict[str, bytes]) -> SyncGroupRequest:
        is_new = self.versions.sync >= 5
        return SyncGroupRequest(
            GROUP,
            self.generation,
            self.member_id,
            self.instance_id,
            "consumer" if is_new else None,
            "range" if is_new else None,
            tuple(SyncGroupRequestAssignment(*one) for one in assignments.items()),
        )

    async def sync(self, assignments: dict[str, bytes] | None = None) -> Any:
        return await self.client.ask(self.sync_request(assignments or {}), self.versions.sync)

    async def heartbeat(self) -> int:
        request = HeartbeatRequest(GROUP, self.generation, self.member_id, self.instance_id)
        answer = await self.client.ask(request, self.versions.heartbeat)
        return int(answer.error_code)

    async def rebalances(self) -> None:
        """Heartbeat until the group rebalances."""
        async with asyncio.timeout(DEADLINE_S):
            while (found := await self.heartbeat()) == 0:
                pass
        assert found == REBALANCE

    async def leave(self) -> int:
        version = self.versions.leave
        if version < 3:
            answer = await self.client.ask(
                LeaveGroupRequest(GROUP, member_id=self.member_id), version
            )
            return int(answer.error_code)
        leaving = MemberIdentity(self.member_id, self.instance_id, "the end")
        answer = await self.client.ask(LeaveGroupRequest(GROUP, members=(leaving,)), version)
        assert answer.error_code == 0
        assert answer.members[0].member_id == self.member_id
        return int(answer.members[0].error_code)

    async def commit(self, offset: int) -> int:
        part = OffsetCommitRequestPartition(0, offset)
        request = OffsetCommitRequest(
            GROUP,
            self.generation,
            self.member_id,
            topics=(OffsetCommitRequestTopic("one", partitions=(part,)),),
        )
        answer = await self.client.ask(request, self.versions.commit)
        return int(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("versions", [OLDEST, NEWEST], ids=["oldest", "newest"])
async def test_two_members_share_a_group(versions: Versions) -> None:
    async with group_node() as one, one.client() as first, one.client() as second:
        a, b = Member(first, versions), Member(second, versions)
        joined = await a.join()
        assert (joined.generation_id, joined.leader) == (1, a.member_id)
        assert joined.protocol_name == "range"
        assert [(row.member_id, row.metadata) for row in joined.members] == [
            (a.member_id, b"topics")
        ]
        assert a.member_id.startswith("c-")
        assert (await a.sync({a.member_id: b"all"})).assignment == b"all"
        assert await a.heartbeat() == 0

        await b.begin_join()
        await a.rebalances()
        assert (await a.join()).generation_id == 2
        following = await b.joined()
        assert (following.generation_id, following.leader) == (2, a.member_id)
        assert following.members == ()
        assert await a.commit(1) == REBALANCE
        await b.client.send(b.sync_request({}), versions.sync)
        synced = await a.sync({a.member_id: b"left", b.member_id: b"right"})
        assert (synced.error_code, synced.assignment) == (0, b"left")
        _, synced = await b.client.receive()
        assert (synced.error_code, synced.assignment) == (0, b"right")
        assert [await a.heartbeat(), await b.heartbeat()] == [0, 0]
        assert [await a.commit(5), await b.commit(6)] == [0, 0]

        assert await b.leave() == 0
        assert [await b.heartbeat(), await b.leave(), await b.commit(9)] == [UNKNOWN_MEMBER] * 3
        await a.rebalances()
        assert (await a.join()).generation_id == 3
        a.generation = 2
        assert await a.heartbeat() == ILLEGAL_GENERATION
        assert (await a.sync()).error_code == ILLEGAL_GENERATION
        assert await a.commit(9) == ILLEGAL_GENERATION


async def test_a_static_member_that_starts_again_fences_its_older_self() -> None:
    async with group_node() as one, one.client() as first, one.client() as second:
        old = Member(first, NEWEST, "i")
        assert (await old.join()).error_code == 0
        assert (await old.sync({old.member_id: b"mine"})).assignment == b"mine"
        again = Member(second, NEWEST, "i")
        joined = await again.join()
        assert (joined.generation_id, joined.skip_assignment) == (1, True)
        assert again.member_id.startswith("i-")
        assert again.member_id != old.member_id
        assert (await again.sync()).assignment == b"mine"
        assert await old.heartbeat() == FENCED
        assert (await old.sync()).error_code == FENCED
        assert (await old.join()).error_code == FENCED
        assert await old.leave() == FENCED
        assert await again.leave() == 0


@pytest.mark.parametrize(
    ("fields", "error_code"),
    [
        ({"session_timeout_ms": 1}, 26),
        ({"session_timeout_ms": 1 << 30}, 26),
        ({"member_id": "never-seen"}, 25),
        ({"protocols": ()}, 23),
        ({"protocol_type": "connect"}, 23),
        ({"protocols": (JoinGroupRequestProtocol("sticky", b""),)}, 23),
        ({"group_id": ""}, 24),
        ({"group_id": "x" * 300}, 24),
    ],
)
@pytest.mark.parametrize("version", [5, 9])
async def test_a_join_that_does_not_fit_is_refused(
    fields: dict[str, Any], error_code: int, version: int
) -> None:
    async with group_node() as one, one.client() as first, one.client() as second:
        assert (await Member(first, NEWEST).join()).error_code == 0
        refused = await second.ask(Member(second, NEWEST).join_request(**fields), version)
        assert refused.error_code == error_code
        assert refused.generation_id == -1
        assert refused.member_id == fields.get("member_id", "")


async def test_a_full_group_takes_no_more_members() -> None:
    async with (
        group_node({"group.max.size": "1"}) as one,
        one.client() as first,
        one.client() as second,
    ):
        assert (await Member(first, NEWEST).join()).error_code == 0
        assert (await Member(second, OLDEST).join()).error_code == 81


async def test_several_members_leave_at_once() -> None:
    async with group_node() as one, one.client() as client:
        member = Member(client, NEWEST, "i")
        await member.join()
        leaving = (MemberIdentity("", "i"), MemberIdentity("unknown"))
        answer = await client.ask(LeaveGroupRequest(GROUP, members=leaving), 3)
        assert [row.error_code for row in answer.members] == [0, UNKNOWN_MEMBER]
        assert answer.members[0].group_instance_id == "i"


async def held(one: KafkaNode, member: Member) -> None:
    """The member's join waits for others."""
    await member.begin_join()
    async with asyncio.timeout(DEADLINE_S):
        while not one.listener._tasks:  # noqa: ASYNC110 (plain data)
            await asyncio.sleep(0)


async def test_held_joins_end_when_the_listeners_close() -> None:
    async with (
        group_node({"group.initial.rebalance.delay.ms": "60000"}) as one,
        one.client() as client,
    ):
        member = Member(client, OLDEST)
        await held(one, member)
        one.broker.closing.set()
        assert (await member.joined()).error_code == 15


async def test_a_held_sync_ends_when_the_listeners_close() -> None:
    async with group_node() as one, one.client() as first, one.client() as second:
        a, b = Member(first, NEWEST), Member(second, NEWEST)
        await a.join()
        await a.sync({a.member_id: b""})
        await b.begin_join()
        await a.rebalances()
        await a.join()
        await b.joined()
        await b.client.send(b.sync_request({}), 5)
        async with asyncio.timeout(DEADLINE_S):
            while not one.listener._tasks:  # noqa: ASYNC110 (plain data)
                await asyncio.sleep(0)
        one.broker.closing.set()
        _, synced = await b.client.receive()
        assert synced.error_code == 15


async def test_a_client_that_leaves_ends_its_held_join() -> None:
    async with group_node({"group.initial.rebalance.delay.ms": "60000"}) as one:
        async with one.client() as client:
            await held(one, Member(client, OLDEST))
        async with asyncio.timeout(DEADLINE_S):
            while one.listener._tasks or one.listener._connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
