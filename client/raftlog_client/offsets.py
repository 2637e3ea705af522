"""Questions about offsets, for consumer and admin alike. A partition's leader answers them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from raftlog_client.errors import RaftlogClientError, server_error
from raftlog_client.leader_questions import LeaderQuestions, answers
from raftlog_client.metadata import METADATA_PATIENCE_S, ClusterMetadata
from raftlog_client.transport import NodeAddress
from raftlog_client.types import OffsetAndTimestamp, PartitionOffsets, TopicPartition


async def topic_offsets(
    metadata: ClusterMetadata, topics: Iterable[str], *, at_hand_after_s: float | None = None
) -> dict[TopicPartition, PartitionOffsets]:
    """The offsets that can be read, of all partitions of some topics.

    With `at_hand_after_s`, those that are known after so many seconds; the others are left out.
    Raises TopicNotFoundError if a topic does not exist, the last error of a partition without
    answer.
    """
    names = sorted(set(topics))
    if not names:
        return {}
    await metadata.refresh(names)
    partitions = [
        TopicPartition(name, info.partition)
        for name in names
        for info in (await metadata.topic(name)).partitions
    ]
    if at_hand_after_s is None:
        return await partition_offsets(metadata, partitions)
    return answers(
        await offset_questions(metadata).ask(
            partitions, timeout_s=at_hand_after_s, must_settle=False
        )
    )


async def partition_offsets(
    metadata: ClusterMetadata, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, PartitionOffsets]:
    """The offsets that can be read, of some partitions. Raises the error of one without answer."""
    questions = offset_questions(metadata)
    return answers(await questions.ask(partitions, timeout_s=metadata.request_timeout_s))


async def offsets_for_times(
    metadata: ClusterMetadata, timestamps: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The first record at or after a timestamp (ms), of each partition; None if there is none."""

    async def question(
        address: NodeAddress, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, OffsetAndTimestamp | RaftlogClientError | None]:
        body = {"timestamps": _by_topic({one: timestamps[one] for one in partitions})}
        answer = await metadata.call_node(
            address, "POST", "/v1/offsets-for-times", body, timeout_s=timeout_s
        )
        try:
            return {one: _found(answer["offsets"][one.topic][_number(one)]) for one in partitions}
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed(error) from error

    questions = LeaderQuestions[OffsetAndTimestamp | None](metadata, question)
    return answers(await questions.ask(timestamps, timeout_s=metadata.request_timeout_s))


async def deleted_records(
    metadata: ClusterMetadata, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Delete the records of each partition below an offset (-1: all); where they begin now.

    Raises the first partition's error, if any, once all were tried.
    """

    async def question(
        address: NodeAddress, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int | RaftlogClientError]:
        body = {"offsets": _by_topic({one: offsets[one] for one in partitions})}
        answer = await metadata.call_node(
            address, "POST", "/v1/delete-records", body, timeout_s=timeout_s
        )
        try:
            found = {
                TopicPartition(result["topic"], int(result["partition"])): _deleted(result)
                for result in answer["results"]
            }
            return {one: found[one] for one in partitions}
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed(error) from error

    # What is deleted already is not deleted again: a repeat does no harm.
    questions = LeaderQuestions[int](metadata, question)
    return answers(await questions.ask(offsets, timeout_s=metadata.request_timeout_s))


def offset_questions(metadata: ClusterMetadata) -> LeaderQuestions[PartitionOffsets]:
    """What asks for the offsets of partitions."""

    async def question(
        address: NodeAddress, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, PartitionOffsets | RaftlogClientError]:
        topics: dict[str, list[int]] = {}
        for one in partitions:
            topics.setdefault(one.topic, []).append(one.partition)
        # A node has these in memory.
        patience_s = min(timeout_s, METADATA_PATIENCE_S)
        answer = await metadata.call_node(
            address, "POST", "/v1/offsets", {"topics": topics}, timeout_s=patience_s
        )
        try:
            return {
                one: _offsets(answer["topics"][one.topic]["partitions"][_number(one)])
                for one in partitions
            }
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed(error) from error

    return LeaderQuestions[PartitionOffsets](metadata, question)


def _by_topic(values: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for one, value in values.items():
        topics.setdefault(one.topic, {})[_number(one)] = value
    return topics


def _number(partition: TopicPartition) -> str:
    return str(int(partition.partition))


def _offsets(fields: Mapping[str, Any]) -> PartitionOffsets:
    return PartitionOffsets(
        int(fields["beginning_offset"]), int(fields["end_offset"]), int(fields["high_watermark"])
    )


def _found(fields: Mapping[str, Any] | None) -> OffsetAndTimestamp | None:
    if fields is None:
        return None
    return OffsetAndTimestamp(int(fields["offset"]), int(fields["timestamp"]))


def _deleted(result: Mapping[str, Any]) -> int | RaftlogClientError:
    if code := result.get("error_code"):
        text = f"{result['topic']}-{result['partition']}: {result.get('message')}"
        return server_error(int(code), text)
    return int(result["log_start_offset"])


def _malformed(error: Exception) -> RaftlogClientError:
    return RaftlogClientError(f"A node's answer about offsets is malformed: {error!r}")
