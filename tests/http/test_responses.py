from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.http.responses import negotiate, require_media_type
from raftlog.record.errors import LogError

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


@given(accept=st.text())
def test_any_accept_header_is_answered(accept: str) -> None:
    try:
        assert chosen(accept) in OFFERED
    except LogError as error:
        assert error.entry.http_status == 406


def test_media_type_that_is_not_understood_is_named() -> None:
    with pytest.raises(LogError, match="text/xml"):
        require_media_type(cast(Any, Headers(**{"Content-Type": "text/xml"})), ("a/b",))
