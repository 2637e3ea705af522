"""Compression codecs of a record batch, with bounded decompression.

A few hundred bytes can claim to hold gigabytes. So no codec chooses its memory here. gzip is
inflated up to a limit, snappy states its length first, and lz4 and zstd write into our buffer.

Wire formats are those of Kafka's Java client: gzip (RFC 1952), snappy in xerial framing, lz4 frames
with independent blocks (KIP-57), zstd frames (KIP-110).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final, assert_never

import cramjam

from raftlog.record.errors import INVALID_CONFIG, MALFORMED_BATCH, RECORD_TOO_LARGE, LogError
from raftlog.record.types import Buffer

GZIP_LEVEL: Final = 4
LZ4_LEVEL: Final = 1
ZSTD_LEVEL: Final = 1
"""Nearly the size of the codecs' defaults, at a multiple of their speed.

Measured in docs/decisions/record-codec.md.
"""

GZIP_MEMBERS_MAX: Final = 64
"""Most members of a gzip stream. Each further member copies the bytes after it. Real producers
write a single member."""
SNAPPY_BLOCK_SIZE: Final = 32 * 1024
SNAPPY_BLOCKS_MAX: Final = 65_536
"""Most blocks of a xerial stream. Each block costs a step of Python. Producers write 32 KiB a
block, the smallest known 1 KiB."""
XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER: Final = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
"""Magic, version 1, compatible since version 1."""

OUTPUT_BYTES_FIRST: Final = 64 * 1024
OUTPUT_RATIO_FIRST: Final = 16
OUTPUT_GROWTH: Final = 4
OUTPUT_TOO_SMALL: Final = "failed to write whole buffer"
"""cramjam's error text for a full output buffer. Decides on the error code, nothing else."""


class Compression(IntEnum):
    """The codecs of a record batch, numbered as in its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def from_id(cls, number: int) -> Compression:
        """The codec of a number. Raises LogError(MALFORMED_BATCH) if there is none."""
        try:
            return cls(number)
        except ValueError:
            raise LogError(MALFORMED_BATCH, f"There is no compression codec {number}.") from None

    @classmethod
    def from_name(cls, name: str) -> Compression:
        """The codec of a name (`none`, `gzip`, …). Raises LogError(INVALID_CONFIG)."""
        for compression in cls:
            if compression.label == name:
                return compression
        names = ", ".join(compression.label for compression in cls)
        raise LogError(INVALID_CONFIG, f"There is no compression {name!r}; there are {names}.")

    @property
    def label(self) -> str:
        """The codec's name, as in `compression.type`."""
        return self.name.lower()


def compress(compression: Compression, data: Buffer) -> Buffer:
    """`data` compressed as one block."""
    match compression:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return memoryview(cramjam.gzip.compress(data, level=GZIP_LEVEL))
        case Compression.SNAPPY:
            return _xerial_compress(data)
        case Compression.LZ4:
            compressor = cramjam.lz4.Compressor(
                level=LZ4_LEVEL, content_checksum=False, block_linked=False
            )
            compressor.compress(bytes(data))  # a view is not taken here
            return memoryview(compressor.finish())
        case Compression.ZSTD:
            return memoryview(cramjam.zstd.compress(data, level=ZSTD_LEVEL))
        case _:
            assert_never(compression)


def decompress(compression: Compression, data: Buffer, *, decompressed_bytes_max: int) -> Buffer:
    """Decompress `data` to at most `decompressed_bytes_max` bytes.

    Needs no more memory than about twice this bound, whatever the data claims. Raises LogError:
    RECORD_TOO_LARGE over the bound, MALFORMED_BATCH if invalid for the codec.
    """
    match compression:
        case Compression.NONE:
            if len(data) > decompressed_bytes_max:
                raise _too_large(compression, decompressed_bytes_max)
            return data
        case Compression.GZIP:
            return _gzip_decompress(data, decompressed_bytes_max)
        case Compression.SNAPPY:
            return _snappy_decompress(data, decompressed_bytes_max)
        case Compression.LZ4:
            return _decompress_into(
                compression, cramjam.lz4.decompress_into, data, decompressed_bytes_max
            )
        case Compression.ZSTD:
            return _decompress_into(
                compression, cramjam.zstd.decompress_into, data, decompressed_bytes_max
            )
        case _:
            assert_never(compression)


def _too_large(compression: Compression, decompressed_bytes_max: int) -> LogError:
    return LogError(
        RECORD_TOO_LARGE,
        f"A {compression.label} record batch holds more than {decompressed_bytes_max} bytes "
        "when decompressed.",
    )


def _malformed(compression: Compression, reason: object) -> LogError:
    return LogError(MALFORMED_BATCH, f"Records are not valid {compression.label}: {reason}.")


def _gzip_decompress(data: Buffer, decompressed_bytes_max: int) -> Buffer:
    """Inflate every member (RFC 1952 allows several, and Java reads all)."""
    parts: list[bytes] = []
    size = 0
    rest: Buffer = data
    for _ in range(GZIP_MEMBERS_MAX):
        inflater = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        try:
            # One byte over the bound separates "too large" from "just fits". Zero would mean no
            # bound.
            part = inflater.decompress(rest, decompressed_bytes_max + 1 - size)
        except zlib.error as error:
            raise _malformed(Compression.GZIP, error) from error
        size += len(part)
        if size > decompressed_bytes_max:
            raise _too_large(Compression.GZIP, decompressed_bytes_max)
        if not inflater.eof:
            raise _malformed(Compression.GZIP, "it is cut off")
        parts.append(part)
        rest = inflater.unused_data
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise _malformed(Compression.GZIP, f"it has more than {GZIP_MEMBERS_MAX} members")


def _xerial_compress(data: Buffer) -> bytes:
    """Compress into 32 KiB blocks behind the header of xerial, which Kafka's Java client uses."""
    view = memoryview(data)
    parts = [XERIAL_HEADER]
    for start in range(0, view.nbytes, SNAPPY_BLOCK_SIZE):
        block = cramjam.snappy.compress_raw(view[start : start + SNAPPY_BLOCK_SIZE])
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(bytes(block))
    return b"".join(parts)


def _snappy_decompress(data: Buffer, decompressed_bytes_max: int) -> Buffer:
    """Decompress xerial framing, or one raw block, as some clients write it.

    The two cannot be confused. A raw block that starts with xerial's magic would copy from output
    not written yet.
    """
    view = memoryview(data)
    is_xerial = bytes(view[: len(XERIAL_MAGIC)]) == XERIAL_MAGIC
    blocks = _xerial_blocks(view) if is_xerial else [view]
    try:
        # Every block states its length, and the codec enforces this length.
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        if sum(sizes) > decompressed_bytes_max:
            raise _too_large(Compression.SNAPPY, decompressed_bytes_max)
        output = memoryview(bytearray(sum(sizes)))
        position = 0
        for block, size in zip(blocks, sizes, strict=True):
            cramjam.snappy.decompress_raw_into(block, output[position : position + size])
            position += size
    except cramjam.DecompressionError as error:
        raise _malformed(Compression.SNAPPY, error) from error
    return output


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    """Split the framing into blocks. Streams may follow each other, each with its header."""
    blocks: list[memoryview] = []
    position = 0
    while position < view.nbytes:
        if bytes(view[position : position + len(XERIAL_MAGIC)]) == XERIAL_MAGIC:
            position += len(XERIAL_HEADER)
            continue
        start = position + 4
        position = start + int.from_bytes(view[position:start], "big")
        if len(blocks) == SNAPPY_BLOCKS_MAX:
            raise _malformed(Compression.SNAPPY, f"it has more than {SNAPPY_BLOCKS_MAX} blocks")
        blocks.append(view[start:position])
    if position > view.nbytes:
        raise _malformed(Compression.SNAPPY, "it is cut off")
    return blocks


def _decompress_into(
    compression: Compression,
    decompress_into: Callable[[Buffer, bytearray], int],
    data: Buffer,
    decompressed_bytes_max: int,
) -> Buffer:
    """Decompress into a growing buffer, from a good guess up to the bound.

    Neither format must state its length, and the codec cannot resume. Each further try is four
    times as large, so all tries together cost at most a third more than the last try.
    """
    size = max(OUTPUT_BYTES_FIRST, OUTPUT_RATIO_FIRST * len(data))
    while True:
        size = min(size, decompressed_bytes_max)
        output = bytearray(size)
        try:
            return memoryview(output)[: decompress_into(data, output)]
        except cramjam.DecompressionError as error:
            # The codec does not type its errors. Trying damaged data again with more room is
            # wasteful, but refusing good data because an error's wording changed would be wrong.
            if size == decompressed_bytes_max:
                if OUTPUT_TOO_SMALL in str(error):
                    raise _too_large(compression, decompressed_bytes_max) from error
                raise _malformed(compression, error) from error
        # Without this, the small buffer would stay in memory beside the next, larger buffer.
        del output
        size *= OUTPUT_GROWTH
