import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from raftlog.cli.common.output import Transfer
from raftlog.cli.topic.inputs import CHUNK_BYTES, ChunkReader, Feed, Source, closing_source
from raftlog.cli.topic.records import (
    BadLineError,
    RecordOptions,
    RecordReader,
    json_parser,
    text_parser,
)


@contextmanager
def pipe() -> Iterator[tuple[Source, int]]:
    reading, writing = os.pipe()
    try:
        yield Source("pipe", reading, None), writing
    finally:
        os.close(reading)


def feed_of(*sources: Source, skip_bad: bool = False, json: bool = True) -> Feed:
    parser = json_parser(RecordOptions()) if json else text_parser(RecordOptions(), None)
    return Feed(
        sources,
        lambda: RecordReader(parser, skip_bad=skip_bad),
        Transfer("test", total_bytes=None, is_shown=False),
        on_skipped=lambda error, count: told.append((str(error), count)),
    )


told: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    told.clear()


async def values_of(feed: Feed) -> list[bytes | None]:
    return [record.value async for record in feed.records()]


async def test_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    with ExitStack() as stack:
        sources = []
        for name, text in (("a", "1\n2"), ("b", ""), ("c", "3\n")):
            (tmp_path / name).write_text(text)
            sources.append(stack.enter_context(closing_source(str(tmp_path / name))))
        assert [source.size_bytes for source in sources] == [3, 0, 2]
        feed = feed_of(*sources)
        assert await values_of(feed) == [b"1", b"2", b"3"]
        assert (feed.transfer.records, feed.transfer.bytes) == (3, 5)


async def test_bad_line_ends_the_feed_after_the_records_before_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("3\n{\n4\n")
    (tmp_path / "c").write_text("5\n")
    with ExitStack() as stack:
        paths = [str(tmp_path / name) for name in "abc"]
        feed = feed_of(*(stack.enter_context(closing_source(path)) for path in paths))
        assert await values_of(feed) == [b"1", b"2", b"3"]
        assert str(feed.error).startswith(f"{paths[1]}, line 2: is not JSON")


async def test_skipped_lines_are_counted_over_all_inputs(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\n1\n")
    (tmp_path / "b").write_text("2\ny\n")
    with ExitStack() as stack:
        paths = [str(tmp_path / name) for name in "ab"]
        feed = feed_of(
            *(stack.enter_context(closing_source(path)) for path in paths), skip_bad=True
        )
        assert await values_of(feed) == [b"1", b"2"]
        assert feed.skipped == 2
        assert feed.error is None
        assert [count for _, count in told] == [1, 2]
        assert told[1][0].startswith(f"{paths[1]}, line 2: is not JSON")


async def test_line_from_a_pipe_comes_at_once_though_the_pipe_stays_open() -> None:
    with pipe() as (source, writing):
        records = feed_of(source).records()
        os.write(writing, b'{"a":1}\n{"unfin')
        assert (await asyncio.wait_for(anext(records), 5)).value == b'{"a":1}'
        os.write(writing, b'ished":2}')
        os.close(writing)
        assert [record.value async for record in records] == [b'{"unfinished":2}']


async def test_stop_ends_a_feed_that_waits() -> None:
    with pipe() as (source, writing):
        feed = feed_of(source)
        os.write(writing, b"1\n")
        records = feed.records()
        await anext(records)
        waiting = asyncio.ensure_future(anext(records))
        await asyncio.sleep(0)
        feed.stop()
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(waiting, 5)
        assert feed.is_stopped
        os.close(writing)


async def test_stop_ends_a_feed_of_a_long_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x\n" * CHUNK_BYTES * 2)
    with closing_source(str(tmp_path / "a")) as source:
        feed = feed_of(source, json=False)
        count = 0
        async for _ in feed.records():
            count += 1
            feed.stop()
        assert count == CHUNK_BYTES // 2


async def test_no_chunk_is_larger_than_its_bound(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * (CHUNK_BYTES * 2 + 1))
    with closing_source(str(tmp_path / "a")) as source:
        sizes = [len(chunk) async for chunk in ChunkReader().chunks(source)]
    assert sizes == [CHUNK_BYTES, CHUNK_BYTES, 1]


async def test_endless_line_is_an_error_and_not_an_endless_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "raftlog.cli.topic.records.LineSplitter.__init__.__defaults__", (CHUNK_BYTES,)
    )
    (tmp_path / "a").write_bytes(b"ok\n" + b"x" * CHUNK_BYTES * 4)
    with closing_source(str(tmp_path / "a")) as source:
        feed = feed_of(source, json=False)
        assert await values_of(feed) == [b"ok"]
    assert isinstance(feed.error, BadLineError)
    assert feed.error.number == 2
    assert feed.transfer.bytes < CHUNK_BYTES * 4


def test_directory_is_no_input(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), closing_source(str(tmp_path)):
        pass
