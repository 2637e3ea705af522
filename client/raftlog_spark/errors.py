"""The errors of the connector. Every message names the next step, every error pickles.

`spark_error` and `write_failure` convert the client's errors. They import the client when called,
so processes that only check options start without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raftlog_client.errors import RaftlogClientError, TopicChangedError


class RaftlogSparkError(Exception):
    """Base of all errors raised by the connector itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by calling their class with `args`, which lack keyword arguments.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: type[RaftlogSparkError], args: tuple[Any, ...], facts: dict[str, Any]
) -> RaftlogSparkError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class ClusterUnavailable(RaftlogSparkError):  # noqa: N818 (named as what it says, as all here)
    """No node answered in time, or a partition had no leader. A retry may help."""


class TopicGone(RaftlogSparkError):  # noqa: N818
    """The topic does not exist (any more)."""

    def __init__(self, message: str, *, topic: str, topic_id: str | None = None) -> None:
        super().__init__(message)
        self.topic = topic
        self.topic_id = topic_id


class TopicRecreated(RaftlogSparkError):  # noqa: N818
    """The topic was deleted, and another topic was created under its name."""

    def __init__(self, message: str, *, topic: str, topic_id: str, found_id: str) -> None:
        super().__init__(message)
        self.topic = topic
        self.topic_id = topic_id
        self.found_id = found_id


class OffsetOutOfRange(RaftlogSparkError):  # noqa: N818
    """Records of the range were deleted. `lowest` is the first offset left."""

    def __init__(
        self, message: str, *, topic: str, partition: int, offset: int, lowest: int
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.lowest = lowest


class WriteFailed(RaftlogSparkError):  # noqa: N818
    """Not all records given to a writer are written. `outcome_unknown`: some of the failed records
    may be written all the same."""

    def __init__(self, message: str, *, topic: str, outcome_unknown: bool) -> None:
        super().__init__(message)
        self.topic = topic
        self.outcome_unknown = outcome_unknown


class SinkRefused(RaftlogSparkError):  # noqa: N818
    """The cluster does not commit a sink's transactions."""

    def __init__(self, message: str, *, is_owned: bool, is_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_unknown = is_unknown
        """An earlier request may have committed them. Otherwise nothing of the batch is committed.
        """
        self.is_owned = is_owned
        """The sink's epochs belong to another query."""


def spark_error(error: RaftlogClientError, *, what: str, topic: str) -> RaftlogSparkError:
    """The connector's error for a client's error during `what` ("reading t-0")."""
    from raftlog_client.errors import (  # noqa: PLC0415  see the module
        ConnectionLostError,
        RaftlogClientError,
        RecordsGoneError,
        TopicChangedError,
        TopicNotFoundError,
    )

    match error:
        case TopicChangedError():
            return _changed(error)
        case RecordsGoneError():
            return OffsetOutOfRange(
                f"{error} Read from there on, or keep records for longer (retention.ms).",
                topic=error.topic,
                partition=error.partition,
                offset=error.offset,
                lowest=error.log_start_offset,
            )
        case TopicNotFoundError():
            return TopicGone(f"{what}: {error}", topic=topic)
        case ConnectionLostError():
            return ClusterUnavailable(
                f"{what}: {error} Check that the cluster runs and that its nodes' addresses can be "
                "reached from here, then try again."
            )
        case RaftlogClientError(retriable=True):
            return ClusterUnavailable(f"{what}: {error} Try again.")
        case _:
            return RaftlogSparkError(f"{what}: {error}")


def _changed(error: TopicChangedError) -> RaftlogSparkError:
    if error.found_id is None:
        return TopicGone(str(error), topic=error.topic, topic_id=error.topic_id)
    return TopicRecreated(
        f"{error} The records to read are gone; start again with the new topic.",
        topic=error.topic,
        topic_id=error.topic_id,
        found_id=error.found_id,
    )


def write_failure(error: RaftlogClientError, topic: str) -> WriteFailed:
    """The connector's error of a write, for a client's error."""
    consequence = (
        "some of the rest may be written all the same: a retry may write records twice"
        if error.outcome_unknown
        else "the failed records are not written"
    )
    return WriteFailed(
        f"writing to {topic!r}: {error} Not everything is written; {consequence}.",
        topic=topic,
        outcome_unknown=error.outcome_unknown,
    )
