import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_client import ProducerRecord, Record

from raftlog.cli.topic.records import (
    RECORD_LINE_BYTES_MAX,
    BadLineError,
    BytesRecord,
    CsvLines,
    CsvParser,
    Lines,
    RecordOptions,
    RecordReader,
    envelope_parser,
    json_parser,
    text_parser,
)
from raftlog.cli.topic.template import json_formatter


def csv_reader(options: RecordOptions, **settings: object) -> RecordReader:
    parser = CsvParser(
        options,
        delimiter=str(settings.get("delimiter", ",")),
        infer_types=bool(settings.get("infer_types")),
    )
    return RecordReader(parser.parse, skip_bad=bool(settings.get("skip_bad")), csv_lines=CsvLines())


def records_of(reader: RecordReader, *lines: bytes) -> list[BytesRecord]:
    parsed = reader.read(Lines(1, list(lines)))
    assert parsed.error is None
    return parsed.records


def error_of(reader: RecordReader, *lines: bytes) -> str:
    return str(reader.read(Lines(1, list(lines))).error)


def test_lines_are_values_byte_for_byte() -> None:
    reader = RecordReader(text_parser(RecordOptions(), None), skip_bad=False)
    values = [record.value for record in records_of(reader, b"one ", b"", b"\xff\x00\r")]
    assert values == [b"one ", b"", b"\xff\x00\r"]


def test_key_stands_before_the_first_separator() -> None:
    reader = RecordReader(text_parser(RecordOptions(), b":"), skip_bad=False)
    record = records_of(reader, b"k:a:b")[0]
    assert (record.key, record.value) == (b"k", b"a:b")
    assert error_of(reader, b"k:v", b"none") == "line 2: has no key separator ':'"


def test_every_record_gets_the_options_of_the_run() -> None:
    options = RecordOptions(partition=3, key=b"k", headers=(("h", b"1"),), tombstone_for_empty=True)
    reader = RecordReader(text_parser(options, None), skip_bad=False)
    assert records_of(reader, b"v", b"") == [
        ProducerRecord(value=b"v", key=b"k", partition=3, headers=(("h", b"1"),)),
        ProducerRecord(value=None, key=b"k", partition=3, headers=(("h", b"1"),)),
    ]


def test_json_value_is_kept_byte_for_byte_and_blank_lines_are_none() -> None:
    reader = RecordReader(json_parser(RecordOptions()), skip_bad=False)
    line = b'{"b": 1.50, "a":"\\u00e9"}'
    assert [record.value for record in records_of(reader, line + b"\r", b"  ")] == [line]


@pytest.mark.parametrize(
    ("moment", "expected_ms"),
    [
        ("1357034400000", 1357034400000),
        ("1357034400000.7", 1357034400000),
        ('"1357034400000"', 1357034400000),
        ('"2013-01-01T10:00:00Z"', 1357034400000),
        ('"2013-01-01T10:00:00"', 1357034400000),
        ('"2013-01-01T05:00:00-05:00"', 1357034400000),
        ('"2013-01-01"', 1356998400000),
        ("null", None),
    ],
)
def test_json_timestamp_is_milliseconds_or_iso_8601(moment: str, expected_ms: int | None) -> None:
    options = RecordOptions(timestamp_field="t", key_field="k")
    reader = RecordReader(json_parser(options), skip_bad=False)
    line = b'{"t":%b,"k":7}' % moment.encode()
    if expected_ms is None:
        assert "neither a number nor text" in error_of(reader, line)
        return
    record = records_of(reader, line)[0]
    assert (record.timestamp_ms, record.key, record.value) == (expected_ms, b"7", line)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b'{"t":1}', "has no field 'k' for the key"),
        (b'{"k":"x"}', "has no field 't' for the timestamp"),
        (b'{"k":"x","t":"yesterday"}', "neither milliseconds since 1970 nor a time"),
        (b'{"k":"x","t":-5}', "out of range"),
        (b'{"k":"x","t":1e300}', "out of range"),
        (b'{"k":"x","t":true}', "neither a number nor text"),
        (b"[" * 5000, "is not JSON"),
        (b"\xff", "is not JSON"),
    ],
)
def test_bad_json_line_is_named_with_its_reason(line: bytes, reason: str) -> None:
    options = RecordOptions(timestamp_field="t", key_field="k")
    reader = RecordReader(json_parser(options), skip_bad=False)
    parsed = reader.read(Lines(5, [b'{"k":"x","t":1}', line, b"never reached"]))
    assert len(parsed.records) == 1
    assert parsed.error is not None
    assert parsed.error.number == 6
    assert reason in str(parsed.error)


def test_bad_lines_can_be_skipped_and_are_reported() -> None:
    skipped: list[BadLineError] = []
    reader = RecordReader(json_parser(RecordOptions()), skip_bad=True, on_skipped=skipped.append)
    values = [record.value for record in records_of(reader, b"1", b"x", b"2", b"{")]
    assert values == [b"1", b"2"]
    assert [error.number for error in skipped] == [2, 4]


def test_line_that_fits_into_no_request_is_a_bad_line() -> None:
    parser = text_parser(RecordOptions(), None)
    large = b"x" * (RECORD_LINE_BYTES_MAX + 1)
    assert "line 2: has 4190209 bytes" in error_of(RecordReader(parser, False), b"a", large)
    assert len(records_of(RecordReader(parser, True), large, large[1:])) == 1


def test_csv_rows_become_objects_of_text() -> None:
    reader = csv_reader(RecordOptions(key_field="id", timestamp_field="at"))
    rows = records_of(
        reader, b"\xef\xbb\xbfid,name,at\r", b'007,"a, ""b""",5\r', b"", b"8,1e5,2013-01-01\r"
    )
    assert [(row.key, row.timestamp_ms, orjson.loads(row.value or b"")) for row in rows] == [
        (b"007", 5, {"id": "007", "name": 'a, "b"', "at": "5"}),
        (b"8", 1356998400000, {"id": "8", "name": "1e5", "at": "2013-01-01"}),
    ]


def test_csv_types_are_inferred_only_where_text_reads_exactly_like_json() -> None:
    reader = csv_reader(RecordOptions(key_field="a"), infer_types=True, delimiter=";")
    rows = records_of(reader, b"a;b;c;d;e;f", b"7;-1.5;;true;007;NaN")
    assert orjson.loads(rows[0].value or b"") == {
        "a": 7, "b": -1.5, "c": None, "d": True, "e": "007", "f": "NaN",
    }  # fmt: skip
    assert rows[0].key == b"7"


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([b"a,b", b"1"], "line 2: has 1 fields; the header row has 2"),
        ([b"a,b", b"1,\xff"], "line 2: is not UTF-8"),
        ([b"a,b", b'"x"y,2'], "line 2: is not CSV"),
        ([b"a,a"], "line 1: names a column twice"),
        ([b"b,c"], "line 1: has no column 'a': b, c"),
        ([b"a,\xff"], "line 1: is no header row"),
    ],
)
def test_bad_csv_is_named(lines: list[bytes], error: str) -> None:
    assert error in error_of(csv_reader(RecordOptions(key_field="a")), *lines)


def test_bad_header_row_is_never_skipped() -> None:
    reader = csv_reader(RecordOptions(), skip_bad=True)
    assert "line 1: is no header row" in error_of(reader, b"a,\xff", b"1,2", b"3,4")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1", "is not a JSON object"),
        (b'{"key":"k"}', 'has no "value"'),
        (b'{"value":1,"vlaue":2}', "unknown field 'vlaue'"),
        (b'{"value":"?","value_encoding":"base64"}', "is not base64"),
        (b'{"value":"","value_encoding":"hex"}', 'not "base64"'),
        (b'{"value":1,"headers":5}', "neither a list nor an object"),
        (b'{"value":1,"headers":[{"value":1}]}', "has a header that is not"),
    ],
)
def test_bad_envelope_is_named(line: bytes, reason: str) -> None:
    reader = RecordReader(envelope_parser(RecordOptions()), skip_bad=False)
    assert reason in error_of(reader, line)


def test_envelope_keeps_json_values_as_json() -> None:
    reader = RecordReader(envelope_parser(RecordOptions(key=b"standby")), skip_bad=False)
    line = b'{"value":{"a": [1]},"headers":{"h":"x"},"timestamp":"2013-01-01","offset":9}'
    assert records_of(reader, line) == [
        ProducerRecord(
            value=b'{"a":[1]}',
            key=b"standby",
            timestamp_ms=1356998400000,
            headers=(("h", b"x"),),
        )
    ]


optional_bytes = st.none() | st.binary(max_size=8) | st.text(max_size=4).map(str.encode)


@given(
    optional_bytes,
    optional_bytes,
    st.integers(0, 2**63 - 1),
    st.lists(st.tuples(st.text(max_size=3), optional_bytes), max_size=2),
)
def test_what_consume_prints_as_json_produce_reads_back_exactly(
    key: bytes | None,
    value: bytes | None,
    timestamp: int,
    headers: list[tuple[str, bytes | None]],
) -> None:
    record = Record("t", 1, 2, timestamp, 0, key, value, tuple(headers))
    line = json_formatter([record])
    assert line.count(b"\n") == 1
    reader = RecordReader(envelope_parser(RecordOptions()), skip_bad=False)
    assert records_of(reader, line) == [
        ProducerRecord(value=value, key=key, timestamp_ms=timestamp, headers=tuple(headers))
    ]
