"""Requests have the same bounds on this node and from another, and are immutable on the way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from raftlog.coordinator.groups import kind as groups
from raftlog.coordinator.groups.classic.messages import JoinGroup, Protocol
from raftlog.coordinator.groups.messages import (
    ConsumerHeartbeatRequest,
    GroupRequest,
    GroupResponse,
)
from raftlog.coordinator.groups.offset_messages import (
    OFFSETS_MAX,
    CommitOffsets,
    DeleteOffsets,
    FetchOffsets,
    OffsetToCommit,
    TopicPartition,
)
from raftlog.coordinator.instances.messages import CommitInstance, PartitionOffset, SeekInstance
from raftlog.coordinator.shard.decision import Producer
from raftlog.coordinator.shard.messages import Messages, sound_messages
from raftlog.coordinator.transactions import kind as transactions
from raftlog.coordinator.transactions import messages as m
from raftlog.record.errors import INVALID_BODY, LogError
from raftlog.record.types import ProducerEpoch, ProducerId, TopicId
from tests.examples import examples

GROUPS: Messages[Any, Any] = groups.MESSAGES
TRANSACTIONS: Messages[Any, Any] = transactions.MESSAGES
P = Producer(ProducerId(1), ProducerEpoch(2))
PLACE = m.TopicPartition("t", 0)
LONG = "x" * 256

OUT_OF_BOUNDS = [
    (GROUPS, CommitOffsets("g", (OffsetToCommit("t", -1, 7),))),
    (GROUPS, CommitOffsets("g", (OffsetToCommit("t", 1 << 31, 7),))),
    (GROUPS, CommitOffsets("g", (OffsetToCommit("t", 0, 7),) * (OFFSETS_MAX + 1))),
    (GROUPS, FetchOffsets("g", (TopicPartition("t", -1),))),
    (GROUPS, FetchOffsets("g", (TopicPartition("t", 0),) * (OFFSETS_MAX + 1))),
    (GROUPS, DeleteOffsets("g", (TopicPartition("t", 1 << 31),))),
    (GROUPS, SeekInstance("g", "i", (PartitionOffset(TopicId("0" * 32), 0, -2),))),
    (GROUPS, CommitInstance("g", "i", (OffsetToCommit("t", 0, 7),) * (OFFSETS_MAX + 1))),
    (TRANSACTIONS, m.InitProducer(LONG, 1)),
    (TRANSACTIONS, m.InitProducer("t", -1)),
    (TRANSACTIONS, m.InitProducer("t", 1 << 31)),
    (TRANSACTIONS, m.AddPartitions("t", P, (PLACE,) * (m.PARTITIONS_MAX + 1))),
    (TRANSACTIONS, m.VerifyOrAdd((m.Verification(LONG, P, (PLACE,), True),))),
    (
        TRANSACTIONS,
        m.VerifyOrAdd((m.Verification("t", P, (), True),) * (m.VERIFICATIONS_MAX + 1)),
    ),
    (TRANSACTIONS, m.EndTransaction("t", P, True, 0)),
    (TRANSACTIONS, m.EndTransaction("t", P, True, 3)),
    (TRANSACTIONS, m.CommitSinkEpoch("x" * 201, 0, ())),
    (TRANSACTIONS, m.CommitSinkEpoch("s", -2, ())),
    (TRANSACTIONS, m.CommitSinkEpoch("s", 0, ("t", LONG))),
    (TRANSACTIONS, m.CommitSinkEpoch("s", 0, ("t",) * (m.SINK_TRANSACTIONS_MAX + 1))),
    (TRANSACTIONS, m.CommitSinkEpoch("s", 0, (), LONG)),
    (TRANSACTIONS, m.ListTransactions(frozenset(map(str, range(17))))),
    (TRANSACTIONS, m.ListTransactions(open_ms_min=-1)),
]


@pytest.mark.parametrize(
    ("messages", "request_"),
    OUT_OF_BOUNDS,
    ids=[f"{number}-{type(one).__name__}" for number, (_, one) in enumerate(OUT_OF_BOUNDS)],
)
def test_a_request_out_of_bounds_gets_one_error_here_and_from_another_node(
    messages: Messages[Any, Any], request_: Any
) -> None:
    with pytest.raises(LogError) as here:
        messages.checked(request_)
    with pytest.raises(LogError) as elsewhere:
        messages.decode_request(messages.encode_request(request_))
    assert here.value.entry is elsewhere.value.entry is INVALID_BODY
    assert here.value.message == elsewhere.value.message


def test_malformed_bytes_are_refused() -> None:
    with pytest.raises(LogError) as malformed:
        TRANSACTIONS.decode_request(b"\xc1")
    assert malformed.value.entry is INVALID_BODY


def test_a_mutable_part_of_a_request_is_copied() -> None:
    names: Any = ["a"]
    request = ConsumerHeartbeatRequest("g", "m", 0, subscribed_names=names)
    checked = GROUPS.checked(request)
    names.append("b")
    assert checked == ConsumerHeartbeatRequest("g", "m", 0, subscribed_names=("a",))
    buffer = bytearray(b"abc")
    metadata: Any = memoryview(buffer)
    join = JoinGroup(
        group_id="g",
        protocol_type="consumer",
        protocols=(Protocol("range", metadata),),
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
    )
    copied = GROUPS.checked(join)
    buffer[:] = b"xyz"
    assert copied.protocols == (Protocol("range", b"abc"),)
    plain: Any = (1, 2)
    known = TRANSACTIONS.checked(m.InitProducer("t", 1, plain)).known
    assert type(known) is Producer


def _edges(found: inspect.Type) -> st.SearchStrategy[Any]:
    """Values of a field's type, at and around its bounds."""
    edges: st.SearchStrategy[Any] = st.none()
    match found:
        case inspect.IntType(ge=least, le=most):
            low = -(1 << 63) if least is None else least
            high = (1 << 63) - 1 if most is None else most
            around = {low - 1, low, 0, high, high + 1}
            # MessagePack has no others.
            edges = st.sampled_from(sorted(n for n in around if -(1 << 63) <= n < 1 << 64))
        case inspect.StrType(max_length=length_max):
            length = length_max or 3
            edges = st.sampled_from(["", "a", "x" * length, "x" * (length + 1), "\u00e4" * length])
        case inspect.BytesType():
            edges = st.sampled_from([b"", b"a", bytearray(b"a")])
        case inspect.BoolType():
            edges = st.booleans()
        case inspect.VarTupleType(item_type=item, max_length=length_max):
            edges = st.lists(_edges(item), max_size=2).map(tuple)
            if length_max is not None:
                many = _edges(item).map(lambda one: (one,) * (length_max + 1))
                edges = st.one_of(edges, edges, edges, many)
        case inspect.FrozenSetType(item_type=item):
            edges = st.frozensets(_edges(item), max_size=2)
        case inspect.StructType() | inspect.NamedTupleType():
            edges = st.builds(found.cls, **{one.name: _edges(one.type) for one in found.fields})
        case inspect.UnionType(types=types):
            edges = st.one_of(*map(_edges, types))
        case _:
            assert isinstance(found, inspect.NoneType), found
    return edges


@pytest.mark.parametrize(("messages", "union"), [(GROUPS, GroupRequest), (TRANSACTIONS, m.Request)])
@settings(max_examples=examples(200))
@given(st.data())
def test_every_request_is_judged_as_by_decoding(
    messages: Messages[Any, Any], union: Any, data: st.DataObject
) -> None:
    found = inspect.type_info(union)
    assert isinstance(found, inspect.UnionType)
    chosen = data.draw(st.sampled_from(found.types))
    request = data.draw(_edges(chosen))
    try:
        expected = messages.decode_request(messages.encode_request(request))
    except LogError as error:
        with pytest.raises(LogError) as refused:
            messages.checked(request)
        assert refused.value.message == error.message
        return
    assert messages.checked(request) == expected


@pytest.mark.parametrize("union", [GroupRequest, GroupResponse, m.Request, m.Response])
def test_messages_have_only_immutable_parts(union: Any) -> None:
    seen: set[type] = set()

    def look(found: inspect.Type) -> None:
        match found:
            case inspect.UnionType(types=types):
                for one in types:
                    look(one)
            case inspect.StructType() | inspect.NamedTupleType():
                if found.cls in seen:
                    return
                seen.add(found.cls)
                if isinstance(found, inspect.StructType):
                    assert found.cls.__struct_config__.frozen, found.cls
                for field in found.fields:
                    look(field.type)
            case inspect.VarTupleType(item_type=item) | inspect.FrozenSetType(item_type=item):
                look(item)
            case _:
                assert isinstance(
                    found,
                    inspect.NoneType
                    | inspect.BoolType
                    | inspect.IntType
                    | inspect.StrType
                    | inspect.BytesType
                    | inspect.EnumType,
                ), found

    look(inspect.type_info(union))
    assert len(seen) > 5


def test_a_field_without_a_test_is_an_error() -> None:
    class Odd(msgspec.Struct, tag=1):
        values: list[int]

    with pytest.raises(TypeError, match=r"v\.values"):
        sound_messages(Odd)
