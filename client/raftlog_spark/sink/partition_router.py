"""Routes rows to partitions, all rows of a batch in step.

By the row's partition, or by Kafka's default partitioner over its key, or in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raftlog.record.partitioner import murmur2
from raftlog_spark.codec.arrow_join import Pieces
from raftlog_spark.codec.varints import Positions, Window
from raftlog_spark.errors import RaftlogSparkError

Destinations = NDArray[np.int32]
"""Indices into `Router.places`, for every row."""


TURNS: Final = 2**31
"""Turns after which the count wraps around to 0. Turns count in 32 bits."""


class RowError(RaftlogSparkError):
    """A row's topic or partition cannot be written to."""


class Destination(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Router:
    """Assigns to each row its own partition, its key's, or the current turn's.

    Rows without a key stay together until `next_turn`, so that batches become large. Then the next
    partition of their topic is used. `places` grows with every new topic. The number of a topic's
    partitions is read once, so that a key's records of one task stay together.
    """

    def __init__(self, partitions: Callable[[str], int], *, turn: int) -> None:
        """`partitions` returns the number of a topic's partitions. `turn` is the first turn."""
        self.places: list[Destination] = []
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
        """The destinations of so many rows. `topics` is one for all rows, or one for each row.
        Raises RowError, and the errors of `partitions`."""
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
        """Route rows without a key to the next partition from now on."""
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
            self.places += [Destination(topic, partition) for partition in range(count)]
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


NO_PARTITION: Final = -1
KEYS_FEW: Final = 16
"""Number of keys left below which the one-key function is faster for further words."""

_TAKEN: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
    pa.types.is_null,
)
_SEED: Final = np.uint32(0x9747B28C)
_MULTIPLIER: Final = np.uint32(0x5BD1E995)
_POSITIVE: Final = np.uint32(0x7FFFFFFF)
_TAIL_MASKS: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)


def binary_column(column: pa.Array) -> pa.Array:
    """The column as binary, strings as their UTF-8. Raises pyarrow.ArrowException for others."""
    if pa.types.is_binary(column.type):
        return column
    if not any(is_taken(column.type) for is_taken in _TAKEN):
        raise pa.ArrowTypeError(f"{column.type} is neither binary nor string")
    return column.cast(pa.binary())


def partition_of(keys: pa.Array, partitions: int | NDArray[np.int32]) -> NDArray[np.int32]:
    """The partition of each key (binary or string). NO_PARTITION for null.

    `partitions` is one number for all keys, or one for each key. The same function as
    `raftlog.record.partitioner.partition_for_key`.
    """
    data, starts, sizes = Pieces.of(binary_column(keys))
    if not len(sizes):
        return np.empty(0, np.int32)
    digests = _murmur2(Window(data), starts, np.maximum(sizes, 0))
    numbers = ((digests & _POSITIVE) % np.asarray(partitions, np.uint32)).astype(np.int32)
    return np.where(sizes < 0, np.int32(NO_PARTITION), numbers)


def _murmur2(window: Window, starts: Positions, sizes: Positions) -> NDArray[np.uint32]:
    """murmur2 with Kafka's seed of all slices."""
    digests = sizes.astype(np.uint32) ^ _SEED
    counts = sizes >> 2
    smallest = int(counts.min())
    for number in range(smallest):
        digests = _mixed(digests, _word(window, starts + 4 * number))
    number = smallest
    active = np.flatnonzero(counts > number)
    while len(active) >= KEYS_FEW:
        words = _word(window, starts[active] + 4 * number)
        digests[active] = _mixed(digests[active], words)
        number += 1
        active = active[counts[active] > number]
    tails = _word(window, starts + 4 * counts) & _TAIL_MASKS[sizes & 3]
    digests = np.where(sizes & 3, (digests ^ tails) * _MULTIPLIER, digests)
    digests = (digests ^ (digests >> np.uint32(13))) * _MULTIPLIER
    digests ^= digests >> np.uint32(15)
    for key in active.tolist():
        start = int(starts[key])
        digests[key] = murmur2(window.data[start : start + int(sizes[key])].tobytes())
    return digests


def _word(window: Window, positions: Positions) -> NDArray[np.uint32]:
    return window.words(positions).astype(np.uint32)


def _mixed(digests: NDArray[np.uint32], words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    words = words * _MULTIPLIER
    words = (words ^ (words >> np.uint32(24))) * _MULTIPLIER
    return (digests * _MULTIPLIER) ^ words
