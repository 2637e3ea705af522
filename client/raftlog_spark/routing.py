"""Which partition each row goes to: all rows of a batch in step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raftlog_spark.errors import RaftlogSparkError
from raftlog_spark.keys import NO_PARTITION, partition_of

Destinations = NDArray[np.int32]
"""For every row, a number that `Router.places` has."""


TURNS: Final = 2**31
"""Turns begin again at 0 after so many; they count in 32 bits."""


class RowError(RaftlogSparkError):
    """A row says a topic or a partition that it cannot be written to."""


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Router:
    """Gives rows their partitions: the one that they name, or else their key's, or else the turn's.

    Rows without a key stay together until `next_turn`, so that batches become large; then the next
    partition of their topic gets them. `places` grows with every topic that a row names; how many
    partitions a topic has is asked for once, so that a key's records of one task stay together.
    """

    def __init__(self, partitions: Callable[[str], int], *, turn: int) -> None:
        """`partitions` tells how many a topic has; `turn` is where the turns begin."""
        self.places: list[Place] = []
        self._partitions = partitions
        self._turn = turn % TURNS
        self._topics: dict[str, int] = {}
        self._firsts = np.empty(0, np.int32)
        self._counts = np.empty(0, np.int32)

    def route(
        self,
        rows: int,
        *,
        topics: pa.Array | str,
        partitions: pa.Array | None = None,
        keys: pa.Array | None = None,
    ) -> Destinations:
        """The destinations of so many rows. `topics`: of all of them, or of each.

        Raises RowError; what `partitions` of `__init__` raises.
        """
        numbers = self._numbers(topics, rows)
        counts = self._counts[numbers]
        chosen = np.full(rows, NO_PARTITION, np.int32)
        if keys is not None and keys.null_count < rows:
            chosen = partition_of(keys, counts)
        if partitions is not None and partitions.null_count < rows:
            given = partitions.cast(pa.int64()).fill_null(NO_PARTITION).to_numpy()
            is_given = partitions.is_valid().to_numpy(zero_copy_only=False)
            self._check(given, is_given, counts, numbers)
            chosen = np.where(is_given, given, chosen).astype(np.int32)
        chosen = np.where(chosen == NO_PARTITION, self._turn % counts, chosen)
        return (self._firsts[numbers] + chosen).astype(np.int32)

    def next_turn(self) -> None:
        """Rows without a key go to the next partition from now on."""
        self._turn = (self._turn + 1) % TURNS

    def _numbers(self, topics: pa.Array | str, rows: int) -> NDArray[np.int32]:
        """Each row's topic, as a number."""
        if isinstance(topics, str):
            return np.full(rows, self._number(topics), np.int32)
        if topics.null_count:
            raise RowError(
                'a row has null as its topic: give every row one, or .option("topic", ...) for all'
            )
        encoded = topics.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        numbers = np.array([self._number(name) for name in names], np.int32)
        found: NDArray[np.int32] = numbers[encoded.indices.to_numpy()]
        return found

    def _number(self, topic: str) -> int:
        number = self._topics.get(topic)
        if number is None:
            count = self._partitions(topic)
            number = self._topics[topic] = len(self._topics)
            self._firsts = np.append(self._firsts, np.int32(len(self.places)))
            self._counts = np.append(self._counts, np.int32(count))
            self.places += [Place(topic, partition) for partition in range(count)]
        return number

    def _check(
        self,
        given: NDArray[np.int64],
        is_given: NDArray[np.bool_],
        counts: NDArray[np.int32],
        numbers: NDArray[np.int32],
    ) -> None:
        wrong = np.flatnonzero(is_given & ((given < 0) | (given >= counts)))
        if len(wrong):
            row = int(wrong[0])
            topic = list(self._topics)[int(numbers[row])]
            raise RowError(
                f"a row is for partition {given[row]} of {topic!r}, which has partitions 0 to "
                f"{counts[row] - 1}: correct or drop the column partition, or add partitions"
            )
