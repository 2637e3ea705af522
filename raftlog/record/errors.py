"""The error table, every error of raftlog once, for server, client and OpenAPI.

A code is the HTTP status followed by two digits, as in Kafka's REST proxies. Codes never change
their meaning. `retriable` means that the same request may succeed later without any change.
`refresh_metadata` means that the caller's view of topics and leaders is stale. `outcome_unknown`
means that a write may or may not have happened, so only an idempotent retry is safe.

`kafka_code` is the code of org.apache.kafka.common.protocol.Errors that makes Kafka's clients do
the right thing. A retriable entry has a code that they retry. -1 (UNKNOWN_SERVER_ERROR) stands only
where no code of Kafka fits. Entries for HTTP only also have a code, so that no error lacks it.

The module also holds advice to operators that several layers share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """One row of the table."""

    code: int
    name: str
    message: str
    kafka_code: int = field(kw_only=True)
    """The code that the error has in Kafka's protocol."""
    retriable: bool = False
    refresh_metadata: bool = False
    outcome_unknown: bool = False

    @property
    def http_status(self) -> int:
        """HTTP status of the error, the code's first three digits."""
        return self.code // 100


class LogError(Exception):
    """A failure named by the table. `str()` is the message for the user, whole and specific."""

    def __init__(self, entry: ErrorEntry, message: str | None = None) -> None:
        super().__init__(message or entry.message)
        self.entry = entry

    @property
    def message(self) -> str:
        """The cause, and where helpful, the next step."""
        return str(self.args[0])

    def as_outcome(self) -> Self:
        """Prepare this error to be kept as the outcome of one part of a request.

        Drops the traceback. Its frames refer to the outcomes, and only a full collection frees such
        a cycle. A request of 10,000 parts would make 10,000.
        """
        self.__context__ = None
        return self.with_traceback(None)


QUOTED_CHARACTERS_MAX: Final = 80


def quoted(text: str) -> str:
    """Quote the text for an error, with long text cut and control characters escaped."""
    shown = repr(text[:QUOTED_CHARACTERS_MAX])
    most = QUOTED_CHARACTERS_MAX + 2
    return shown if len(shown) <= most else f"{shown[: most - 2]}…{shown[0]}"


BAD_REQUEST = ErrorEntry(40001, "BAD_REQUEST", "The request is malformed.", kafka_code=42)
UNAUTHORIZED = ErrorEntry(40101, "UNAUTHORIZED", "Authentication is required.", kafka_code=58)
# This is for a topic. The listener returns 30, 31 or 53 for a group, the cluster, a transactional
# id.
FORBIDDEN = ErrorEntry(40301, "FORBIDDEN", "Not allowed.", kafka_code=29)
ORIGIN_NOT_ALLOWED = ErrorEntry(
    40302,
    "ORIGIN_NOT_ALLOWED",
    "Pages of that origin may not use this node from a browser.",
    kafka_code=31,
)
NOT_FOUND = ErrorEntry(40400, "NOT_FOUND", "No such resource.", kafka_code=91)
# Kafka's clients retry it, since not every broker knows a new topic yet. Here the caller has to
# refresh its metadata first, for partitions and topic ids as well.
UNKNOWN_TOPIC = ErrorEntry(
    40401, "UNKNOWN_TOPIC", "Topic not found.", kafka_code=3, refresh_metadata=True
)
UNKNOWN_PARTITION = ErrorEntry(
    40402, "UNKNOWN_PARTITION", "Partition not found.", kafka_code=3, refresh_metadata=True
)
UNKNOWN_INSTANCE = ErrorEntry(
    40403, "UNKNOWN_INSTANCE", "Consumer instance not found.", kafka_code=25
)
UNKNOWN_TOPIC_ID = ErrorEntry(
    40404,
    "UNKNOWN_TOPIC_ID",
    "The topic of that name has another id: it was deleted, and created again.",
    kafka_code=100,
    refresh_metadata=True,
)
UNKNOWN_GROUP = ErrorEntry(40421, "UNKNOWN_GROUP", "Group not found.", kafka_code=69)
UNKNOWN_MEMBER = ErrorEntry(
    40422,
    "UNKNOWN_MEMBER",
    "The group has no such member: its session ended, or it left. Give up all partitions and join "
    "again, with epoch 0.",
    kafka_code=25,
)
UNKNOWN_TRANSACTION = ErrorEntry(
    40440,
    "UNKNOWN_TRANSACTION",
    "No transaction of that transactional id is known.",
    kafka_code=105,
)
METHOD_NOT_ALLOWED = ErrorEntry(
    40501, "METHOD_NOT_ALLOWED", "Method not allowed here.", kafka_code=42
)
UNSUPPORTED_FORMAT = ErrorEntry(
    40601,
    "UNSUPPORTED_FORMAT",
    "The record cannot be given in the requested format.",
    kafka_code=43,
)
REQUEST_TIMEOUT = ErrorEntry(
    40801, "REQUEST_TIMEOUT", "The request did not arrive in time.", kafka_code=7, retriable=True
)
INSTANCE_EXISTS = ErrorEntry(
    40902, "INSTANCE_EXISTS", "Consumer instance already exists.", kafka_code=92
)
# Kafka names each such state. The listener knows the request, and so the closer code.
ILLEGAL_STATE = ErrorEntry(
    40903, "ILLEGAL_STATE", "Not possible in the present state.", kafka_code=42
)
TOPIC_EXISTS = ErrorEntry(
    40904, "TOPIC_EXISTS", "A topic of that name exists already.", kafka_code=36
)
OUT_OF_ORDER_SEQUENCE = ErrorEntry(
    40905,
    "OUT_OF_ORDER_SEQUENCE",
    "A sequence number is missing: batches must arrive in order.",
    kafka_code=45,
)
# The response to Produce has 47, since older clients know no other code there.
PRODUCER_FENCED = ErrorEntry(
    40906, "PRODUCER_FENCED", "A newer epoch of this producer id is known.", kafka_code=90
)
DUPLICATE_SEQUENCE = ErrorEntry(
    40907,
    "DUPLICATE_SEQUENCE",
    "The batch repeats one written so long ago that its offset is no longer known.",
    kafka_code=46,
)
COORDINATOR_FENCED = ErrorEntry(
    40908,
    "COORDINATOR_FENCED",
    "The coordinator epoch is over, or was never a coordinator's.",
    kafka_code=52,
)
# Kafka's leaders also respond so (KIP-890), and every producer retries it.
TRANSACTION_NOT_VERIFIED = ErrorEntry(
    40909,
    "TRANSACTION_NOT_VERIFIED",
    "The coordinator has not confirmed the transaction to this partition yet.",
    kafka_code=19,
    retriable=True,
)
UNKNOWN_PRODUCER_ID = ErrorEntry(
    40910,
    "UNKNOWN_PRODUCER_ID",
    "The partition does not know the producer: its first batch must have sequence 0.",
    kafka_code=59,
)
FENCED_MEMBER_EPOCH = ErrorEntry(
    40921,
    "FENCED_MEMBER_EPOCH",
    "The member epoch is not the present one. Give up all partitions and join again, with epoch 0.",
    kafka_code=110,
)
STALE_MEMBER_EPOCH = ErrorEntry(
    40922,
    "STALE_MEMBER_EPOCH",
    "The member has another epoch by now. Try again with the epoch of its last heartbeat's answer.",
    kafka_code=113,
)
UNRELEASED_INSTANCE_ID = ErrorEntry(
    40923,
    "UNRELEASED_INSTANCE_ID",
    "The instance id belongs to a live member. Stop that member, or wait for its session to end.",
    kafka_code=111,
)
FENCED_INSTANCE_ID = ErrorEntry(
    40924,
    "FENCED_INSTANCE_ID",
    "Another member has taken over the instance id. Stop one of them: two have the same id.",
    kafka_code=82,
)
GROUP_NOT_EMPTY = ErrorEntry(
    40925, "GROUP_NOT_EMPTY", "The group has members. Stop all of them first.", kafka_code=68
)
GROUP_FULL = ErrorEntry(
    40926,
    "GROUP_FULL",
    "The group has as many members as it may. Stop one, or use another group.",
    kafka_code=81,
)
# Kafka bounds no number of groups. A member ends with 81, and repeats nothing.
TOO_MANY_GROUPS = ErrorEntry(
    40927,
    "TOO_MANY_GROUPS",
    "The coordinator has as many groups as it may. Delete groups no longer used.",
    kafka_code=81,
)
TOO_MANY_INSTANCES = ErrorEntry(
    40928,
    "TOO_MANY_INSTANCES",
    "The coordinator has as many consumer instances as it may. Delete instances no longer used.",
    kafka_code=81,
)
ILLEGAL_GENERATION = ErrorEntry(
    40930, "ILLEGAL_GENERATION", "The group has another generation: join it again.", kafka_code=22
)
REBALANCE_IN_PROGRESS = ErrorEntry(
    40931, "REBALANCE_IN_PROGRESS", "The group rebalances: join it again.", kafka_code=27
)
MEMBER_ID_REQUIRED = ErrorEntry(
    40932, "MEMBER_ID_REQUIRED", "Join again with the member id of this answer.", kafka_code=79
)
INCONSISTENT_PROTOCOL = ErrorEntry(
    40933, "INCONSISTENT_PROTOCOL", "The member shares no protocol with the group.", kafka_code=23
)
UNSTABLE_OFFSET_COMMIT = ErrorEntry(
    40934,
    "UNSTABLE_OFFSET_COMMIT",
    "A transaction with an offset of this partition is not decided yet.",
    kafka_code=88,
    retriable=True,
)
# Kafka has none, since no commit of Kafka's protocol names the offset that it replaces.
OFFSET_SUPERSEDED = ErrorEntry(
    40935,
    "OFFSET_SUPERSEDED",
    "Another offset was committed meanwhile: a late copy of an earlier commit changes nothing.",
    kafka_code=-1,
)
CONCURRENT_TRANSACTIONS = ErrorEntry(
    40940,
    "CONCURRENT_TRANSACTIONS",
    "The transaction before is not complete yet; try again.",
    kafka_code=51,
    retriable=True,
)
INVALID_TXN_STATE = ErrorEntry(
    40941,
    "INVALID_TXN_STATE",
    "Not possible in the present state of the transaction.",
    kafka_code=48,
)
INVALID_PRODUCER_EPOCH = ErrorEntry(
    40942,
    "INVALID_PRODUCER_EPOCH",
    "The coordinator never gave out this producer epoch.",
    kafka_code=47,
)
INVALID_PRODUCER_ID_MAPPING = ErrorEntry(
    40943,
    "INVALID_PRODUCER_ID_MAPPING",
    "The transactional id has no such producer id; initialize the producer again.",
    kafka_code=49,
)
TRANSACTION_ABORTABLE = ErrorEntry(
    40944,
    "TRANSACTION_ABORTABLE",
    "The transaction can only be aborted; the producer can begin another one after that.",
    kafka_code=120,
)
# Kafka has no sinks.
SINK_OWNED = ErrorEntry(
    40945,
    "SINK_OWNED",
    "The sink's epochs belong to another owner: use a sink id of your own.",
    kafka_code=-1,
)
# A producer splits its batch after 10.
BODY_TOO_LARGE = ErrorEntry(
    41301, "BODY_TOO_LARGE", "The request body is too large.", kafka_code=10
)
RECORD_TOO_LARGE = ErrorEntry(
    41302,
    "RECORD_TOO_LARGE",
    "A record batch is larger than the topic's max.message.bytes.",
    kafka_code=10,
)
UNSUPPORTED_MEDIA_TYPE = ErrorEntry(
    41501,
    "UNSUPPORTED_MEDIA_TYPE",
    "The content type of the body is not understood here.",
    kafka_code=42,
)
OFFSET_OUT_OF_RANGE = ErrorEntry(
    41601, "OFFSET_OUT_OF_RANGE", "The offset is out of range.", kafka_code=1
)
HOST_NOT_ALLOWED = ErrorEntry(
    42101,
    "HOST_NOT_ALLOWED",
    "The host name of the request is not one of this node.",
    kafka_code=42,
)
INVALID_BODY = ErrorEntry(42201, "INVALID_BODY", "The request body is not valid.", kafka_code=42)
# Kafka's clients retry it, as the bytes were right when sent. Here the sender decides.
CORRUPT_BATCH = ErrorEntry(
    42202,
    "CORRUPT_BATCH",
    "A record batch is damaged: its CRC does not match its bytes.",
    kafka_code=2,
)
INVALID_CONFIG = ErrorEntry(
    42203, "INVALID_CONFIG", "A configuration value is not valid.", kafka_code=40
)
INVALID_CONSUMER_CONFIG = ErrorEntry(
    42204, "INVALID_CONSUMER_CONFIG", "A consumer configuration value is not valid.", kafka_code=40
)
INVALID_TOPIC = ErrorEntry(42205, "INVALID_TOPIC", "The topic name is not valid.", kafka_code=17)
# This is for the number of partitions. The listener returns 38 for that of replicas.
INVALID_PARTITIONS = ErrorEntry(
    42206,
    "INVALID_PARTITIONS",
    "The number of partitions or replicas is not possible.",
    kafka_code=37,
)
# 49 would be fatal. After 59 a producer takes an id of this cluster.
INVALID_PRODUCER_ID = ErrorEntry(
    42207, "INVALID_PRODUCER_ID", "The producer id was not issued by this cluster.", kafka_code=59
)
UNREADABLE_RECORD = ErrorEntry(
    42208,
    "UNREADABLE_RECORD",
    "A record is not of the consumer instance's format. Seek past it, or read it in binary format.",
    kafka_code=87,
)
MALFORMED_BATCH = ErrorEntry(
    42209,
    "MALFORMED_BATCH",
    "A record batch is malformed: its header or its records are not valid.",
    kafka_code=87,
)
INVALID_GROUP = ErrorEntry(
    42221, "INVALID_GROUP", "The group id is not valid: use 1 to 255 characters.", kafka_code=24
)
INVALID_PATTERN = ErrorEntry(
    42222, "INVALID_PATTERN", "The topic pattern is not valid: use RE2's syntax.", kafka_code=128
)
UNSUPPORTED_ASSIGNOR = ErrorEntry(
    42223,
    "UNSUPPORTED_ASSIGNOR",
    "There is no such assignor: use 'uniform' or 'range'.",
    kafka_code=112,
)
INVALID_SESSION_TIMEOUT = ErrorEntry(
    42224,
    "INVALID_SESSION_TIMEOUT",
    "The session timeout is out of the cluster's bounds.",
    kafka_code=26,
)
OFFSET_METADATA_TOO_LARGE = ErrorEntry(
    42230,
    "OFFSET_METADATA_TOO_LARGE",
    "The metadata of a committed offset is over 4 KiB.",
    kafka_code=12,
)
INVALID_TRANSACTIONAL_ID = ErrorEntry(
    42260,
    "INVALID_TRANSACTIONAL_ID",
    "The transactional id or sink id is not valid.",
    kafka_code=42,
)
INVALID_TRANSACTION_TIMEOUT = ErrorEntry(
    42261,
    "INVALID_TRANSACTION_TIMEOUT",
    "The transaction timeout is out of its bounds.",
    kafka_code=50,
)
# Kafka has no such bound. After 120 a producer aborts and continues.
TRANSACTION_TOO_LARGE = ErrorEntry(
    42262,
    "TRANSACTION_TOO_LARGE",
    "The transaction or sink epoch has too many parts.",
    kafka_code=120,
)
QUOTA_EXCEEDED = ErrorEntry(
    42901, "QUOTA_EXCEEDED", "Too many requests.", kafka_code=89, retriable=True
)
HEADERS_TOO_LARGE = ErrorEntry(
    43101, "HEADERS_TOO_LARGE", "The request headers are too large.", kafka_code=42
)
INTERNAL = ErrorEntry(50002, "INTERNAL", "Internal error.", kafka_code=-1, outcome_unknown=True)
RETRIABLE = ErrorEntry(
    50003,
    "RETRIABLE",
    "Not answered in time; try again.",
    kafka_code=7,
    retriable=True,
    outcome_unknown=True,
)
NO_LEADER = ErrorEntry(
    50301,
    "NO_LEADER",
    "The partition has no leader here.",
    kafka_code=6,
    retriable=True,
    refresh_metadata=True,
)
NOT_ENOUGH_REPLICAS = ErrorEntry(
    50302,
    "NOT_ENOUGH_REPLICAS",
    "Fewer in-sync replicas than required.",
    kafka_code=19,
    retriable=True,
)
# Kafka's clients find the next leader and retry. So does the router here, where it is safe.
STORAGE_FAILED = ErrorEntry(
    50303,
    "STORAGE_FAILED",
    "The replica's storage failed; it is offline until the node is repaired and restarted.",
    kafka_code=56,
    outcome_unknown=True,
)
NOT_READY = ErrorEntry(
    50304, "NOT_READY", "The node is not ready yet.", kafka_code=6, retriable=True
)
# A coordinator returns this at its limits. Clients of groups and transactions retry 14. Produce
# waits for memory and is not rejected.
OVERLOADED = ErrorEntry(
    50305,
    "OVERLOADED",
    "The node is at its limit for bytes in flight.",
    kafka_code=14,
    retriable=True,
)
NO_CONTROLLER = ErrorEntry(
    50306,
    "NO_CONTROLLER",
    "The cluster has no active controller at the moment; nothing was changed.",
    kafka_code=41,
    retriable=True,
)
COORDINATOR_LOADING = ErrorEntry(
    50307,
    "COORDINATOR_LOADING",
    "The coordinator is loading its state; try again soon.",
    kafka_code=14,
    retriable=True,
)
NOT_COORDINATOR = ErrorEntry(
    50308,
    "NOT_COORDINATOR",
    "This node does not coordinate the group or transactional id; find the coordinator again.",
    kafka_code=16,
    retriable=True,
    refresh_metadata=True,
)
DISK_FULL = ErrorEntry(
    50701,
    "DISK_FULL",
    "The disk is full: writes are refused until room returns.",
    kafka_code=56,
    retriable=True,
    # Other nodes take over the partitions led by a node with a full disk.
    refresh_metadata=True,
)

ERROR_TABLE: dict[int, ErrorEntry] = {
    entry.code: entry for entry in list(globals().values()) if isinstance(entry, ErrorEntry)
}


def when_directory_is_lost(node_id: int) -> str:
    """How a node comes back under its id once its data directory is lost. Whole sentences."""
    return (
        f"If that is lost, an empty one takes its place: `raftlog serve --replace {node_id} "
        "--join …`."
    )


def counted(number: int, noun: str) -> str:
    """Format a number with its noun, as in `1 topic` and `2 topics`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


MAYBE_WRITTEN: Final = (
    "The outcome is unknown: the records may or may not be written; sending them again with the "
    "same producer id and sequence is safe."
)
MAYBE_DELETED: Final = (
    "The outcome is unknown: the records may or may not be deleted; asking again for the same "
    "offset is safe."
)

MAYBE_CHANGED: Final = (
    "The outcome is unknown: the group or transaction may or may not have changed."
)


MAYBE_ENDED: Final = (
    "The outcome is unknown: the transaction's marker may or may not be written; writing it again "
    "is safe."
)


def outcome_unknown_error(error: LogError, words: str = MAYBE_WRITTEN) -> LogError:
    """Return the error for a started change whose outcome is unknown because of `error`.

    Its entry has `outcome_unknown` set. `words` appear once, even if `error` contains them already.
    """
    entry = error.entry if error.entry.outcome_unknown else RETRIABLE
    is_said = error.message.startswith(words)
    return LogError(entry, error.message if is_said else f"{words} {error.message}")
