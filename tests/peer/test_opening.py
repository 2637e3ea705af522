"""The HTTP heads of an opening between nodes, and addresses as text."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from raftlog.peer.dial import parse_address
from raftlog.peer.opening import (
    CALLEE_NONCE_HEADER,
    HEAD_BYTES_MAX,
    NONCE_HEADER,
    PROOF_HEADER,
    Challenge,
    OpeningError,
    ResponseReader,
    challenge_headers,
    is_channel,
    is_upgrade,
    request_head,
    response_head,
    token,
)

KEY = b"k" * 16
NONCE = b"n" * 32
tokens = st.binary(min_size=32, max_size=32)


@given(tokens, tokens)
def test_request_carries_nonce_and_proof(nonce: bytes, proof: bytes) -> None:
    head = request_head("[::1]:8082", "quorum", KEY, nonce, callee_nonce=NONCE, proof=proof)
    first, *lines = head.decode().split("\r\n")
    assert first == "GET /v1/internal/quorum HTTP/1.1"
    assert lines[-2:] == ["", ""]
    headers: CIMultiDict[str] = CIMultiDict()
    for line in lines[:-2]:
        name, _, value = line.partition(": ")
        headers.add(name, value)
    assert headers["Host"] == "[::1]:8082"
    assert is_upgrade(headers)
    assert (token(headers, NONCE_HEADER), token(headers, PROOF_HEADER)) == (nonce, proof)
    assert token(headers, CALLEE_NONCE_HEADER) == NONCE
    first_head = request_head("[::1]:8082", "quorum", KEY, nonce).decode()
    assert PROOF_HEADER not in first_head
    assert CALLEE_NONCE_HEADER not in first_head


@given(tokens, st.binary(max_size=50), st.integers(1, 500))
def test_response_is_read_however_it_is_cut(proof: bytes, rest: bytes, cut: int) -> None:
    data = response_head(KEY, proof) + rest
    reader = ResponseReader(KEY)
    found, position = None, 0
    while found is None:
        found = reader.feed(data[position : position + cut])
        position += cut
    assert found[0] == Challenge(101, proof=proof)
    assert found[1] + data[position:] == rest


@given(tokens, st.binary(max_size=300), st.binary(max_size=50), st.integers(1, 500))
def test_nonce_to_prove_is_read_with_the_whole_answer(
    nonce: bytes, body: bytes, rest: bytes, cut: int
) -> None:
    """What follows on the connection must begin where the answer ends."""
    lines = [f"{name}: {value}" for name, value in challenge_headers(nonce).items()]
    lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join(["HTTP/1.1 401 Unauthorized", *lines, "", ""]).encode()
    data = head + body + rest
    reader = ResponseReader(KEY)
    found, position = None, 0
    while found is None:
        assert position < len(head + body)
        found = reader.feed(data[position : position + cut])
        position += cut
    assert found[0] == Challenge(401, nonce, body_bytes=len(body))
    assert found[1] + data[position:] == rest


@pytest.mark.parametrize("length", ["", "x", "-1", "999999", "1e3"])
def test_answer_with_a_nonce_but_no_length_is_an_opening_error(length: str) -> None:
    lines = [f"{name}: {value}" for name, value in challenge_headers(NONCE).items()]
    head = "\r\n".join(["HTTP/1.1 401 x", *lines, f"Content-Length: {length}", "", ""])
    with pytest.raises(OpeningError):
        ResponseReader(KEY).feed(head.encode())


def test_accept_key_is_the_one_of_rfc_6455() -> None:
    """Section 1.3's own example."""
    key = b"the sample nonce"
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in response_head(key, b"")


@pytest.mark.parametrize("status", [400, 401, 404, 429, 503])
def test_other_statuses_are_known_by_number_alone(status: int) -> None:
    found = ResponseReader(KEY).feed(f"HTTP/1.1 {status} Some thing\r\nX: y\r\n\r\nbody".encode())
    assert found == (Challenge(status), b"body")


@pytest.mark.parametrize(
    "data",
    [
        b"SSH",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 xyz\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + bytes(HEAD_BYTES_MAX),
        b"HTTP/1.1 101 OK\r\n\r\n",
        response_head(b"another key....", b"p"),
        response_head(KEY, b"p").replace(b"node.2", b"node.1"),
        response_head(KEY, b"p")[:-2] + b"Sec-WebSocket-Extensions: x\r\n\r\n",
    ],
)
def test_what_is_no_answer_of_a_node_is_an_opening_error(data: bytes) -> None:
    with pytest.raises(OpeningError):
        ResponseReader(KEY).feed(data)


@given(st.binary(max_size=300))
def test_random_answers_are_never_a_challenge(noise: bytes) -> None:
    for data in (noise, b"HTTP/1.1 101 x\r\n" + noise + b"\r\n\r\n"):
        with contextlib.suppress(OpeningError):
            found = ResponseReader(KEY).feed(data)
            assert found is None or found[0].status != 101


@given(st.text(max_size=200))
def test_malformed_tokens_are_empty(text: str) -> None:
    assert len(token({"x": text}, "x")) <= 96
    assert token({}, "x") == token({"x": "!" + text}, "x") == token({"x": "A" * 132}, "x") == b""


def test_channels_are_short_lower_case_words() -> None:
    assert all(map(is_channel, ["quorum", "a", "join-2"]))
    assert not any(map(is_channel, ["", "A", "a/b", "a b", "1", "a\n", "é", "a" * 33]))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("n1:8082", ("n1", 8082)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
    ],
)
def test_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "n1", ":80", "n1:", "n1:x", "n1:-1", "n1:0", "n1:65536", "n1:123456", "n1:٣"),
        *("::1:80", "[]:80", "[[::1]]:80", "n1:80\r\nX: y", "n 1:80", "n\n1:80"),
        *("n1/x:80", "u@n1:80", "ñ:80"),
    ],
)
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        parse_address(text)
