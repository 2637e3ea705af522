import csv
import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.cli.topic.records import BadLineError, CsvLines, Lines, LineSplitter


def split_in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_lines_do_not_depend_on_how_the_input_is_cut(data: bytes, cuts: list[int]) -> None:
    data = data.replace(b"a", b"\n")
    splitter = LineSplitter()
    found: list[bytes] = []
    for chunk in split_in_pieces(data, cuts):
        number, lines = splitter.feed(chunk)
        assert number == len(found) + 1
        found += lines
    found += splitter.finish().lines
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert found == expected


def test_line_without_an_end_is_refused_only_after_the_lines_before_it_are_given() -> None:
    splitter = LineSplitter(line_bytes_max=10)
    assert splitter.feed(b"one\ntwo\n" + b"x" * 11).lines == [b"one", b"two"]
    with pytest.raises(BadLineError, match="line 3: longer than 10 bytes"):
        splitter.feed(b"more")


def test_too_long_last_line_is_refused_at_the_end() -> None:
    splitter = LineSplitter(line_bytes_max=10)
    splitter.feed(b"x" * 11)
    with pytest.raises(BadLineError, match="line 1"):
        splitter.finish()


cells = st.text(st.sampled_from('ab,"\n '), max_size=5)


@given(st.lists(st.lists(cells, min_size=2, max_size=3), max_size=6))
def test_csv_records_with_line_ends_in_quotes_stay_whole(rows: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    splitter, joiner = LineSplitter(), CsvLines()
    records = joiner.feed(splitter.feed(text.getvalue().encode()))
    joiner.finish()
    assert [next(csv.reader([record.data.decode()])) for record in records] == rows


def test_csv_record_has_the_number_of_the_line_it_starts_on() -> None:
    joiner = CsvLines()
    first = joiner.feed(Lines(1, [b"a,b", b'"x', b'y",1']))
    second = joiner.feed(Lines(4, [b"2,3"]))
    assert [record.number for record in first + second] == [1, 2, 4]


def test_quote_that_is_never_closed_is_an_error_at_its_own_line() -> None:
    joiner = CsvLines()
    joiner.feed(Lines(1, [b"a", b'"open', b"b"]))
    with pytest.raises(BadLineError, match="line 2: the input ends inside a quoted field"):
        joiner.finish()


def test_quote_that_is_never_closed_does_not_collect_the_whole_input() -> None:
    joiner = CsvLines(line_bytes_max=20)
    joiner.feed(Lines(1, [b'"open', b"x" * 30]))
    with pytest.raises(BadLineError, match="line 1: a quoted field is never closed"):
        joiner.feed(Lines(3, [b"more"]))
