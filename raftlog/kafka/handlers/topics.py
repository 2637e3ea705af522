"""Topics are created, deleted, grown, and described page by page."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final

from raftlog.kafka.call import Call
from raftlog.kafka.handlers.brokers import Brokers
from raftlog.kafka.handlers.configs import SOURCES
from raftlog.kafka.handlers.metadata import PARTITIONS_PER_TURN
from raftlog.kafka.handlers.names import (
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    NONE,
    by,
    code,
    deadline_of,
    in_turns,
    topic_name,
    topic_operations,
    unknown_topic_code,
)
from raftlog.kafka.messages import topics as messages
from raftlog.metadata.commands import Assignments
from raftlog.metadata.image import PartitionImage, TopicImage
from raftlog.record import errors
from raftlog.record.coordinators import INTERNAL_TOPICS
from raftlog.record.errors import LogError
from raftlog.record.types import BrokerId

DEFAULT: Final = -1
"""A number of partitions or replicas that the cluster is to choose."""
DELETIONS_AT_ONCE: Final = 16
DESCRIBED_PARTITIONS_MAX: Final = 2_000
"""Partitions of one page, Kafka's own bound."""


async def create_topics(
    call: Call, request: messages.CreateTopicsRequest
) -> messages.CreateTopicsResponse:
    """19. Creates topics one after the other. Each placement counts the topics before it."""
    deadline = deadline_of(request.timeout_ms)
    counts = Counter(topic.name for topic in request.topics)
    results: dict[str, messages.CreatableTopicResult] = {}
    async for topic in in_turns(call, request.topics):
        if counts[topic.name] > 1:
            results[topic.name] = messages.CreatableTopicResult(
                topic.name, None, INVALID_REQUEST, "The request names this topic twice."
            )
        else:
            results[topic.name] = await _create(call, topic, request.validate_only, deadline)
    return messages.CreateTopicsResponse(topics=tuple(results.values()))


async def _create(
    call: Call, wanted: messages.CreatableTopic, validate_only: bool, deadline: float
) -> messages.CreatableTopicResult:
    partitions, factor = wanted.num_partitions, wanted.replication_factor
    try:
        assignments = _assignments(wanted)
        configs = _configs(wanted)
        topic = await by(
            deadline,
            lambda: call.broker.admin.create_topic(
                call.principal,
                wanted.name,
                partitions=None if partitions == DEFAULT else partitions,
                replication_factor=None if factor == DEFAULT else factor,
                configs=configs,
                assignments=assignments,
                validate_only=validate_only,
            ),
        )
    except LogError as error:
        error_code = _creation_code(call, wanted, error)
        return messages.CreatableTopicResult(
            wanted.name, None, error_code, error.message, configs=None
        )
    try:
        described = call.broker.admin.describe_configs_of(call.principal, topic)
        await call.budget.reserve(len(described), sum(len(config.value) for config in described))
    except LogError as error:
        # The topic exists. Its configs are not for this client, or the response has no room.
        return messages.CreatableTopicResult(
            topic.name, topic.topic_id, NONE, None, topic_config_error_code=code(error)
        )
    return messages.CreatableTopicResult(
        topic.name,
        topic.topic_id,
        NONE,
        None,
        num_partitions=len(topic.partitions),
        replication_factor=topic.replication_factor,
        configs=tuple(
            messages.CreatableTopicConfigs(
                config.entry.name,
                config.value,
                config_source=SOURCES[config.source],
                is_sensitive=False,
            )
            for config in described
        ),
    )


def _assignments(wanted: messages.CreatableTopic) -> Assignments | None:
    """The replicas chosen by the client, by partition. Raises LogError."""
    if not wanted.assignments:
        return None
    if wanted.num_partitions != DEFAULT or wanted.replication_factor != DEFAULT:
        raise LogError(
            errors.BAD_REQUEST,
            "With assignments, the numbers of partitions and replicas must be -1.",
        )
    replicas = {
        assignment.partition_index: assignment.broker_ids for assignment in wanted.assignments
    }
    if sorted(replicas) != list(range(len(wanted.assignments))):
        raise LogError(
            errors.INVALID_PARTITIONS, "Assigned partitions must be 0, 1, 2 …, each once."
        )
    return tuple(tuple(map(BrokerId, replicas[number])) for number in range(len(replicas)))


def _configs(wanted: messages.CreatableTopic) -> dict[str, str]:
    """The configs of a new topic. Raises LogError INVALID_CONFIG for a config without a value."""
    configs: dict[str, str] = {}
    for config in wanted.configs:
        if config.value is None:
            raise LogError(errors.INVALID_CONFIG, f"Config {config.name} has no value.")
        configs[config.name] = config.value
    return configs


def _creation_code(call: Call, wanted: messages.CreatableTopic, error: LogError) -> int:
    """Kafka's code, which differs for partition counts, replica counts and assignments."""
    if error.entry is errors.NOT_ENOUGH_REPLICAS:
        # The code of that name belongs to Produce.
        return INVALID_REPLICATION_FACTOR
    if error.entry is not errors.INVALID_PARTITIONS:
        return code(error)
    if wanted.assignments:
        return INVALID_REPLICA_ASSIGNMENT
    has_partitions = wanted.num_partitions == DEFAULT or wanted.num_partitions > 0
    brokers = call.broker.admin.brokers().values()
    staying = sum(not broker.decommissioning for broker in brokers)
    factor = 1 if wanted.replication_factor == DEFAULT else wanted.replication_factor
    is_factor = has_partitions and not 1 <= factor <= staying
    return INVALID_REPLICATION_FACTOR if is_factor else code(error)


async def delete_topics(
    call: Call, request: messages.DeleteTopicsRequest
) -> messages.DeleteTopicsResponse:
    """20. Deletes topics by name, or by id."""
    deadline = deadline_of(request.timeout_ms)
    wanted = request.topics or tuple(
        messages.DeleteTopicState(name) for name in request.topic_names
    )
    counts = Counter((topic.name, topic.topic_id) for topic in wanted)
    distinct = [messages.DeleteTopicState(*key) for key in counts]
    results: list[messages.DeletableTopicResult] = []
    for start in range(0, len(distinct), DELETIONS_AT_ONCE):
        some = distinct[start : start + DELETIONS_AT_ONCE]
        results += await asyncio.gather(
            *(_delete(call, topic, counts[topic.name, topic.topic_id], deadline) for topic in some)
        )
    return messages.DeleteTopicsResponse(responses=tuple(results))


async def _delete(
    call: Call, wanted: messages.DeleteTopicState, count: int, deadline: float
) -> messages.DeletableTopicResult:
    name, topic_id = wanted.name, wanted.topic_id
    try:
        found = _named(call, wanted, count)
        await by(deadline, lambda: call.broker.admin.delete_topic(call.principal, found))
    except LogError as error:
        # The name of a topic known only by its id stays hidden.
        return messages.DeletableTopicResult(name, topic_id, code(error), error.message)
    return messages.DeletableTopicResult(found, topic_id, NONE, None)


def _named(call: Call, wanted: messages.DeleteTopicState, count: int) -> str:
    """The name of a topic that the request has `count` times. Raises LogError."""
    if (wanted.name is None) == (wanted.topic_id is None) or count > 1:
        raise LogError(errors.BAD_REQUEST, "Name each topic once, and by name or id.")
    return topic_name(call.broker, wanted.name or "", wanted.topic_id)


async def create_partitions(
    call: Call, request: messages.CreatePartitionsRequest
) -> messages.CreatePartitionsResponse:
    """37. Grows topics."""
    deadline = deadline_of(request.timeout_ms)
    counts = Counter(topic.name for topic in request.topics)
    results: dict[str, messages.CreatePartitionsTopicResult] = {}
    async for topic in in_turns(call, request.topics):
        error_code, message = INVALID_REQUEST, "The request names this topic twice."
        if counts[topic.name] == 1:
            error_code, message = await _grow(call, topic, request.validate_only, deadline)
        results[topic.name] = messages.CreatePartitionsTopicResult(
            topic.name, error_code, message or None
        )
    return messages.CreatePartitionsResponse(results=tuple(results.values()))


async def _grow(
    call: Call, wanted: messages.CreatePartitionsTopic, validate_only: bool, deadline: float
) -> tuple[int, str]:
    assignments = None
    if wanted.assignments:
        assignments = tuple(
            tuple(map(BrokerId, assignment.broker_ids)) for assignment in wanted.assignments
        )
    try:
        await by(
            deadline,
            lambda: call.broker.admin.add_partitions(
                call.principal,
                wanted.name,
                wanted.count,
                assignments=assignments,
                validate_only=validate_only,
            ),
        )
    except LogError as error:
        if error.entry is errors.NOT_ENOUGH_REPLICAS:
            return INVALID_REPLICATION_FACTOR, error.message
        if error.entry is errors.INVALID_PARTITIONS and assignments and _grows(call, wanted):
            return INVALID_REPLICA_ASSIGNMENT, error.message
        return code(error), error.message
    return NONE, ""


def _grows(call: Call, wanted: messages.CreatePartitionsTopic) -> bool:
    """Whether the topic would get more partitions."""
    topic = call.broker.services.metadata.image.topics_by_name.get(wanted.name)
    return topic is not None and wanted.count > len(topic.partitions)


async def describe_topic_partitions(
    call: Call, request: messages.DescribeTopicPartitionsRequest
) -> messages.DescribeTopicPartitionsResponse:
    """75. Returns partitions in the order of names and numbers, a page at a time."""
    admin, cursor = call.broker.admin, request.cursor
    if request.topics:
        known = admin.topics_of(call.principal, sorted({topic.name for topic in request.topics}))
    else:
        known = {topic.name: topic for topic in admin.topics(call.principal)}
    brokers = Brokers(call)
    room = min(max(request.response_partition_limit, 1), DESCRIBED_PARTITIONS_MAX)
    topics: list[messages.DescribeTopicPartitionsResponseTopic] = []
    following: messages.ResponseCursor | None = None
    turn = 0
    for name, topic in _from(known, cursor):
        if room <= 0 or len(topics) == DESCRIBED_PARTITIONS_MAX:
            following = messages.ResponseCursor(name, 0)
            break
        if topic is None:
            topics.append(_unknown(name))
            continue
        first = 0
        if cursor is not None and cursor.topic_name == name:
            first = max(cursor.partition_index, 0)
        rows = tuple(islice(topic.partitions, first, first + room))
        topics.append(
            messages.DescribeTopicPartitionsResponseTopic(
                error_code=NONE,
                name=name,
                topic_id=topic.topic_id,
                is_internal=name in INTERNAL_TOPICS,
                partitions=tuple(_described(row, brokers) for row in rows),
                topic_authorized_operations=topic_operations(call, name),
            )
        )
        room -= len(rows)
        turn += 1 + len(rows)
        if turn > PARTITIONS_PER_TURN:
            turn = 0
            await call.broker.turns.wait()
        if first + len(rows) < len(topic.partitions):
            following = messages.ResponseCursor(name, first + len(rows))
            break
    return messages.DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=following)


def _from(
    topics: dict[str, TopicImage | None] | dict[str, TopicImage],
    cursor: messages.RequestCursor | None,
) -> Iterator[tuple[str, TopicImage | None]]:
    """The topics from the cursor's on."""
    first = "" if cursor is None else cursor.topic_name
    return ((name, topic) for name, topic in topics.items() if name >= first)


def _unknown(name: str) -> messages.DescribeTopicPartitionsResponseTopic:
    return messages.DescribeTopicPartitionsResponseTopic(unknown_topic_code(name), name)


def _described(
    row: PartitionImage, brokers: Brokers
) -> messages.DescribeTopicPartitionsResponsePartition:
    error_code, leader = brokers.leader(row)
    return messages.DescribeTopicPartitionsResponsePartition(
        error_code=error_code,
        partition_index=row.partition,
        leader_id=leader,
        leader_epoch=row.leader_epoch,
        replica_nodes=row.replicas,
        isr_nodes=row.isr,
        eligible_leader_replicas=row.elr,
        last_known_elr=(),
        offline_replicas=brokers.offline(row),
    )
