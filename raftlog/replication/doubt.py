"""What to say of a change that nobody can say of whether it happened (promise 4).

The words come first, whatever the reason is: "not led by this node" alone reads like a refusal, and
who takes it for one writes the records twice, or gives their sequence numbers to others.
"""

from __future__ import annotations

from typing import Final

from raftlog.record.errors import RETRIABLE, LogError
from raftlog.replication.forwarding_messages import Append, Delete, Operation

MAYBE_WRITTEN: Final = (
    "The outcome is unknown: the records may or may not be written; sending them again with the "
    "same producer id and sequence is safe."
)
MAYBE_DELETED: Final = (
    "The outcome is unknown: the records may or may not be deleted; asking again for the same "
    "offset is safe."
)


def in_doubt(error: LogError, words: str = MAYBE_WRITTEN) -> LogError:
    """The error for a change that was begun, and whose outcome is unknown because of `error`.

    Its entry says so, too. `words` are said once, also where `error` has them already.
    """
    entry = error.entry if error.entry.outcome_unknown else RETRIABLE
    is_said = error.message.startswith(words)
    return LogError(entry, error.message if is_said else f"{words} {error.message}")


def in_doubt_if_changing(operation: Operation, error: LogError) -> LogError:
    """`error` for what changes nothing; for a write or deletion that was asked for, `in_doubt`."""
    match operation:
        case Append():
            return in_doubt(error)
        case Delete():
            return in_doubt(error, MAYBE_DELETED)
    return error
