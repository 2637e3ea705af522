"""Typed exceptions of the client, each with two facts for the caller.

`retriable` means that the same call may succeed later without any change. `outcome_unknown` means
that a write may or may not have happened, and a repeat without idempotence may duplicate it. An
error response is a `ServerError`, made from the error table in `raftlog.record.errors`.
"""

from __future__ import annotations

from raftlog.record import errors
from raftlog.record.errors import ErrorEntry
from raftlog_client.types import SendSummary


class RaftlogClientError(Exception):
    """Base of all exceptions of the client."""

    def __init__(
        self, message: str, *, retriable: bool = False, outcome_unknown: bool = False
    ) -> None:
        super().__init__(message)
        self.retriable = retriable
        self.outcome_unknown = outcome_unknown


class ServerError(RaftlogClientError):
    """A node's typed error response. `code` and `name` are the error table's."""

    def __init__(self, entry: ErrorEntry, message: str | None = None) -> None:
        super().__init__(
            message or entry.message,
            retriable=entry.retriable,
            outcome_unknown=entry.outcome_unknown,
        )
        self.entry = entry

    @property
    def code(self) -> int:
        """Code in the error table, made of the HTTP status and two digits."""
        return self.entry.code

    @property
    def name(self) -> str:
        """Name in the error table."""
        return self.entry.name


class TopicNotFoundError(ServerError):
    """The topic, or its partition, does not exist."""


class OffsetOutOfRangeError(ServerError):
    """The offset to read is not, or no longer, in the partition. The message has the range."""


class ConnectionLostError(RaftlogClientError):
    """No node could be reached, or a node did not respond.

    `outcome_unknown` is set if a write was sent. `reason` is the cause without the address.
    """

    def __init__(self, message: str, *, outcome_unknown: bool, reason: str | None = None) -> None:
        super().__init__(message, retriable=True, outcome_unknown=outcome_unknown)
        self.reason = reason or message


class NoNodeAvailableError(ConnectionLostError):
    """No node has ever responded to this client in time. Check the address."""


class DeliveryTimeoutError(RaftlogClientError):
    """The record was not acknowledged within `delivery_timeout_ms`.

    With `outcome_unknown` the record may have been written. Otherwise it certainly was not.
    """


class BufferFullError(RaftlogClientError):
    """The send buffer stayed full for `delivery_timeout_ms`. This record was never sent."""


class RecordTooLargeError(RaftlogClientError):
    """The record is larger than a request may be, and was never sent."""


class SerializationError(RaftlogClientError):
    """A serializer or deserializer rejected a key or value. The cause is chained."""


class CorruptDataError(RaftlogClientError):
    """A fetched batch is damaged and not served.

    Reading stays at the damaged batch. `seek` past it to continue without its records.
    """

    def __init__(self, message: str, *, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class RecordsGoneError(RaftlogClientError):
    """Records of the range were deleted. The partition now starts at `log_start_offset`."""

    def __init__(
        self, message: str, *, topic: str, partition: int, offset: int, log_start_offset: int
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.log_start_offset = log_start_offset


class TopicChangedError(RaftlogClientError):
    """The topic of this id is gone. `found_id` is the id of a new topic of its name, if any."""

    def __init__(self, message: str, *, topic: str, topic_id: str, found_id: str | None) -> None:
        super().__init__(message)
        self.topic = topic
        self.topic_id = topic_id
        self.found_id = found_id


class NoOffsetError(RaftlogClientError):
    """There is no position to read from, and `auto_offset_reset` is "none"."""


class IllegalStateError(RaftlogClientError):
    """A consumer without topics and partitions cannot read."""


class ClientClosedError(RaftlogClientError):
    """The producer, consumer or admin client is closed, or was never started."""


class CommitFailedError(RaftlogClientError):
    """The partition is not, or no longer, this consumer's. Nothing was changed.

    Another member continues from the last commit. Drop the results of these records, or expect them
    twice. The consumer itself continues.
    """


class TransactionAbortableError(RaftlogClientError):
    """The transaction cannot be committed and is aborted or must be. The producer continues.

    Process the same input again with `Consumer.seek_to_committed` and another transaction.
    """


class FencedError(RaftlogClientError):
    """Another producer with the same transactional or fencing id has taken over.

    Close this producer, which is unusable. If no other producer should run, the process was
    replaced while it was thought dead.
    """


class ProducerBrokenError(RaftlogClientError):
    """An earlier batch of a producer with a `fencing_id` has failed. This record was never sent.

    Close the producer. A new producer with the same id fences this one and continues.
    """


class SendManyError(RaftlogClientError):
    """A `send_many` has records that were not written.

    `summary` has the acknowledged records, `failed_count` the others, not or perhaps not written.
    The first failure is chained as the cause.
    """

    def __init__(
        self, message: str, *, summary: SendSummary, failed_count: int, outcome_unknown: bool
    ) -> None:
        super().__init__(message, outcome_unknown=outcome_unknown)
        self.summary = summary
        self.failed_count = failed_count


_SPECIAL: dict[int, type[ServerError]] = {
    errors.UNKNOWN_TOPIC.code: TopicNotFoundError,
    errors.UNKNOWN_TOPIC_ID.code: TopicNotFoundError,
    errors.UNKNOWN_PARTITION.code: TopicNotFoundError,
    errors.OFFSET_OUT_OF_RANGE.code: OffsetOutOfRangeError,
}


def server_error(code: int, message: str | None = None) -> ServerError:
    """Return the exception for a node's error code.

    An unknown code (a newer node's) is judged by its HTTP status. A 5xx may have happened and may
    pass. Anything else is final.
    """
    entry = errors.ERROR_TABLE.get(code)
    if entry is None:
        is_server_side = 500 <= code // 100 <= 599
        entry = ErrorEntry(
            code,
            f"UNKNOWN_{code}",
            f"The node answered error {code}.",
            kafka_code=-1,
            retriable=is_server_side,
            outcome_unknown=is_server_side,
        )
    return _SPECIAL.get(entry.code, ServerError)(entry, message)
