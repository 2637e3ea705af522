"""A commit message reports a task's writes to the driver, which checks them by batch.

A light, separate module, because Spark's process that commits a batch imports little else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from raftlog_spark.errors import RaftlogSparkError

TASKS_SHOWN = 10


class CommitError(RaftlogSparkError):
    """Messages of a batch's tasks are missing, and the batch must not count as written."""


class PartitionWritten(NamedTuple):
    """The records of an attempt in one partition, acknowledged by all in-sync replicas."""

    topic: str
    partition: int
    records: int
    size_bytes: int


class AttemptId(NamedTuple):
    """Identifies an attempt of one task of one batch.

    `sink_id`, `query_id` and `batch_id` are the same after a restart from a checkpoint. The number
    of tasks and their rows may differ. `query_id` and `batch_id` are None for a batch query outside
    of a stream's `foreachBatch`. `attempt` counts from 0 for each task.
    """

    sink_id: str
    query_id: str | None
    batch_id: int | None
    task: int
    attempt: int
    epoch: int | None = None
    """Epoch of the sink, for its commit. None if the sink commits once."""

    @property
    def owner(self) -> str:
        """The only owner that may commit the sink's epochs."""
        return "" if self.epoch is None else self.query_id or ""


@dataclass(frozen=True, slots=True)
class TaskCommit(WriterCommitMessage):
    """One attempt has written all of its rows."""

    tag: AttemptId
    written: tuple[PartitionWritten, ...]
    transactional_id: str | None = None
    """The transaction that the attempt has prepared. None without a transaction."""

    @property
    def records(self) -> int:
        """Written records, in all partitions."""
        return sum(each.records for each in self.written)


def once_sink_id(sink_id: str | None, write_id: str) -> str:
    """The sink of a write that commits once."""
    return write_id if sink_id is None else f"{sink_id}.{write_id}"


def check_complete(
    messages: Sequence[WriterCommitMessage | None], *, batch_id: int | None = None
) -> list[TaskCommit]:
    """Check and return the messages of a batch, a message for each task.

    `batch_id` is the expected id. Raises CommitError if a task's message is missing, duplicate, or
    of another batch or sink.
    """
    commits: list[TaskCommit] = []
    for task, message in enumerate(messages):
        if not isinstance(message, TaskCommit):
            lost = [number for number, each in enumerate(messages) if each is None]
            what = _shown(lost) if lost else f"{task} (it sent {type(message).__name__})"
            raise CommitError(
                f"of {len(messages)} tasks these have not said what they wrote: {what}. The batch "
                "is not committed; run it again"
            )
        commits.append(message)
    tasks = sorted(message.tag.task for message in commits)
    if tasks != list(range(len(commits))):
        raise CommitError(
            f"the messages of {len(commits)} tasks are of tasks {_shown(tasks)}: the batch is not "
            "committed; run it again"
        )
    batches = sorted({(each.tag.sink_id, str(each.tag.batch_id)) for each in commits})
    if len(batches) > 1:
        raise CommitError(f"the tasks' messages are of several sinks or batches: {batches}")
    if batch_id is not None and commits and commits[0].tag.batch_id != batch_id:
        raise CommitError(
            f"the tasks wrote batch {commits[0].tag.batch_id}, and batch {batch_id} is committed"
        )
    return commits


def _shown(tasks: Sequence[int]) -> str:
    more = "" if len(tasks) <= TASKS_SHOWN else f" and {len(tasks) - TASKS_SHOWN} more"
    return ", ".join(str(task) for task in tasks[:TASKS_SHOWN]) + more
