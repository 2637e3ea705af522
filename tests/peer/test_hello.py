"""The hello of every channel: round trips, typed refusals, and which refusals may pass."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.peer.hello import (
    HELLO_BYTES_MAX,
    Hello,
    check_peer,
    decode_hello,
    encode_hello,
    is_passing,
)
from raftlog.record.errors import (
    BAD_REQUEST,
    ILLEGAL_STATE,
    NOT_FOUND,
    NOT_READY,
    OVERLOADED,
    UNAUTHORIZED,
)
from raftlog.world.network import RejectedError

HELLO = Hello(channel="a", protocol=7, node_id=1, cluster_id="c", peer_id=2, software_version="1.0")


class LongerHello(Hello, frozen=True, kw_only=True):
    """A protocol's own."""

    epoch: int


def refusal(content: bytes) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        decode_hello(content, Hello, "a", 7)
    return caught.value


def test_a_hello_comes_out_as_it_went_in() -> None:
    assert decode_hello(encode_hello(HELLO), Hello, "a", 7) == HELLO


def test_a_protocol_may_add_facts_of_its_own() -> None:
    longer = LongerHello(channel="a", protocol=7, node_id=1, cluster_id=None, epoch=5)
    content = encode_hello(longer)
    assert decode_hello(content, LongerHello, "a", 7) == longer
    # A node without the added facts reads the rest.
    assert decode_hello(content, Hello, "a", 7).node_id == 1
    with pytest.raises(RejectedError):
        decode_hello(encode_hello(HELLO), LongerHello, "a", 7)


def test_another_protocol_is_an_illegal_state_whatever_else_has_changed() -> None:
    error = refusal(msgspec.json.encode({"protocol": 8, "software_version": "9.9"}))
    assert error.code == ILLEGAL_STATE.code
    assert "version 9.9 speaks protocol 8, this one protocol 7" in error.message


@pytest.mark.parametrize(
    ("old", "channel", "protocol"),
    [
        ({"protocol": 1, "node_id": 1, "software_version": "0.3.0"}, "quorum", 2),
        ({"protocol": 2, "broker_id": 1, "broker_epoch": 5}, "replication", 3),
        ({"protocol": 1, "cluster_id": "c", "node_id": 1, "peer_id": 2}, "data", 2),
    ],
)
def test_hellos_from_before_the_common_one_are_refused_as_another_protocol(
    old: dict[str, object], channel: str, protocol: int
) -> None:
    with pytest.raises(RejectedError, match="run versions of raftlog") as caught:
        decode_hello(msgspec.json.encode(old), Hello, channel, protocol)
    assert caught.value.code == ILLEGAL_STATE.code


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"{}",
        b"\xff",
        b"[1]",
        b'{"protocol":7,"channel":"a"}',
        encode_hello(msgspec.structs.replace(HELLO, channel="b")),
        encode_hello(msgspec.structs.replace(HELLO, node_id=-1)),
        encode_hello(msgspec.structs.replace(HELLO, cluster_id="")),
        encode_hello(HELLO) + b" " * HELLO_BYTES_MAX,
    ],
)
def test_anything_malformed_is_a_bad_request(content: bytes) -> None:
    assert refusal(content).code == BAD_REQUEST.code


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_by_the_typed_error(content: bytes) -> None:
    refusal(content)


@pytest.mark.parametrize("changes", [{"cluster_id": "other"}, {"cluster_id": None}, {"peer_id": 3}])
def test_another_cluster_or_another_expected_node_is_refused(changes: dict[str, object]) -> None:
    mine = msgspec.structs.replace(HELLO, node_id=2, peer_id=1)
    check_peer(HELLO, mine)
    check_peer(msgspec.structs.replace(HELLO, peer_id=None), mine)
    with pytest.raises(RejectedError) as caught:
        check_peer(msgspec.structs.replace(HELLO, **changes), mine)
    assert caught.value.code == ILLEGAL_STATE.code


@pytest.mark.parametrize(
    ("code", "passing"),
    [
        (NOT_READY.code, True),
        (OVERLOADED.code, True),
        (NOT_FOUND.code, True),
        (ILLEGAL_STATE.code, False),
        (UNAUTHORIZED.code, False),
        (99_999, False),
    ],
)
def test_only_some_rejections_pass_by_themselves(code: int, passing: bool) -> None:
    assert is_passing(RejectedError(code, "")) is passing
