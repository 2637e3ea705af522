"""Encodes Arrow rows into raw record batches, many records at a time.

A record is a few pieces, which are a head of varints, the key, the value's length, the value, the
headers. All pieces of one kind are built together. Then Arrow gathers the pieces in the batch's
order, by one `take` from an array of all pieces. The result is the batches' bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raftlog.record.batch import sealed
from raftlog.record.header import BATCH_LENGTH_MAX, HEADER_SIZE, LENGTH_END, MAGIC, BatchHeader
from raftlog.record.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, LeaderEpoch, Offset
from raftlog_spark.codec.varints import (
    Pieces,
    Positions,
    constant,
    heads,
    joined,
    packed,
    varint_size,
    varint_sizes,
)
from raftlog_spark.errors import RaftlogSparkError

GROUP_BYTES: Final = 4 * 1024 * 1024
"""Bytes of batches encoded together. A larger size needs fewer calls and more memory."""
TIMESTAMP_MS_MAX: Final = 2**53


class EncodeError(RaftlogSparkError, ValueError):
    """Rows that cannot become records. The message names the reason."""


class EncodedBatch(NamedTuple):
    """A whole batch, with base offset 0 and leader epoch -1."""

    data: bytearray
    records: int


def encode(rows: pa.RecordBatch, *, batch_bytes: int, now_ms: int) -> Iterator[EncodedBatch]:
    """Rows of one partition as uncompressed record batches, in their order.

    Columns: `value` (binary or string, null is a tombstone), and optionally `key` (the same),
    `headers` (list<struct<key, value>>) and `timestamp`. Others are ignored. Without a timestamp a
    record has `now_ms`. A batch has at most `batch_bytes`, unless a single record is larger. It has
    no producer yet.

    Raises EncodeError for other types, a header without a key, a negative timestamp, and a record
    too large for any batch.
    """
    columns = _columns(rows, now_ms)
    sizes = _sizes_max(columns, rows.num_rows)
    firsts = _split(sizes, batch_bytes - HEADER_SIZE)
    totals = np.concatenate(([0], np.cumsum(sizes)))
    group = 0
    while group < len(firsts) - 1:
        limit = totals[firsts[group]] + GROUP_BYTES
        last = int(np.searchsorted(totals[firsts], limit, side="right")) - 1
        last = min(max(last, group + 1), len(firsts) - 1)
        yield from _encode_group(columns, firsts[group : last + 1])
        group = last


class _Headers(NamedTuple):
    """The headers of all records."""

    counts: Positions
    encoded: Pieces
    """The encoded headers of a record, without their count."""


class _Columns(NamedTuple):
    """The checked columns of the rows."""

    keys: Pieces | None
    """None: all null."""
    values: Pieces
    headers: _Headers | None
    """None: no record has headers."""
    times: Positions
    """Milliseconds."""


def _columns(rows: pa.RecordBatch, now_ms: int) -> _Columns:
    """The columns of the rows, checked."""
    names = rows.schema.names
    if "value" not in names:
        raise EncodeError(f"There is no column `value`, only {', '.join(names) or 'none'}.")
    try:
        values = Pieces.of(rows.column("value"))
        keys = Pieces.of(rows.column("key")) if "key" in names else None
        headers = _headers(rows.column("headers")) if "headers" in names else None
        times = np.full(rows.num_rows, now_ms, np.int64)
        if "timestamp" in names:
            column = rows.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
            is_given = column.is_valid().to_numpy(zero_copy_only=False)
            times = np.where(is_given, column.fill_null(0).to_numpy() // 1000, times)
    except pa.ArrowException as error:
        raise EncodeError(f"A column has a type that records do not have: {error}") from error
    if len(times) and not 0 <= times.min() <= times.max() <= TIMESTAMP_MS_MAX:
        raise EncodeError("A timestamp is before 1970, or too far from it.")
    if keys is not None and int(keys.sizes.max(initial=-1)) < 0:
        keys = None
    return _Columns(keys, values, headers, times)


def _headers(column: pa.Array) -> _Headers | None:
    """Each record's encoded headers, without their count."""
    if not pa.types.is_list(column.type) or not pa.types.is_struct(column.type.value_type):
        raise EncodeError(f"`headers` has type {column.type}, not list<struct<key, value>>.")
    is_valid = column.is_valid().to_numpy(zero_copy_only=False)
    counts = np.where(is_valid, np.diff(column.offsets.to_numpy()), 0).astype(np.int64)
    if not counts.any():
        return None
    pairs = column.flatten()
    fields = dict(zip((field.name for field in pairs.type), pairs.flatten(), strict=True))
    if set(fields) != {"key", "value"}:
        raise EncodeError(f"`headers` has type {column.type}, not list<struct<key, value>>.")
    keys = Pieces.of(fields["key"])
    values = Pieces.of(fields["value"])
    if (keys.sizes < 0).any():
        raise EncodeError("A header has no key.")
    key_heads, value_heads = heads([packed(keys.sizes)]), heads([packed(values.sizes)])
    data, bounds = joined([*key_heads, keys, *value_heads, values])
    bounds = bounds[np.concatenate(([0], np.cumsum(counts)))]
    return _Headers(counts, Pieces(data, bounds[:-1], np.diff(bounds)))


def _sizes_max(columns: _Columns, count: int) -> Positions:
    """An upper bound of each record's size, in any batch."""
    keys, values, headers, times = columns
    # Attributes, the offset delta, the timestamp delta.
    fixed = 1 + varint_size(count)
    if count:
        fixed += varint_size(int(times.max() - times.min()))
    sizes = fixed + varint_sizes(values.sizes) + np.maximum(values.sizes, 0)
    if keys is None:
        sizes += 1
    else:
        sizes += varint_sizes(keys.sizes) + np.maximum(keys.sizes, 0)
    if headers is None:
        sizes += 1
    else:
        sizes += varint_sizes(headers.counts) + headers.encoded.sizes
    sizes += varint_sizes(sizes)
    if int(sizes.max(initial=0)) + HEADER_SIZE > BATCH_LENGTH_MAX:
        raise EncodeError(f"A record has {int(sizes.max())} bytes: too large for a record batch.")
    return sizes


def _split(sizes: Positions, bytes_max: int) -> list[int]:
    """The first row of every batch, and the end."""
    ends = np.cumsum(sizes)
    firsts = [0]
    count = len(sizes)
    before = 0
    while firsts[-1] < count:
        first = firsts[-1]
        following = int(np.searchsorted(ends, before + bytes_max, side="right"))
        firsts.append(max(following, first + 1))
        before = int(ends[firsts[-1] - 1])
    return firsts


def _encode_group(columns: _Columns, firsts: list[int]) -> Iterator[EncodedBatch]:
    """Batches of neighbouring rows. Batch i has the rows from firsts[i] to before firsts[i + 1]."""
    first, end = firsts[0], firsts[-1]
    starts = np.array(firsts) - first
    counts = np.diff(starts)
    times = columns.times[first:end]
    data, bounds = _encode_rows(columns, times, starts, first, end)
    # Without headers, the zero that counts them stands in front of the next record, where it costs
    # nothing. The last zero is appended.
    shift = 1 if columns.headers is None else 0
    for row, count in zip(starts.tolist(), counts.tolist(), strict=False):
        body = data[int(bounds[row]) + shift : int(bounds[row + count])]
        yield _batch(body, bytes(shift), times[row : row + count])


def _encode_rows(
    columns: _Columns, times: Positions, starts: Positions, first: int, end: int
) -> tuple[NDArray[np.uint8], Positions]:
    """The records of all rows from `first` to before `end`, and their bounds (see above)."""
    count = end - first
    batch_sizes = np.diff(starts)
    values = columns.values.sliced(first, end)
    one_zero = constant(0, count)
    time_deltas = packed(times - np.repeat(times[starts[:-1]], batch_sizes))
    offset_deltas = packed(np.arange(count) - np.repeat(starts[:-1], batch_sizes))
    value_sizes = packed(values.sizes)
    bits = time_deltas.bits + offset_deltas.bits + value_sizes.bits
    body_sizes = np.maximum(values.sizes, 0) + 1  # attributes
    keys: Pieces | None = None
    if columns.keys is None:
        key_sizes = constant(-1, count)
    else:
        keys = columns.keys.sliced(first, end)
        key_sizes = packed(keys.sizes)
        body_sizes += np.maximum(keys.sizes, 0)
    bits = bits + key_sizes.bits
    tail: list[Pieces] = []
    if columns.headers is None:
        body_sizes += 1
    else:
        header_counts = packed(columns.headers.counts[first:end])
        encoded = columns.headers.encoded.sliced(first, end)
        bits += header_counts.bits
        body_sizes += encoded.sizes
        tail = [*heads([header_counts]), encoded]
    lengths = packed(body_sizes + (bits >> np.uint64(3)).view(np.int64))
    before = [lengths, one_zero, time_deltas, offset_deltas, key_sizes]
    if columns.headers is None:
        before.insert(0, one_zero)
    if keys is None:
        return joined([*heads([*before, value_sizes]), values, *tail])
    return joined([*heads(before), keys, *heads([value_sizes]), values, *tail])


def _batch(body: NDArray[np.uint8], end: bytes, times: Positions) -> EncodedBatch:
    """A batch of encoded records."""
    data = bytearray(HEADER_SIZE)
    data += body.data
    data += end
    count = len(times)
    header = BatchHeader(
        base_offset=Offset(0),
        batch_length=len(data) - LENGTH_END,
        partition_leader_epoch=LeaderEpoch(-1),
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp_ms=int(times[0]),
        max_timestamp_ms=int(times.max()),
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=count,
    )
    sealed(data, header)
    return EncodedBatch(data, count)
