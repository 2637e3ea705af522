"""Which partitions many keys belong to: Kafka's default partitioner, all keys in step."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raftlog.record.partitioner import murmur2
from raftlog_spark.pieces import Pieces
from raftlog_spark.varints import Positions, Window

NO_PARTITION: Final = -1
KEYS_FEW: Final = 16
"""With fewer keys left that have a further word, the one-key function is faster."""

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
    """The column as binary; strings as their UTF-8. Raises pyarrow.ArrowException for others."""
    if pa.types.is_binary(column.type):
        return column
    if not any(is_taken(column.type) for is_taken in _TAKEN):
        raise pa.ArrowTypeError(f"{column.type} is neither binary nor string")
    return column.cast(pa.binary())


def partition_of(keys: pa.Array, partitions: int | NDArray[np.int32]) -> NDArray[np.int32]:
    """The partition of each key (binary or string), of `partitions`; NO_PARTITION for null.

    `partitions`: how many there are, for all keys or for each of them. The same as
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
