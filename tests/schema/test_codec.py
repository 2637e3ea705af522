from __future__ import annotations

import importlib
import io
import struct
import tracemalloc
from typing import Annotated, Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer
from msgspec.structs import replace

from raftlog.schema.codec import ELEMENTS_MAX, codec_of, slicer_of
from raftlog.schema.encoder import SLICE_BYTES, SLICE_PARTS
from raftlog.schema.errors import DecodeError, EncodeError
from raftlog.schema.fields import Field, Int8, Int32, OptionalUuid, Uuid, Versions
from tests.examples import examples
from tests.schema.judges import kafka_python_bytes
from tests.schema.messages import Everything, FetchAnswer, Inner, Point
from tests.schema.strategies import messages

TOPIC_ID = "00112233445566778899aabbccddeeff"

EVERYTHING = Everything(
    flag=True,
    small=-1,
    short=258,
    port=65535,
    number=-2,
    unsigned=2**32 - 1,
    large=5,
    ratio=1.5,
    topic_id=TOPIC_ID,  # type: ignore[arg-type]
    text="é",
    optional_text=None,
    data=b"d",
    optional_data=None,
    added_text="a",
    names=("n", ""),
    ids=(TOPIC_ID,),  # type: ignore[arg-type]
    numbers=(1, -1),
    inner=Inner("i", (7,), None),
    optional_inner=None,
    inners=(Inner("", (), None),),
    optional_inners=None,
    records=b"rec",
)
FIXED = f"01 ff 0102 ffff fffffffe ffffffff {5:016x} 3ff8000000000000 {TOPIC_ID}"
VERSION_1 = (
    FIXED + "0002c3a9 ffff 00000001 64 ffffffff 0001 61"
    f"00000002 0001 6e 0000 00000001 {TOPIC_ID} 00000002 0000000000000001 ffffffffffffffff"
    "0001 69 00000001 00000007  ff  00000001 0000 00000000  ffffffff  00000003 726563"
)
VERSION_2 = (
    FIXED + "03c3a9 00 02 64 00 02 61"
    f"03 02 6e 01  02 {TOPIC_ID}  03 0000000000000001 ffffffffffffffff"
    "02 69 02 00000007 00  ff  02 01 01 00  00  04 726563"
)


class Strict(msgspec.Struct, frozen=True):
    """Small, for malformed bytes."""

    VERSIONS: ClassVar = Versions(0, 1, flexible=1)

    name: str
    numbers: tuple[Int32, ...]
    number: Annotated[Int8, Field(tag=2, since=1)] = 0


class Rows(msgspec.Struct, frozen=True):
    VERSIONS: ClassVar = Versions(0, 1, flexible=1)

    rows: tuple[Inner, ...]


class Names(msgspec.Struct, frozen=True):
    VERSIONS: ClassVar = Versions(0, 0)

    first: str
    second: str


class Ids(msgspec.Struct, frozen=True):
    VERSIONS: ClassVar = Versions(0, 0)

    first: Uuid
    second: OptionalUuid


def encoded(message: msgspec.Struct, version: int) -> bytes:
    return codec_of(type(message), version).encode(message)


def decoded(message_type: type[msgspec.Struct], version: int, data: Any) -> Any:
    return codec_of(message_type, version).decode(data, 0, ELEMENTS_MAX)


def refusal(message_type: type[msgspec.Struct], version: int, data: str) -> str:
    with pytest.raises(DecodeError) as raised:
        decoded(message_type, version, bytes.fromhex(data))
    return str(raised.value)


class TestBytes:
    def test_an_inflexible_version(self) -> None:
        assert encoded(EVERYTHING, 1).hex(" ") == hexes(VERSION_1)

    def test_a_flexible_version_without_tags(self) -> None:
        assert encoded(EVERYTHING, 2).hex(" ") == hexes(VERSION_2 + "00")

    def test_tagged_fields_come_last_by_tag_and_only_if_not_default(self) -> None:
        message = replace(
            EVERYTHING,
            tagged_id=TOPIC_ID,
            tagged_number=3,
            tagged_point=Point(1, 2),
            tagged_points=(Point(0, 9),),
            dropped=6,
        )
        tags = (
            "04"
            "00 0a 01 00000001 00000002 00"
            "01 08 0000000000000003"
            f"03 10 {TOPIC_ID}"
            "c801 0a 02 00000000 00000009 00"
        )
        assert encoded(message, 3).hex(" ") == hexes(VERSION_2 + "0006" + tags)

    @pytest.mark.parametrize("version", range(4))
    @given(data=st.data())
    @settings(max_examples=examples(60))
    def test_a_message_comes_back_as_it_went_in(self, version: int, data: st.DataObject) -> None:
        message = data.draw(messages(Everything, version))
        found = encoded(message, version)
        assert decoded(Everything, version, found) == message
        for other in (bytearray(found), memoryview(found)):
            assert decoded(Everything, version, other) == message

    @pytest.mark.parametrize("version", range(4, 14))
    @given(data=st.data())
    @settings(max_examples=examples(30))
    def test_kafka_python_writes_the_same_bytes(self, version: int, data: st.DataObject) -> None:
        message = data.draw(messages(FetchAnswer, version))
        assert encoded(message, version) == kafka_python_bytes(message, version)

    @pytest.mark.parametrize("version", [4, 5, 7, 11, 12, 13])
    @given(data=st.data())
    @settings(max_examples=examples(30))
    def test_kio_reads_and_writes_the_same_bytes(self, version: int, data: st.DataObject) -> None:
        message = with_known_codes(data.draw(messages(FetchAnswer, version)))
        found = encoded(message, version)
        answer = importlib.import_module(f"kio.schema.fetch.v{version}").FetchResponse
        read, size = entity_reader(answer)(found, 0)
        assert size == len(found)
        written = io.BytesIO()
        entity_writer(answer)(written, read)
        assert written.getvalue() == found

    def test_uuids_are_hexadecimal_digits_and_none_is_zero(self) -> None:
        message = Ids(TOPIC_ID, None)  # type: ignore[arg-type]
        assert encoded(message, 0).hex() == TOPIC_ID + "00" * 16
        assert decoded(Ids, 0, bytes(32)) == Ids("0" * 32, None)  # type: ignore[arg-type]


class TestRecords:
    def test_are_decoded_as_a_view(self) -> None:
        data = bytearray(encoded(EVERYTHING, 1))
        found = decoded(Everything, 1, data).records
        assert isinstance(found, memoryview) and found == b"rec"
        data[-1] ^= 1
        assert found != b"rec"

    def test_are_a_piece_of_their_own(self) -> None:
        records = bytes(100_000)
        message = replace(EVERYTHING, records=records)
        pieces = codec_of(Everything, 2).encode_pieces(message)
        assert pieces[1] is records
        assert b"".join(pieces) == encoded(message, 2)

    def test_a_message_without_them_is_one_piece(self) -> None:
        message = Strict("a", (1,))
        assert codec_of(Strict, 0).encode_pieces(message) == [encoded(message, 0)]


class TestSlices:
    @settings(max_examples=examples(100), deadline=None)
    @given(st.data())
    def test_together_are_the_message(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(range(4)))
        message = data.draw(messages(Everything, version))
        slices = slicer_of(Everything, version)(message)
        assert b"".join(slices) == encoded(message, version)

    @pytest.mark.parametrize("version", [1, 2])
    def test_many_elements_and_large_elements_end_a_slice(self, version: int) -> None:
        rows = (Inner("i", (7,), None),) * 20_000
        texts = ("t" * 30_000,) * 20
        message = replace(EVERYTHING, inners=rows, names=texts)
        slices = list(slicer_of(Everything, version)(message))
        assert b"".join(slices) == encoded(message, version)
        assert max(map(len, slices)) < 2 * SLICE_BYTES
        assert len(slices) > 20_000 // SLICE_PARTS + 20 // 3

    def test_a_value_that_the_version_cannot_hold_is_refused_in_any_slice(self) -> None:
        rows = (*(Inner("i", (7,), None),) * 20_000, Inner("i", (1 << 40,), None))
        slices = slicer_of(Everything, 2)(replace(EVERYTHING, inners=rows))
        assert next(slices)
        with pytest.raises(EncodeError):
            list(slices)


class TestMalformedBytes:
    @pytest.mark.parametrize("version", range(4))
    def test_every_truncation_is_refused(self, version: int) -> None:
        lacking = {"large": -1, "added_text": ""} if version == 0 else {}
        data = encoded(replace(EVERYTHING, **lacking), version)
        assert decoded(Everything, version, data)
        codec = codec_of(Everything, version)
        for end in range(len(data)):
            with pytest.raises(DecodeError):
                codec.decode(data[:end], 0, ELEMENTS_MAX)
            with pytest.raises(DecodeError):
                codec.decode_prefix(data[:end], 0, ELEMENTS_MAX)

    @pytest.mark.parametrize("version", range(4))
    @given(data=st.data())
    @settings(max_examples=examples(300))
    def test_changed_bytes_are_refused_or_are_a_message(
        self, version: int, data: st.DataObject
    ) -> None:
        changed = bytearray(encoded(data.draw(messages(Everything, version)), version))
        for _ in range(data.draw(st.integers(1, 4))):
            position = data.draw(st.integers(0, len(changed) - 1))
            changed[position : position + data.draw(st.integers(0, 2))] = data.draw(
                st.binary(max_size=5)
            )
            if not changed:
                break
        try:
            message = decoded(Everything, version, bytes(changed))
        except DecodeError:
            return
        # A nullable fixed value or a long varint may have several forms; all mean the same message.
        again = decoded(Everything, version, encoded(message, version))
        assert again == message or message.ratio != message.ratio

    @pytest.mark.parametrize("message_type", [Everything, FetchAnswer, Rows])
    @given(data=st.binary(max_size=300), version=st.integers(0, 13))
    @settings(max_examples=examples(500))
    def test_random_bytes_raise_nothing_else(
        self, message_type: type[msgspec.Struct], data: bytes, version: int
    ) -> None:
        versions = message_type.VERSIONS  # type: ignore[attr-defined]
        version = min(max(version, versions.first), versions.last)
        try:
            decoded(message_type, version, data)
        except DecodeError as error:
            assert message_type.__name__ in str(error) or "byte" in str(error)

    def test_the_position_is_named(self) -> None:
        assert "Strict, at byte 3" in refusal(Strict, 0, "0001 61 0000")

    def test_bytes_after_the_message(self) -> None:
        assert "1 bytes follow" in refusal(Strict, 0, "0001 61 00000000 ff")

    def test_none_where_the_version_has_none(self) -> None:
        assert refusal(Strict, 0, "ffff 00000000")
        assert refusal(Strict, 0, "0000 ffffffff")
        assert refusal(Strict, 1, "00 01 00")
        assert refusal(Strict, 1, "01 00 00")

    def test_negative_lengths(self) -> None:
        for data in ("0000 ffff", "0000 fffe"):
            with pytest.raises(DecodeError):
                codec_of(Names, 0).decode_prefix(bytes.fromhex(data), 0, ELEMENTS_MAX)
        assert refusal(Rows, 0, "ffffffff")
        assert refusal(Strict, 0, "fffe 00000000")
        assert refusal(Strict, 0, "0000 fffffffe")

    def test_text_that_is_no_utf8_is_replaced_up_to_the_longest_string(self) -> None:
        strict = codec_of(Strict, 0)
        data = bytes.fromhex("0003 6dfc6c 00000000")
        assert strict.decode(data, 0, ELEMENTS_MAX).name == "m\ufffdl"
        for count, fits in ((10_922, True), (10_923, False)):
            data = struct.pack(">h", count) + b"\xff" * count + bytes(4)
            if fits:
                strict.encode(strict.decode(data, 0, ELEMENTS_MAX))
            else:
                assert "UTF-8" in refusal(Strict, 0, data.hex())

    def test_a_varint_of_six_bytes(self) -> None:
        assert "32 bits" in refusal(Strict, 1, "808080808000 01 00")

    @pytest.mark.parametrize("count", ["7fffffff", "00010000"])
    def test_a_claimed_count_allocates_nothing(self, count: str) -> None:
        for data, version in (
            (f"0000 {count} 00000001", 0),
            ("01 ffffffff0f 00000001 00", 1),
            ("ffffffff0f", 1),
        ):
            codec_of(Strict, version)
            tracemalloc.start()
            refusal(Strict, version, data)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 100_000

    @pytest.mark.parametrize(
        ("message_type", "data"),
        [(Strict, "0000 00000002 00000001 00"), (Rows, "00000002" + "00" * 10)],
    )
    def test_a_count_is_held_against_the_bytes_left(
        self, message_type: type[msgspec.Struct], data: str
    ) -> None:
        assert "elements from byte" in refusal(message_type, 0, data)

    def test_elements_of_all_arrays_count_together(self) -> None:
        message = Rows(tuple(Inner("", (1, 2, 3), None) for _ in range(10)))
        for version in (0, 1):
            data = encoded(message, version)
            codec = codec_of(Rows, version)
            assert codec.decode(data, 0, 40) == message
            with pytest.raises(DecodeError):
                codec.decode(data, 0, 39)


class TestTags:
    def test_unknown_ones_are_skipped(self) -> None:
        data = bytes.fromhex("01 01  03  00 02 abcd  02 01 07  ff7f 01 00")
        assert decoded(Strict, 1, data) == Strict("", (), 7)

    def test_unknown_ones_count_as_elements(self) -> None:
        """Each costs the decoder a step: a large message of nothing else would hold its caller."""
        codec = codec_of(Strict, 1)
        data = bytes.fromhex("01 01  03  00 00  02 01 07  03 00")
        assert codec.decode(data, 0, 2) == Strict("", (), 7)
        with pytest.raises(DecodeError, match="unknown"):
            codec.decode(data, 0, 1)

    @pytest.mark.parametrize(
        ("tags", "reason"),
        [
            ("01 02 02 0700", "does not end"),
            ("01 02 00", "at byte"),
            ("02 02 01 07 02 01 08", "twice"),
            ("02 03 00 02 01 07", "twice"),
            ("01 03 05 00", "too long"),
            ("ffffffff0f", "at byte"),
        ],
    )
    def test_malformed_ones_are_refused(self, tags: str, reason: str) -> None:
        assert reason in refusal(Strict, 1, "01 01" + tags)


class TestPrefix:
    def test_the_position_after_the_message_is_returned(self) -> None:
        data = b"\xff" + encoded(Strict("a", (1,)), 0) + b"rest"
        message, end = codec_of(Strict, 0).decode_prefix(data, 1, ELEMENTS_MAX)
        assert message == Strict("a", (1,))
        assert data[end:] == b"rest"


class TestEncode:
    @pytest.mark.parametrize(
        ("changes", "version"),
        [
            ({"number": 2**31}, 1),
            ({"small": -129}, 1),
            ({"port": -1}, 1),
            ({"numbers": (2**63,)}, 1),
            ({"text": "x" * 32_768}, 1),
            ({"text": "\ud800"}, 1),
            ({"topic_id": "xyz"}, 1),
            ({"topic_id": "00"}, 1),
            ({"ids": (TOPIC_ID + "00",)}, 2),
            ({"added_text": None}, 1),
        ],
    )
    def test_a_value_that_does_not_fit_is_refused(
        self, changes: dict[str, Any], version: int
    ) -> None:
        with pytest.raises(EncodeError):
            encoded(replace(EVERYTHING, **changes), version)

    @pytest.mark.parametrize("size", [126, 127, 128, 16_382, 16_383, 16_384])
    def test_lengths_at_the_limits_of_a_varint(self, size: int) -> None:
        message = Strict("x" * size, (1,) * (size % 1000))
        assert decoded(Strict, 1, encoded(message, 1)) == message
        assert encoded(message, 1) == kafka_python_bytes(message, 1)

    def test_a_long_string_fits_a_flexible_version(self) -> None:
        message = replace(EVERYTHING, text="x" * 32_768)
        assert decoded(Everything, 2, encoded(message, 2)) == message

    def test_a_field_that_the_version_lacks_must_have_its_default(self) -> None:
        with pytest.raises(EncodeError, match=r"lacks Everything\.removed"):
            encoded(replace(EVERYTHING, removed=8), 1)
        with pytest.raises(EncodeError, match=r"lacks Everything\.tagged_id"):
            encoded(replace(EVERYTHING, tagged_id=TOPIC_ID), 1)

    def test_an_ignorable_field_is_dropped(self) -> None:
        message = replace(EVERYTHING, dropped=5)
        assert decoded(Everything, 1, encoded(message, 1)) == EVERYTHING
        assert decoded(Everything, 3, encoded(message, 3)) == message


def hexes(text: str) -> str:
    return bytes.fromhex(text).hex(" ")


def with_known_codes(message: FetchAnswer) -> FetchAnswer:
    """The answer with error codes of Kafka's: kio knows no others."""
    return replace(
        message,
        error_code=message.error_code % 90,
        topics=tuple(
            replace(
                topic,
                partitions=tuple(
                    replace(partition, error_code=partition.error_code % 90)
                    for partition in topic.partitions
                ),
            )
            for topic in message.topics
        ),
    )
