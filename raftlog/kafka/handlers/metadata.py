"""Metadata has brokers with a Kafka listener, topics, and partitions with their leaders."""

from __future__ import annotations

from typing import Final

from raftlog.kafka.call import Call
from raftlog.kafka.handlers.brokers import LEADER_NOT_AVAILABLE, Brokers
from raftlog.kafka.handlers.names import (
    NAMES_PER_TURN,
    NONE,
    UNKNOWN_OPERATIONS,
    cluster_operations,
    code,
    in_turns,
    topic_operations,
    unknown_topic_code,
)
from raftlog.kafka.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from raftlog.metadata.image import PartitionImage, TopicImage
from raftlog.record.coordinators import INTERNAL_TOPICS
from raftlog.record.errors import UNKNOWN_TOPIC, LogError

UNKNOWN_TOPIC_ID: Final = 100
NULLABLE_NAMES: Final = 12
"""The first version whose responses may have topics without a name."""
PARTITIONS_PER_TURN: Final = 1_000
"""Partitions described in one turn of the event loop (5 ms with their encoding)."""


async def metadata(call: Call, request: MetadataRequest) -> MetadataResponse:
    """3. Describes the cluster, at a client's start and after a leader has moved."""
    broker = call.broker
    # librdkafka forgets a broker that is not listed. Its next transaction then waits in vain for a
    # coordinator among the listed brokers (librdkafka 5511). Other clients detect the loss by a
    # refused connection.
    brokers = Brokers(call, with_recent=True)
    topics = await _within_budget(call, await _topics(call, request))
    described = []
    count = 0
    for topic in topics:
        if isinstance(topic, MetadataResponseTopic):
            described.append(topic)
            continue
        count += len(topic.partitions)
        if count > PARTITIONS_PER_TURN:
            count = 0
            await broker.turns.wait()
        operations = UNKNOWN_OPERATIONS
        if request.include_topic_authorized_operations:
            operations = topic_operations(call, topic.name)
        described.append(_described(topic, brokers, operations))
    wants_operations = request.include_cluster_authorized_operations
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(endpoint.broker_id, endpoint.host, endpoint.port, endpoint.rack)
            for endpoint in brokers.endpoints
        ),
        cluster_id=broker.cluster_id,
        controller_id=brokers.controller,
        topics=tuple(described),
        cluster_authorized_operations=(
            cluster_operations(call) if wants_operations else UNKNOWN_OPERATIONS
        ),
    )


async def _within_budget(
    call: Call, topics: list[TopicImage | MetadataResponseTopic]
) -> list[TopicImage | MetadataResponseTopic]:
    """The topics, or their errors if the response has no room for the partitions.

    Clients repeat a request for a topic without a leader. The response takes all of its bytes at
    once, so that no two responses wait for each other.
    """
    try:
        await call.budget.reserve(sum(1 + len(topic.partitions) for topic in topics))
    except LogError:
        return [
            topic
            if isinstance(topic, MetadataResponseTopic)
            else MetadataResponseTopic(LEADER_NOT_AVAILABLE, topic.name, topic.topic_id)
            for topic in topics
        ]
    return topics


async def _topics(call: Call, request: MetadataRequest) -> list[TopicImage | MetadataResponseTopic]:
    """The topics of the request. A topic that does not exist has a response with an error."""
    broker, principal = call.broker, call.principal
    if request.topics is None or (call.version == 0 and not request.topics):
        return list(broker.admin.topics(principal))
    found: list[TopicImage | MetadataResponseTopic] = []
    # A set in Apache Kafka.
    distinct = list(dict.fromkeys(request.topics))
    by_id = broker.services.metadata.image.topics_by_id
    names = [
        wanted.name for wanted in distinct if wanted.topic_id is None and wanted.name is not None
    ]
    known = broker.admin.topics_of(principal, names)
    async for wanted in in_turns(call, distinct, NAMES_PER_TURN):
        name = wanted.name
        if wanted.topic_id is not None:
            topic = by_id.get(wanted.topic_id)
            seen = None if topic is None else broker.admin.topics_of(principal, [topic.name])
            if topic is None or not seen or seen[topic.name] is None:
                unknown = None if call.version >= NULLABLE_NAMES else ""
                found.append(MetadataResponseTopic(UNKNOWN_TOPIC_ID, unknown, wanted.topic_id))
            else:
                found.append(topic)
        elif name is not None:
            topic = known[name]
            if topic is not None:
                found.append(topic)
            else:
                found.append(await _missing(call, name, request.allow_auto_topic_creation))
    return found


async def _missing(call: Call, name: str, may_create: bool) -> TopicImage | MetadataResponseTopic:
    if not may_create:
        return MetadataResponseTopic(unknown_topic_code(name), name)
    try:
        return await call.broker.produce.topic(call.principal, name)
    except LogError as error:
        is_unknown = error.entry is UNKNOWN_TOPIC
        return MetadataResponseTopic(unknown_topic_code(name) if is_unknown else code(error), name)


def _described(topic: TopicImage, brokers: Brokers, operations: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(_partition(row, brokers) for row in topic.partitions),
        topic_authorized_operations=operations,
    )


def _partition(row: PartitionImage, brokers: Brokers) -> MetadataResponsePartition:
    error_code, leader = brokers.leader(row)
    return MetadataResponsePartition(
        error_code=error_code,
        partition_index=row.partition,
        leader_id=leader,
        leader_epoch=row.leader_epoch,
        replica_nodes=row.replicas,
        isr_nodes=row.isr,
        offline_replicas=brokers.offline(row),
    )
