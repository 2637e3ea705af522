"""Tokens, and the kinds of reads."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_replicated.types import Token, session, within


@given(st.integers(0), st.integers(0))
def test_a_token_survives_as_text(term: int, position: int) -> None:
    token = Token(term, position)
    assert Token.parse(str(token)) == token
    assert session(str(token)) == session(token)


@pytest.mark.parametrize("text", ["", "-", "1-", "-1", "1", "1-2-3", "a-1", "1-²", "+1-2", " 1-2"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="token"):
        Token.parse(text)


@pytest.mark.parametrize("lag_ms", [-1, math.nan])
def test_a_lag_is_not_negative(lag_ms: float) -> None:
    with pytest.raises(ValueError, match="lag_ms"):
        within(lag_ms)
