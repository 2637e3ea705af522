"""A history of transactions, beside that of their records (log_history.py).

`Send.transaction` names the transaction of a batch; `Poll`, `End` and `FinalRead` say whether they
are a read_committed reader's. Names of transactions are unique in the whole history.

| operation | recorded by | when |
|---|---|---|
| Transaction | its producer | its outcome is known, or given up |
| CommittedOffset | any client | a coordinator answered with a group's committed offset |
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from tests.verification.log_history import Operation

Outcome: TypeAlias = Literal["committed", "aborted", "unknown"]


class Processed(msgspec.Struct, frozen=True):
    """The input of a transaction: a group commits `end` of the partition in it."""

    group: str
    partition: str
    start: int
    """The offset at which the input began."""
    end: int
    """Exclusive."""


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction, from its first send to its outcome.

    "committed" and "aborted" are acknowledged, or follow from what was never requested: a
    transaction of which no commit was ever requested is aborted, whatever happens to its producer.
    """

    name: str
    ending: int | None = None
    """When its commit was requested first; None: never."""
    completed: int | None = None
    """When its commit was acknowledged."""
    outcome: Outcome = "unknown"
    processed: tuple[Processed, ...] = ()


class CommittedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """A group's committed offset of a partition; 0 before the first commit."""

    group: str
    partition: str
    invoked: int
    completed: int
    offset: int


TransactionOperation: TypeAlias = Operation | Transaction | CommittedOffset
