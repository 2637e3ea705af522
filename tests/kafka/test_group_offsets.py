"""Committed offsets: by members of both kinds and of none, by name and by id, fencing, deletion."""

from __future__ import annotations

from typing import Any, Final

import pytest

from raftlog.broker.authorize import Operation, Principal, Resource
from raftlog.kafka.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from raftlog.record.errors import FORBIDDEN, LogError
from raftlog.record.types import TopicId
from tests.kafka.offsets import commit_request, committed_codes
from tests.kafka.peers import KafkaNode, group_node
from tests.kafka.test_groups import beat, join_classic

GROUP: Final = "g"
NOWHERE: Final = TopicId("f" * 32)


def ids_of(one: KafkaNode) -> dict[str, TopicId]:
    ids = {name: topic.topic_id for name, topic in one.node.metadata.image.topics_by_name.items()}
    return {**ids, "gone": NOWHERE}


def rows(answer: Any) -> list[tuple[str, int, int, int]]:
    """Topic, partition, offset and error of a version up to 7."""
    return [
        (topic.name, part.partition_index, part.committed_offset, part.error_code)
        for topic in answer.topics
        for part in topic.partitions
    ]


def delete(group: str, topic: str, *numbers: int) -> OffsetDeleteRequest:
    parts = tuple(OffsetDeleteRequestPartition(number) for number in numbers)
    return OffsetDeleteRequest(group, (OffsetDeleteRequestTopic(topic, parts),))


@pytest.mark.parametrize("version", [2, 3, 6, 8, 9])
async def test_offsets_by_name_are_committed_without_a_member(version: int) -> None:
    async with group_node() as one, one.client() as client:
        offsets = {("six", 1): 7, ("six", 6): 7, ("none", 0): 7, ("one", 0): 8}
        answer = await client.ask(commit_request(GROUP, offsets, metadata="note"), version)
        assert committed_codes(answer) == [0, 3, 3, 0]
        assert [topic.name for topic in answer.topics] == ["six", "none", "one"]
        large = commit_request(GROUP, {("one", 0): 9}, metadata="x" * 5_000)
        assert committed_codes(await client.ask(large, version)) == [12]
        fetched = await client.ask(OffsetFetchRequest(GROUP, None), 2)
        assert rows(fetched) == [("six", 1, 7, 0), ("one", 0, 8, 0)]
        assert fetched.topics[0].partitions[0].metadata == "note"


async def test_offsets_by_topic_id_are_committed_for_that_topic_alone() -> None:
    async with group_node() as one, one.client() as client:
        ids = ids_of(one)
        offsets = {("one", 0): 7, ("gone", 0): 7, ("gone", 1): 7, ("six", 5): 8}
        answer = await client.ask(commit_request(GROUP, offsets, ids=ids), 10)
        assert committed_codes(answer) == [0, 100, 100, 0]
        assert [topic.topic_id for topic in answer.topics] == [ids["one"], NOWHERE, ids["six"]]

        wanted = tuple(
            OffsetFetchRequestTopics(topic_id=ids[name], partition_indexes=(0,))
            for name in ("gone", "one")
        )
        request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(GROUP, topics=wanted),))
        [group] = (await client.ask(request, 10)).groups
        gone, found = group.topics
        assert (gone.topic_id, found.topic_id) == (NOWHERE, ids["one"])
        assert (gone.partitions[0].committed_offset, gone.partitions[0].error_code) == (-1, 100)
        assert (found.partitions[0].committed_offset, found.partitions[0].error_code) == (7, 0)

        await one.node.metadata.delete_topic("one")
        await one.node.metadata.create_topic("one", partitions=1)
        new = ids_of(one)["one"]
        of_all = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(GROUP, topics=None),))
        [group] = (await client.ask(of_all, 10)).groups
        assert [topic.topic_id for topic in group.topics] == [ids["six"]]
        topic = OffsetFetchRequestTopics(topic_id=new, partition_indexes=(0,))
        request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(GROUP, topics=(topic,)),))
        [group] = (await client.ask(request, 10)).groups
        assert group.topics[0].partitions[0].committed_offset == -1
        assert rows(await client.ask(OffsetFetchRequest(GROUP, None), 7)) == [("six", 5, 8, 0)]


@pytest.mark.parametrize("version", [1, 2, 5, 7])
async def test_offsets_of_one_group_are_fetched(version: int) -> None:
    async with group_node() as one, one.client() as client:
        await client.ask(commit_request(GROUP, {("six", 1): 7}), 9)
        wanted = (
            OffsetFetchRequestTopic("none", (0,)),
            OffsetFetchRequestTopic("six", (2, 1)),
        )
        request = OffsetFetchRequest(GROUP, wanted, require_stable=version == 7)
        fetched = await client.ask(request, version)
        assert rows(fetched) == [("none", 0, -1, 0), ("six", 2, -1, 0), ("six", 1, 7, 0)]
        refused = await client.ask(OffsetFetchRequest("", wanted), version)
        if version == 1:
            assert [row[3] for row in rows(refused)] == [24, 24, 24]
        else:
            assert (refused.error_code, refused.topics) == (24, ())


@pytest.mark.parametrize("version", [8, 9])
async def test_offsets_of_several_groups_are_fetched(version: int) -> None:
    async with group_node() as one, one.client() as client:
        await client.ask(commit_request(GROUP, {("six", 1): 7}), 9)
        await client.ask(commit_request("h", {("one", 0): 8}), 9)
        groups = (
            OffsetFetchRequestGroup(
                GROUP, topics=(OffsetFetchRequestTopics("six", partition_indexes=(1, 0)),)
            ),
            OffsetFetchRequestGroup("h", topics=None),
            OffsetFetchRequestGroup("", topics=None),
            OffsetFetchRequestGroup("none", topics=None),
        )
        answer = await client.ask(OffsetFetchRequest(groups=groups), version)
        assert [(group.group_id, group.error_code, rows(group)) for group in answer.groups] == [
            (GROUP, 0, [("six", 1, 7, 0), ("six", 0, -1, 0)]),
            ("h", 0, [("one", 0, 8, 0)]),
            ("", 24, []),
            ("none", 0, []),
        ]


async def test_offsets_of_a_modern_group_are_its_members() -> None:
    async with group_node() as one, one.client() as client:
        ids = ids_of(one)

        async def commit(version: int, member_id: str = "m", epoch: int = 1) -> list[int]:
            request = commit_request(
                GROUP,
                {("six", 1): 7},
                ids=ids if version == 10 else None,
                member_id=member_id,
                generation_id_or_member_epoch=epoch,
            )
            return committed_codes(await client.ask(request, version))

        async def fetch(version: int, member_id: str | None = "m", epoch: int = 1) -> int:
            group = OffsetFetchRequestGroup(GROUP, member_id, epoch, None)
            answer = await client.ask(OffsetFetchRequest(groups=(group,)), version)
            return int(answer.groups[0].error_code)

        await client.ask(beat(), 1)
        assert [await commit(version) for version in (2, 9, 10)] == [[0]] * 3
        assert [await commit(version, epoch=5) for version in (8, 9, 10)] == [[22], [113], [113]]
        assert [await commit(version, "x") for version in (8, 10)] == [[25], [25]]
        assert await commit(9, "", -1) == [25]
        assert [await fetch(version) for version in (9, 10)] == [0, 0]
        assert [await fetch(version, epoch=5) for version in (9, 10)] == [113, 113]
        assert [await fetch(9, "x"), await fetch(9, None, -1)] == [25, 0]


async def test_only_members_commit_offsets_of_a_classic_group() -> None:
    async with group_node() as one, one.client() as client:
        member_id = await join_classic(client)
        offsets = {("six", 1): 7}
        member = {"member_id": member_id, "generation_id_or_member_epoch": 1}
        for version in (2, 9):
            request = commit_request("classic", offsets, **member)
            assert committed_codes(await client.ask(request, version)) == [0]
            request = commit_request("classic", offsets)
            assert committed_codes(await client.ask(request, version)) == [25]
        request = commit_request("classic", offsets, **member, group_instance_id="i")
        assert committed_codes(await client.ask(request, 7)) == [0]
        other = {"member_id": "x", "generation_id_or_member_epoch": 1, "group_instance_id": "i"}
        request = commit_request("classic", offsets, **other)
        assert committed_codes(await client.ask(request, 9)) == [82]


async def test_offsets_are_deleted_where_no_member_reads() -> None:
    async with group_node() as one, one.client() as client:
        offsets = {("six", 1): 7, ("one", 0): 8}
        missing = await client.ask(delete(GROUP, "one", 0), 0)
        assert (missing.error_code, missing.topics) == (69, ())
        await client.ask(beat(), 1)
        member = {"member_id": "m", "generation_id_or_member_epoch": 1}
        await client.ask(commit_request(GROUP, offsets, **member), 9)
        assert committed_codes(await client.ask(delete(GROUP, "six", 1, 2), 0)) == [86, 86]
        assert committed_codes(await client.ask(delete(GROUP, "none", 0), 0)) == [3]
        assert committed_codes(await client.ask(delete(GROUP, "one", 0), 0)) == [0]
        assert rows(await client.ask(OffsetFetchRequest(GROUP, None), 7)) == [("six", 1, 7, 0)]


async def test_topics_need_rights_of_their_own() -> None:
    def authorize(_principal: Principal, _operation: Operation, resource: Resource) -> None:
        if resource.name == "six":
            raise LogError(FORBIDDEN)

    async with group_node(authorize=authorize) as one, one.client() as client:
        offsets = {("six", 1): 7, ("one", 0): 8}
        answer = await client.ask(commit_request(GROUP, offsets), 9)
        assert committed_codes(answer) == [29, 0]
        wanted = (OffsetFetchRequestTopic("six", (1,)), OffsetFetchRequestTopic("one", (0,)))
        fetched = await client.ask(OffsetFetchRequest(GROUP, wanted), 7)
        assert rows(fetched) == [("six", 1, -1, 29), ("one", 0, 8, 0)]
        assert rows(await client.ask(OffsetFetchRequest(GROUP, None), 7)) == [("one", 0, 8, 0)]
        assert committed_codes(await client.ask(delete(GROUP, "six", 1), 0)) == [29]
