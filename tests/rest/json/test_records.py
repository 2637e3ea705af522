from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.broker.limits import WorkTurns
from raftlog.record.errors import BODY_TOO_LARGE, INVALID_BODY, LogError
from raftlog.rest.json.records import (
    ProducedRecords,
    RecordFormat,
    StoredRecord,
    parse_produce_body,
)
from raftlog.world.time import SystemClock

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('abc"\\{[é'), inner),
    max_leaves=10,
)


def stored(
    body: bytes | str, record_format: RecordFormat = RecordFormat.JSON, **limits: int
) -> list[StoredRecord]:
    data = body.encode() if isinstance(body, str) else body
    produced = ProducedRecords(1234, limits.get("records_max", 1000), lambda _size: None)
    asyncio.run(
        parse_produce_body(
            data, record_format, produced, depth_max=64, turns=WorkTurns(SystemClock())
        )
    )
    return produced.records


def refused(body: bytes | str, record_format: RecordFormat = RecordFormat.JSON) -> str:
    with pytest.raises(LogError) as caught:
        stored(body, record_format)
    assert caught.value.entry is INVALID_BODY
    return caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        '{"b": 1,  "a":[ 2 ]}',
        "12345678901234567890123456789",
        "0.1000000000000000000000000000001",
        "1e999",
        '"\\u00e9\\ud83d\\ude00"',
        '"é😀"',
        '"k1"',
        "-0",
        "true",
        '""',
    ],
)
def test_json_value_and_key_are_stored_as_the_bytes_that_were_written(text: str) -> None:
    [(_, key, value, _)] = stored(f'{{"records":[{{"key": {text} , "value":{text}}}]}}')
    assert key == value == text.encode()


def test_null_and_missing_are_none_in_every_format() -> None:
    for record_format in RecordFormat:
        records = stored('{"records":[{"value":null},{"key":null,"value":null}]}', record_format)
        assert records == [(1234, None, None, None)] * 2


def test_binary_is_base64_both_ways_and_text_is_utf8() -> None:
    body = '{"records":[{"key":"AP8=","value":"","timestamp":7}]}'
    assert stored(body, RecordFormat.BINARY) == [(7, b"\x00\xff", b"", None)]
    body = '{"records":[{"key":"é","value":"\\u00e9\\n"}]}'
    assert stored(body, RecordFormat.TEXT) == [(1234, "é".encode(), "é\n".encode(), None)]


def test_headers_keep_order_repeats_and_null() -> None:
    headers = '[{"key":"b","value":"QQ=="},{"key":"a","value":""},{"key":"b","value":null}]'
    [record] = stored(f'{{"records":[{{"value":1,"headers":{headers}}}]}}')
    assert record[3] == [("b", b"A"), ("a", b""), ("b", None)]


@pytest.mark.parametrize(
    "value", ["QQ", "QQ=", "Q Q=", "QQ==\\n", "-_==", "QQ==QQ==", "=", "Q===", "é"]
)
def test_base64_is_strict(value: str) -> None:
    message = refused(f'{{"records":[{{"value":"{value}"}}]}}', RecordFormat.BINARY)
    assert "base64" in message
    assert "$.records[0].value" in message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field `records`"),
        (b'{"records":{}}', "Expected `array`"),
        (b'{"records":[]}', "no records"),
        (b'{"records":[1]}', "$.records[0]"),
        (b'{"records":[{}]}', "missing required field `value`"),
        (b'{"records":[{"value":1,"keey":2}]}', "unknown field `keey`"),
        (b'{"records":[{"value":1}],"record":2}', "unknown field `record`"),
        (b'{"records":[{"value":1,"partition":-1}]}', "$.records[0].partition"),
        (b'{"records":[{"value":1,"partition":2147483648}]}', "$.records[0].partition"),
        (b'{"records":[{"value":1,"partition":"0"}]}', "$.records[0].partition"),
        (b'{"records":[{"value":1,"timestamp":-1}]}', "$.records[0].timestamp"),
        (b'{"records":[{"value":1,"timestamp":9223372036854775808}]}', "$.records[0].timestamp"),
        (b'{"records":[{"value":1,"timestamp":1.5}]}', "$.records[0].timestamp"),
        (b'{"records":[{"value":1,"headers":{}}]}', "$.records[0].headers"),
        (b'{"records":[{"value":1,"headers":[{"value":"QQ=="}]}]}', "`key`"),
        (b'{"records":[{"value":1,"headers":[{"key":"a","value":"Q"}]}]}', "base64"),
        (b'{"records":[{"value":1}],"sequence":-1}', "$.sequence"),
        (b'{"records":[{"value":1}],"producer_epoch":32768}', "$.producer_epoch"),
        (b'{"records":[{"value":1}],"value_schema_id":3}', "$.value_schema_id"),
        (b'{"records":[{"value":"\xff"}]}', "not UTF-8"),
        (b'{"records":[{"value":"\xed\xa0\x80"}]}', "not UTF-8"),
        (b'{"records":[{"value":"\\ud800"}]}', "not JSON"),
        (b'{"records":[{"value":"a\nb"}]}', "not JSON"),
        (b'{"records":[{"value":NaN}]}', "not JSON"),
        (b'{"records":[{"value":01}]}', "not JSON"),
        (b'{"records":[{"value":tru}]}', "not JSON"),
        (b'{"records":[{"value":1}]} x', "not JSON"),
        (b'\xef\xbb\xbf{"records":[{"value":1}]}', "not JSON"),
        (b'{"records":[{"value":' + b"[" * 100 + b"]" * 100 + b"}]}", "deeper than 64"),
        (b'{"records":[{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", "deeper than 64"),
        (b'{"records":[{"value":' + b'{"a":' * 5000, "deeper than 64"),
    ],
)
def test_bad_body_is_refused_with_what_and_where(body: bytes, said: str) -> None:
    assert said in refused(body)


def test_brackets_in_strings_and_side_by_side_are_not_depth() -> None:
    value = json.dumps(["[" * 500, *([[{}]] * 200), '"{['])
    [(_, _, kept, _)] = stored(f'{{"records":[{{"value":{value}}}]}}')
    assert kept == value.encode()


def test_number_of_records_is_bounded() -> None:
    body = '{"records":[{"value":1},{"value":2},{"value":3}]}'
    assert len(stored(body, records_max=3)) == 3
    with pytest.raises(LogError) as caught:
        stored(body, records_max=2)
    assert caught.value.entry is BODY_TOO_LARGE


@given(st.lists(st.tuples(JSON_VALUES, JSON_VALUES), min_size=1, max_size=5), st.booleans())
def test_what_is_stored_means_what_was_sent(
    pairs: list[tuple[Any, Any]], ensure_ascii: bool
) -> None:
    body = json.dumps(
        {"records": [{"key": key, "value": value} for key, value in pairs]},
        ensure_ascii=ensure_ascii,
    )
    for (key, value), (_, stored_key, stored_value, _) in zip(pairs, stored(body), strict=True):
        assert (None if stored_key is None else json.loads(stored_key)) == key
        assert (None if stored_value is None else json.loads(stored_value)) == value


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_any_bytes_pass_through_binary(key: bytes, value: bytes) -> None:
    record = {"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()}
    [(_, stored_key, stored_value, _)] = stored(
        json.dumps({"records": [record]}), RecordFormat.BINARY
    )
    assert (stored_key, stored_value) == (key, value)


@given(
    st.binary(max_size=60) | st.text('{}[]":,\\ue recodsvalu01', max_size=60).map(str.encode),
    st.sampled_from(RecordFormat),
)
def test_any_body_is_taken_or_refused_with_a_typed_error(
    noise: bytes, record_format: RecordFormat
) -> None:
    for body in (noise, b'{"records":[{"value":' + noise + b"}]}"):
        try:
            records = stored(body, record_format)
        except LogError as error:
            assert error.entry in (INVALID_BODY, BODY_TOO_LARGE)
        else:
            assert records
