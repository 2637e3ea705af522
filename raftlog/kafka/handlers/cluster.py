"""The cluster has brokers, leaders, reassignments, log directories and the metadata quorum.

The node that receives a request responds to it. Changes go through the metadata quorum from any
node, and descriptions are this node's view. DescribeLogDirs is only about this node's disk, and
clients send it to each broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, TypeVar

from raftlog.broker.admin import ClusterMembership, ElectionOutcome
from raftlog.kafka.call import Call
from raftlog.kafka.handlers.brokers import Brokers
from raftlog.kafka.handlers.names import (
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    NONE,
    ROWS_PER_TURN,
    UNKNOWN_OPERATIONS,
    by,
    cluster_code,
    cluster_operations,
    deadline_of,
    in_turns,
    numbers_by_topic,
)
from raftlog.kafka.messages import cluster as messages
from raftlog.metadata.decisions.reassignment import Move, target_of
from raftlog.metadata.image import PartitionImage, TopicImage
from raftlog.record.coordinators import METADATA_TOPIC
from raftlog.record.errors import (
    BAD_REQUEST,
    ILLEGAL_STATE,
    INVALID_PARTITIONS,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.record.types import BrokerId, TopicId

NO_CONTROLLER: Final = -1
BROKERS: Final = 1
"""Endpoint type of brokers. Controllers have the other type."""
MISMATCHED_ENDPOINT_TYPE: Final = 114
PREFERRED: Final = 0
UNCLEAN: Final = 1
PREFERRED_LEADER_NOT_AVAILABLE: Final = 80
ELIGIBLE_LEADERS_NOT_AVAILABLE: Final = 83
ELECTION_NOT_NEEDED: Final = 84
NO_REASSIGNMENT_IN_PROGRESS: Final = 85
LOG_DIRECTORY: Final = "data"
"""Name of a node's one log directory. Its path is no concern of clients."""
CONTROLLER_LISTENER: Final = "CONTROLLER"
UNKNOWN: Final = -1
COMPARED_PER_TURN: Final = 5_000
"""Partitions compared in one turn of the event loop."""

T = TypeVar("T")


async def describe_cluster(
    call: Call, request: messages.DescribeClusterRequest
) -> messages.DescribeClusterResponse:
    """60. Returns the brokers with a Kafka listener, and the active controller."""
    if request.endpoint_type != BROKERS:
        return messages.DescribeClusterResponse(
            error_code=MISMATCHED_ENDPOINT_TYPE,
            error_message="This is the listener of a broker: describe the brokers.",
            endpoint_type=request.endpoint_type,
        )
    broker = call.broker
    brokers = Brokers(call, with_fenced=request.include_fenced_brokers)
    wants_operations = request.include_cluster_authorized_operations
    return messages.DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=brokers.controller,
        brokers=tuple(
            messages.DescribeClusterBroker(
                endpoint.broker_id,
                endpoint.host,
                endpoint.port,
                endpoint.rack,
                is_fenced=endpoint.is_fenced,
            )
            for endpoint in brokers.endpoints
        ),
        cluster_authorized_operations=(
            cluster_operations(call) if wants_operations else UNKNOWN_OPERATIONS
        ),
    )


async def elect_leaders(
    call: Call, request: messages.ElectLeadersRequest
) -> messages.ElectLeadersResponse:
    """43. Elects leaders where the preferred replica does not lead.

    An unclean election is for partitions where no replica leads.
    """
    wanted: list[tuple[str, int]] | None = None
    if request.topic_partitions is not None:
        named = [(topic.topic, n) for topic in request.topic_partitions for n in topic.partitions]
        wanted = list(dict.fromkeys(named))
    is_unclean = request.election_type == UNCLEAN
    error_code, message = NONE, ""
    outcomes: list[ElectionOutcome] = []
    if request.election_type not in {PREFERRED, UNCLEAN}:
        error_code, message = INVALID_REQUEST, "There is no such type of election."
    else:
        try:
            outcomes = await by(
                deadline_of(request.timeout_ms),
                lambda: call.broker.admin.elect_leaders(call.principal, wanted, unclean=is_unclean),
            )
        except LogError as error:
            error_code, message = cluster_code(error), error.message
    results = [
        (outcome.topic, _elected(outcome, is_unclean=is_unclean))
        async for outcome in in_turns(call, outcomes, ROWS_PER_TURN)
    ]
    if error_code and wanted is not None:
        # Version 0 has errors of partitions only.
        results = [(topic, messages.PartitionResult(n, error_code, message)) for topic, n in wanted]
    return messages.ElectLeadersResponse(
        error_code=error_code if call.version else NONE,
        replica_election_results=tuple(
            messages.ReplicaElectionResult(topic, tuple(rows)) for topic, rows in _by_topic(results)
        ),
    )


def _elected(outcome: ElectionOutcome, *, is_unclean: bool) -> messages.PartitionResult:
    if outcome.error is None:
        error_code = NONE if outcome.is_needed else ELECTION_NOT_NEEDED
        return messages.PartitionResult(outcome.partition, error_code, None)
    error_code = cluster_code(outcome.error)
    if outcome.error.entry is ILLEGAL_STATE:
        error_code = (
            ELIGIBLE_LEADERS_NOT_AVAILABLE if is_unclean else PREFERRED_LEADER_NOT_AVAILABLE
        )
    return messages.PartitionResult(outcome.partition, error_code, outcome.error.message)


def _by_topic(rows: Iterable[tuple[str, T]]) -> list[tuple[str, list[T]]]:
    """The rows of each topic, in order."""
    topics: dict[str, list[T]] = {}
    for topic, row in rows:
        topics.setdefault(topic, []).append(row)
    return list(topics.items())


async def alter_partition_reassignments(
    call: Call, request: messages.AlterPartitionReassignmentsRequest
) -> messages.AlterPartitionReassignmentsResponse:
    """45. Starts to move partitions to other brokers. Null replicas cancel that."""
    deadline = deadline_of(request.timeout_ms)
    rows = [(topic.name, partition) for topic in request.topics for partition in topic.partitions]
    counts = Counter((name, partition.partition_index) for name, partition in rows)
    errors: dict[tuple[str, int], LogError] = {
        key: LogError(BAD_REQUEST, "The request names this partition twice.")
        for key, count in counts.items()
        if count > 1
    }
    codes: dict[tuple[str, int], int] = {}
    moves: list[Move] = []
    cancelled: list[tuple[str, int]] = []
    for name, partition in rows:
        key = name, partition.partition_index
        if key in errors:
            continue
        if partition.replicas is None:
            cancelled.append(key)
            continue
        move = Move(*key, tuple(map(BrokerId, partition.replicas)))
        if not request.allow_replication_factor_change and _changes_factor(call, move):
            errors[key] = LogError(
                INVALID_PARTITIONS,
                f"{name}-{partition.partition_index} has another number of replicas.",
            )
            codes[key] = INVALID_REPLICATION_FACTOR
            continue
        moves.append(move)
    admin = call.broker.admin
    try:
        errors |= await by(deadline, lambda: admin.reassign_each(call.principal, moves))
        errors |= await by(deadline, lambda: admin.cancel_each(call.principal, cancelled))
    except LogError as error:
        return messages.AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_code=cluster_code(error),
            error_message=error.message,
        )
    results = [
        (name, _reassigned(call, name, number, errors.get((name, number)), codes))
        for name, number in counts
    ]
    return messages.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=tuple(
            messages.ReassignableTopicResponse(name, tuple(some))
            for name, some in _by_topic(results)
        ),
    )


def _changes_factor(call: Call, move: Move) -> bool:
    try:
        row = _image_row(call, move.topic, move.partition)
    except LogError:
        # The reassignment itself reports the unknown partition.
        return False
    return len(move.replicas) != len(target_of(row))


def _is_moving(call: Call, topic: str, number: int) -> bool:
    try:
        row = _image_row(call, topic, number)
    except LogError:
        return False
    return bool(row.adding or row.removing)


def _image_row(call: Call, topic: str, number: int) -> PartitionImage:
    return call.broker.services.metadata.image.partition(topic, number)


def _reassigned(
    call: Call, name: str, number: int, error: LogError | None, codes: Mapping[tuple[str, int], int]
) -> messages.ReassignablePartitionResponse:
    if error is None:
        return messages.ReassignablePartitionResponse(number, NONE, None)
    error_code = codes.get((name, number), cluster_code(error))
    if error.entry is INVALID_PARTITIONS and (name, number) not in codes:
        error_code = INVALID_REPLICA_ASSIGNMENT
    elif error.entry is ILLEGAL_STATE and not _is_moving(call, name, number):
        error_code = NO_REASSIGNMENT_IN_PROGRESS
    return messages.ReassignablePartitionResponse(number, error_code, error.message)


async def list_partition_reassignments(
    call: Call, request: messages.ListPartitionReassignmentsRequest
) -> messages.ListPartitionReassignmentsResponse:
    """46. Returns the partitions that are being moved."""
    wanted: dict[str, set[int]] | None = None
    if request.topics is not None:
        wanted = {}
        for named in request.topics:
            wanted.setdefault(named.name, set()).update(named.partition_indexes)
    found: list[tuple[TopicImage, PartitionImage]] = []
    try:
        moving = call.broker.admin.reassignments(call.principal, None)
    except LogError as error:
        return messages.ListPartitionReassignmentsResponse(
            error_code=cluster_code(error), error_message=error.message
        )
    async for topic, row in in_turns(call, moving, COMPARED_PER_TURN):
        if wanted is None or row.partition in wanted.get(topic.name, ()):
            found.append((topic, row))
    return messages.ListPartitionReassignmentsResponse(
        error_message=None,
        topics=tuple(
            messages.OngoingTopicReassignment(
                name,
                tuple(
                    messages.OngoingPartitionReassignment(
                        row.partition, row.replicas, row.adding, row.removing
                    )
                    for _, row in rows
                ),
            )
            for name, rows in groupby(found, key=lambda pair: pair[0].name)
        ),
    )


async def describe_log_dirs(
    call: Call, request: messages.DescribeLogDirsRequest
) -> messages.DescribeLogDirsResponse:
    """35. Returns this node's replicas and their sizes, without the size of the whole disk."""
    try:
        sizes, free_bytes = call.broker.admin.replica_sizes(call.principal)
        await call.budget.reserve(len(sizes))
    except LogError as error:
        return messages.DescribeLogDirsResponse(error_code=cluster_code(error))
    if request.topics is not None:
        wanted = {(topic.topic, number) for topic in request.topics for number in topic.partitions}
        sizes = [size for size in sizes if size[:2] in wanted]
    topics = _by_topic(
        (size.topic, messages.DescribeLogDirsPartition(size.partition, size.size_bytes))
        for size in sizes
    )
    result = messages.DescribeLogDirsResult(
        NONE,
        LOG_DIRECTORY,
        tuple(messages.DescribeLogDirsTopic(name, tuple(rows)) for name, rows in topics),
        total_bytes=UNKNOWN,
        usable_bytes=free_bytes,
    )
    return messages.DescribeLogDirsResponse(results=(result,))


async def describe_quorum(
    call: Call, request: messages.DescribeQuorumRequest
) -> messages.DescribeQuorumResponse:
    """55. Returns the metadata quorum as this node knows it.

    Only its leader knows the others' offsets.
    """
    try:
        membership = call.broker.admin.membership(call.principal)
    except LogError as error:
        return messages.DescribeQuorumResponse(cluster_code(error), error.message)
    topics = [
        messages.ResponseTopicData(
            name, tuple(_quorum(call, membership, name, number) for number in numbers)
        )
        for name, numbers in numbers_by_topic(
            (topic.topic_name, (row.partition_index for row in topic.partitions))
            for topic in request.topics
        ).items()
    ]
    nodes: tuple[messages.Node, ...] = ()
    if call.version >= 2:
        nodes = tuple(
            messages.Node(
                voter.node_id, (messages.Listener(CONTROLLER_LISTENER, voter.host, voter.port),)
            )
            for voter in membership.voters.voters
        )
    return messages.DescribeQuorumResponse(NONE, None, tuple(topics), nodes)


def _quorum(
    call: Call, membership: ClusterMembership, topic: str, number: int
) -> messages.ResponsePartitionData:
    if topic != METADATA_TOPIC or number != 0:
        entry = UNKNOWN_TOPIC if topic != METADATA_TOPIC else UNKNOWN_PARTITION
        return messages.ResponsePartitionData(
            number, entry.kafka_code, f"The metadata log is {METADATA_TOPIC}-0.", UNKNOWN
        )
    status, voters = membership.status, membership.voters.ids
    observers = (membership.peers.keys() | {int(membership.node_id)}) - voters
    now_ms = call.broker.clock.time_ms()
    return messages.ResponsePartitionData(
        partition_index=number,
        error_code=NONE,
        error_message=None,
        leader_id=UNKNOWN if status.leader_id is None else status.leader_id,
        leader_epoch=status.term,
        # The offset after the last committed entry, as of a log.
        high_watermark=status.commit_index + 1,
        current_voters=_states(call, membership, sorted(voters), now_ms),
        observers=_states(call, membership, sorted(observers), now_ms),
    )


def _states(
    call: Call, membership: ClusterMembership, node_ids: Sequence[int], now_ms: int
) -> tuple[messages.ReplicaState, ...]:
    return tuple(_state(call, membership, node_id, now_ms) for node_id in node_ids)


def _state(
    call: Call, membership: ClusterMembership, node_id: int, now_ms: int
) -> messages.ReplicaState:
    status, peer = membership.status, membership.peers.get(node_id)
    last_index: int | None = None
    heard_ms = UNKNOWN
    if node_id == membership.node_id:
        last_index, heard_ms = status.last_index, now_ms
    elif peer is not None:
        last_index = peer.match_index
        heard_ms = now_ms - round(peer.last_heard_s * 1000)
    has_caught_up = last_index is not None and last_index >= status.commit_index
    return messages.ReplicaState(
        replica_id=node_id,
        replica_directory_id=_directory_id(membership, node_id) if call.version >= 2 else None,
        log_end_offset=UNKNOWN if last_index is None else last_index + 1,
        last_fetch_timestamp=heard_ms,
        last_caught_up_timestamp=heard_ms if has_caught_up else UNKNOWN,
    )


def _directory_id(membership: ClusterMembership, node_id: int) -> TopicId | None:
    """A node's data directory identity as a uuid, or None if it is no uuid."""
    broker = membership.image.brokers.get(BrokerId(node_id))
    if broker is None:
        return None
    try:
        is_uuid = len(bytes.fromhex(broker.directory_id)) == 16
    except ValueError:
        is_uuid = False
    return TopicId(broker.directory_id) if is_uuid else None
