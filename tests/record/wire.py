"""Encode requests and read responses in the record formats, for tests and bench."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from raftlog.record.codec import BATCH_BYTES_MAX_DEFAULT, BatchBuilder, RecordTuple
from raftlog.record.compression import Compression
from raftlog.record.errors import INVALID_BODY, LogError
from raftlog.record.frames import FetchFrame, ProduceFrame, fetch_head_bytes, parse_fetch_head
from raftlog.record.types import Buffer

_PRODUCE_HEAD = struct.Struct(">HiI")


class EncodedBatch(NamedTuple):
    """A batch ready to be sent."""

    data: bytes | bytearray
    record_count: int


def encode_batches(
    records: Iterable[RecordTuple],
    *,
    compression: Compression = Compression.NONE,
    size_bytes_max: int = BATCH_BYTES_MAX_DEFAULT,
) -> Iterator[EncodedBatch]:
    """Pack records, in their order, into as few batches as the limit allows.

    Yields nothing without records. Raises as `BatchBuilder.append` does. Batches yielded before
    stay valid.
    """
    builder = BatchBuilder(compression, size_bytes_max)
    iterator = iter(records)
    while (rest := builder.append_many(iterator)) is not None:
        yield EncodedBatch(builder.build(), builder.record_count)
        builder = BatchBuilder(compression, size_bytes_max)
        builder.append(*rest)
    if builder.record_count:
        yield EncodedBatch(builder.build(), builder.record_count)


def encode_produce_frames(frames: Iterable[ProduceFrame]) -> bytes:
    """A produce request's body."""
    parts: list[Buffer] = []
    for topic, partition, data in frames:
        name = topic.encode()
        parts += (_PRODUCE_HEAD.pack(len(name), partition, len(data)), name, data)
    return b"".join(parts)


class FetchFrameReader:
    """Parses the chunks of a fetch response into frames, as chunks arrive.

    Holds at most one frame, of `frame_bytes_max` bytes of data. A larger frame is rejected before
    any allocation. A frame's data is copied once, into a buffer of the same size, or not at all if
    one chunk contains all of it.
    """

    __slots__ = ("_filled", "_frame_bytes_max", "_frame_count", "_head", "_head_rest", "_payload")

    def __init__(self, *, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._frame_count = 0
        self._head_rest = b""
        """The start of an incomplete head (with topic)."""
        self._head: FetchFrame | None = None
        """The frame being filled. Its `data` is the buffer to fill."""
        self._payload = memoryview(b"")
        self._filled = 0

    def feed(self, chunk: bytes) -> list[FetchFrame]:
        """The frames completed by `chunk`. Their data may be views of `chunk`.

        Raises LogError(INVALID_BODY) if the bytes are not frames. The reader is of no use then.
        """
        frames: list[FetchFrame] = []
        if self._head_rest:
            chunk = self._head_rest + chunk
            self._head_rest = b""
        view = memoryview(chunk)
        position = 0
        while position < view.nbytes:
            if self._head is not None:
                position = self._fill(view, position, frames)
                continue
            start = position
            parsed = self._parse_head(view, position)
            if parsed is None:
                self._head_rest = bytes(view[start:])
                break
            frame, data_length, position = parsed
            end = position + data_length
            if end <= view.nbytes:
                frames.append(frame._replace(data=view[position:end]))
                self._frame_count += 1
                position = end
            else:
                buffer = bytearray(data_length)
                self._head = frame._replace(data=buffer)
                self._payload = memoryview(buffer)
                self._filled = 0
        return frames

    def finish(self) -> None:
        """End the response. Raises LogError(INVALID_BODY) if a frame is incomplete."""
        if self._head is not None or self._head_rest:
            raise LogError(INVALID_BODY, f"The response ends within frame {self._frame_count}.")

    def _parse_head(self, view: memoryview, position: int) -> tuple[FetchFrame, int, int] | None:
        """Parse the frame without data, its data's length and position.

        Returns None for a part of a head.
        """
        rest = view[position:]
        size = fetch_head_bytes(rest, frame_bytes_max=self._frame_bytes_max)
        if size > rest.nbytes:
            return None
        frame, length = parse_fetch_head(rest[:size])
        return frame, length, position + size

    def _fill(self, view: memoryview, position: int, frames: list[FetchFrame]) -> int:
        """Copy the present frame's data from the chunk, and return the position after it."""
        assert self._head is not None
        count = min(self._payload.nbytes - self._filled, view.nbytes - position)
        self._payload[self._filled : self._filled + count] = view[position : position + count]
        self._filled += count
        if self._filled == self._payload.nbytes:
            frames.append(self._head._replace(data=self._payload.toreadonly()))
            self._frame_count += 1
            self._head = None
            self._payload = memoryview(b"")
        return position + count
