from __future__ import annotations

import gzip
import subprocess
import sys
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.record.compression import (
    GZIP_MEMBERS_MAX,
    SNAPPY_BLOCKS_MAX,
    XERIAL_HEADER,
    Compression,
    compress,
    decompress,
)
from raftlog.record.errors import INVALID_CONFIG, MALFORMED_BATCH, RECORD_TOO_LARGE, LogError
from tests.record.batches import COMPRESSIONS

REAL = [codec for codec in COMPRESSIONS if codec is not Compression.NONE]
each_codec = pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda codec: codec.label)
each_real_codec = pytest.mark.parametrize("compression", REAL, ids=lambda codec: codec.label)

TEXT = b"the same words again, the same words again, the same words again"


def refusal(compression: Compression, data: bytes, limit: int = 1_000_000) -> LogError:
    with pytest.raises(LogError) as raised:
        decompress(compression, data, decompressed_bytes_max=limit)
    return raised.value


def xerial(*blocks: bytes) -> bytes:
    return XERIAL_HEADER + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


class TestNames:
    def test_names_and_numbers_are_kafkas(self) -> None:
        assert {codec.label: int(codec) for codec in Compression} == {
            "none": 0,
            "gzip": 1,
            "snappy": 2,
            "lz4": 3,
            "zstd": 4,
        }
        for codec in Compression:
            assert Compression.from_name(codec.label) is codec
            assert Compression.from_id(int(codec)) is codec

    @pytest.mark.parametrize("name", ["", "GZIP", "brotli", "producer", "4"])
    def test_unknown_name_is_refused_with_the_known_ones(self, name: str) -> None:
        with pytest.raises(LogError, match="none, gzip, snappy, lz4, zstd") as raised:
            Compression.from_name(name)
        assert raised.value.entry is INVALID_CONFIG

    @pytest.mark.parametrize("number", [5, 6, 7, -1])
    def test_unknown_number_is_a_corrupt_batch(self, number: int) -> None:
        with pytest.raises(LogError) as raised:
            Compression.from_id(number)
        assert raised.value.entry is MALFORMED_BATCH


class TestRoundTrip:
    @each_codec
    @given(
        data=st.binary(min_size=1, max_size=2000)
        | st.tuples(st.binary(min_size=1, max_size=30), st.integers(1, 5000)).map(
            lambda pair: pair[0] * pair[1]
        )
    )
    def test_gives_back_what_went_in(self, compression: Compression, data: bytes) -> None:
        packed = compress(compression, data)
        for kind in (bytes, bytearray, memoryview):
            plain = decompress(compression, kind(packed), decompressed_bytes_max=len(data))
            assert plain == data

    @each_codec
    def test_bound_is_exact(self, compression: Compression) -> None:
        data = TEXT * 3000
        packed = bytes(compress(compression, data))
        assert decompress(compression, packed, decompressed_bytes_max=len(data)) == data
        error = refusal(compression, packed, len(data) - 1)
        assert error.entry is RECORD_TOO_LARGE
        assert str(len(data) - 1) in error.message

    @each_real_codec
    @pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 3_000_000])
    def test_high_ratios_need_several_sizes_of_output(
        self, compression: Compression, size: int
    ) -> None:
        data = bytes(size)
        packed = compress(compression, data)
        assert decompress(compression, packed, decompressed_bytes_max=size) == data
        assert decompress(compression, packed, decompressed_bytes_max=64 * size) == data


class TestForeignWriters:
    """Streams of other programs, by hand from the formats' specifications."""

    def test_gzip_of_several_members(self) -> None:
        data = gzip.compress(b"one,", mtime=0) + gzip.compress(b"") + gzip.compress(b"two", 9)
        assert decompress(Compression.GZIP, data, decompressed_bytes_max=7) == b"one,two"
        assert refusal(Compression.GZIP, data, 6).entry is RECORD_TOO_LARGE

    def test_snappy_without_framing(self) -> None:
        # Length 5, then a literal of 5 bytes.
        raw = b"\x05" + b"\x10" + b"hello"
        assert decompress(Compression.SNAPPY, raw, decompressed_bytes_max=5) == b"hello"

    def test_snappy_in_xerial_framing(self) -> None:
        # The second block: length 8, literal "ab", copy of 6 bytes from 2 back.
        framed = xerial(b"\x05\x10hello", b"\x08\x04ab\x09\x02")
        plain = decompress(Compression.SNAPPY, framed, decompressed_bytes_max=13)
        assert plain == b"helloabababab"

    def test_snappy_of_several_xerial_streams(self) -> None:
        framed = xerial(b"\x05\x10hello") + xerial(b"\x05\x10again")
        assert decompress(Compression.SNAPPY, framed, decompressed_bytes_max=10) == b"helloagain"

    def test_lz4_frame_as_kafkas_java_client_writes_it(self) -> None:
        # Magic, FLG 0x60 (version 1, independent blocks), BD 0x40 (64 KiB), header checksum; one
        # uncompressed block (top bit of its length), end mark.
        frame = bytes.fromhex("04224d18 60 40 82") + b"\x05\0\0\x80hello" + b"\0\0\0\0"
        assert decompress(Compression.LZ4, frame, decompressed_bytes_max=5) == b"hello"
        # A compressed block: literals "ab", then a match of 10 from 2 back, then "hello".
        block = bytes([0x26]) + b"ab" + b"\x02\x00" + bytes([0x50]) + b"hello"
        frame = bytes.fromhex("04224d18 60 40 82") + bytes([len(block), 0, 0, 0]) + block
        frame += b"\0\0\0\0"
        plain = decompress(Compression.LZ4, frame, decompressed_bytes_max=17)
        assert plain == b"ab" * 6 + b"hello"

    def test_lz4_frames_we_write_have_independent_blocks(self) -> None:
        # Kafka's Java client refuses linked ones (KIP-57).
        packed = bytes(compress(Compression.LZ4, TEXT * 10_000))
        assert packed[:4] == bytes.fromhex("04224d18")
        assert packed[4] & 0xE0 == 0x60, "version 1, blocks independent"

    def test_zstd_frame_without_content_size(self) -> None:
        # Magic, no flags, window of 1 KiB; a raw block "hello"; a last run of 4 "x" (RFC 8878).
        frame = bytes.fromhex("28b52ffd 00 00") + b"\x28\0\0hello" + b"\x23\0\0x"
        assert decompress(Compression.ZSTD, frame, decompressed_bytes_max=9) == b"helloxxxx"
        assert refusal(Compression.ZSTD, frame, 8).entry is RECORD_TOO_LARGE


class TestDamage:
    @each_real_codec
    def test_truncations_are_refused(self, compression: Compression) -> None:
        packed = bytes(compress(compression, TEXT * 20))
        for size in range(len(packed)):
            if packed[:size] == XERIAL_HEADER:
                continue  # a whole stream, of nothing
            assert refusal(compression, packed[:size]).entry is MALFORMED_BATCH

    @each_real_codec
    def test_trailing_bytes_are_refused(self, compression: Compression) -> None:
        packed = bytes(compress(compression, TEXT * 20))
        for tail in (b"\0", b"tail", b"\xff" * 40):
            assert refusal(compression, packed + tail).entry is MALFORMED_BATCH

    @each_real_codec
    @given(data=st.binary(max_size=300))
    def test_noise_is_refused_or_small(self, compression: Compression, data: bytes) -> None:
        try:
            plain = decompress(compression, data, decompressed_bytes_max=4096)
        except LogError as error:
            assert error.entry in {MALFORMED_BATCH, RECORD_TOO_LARGE}
        else:
            assert len(plain) <= 4096

    @each_real_codec
    @given(position=st.integers(0), bit=st.integers(0, 7))
    def test_flipped_bits_never_escape_the_bound_or_the_table(
        self, compression: Compression, position: int, bit: int
    ) -> None:
        packed = bytearray(compress(compression, TEXT * 20))
        packed[position % len(packed)] ^= 1 << bit
        try:
            plain = decompress(compression, packed, decompressed_bytes_max=4096)
        except LogError as error:
            assert error.entry in {MALFORMED_BATCH, RECORD_TOO_LARGE}
        else:
            assert len(plain) <= 4096

    def test_gzip_members_are_bounded(self) -> None:
        # Each member copies the rest: ten thousand empty ones would cost a gigabyte of copying.
        member = gzip.compress(b"")
        plain = decompress(Compression.GZIP, member * GZIP_MEMBERS_MAX, decompressed_bytes_max=10)
        assert plain == b""
        error = refusal(Compression.GZIP, member * (GZIP_MEMBERS_MAX + 1))
        assert "more than 64 members" in error.message

    def test_snappy_blocks_are_bounded(self) -> None:
        error = refusal(Compression.SNAPPY, xerial(*[b"\0"] * (SNAPPY_BLOCKS_MAX + 1)))
        assert "more than 65536 blocks" in error.message

    @pytest.mark.parametrize(
        "data",
        [
            XERIAL_HEADER[:12],
            XERIAL_HEADER + b"\0\0",
            XERIAL_HEADER + b"\xff\xff\xff\xff",
            XERIAL_HEADER + b"\0\0\0\x09\x05\x10hello",
            XERIAL_HEADER + b"\0\0\0\0",
            b"",
        ],
    )
    def test_snappy_framing_is_strict(self, data: bytes) -> None:
        assert refusal(Compression.SNAPPY, data).entry is MALFORMED_BATCH


BOMB_BYTES = 200_000_000
MEASURE = """
import resource, sys
from raftlog.record.compression import Compression, decompress
from raftlog.record.errors import RECORD_TOO_LARGE, LogError
peak_kb = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bomb = sys.stdin.buffer.read()
before_kb = peak_kb()
try:
    decompress(Compression[sys.argv[1]], bomb, decompressed_bytes_max=8_000_000)
except LogError as error:
    assert error.entry is RECORD_TOO_LARGE, error
else:
    raise AssertionError("the bomb went unnoticed")
print(peak_kb() - before_kb)
"""


def bomb(compression: Compression) -> bytes:
    """Bytes that truly decompress to 200 MB of zeros; made without ever holding these."""
    match compression:
        case Compression.GZIP:
            deflater = zlib.compressobj(1, zlib.DEFLATED, 31)
            zeros = bytes(1_000_000)
            parts = [deflater.compress(zeros) for _ in range(BOMB_BYTES // len(zeros))]
            return b"".join([*parts, deflater.flush()])
        case Compression.SNAPPY:
            block = bytes(cramjam.snappy.compress_raw(bytes(1_000_000)))
            return xerial(*[block] * (BOMB_BYTES // 1_000_000))
        case Compression.LZ4:
            frame = bytes(compress(Compression.LZ4, bytes(1_000_000)))
            return frame * (BOMB_BYTES // 1_000_000)
        case _:
            # Blocks of one repeated byte: four bytes for each 128 KiB (RFC 8878, RLE_Block).
            blocks = BOMB_BYTES // 131_072
            run = (131_072 << 3 | 0b010).to_bytes(3, "little") + b"\0"
            last = (131_072 << 3 | 0b011).to_bytes(3, "little") + b"\0"
            return bytes.fromhex("28b52ffd 00 70") + run * blocks + last


@each_real_codec
def test_a_bomb_costs_no_more_memory_than_twice_the_bound(compression: Compression) -> None:
    # In a process of its own: the peak of this one says nothing.
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, compression.name],
        input=bomb(compression),
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr.decode()
    assert int(run.stdout) * 1024 < 2 * 8_000_000 + 4_000_000
