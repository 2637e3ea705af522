"""Groups commit offsets by OffsetCommit, OffsetFetch and OffsetDelete.

Newer versions name topics only by their ids, and several groups in one fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from raftlog.broker.groups import Committer, FetchedOffset, OffsetToCommit
from raftlog.kafka.call import Call
from raftlog.kafka.handlers.names import (
    NONE,
    code,
    code_of,
    coordinator_code,
    each,
    numbers_by_topic,
    topic_name,
)
from raftlog.kafka.messages import group_offsets as messages
from raftlog.record import errors
from raftlog.record.errors import LogError
from raftlog.record.types import TopicId

Part = TypeVar(
    "Part", messages.OffsetFetchResponsePartition, messages.OffsetFetchResponsePartitions
)

NO_OFFSET: Final = -1
EPOCHS_SINCE: Final = 9
"""The first version of OffsetCommit that knows member epochs (KIP-848)."""
IDS_SINCE: Final = 10
"""The first version of OffsetFetch that names topics by their ids."""
GROUPS_SINCE: Final = 8
"""The first version of OffsetFetch that names several groups."""
GROUP_ERROR_SINCE: Final = 2
"""The first version of OffsetFetch with an error beside those of the partitions."""
GROUP_SUBSCRIBED_TO_TOPIC: Final = 86


async def commit(
    call: Call, request: messages.OffsetCommitRequest
) -> messages.OffsetCommitResponse:
    """8. Commits offsets as a member, or of a group without members."""
    codes: list[int] = []
    offsets: list[OffsetToCommit] = []
    places: list[int] = []
    for topic in request.topics:
        refusal, name = NONE, topic.name
        try:
            name = topic_name(call.broker, topic.name, topic.topic_id)
        except LogError as error:
            refusal = code(error)
        for partition in topic.partitions:
            if refusal == NONE:
                places.append(len(codes))
                offsets.append(
                    OffsetToCommit(
                        topic=name,
                        partition=partition.partition_index,
                        offset=partition.committed_offset,
                        leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.committed_metadata or "",
                        topic_id=topic.topic_id,
                    )
                )
            codes.append(refusal)
    for place, error_code in zip(places, await _committed(call, request, offsets), strict=True):
        codes[place] = error_code
    following = iter(codes)
    return messages.OffsetCommitResponse(
        topics=tuple(
            messages.OffsetCommitResponseTopic(
                topic.name,
                topic.topic_id,
                tuple(
                    messages.OffsetCommitResponsePartition(
                        partition.partition_index, next(following)
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


async def _committed(
    call: Call, request: messages.OffsetCommitRequest, offsets: Sequence[OffsetToCommit]
) -> list[int]:
    """Kafka's code of each offset."""
    committer = Committer(
        request.member_id, request.generation_id_or_member_epoch, request.group_instance_id
    )
    try:
        outcomes = await call.broker.groups.commit(
            call.principal,
            request.group_id,
            offsets,
            committer,
            retention_ms=request.retention_time_ms,
        )
    except LogError as error:
        error_code = coordinator_code(error)
        if error.entry is errors.STALE_MEMBER_EPOCH and call.version < EPOCHS_SINCE:
            error_code = errors.ILLEGAL_GENERATION.kafka_code
        return [error_code] * len(offsets)
    return [code_of(outcome.error_code) for outcome in outcomes]


class _Wanted(NamedTuple):
    """A topic of a fetch."""

    name: str
    topic_id: TopicId | None
    """Id of the topic, or None if the request names it."""
    numbers: tuple[int, ...]


class _Found(NamedTuple):
    """A topic of a response."""

    name: str
    topic_id: TopicId | None
    offsets: list[FetchedOffset]


async def fetch(call: Call, request: messages.OffsetFetchRequest) -> messages.OffsetFetchResponse:
    """9. Returns committed offsets of one group, or of several."""
    is_stable = request.require_stable
    if call.version >= GROUPS_SINCE:
        groups = await each(call, partial(_of_group, call, is_stable=is_stable), request.groups)
        return messages.OffsetFetchResponse(groups=tuple(groups))
    wanted = None
    if request.topics is not None:
        named = (((topic.name, None), topic.partition_indexes) for topic in request.topics)
        wanted = _wanted(named)
    try:
        found = await _found(call, request.group_id, wanted, None, is_stable=is_stable)
    except LogError as error:
        error_code = coordinator_code(error)
        failed = wanted if wanted is not None and call.version < GROUP_ERROR_SINCE else ()
        return messages.OffsetFetchResponse(
            topics=tuple(
                messages.OffsetFetchResponseTopic(
                    topic.name,
                    tuple(
                        messages.OffsetFetchResponsePartition(n, NO_OFFSET, error_code=error_code)
                        for n in topic.numbers
                    ),
                )
                for topic in failed
            ),
            error_code=error_code,
        )
    return messages.OffsetFetchResponse(
        topics=tuple(
            messages.OffsetFetchResponseTopic(
                topic.name, _partitions(messages.OffsetFetchResponsePartition, topic.offsets)
            )
            for topic in found
        )
    )


async def _of_group(
    call: Call, group: messages.OffsetFetchRequestGroup, *, is_stable: bool
) -> messages.OffsetFetchResponseGroup:
    wanted = None
    if group.topics is not None:
        named = (((topic.name, topic.topic_id), topic.partition_indexes) for topic in group.topics)
        wanted = _wanted(named)
    reader = Committer(group.member_id or "", group.member_epoch)
    try:
        found = await _found(call, group.group_id, wanted, reader, is_stable=is_stable)
    except LogError as error:
        return messages.OffsetFetchResponseGroup(group.group_id, (), coordinator_code(error))
    topics = (
        messages.OffsetFetchResponseTopics(
            topic.name,
            topic.topic_id,
            _partitions(messages.OffsetFetchResponsePartitions, topic.offsets),
        )
        for topic in found
    )
    return messages.OffsetFetchResponseGroup(group.group_id, tuple(topics))


def _wanted(topics: Iterable[tuple[tuple[str, TopicId | None], Iterable[int]]]) -> list[_Wanted]:
    """The topics of a request, each topic and each partition once."""
    return [_Wanted(*topic, numbers) for topic, numbers in numbers_by_topic(topics).items()]


async def _found(
    call: Call,
    group_id: str,
    wanted: Sequence[_Wanted] | None,
    reader: Committer | None,
    *,
    is_stable: bool,
) -> list[_Found]:
    """The topics of the response, in the request's order, or all if None. Raises LogError."""
    await call.budget.reserve(1)
    topics: list[tuple[_Wanted, str, int]] = []
    numbers: dict[str, dict[int, None]] = {}
    for topic in wanted or ():
        try:
            name = topic_name(call.broker, topic.name, topic.topic_id)
        except LogError as error:
            topics.append((topic, "", error.entry.code))
        else:
            # Offsets of topics without the right to describe them are missing in the response.
            topics.append((topic, name, errors.FORBIDDEN.code))
            numbers.setdefault(name, {}).update(dict.fromkeys(topic.numbers))
    committed = await call.broker.groups.committed(
        call.principal,
        group_id,
        None if wanted is None else numbers,
        require_stable=is_stable,
        reader=reader,
    )
    if wanted is None:
        found = _of_all(call, committed)
    else:
        offsets = {(offset.topic, offset.partition): offset for offset in committed}
        found = [
            _Found(
                topic.name,
                topic.topic_id,
                [
                    offsets.get((name, n)) or FetchedOffset(name, n, NO_OFFSET, error_code=missing)
                    for n in topic.numbers
                ],
            )
            for topic, name, missing in topics
        ]
    rows = [offset for topic in found for offset in topic.offsets]
    await call.budget.reserve(len(found) + len(rows), sum(len(row.metadata) for row in rows))
    return found


def _of_all(call: Call, committed: Iterable[FetchedOffset]) -> list[_Found]:
    """All offsets by topic, without those of topics that have been deleted."""
    by_name = call.broker.services.metadata.image.topics_by_name
    found: dict[str, _Found] = {}
    for offset in committed:
        topic = by_name.get(offset.topic)
        topic_id = None if topic is None else topic.topic_id
        if topic_id is None and call.version >= IDS_SINCE:
            continue
        if None not in (topic_id, offset.topic_id) and topic_id != offset.topic_id:
            continue
        found.setdefault(offset.topic, _Found(offset.topic, topic_id, [])).offsets.append(offset)
    return list(found.values())


def _partitions(part: type[Part], offsets: Iterable[FetchedOffset]) -> tuple[Part, ...]:
    """The partitions of a response."""
    return tuple(
        part(
            partition_index=offset.partition,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
            error_code=code_of(offset.error_code),
        )
        for offset in offsets
    )


async def delete(
    call: Call, request: messages.OffsetDeleteRequest
) -> messages.OffsetDeleteResponse:
    """47. Deletes committed offsets, of topics that no member subscribes to."""
    groups = call.broker.groups
    try:
        # The right to the group, and its existence, are errors of the whole request.
        await groups.delete_offsets(call.principal, request.group_id, {})
    except LogError as error:
        return messages.OffsetDeleteResponse(error_code=coordinator_code(error))
    wanted = numbers_by_topic(
        (topic.name, (partition.partition_index for partition in topic.partitions))
        for topic in request.topics
    )
    deleted = await each(call, partial(_deleted, call, request.group_id), wanted.items())
    return messages.OffsetDeleteResponse(topics=tuple(deleted))


async def _deleted(
    call: Call, group_id: str, topic: tuple[str, tuple[int, ...]]
) -> messages.OffsetDeleteResponseTopic:
    name, numbers = topic
    error_code = NONE
    try:
        # Unknown topics have no offsets. Clients expect an error for them.
        call.broker.services.metadata.image.topic(name)
        await call.broker.groups.delete_offsets(call.principal, group_id, {name: numbers})
    except LogError as error:
        error_code = coordinator_code(error, forbidden=code(error))
        if error.entry is errors.GROUP_NOT_EMPTY:
            error_code = GROUP_SUBSCRIBED_TO_TOPIC
    return messages.OffsetDeleteResponseTopic(
        name, tuple(messages.OffsetDeleteResponsePartition(n, error_code) for n in numbers)
    )
