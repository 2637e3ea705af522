"""Coordinators, modern members (KIP-848), descriptions and deletion of groups, by raw frames."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from raftlog.broker.authorize import Operation, Principal, Resource, ResourceType
from raftlog.kafka.handlers.names import UNKNOWN_OPERATIONS
from raftlog.kafka.messages.classic import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from raftlog.kafka.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from raftlog.kafka.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    RequestTopicPartitions,
)
from raftlog.kafka.messages.transactions import DescribeTransactionsRequest
from raftlog.record.errors import (
    DISK_FULL,
    FORBIDDEN,
    NO_CONTROLLER,
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    NOT_READY,
    RETRIABLE,
    ErrorEntry,
    LogError,
)
from raftlog.record.types import TopicId
from tests.kafka.offsets import commit_request, committed_codes
from tests.kafka.peers import KafkaNode, RawClient, group_node

GROUP: Final = "g"
READ, DELETE, DESCRIBE = 1 << 3, 1 << 6, 1 << 8
"""Bits of authorized operations: the codes are AclOperation's."""
MANY: Final = tuple(f"none-{number}" for number in range(2_000))


def beat(epoch: int = 0, member_id: str = "m", **fields: Any) -> ConsumerGroupHeartbeatRequest:
    """A heartbeat; the first one joins."""
    if epoch == 0:
        joining = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": ("six",),
            "topic_partitions": (),
        }
        fields = joining | fields
    return ConsumerGroupHeartbeatRequest(GROUP, member_id, epoch, **fields)


def owned(topic_id: TopicId, *numbers: int) -> tuple[RequestTopicPartitions, ...]:
    return (RequestTopicPartitions(topic_id, numbers),)


def assigned(answer: Any) -> list[int] | None:
    """Assigned partitions of the one topic."""
    if answer.assignment is None:
        return None
    return [number for one in answer.assignment.topic_partitions for number in one.partitions]


def topic_id_of(one: KafkaNode, name: str) -> TopicId:
    return one.node.metadata.image.topic(name).topic_id


async def join_classic(client: RawClient, group: str = "classic") -> str:
    """A stable classic group of one member; its id."""
    request = JoinGroupRequest(
        group, 60_000, 60_000, "", "i", "consumer", (JoinGroupRequestProtocol("range", b"meta"),)
    )
    joined = await client.ask(request, 9)
    assignment = SyncGroupRequestAssignment(joined.member_id, b"mine")
    sync = SyncGroupRequest(group, 1, joined.member_id, "i", "consumer", "range", (assignment,))
    assert (await client.ask(sync, 5)).error_code == 0
    return str(joined.member_id)


# Coordinators


@pytest.mark.parametrize("version", [0, 3])
async def test_the_coordinator_of_a_group_is_found(version: int) -> None:
    async with group_node() as one, one.client() as client:
        found = await client.ask(FindCoordinatorRequest("g"), version)
        assert (found.error_code, found.node_id) == (0, 1)
        assert (found.host, found.port) == ("127.0.0.1", one.listener.port)
        assert len(one.node.metadata.image.topic("__consumer_offsets").partitions) == 16


@pytest.mark.parametrize("version", [4, 6])
async def test_coordinators_of_several_keys_are_found_at_once(version: int) -> None:
    async with group_node() as one, one.client() as client:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=("g", "", "h"))
        found = (await client.ask(request, version)).coordinators
        assert [(row.key, row.error_code, row.node_id) for row in found] == [
            ("g", 0, 1),
            ("", 24, -1),
            ("h", 0, 1),
        ]
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=("t",))
        [row] = (await client.ask(request, version)).coordinators
        assert (row.error_code, row.port) == (0, one.listener.port)
        assert "__transaction_state" in one.node.metadata.image.topics_by_name
        request = FindCoordinatorRequest(key_type=2, coordinator_keys=("s",))
        [row] = (await client.ask(request, version)).coordinators
        assert row.error_code == 42


async def test_a_coordinator_without_a_listener_is_not_available() -> None:
    async with group_node() as one, one.client() as client:
        one.advertise(None)
        found = await client.ask(FindCoordinatorRequest("g"), 2)
        assert (found.error_code, found.node_id, found.port) == (15, -1, -1)


@pytest.mark.parametrize(
    "entry", [DISK_FULL, NO_CONTROLLER, NO_LEADER, NOT_ENOUGH_REPLICAS, NOT_READY, RETRIABLE]
)
async def test_clients_look_again_for_a_coordinator_that_is_away(entry: ErrorEntry) -> None:
    async def away(*_: Any, **__: Any) -> bytes:
        raise LogError(entry)

    async with group_node() as one, one.client() as client:
        one.node.services.coordinators.call = away
        assert (await client.ask(beat(), 1)).error_code == 15
        assert (await client.ask(JoinGroupRequest(GROUP, 60_000), 9)).error_code == 15
        assert (await client.ask(SyncGroupRequest(GROUP), 5)).error_code == 15
        assert (await client.ask(HeartbeatRequest(GROUP), 4)).error_code == 15
        assert (await client.ask(LeaveGroupRequest(GROUP), 5)).error_code == 15
        committed = await client.ask(commit_request(GROUP, {("one", 0): 3}), 9)
        assert committed_codes(committed) == [15]
        assert (await client.ask(OffsetFetchRequest(GROUP, None), 7)).error_code == 15


# Modern members


@pytest.mark.parametrize("version", [0, 1])
async def test_modern_members_share_partitions(version: int) -> None:
    async with group_node() as one, one.client() as client:
        topic_id = topic_id_of(one, "six")
        first = await client.ask(beat(), version)
        assert (first.error_code, first.member_epoch, first.member_id) == (0, 1, "m")
        assert first.heartbeat_interval_ms == 5_000
        assert assigned(first) == [0, 1, 2, 3, 4, 5]
        held = owned(topic_id, 0, 1, 2, 3, 4, 5)
        assert assigned(await client.ask(beat(1, topic_partitions=held), version)) is None

        second = await client.ask(beat(member_id="n"), version)
        assert (second.member_epoch, assigned(second)) == (2, [])
        revoking = await client.ask(beat(1), version)
        kept = assigned(revoking)
        assert kept is not None
        assert (revoking.member_epoch, len(kept)) == (1, 3)
        done = await client.ask(beat(1, topic_partitions=owned(topic_id, *kept)), version)
        assert (done.error_code, done.member_epoch) == (0, 2)
        following = await client.ask(beat(2, member_id="n"), version)
        assert sorted([*kept, *(assigned(following) or ())]) == [0, 1, 2, 3, 4, 5]

        left = await client.ask(beat(-1, member_id="n"), version)
        assert (left.error_code, left.member_epoch) == (0, -1)
        gone = await client.ask(beat(2, member_id="n"), version)
        assert gone.error_code == 25
        assert "no member 'n'" in gone.error_message


async def test_a_member_without_an_id_gets_one() -> None:
    async with group_node() as one, one.client() as client:
        assert (await client.ask(beat(member_id=""), 0)).member_id


@pytest.mark.parametrize(
    ("request_", "version", "error_code"),
    [
        (beat(7), 1, 110),
        (beat(1, member_id="x"), 0, 25),
        (beat(member_id="x", instance_id="i"), 1, 111),
        (beat(member_id="x", server_assignor="best"), 0, 112),
        (beat(member_id="x", subscribed_topic_regex="("), 1, 128),
        (beat(1, topic_partitions=(RequestTopicPartitions(None, (0,)),)), 1, 42),
        (beat(-4), 1, 42),
    ],
)
async def test_a_heartbeat_that_does_not_fit_is_refused(
    request_: ConsumerGroupHeartbeatRequest, version: int, error_code: int
) -> None:
    async with group_node() as one, one.client() as client:
        assert (await client.ask(beat(instance_id="i"), 1)).error_code == 0
        refused = await client.ask(request_, version)
        assert refused.error_code == error_code
        assert refused.error_message


async def test_topics_by_pattern() -> None:
    async with group_node() as one, one.client() as client:
        joined = await client.ask(
            beat(subscribed_topic_names=None, subscribed_topic_regex="si.*|one"), 1
        )
        assert sorted(assigned(joined) or ()) == [0, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("version", [0, 1])
async def test_a_modern_group_is_described_to_those_that_ask_for_one(version: int) -> None:
    async with group_node() as one, one.client() as client:
        await client.ask(beat(instance_id="i", rack_id="r"), 1)
        await join_classic(client)
        names = (GROUP, "classic", "missing")
        answer = await client.ask(ConsumerGroupDescribeRequest(names), version)
        found, classic, missing = answer.groups
        assert (classic.error_code, missing.error_code) == (69, 69)
        assert "not a consumer group" in classic.error_message
        assert (found.error_code, found.group_id, found.group_state) == (0, GROUP, "Stable")
        assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (1, 1, "uniform")
        [member] = found.members
        assert (member.member_id, member.instance_id, member.rack_id) == ("m", "i", "r")
        assert (member.member_epoch, member.client_id, member.client_host) == (1, "c", "127.0.0.1")
        assert member.subscribed_topic_names == ("six",)
        assert member.member_type == (1 if version else -1)
        [topic] = member.assignment.topic_partitions
        assert (topic.topic_id, topic.topic_name) == (topic_id_of(one, "six"), "six")
        assert topic.partitions == (0, 1, 2, 3, 4, 5)
        assert member.target_assignment == member.assignment

        described = await client.ask(DescribeGroupsRequest((GROUP,)), 6)
        assert described.groups[0].error_code == 69

        assert found.authorized_operations == UNKNOWN_OPERATIONS
        answer = await client.ask(ConsumerGroupDescribeRequest((GROUP,), True), version)
        assert answer.groups[0].authorized_operations == READ | DELETE | DESCRIBE


# All groups


@pytest.mark.parametrize("version", [0, 6])
async def test_classic_groups_are_described(version: int) -> None:
    async with group_node() as one, one.client() as client:
        member_id = await join_classic(client)
        await client.ask(commit_request("simple", {("one", 0): 3}), 2)
        names = ("classic", "simple", "missing")
        described = await client.ask(DescribeGroupsRequest(names), version)
        classic, simple, missing = described.groups
        assert (classic.error_code, classic.group_state) == (0, "Stable")
        assert (classic.protocol_type, classic.protocol_data) == ("consumer", "range")
        [member] = classic.members
        assert (member.member_id, member.client_id) == (member_id, "c")
        assert (member.client_host, member.member_metadata) == ("127.0.0.1", b"meta")
        assert member.member_assignment == b"mine"
        assert (simple.error_code, simple.group_state, simple.members) == (0, "Empty", ())
        assert missing.group_state == "Dead"
        assert missing.error_code == (69 if version == 6 else 0)

        assert classic.authorized_operations == UNKNOWN_OPERATIONS
        wanting = DescribeGroupsRequest(names, include_authorized_operations=version >= 3)
        classic, simple, _ = (await client.ask(wanting, version)).groups
        expected = READ | DELETE | DESCRIBE if version >= 3 else UNKNOWN_OPERATIONS
        assert classic.authorized_operations == simple.authorized_operations == expected


@pytest.mark.parametrize("version", [0, 3])
async def test_groups_are_listed(version: int) -> None:
    async with group_node() as one, one.client() as client:
        assert (await client.ask(ListGroupsRequest(), version)).groups == ()
        await client.ask(beat(), 1)
        await join_classic(client)
        await client.ask(commit_request("simple", {("one", 0): 3}), 2)
        listed = await client.ask(ListGroupsRequest(), version)
        assert listed.error_code == 0
        assert [(row.group_id, row.protocol_type) for row in listed.groups] == [
            ("classic", "consumer"),
            (GROUP, "consumer"),
            ("simple", ""),
        ]


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ((), (), ["classic", "g", "simple"]),
        (("stable",), (), ["classic", "g"]),
        (("Empty",), (), ["simple"]),
        ((), ("Classic",), ["classic", "simple"]),
        ((), ("consumer",), ["g"]),
        (("Stable", "Empty"), ("classic",), ["classic", "simple"]),
        (("Dead",), (), []),
        ((), ("share",), []),
    ],
)
async def test_groups_are_listed_by_state_and_type(
    states: tuple[str, ...], types: tuple[str, ...], found: list[str]
) -> None:
    async with group_node() as one, one.client() as client:
        await client.ask(beat(), 1)
        await join_classic(client)
        await client.ask(commit_request("simple", {("one", 0): 3}), 2)
        listed = await client.ask(ListGroupsRequest(states, types), 5)
        assert [row.group_id for row in listed.groups] == found
        if not types:
            by_state = await client.ask(ListGroupsRequest(states), 4)
            assert [row.group_id for row in by_state.groups] == found


@pytest.mark.parametrize("version", [0, 2])
async def test_empty_groups_are_deleted(version: int) -> None:
    async with group_node() as one, one.client() as client:
        await client.ask(beat(), 1)
        await client.ask(commit_request("simple", {("one", 0): 3}), 2)
        names = (GROUP, "simple", "missing")
        answer = await client.ask(DeleteGroupsRequest(names), version)
        assert [(row.group_id, row.error_code) for row in answer.results] == [
            (GROUP, 68),
            ("simple", 0),
            ("missing", 69),
        ]
        assert (await client.ask(beat(-1), 1)).error_code == 0
        answer = await client.ask(DeleteGroupsRequest((GROUP,)), version)
        assert answer.results[0].error_code == 0
        assert (await client.ask(ListGroupsRequest(), 5)).groups == ()


# Rights


async def test_groups_need_rights() -> None:
    refused: set[Operation] = set()

    def authorize(_principal: Principal, operation: Operation, resource: Resource) -> None:
        if resource.type is not ResourceType.TOPIC and operation in refused:
            raise LogError(FORBIDDEN)

    async with group_node(authorize=authorize) as one, one.client() as client:
        await client.ask(beat(), 1)
        refused.update((Operation.READ, Operation.DESCRIBE, Operation.DELETE))
        assert (await client.ask(FindCoordinatorRequest(GROUP), 3)).error_code == 30
        assert (await client.ask(FindCoordinatorRequest("t", 1), 3)).error_code == 53
        assert (await client.ask(beat(1), 1)).error_code == 30
        assert (await client.ask(JoinGroupRequest(GROUP, 60_000), 9)).error_code == 30
        assert (await client.ask(SyncGroupRequest(GROUP), 5)).error_code == 30
        assert (await client.ask(HeartbeatRequest(GROUP), 4)).error_code == 30
        assert (await client.ask(LeaveGroupRequest(GROUP), 5)).error_code == 30
        committed = await client.ask(commit_request(GROUP, {("one", 0): 3}), 9)
        assert committed_codes(committed) == [30]
        assert (await client.ask(OffsetFetchRequest(GROUP, None), 7)).error_code == 30
        assert (await client.ask(OffsetDeleteRequest(GROUP), 0)).error_code == 30
        for request in (ConsumerGroupDescribeRequest((GROUP,)), DescribeGroupsRequest((GROUP,))):
            assert (await client.ask(request, 1)).groups[0].error_code == 30
        assert (await client.ask(DeleteGroupsRequest((GROUP,)), 2)).results[0].error_code == 30
        assert (await client.ask(ListGroupsRequest(), 5)).groups == ()


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (DescribeGroupsRequest(MANY), 6),
        (ConsumerGroupDescribeRequest(MANY), 1),
        (DeleteGroupsRequest(MANY), 2),
        (FindCoordinatorRequest(key_type=0, coordinator_keys=MANY), 6),
        (OffsetFetchRequest(groups=tuple(OffsetFetchRequestGroup(one) for one in MANY)), 9),
        (DescribeTransactionsRequest(MANY), 0),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_long_requests_take_turns_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, request_: msgspec.Struct, version: int
) -> None:
    """Calls of a coordinator on the same node hardly suspend: thousands held the loop for 2 s."""
    turns = 0

    async with group_node() as one, one.client() as client:
        wait = one.broker.turns.wait

        async def counted() -> None:
            nonlocal turns
            turns += 1
            await wait()

        monkeypatch.setattr(one.broker.turns, "wait", counted)
        await client.ask(request_, version)
    assert turns >= len(MANY) // 8 - 1
