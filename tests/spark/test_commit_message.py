"""When the messages of a batch's tasks make up the batch."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.datasource import WriterCommitMessage
from raftlog_spark.sink.commit_message import (
    AttemptId,
    CommitError,
    PartitionWritten,
    TaskCommit,
    check_complete,
)


def message(task: int, *, batch_id: int | None = 7, sink_id: str = "s") -> TaskCommit:
    tag = AttemptId(sink_id, "q", batch_id, task, 0)
    return TaskCommit(tag, (PartitionWritten("t", 0, 3, 100), PartitionWritten("t", 1, task, 50)))


def test_messages_pickle() -> None:
    assert pickle.loads(pickle.dumps(message(2))) == message(2)
    assert message(2).records == 5


def test_one_message_of_every_task_is_the_batch() -> None:
    both = [message(0), message(1)]
    assert check_complete(both, batch_id=7) == both
    assert check_complete([message(0, batch_id=None)]) == [message(0, batch_id=None)]
    assert check_complete([], batch_id=7) == []


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([message(0), None, None], "of 3 tasks these have not said what they wrote: 1, 2"),
        ([None] * 14, "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 4 more"),
        ([WriterCommitMessage()], "it sent WriterCommitMessage"),
        ([message(0), message(0)], "the messages of 2 tasks are of tasks 0, 0"),
        ([message(0), message(2)], "tasks 0, 2"),
        ([message(0), message(1, batch_id=8)], "several sinks or batches"),
        ([message(0), message(1, sink_id="other")], "several sinks or batches"),
        ([message(0, batch_id=6)], "wrote batch 6, and batch 7 is committed"),
    ],
)
def test_anything_else_is_not(messages: list[WriterCommitMessage | None], said: str) -> None:
    with pytest.raises(CommitError, match=said):
        check_complete(messages, batch_id=7)
