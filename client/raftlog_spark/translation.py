"""Errors of the client as errors of the connector, which pickle and say what to do."""

from __future__ import annotations

from raftlog_client.errors import (
    ConnectionLostError,
    RaftlogClientError,
    RecordsGoneError,
    TopicChangedError,
    TopicNotFoundError,
)

from raftlog_spark.errors import (
    ClusterUnavailable,
    OffsetOutOfRange,
    RaftlogSparkError,
    TopicGone,
    TopicRecreated,
    WriteFailed,
)


def translated(error: RaftlogClientError, *, what: str, topic: str) -> RaftlogSparkError:
    """The error of `what` ("reading t-0"), to be raised from the one given."""
    if isinstance(error, TopicChangedError):
        return _changed(error)
    match error:
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
                f"{what}: {error} See that the cluster runs and that its nodes' addresses can be "
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
        f"{error} What was to be read is gone; begin anew with the new topic.",
        topic=error.topic,
        topic_id=error.topic_id,
        found_id=error.found_id,
    )


def write_failure(error: RaftlogClientError, topic: str) -> WriteFailed:
    """The error of a write, to be raised from the one given."""
    what = (
        "some of it may be written all the same: a repeat may write it twice"
        if error.outcome_unknown
        else "what failed is not written"
    )
    return WriteFailed(
        f"writing to {topic!r}: {error} Not everything is written; {what}.",
        topic=topic,
        outcome_unknown=error.outcome_unknown,
    )
