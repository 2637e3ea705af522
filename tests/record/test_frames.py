from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.record.errors import INVALID_BODY, LogError
from raftlog.record.frames import (
    ABORTED_MAX,
    TOPIC_BYTES_MAX,
    AbortedTransaction,
    FetchFrame,
    ProduceFrame,
    encode_fetch_frame,
    parse_produce_frames,
)
from raftlog.record.types import Offset, PartitionId, ProducerId
from tests.record.wire import FetchFrameReader, encode_produce_frames

offsets = st.integers(-1, 2**63 - 1).map(Offset)
topics = st.text("abz09._-", min_size=1, max_size=TOPIC_BYTES_MAX) | st.just("t" * TOPIC_BYTES_MAX)
partitions = st.integers(0, 2**31 - 1).map(PartitionId)
produce_frames = st.lists(
    st.builds(ProduceFrame, topics, partitions, st.binary(max_size=100)), min_size=1, max_size=6
)
aborted = st.lists(
    st.builds(AbortedTransaction, st.integers(0, 2**63 - 1).map(ProducerId), offsets), max_size=5
)


def with_stable_part(
    frame: FetchFrame, stable: tuple[Offset, list[AbortedTransaction]] | None
) -> FetchFrame:
    if stable is None:
        return frame
    return frame._replace(last_stable_offset=stable[0], aborted=stable[1])


fetch_frames = st.lists(
    st.builds(
        with_stable_part,
        st.builds(
            FetchFrame,
            topics,
            partitions,
            st.sampled_from([0, 41601, 50301]),
            offsets,
            offsets,
            offsets,
            st.binary(max_size=400),
            st.none(),
            st.just(()),
        ),
        st.none() | st.tuples(offsets, aborted),
    ),
    max_size=6,
)


def fetched(topic: str = "t", data: bytes = b"batches", error_code: int = 0) -> FetchFrame:
    return FetchFrame(topic, PartitionId(3), error_code, Offset(9), Offset(1), Offset(8), data)


def body_of(*frames: FetchFrame) -> bytes:
    return b"".join(part for frame in frames for part in encode_fetch_frame(frame))


def read_all(body: bytes, chunk_bytes: int, frame_bytes_max: int = 10**6) -> list[FetchFrame]:
    reader = FetchFrameReader(frame_bytes_max=frame_bytes_max)
    frames = []
    for start in range(0, len(body), chunk_bytes):
        frames += reader.feed(body[start : start + chunk_bytes])
    reader.finish()
    return [frame._replace(data=bytes(frame.data)) for frame in frames]


class TestProduceFrames:
    def test_layout(self) -> None:
        body = encode_produce_frames([ProduceFrame("topic", PartitionId(3), b"data!!")])
        assert body == b"\0\5" + b"\0\0\0\3" + b"\0\0\0\6" + b"topic" + b"data!!"

    @given(frames=produce_frames)
    def test_round_trip(self, frames: list[ProduceFrame]) -> None:
        body = encode_produce_frames(frames)
        found = list(parse_produce_frames(body, frames_max=len(frames)))
        assert [frame._replace(data=bytes(frame.data)) for frame in found] == frames

    def test_data_are_views(self) -> None:
        body = encode_produce_frames([ProduceFrame("t", PartitionId(0), b"data")] * 2)
        for frame in parse_produce_frames(body, frames_max=2):
            assert isinstance(frame.data, memoryview)
            assert frame.data.obj is body

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"", "no frame"),
            (struct.pack(">HiI", 0, 0, 0), "topic name of 0 bytes"),
            (struct.pack(">HiI", 250, 0, 0) + b"t" * 250, "topic name of 250 bytes"),
            (struct.pack(">HiI", 2, 0, 0) + b"\xff\xff", "not UTF-8"),
            (struct.pack(">HiI", 1, -1, 0) + b"t", "partition -1"),
            (struct.pack(">HiI", 1, 0, 2**32 - 1) + b"t" + bytes(100), "cut off"),
            (struct.pack(">HiI", 65535, 0, 0) + b"t", "cut off"),
        ],
    )
    def test_malformed_bodies_are_refused(self, body: bytes, reason: str) -> None:
        with pytest.raises(LogError, match=reason) as raised:
            list(parse_produce_frames(body, frames_max=10))
        assert raised.value.entry is INVALID_BODY

    def test_every_truncation_is_refused(self) -> None:
        frame = encode_produce_frames([ProduceFrame("topic", PartitionId(3), b"data")])
        for size in range(1, len(frame)):
            with pytest.raises(LogError, match="cut off") as raised:
                list(parse_produce_frames(frame + frame[:size], frames_max=10))
            assert raised.value.entry is INVALID_BODY

    def test_number_of_frames_is_bounded(self) -> None:
        body = encode_produce_frames([ProduceFrame("t", PartitionId(0), b"")] * 3)
        assert len(list(parse_produce_frames(body, frames_max=3))) == 3
        with pytest.raises(LogError, match="more than 2 frames"):
            list(parse_produce_frames(body, frames_max=2))

    @given(body=st.binary(max_size=80))
    def test_noise_is_parsed_or_refused(self, body: bytes) -> None:
        try:
            frames = list(parse_produce_frames(body, frames_max=5))
        except LogError as error:
            assert error.entry is INVALID_BODY
        else:
            assert encode_produce_frames(frames) == body


class TestFetchFrames:
    def test_layout(self) -> None:
        head, data = encode_fetch_frame(fetched("topic", b"data", 41601))
        assert head == struct.pack(">HiiqqqI", 5, 3, 41601, 9, 1, 8, 4) + b"topic"
        assert data == b"data"

    def test_layout_of_the_stable_part(self) -> None:
        frame = fetched("topic", b"data")._replace(
            last_stable_offset=Offset(7),
            aborted=(AbortedTransaction(ProducerId(5), Offset(4)),),
        )
        assert encode_fetch_frame(frame) == (
            struct.pack(">HiiqqqI", 0x4005, 3, 0, 9, 1, 8, 4)
            + b"topic"
            + struct.pack(">qIqq", 7, 1, 5, 4),
            b"data",
        )

    def test_more_aborted_transactions_than_the_bound_are_refused(self) -> None:
        head = struct.pack(">HiiqqqI", 0x4001, 3, 0, 9, 1, 8, 4) + b"t"
        reader = FetchFrameReader(frame_bytes_max=100)
        assert reader.feed(head + struct.pack(">qI", 7, ABORTED_MAX)) == []
        with pytest.raises(LogError, match="aborted transactions") as raised:
            FetchFrameReader(frame_bytes_max=100).feed(
                head + struct.pack(">qI", 7, ABORTED_MAX + 1)
            )
        assert raised.value.entry is INVALID_BODY

    def test_data_is_not_copied(self) -> None:
        frame = fetched(data=bytes(1000))
        assert encode_fetch_frame(frame)[1] is frame.data

    def test_error_has_a_message(self) -> None:
        [frame] = read_all(body_of(fetched(data="Größer.".encode(), error_code=41601)), 10**6)
        assert frame.error_code == 41601
        assert frame.message == "Größer."
        assert fetched(data=b"bad \xff").message == "bad \ufffd"

    @given(frames=fetch_frames, chunk_bytes=st.integers(1, 700))
    def test_chunks_may_end_anywhere(self, frames: list[FetchFrame], chunk_bytes: int) -> None:
        assert read_all(body_of(*frames), chunk_bytes) == frames

    def test_every_chunk_size(self) -> None:
        frames = [fetched("a" * 249, b"x" * 50), fetched("b", b""), fetched("c", b"y" * 9)]
        body = body_of(*frames)
        for chunk_bytes in range(1, len(body) + 1):
            assert read_all(body, chunk_bytes) == frames

    def test_empty_chunks_and_an_empty_response(self) -> None:
        reader = FetchFrameReader(frame_bytes_max=100)
        assert reader.feed(b"") == []
        reader.finish()

    def test_frames_are_given_as_soon_as_they_are_whole(self) -> None:
        reader = FetchFrameReader(frame_bytes_max=100)
        body = body_of(fetched())
        assert reader.feed(body[:-1]) == []
        assert len(reader.feed(body[-1:] + body[:20])) == 1
        assert len(reader.feed(body[20:])) == 1

    def test_response_that_ends_early_is_refused(self) -> None:
        body = body_of(fetched())
        for size in range(1, len(body)):
            reader = FetchFrameReader(frame_bytes_max=100)
            assert len(reader.feed(body)) == 1
            reader.feed(body[:size])
            with pytest.raises(LogError, match="ends within frame 1") as raised:
                reader.finish()
            assert raised.value.entry is INVALID_BODY

    def test_size_is_refused_before_it_is_allocated(self) -> None:
        head = struct.pack(">HiiqqqI", 1, 0, 0, 0, 0, 0, 2**32 - 1)
        reader = FetchFrameReader(frame_bytes_max=1000)
        tracemalloc.start()
        with pytest.raises(LogError, match="at most 1000"):
            reader.feed(head)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1_000_000

    @pytest.mark.parametrize(
        ("head", "reason"),
        [
            (struct.pack(">HiiqqqI", 0, 0, 0, 0, 0, 0, 0), "topic name of 0"),
            (struct.pack(">HiiqqqI", 65535, 0, 0, 0, 0, 0, 0), "topic name of 65535"),
            (struct.pack(">HiiqqqI", 1, 0, 0, 0, 0, 0, 0) + b"\xff", "not UTF-8"),
        ],
    )
    def test_malformed_heads_are_refused(self, head: bytes, reason: str) -> None:
        with pytest.raises(LogError, match=reason) as raised:
            FetchFrameReader(frame_bytes_max=1000).feed(head)
        assert raised.value.entry is INVALID_BODY

    def test_a_large_frame_costs_its_size_once(self) -> None:
        # Copying all received bytes at each chunk would take minutes here, and far more memory.
        body = body_of(fetched(data=bytes(32_000_000)))
        chunks = [body[start : start + 16_384] for start in range(0, len(body), 16_384)]
        reader = FetchFrameReader(frame_bytes_max=32_000_000)
        tracemalloc.start()
        frames = [frame for chunk in chunks for frame in reader.feed(chunk)]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(frames[0].data) == 32_000_000
        assert peak < 33_000_000
