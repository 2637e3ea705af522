"""Ways to decode record batches into Arrow and to encode from Arrow, compared: `python -m
bench.spark.codec`.

Every way runs once a round, so that other work on the machine affects all ways alike. The figure is
the median over the rounds of processor time (not of the clock) on one core, per record. The slower
ways stay here, so that the choice can be repeated with newer versions of numpy, Arrow or aiokafka.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from raftlog_spark.codec import record_offsets
from raftlog_spark.codec.decode import decode
from raftlog_spark.codec.encode import encode
from raftlog_spark.codec.record_fields import Slices, key_positions, slices_at, taken
from raftlog_spark.codec.record_offsets import Bodies, record_starts
from raftlog_spark.codec.varints import Positions, Window
from raftlog_spark.sink.partition_router import partition_of

from raftlog.record.batch import iterate_batches
from raftlog.record.codec import decode as decode_batch
from raftlog.record.codec import encode_batches
from raftlog.record.compression import Compression
from raftlog.record.header import HEADER_SIZE
from raftlog.record.partitioner import partition_for_key

Ways = dict[str, Callable[[], Any]]
NOW_MS = 1_700_000_000_000
ALL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def values_of(size: int, count: int) -> list[bytes]:
    """Random bytes of lengths around `size`: the hardest lengths to predict."""
    chance = random.Random(size)
    return [
        chance.randbytes(chance.randrange(size * 9 // 10, size * 11 // 10)) for _ in range(count)
    ]


def texts_of(size: int, count: int) -> list[bytes]:
    """JSON of about `size` bytes, which compresses as such data does."""
    chance = random.Random(size)
    texts = []
    for number in range(count):
        text = f'{{"flight": {number}, "carrier": "{chance.choice(["AA", "DL", "UA", "WN"])}"'
        while len(text) < size:
            text += f', "delay_{len(text)}": {chance.randrange(1000)}'
        texts.append(f"{text}}}".encode())
    return texts


def batches_of(
    values: list[bytes], batch_bytes: int, compression: Compression, now_ms: int = NOW_MS
) -> bytes:
    records = ((now_ms + number // 7, None, value, None) for number, value in enumerate(values))
    return b"".join(
        batch.data
        for batch in encode_batches(records, compression=compression, size_bytes_max=batch_bytes)
    )


def bodies_of(data: bytes) -> Bodies:
    """Where the records of uncompressed batches are."""
    starts, ends, counts = [], [], []
    position = 0
    for batch in iterate_batches(data):
        starts.append(position + HEADER_SIZE)
        position += batch.header.size_bytes
        ends.append(position)
        counts.append(batch.header.record_count)
    return Bodies(*(np.array(each, np.int64) for each in (starts, ends, counts, counts)))


def by_steps(window: Window, bodies: Bodies) -> Positions:
    """Boundaries, record by record in Python."""
    return np.array(record_offsets._walk_each(window, bodies, range(len(bodies.starts))), np.int64)


def by_doubling(window: Window, bodies: Bodies) -> list[Positions]:
    """Boundaries from the successor of every byte position: a chain of 2^k gives a chain of
    2^(k+1).
    """
    found = []
    for start, end, count in zip(*(each.tolist() for each in bodies[:3]), strict=True):
        data = window.data[start:end].astype(np.uint16)
        pairs = np.append(data[:-1] | (data[1:] << 8), 0)
        following = np.minimum(
            np.arange(end - start) + record_offsets._ADVANCES[pairs], end - start
        )
        following = np.append(following, end - start)
        chain = np.zeros(1, np.int64)
        while len(chain) < count:
            chain = np.concatenate((chain, following[chain]))
            following = following[following]
        found.append(chain[:count] + start)
    return found


def by_stride(window: Window, bodies: Bodies) -> list[Positions]:
    """Boundaries by runs of records of one size, each run found by one comparison."""
    found = []
    words = np.ndarray((window.size - 1,), "<u2", window.data, strides=(1,))
    for start, end, count in zip(*(each.tolist() for each in bodies[:3]), strict=True):
        position, left = start, count
        while left:
            size = int(record_offsets._ADVANCES[words[position]])
            guessed = position + size * np.arange(min(left, (end - position) // size))
            differs = words[guessed] != words[position]
            run = int(differs.argmax()) if differs.any() else len(guessed)
            found.append(guessed[:run])
            position, left = position + run * size, left - run
    return found


def by_aiokafka(data: bytes) -> list[pa.Array]:
    """Records by the compiled codec, then a column of their values."""
    return [
        pa.array(
            [record.value for record in decode_batch(batch, decompressed_bytes_max=2**30)],
            pa.binary(),
        )
        for batch in iterate_batches(data)
    ]


def by_mask(window: Window, values: Slices) -> Any:
    """Values by a mask over all bytes."""
    marks = np.zeros(window.size + 1, np.int8)
    marks[values.starts] = 1
    marks[values.ends] -= 1
    return window.data[np.cumsum(marks[:-1], dtype=np.int8).view(np.bool_)]


def by_views(window: Window, values: Slices) -> pa.Array:
    """Values as Arrow's views (no copy), cast to binary, which Spark wants."""
    views = np.zeros((len(values.starts), 4), np.int32)
    views[:, 0], views[:, 3] = values.ends - values.starts, values.starts
    buffers = [None, pa.py_buffer(views), pa.py_buffer(window.data)]
    return pa.Array.from_buffers(pa.binary_view(), len(views), buffers).cast(pa.binary())


def fields(window: Window, starts: Positions, ends: Positions) -> Slices:
    """Where the values are."""
    keys = slices_at(window, key_positions(window, starts), ends)
    return slices_at(window, keys.ends, ends)


def read(data: bytes, *names: str) -> int:
    batches = decode(data, topic="t", partition=0, start=0, end=2**62, columns=tuple(names))
    return sum(batch.num_rows for batch in batches)


def reading_ways(size: int, count: int) -> tuple[Ways, int]:
    """Ways to read, whole and in parts."""
    values = values_of(size, count)
    data = batches_of(values, 512 * 1024, Compression.NONE)
    window, bodies = Window(data), bodies_of(data)
    starts = record_starts(window, bodies)
    assert starts.tolist() == by_steps(window, bodies).tolist()
    assert starts.tolist() == np.concatenate(by_doubling(window, bodies)).tolist()
    assert starts.tolist() == np.concatenate(by_stride(window, bodies)).tolist()
    ends = np.append(starts[1:], bodies.ends[-1])
    ends[np.cumsum(bodies.counts) - 1] = bodies.ends
    found = fields(window, starts, ends)
    same = batches_of([values[0]] * count, 512 * 1024, Compression.NONE)
    constant, constant_bodies = Window(same), bodies_of(same)
    ways: Ways = {
        "boundaries: steps of Python": lambda: by_steps(window, bodies),
        "boundaries: doubling": lambda: by_doubling(window, bodies),
        "boundaries: runs of one size": lambda: by_stride(window, bodies),
        "boundaries: runs of one size (all are)": lambda: by_stride(constant, constant_bodies),
        "boundaries: lanes": lambda: record_starts(window, bodies),
        "boundaries: lanes (all of one size)": lambda: record_starts(constant, constant_bodies),
        "fields up to the value": lambda: fields(window, starts, ends),
        "values: mask over bytes": lambda: by_mask(window, found),
        "values: views, cast": lambda: by_views(window, found),
        "values: take of every other": lambda: taken(pa.py_buffer(window.data), found),
        "CRC": lambda: crc32c(data),
        "value: aiokafka, pa.array": lambda: by_aiokafka(data),
        "value: decode": lambda: read(data, "value"),
        "offset: decode": lambda: read(data, "offset"),
        "all but headers: decode": lambda: read(data, *ALL),
    }
    texts = texts_of(size, count)
    for codec in Compression:
        packed = batches_of(texts, 512 * 1024, codec)
        ways[f"JSON, {codec.label}: decode"] = lambda packed=packed: read(packed, "value")  # type: ignore[misc]
    return ways, count


def writing_ways(size: int, count: int) -> tuple[Ways, int]:
    """Ways to write."""
    values = values_of(size, count)
    keys = [b"key-%d" % (number % 5000) for number in range(count)]
    rows = pa.RecordBatch.from_pydict({"value": values})
    keyed = pa.RecordBatch.from_pydict({"value": values, "key": keys})
    texts = pa.RecordBatch.from_pydict({"value": texts_of(size, count)})
    heads = pa.array([bytes(8)] * count)

    def write(batch: pa.RecordBatch, compression: str = "none") -> int:
        batches = encode(batch, batch_bytes=512 * 1024, compression=compression, now_ms=NOW_MS)
        return sum(each.records for each in batches)

    def by_builder() -> int:
        records = ((NOW_MS, None, value, None) for value in rows.column(0).to_pylist())
        return sum(each.record_count for each in encode_batches(records, size_bytes_max=512 * 1024))

    ways: Ways = {
        "value: to_pylist, aiokafka": by_builder,
        "joining alone: binary_join_element_wise": lambda: pc.binary_join_element_wise(
            heads, rows.column(0), b"\0", b""
        ),
        "value: encode": lambda: write(rows),
        "key, value: encode": lambda: write(keyed),
        "JSON, none: encode": lambda: write(texts),
        "JSON, lz4: encode": lambda: write(texts, "lz4"),
        "JSON, zstd: encode": lambda: write(texts, "zstd"),
        "partition_of": lambda: partition_of(keyed.column(1), 12),
        "partition_for_key, key by key": lambda: [
            partition_for_key(key, 12) for key in keyed.column(1).to_pylist()
        ],
    }
    return ways, count


def measure(ways: Ways, rounds: int) -> dict[str, float]:
    """Median processor seconds of every way."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            started = time.thread_time()
            way()
            seconds[name].append(time.thread_time() - started)
    return {name: statistics.median(taken_[1:]) for name, taken_ in seconds.items()}


@click.command()
@click.option("--rounds", default=9, show_default=True)
@click.option("--scale", default=1.0, show_default=True)
def main(rounds: int, scale: float) -> None:
    """Compare ways to decode and to encode."""
    # As the client pauses the collector: millions of short-lived records would cost a third more.
    gc.disable()
    for title, make in (("reading", reading_ways), ("writing", writing_ways)):
        for size, count in ((100, 100_000), (1000, 20_000)):
            ways, records = make(size, int(count * scale))
            print(f"\n{title}, values of about {size} bytes{'ns a record':>30}{'M records/s':>16}")
            for name, seconds in measure(ways, rounds).items():
                print(f"{name:46}{seconds / records * 1e9:14.1f}{records / seconds / 1e6:16.2f}")


if __name__ == "__main__":
    main()
