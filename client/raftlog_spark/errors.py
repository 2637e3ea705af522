"""What the connector raises. Every message says what to do; every error pickles, with its facts."""

from __future__ import annotations

from typing import Any


class RaftlogSparkError(Exception):
    """Base of all that the connector raises on its own account."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by calling their class with `args`, which says nothing of keywords.
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(
    kind: type[RaftlogSparkError], args: tuple[Any, ...], facts: dict[str, Any]
) -> RaftlogSparkError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class ClusterUnavailable(RaftlogSparkError):  # noqa: N818 (named as what it says, as all here)
    """No node answered in time, or nobody led what was asked for. Trying again may help."""


class TopicGone(RaftlogSparkError):  # noqa: N818
    """The topic does not exist (any more)."""

    def __init__(self, message: str, *, topic: str, topic_id: str | None = None) -> None:
        super().__init__(message)
        self.topic = topic
        self.topic_id = topic_id


class TopicRecreated(RaftlogSparkError):  # noqa: N818
    """The topic that was meant was deleted, and another one made under its name."""

    def __init__(self, message: str, *, topic: str, topic_id: str, found_id: str) -> None:
        super().__init__(message)
        self.topic = topic
        self.topic_id = topic_id
        self.found_id = found_id


class OffsetOutOfRange(RaftlogSparkError):  # noqa: N818
    """Records that are to be read were deleted; `lowest` is the first offset that is left."""

    def __init__(
        self, message: str, *, topic: str, partition: int, offset: int, lowest: int
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.lowest = lowest


class WriteFailed(RaftlogSparkError):  # noqa: N818
    """Not everything that was given to a writer is written.

    `outcome_unknown`: some of what failed may be written all the same.
    """

    def __init__(self, message: str, *, topic: str, outcome_unknown: bool) -> None:
        super().__init__(message)
        self.topic = topic
        self.outcome_unknown = outcome_unknown
