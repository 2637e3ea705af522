"""Wire shapes: pure, tolerant of newer nodes, and within the node's bounds."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import raftlog.api
from raftlog.api import common
from raftlog.metadata.apply.apply import BROKERS_MAX
from raftlog.raft.voters import NODE_ID_MAX

MODULES = [
    importlib.import_module(f"raftlog.api.{module.name}")
    for module in pkgutil.iter_modules(raftlog.api.__path__)
]


def shapes() -> Iterator[type[msgspec.Struct]]:
    for module in MODULES:
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, msgspec.Struct)
                and value.__module__ == module.__name__
            ):
                yield value


def test_modules_import_only_msgspec_and_the_record_format() -> None:
    allowed = ("__future__", "collections", "typing", "msgspec", "raftlog.api", "raftlog.record")
    for module in MODULES:
        assert module.__file__ is not None
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.module is not None and node.module.startswith(allowed), node.module
            elif isinstance(node, ast.Import):
                assert all(name.name.startswith(allowed) for name in node.names)


def test_every_shape_is_declared_once() -> None:
    names = [shape.__name__ for shape in shapes()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("shape", list(shapes()), ids=lambda shape: shape.__name__)
def test_every_shape_has_a_docstring_and_a_schema(shape: type[msgspec.Struct]) -> None:
    assert shape.__doc__
    msgspec.json.schema(shape)


def test_bounds_are_those_that_the_node_enforces() -> None:
    assert common.NODE_ID_MAX == NODE_ID_MAX
    assert common.REPLICAS_MAX == BROKERS_MAX
