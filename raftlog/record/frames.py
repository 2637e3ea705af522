"""Frames of record batches of many partitions in one HTTP body of `/v1`.

All numbers big endian. A body is a plain sequence of frames.

    produce request:  topic length   i16     fetch response:  topic length      i16
                      partition      i32                      partition         i32
                      data length    u32                      error code        i32  0 = none
                      topic          UTF-8                    high watermark    i64
                      data           1+ batches               log start offset  i64
                                                              next offset       i64  to fetch next
                                                              data length       u32
                                                              topic             UTF-8
                                                              stable part       see below
                                                              data              whole batches, or,
                                                                                with an error, a
                                                                                UTF-8 message

Fetched data begins with the batch containing the requested offset, so records before this offset
may come first. The reader drops them.

**Stable part.** Present only in responses to read_committed requests, if the last stable offset is
below the high watermark or some transaction was aborted. Then 0x4000 is added to the topic length,
and the topic is followed by

                      last stable offset    i64
                      count                 u32   up to ABORTED_MAX
                      count times: producer id i64, first offset i64

with the aborted transactions that may have batches in this frame's data, ordered by first offset.
Without it the last stable offset is the high watermark, and nothing was aborted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from raftlog.record.errors import INVALID_BODY, LogError
from raftlog.record.types import AbortedTransaction, Buffer, Offset, PartitionId, ProducerId

BATCHES_MEDIA_TYPE: Final = "application/vnd.raftlog.batches"

TOPIC_BYTES_MAX: Final = 249
"""Bytes of Kafka's longest topic name. All its characters are ASCII. Metadata checks which."""

ABORTED_MAX: Final = 100_000
"""Most aborted transactions in one frame, as many as a partition remembers producers. Data with
more are split over several frames."""

_PRODUCE_HEAD: Final = struct.Struct(">HiI")
_FETCH_HEAD: Final = struct.Struct(">HiiqqqI")
_STABLE_FLAG: Final = 0x4000
_STABLE_HEAD: Final = struct.Struct(">qI")
_ABORTED: Final = struct.Struct(">qq")


class ProduceFrame(NamedTuple):
    """One partition's batches in a produce request."""

    topic: str
    partition: PartitionId
    data: Buffer


class FetchFrame(NamedTuple):
    """One partition's part of a fetch response."""

    topic: str
    partition: PartitionId
    error_code: int
    high_watermark: Offset
    log_start_offset: Offset
    next_offset: Offset
    data: Buffer
    last_stable_offset: Offset | None = None
    """First offset possibly in an open transaction, or None for the high watermark."""
    aborted: Sequence[AbortedTransaction] = ()
    """Needs a `last_stable_offset`."""

    @property
    def message(self) -> str:
        """The error text, if `error_code` is not 0."""
        return bytes(self.data).decode(errors="replace")


def parse_produce_frames(body: Buffer, *, frames_max: int) -> Iterator[ProduceFrame]:
    """Take a produce request's body apart. Data are views of `body`, and not looked into.

    Lazy, so that the caller may pause between the many frames of a large body.

    Raises LogError(INVALID_BODY) for anything but 1 to `frames_max` whole frames.
    """
    view = memoryview(body)
    count = position = 0
    while position < view.nbytes:
        if count == frames_max:
            raise _invalid(f"There are more than {frames_max} frames")
        if view.nbytes - position < _PRODUCE_HEAD.size:
            raise _invalid(f"Frame {count} is cut off in its head")
        topic_length, partition, data_length = _PRODUCE_HEAD.unpack_from(view, position)
        topic_start = position + _PRODUCE_HEAD.size
        data_start = topic_start + topic_length
        position = data_start + data_length
        if position > view.nbytes:
            raise _invalid(f"Frame {count} is cut off: {position - view.nbytes} bytes miss")
        topic = _topic(view[topic_start:data_start])
        if partition < 0:
            raise _invalid(f"Frame {count} names partition {partition}")
        yield ProduceFrame(topic, PartitionId(partition), view[data_start:position])
        count += 1
    if not count:
        raise _invalid("There is no frame")


def encode_fetch_frame(frame: FetchFrame) -> tuple[bytes, Buffer]:
    """Encode a frame of a fetch response as its head and its uncopied data."""
    name = frame.topic.encode()
    stable = b""
    if frame.last_stable_offset is not None:
        assert len(frame.aborted) <= ABORTED_MAX
        stable = _STABLE_HEAD.pack(frame.last_stable_offset, len(frame.aborted))
        stable += b"".join(_ABORTED.pack(*transaction) for transaction in frame.aborted)
    else:
        assert not frame.aborted
    head = _FETCH_HEAD.pack(
        len(name) | (_STABLE_FLAG if stable else 0),
        frame.partition,
        frame.error_code,
        frame.high_watermark,
        frame.log_start_offset,
        frame.next_offset,
        len(frame.data),
    )
    return head + name + stable, frame.data


def fetch_head_bytes(start: Buffer, *, frame_bytes_max: int) -> int:
    """Size of a fetch frame's head, as far as its first bytes show it.

    The head is whole once `start` has so many bytes. With fewer, more may prove to be needed.
    Raises LogError(INVALID_BODY) for an impossible topic length or count, or for more data than
    `frame_bytes_max`.
    """
    size = len(start)
    wanted = _FETCH_HEAD.size
    if size < wanted:
        return wanted
    length, *_, data_length = _FETCH_HEAD.unpack_from(start)
    if data_length > frame_bytes_max:
        raise _invalid(f"A frame has {data_length} bytes; at most {frame_bytes_max} were agreed")
    name_length = int(length) & ~_STABLE_FLAG
    if not 0 < name_length <= TOPIC_BYTES_MAX:
        raise _invalid(f"A frame has a topic name of {length} bytes")
    wanted += name_length
    if not length & _STABLE_FLAG:
        return wanted
    count_at = wanted
    wanted += _STABLE_HEAD.size
    if size < wanted:
        return wanted
    _, count = _STABLE_HEAD.unpack_from(start, count_at)
    if count > ABORTED_MAX:
        raise _invalid(f"A frame has {count} aborted transactions; at most {ABORTED_MAX} fit")
    return wanted + int(count) * _ABORTED.size


def parse_fetch_head(head: Buffer) -> tuple[FetchFrame, int]:
    """A fetch frame without its data, and the data's length. `head` is whole.

    Raises LogError(INVALID_BODY) for a topic name that is not UTF-8.
    """
    length, partition, error_code, high_watermark, log_start, next_offset, data_length = (
        _FETCH_HEAD.unpack_from(head)
    )
    view = memoryview(head)
    topic_end = _FETCH_HEAD.size + (length & ~_STABLE_FLAG)
    last_stable_offset: Offset | None = None
    aborted: Sequence[AbortedTransaction] = ()
    if length & _STABLE_FLAG:
        last_stable_offset = Offset(_STABLE_HEAD.unpack_from(view, topic_end)[0])
        aborted = [
            AbortedTransaction(ProducerId(producer_id), Offset(first_offset))
            for producer_id, first_offset in _ABORTED.iter_unpack(
                view[topic_end + _STABLE_HEAD.size :]
            )
        ]
    frame = FetchFrame(
        topic=_topic(view[_FETCH_HEAD.size : topic_end]),
        partition=PartitionId(partition),
        error_code=error_code,
        high_watermark=Offset(high_watermark),
        log_start_offset=Offset(log_start),
        next_offset=Offset(next_offset),
        data=b"",
        last_stable_offset=last_stable_offset,
        aborted=aborted,
    )
    return frame, data_length


def _topic(name: memoryview) -> str:
    """The topic's name. Raises LogError(INVALID_BODY) if the bytes are no valid name."""
    if not 0 < name.nbytes <= TOPIC_BYTES_MAX:
        raise _invalid(f"A frame has a topic name of {name.nbytes} bytes")
    try:
        return str(name, "utf-8")
    except UnicodeDecodeError:
        raise _invalid("A frame's topic name is not UTF-8") from None


def _invalid(reason: str) -> LogError:
    return LogError(INVALID_BODY, f"{reason}.")
