"""A lost call never ends with an error that means "no effect"."""

from __future__ import annotations

import pytest

from raftlog.record.errors import (
    MAYBE_DELETED,
    MAYBE_WRITTEN,
    NO_LEADER,
    RETRIABLE,
    STORAGE_FAILED,
    ErrorEntry,
    LogError,
    outcome_unknown_error,
)
from raftlog.record.types import Offset, PartitionId, TopicId
from raftlog.routing.forwarding_messages import (
    Append,
    Bounds,
    Delete,
    Operation,
    outcome_unknown_if_changing,
)

T = (TopicId("0" * 32), PartitionId(0))
MOVED = LogError(NO_LEADER, "t-0 is not led by this node.")


@pytest.mark.parametrize(
    ("cause", "entry"), [(NO_LEADER, RETRIABLE), (STORAGE_FAILED, STORAGE_FAILED)]
)
def test_words_come_before_the_reason_and_the_entry_says_the_same(
    cause: ErrorEntry, entry: ErrorEntry
) -> None:
    told = outcome_unknown_error(LogError(cause, "It is gone."))
    assert (told.entry, told.message) == (entry, f"{MAYBE_WRITTEN} It is gone.")
    assert told.entry.outcome_unknown


def test_words_are_said_once() -> None:
    told = outcome_unknown_error(outcome_unknown_error(MOVED))
    assert told.message.count(MAYBE_WRITTEN) == 1


@pytest.mark.parametrize(
    ("operation", "words"),
    [(Append(*T, -1), MAYBE_WRITTEN), (Delete(*T, Offset(5)), MAYBE_DELETED)],
)
def test_what_changes_nothing_is_not_in_doubt(operation: Operation, words: str) -> None:
    assert outcome_unknown_if_changing(operation, MOVED).message == f"{words} {MOVED.message}"
    assert outcome_unknown_if_changing(Bounds(*T), MOVED) is MOVED
