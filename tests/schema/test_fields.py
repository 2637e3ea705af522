from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
import pytest

from raftlog.record.types import TopicId
from raftlog.schema.codec import codec_of
from raftlog.schema.fields import Field, Int32, Records, Versions, layout_of
from tests.schema.messages import Everything


class NoVersions(msgspec.Struct):
    number: Int32


class Base(msgspec.Struct):
    VERSIONS: ClassVar = Versions(0, 1, flexible=0)


class NoSize(Base):
    number: int


class SeveralTypes(Base):
    value: int | str


class NoneOfNumber(Base):
    number: Int32 | None


class List(Base):
    numbers: list[Int32]


class OtherString(Base):
    topic_id: TopicId


class NoDefault(Base):
    number: Annotated[Int32, Field(since=1)]


class TaggedWithoutDefault(Base):
    number: Annotated[Int32, Field(tag=0)]


class OneTagTwice(Base):
    first: Annotated[Int32, Field(tag=0)] = 0
    second: Annotated[Int32, Field(tag=0)] = 0


class TaggedRecords(Base):
    records: Annotated[Records | None, Field(tag=0)] = None


class ContainsItself(Base):
    inner: tuple[ContainsItself, ...]


@pytest.mark.parametrize(
    ("message_type", "reason"),
    [
        (NoVersions, "has no VERSIONS"),
        (NoSize, "NoSize.number has no wire type"),
        (SeveralTypes, "SeveralTypes.value has several types"),
        (NoneOfNumber, "int32 cannot be None"),
        (List, "List.numbers has no wire type"),
        (OtherString, "OtherString.topic_id has no wire type"),
        (NoDefault, "NoDefault.number needs a default"),
        (TaggedWithoutDefault, "needs a default"),
        (OneTagTwice, "duplicate tag"),
        (TaggedRecords, "records cannot be tagged"),
        (ContainsItself, "is nested in over 16 levels"),
    ],
)
def test_a_wrong_annotation_is_named(message_type: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        codec_of(message_type, 0)


@pytest.mark.parametrize("version", [-1, 4])
def test_a_version_outside_of_the_range_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match="has versions 0 to 3"):
        codec_of(Everything, version)


def test_fields_come_and_go_with_versions() -> None:
    def present(version: int) -> set[str]:
        return {field.name for field in layout_of(Everything, version).fields if field.is_present}

    every = set(Everything.__struct_fields__)
    tagged = {"tagged_id", "tagged_number", "tagged_point", "tagged_points"}
    assert present(0) == every - {"large", "added_text", "dropped"} - tagged
    assert present(1) == every - {"removed", "dropped"} - tagged
    assert present(2) == every - {"removed", "dropped", "tagged_points"}
    assert present(3) == every - {"removed"}


def test_tagged_fields_are_ordered_by_tag() -> None:
    assert [field.tag for field in layout_of(Everything, 3).tagged] == [0, 1, 3, 200]


def test_a_codec_is_compiled_once() -> None:
    assert codec_of(Everything, 1) is codec_of(Everything, 1)
