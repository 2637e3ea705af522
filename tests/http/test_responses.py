from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.http.responses import (
    JSON,
    WRITE_SLICE_BYTES,
    Answer,
    bytes_response,
    error_response,
    json_response,
    negotiate,
    raw_error,
    require_media_type,
)
from raftlog.record.errors import BAD_REQUEST, LogError

OFFERED = ("application/json", "text/event-stream")


class Headers:
    """As much of a request as negotiation looks at."""

    def __init__(self, **headers: str) -> None:
        self.headers = headers


def chosen(accept: str | None) -> str:
    headers = {} if accept is None else {"Accept": accept}
    return negotiate(cast(Any, Headers(**headers)), OFFERED)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, "application/json"),
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("text/event-stream", "text/event-stream"),
        ("TEXT/*", "text/event-stream"),
        ("text/html, */*;q=0.1", "application/json"),
        ("application/json;q=0.5, text/event-stream", "text/event-stream"),
        ("application/json;q=0, */*", "text/event-stream"),
        ("text/event-stream; charset=utf-8 ; Q=1", "text/event-stream"),
    ],
)
def test_accept_header_chooses(accept: str | None, expected: str) -> None:
    assert chosen(accept) == expected


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "*/*;q=0", "nonsense"])
def test_nothing_acceptable_is_a_typed_error(accept: str) -> None:
    with pytest.raises(LogError) as caught:
        chosen(accept)
    assert caught.value.entry.code == 40601
    assert caught.value.message.startswith("The Accept header ")


@given(accept=st.text())
def test_any_accept_header_is_answered(accept: str) -> None:
    try:
        assert chosen(accept) in OFFERED
    except LogError as error:
        assert error.entry.http_status == 406


def test_media_type_that_is_not_understood_is_named() -> None:
    with pytest.raises(LogError, match="text/xml"):
        require_media_type(cast(Any, Headers(**{"Content-Type": "text/xml"})), ("a/b",))


@pytest.mark.parametrize("media_type", [JSON, "application/vnd.kafka.json.v2+json"])
def test_small_json_answers_end_with_one_newline(media_type: str) -> None:
    for response in (
        json_response({"x": 1}, content_type=media_type),
        bytes_response(b'{"x":1}', media_type),
        bytes_response(b'{"x":1}\n', media_type),
    ):
        assert cast(Answer, response).content == b'{"x":1}\n'
    error = cast(Answer, error_response(BAD_REQUEST, content_type=media_type)).content
    assert error.endswith(b"}\n")
    head, _, body = raw_error(BAD_REQUEST).partition(b"\r\n\r\n")
    assert body == error
    assert b"Content-Length: %d" % len(body) in head


def test_bytes_and_large_json_stay_as_they_are() -> None:
    large = b"[" + b"1," * WRITE_SLICE_BYTES + b"1]"
    for body, media_type in ((b"x", "text/plain"), (large, JSON)):
        assert cast(Answer, bytes_response(body, media_type)).content == body
